"""Tables of the documentation that quote measurements, made from the records in results.

A page has ``<!-- table: NAME -->`` and ``<!-- end -->`` around each table. ``python docs/making/tables.py`` writes them
again; a test compares them with the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import fmean

from powerpool.bench.record import LOEWNER, NEWTON_SCHULZ, OURS, TARGETS, BenchRecord, Measured, find_losses, load
from powerpool.files import read_json
from powerpool.report.groups import Group, Row, group_records
from powerpool.report.paper import paper_figure
from powerpool.report.results import Comparison, compare_records
from powerpool.report.tables import MISSING, escaped, format_p, format_signed, make_pretraining_table, make_table
from powerpool.report.write import read_records
from powerpool.runs.record import RunRecord
from powerpool.tasks.methods import FEWSHOT_METHODS, RECTIFIED_POOLS, VISION_METHODS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARKED = re.compile(r"(<!-- table: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
GRAPHS = ("MUTAG", "PTC_MR", "PROTEINS", "NCI1")
"""Data sets of results/graph: one seed, and the recipes of that time."""
SETS = ("IMDB-BINARY", "IMDB-MULTI", "MUTAG", "PTC_MR", "PROTEINS", "NCI1", "REDDIT-BINARY")
"""Data sets of results/graph-sets: two seeds, and six configurations for every readout."""
SECOND_ORDER = ("SOP", "SOP+SigmE", "SOP+NewtonSchulz", "SOP+SpecMaxExpF")
CURVES = {
    "none": ("SOP", "SOP+SC"),
    "AsinhE, entries": ("SOP+AsinhE", "SOP+SC+AsinhE"),
    "SigmE, entries": ("SOP+SigmE", "SOP+SC+SigmE"),
    "Gamma, spectrum": ("SOP+SpecGamma", "SOP+SC+SpecGamma"),
    "HDP, spectrum": ("SOP+SpecHDP", "SOP+SC+SpecHDP"),
    "MaxExp(F), spectrum": ("SOP+SpecMaxExpF", "SOP+SC+SpecMaxExpF"),
    "Newton-Schulz": ("SOP+NewtonSchulz", "SOP+SC+NewtonSchulz"),
}
"""Each curve and its methods: for graphs, and for images with spatial coordinates."""
ORDER = {
    "second order above first order": ("SOP", "FOP"),
    "element-wise curve above none": ("SOP+AsinhE", "SOP"),
    "coordinates above none": ("SOP+SC+AsinhE", "SOP+AsinhE"),
    "SigmE above AsinhE": ("SOP+SC+SigmE", "SOP+SC+AsinhE"),
    "spectral above element-wise": ("SOP+SC+SpecMaxExpF", "SOP+SC+SigmE"),
}
"""Pairs of methods of which the paper reports the first to be better."""
EPISODE_COLUMNS = (
    *("method", "ours", "std over seeds", "paper", "ours - RelationNet", "95 % interval of it"),
    *("training episodes", "CPU seconds"),
)
SOLVERS = ("eigen", "squaring", "gram")


@cache
def suite(name: str) -> BenchRecord:
    """Return the record of a suite of ``powerpool bench``."""
    return load(RESULTS / "bench" / f"{name}.json")


@cache
def groups(folder: str) -> list[Group]:
    """Return the records of a folder by data and protocol."""
    return group_records(read_records(RESULTS / folder))


def found(folder: str, data: str, protocol: str) -> Group:
    """Return the rows of one data set under one protocol."""
    return next(group for group in groups(folder) if (group.data, group.protocol) == (data, protocol))


def row(group: Group, method: str) -> Row:
    """Return the row of a method."""
    (only,) = [row for row in group.rows if row.record.method == method]
    return only


def compared(group: Group, method: str, other: str) -> Comparison:
    """Compare two methods of a group."""
    test = compare_records(row(group, method).record, row(group, other).record)
    assert test is not None
    return test


def as_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return Markdown; cells may contain markup."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ms(seconds: float) -> str:
    """Format milliseconds with three digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def pools() -> str:
    """Compare pools with their competitors."""
    rows = []
    for target in TARGETS:
        case = next(case for case in suite("pools").cases if case.name == target.name)
        ours, floor, loewner, newton_schulz = (
            case.find(name).total.median for name in (OURS, "form M", LOEWNER, NEWTON_SCHULZ)
        )
        rows.append(
            (
                f"{target.channels}, {target.locations}",
                ms(ours),
                f"{ours / floor:.2f} ({target.floor:g})",
                f"{loewner / ours:.3g}x ({target.loewner:g})",
                f"{newton_schulz / ours:.3g}x ({target.newton_schulz:g})",
            )
        )
    headings = ("C, N", "powerpool, ms", "times forming M", f"faster than {LOEWNER}", f"faster than {NEWTON_SCHULZ}")
    return as_table(headings, rows)


