"""``powerpool selfcheck``: run the checks on this machine, print a table, exit with 1 if one failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from powerpool.console import emit, print_line, show_status
from powerpool.errors import ArgumentError
from powerpool.files import require_writable, write_json
from powerpool.runs.environment import environment
from powerpool.selfcheck.battery import Battery
from powerpool.selfcheck.checks import HEADING, Outcome, run_check
from powerpool.tasks.training import require_device


@dataclass(frozen=True)
class SelfcheckOptions:
    """Compare every curve, solver and pool with reference answers on this machine, in under a minute.

    Args:
        device: cpu, or a CUDA device
        seed: seed of the matrices and features; a failure can be repeated with its seed
        quick: skip torch.compile with Inductor, which takes half of the time
        out: JSON file to write the results to
    """

    device: str = "cpu"
    seed: int = 0
    quick: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ArgumentError(f"seed must be >= 0 and below 2**32 (got {self.seed}).")
        if torch.device(require_device(self.device)).type not in ("cpu", "cuda"):
            raise ArgumentError(f"device must be 'cpu' or 'cuda', 'cuda:0' ... (got {self.device!r}).")
        if self.out is not None and self.out.is_dir():
            raise ArgumentError(f"out must be the path of a file (got the folder {self.out}).")


def run(options: SelfcheckOptions) -> int:
    """Run all checks; return 1 if one failed."""
    if options.out is not None:
        require_writable(options.out)  # now, not after a minute of work
    started = time.perf_counter()
    print_line(HEADING)
    outcomes: list[Outcome] = []
    with torch.enable_grad():
        for check in Battery(options.seed, options.device).checks(options.quick):
            with show_status(check.name):
                outcomes.append(run_check(check))
            print_line(outcomes[-1].line)
    seconds = time.perf_counter() - started
    about = {"device": options.device, "seed": options.seed, "quick": options.quick, "seconds": round(seconds, 1)}
    machine, settings = asdict(environment()), torch_settings()
    data = {
        "passed": all(outcome.status != "failed" for outcome in outcomes),
        **about,
        "checks": [asdict(outcome) for outcome in outcomes],
        "settings": settings,
        "environment": machine,
    }
    emit(data)
    # The environment has a field "quick" of another meaning, which must not replace the option.
    print_line(f"\n{_facts(about | machine | settings | about)}\n\n{_summary(outcomes, seconds)}")
    print_line("Please include all of this output in a bug report.")
    if options.out is not None:
        write_json(options.out, data)
        print_line(f"Written to {options.out}.")
    return 0 if data["passed"] else 1


def torch_settings() -> dict[str, Any]:
    """Settings of torch that change numbers and that its version does not tell."""
    return {
        "default_dtype": str(torch.get_default_dtype()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "mkl": torch.backends.mkl.is_available(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda_runtime": torch.version.cuda,
    }


def _facts(facts: dict[str, Any]) -> str:
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
        lines.append(f"{name + ':':<26}{'none' if value is None else value}")
    return "\n".join(lines)


def _summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    bad = [outcome.name for outcome in outcomes if outcome.status == "failed"]
    skipped = sum(outcome.status == "skipped" for outcome in outcomes)
    ran = len(outcomes) - skipped
    text = f"{len(bad)} of {ran} checks FAILED in {seconds:.0f} s: {'; '.join(bad)}."
    if not bad:
        text = f"All {ran} checks passed in {seconds:.0f} s."
    return text + (f" {skipped} skipped." if skipped else "")
