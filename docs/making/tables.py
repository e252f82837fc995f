"""The tables of the pages that quote measurements, made from the records in results.

A page has ``<!-- table: NAME -->`` and ``<!-- end -->`` around each. ``python docs/making/tables.py`` writes them anew;
a test compares them with the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from powerpool.tasks.fewshot.methods import METHODS as FEWSHOT_METHODS
from powerpool.tasks.graph.methods import METHODS as GRAPH_METHODS
from powerpool.tasks.vision.methods import METHODS as VISION_METHODS

from powerpool.bench.findings import find_losses
from powerpool.bench.record import BenchRecord, Measured, load
from powerpool.bench.tables import summary_table
from powerpool.report import tables
from powerpool.report.document import escaped
from powerpool.report.report import PIPELINES, read_records
from powerpool.report.tables.base import Group, Row
from powerpool.report.tables.findings import order_findings
from powerpool.report.tables.formats import MISSING, p_text, signed
from powerpool.report.tables.words import losses

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MARKED = re.compile(r"(<!-- table: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
METHODS = {"graph": GRAPH_METHODS, "vision": VISION_METHODS, "fewshot": FEWSHOT_METHODS}
GRAPHS = ("MUTAG", "PTC_MR", "PROTEINS", "NCI1")
CURVES = {
    "none": ("SOP", "SOP+SC"),
    "AsinhE, entries": ("SOP+AsinhE", "SOP+SC+AsinhE"),
    "SigmE, entries": ("SOP+SigmE", "SOP+SC+SigmE"),
    "Gamma, spectrum": ("SOP+SpecGamma", "SOP+SC+SpecGamma"),
    "HDP, spectrum": ("SOP+SpecHDP", "SOP+SC+SpecHDP"),
    "MaxExp(F), spectrum": ("SOP+SpecMaxExpF", "SOP+SC+SpecMaxExpF"),
    "Newton-Schulz": ("SOP+NewtonSchulz", "SOP+SC+NewtonSchulz"),
}
"""A curve and the methods that have it: of graphs, and of images with spatial coordinates."""
EPISODE_COLUMNS = ("method", "ours", "paper", "ours - RelationNet", "95 % interval of it", "training episodes")
SOLVERS = ("eigen", "squaring", "gram")


@cache
def suite(name: str) -> BenchRecord:
    """The record of a suite of ``powerpool bench``."""
    return load(RESULTS / "bench" / f"{name}.json")


@cache
def groups(pipeline: str, folder: str | None = None) -> list[Group]:
    """The records of a pipeline, by data and protocol, in the folder of its name or in another one."""
    records = read_records(RESULTS / (folder or pipeline))
    return tables.group(records, PIPELINES[pipeline][1], tuple(METHODS[pipeline]))


def found(pipeline: str, data: str, protocol: str) -> Group:
    """The rows of one data set under one protocol."""
    return next(group for group in groups(pipeline) if (group.data, group.protocol) == (data, protocol))


def row(group: Group, method: str) -> Row:
    """The row of a method."""
    return next(row for row in group.rows if row.record.method == method)


def as_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_list(items: Iterable[str]) -> str:
    """Markdown, for sentences of reports."""
    return "\n".join(f"- {escaped(item)}" for item in items)


def ms(seconds: float) -> str:
    """Milliseconds with three digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def pools() -> str:
    """Pools against their competitors."""
    return "\n".join(summary_table(suite("pools")).as_markdown())


def pool_losses() -> str:
    """By contender of ours and rival: in how many cases it lost, and by how much at most."""
    lost: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name in ("pools", "curves"):
        for case, ours, rival in find_losses(suite(name).cases):
            times = ours.total.median / rival.total.median
            lost.setdefault((ours.name, rival.name), []).append((times, case))
    rows = []
    for (ours, rival), cases in sorted(lost.items(), key=lambda item: (item[0][0] != "powerpool auto", item[0])):
        worst, case = max(cases)
        rows.append((ours, rival, str(len(cases)), f"{worst:.2f}", case))
    return as_table(("ours", "faster", "cases", "at most, times", "where"), rows)