def pool_losses() -> str:
    """Count the cases that each of our contenders loses to each rival, with the largest factor."""
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
    """List whole steps, epochs, episodes and extractions beside what they are compared with."""
    rows = []
    for name in ("training", "episodes", "extraction"):
        for case in suite(name).cases:
            floors = [result for result in case.results if result.origin == "floor"]
            (ours,) = [result for result in case.results if result.origin == "powerpool"]
            rows += [(case.name, ours.name, ms(ours.total.median), *against(ours, floor)) for floor in floors]
    return as_table(("case", "ours", "ms", "beside", "ms", "times"), rows)


def against(ours: Measured, floor: Measured) -> tuple[str, str, str]:
    """Return the other contender, its time, and ours as a multiple of it."""
    return floor.name, ms(floor.total.median), f"{ours.total.median / floor.total.median:.2f}"


def graph_groups() -> list[tuple[str, Group]]:
    """Return every data set with a title; those with two seeds come first."""
    rest = [data for data in GRAPHS if data not in SETS]
    return [
        *((data, found("graph-sets", data, "validation-only")) for data in SETS),
        *((f"{data} (one seed)", found("graph", data, "validation-only")) for data in rest),
    ]


def graphs() -> str:
    """List the accuracy of the readouts that all data sets have, and of the one that validation chooses."""
    rows = []
    for title, group in graph_groups():
        baseline, total, *others = (row(group, method).record for method in ("GIN0", "GIN0+Sum", *SECOND_ORDER))
        chosen = choose_by_validation(others)
        cells = [f"{record.mean:.1f} ± {record.std:.1f}" for record in (baseline, total, *others, chosen)]
        tests = [compare_records(record, baseline) for record in (others[-1], chosen)]
        gains = [f"{format_signed(test.difference)} ({format_p(test.corrected_p_value)})" for test in tests if test]
        rows.append((title, *cells, *gains))
    headings = ("data", "GIN0 (mean)", "GIN0+Sum", *SECOND_ORDER, "chosen")
    return as_table((*headings, f"{SECOND_ORDER[-1]} - GIN0 (corrected p)", "chosen - GIN0 (corrected p)"), rows)


def choose_by_validation(records: Sequence[RunRecord]) -> RunRecord:
    """Return the readout with the lowest validation loss on each fold. As in a grid, the first seed chooses."""
    best: dict[int, tuple[float, RunRecord]] = {}
    for record in records:
        for result in record.results:
            fold, seed = result.run(record.seed)
            if seed == record.seed:
                best[fold] = min(best.get(fold, (inf, record)), (result.validation.loss, record), key=itemgetter(0))
    results = [
        result
        for fold, (_, record) in sorted(best.items())
        for result in record.results
        if result.run(record.seed)[0] == fold
    ]
    return replace(records[0], method="second order, chosen by validation", results=tuple(results))


def graph_protocols() -> str:
    """List the accuracy of each seed under every protocol; a note until there are records."""
    folder = "graph-protocols"
    if not (RESULTS / folder).is_dir():
        return "The records of this table are not there yet."
    protocols = ("validation-only", "retrain", "test-epoch", "test-epoch-per-fold")
    records = {
        (record.data, record.method, record.protocol): record for group in groups(folder) for record in group.records
    }
    rows = []
    for data, method in dict.fromkeys((data, method) for data, method, _ in records):
        own = [records.get((data, method, protocol)) for protocol in protocols]
        paper = paper_figure("graph", data, method, "retrain")
        figure = MISSING if paper is None else f"{paper.mean:.1f}"
        rows.append((data, method, figure, *(MISSING if record is None else by_seed(record) for record in own)))
    headings = (
        "data",
        "readout",
        'paper, "retrained"',
        "`validation-only`",
        "`retrain`: the last epoch",
        "`test-epoch` (optimistic)",
        "`test-epoch-per-fold` (optimistic)",
    )
    return as_table(headings, rows)


def by_seed(record: RunRecord) -> str:
    """Return the mean over folds of each seed."""
    values: dict[int, list[float]] = {}
    for result in record.results:
        values.setdefault(result.run(record.seed)[1], []).append(result.value)
    return " / ".join(f"{fmean(own):.1f}" for _, own in sorted(values.items()))


