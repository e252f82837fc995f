"""``powerpool selfcheck``: run the battery on this machine, print the table, exit with 1 if anything is wrong."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from powerpool.console import emit, is_quiet, write_text
from powerpool.errors import ArgumentError
from powerpool.files import require_writable, write_json
from powerpool.runs.environment import environment
from powerpool.selfcheck import report
from powerpool.selfcheck.battery import Battery
from powerpool.selfcheck.report import Outcome
from powerpool.tasks.training import require_device


@dataclass(frozen=True)
class SelfcheckOptions:
    """Compare every curve, solver and pool with the right answers on this machine, in under a minute.

    Args:
        device: cpu, or a CUDA device
        seed: seed of the matrices and features; a failure comes back with its seed
        quick: leave out the compiler of torch.compile, which takes half of the time
        out: a JSON file to write all of it to
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
    """Run all checks; 1 where one failed."""
    if options.out is not None:
        require_writable(options.out)  # before the minute that it takes
    started = time.perf_counter()
    _say(report.HEADING)
    outcomes: list[Outcome] = []
    with torch.enable_grad():
        for check in Battery(options.seed, options.device).checks(options.quick):
            _announce(f"{check.name} ...")
            outcomes.append(report.run_check(check))
            _announce("")
            _say(outcomes[-1].line)
    seconds = time.perf_counter() - started
    about = {"device": options.device, "seed": options.seed, "quick": options.quick, "seconds": round(seconds, 1)}
    machine = asdict(environment())
    data = report.as_json(outcomes, about, machine)
    emit(data)
    _say(f"\n{report.facts(about | machine)}\n\n{report.conclusion(outcomes, seconds)}")
    _say("A report of a bug should contain all of this.")
    if options.out is not None:
        write_json(options.out, data)
        _say(f"Written to {options.out}.")
    return 0 if data["passed"] else 1


def _say(text: str) -> None:
    """Without rich: what checks an installation must not need the whole of it."""
    write_text(text + "\n")
    sys.stdout.flush()  # a row when it is done, also into a pipe


def _announce(text: str) -> None:
    """What is going on, on a line that the next one takes the place of; only where a person looks at the table."""
    if sys.stderr.isatty() and sys.stdout.isatty() and not is_quiet():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