def whole_jobs() -> str:
    """Whole steps, epochs, episodes and extractions beside what they are compared with."""
    rows = []
    for name in ("training", "episodes", "extraction"):
        for case in suite(name).cases:
            floors = [result for result in case.results if result.origin == "floor"]
            (ours,) = [result for result in case.results if result.origin == "powerpool"]
            rows += [(case.name, ours.name, ms(ours.total.median), *against(ours, floor)) for floor in floors]
    return as_table(("case", "ours", "ms", "beside", "ms", "times"), rows)


def against(ours: Measured, floor: Measured) -> tuple[str, str, str]:
    """The other, its time, and ours as a multiple of it."""
    return floor.name, ms(floor.total.median), f"{ours.total.median / floor.total.median:.2f}"


def graphs() -> str:
    """Accuracy of the readouts that all four sets have."""
    methods = ("GIN0", "SOP", "SOP+SigmE", "SOP+NewtonSchulz", "SOP+SpecMaxExpF")
    rows = []
    for data in GRAPHS:
        group = found("graph", data, "validation-only")
        values = [f"{row(group, method).record.mean:.1f} ± {row(group, method).record.std:.1f}" for method in methods]
        last = row(group, methods[-1])
        p_value = last.test.corrected_p_value if last.test else None
        rows.append((data, *values, f"{signed(last.to_baseline)} ({MISSING if p_value is None else p_text(p_value)})"))
    headings = ("data", "GIN0 (mean)", *methods[1:], "the last - GIN0 (corrected p)")
    return as_table(headings, rows)


def graph_losses() -> str:
    """Where graphs speak against us."""
    return as_list(f"{group.title}. {' '.join(losses(group))}" for group in groups("graph"))


def images() -> str:
    """Accuracy of every method on Flower102, with both classifiers."""
    ridge, softmax = (found("vision", "flower102", protocol) for protocol in ("frozen", "frozen-softmax"))
    rows = [
        (method, f"{row(ridge, method).record.mean:.2f}", f"{row(softmax, method).record.mean:.2f}")
        for method in VISION_METHODS
    ]
    return as_table(("method", "ridge", "softmax"), rows)


def image_order() -> str:
    """Whether the methods are in the order of the paper's table."""
    shown = [group for group in groups("vision") if group.protocol.startswith("frozen")]
    return as_list(f"{group.protocol}. {sentence}" for group in shown for sentence in order_findings(group))


def curve_accuracy() -> str:
    """What a curve changes, against the second-order matrix as it is."""
    rows = []
    for name, (graph, image) in CURVES.items():
        cells = []
        for pipeline, data, protocol, method in (
            ("vision", "flower102", "frozen", image),
            ("vision", "flower102", "frozen-softmax", image),
            *(("graph", data, "validation-only", graph) for data in GRAPHS),
        ):
            group = found(pipeline, data, protocol)
            plain = "SOP+SC" if pipeline == "vision" else "SOP"
            cells.append(change(group, method, plain))
        rows.append((name, *cells))
    return as_table(("curve", "Flower102, ridge", "Flower102, softmax", *GRAPHS), rows)


def change(group: Group, method: str, plain: str) -> str:
    """Points above the method without a curve; of that one, its own accuracy; a dash where there is no record."""
    means = {row.record.method: row.record.mean for row in group.rows}
    if method not in means:
        return MISSING
    return f"{means[plain]:.2f}" if method == plain else signed(means[method] - means[plain])


def end_to_end() -> str:
    """One sentence: the figure of training end to end."""
    ((only,),) = [group.rows for group in groups("vision") if group.protocol == "end-to-end"]
    assert only.interval is not None
    assert only.paper is not None
    low, high = only.interval
    return (
        f"Trained end to end, `{only.record.method}` has {only.record.mean:.2f} % ({low:.2f} to {high:.2f}), where the "
        f"paper has {only.paper.mean:.2f} % with ResNet-50."
    )