def graph_losses() -> str:
    """Count the rows below the baseline, and those further than one standard deviation from the paper."""
    rows = []
    counted = [(f"{group.title}, two seeds", group) for group in groups("graph-sets")]
    for title, group in [*counted, *((group.title, group) for group in groups("graph"))]:
        others = [row.to_baseline for row in group.rows if row.to_baseline is not None]
        below = sum(difference < 0 for difference in others)
        outside = [row for row in group.known if not row.is_within]
        gaps = ", ".join(f"{row.record.method} {format_signed(row.to_paper)}" for row in outside)
        rows.append((title, f"{below} of {len(others)}", f"{len(outside)} of {len(group.known)}", gaps or MISSING))
    headings = ("data, protocol", "below GIN0", "further than one std from the paper", "which, ours - paper")
    return as_table(headings, rows)


def images() -> str:
    """List the accuracy of every method on Flower102, with both classifiers."""
    ridge, softmax = (found("vision", "flower102", protocol) for protocol in ("frozen", "frozen-softmax"))
    rows = [
        (method, f"{row(ridge, method).record.mean:.2f}", f"{row(softmax, method).record.mean:.2f}")
        for method in VISION_METHODS
        if method not in RECTIFIED_POOLS
    ]
    return as_table(("method", "ridge", "softmax"), rows)


def image_order() -> str:
    """Compare pairs of methods with the paper."""
    ridge, softmax = (found("vision", "flower102", protocol) for protocol in ("frozen", "frozen-softmax"))
    rows = []
    for claim, (above, below) in ORDER.items():
        tests = [compared(group, above, below) for group in (ridge, softmax)]
        cells = [f"{format_signed(test.difference)} (p {format_p(test.p_value)})" for test in tests]
        gap = row(ridge, above).paper.mean - row(ridge, below).paper.mean
        rows.append((claim, f"{above} - {below}", *map(escaped, cells), format_signed(gap)))
    return as_table(("in the paper", "difference", "ridge", "softmax", "paper"), rows)


def curve_accuracy() -> str:
    """List what a curve changes, against the second-order matrix without one."""
    rows = []
    for name, (graph, image) in CURVES.items():
        cells = []
        for folder, data, protocol, method in (
            ("vision", "flower102", "frozen", image),
            ("vision", "flower102", "frozen-softmax", image),
            *(("graph", data, "validation-only", graph) for data in GRAPHS),
        ):
            group = found(folder, data, protocol)
            plain = "SOP+SC" if folder == "vision" else "SOP"
            cells.append(change(group, method, plain))
        rows.append((name, *cells))
    return as_table(("curve", "Flower102, ridge", "Flower102, softmax", *GRAPHS), rows)


def change(group: Group, method: str, plain: str) -> str:
    """Return the points above the method without a curve, whose own accuracy is returned; a dash without a record."""
    means = {row.record.method: row.record.mean for row in group.rows}
    if method not in means:
        return MISSING
    return f"{means[plain]:.2f}" if method == plain else format_signed(means[method] - means[plain])


def image_headline() -> str:
    """Compare first order, second order and spectral normalization on Flower102."""
    methods = ("FOP", "SOP", "SOP+SigmE", "SOP+NewtonSchulz", "SOP+SpecMaxExpF")
    rows = []
    for protocol, classifier in (("frozen", "ridge regression"), ("frozen-softmax", "softmax regression")):
        group = found("vision", "flower102", protocol)
        rows.append((classifier, *(f"{row(group, method).record.mean:.2f}" for method in methods)))
    return as_table(("classifier", *methods), rows)


def rectified_maps() -> str:
    """Compare curves on maps of a linear layer and on maps that come out of a ReLU."""
    methods = ("FOP", "SOP", "SOP+SigmE", "SOP+MaxExp", "SOP+SpecMaxExpF")
    rows = []
    for folder, backbone in (("vision", "EfficientNet-Lite0, a linear layer"), ("vision-alexnet", "AlexNet, a ReLU")):
        means = {row.record.method: row.record.mean for row in found(folder, "flower102", "frozen").rows}
        rows.append((backbone, *(f"{means[method]:.2f}" if method in means else MISSING for method in methods)))
    return as_table(("maps come out of", *methods), rows)


def end_to_end() -> str:
    """Return one sentence: the figure of training end to end."""
    ((only,),) = [group.rows for group in groups("vision") if group.protocol == "end-to-end"]
    assert only.interval is not None
    assert only.paper is not None
    low, high = only.interval
    return (
        f"Trained end to end, `{only.record.method}` has {only.record.mean:.2f} % ({low:.2f} to {high:.2f}), where the "
        f"paper has {only.paper.mean:.2f} % with ResNet-50."
    )


