"""``powerpool bench [SUITE]``: run suites, print tables, write records and plots."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from powerpool.bench import cases, operators, report
from powerpool.bench.cases import BenchCase, Effort, run_case
from powerpool.bench.record import (
    SUITES,
    BenchRecord,
    RecordedOptions,
    SuiteName,
    check_limits,
    find_fits,
    find_outcomes,
    find_selection,
    load,
)
from powerpool.console import Bars, console, delegate_result, emit, notes, print_failure, print_line, print_table
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import locked
from powerpool.runs.engines import module_path, python_command
from powerpool.runs.environment import environment
from powerpool.tasks.training import require_device

JOBS = ("training", "extraction", "episodes")
"""Suites of whole jobs, on the CPU, with limits relative to their floor."""
SAME = ("processor", "torch", "powerpool", "threads", "commit", "dirty")
"""Facts of the environment that have to be the same to resume a run."""


@dataclass(frozen=True)
class BenchOptions:
    """Measure time and memory of poolings, solvers and curves, against competitors in the same run.

    Args:
        suite: all, solvers, pools, curves, training, extraction or episodes; may be given as the first word
        quick: few small cases and few repetitions, to see that everything runs
        out: folder of the records, SUITE.json, and of the plots; default runs/bench, or runs/bench-quick
        threads: threads of torch
        repetitions: how often every contender runs in a case, slow ones less often; 0 is the default of the suite
        budget: seconds after which a contender of a case is not repeated any more
        device: cpu, or a CUDA device
        plots: draw the measurements of the pools
        resume: continue unfinished records in the folder, if options, versions and machine are the same
    """

    suite: SuiteName = "all"
    quick: bool = False
    out: Path | None = None
    threads: int = 2
    repetitions: int = 0
    budget: float = 6.0
    device: str = "cpu"
    plots: bool = True
    resume: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ArgumentError(f"threads must be >= 1 (got {self.threads}).")
        if self.repetitions < 0:
            raise ArgumentError(f"repetitions must be >= 1, or 0 for the default (got {self.repetitions}).")
        if not self.budget > 0:
            raise ArgumentError(f"budget must be > 0 seconds (got {self.budget}).")
        if torch.device(require_device(self.device)).type not in ("cpu", "cuda"):
            raise ArgumentError(f"device must be 'cpu' or 'cuda', 'cuda:0' ... (got {self.device!r}).")

    @property
    def folder(self) -> Path:
        """The output folder: quick records do not replace full ones."""
        return self.out or Path("runs", "bench-quick" if self.quick else "bench")

    @property
    def effort(self) -> Effort:
        """How long every case is measured."""
        if self.quick:
            return Effort(self.repetitions or 5, budget=min(0.2, self.budget), warm_up=0)
        return Effort(self.repetitions or 30, budget=self.budget, warm_up=1)


def run(options: BenchOptions) -> int:
    """Run the suites; return 1 if the answers of a case disagreed."""
    if not has_threads(options.threads):
        return relaunch(["bench", *as_arguments(options), *delegate_result()], options.threads)
    with locked(options.folder):  # before anything is measured that could not be written
        records = [run_suite(suite, options) for suite in (SUITES if options.suite == "all" else (options.suite,))]
    emit([{"written": [options.folder / f"{record.suite}.json"], **dataclasses.asdict(record)} for record in records])
    return 1 if any(case.error for record in records for case in record.cases) else 0


def as_arguments(options: BenchOptions) -> list[str]:
    """The options as command-line arguments."""
    shown = ((field.name, getattr(options, field.name)) for field in dataclasses.fields(options))
    given = ((name, value) for name, value in shown if value is not None)
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given]


# ---- threads, which have to be chosen before torch starts ------------------------------------------------------------


def thread_variables(threads: int) -> dict[str, str]:
    """The environment for a number of threads. After ``torch.set_num_threads`` batched LU fails in torch 2.13."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # a waiting thread that spins takes the core from one that works
        "KINETO_LOG_LEVEL": "99",  # the profiler, which counts memory, would print two lines for every step
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # and warn about memory that it has not seen being allocated
    }


def has_threads(threads: int) -> bool:
    """Whether this process was started with that environment."""
    return all(os.environ.get(name) == value for name, value in thread_variables(threads).items())


