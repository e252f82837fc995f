"""``powerpool report``: tables and plots of records, as README.md and as one HTML file."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.console import Bold, emit, print_line
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import make_folder, read_json, write_text
from powerpool.report import plots
from powerpool.report.groups import BASELINES, Group, describe_protocol, describe_test, group_records, list_seeds
from powerpool.report.provenance import compare_settings, describe_reproduction, list_machines
from powerpool.report.results import check_record, frequent_mistakes
from powerpool.report.tables import Markdown, Table, escaped, make_pretraining_table, make_table
from powerpool.runs.folder import RECORD
from powerpool.runs.record import QUICK_NOTE, RunRecord, mark_quick
from powerpool.runs.typed import Json

if TYPE_CHECKING:
    from jinja2 import Environment

PAGES = ("README.md", "report.html")
SHORT_NAMES = ("validation-only", "frozen")
"""Protocols that the names of record files leave out."""
PLOTS = {
    "values": ("{metric} of every method", plots.draw_values),
    "curves": ("Training curves", plots.draw_curves),
    "costs": ("Validation accuracy against training episodes and CPU seconds", plots.draw_costs),
    "episodes": ("Accuracy in test episodes", plots.draw_episodes),
    "confusion": ("Confusion matrices", plots.draw_confusions),
    "spectra": ("Spectra before and after power normalization", plots.draw_spectra),
}
"""Titles of the plots, and the functions that draw them."""
HEADINGS = {
    "curves": "Training curves",
    "costs": "Accuracy against cost",
    "episodes": "Test episodes",
    "confusion": "Confusion",
    "spectra": "Spectra",
}
SHORT = 24
"""Cells of at most this many characters are not broken into lines."""
HINT = f"Make some with {' or '.join(f'`powerpool reproduce {task}`' for task in BASELINES)}, or name another folder."


@dataclass(frozen=True)
class ReportOptions:
    """Write the tables and plots of finished runs, beside the figures of the paper.

    Args:
        records: folder with the records, DATA/METHOD.json and DATA/METHOD.PROTOCOL.json
        out: folder for README.md, report.html and the plots; default: the folder of the records
    """

    records: Path = Path("runs/reproduce/graph")
    out: Path | None = None

    def __post_init__(self) -> None:
        if not self.records.is_dir():
            raise ArgumentError(f"records must be a folder with records of runs (got {self.records}). {HINT}")


def run(options: ReportOptions) -> None:
    """Write the report and print where it is."""
    records, folder = read_records(options.records), options.out or options.records
    written = write_report(records, folder)
    emit(_as_json(records, written, folder))
    names = ", ".join(path.name for path in written[:2])
    print_line(f"{folder}: {names} and {len(written) - 2} plots from {len(records)} records")


# ---- records in a folder ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reproduced:
    """The records and the report that ``powerpool reproduce`` made."""

    records: list[RunRecord]
    written: list[Path]
    """Files of the report; empty if none was asked for."""
    quick: bool


def file_records(records: Sequence[RunRecord], folder: Path, *, quick: bool, report: bool) -> Reproduced:
    """Write records below a folder, and the report of all records there.

    Args:
        records: of one command.
        folder: of records and report.
        quick: whether to mark the records as those of a quick run.
        report: whether to write the report.
    """
    filed = [mark_quick(record) if quick else record for record in records]
    for record in filed:
        path = folder / record_path(record)
        with contextlib.suppress(RecordError):  # missing or damaged
            if RunRecord.read(path) == record:
                continue  # an equal file keeps its time, so that a report remains newer
        record.write(path)
    return Reproduced(filed, write_report(read_records(folder), folder) if report else [], quick)


def print_summary(made: Reproduced, folder: Path) -> None:
    """Print where the report is."""
    emit({**_as_json(made.records, made.written, folder), "quick": made.quick})
    for path in made.written[:2]:
        print_line(f"written: {path}")
    if made.quick:
        print_line(QUICK_NOTE)


def record_path(record: RunRecord) -> Path:
    """Return the path of a record below the folder of all records: DATA/METHOD.json, or DATA/METHOD.PROTOCOL.json."""
    suffix = "" if record.protocol in SHORT_NAMES else f".{record.protocol}"
    names = (record.data, f"{record.method}{suffix}.json")
    for name in names:
        # A separator or ".." would lead out of the folder, and hidden files are not read.
        if name != Path(name).name or name.startswith("."):
            raise RecordError(f"Names of data, method and protocol must be valid file names (got {name!r}).")
    return Path(*names)


def read_records(folder: str | Path) -> list[RunRecord]:
    """Read every record below a folder, in the order of their paths.

    Hidden files, JSON without a schema, such as results of single units, and the records inside run folders are
    skipped. A damaged record is an error.
    """
    records = [RunRecord.read(path) for path in _find_records(Path(folder))]
    if not records:
        raise RecordError(f"{folder} contains no record of a run. {HINT}")
    return records


def is_current(folder: Path) -> bool:
    """Whether the report in a folder is newer than every record below it."""
    pages = [folder / name for name in PAGES]
    if not all(page.is_file() for page in pages):
        return False
    oldest = min(page.stat().st_mtime_ns for page in pages)
    return all(path.stat().st_mtime_ns < oldest for path in _find_records(folder))


def _find_records(folder: Path) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*.json")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        data = None if is_hidden or path.name == RECORD else read_json(path)
        if isinstance(data, dict) and isinstance(data.get("schema"), int):  # records of bench have a string there
            found.append(path)
    return found


def _as_json(records: Sequence[RunRecord], written: Sequence[Path], folder: Path) -> dict[str, Json]:
    names = ("data", "method", "protocol", "metric", "count", "mean", "std", "interval")
    rows = [{"pipeline": record.task, **{name: getattr(record, name) for name in names}} for record in records]
    return {"folder": folder, "written": list(written), "records": rows}


# ---- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plot:
    """A plot of the report, which the HTML page contains as an image."""

    title: str
    path: Path

    @property
    def source(self) -> str:
        """The file as a data URI."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.path.read_bytes()).decode('ascii')}"


