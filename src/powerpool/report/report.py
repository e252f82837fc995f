"""``powerpool report``: records of runs as tables, plots and words, in Markdown and in one HTML file."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from powerpool.console import emit, say
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import make_folder, read_json, write_text
from powerpool.report import detail_plots, details, plots, tables
from powerpool.report.configuration import configuration
from powerpool.report.document import Block, Bold, Contents, Heading, Items, Picture, Table, Text, markdown, page
from powerpool.report.reproduction import reproduction
from powerpool.report.tables import Group, Kind
from powerpool.runs.quick import NOTE, as_quick, is_quick, warning
from powerpool.runs.record import RunRecord

BASELINE = "GIN0"
"""That of graph classification."""
FIRST = ("validation-only", "frozen")
"""The first protocols of graphs and images, which the names of their files do not say."""
PIPELINES = {
    "graph": ("powerpool.tasks.graph.methods", BASELINE),
    "vision": ("powerpool.tasks.vision.methods", "FOP"),
    "fewshot": ("powerpool.tasks.fewshot.methods", "RelationNet"),
}
"""For each pipeline the module whose ``METHODS`` are in the order of the tables, and what they are tested against."""
MAKE = " or ".join(f"`powerpool reproduce {pipeline}`" for pipeline in PIPELINES)
TITLE = "Measured beside the paper"
READING = "How to read the tables"
PAGES = ("README.md", "report.html")
RUN_RECORD = "record.json"
"""What a run folder calls its own record; those of tables are called after methods."""


@dataclass(frozen=True)
class ReportOptions:
    """Write the tables and plots of finished runs, beside the figures of the paper.

    Args:
        records: folder with the records, DATA/METHOD.json and DATA/METHOD.PROTOCOL.json
        out: folder that gets README.md, report.html and the plots; the folder of the records unless given
    """

    records: Path = Path("runs/reproduce/graph")
    out: Path | None = None

    def __post_init__(self) -> None:
        if not self.records.is_dir():
            raise ArgumentError(
                f"records must be a folder with records of runs (got {self.records}). Run {MAKE} first, or name "
                "another folder with --records."
            )


def run(options: ReportOptions) -> None:
    """Write the report and say where it is."""
    records = read_records(options.records)
    written = write_report(records, options.out or options.records)
    names = ", ".join(path.name for path in written[:2])
    emit(as_result(records, written, options.out or options.records))
    say(f"{options.out or options.records}: {names} and {len(written) - 2} plots from {len(records)} records")


@dataclass(frozen=True)
class Reproduced:
    """What ``powerpool reproduce`` made."""

    records: list[RunRecord]
    written: list[Path]
    """The report; empty where it was left to someone else."""
    quick: bool


def conclude(records: Sequence[RunRecord], folder: Path, *, quick: bool, report: bool) -> Reproduced:
    """File records below the folder, and write the report of all that are there.

    Args:
        records: of one command.
        folder: that the command has to itself.
        quick: whether their figures mean nothing, which they then say.
        report: whether it is written here.
    """
    filed = [as_quick(record) if quick else record for record in records]
    for record in filed:
        _file(record, folder / record_path(record))
    return Reproduced(filed, write_report(read_records(folder), folder) if report else [], quick)


def _file(record: RunRecord, path: Path) -> None:
    """Write a record; the very same one keeps its time, so that a report of it is still newer."""
    with contextlib.suppress(RecordError):  # none, or one that is damaged
        if RunRecord.read(path) == record:
            return
    record.write(path)


def tell(made: Reproduced, folder: Path) -> None:
    """What a command that made records and a report says at its end."""
    emit({**as_result(made.records, made.written, folder), "quick": made.quick})
    for path in made.written[:2]:
        say(f"written: {path}")
    if made.quick:
        say(NOTE)


def as_result(records: Sequence[RunRecord], written: Sequence[Path], folder: Path) -> dict[str, Any]:
    """The rows of the tables for a program: what each record is of, its mean, and how sure that is."""
    names = ("pipeline", "data", "method", "protocol", "metric", "count", "mean", "std", "interval")
    rows = [{name: getattr(record, name) for name in names} for record in records]
    return {"folder": folder, "written": list(written), "records": rows}


def record_path(record: RunRecord) -> Path:
    """Where a record lies below the folder of all records: DATA/METHOD.json, or DATA/METHOD.PROTOCOL.json."""
    suffix = "" if record.protocol in FIRST else f".{record.protocol}"
    names = (record.data, f"{record.method}{suffix}.json")
    for name in names:
        # A separator or a step up leads out of the folder, and what is hidden is not read.
        if name != Path(name).name or name.startswith("."):
            raise RecordError(f"A record is filed by its names, which must do as names of files (got {name!r}).")
    return Path(*names)


def read_records(folder: str | Path) -> list[RunRecord]:
    """Every record below the folder, in the order of the paths.

    Hidden files, other kinds of files, JSON without a schema - results of single folds - and the records inside run
    folders are passed over. What else has a schema is a record, and is refused if it is damaged.
    """
    records = [RunRecord.read(path) for path in _record_files(Path(folder))]
    if not records:
        raise RecordError(f"{folder} holds no record of a run: make some with {MAKE}, or name another folder.")
    return records


def _record_files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*.json"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.name != RUN_RECORD
        and _has_schema(path)
    ]


def is_current(folder: Path) -> bool:
    """Whether the report in a folder is newer than every record below it: then it need not be drawn again."""
    written = [folder / name for name in PAGES]
    if not all(file.is_file() for file in written):
        return False
    times, records = ([file.stat().st_mtime_ns for file in files] for files in (written, _record_files(folder)))
    return max(records, default=0) < min(times)


def write_report(
    records: Sequence[RunRecord],
    folder: str | Path,
    *,
    baseline: str | None = None,
    order: Sequence[str] | None = None,
) -> list[Path]:
    """Write README.md, report.html and the plots into the folder, and return their paths in that order.

    The same records give the same files, in whatever order they come.

    Args:
        records: at most one for each data set, protocol, backbone and method.
        folder: is made where it is missing.
        baseline: the method that all others are tested against, instead of that of the pipeline.
        order: of the methods in tables and plots, instead of that of the pipeline; others follow by name.
    """
    if not records:
        raise RecordError(f"A report needs records (got none): make some with {MAKE}.")
    folder = Path(folder)
    groups = []
    for pipeline, members in tables.by_pipeline(records).items():
        usual_baseline, usual_order = _methods(pipeline)
        groups += tables.group(members, baseline or usual_baseline, usual_order if order is None else order)
    for record in records:  # a damaged one shows before anything is written
        details.require_readable(record)
    make_folder(folder)
    pictures = _draw(groups, folder)
    ordered = [row.record for group in groups for row in group.rows]
    warned = warning(ordered)
    blocks = [
        Heading(TITLE, 1),
        *([Text(Bold(warned))] if warned else []),
        *_overview(groups),
        Contents(),
        *(block for group, found in zip(groups, pictures, strict=True) for block in _section(group, found)),
        *_reading(groups),
        *configuration(ordered),
        *reproduction(ordered),
    ]
    paths = [folder / name for name in PAGES]
    write_text(paths[0], markdown(blocks))
    write_text(paths[1], page(TITLE, blocks))
    return [*paths, *(block.path for found in pictures for block in found if isinstance(block, Picture))]


def _draw(groups: Sequence[Group], folder: Path) -> list[list[Block]]:
    """The pictures of every group, with the words that belong to them."""
    drawn: list[list[Block]] = []
    taken: Counter[str] = Counter()
    for group in groups:
        names = [name for name in (group.data, group.protocol, group.backbone) if name is not None]
        stem = re.sub(r"[^\w.-]+", "-", "-".join(names), flags=re.ASCII)
        taken[stem] += 1
        # Behind the kind of the picture, in the names of files.
        stem = stem if taken[stem] == 1 else f"{stem}-{taken[stem]}"
        drawn.append(list(_pictures(group, folder, stem)))
    return drawn


def _methods(pipeline: str) -> tuple[str, tuple[str, ...]]:
    """The baseline of a pipeline, and the names of its methods in their order."""
    if pipeline not in PIPELINES:
        raise RecordError(
            f"A record is of the pipeline {pipeline!r}, whose methods are not known here. Known are "
            f"{', '.join(PIPELINES)}: leave it out of the folder, or read it with the version that wrote it."
        )
    module, baseline = PIPELINES[pipeline]
    return baseline, tuple(import_module(module).METHODS)


def _overview(groups: Sequence[Group]) -> Iterator[Block]:
    """How many rows have a figure of the paper, and how many are below it or below the baseline."""
    yield Text(
        "Written by powerpool report from records of runs; do not edit. What a value, an interval and p are is said "
        f"under {READING}, behind the tables. The figures of the paper are those it prints."
    )
    several = len({group.pipeline for group in groups}) > 1
    counted = [group for group in groups if not group.is_quick]
    for pipeline in sorted({group.pipeline for group in groups}):
        of = f" of {pipeline}" if several else ""
        for kind in _kinds(groups):
            found = [group for group in counted if group.pipeline == pipeline and group.kind is kind]
            if found:
                yield Text(f"{kind.count_paper(found, of)} {_count_below(found)}")


def _reading(groups: Sequence[Group]) -> Iterator[Block]:
    """What a value, an interval and p are, for each kind of test that there is."""
    yield Heading(READING, 2)
    kinds = _kinds(groups)
    for kind in kinds:
        yield Text(_sentence("a value is", kind.value_where, kind.value_text, kind is kinds[0]))
    for kind in kinds:
        yield Text(_sentence("p is", kind.p_where, kind.p_text, kind is kinds[0]))


def _kinds(groups: Sequence[Group]) -> list[Kind]:
    return [kind for kind in tables.KINDS if any(group.kind is kind for group in groups)]


def _sentence(start: str, place: str, end: str, is_first: bool) -> str:
    """What is said of a kind; where it is not the first, with the place where it holds."""
    if not is_first:
        return f"{place}, {start} {end}"
    return f"{start if start.startswith('p ') else start.capitalize()} {end}"


def _count_below(groups: Sequence[Group]) -> str:
    compared, below = sum(len(group.compared) for group in groups), sum(len(group.below_baseline) for group in groups)
    return f"{below} of {compared} rows beside the baseline {groups[0].baseline} are below it."


def _section(group: Group, pictures: Sequence[Block]) -> Iterator[Block]:
    yield Heading(group.title, 2)
    yield Text(tables.introduction(group))
    yield tables.table(group)
    quick = [record.method for record in group.records if is_quick(record)]
    if quick:
        yield Text(Bold(f"Of quick runs, whose figures mean nothing: {', '.join(quick)}."))
    else:
        yield from _findings(group)
    yield from pictures


def _findings(group: Group) -> Iterator[Block]:
    """What the table says against us, and about the order of the paper's methods."""
    yield Items(tables.losses(group))
    findings = tables.order_findings(group)
    if findings:
        yield Text("Whether the methods are in the paper's order:")
        yield Items(findings)


