"""What came of a check, as a row of a table and as JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from powerpool.selfcheck.battery import Case, Check, Skipped

Status = Literal["passed", "failed", "skipped"]
NAME_WIDTH = 34
HEADING = f"{'check':<{NAME_WIDTH}}  {'cases':>5}  {'worst error':>11}  {'tolerance':>9}  result"


@dataclass(frozen=True)
class Outcome:
    """A check after it ran."""

    name: str
    status: Status
    cases: int
    """Comparisons, values and gradients counted apart."""
    failed: int
    worst: float | None
    """The largest error; None where nothing was compared, or where it is not finite."""
    tolerance: float
    note: str
    """Which case is the worst, what was raised, or why the check was skipped."""
    seconds: float

    @property
    def line(self) -> str:
        """As a row of the table."""
        worst = "-" if self.status == "skipped" else "not finite" if self.worst is None else _number(self.worst)
        said = {
            "passed": "passed",
            "failed": f"FAILED ({self.failed} of {self.cases}): {self.note}",
            "skipped": f"skipped: {self.note}",
        }[self.status]
        return f"{self.name:<{NAME_WIDTH}}  {self.cases:>5}  {worst:>11}  {_number(self.tolerance):>9}  {said}"


def run_check(check: Check) -> Outcome:
    """Run all cases of a check. What raises has failed, and the others still run."""
    started = time.perf_counter()
    if check.skipped:
        return Outcome(check.name, "skipped", 0, 0, None, check.tolerance, check.skipped, 0.0)
    found: list[tuple[float, str]] = []
    try:
        for case in check.cases():
            found += _judge(case)
    except Skipped as reason:
        seconds = time.perf_counter() - started
        return Outcome(check.name, "skipped", 0, 0, None, check.tolerance, str(reason), seconds)
    except Exception as error:  # a generator of cases computes, too, and is over once it raised
        found.append((math.inf, f"making its next case raised {_first_line(error)}"))
    if not found:
        found.append((math.inf, "nothing was compared"))
    worst, note = max(found, key=lambda one: one[0])
    failed = sum(error > check.tolerance for error, _ in found)
    return Outcome(
        check.name,
        "failed" if failed else "passed",
        len(found),
        failed,
        worst if math.isfinite(worst) else None,
        check.tolerance,
        note,
        time.perf_counter() - started,
    )


def _judge(case: Case) -> list[tuple[float, str]]:
    """The error of every part, and its name."""
    try:
        errors = case.run()
    except Skipped:
        raise
    except Exception as error:  # a broken machine may raise anything, and the table is to show it
        return [(math.inf, f"{case.label} raised {_first_line(error)}")]
    return [(error if math.isfinite(error) else math.inf, f"{part} of {case.label}") for part, error in errors.items()]


def conclusion(outcomes: Sequence[Outcome], seconds: float) -> str:
    """How it ended, and what to do with it."""
    bad = [outcome.name for outcome in outcomes if outcome.status == "failed"]
    left_out = sum(outcome.status == "skipped" for outcome in outcomes)
    ran = len(outcomes) - left_out
    if bad:
        said = f"{len(bad)} of {ran} checks FAILED in {seconds:.0f} s: {'; '.join(bad)}."
    else:
        said = f"All {ran} checks passed in {seconds:.0f} s."
    return said + (f" {left_out} skipped." if left_out else "")


def as_json(outcomes: Sequence[Outcome], about: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """All that is known, for machines."""
    passed = all(outcome.status != "failed" for outcome in outcomes)
    return {
        "passed": passed,
        **about,
        "checks": [asdict(outcome) for outcome in outcomes],
        "settings": settings(),
        "environment": environment,
    }


def settings() -> dict[str, Any]:
    """Switches of torch that change numbers, and that no version shows."""
    return {
        "default_dtype": str(torch.get_default_dtype()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "mkl": torch.backends.mkl.is_available(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda_runtime": torch.version.cuda,
    }


def facts(environment: dict[str, Any]) -> str:
    """Machine, versions and settings, one a line."""
    lines = []
    for name, value in (environment | settings()).items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
        lines.append(f"{name + ':':<26}{'none' if value is None else value}")
    return "\n".join(lines)


def _number(error: float) -> str:
    return f"{error:.1e}" if error else "0"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