def relaunch(arguments: Sequence[str], threads: int) -> int:
    """Run ``powerpool ARGUMENTS`` in a child with that environment, and return its exit code."""
    code = "sys.argv[0] = 'powerpool'; from powerpool.cli.main import main; sys.exit(main())"
    command = python_command(code, *arguments)
    with subprocess.Popen(command, env=os.environ | module_path() | thread_variables(threads)) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            # A terminal sends Ctrl-C to both processes; otherwise the child has to be told.
            if sys.stdin is None or not sys.stdin.isatty():
                child.send_signal(signal.SIGINT)
            status = child.wait()
    return status if status >= 0 else 128 - status  # killed by a signal: the code of a shell


# ---- suites ----------------------------------------------------------------------------------------------------------


def run_suite(suite: str, options: BenchOptions) -> BenchRecord:
    """Run one suite. The record is written after every case, so that nothing measured is lost."""
    path = options.folder / f"{suite}.json"
    record = _start(suite, options, path)
    queue = suite_cases(suite, options.quick, options.device)
    done = {case.name for case in record.cases}
    # One console for bar and tables on a terminal: tables are printed above the bar.
    shown_on = console() if console().is_interactive and not console().quiet else notes()
    with Bars(shown_on, left=False) as bars:
        bar = bars.add(suite, len(queue))

        def show(step: str) -> None:
            bars.update(bar, text=f"{suite}: {step}")

        while queue:
            case = queue.pop(0)  # so that the tensors of a finished case are released
            if case.name not in done:
                measured = run_case(case, options.effort, options.device, show)
                record.cases.append(measured)
                if measured.error:
                    print_failure(f"{case.name}: {measured.error}")
                else:
                    print_table(report.case_table(measured))
                _add_findings(record, complete=not queue)
                record.save(path)
            bars.advance(bar)
    for table in (report.growth_table(record), report.selection_table(record), report.target_table(record)):
        if table.rows:
            print_table(table)
    print_line(f"{report.machine_line(record.environment)}\nrecord: {path}")
    if options.plots and suite == "pools":
        for plot in report.draw(record, options.folder):
            print_line(f"plot: {plot}")
    return record


def suite_cases(suite: str, quick: bool, device: str) -> list[BenchCase]:
    """The cases of a suite, in the order in which they run."""
    operator_suites = {"pools": operators.pools, "solvers": operators.solvers, "curves": operators.curves}
    if suite in operator_suites:
        return operator_suites[suite](quick, device)
    if torch.device(device).type != "cpu":
        raise ArgumentError(f"The suite {suite!r} runs on the CPU only (got device {device!r}).")
    from powerpool.bench import networks

    jobs = {"training": networks.training, "extraction": networks.extraction, "episodes": networks.episodes}
    return jobs[suite](quick)


def _start(suite: str, options: BenchOptions, path: Path) -> BenchRecord:
    """A new record, or the unfinished one to continue."""
    record = BenchRecord(
        suite,
        RecordedOptions(options.quick, options.device, options.threads, options.repetitions),
        environment(),
        protocol={
            **dataclasses.asdict(options.effort),
            "time": "seconds; median and quartiles of interleaved repetitions in one process",
            "memory": "peak bytes of the tensors of one forward and backward, above what was allocated before",
            "value_tolerance": cases.VALUE_TOLERANCE,
            "competitor_value_tolerance": cases.COMPETITOR_VALUE_TOLERANCE,
            "gradient_tolerance": cases.GRADIENT_TOLERANCE,
            "tolerances": "norm of the difference from a float64 reference, relative; checked before timing",
            "input": "relu of normal noise, float32, fixed seed; the gradient from above is not symmetric",
        },
    )
    if torch.get_num_threads() != options.threads:
        raise ArgumentError(f"torch runs {torch.get_num_threads()} threads, not the {options.threads} asked for.")
    if not options.resume or not path.exists():
        return record
    old = load(path)
    changed = [name for name in ("suite", "options", "protocol") if getattr(old, name) != getattr(record, name)]
    changed += [name for name in SAME if getattr(old.environment, name) != getattr(record.environment, name)]
    if changed:
        raise RecordError(
            f"Cannot resume {path}: not the same {', '.join(changed)}. Run without --resume to start again, or with "
            "another --out."
        )
    return old


def _add_findings(record: BenchRecord, complete: bool) -> None:
    """Derive fits, targets and the choice of solvers from the cases so far."""
    record.complete = complete
    if record.suite == "pools":
        record.fits = find_fits(record.cases)
        record.targets = find_outcomes(record.cases)
    if record.suite == "solvers":
        curves = {name: row.curve for name, row in operators.SOLVER_CURVES.items()}
        record.selection = find_selection(record.cases, curves)
    if record.suite in JOBS:
        record.targets = check_limits(record.cases)
