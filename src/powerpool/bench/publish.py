"""``powerpool bench publish``: finished records and the tables made from them, wins and losses, in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerpool.bench import plots
from powerpool.bench.command import SUITES
from powerpool.bench.record import BenchRecord, CaseRecord, Measured, load
from powerpool.bench.report import machine_line, number
from powerpool.bench.targets import GRAM, LOEWNER, NEWTON_SCHULZ, OURS, TARGETS
from powerpool.console import emit, say
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import make_folder, write_text
from powerpool.report import document
from powerpool.report.document import Bold, escaped

LOSS = 1.05
"""From this ratio on a competitor counts as faster; less is within the noise of a shared machine."""


class Own(str):
    """A text of a table that is all ours, such as a time with a star; texts of records are escaped."""

    __slots__ = ()


@dataclass(frozen=True)
class PublishOptions:
    """Copy finished records of `powerpool bench` and write the tables of all of them, losses included.

    Args:
        source: folder with the records, SUITE.json
        out: folder that gets the records and README.md
    """

    source: Path = Path("runs/bench")
    out: Path = Path("results/bench")

    def __post_init__(self) -> None:
        if not self.source.is_dir():
            raise ArgumentError(f"source must be a folder with records of `powerpool bench` (got {self.source}).")


def run(options: PublishOptions) -> None:
    """Write the folder and say what is in it."""
    paths = [options.source / f"{suite}.json" for suite in SUITES]
    records = [_load(path) for path in paths if path.exists()]
    if not records:
        raise RecordError(f"{options.source} holds no record: run `powerpool bench --out {options.source}` first.")
    for record in records:
        if not record.complete or record.options["quick"]:
            kind = "quick" if record.complete else "unfinished"
            raise RecordError(f"The record of {record.suite} is {kind}: run `powerpool bench {record.suite}` in full.")
    make_folder(options.out)
    for record in records:
        record.save(options.out / f"{record.suite}.json")
        if record.suite == "pools":
            plots.draw(record, options.out, formats=("svg",))
    published = [_load(path) for suite in SUITES if (path := options.out / f"{suite}.json").exists()]
    write_text(options.out / "README.md", markdown(published))
    names = [f"{record.suite}.json" for record in published]
    emit({"written": [options.out / name for name in ("README.md", *names)]})
    say(f"{options.out}: README.md and {', '.join(names)}")


def _load(path: Path) -> BenchRecord:
    """The record of the suite that the file is called after: its suite becomes the name of another file."""
    record = load(path)
    if record.suite != path.stem:
        raise RecordError(f"{path} holds the suite {record.suite!r}: call the file after its suite.")
    return record


def markdown(records: Sequence[BenchRecord]) -> str:
    """The tables of all records, as they stand in README.md."""
    sections = {
        "pools": [_targets, _pools, _losses, _growth, _pictures],
        "solvers": [_selection],
        "curves": [_curves],
        "training": [_targets, _training],
        "extraction": [_targets, _extraction],
        "episodes": [_targets, _episodes],
    }
    lines = [
        "# Measured",
        "",
        "Written by `powerpool bench publish` from the records beside this file; do not edit. Times are medians of",
        "interleaved repetitions in one process, forward and backward together, after the answers agreed. How they are",
        "taken, and what they do not say, is in [docs/speed.md](../../docs/speed.md).",
    ]
    for record in records:
        lines += [
            "",
            f"## {record.suite}",
            "",
            f"`powerpool bench {record.suite}`: {escaped(machine_line(record.environment))}.",
        ]
        for section in sections[record.suite]:
            lines += ["", *section(record)]
        wrong = [f"{case.name}: {case.error[:200]}" for case in record.cases if case.error]
        if wrong:
            listed = document.markdown([document.Items(wrong)]).rstrip("\n")
            lines += ["", "### Not timed: answers disagreed", "", listed]
    return "\n".join(lines) + "\n"


def summary(record: BenchRecord) -> str:
    """The targets of the pools in one table, as it stands in the README of the project."""
    rows = []
    for target in TARGETS:
        sizes = {"batch": target.batch, "channels": target.channels, "locations": target.locations, "eta": 50}
        for case in record.cases:
            ours, floor = case.find(OURS), case.floor
            if case.sizes == sizes and ours is not None and floor is not None:
                rivals = ((LOEWNER, target.loewner), (NEWTON_SCHULZ, target.newton_schulz))
                times = [f"{_times(case.find(name), ours)} ({wanted:g})" for name, wanted in rivals]
                over = f"{ours.total.median / floor.total.median:.2f} ({target.floor:g})"
                rows.append((f"{target.channels}, {target.locations}", _time(ours), over, *times))
    headings = ("C, N", "powerpool, ms", "times forming M", f"faster than {LOEWNER}", f"faster than {NEWTON_SCHULZ}")
    return "\n".join(_table("", headings, rows)[2:])


def losses(cases: Iterable[CaseRecord]) -> list[tuple[str, Measured, Measured]]:
    """Case, our contender, and another, not ours, that gives the same answer in less time, gradient included."""
    return [
        (case.name, ours, rival)
        for case in cases
        for ours in case.results
        for rival in case.results
        if ours.origin == "powerpool"
        and rival.origin != "powerpool"
        and rival.answers == ours.answers
        and "gradient" not in rival.note
        and rival.total.median * LOSS < ours.total.median
    ]


def _targets(record: BenchRecord) -> list[str]:
    rows = []
    for target in record.targets:
        sign = "at most" if "floor" in target["what"] else "at least"
        met = "met" if target["met"] else Bold("missed")
        rows.append((target["case"], target["what"], f"{sign} {target['wanted']:g}", f"{target['measured']:.3g}", met))
    return _table("### Targets", ("case", "what", "wanted", "measured", ""), rows)


def _pools(record: BenchRecord) -> list[str]:
    wanted = {target["case"] for target in record.targets}
    names = (OURS, LOEWNER, NEWTON_SCHULZ, "eigh autograd", "matrix_power autograd", "element-wise MaxExp")
    rows = []
    for case in record.cases:
        floor, gram = case.floor, case.find(GRAM)
        if case.name in wanted and floor is not None:
            times = [_time(case.find(name)) for name in names]
            memory = "" if gram is None else f"{gram.peak_bytes / floor.peak_bytes:.2f}"
            rival = case.find(NEWTON_SCHULZ)
            rivals = "" if rival is None else f"{rival.peak_bytes / floor.peak_bytes:.2f}"
            rows.append((case.name, _time(floor), *times, memory, rivals))
    headings = ("case", "form M", *names, "memory of gram, x forming M", "of Newton-Schulz 5")
    legend = ["", "A time with * belongs to an answer or a gradient that is off; the record says by how much."]
    return _table("### Pools, ms", headings, rows) + legend


def _losses(record: BenchRecord) -> list[str]:
    rows = [
        (case, ours.name, rival.name, f"{ours.total.median / rival.total.median:.2f}")
        for case, ours, rival in losses(record.cases)
    ]
    if not rows:
        return ["### Losses", "", f"No competitor with the same answer is more than {LOSS:g} times faster in any case."]
    return _table("### Losses", ("case", "ours", "faster", "times"), rows)


def _growth(record: BenchRecord) -> list[str]:
    rows = []
    for fit in record.fits:
        if fit["contender"] in (OURS, GRAM, "powerpool squaring", LOEWNER, NEWTON_SCHULZ, "form M"):
            fixed = ", ".join(f"{name} {size}" for name, size in fit["fixed"].items())
            cells = [number(fit[name]) for name in ("exponent", "exponent_upper_half", "r2_logarithm")]
            rows.append((fit["contender"], fit["against"], fixed, *cells))
    headings = ("contender", "against", "at", "exponent", "of the larger half", "R2 of a + b log2")
    return _table("### Growth: time ~ size^exponent", headings, rows)


def _pictures(record: BenchRecord) -> list[str]:
    lines = ["### Pictures"]
    for stem, sweep, quantity in plots.pictures(record):
        title = f"{quantity} against {plots.NAMES[sweep.against]}, {sweep.where}"
        lines += ["", f"![{escaped(title)}]({stem}.svg)"]
    return lines


def _selection(record: BenchRecord) -> list[str]:
    solvers = list(dict.fromkeys(name for row in record.selection for name in row["seconds"]))
    rows = []
    for row in record.selection:
        times = [_milliseconds(row["seconds"][name]) if name in row["seconds"] else "" for name in solvers]
        where = "matrix" if row["locations"] is None else str(row["locations"])
        work = ", ".join(
            f"{name} {_rounded(row['product_flops'][name] / 1e6)}"
            + (f" + {row['decompositions'][name]} eigh" if row["decompositions"][name] else "")
            for name in row["product_flops"]
        )
        rows.append((row["curve"], str(row["channels"]), where, *times, row["best"], work))
    headings = ("curve", "C", "N", *solvers, "best", "products, Mflop")
    return _table("### Solvers, ms, and what they compute on any device", headings, rows)


def _curves(record: BenchRecord) -> list[str]:
    rows = [
        (case.name, result.name, _time(result), "" if case.floor is None else _ratio(result, case.floor), result.note)
        for case in record.cases
        for result in case.results
        if result.origin != "floor"
    ]
    headings = ("case", "contender", "total", "x forming M", Own("note (*)"))
    return [*_table("### Curves, ms", headings, rows), "", *_losses(record)]


def _training(record: BenchRecord) -> list[str]:
    return _whole_jobs(record, "### Training, ms", "readout")


def _extraction(record: BenchRecord) -> list[str]:
    return _whole_jobs(record, "### Features of pictures, ms", "how")


def _episodes(record: BenchRecord) -> list[str]:
    return _whole_jobs(record, "### Episodes of few-shot learning, ms", "network")


def _whole_jobs(record: BenchRecord, title: str, what: str) -> list[str]:
    rows = [
        (case.name, result.name, _time(result), f"{result.peak_bytes / 2**20:.0f}")
        for case in record.cases
        for result in case.results
    ]
    return _table(title, ("case", what, "total", "peak MB"), rows)


def _time(result: Measured | None) -> str:
    return Own("" if result is None else _milliseconds(result.total.median) + (" *" if result.note else ""))


def _milliseconds(seconds: float) -> str:
    return _rounded(1e3 * seconds)


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(rival: Measured | None, ours: Measured) -> str:
    return "" if rival is None else f"{rival.total.median / ours.total.median:.3g}x"


def _ratio(result: Measured, floor: Measured) -> str:
    return f"{result.total.median / floor.total.median:.2f}"


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [title, "", _row(headings), "|" + "---|" * len(headings), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell if isinstance(cell, Own) else escaped(cell) for cell in cells)} |"