def curve_times() -> str:
    """List forward and backward times of every curve, element-wise and on the spectrum by ``auto``."""
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
    """List what ``auto`` chooses from, and what it takes, at some sizes."""
    record = suite("solvers")
    rows = []
    for entry in record.selection:
        channels, locations = entry.channels, entry.locations
        is_shown = channels in (64, 256, 512) and locations in (channels // 4, channels, None)
        if entry.curve in ("MaxExp(50)", "HDP(0.01)") and is_shown:
            times = [ms(entry.seconds[name]) if name in entry.seconds else MISSING for name in SOLVERS]
            where = "matrix" if locations is None else str(locations)
            rows.append((entry.curve, str(channels), where, *times, f"`{entry.chosen}`"))
    return as_table(("curve", "C", "N", *(f"`{name}`" for name in SOLVERS), "`auto` takes"), rows)


def worst_choice() -> str:
    """Return one sentence: how far ``auto`` is from the best at worst."""
    entries = suite("solvers").selection
    worst = max(entries, key=lambda entry: entry.times_best)
    where = "from a matrix" if worst.locations is None else f"N {worst.locations}"
    best = sum(entry.chosen == entry.best for entry in entries)
    return (
        f"Of {len(entries)} sizes and curves, `auto` takes the fastest in {best}; at worst it takes "
        f"{worst.times_best:.2f} times the best ({worst.curve}, C {worst.channels}, {where})."
    )


def fewshot() -> str:
    """List accuracies in episodes, of one seed."""
    return "\n\n".join(map(episodes_table, groups("fewshot")))


def omniglot() -> str:
    """List accuracies in episodes of Omniglot, of three seeds."""
    return "\n\n".join(map(episodes_table, groups("fewshot-omniglot")))


def miniimagenet() -> str:
    """List accuracies in episodes of miniImageNet with 100 images of each class, of three seeds."""
    return "\n\n".join(map(episodes_table, groups("fewshot-miniimagenet")))


def episodes_table(group: Group) -> str:
    """Return the columns of a table of episodes that fit on a page."""
    table = make_table(group)
    names = [name for name in EPISODE_COLUMNS if name in table.headings]
    lines = [dict(zip(table.headings, line, strict=True)) for line in table.rows]
    return f"{group.title}:\n\n" + as_table(names, ([escaped(line[name]) for name in names] for line in lines))


def frozen_features() -> str:
    """List the accuracy of pools and classifiers on frozen features, with one and with five support images."""
    pools = ("FOP", "FOP+AsinhE", "SOP", "SOP+AsinhE", "SOP+SigmE", "SOP+SpecGamma", "SOP+SpecHDP", "SOP+SpecMaxExpF")
    classifiers = ("NCM", "Ridge", "Logistic")
    shots = [found("fewshot-features", "flower102", f"5-way-{shot}-shot") for shot in (1, 5)]
    rows = []
    for pool in pools:
        records = [row(group, f"{pool}+{name}").record for group in shots for name in classifiers]
        rows.append((pool, *(f"{record.mean:.1f}" for record in records)))
    return as_table(("pool", *(f"{shot}-shot, {name}" for shot in (1, 5) for name in classifiers)), rows)


def fewshot_headline() -> str:
    """Compare kinds of networks in 5-way 1-shot episodes: of each kind the method that validation prefers."""
    kinds = {
        "Relation Net": "relation",
        "Prototypical Net": "prototype",
        "SoSN": "similarity",
        "second-order prototypes": "nearest-mean",
    }
    rows = []
    for folder, data in (("fewshot-omniglot", "omniglot"), ("fewshot-miniimagenet", "miniimagenet100")):
        best: dict[str, Row] = {}
        for one in sorted(found(folder, data, "5-way-1-shot").rows, key=lambda row: row.validation or 0):
            best[FEWSHOT_METHODS[one.record.config["model"]["method"]].kind] = one
        known = [best.get(kind) for kind in kinds.values()]
        rows.append(
            (data, *(MISSING if one is None else f"{one.record.mean:.2f}, `{one.record.method}`" for one in known))
        )
    return as_table(("data", *kinds), rows)


def pretraining() -> str:
    """List what pre-training adds."""
    (found,) = filter(None, map(make_pretraining_table, groups("fewshot-pretraining")))
    return found.as_markdown()


def tokens() -> str:
    """List the accuracy of both networks on digits, and the difference to the mean of tokens or maps."""
    titles = {"vision-vit": "ViT", "vision-convnext": "ConvNeXt"}
    return "\n\n".join(f"{title}:\n\n{seeds_table(folder)}" for folder, title in titles.items())


def finetuned() -> str:
    """List the accuracy of methods that were trained end to end with the same budget."""
    return seeds_table("vision-finetuned", "learning_rate", "head_learning_rate")


def seeds_table(folder: str, *chosen: str) -> str:
    """List the accuracy with every seed, selected settings, and the difference to the baseline over seeds."""
    (group,) = groups(folder)
    rows = []
    for one in group.rows:
        record = one.record
        interval = MISSING if one.test is None else " to ".join(map(format_signed, one.test.interval))
        p_value = format_p(None if one.test is None else one.test.p_value)
        values = ", ".join(f"{value:.1f}" for value in record.values)
        settings = [f"{record.results[0].chosen[name]:g}" for name in chosen]
        cells = (f"{record.mean:.2f} ± {record.std:.2f}", values, format_signed(one.to_baseline), interval, p_value)
        rows.append((f"{record.method}", *settings, *map(escaped, cells)))
    names = [name.replace("learning_rate", "rate").replace("_", " ") for name in chosen]
    headings = ("method", *names, "top-1", "by seed", f"ours - {group.baseline}", "95 % interval of it", "p")
    return as_table(headings, rows)


def suggestions() -> str:
    """Compare the eta that ``powerpool inspect`` suggests with the one that validation prefers."""
    rows = []
    for case in read_json(RESULTS / "inspect" / "suggestions.json")["cases"]:
        accuracy = {float(eta): value for eta, value in case["accuracy"].items()}
        best = max(accuracy, key=lambda eta: accuracy[eta])
        suggested = case["suggested"]
        cells = (f"{accuracy[eta]:.1f}" for eta in (1, suggested, best))
        rows.append((case["title"], case["samples"], f"{suggested:g}", f"{best:g}", *cells))
    accuracies = (f"accuracy with {eta}" for eta in ("eta 1, no curve", "the suggestion", "the best"))
    headings = ("data", "validation", "suggested eta", "best eta tried", *accuracies)
    return as_table(headings, rows)


def overview() -> str:
    """Compare first order, second order and MaxExp(F) on its spectrum in every setting that has records."""
    methods = ("FOP", "SOP", "SOP+SpecMaxExpF")
    settings = [
        ("Flower102, frozen CNN, ridge", found("vision", "flower102", "frozen"), methods),
        ("Flower102, frozen CNN, softmax", found("vision", "flower102", "frozen-softmax"), methods),
        (
            "Flower102, frozen AlexNet (maps after a ReLU), ridge",
            found("vision-alexnet", "flower102", "frozen"),
            methods,
        ),
        ("Flower102, CNN trained end to end at 128 px, 2 seeds", groups("vision-finetuned")[0], methods),
        ("digits, small ViT from scratch, 3 seeds", groups("vision-vit")[0], methods),
        ("digits, small ConvNeXt from scratch, 3 seeds", groups("vision-convnext")[0], methods),
        *((f"{title}, 10 folds", group, ("GIN0", *methods[1:])) for title, group in graph_groups()),
    ]
    rows = []
    for title, group, names in settings:
        test = compared(group, names[-1], names[0])
        p_value = test.p_value if test.corrected_p_value is None else test.corrected_p_value
        gain = escaped(f"{format_signed(test.difference)} ({format_p(p_value)})")
        rows.append((title, *(f"{row(group, name).record.mean:.1f}" for name in names), gain))
    return as_table(("data", "average", "second order", "with MaxExp", "gain over the average (p)"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "overview": overview,
    "tokens": tokens,
    "pools": pools,
    "pool losses": pool_losses,
    "whole jobs": whole_jobs,
    "graphs": graphs,
    "graph losses": graph_losses,
    "graph protocols": graph_protocols,
    "images": images,
    "image headline": image_headline,
    "end to end": end_to_end,
    "finetuned": finetuned,
    "image order": image_order,
    "rectified maps": rectified_maps,
    "few-shot": fewshot,
    "omniglot": omniglot,
    "miniimagenet": miniimagenet,
    "few-shot headline": fewshot_headline,
    "frozen features": frozen_features,
    "pre-training": pretraining,
    "curve accuracy": curve_accuracy,
    "curve times": curve_times,
    "solver times": solver_times,
    "worst choice": worst_choice,
    "suggestions": suggestions,
}


def filled(text: str) -> str:
    """Return a page with every table made from the records."""
    return MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
