"""``powerpool bench [SUITE]``: run suites, print tables, write records and plots."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from powerpool.bench import launch, report
from powerpool.bench.agreement import COMPETITOR_VALUE_TOLERANCE, GRADIENT_TOLERANCE, VALUE_TOLERANCE
from powerpool.bench.case import BenchCase
from powerpool.bench.fits import fits
from powerpool.bench.record import BenchRecord, load
from powerpool.bench.runner import Effort, run_case
from powerpool.bench.targets import limits, outcomes
from powerpool.console import Bars, complain, console, delegate, emit, notes, say
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import locked
from powerpool.runs.environment import environment

SuiteName = Literal["all", "pools", "solvers", "curves", "training", "extraction", "episodes"]
SUITES = typing.get_args(SuiteName)[1:]
WHOLE_JOBS = ("training", "extraction", "episodes")
"""Suites of what users wait for, on the CPU, with limits in times of their floor."""


@dataclass(frozen=True)
class BenchOptions:
    """Measure time and memory of poolings, solvers and curves, against competitors in the same run.

    Args:
        suite: all, solvers, pools, curves, training, extraction or episodes; may be given as the first word
        quick: few small cases and few repetitions: does everything run?
        out: folder of the records, SUITE.json, and of the plots; runs/bench, or runs/bench-quick, without it
        threads: threads of torch
        repetitions: how often every contender runs in a case; 0 leaves it to the suite. Slow ones run less often
        device: cpu, or a CUDA device
        plots: draw the measurements of the pools
        resume: go on with unfinished records in the folder, where options, versions and machine are the same
    """

    suite: SuiteName = "all"
    quick: bool = False
    out: Path | None = None
    threads: int = 2
    repetitions: int = 0
    device: str = "cpu"
    plots: bool = True
    resume: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ArgumentError(f"threads must be >= 1 (got {self.threads}).")
        if self.repetitions < 0:
            raise ArgumentError(f"repetitions must be >= 1, or 0 for the default (got {self.repetitions}).")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ArgumentError(f"device must be 'cpu' or 'cuda', 'cuda:0' ... (got {self.device!r}).") from error
        if device.type not in ("cpu", "cuda"):
            raise ArgumentError(f"device must be 'cpu' or 'cuda', 'cuda:0' ... (got {self.device!r}).")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError(f"device {self.device!r} is not available: torch sees no CUDA here. Use --device cpu.")

    @property
    def folder(self) -> Path:
        """Where everything is written: quick records do not take the place of full ones."""
        return self.out or Path("runs", "bench-quick" if self.quick else "bench")

    @property
    def effort(self) -> Effort:
        """How long every case is measured."""
        if self.quick:
            return Effort(self.repetitions or 5, budget=0.2, warm_up=0)
        return Effort(self.repetitions or 30, budget=6.0, warm_up=1)


def run(options: BenchOptions) -> int:
    """Run the suites; 1 where the answers of a case disagreed."""
    if not launch.is_set(options.threads):
        return launch.relaunch(["bench", *as_arguments(options), *delegate()], options.threads)
    with locked(options.folder):  # before anything is measured that could not be written
        records = [run_suite(suite, options) for suite in (SUITES if options.suite == "all" else (options.suite,))]
    emit([{"written": [_path(record.suite, options)], **dataclasses.asdict(record)} for record in records])
    return 1 if any(case.error for record in records for case in record.cases) else 0


def as_arguments(options: BenchOptions) -> list[str]:
    """The options as they are typed."""
    shown = ((field.name, getattr(options, field.name)) for field in dataclasses.fields(options))
    given = ((name, value) for name, value in shown if value is not None)
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given]


def run_suite(suite: str, options: BenchOptions) -> BenchRecord:
    """Run one suite. After every case the record so far is written: what was measured is not lost."""
    path = _path(suite, options)
    record = _start(suite, options, path)
    queue = suite_cases(suite, options.quick, options.device)
    done = {case.name for case in record.cases}
    # On a terminal one console for both: the bar makes room for the tables.
    shown_on = console() if console().is_interactive and not console().quiet else notes()
    with Bars(shown_on, left=False) as bars:
        bar = bars.add(suite, len(queue))

        def tell(name: str, text: str) -> None:
            bars.update(bar, text=f"{suite}: {name}: {text}")

        while queue:
            case = queue.pop(0)  # so that the tensors of a finished case are released
            if case.name not in done:
                measured = run_case(case, options.effort, options.device, partial(tell, case.name))
                record.cases.append(measured)
                if measured.error:
                    complain(f"{case.name}: {measured.error}")
                else:
                    console().print(report.case_table(measured))
                _conclude(record, complete=not queue)
                record.save(path)
            bars.advance(bar)
    _print_conclusions(record)
    say(f"{report.machine_line(record.environment)}\nrecord: {path}")
    if options.plots and suite == "pools":
        from powerpool.bench import plots

        for plot in plots.draw(record, options.folder):
            say(f"plot: {plot}")
    return record


def _path(suite: str, options: BenchOptions) -> Path:
    return options.folder / f"{suite}.json"


def suite_cases(suite: str, quick: bool, device: str) -> list[BenchCase]:
    """The cases of a suite, in the order in which they run."""
    module: Any = importlib.import_module(f"powerpool.bench.{suite}")
    if suite in WHOLE_JOBS:
        if torch.device(device).type != "cpu":
            raise ArgumentError(f"The suite {suite!r} runs on the CPU only (got device {device!r}).")
        found: list[BenchCase] = module.cases(quick)
    else:
        found = module.cases(quick, device)
    return found


def _start(suite: str, options: BenchOptions, path: Path) -> BenchRecord:
    effort = options.effort
    given = {"quick": options.quick, "device": options.device, "threads": options.threads}
    given["repetitions"] = options.repetitions
    record = BenchRecord(
        suite,
        given,
        asdict(environment()),
        protocol={
            **dataclasses.asdict(effort),
            "time": "seconds; median and quartiles of interleaved repetitions in one process",
            "memory": "peak bytes of the tensors of one forward and backward, above what was there before",
            "value_tolerance": VALUE_TOLERANCE,
            "competitor_value_tolerance": COMPETITOR_VALUE_TOLERANCE,
            "gradient_tolerance": GRADIENT_TOLERANCE,
            "tolerances": "norm of the difference from a float64 reference, relative; checked before timing",
            "input": "relu of normal noise, float32, fixed seed; a general gradient arrives from above",
        },
    )
    if torch.get_num_threads() != options.threads:
        raise ArgumentError(f"torch runs {torch.get_num_threads()} threads, not the {options.threads} asked for.")
    if options.resume and path.exists():
        old = load(path)
        changed = [name for name in ("suite", "options") if getattr(old, name) != getattr(record, name)]
        facts = ("processor", "torch", "powerpool", "threads", "commit", "dirty")
        changed += [name for name in facts if old.environment.get(name) != record.environment[name]]
        if changed:
            raise RecordError(
                f"Cannot go on with {path}: not the same {', '.join(changed)}. Run without --resume to start again, "
                "or with another --out."
            )
        return old
    return record


def _conclude(record: BenchRecord, complete: bool) -> None:
    """What follows from the cases so far."""
    record.complete = complete
    if record.suite == "pools":
        record.fits = fits(record.cases)
        record.targets = outcomes(record.cases)
    if record.suite in WHOLE_JOBS:
        module: Any = importlib.import_module(f"powerpool.bench.{record.suite}")
        record.targets = limits(record.cases, module.LIMITS, module.OURS)
    if record.suite == "solvers":
        from powerpool.bench.solvers import selection

        record.selection = selection(record.cases)


def _print_conclusions(record: BenchRecord) -> None:
    if record.fits:
        console().print(report.fit_table(record))
    if record.selection:
        console().print(report.selection_table(record))
    if record.targets:
        console().print(report.target_table(record))