def curve_times() -> str:
    """Forward and backward of every curve, element-wise and on the spectrum by ``auto``."""
    sizes = ((64, 196), (256, 196), (512, 49))
    record = suite("curves")
    curves = list(dict.fromkeys(case.labels["curve"] for case in record.cases))
    rows = []
    for curve in curves:
        cells = []
        for channels, locations in sizes:
            (case,) = [
                case
                for case in record.cases
                if case.labels["curve"] == curve
                and (case.sizes["channels"], case.sizes["locations"]) == (channels, locations)
            ]
            results = [case.find(name) for name in ("powerpool element-wise", "powerpool auto")]
            cells.append(" / ".join(MISSING if result is None else ms(result.total.median) for result in results))
        rows.append((curve, *cells))
    return as_table(("curve", *(f"C {channels}, N {locations}" for channels, locations in sizes)), rows)


def solver_times() -> str:
    """What ``auto`` chooses from, and how far its choice is from the best, at some sizes."""
    record = suite("solvers")
    rows = []
    for entry in record.selection:
        channels, locations = entry["channels"], entry["locations"]
        is_shown = channels in (64, 256, 512) and locations in (channels // 4, channels, None)
        if entry["curve"] in ("MaxExp(50)", "HDP(0.01)") and is_shown:
            times = [ms(entry["seconds"][name]) if name in entry["seconds"] else MISSING for name in SOLVERS]
            where = "matrix" if locations is None else str(locations)
            rows.append((entry["curve"], str(channels), where, *times, f"`{entry['chosen']}`"))
    return as_table(("curve", "C", "N", *(f"`{name}`" for name in SOLVERS), "`auto` takes"), rows)


def worst_choice() -> str:
    """One sentence: how far ``auto`` is from the best at worst."""
    entries = suite("solvers").selection
    worst = max(entries, key=lambda entry: entry["times_best"])
    where = "from a matrix" if worst["locations"] is None else f"N {worst['locations']}"
    best = sum(entry["chosen"] == entry["best"] for entry in entries)
    return (
        f"Of {len(entries)} sizes and curves, `auto` takes the fastest in {best}; at worst it takes "
        f"{worst['times_best']:.2f} times the best ({worst['curve']}, C {worst['channels']}, {where})."
    )


def fewshot() -> str:
    """Accuracy in episodes."""
    return "\n\n".join(f"{episodes_table(group)}\n\n{as_list(losses(group))}" for group in groups("fewshot"))


def episodes_table(group: Group) -> str:
    """The columns of a table of episodes that fit on a page."""
    lines = [group.kind.line(group, row) for row in group.rows]
    names = [name for name in EPISODE_COLUMNS if any(line.get(name, MISSING) != MISSING for line in lines)]
    return f"{group.title}:\n\n" + as_table(names, ([escaped(line[name]) for name in names] for line in lines))


def pretraining() -> str:
    """The target of the study of pre-training, and what it says."""
    (target,) = [
        group
        for group in groups("fewshot", "fewshot-pretraining")
        if any("Pretr" in row.record.method for row in group.rows)
    ]
    return f"{episodes_table(target)}\n\n{as_list(target.kind.more_findings(target))}"


TABLES: dict[str, Callable[[], str]] = {
    "pools": pools,
    "pool losses": pool_losses,
    "whole jobs": whole_jobs,
    "graphs": graphs,
    "graph losses": graph_losses,
    "images": images,
    "end to end": end_to_end,
    "image order": image_order,
    "few-shot": fewshot,
    "pre-training": pretraining,
    "curve accuracy": curve_accuracy,
    "curve times": curve_times,
    "solver times": solver_times,
    "worst choice": worst_choice,
}


def filled(text: str) -> str:
    """The page with every table as the records have it."""
    return MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def main() -> None:
    """Write the tables of all pages."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