def _pictures(group: Group, folder: Path, stem: str) -> Iterator[Block]:
    values = Picture(f"{group.metric} of every method: {group.title}", folder / f"values-{stem}.svg")
    plots.draw_values(group, values.path)
    yield values
    curves = Picture(f"Training curves: {group.title}", folder / f"curves-{stem}.svg")
    if plots.draw_curves(group, curves.path):
        yield Heading("Training curves", 3)
        yield curves
    episodes = Picture(f"Accuracy in test episodes: {group.title}", folder / f"episodes-{stem}.svg")
    if detail_plots.draw_episodes(group, episodes.path):
        yield Heading("Test episodes", 3)
        yield Text("How many of the test episodes had which accuracy: the spread that the interval of the mean hides.")
        yield episodes
    yield from _confusions(group, folder / f"confusion-{stem}.svg")
    yield from _spectra(group, folder / f"spectra-{stem}.svg")


def _confusions(group: Group, path: Path) -> Iterator[Block]:
    """A heat map, or the pairs that are mistaken most often where there are too many classes for one."""
    known = [record for record in group.records if details.confusion_of(record) is not None]
    if not known:
        return
    yield Heading("Confusion", 3)
    many = max(len(found.classes) for record in known if (found := details.confusion_of(record)))
    shown = [record for record in details.most_telling(group) if record in known] or known[:1]
    of = "" if many <= detail_plots.FEW_CLASSES else f" of {' and '.join(record.method for record in shown)}"
    extent = "in the test parts of all folds" if any(record.count > 1 for record in known) else "in the test"
    if detail_plots.draw_confusions(group, path):
        yield Text(
            f"How often each class was taken for each {extent}{of}: a row for each class, a column for each that was "
            "said. Numbers are counts, and the darker a cell, the larger its share of the row."
        )
        yield Picture(f"Confusion matrices: {group.title}", path)
        return
    pairs = details.mistaken(shown)
    yield Text(
        f"There are {many} classes. The pairs that were mistaken most often {extent}{of}, with the number of mistakes "
        "and their share of the class:"
        if pairs
        else f"No class was taken for another {extent}{of}."
    )
    if pairs:
        yield Table(("class", "taken for", *(record.method for record in shown)), pairs)


def _spectra(group: Group, path: Path) -> Iterator[Block]:
    found = {record.method: details.spectrum_of(record) for record in group.records}
    known = {method: one for method, one in found.items() if one is not None}
    if not detail_plots.draw_spectra(group, path):
        return
    samples = sorted({one.samples for one in known.values()})
    counted = str(samples[0]) if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
    yield Heading("Spectra", 3)
    yield Text(
        f"Eigenvalues of the pooled matrix, as shares of its trace and the largest first: means over {counted} test "
        "samples that were looked at, of the moment before the normalization and of the matrix after it. A flat line "
        "has all directions alike. Entry by entry a curve may leave negative eigenvalues, of which the magnitude is "
        "taken. First-order methods have no matrix."
    )
    yield Picture(f"Spectra before and after the normalization: {group.title}", path)
    counts = {record.method: record.count for record in group.records}
    part = [
        f"{method}: {one.folds} of {counts[method]} folds, those with matrices of side {one.size}"
        for method, one in known.items()
        if one.folds < counts[method]
    ]
    if part:
        yield Items(part)


def _has_schema(path: Path) -> bool:
    data = read_json(path)
    return isinstance(data, dict) and isinstance(data.get("schema"), int)  # records of bench have a text there