@dataclass(frozen=True)
class Part:
    """A plot or a table of a section."""

    heading: str
    name: str
    """Part of its anchor."""
    plot: Plot | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """A group of records: its table, and the parts that follow it."""

    group: Group
    anchor: str
    facts: list[tuple[str, str]]
    table: Table
    values: Plot | None
    parts: list[Part]

    @property
    def quick(self) -> list[str]:
        """Methods of quick runs."""
        return [record.method for record in self.group.records if record.environment.quick]


def write_report(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Write README.md, report.html and the plots into a folder, and return their paths in that order.

    The same records give the same files, in whatever order they come.

    Args:
        records: at most one for each data set, protocol, backbone and method.
        folder: is created if it is missing.
    """
    if not records:
        raise RecordError(f"A report needs records (got none). {HINT}")
    for record in records:  # before anything is written
        check_record(record)
    groups = group_records(records)
    folder = Path(folder)
    make_folder(folder)
    stems = _name_groups(groups)
    drawn = [draw_plots(group, folder, stem) for group, stem in zip(groups, stems, strict=True)]
    sections = [_make_section(*parts) for parts in zip(groups, stems, drawn, strict=True)]
    ordered = [record for group in groups for record in group.records]
    values = {
        "sections": sections,
        "count": len(ordered),
        "quick": sum(record.environment.quick for record in ordered),
        "note": QUICK_NOTE,
        "tasks": {group.task for group in groups},
        "settings": compare_settings(ordered),
        "machines": list_machines(ordered),
        "reproduction": describe_reproduction(ordered),
    }
    paths = [folder / name for name in PAGES]
    for path in paths:
        write_text(path, render(f"{path.name}.j2", **values))
    return [*paths, *(plot.path for found in drawn for plot in found.values())]


def draw_plots(group: Group, folder: Path, stem: str) -> dict[str, Plot]:
    """Draw all plots of a group, and return them by name."""
    found: dict[str, Plot] = {}
    for name, (title, draw) in PLOTS.items():
        plot = Plot(f"{title.format(metric=group.metric)}: {group.title}", folder / f"{name}-{stem}.svg")
        if draw(group, plot.path) is not False:
            found[name] = plot
    return found


def _name_groups(groups: Sequence[Group]) -> list[str]:
    """Return a different name for each group, which file names and anchors are made of."""
    names: list[str] = []
    for group in groups:
        parts = [part for part in (group.data, group.protocol, group.backbone) if part is not None]
        base = re.sub(r"[^\w.-]+", "-", "-".join(parts), flags=re.ASCII)
        same = sum(name == base or name.startswith(f"{base}--") for name in names)
        names.append(f"{base}--{same + 1}" if same else base)
    return names


def _make_section(group: Group, stem: str, drawn: dict[str, Plot]) -> Section:
    facts = {
        "Protocol": describe_protocol(group),
        "Test": describe_test(group),
        "Seeds": ", ".join(map(str, list_seeds(group))),
        "Values": group.metric,
        "Paper": f"for {group.paper_setup}" if group.paper_setup else None,
    }
    known = [(name, text) for name, text in facts.items() if text is not None]
    return Section(group, f"table-{stem}", known, make_table(group), drawn.get("values"), [*_make_parts(group, drawn)])


def _make_parts(group: Group, drawn: dict[str, Plot]) -> Iterator[Part]:
    table = make_pretraining_table(group)
    if table is not None:
        yield Part("Pre-training", "pretraining", table=table)
    for name, heading in HEADINGS.items():
        if name in drawn:
            yield Part(heading, name, drawn[name])
        elif name == "confusion" and (shown := plots.choose_confusions(group)):  # too many classes to draw
            headings = ("true", "predicted", *(record.method for record in shown))
            yield Part("Most frequent mistakes", "mistakes", table=Table(headings, frequent_mistakes(shown)))


# ---- templates -------------------------------------------------------------------------------------------------------


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; every value is escaped, for HTML or for Markdown.

    The filters ``table`` and ``code`` of Markdown templates return Markdown.
    """
    is_html = ".html." in template
    text = _environment(is_html).get_template(template).render(**values).strip() + "\n"
    return text if is_html else re.sub(r"\n{3,}", "\n\n", text)


@cache
def _environment(is_html: bool) -> Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("powerpool.report"),
        autoescape=is_html,
        finalize=None if is_html else _finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["bold"] = lambda value: isinstance(value, Bold)
    made.tests["short"] = lambda value: len(value) <= SHORT
    made.filters |= {"table": Table.as_markdown, "code": _write_code}
    return made


def _finalize(value: object) -> str:
    return value if isinstance(value, Markdown) else escaped(str(value))


def _write_code(lines: Iterable[str]) -> Markdown:
    """Indented, and not fenced: no line can close it."""
    parts = (part for line in lines for part in line.splitlines())
    return Markdown("\n".join(f"    {part}" for part in parts))
