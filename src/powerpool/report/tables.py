"""Tables of reports: one line for each method. Text from files is escaped, so that it cannot become markup."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from powerpool.console import Bold
from powerpool.report.groups import Group, Row, count_folds, format_range, mean_of
from powerpool.report.paper import FEW_SHOT, PRETRAINED, record_figure, set_of_paper
from powerpool.report.results import Comparison, Interval, compare_episodes, compare_records, get_count, get_setting
from powerpool.runs.record import EpisodeResult, FoldResult, RunRecord, SplitResult

MISSING = "\N{EN DASH}"
RENAMED = {"eta_prime": "sigme_eta", "gamma_prime": "asinhe_gamma", "pictures": "images"}
"""Settings of records of version 0.1 that have another name now."""


class Markdown(str):
    """A text that is Markdown already, and is not escaped again."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Headings and rows of plain text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> Markdown:
        """Return the table in Markdown."""
        lines = [map(escaped, self.headings), ["---"] * len(self.headings), *(map(escaped, row) for row in self.rows)]
        return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def escaped(text: str) -> str:
    """Return ``text`` on one line, with a backslash before each character that Markdown would read as markup."""
    line = re.sub(r"[\\`*\[\]<>|&~$#]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", " ".join(text.split()))
    return f"**{line}**" if isinstance(text, Bold) else line


# ---- methods of a group ----------------------------------------------------------------------------------------------


def make_table(group: Group) -> Table:
    """Return one line for each method; the best value is bold. Columns without any value are left out."""
    lines = [make_cells(group, row) for row in group.rows]
    columns = [name for name in lines[0] if any(line[name] != MISSING for line in lines)]
    return Table(columns, [[line[name] for name in columns] for line in lines])


def make_cells(group: Group, row: Row) -> dict[str, str]:
    """Return the cells of a row by the headings of their columns."""
    return {"graph": _fold_cells, "vision": _split_cells, "fewshot": _episode_cells}[group.task](group, row)


def make_pretraining_table(group: Group) -> Table | None:
    """Return what pre-training adds to each method that is there with it and without; None if there is none.

    The last rows compare gains: that of a spectral method less that of an element-wise one. The unit of the test is the
    seed of source and target training: one seed has no interval and no p.
    """
    pairs = [
        (row.record, plain.record)
        for row in group.rows
        if PRETRAINED in row.record.method and (plain := group.find(row.record.method.replace(PRETRAINED, "")))
    ]
    rows = []
    for after, before in pairs:
        source = get_setting(after, "pretraining", "data")
        means = [format_decimals(after.mean), format_decimals(before.mean)]
        found = compare_records(after, before)
        gain = after.mean - before.mean if found is None else found.difference
        cells = _test_cells(gain, _over_seeds(found))
        rows.append([before.method, str(source or MISSING), *means, *cells, str(after.count), _paper_gain(after)])
    spectral = [pair for pair in pairs if "+Spec" in pair[1].method]
    for ours in spectral:
        for other in (pair for pair in pairs if pair not in spectral):
            found = compare_episodes(ours, other)
            name = f"{ours[1].method} less {other[1].method}"
            cells = _test_cells(None if found is None else found.difference, _over_seeds(found))
            rows.append([name, MISSING, MISSING, MISSING, *cells, str(ours[0].count), MISSING])
    tested = ("gain", "95 % interval of it", "p", "seeds")
    headings = ("method", "pre-trained on", "with", "without", *tested, "gain in the paper")
    return Table(headings, rows) if rows else None


def _over_seeds(found: Comparison | None) -> Comparison | None:
    """Return a comparison over seeds; None for one over the episodes of a single seed."""
    return found if found is not None and found.unit == "seeds" else None


def _paper_gain(record: RunRecord) -> str:
    """What the paper gains with the same method, or with spatial coordinates where it has no other."""
    name = set_of_paper(record.data)
    for added in ("", "+SC"):
        method = record.method.replace(PRETRAINED, PRETRAINED + added)
        after, before = (record_figure(record, one) for one in (method, method.replace(PRETRAINED, "")))
        if name is not None and after is not None and before is not None:
            setup, gain = FEW_SHOT[name], format_signed(after.mean - before.mean)
            size = "" if setup.size is None else f", {setup.size} px"
            return f"{gain} (from {setup.source}{size}{', with SC' if added else ''})"
    return MISSING


def count_chosen(record: RunRecord) -> str:
    """Return how often each setting was selected, such as ``hidden 32 (7), 64 (3); eta 20``."""
    counts: dict[str, Counter[str]] = {}
    for result in record.results:
        for name, value in result.chosen.items():
            text = value if isinstance(value, str) else f"{value:.15g}" if value == int(value) else f"{value:g}"
            counts.setdefault(RENAMED.get(name, name), Counter())[text] += 1
    parts = []
    for name, values in counts.items():
        ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        is_only = len(ordered) == 1 and ordered[0][1] == len(record.results)
        listed = ordered[0][0] if is_only else ", ".join(f"{value} ({count})" for value, count in ordered)
        parts.append(f"{name} {listed}")
    return "; ".join(parts)


def format_signed(value: float | None) -> str:
    """Format a difference with its sign; one that rounds to zero has none."""
    if value is None:
        return MISSING
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def format_p(value: float | None) -> str:
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_decimals(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _as_printed(value: float) -> str:
    """One decimal, as the paper has it, and a second where there is one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def _spread(mean: str, spread: str | None) -> str:
    return mean if spread is None else f"{mean} ± {spread}"


def _fold_cells(group: Group, row: Row) -> dict[str, str]:
    record, test = row.record, row.test
    return {
        "method": record.method,
        "ours": _emphasize_best(group, row, _mean_and_std(record)),
        "95 % interval": _interval(row.interval),
        "folds": _folds(record),
        **_measures(group, record),
        "paper": _paper(row),
        "ours - paper": format_signed(row.to_paper),
        "within one std of the paper": {True: "yes", False: "no", None: MISSING}[row.is_within],
        f"ours - {group.baseline}": _difference(group, row, "folds"),
        "p": format_p(None if test is None else test.p_value),
        "corrected p": format_p(None if test is None else test.corrected_p_value),
        "chosen (folds)": count_chosen(record) or MISSING,
        "seconds": _seconds(record),
    }


def _measures(group: Group, record: RunRecord) -> dict[str, str]:
    """The means of what else was measured, such as ROC-AUC, in columns that all rows of the group share."""
    measures = {
        one.method: [result.measures for result in one.results if isinstance(result, FoldResult)]
        for one in group.records
    }
    names = dict.fromkeys(name for rows in measures.values() for row in rows for name in row)
    return {name: format_decimals(mean_of([row.get(name) for row in measures[record.method]])) for name in names}


def _split_cells(group: Group, row: Row) -> dict[str, str]:
    record = row.record
    results = [result for result in record.results if isinstance(result, SplitResult)]
    top5 = None if row.paper is None else row.paper.top5
    return {
        "method": record.method,
        "top-1": _emphasize_best(group, row, _mean_and_std(record)),
        "95 % interval": _interval(row.interval),
        "runs": _runs(group, row),
        "top-5": format_decimals(mean_of([result.top5 for result in results])),
        "paper": _paper(row),
        "paper, top-5": MISSING if top5 is None else _as_printed(top5),
        "ours - paper": format_signed(row.to_paper),
        **_baseline_cells(group, row),
        "validation": format_decimals(row.validation),
        "chosen": count_chosen(record) or MISSING,
        "epochs to convergence": format_range(result.converged for result in results),
        "seconds": _seconds(record),
    }


def _episode_cells(group: Group, row: Row) -> dict[str, str]:
    record = row.record
    results = [result for result in record.results if isinstance(result, EpisodeResult)]
    half = None if row.interval is None else f"{(row.interval[1] - row.interval[0]) / 2:.2f}"
    own, before = get_count(record, "training", "episodes"), get_count(record, "pretraining", "episodes")
    budget = MISSING if own is None else str(own)
    cpu = _cpu_seconds(record)
    speed = mean_of([one.episodes_per_second for one in results])
    return {
        "method": record.method,
        "ours": _emphasize_best(group, row, _spread(f"{record.mean:.2f}", half)),
        "runs": _runs(group, row),
        "std over seeds": format_decimals(record.std),
        "paper": _paper(row),
        "ours - paper": format_signed(row.to_paper),
        **_baseline_cells(group, row),
        "p over": MISSING if row.test is None else row.test.unit,
        "validation": format_decimals(row.validation),
        "chosen": count_chosen(record) or MISSING,
        "training episodes": budget if before is None else f"{before} + {budget}",
        "CPU seconds": cpu if before is None or cpu == MISSING else f"{_cpu_seconds(group.encoder_of(record))} + {cpu}",
        "episodes/s": MISSING if own is None else format_decimals(speed),
        "seconds": _seconds(record),
    }


def _cpu_seconds(record: RunRecord | None) -> str:
    found = mean_of([getattr(result, "cpu_seconds", None) for result in record.results]) if record else None
    return MISSING if found is None else f"{found:.0f}"


def _baseline_cells(group: Group, row: Row) -> dict[str, str]:
    _, interval, p_value = _test_cells(row.to_baseline, row.test)
    difference = _difference(group, row, "runs")
    return {f"ours - {group.baseline}": difference, "95 % interval of it": interval, "p": p_value}


def _test_cells(difference: float | None, test: Comparison | None) -> tuple[str, str, str]:
    """The difference, its interval and p."""
    interval = MISSING if test is None else " to ".join(map(format_signed, test.interval))
    return format_signed(difference), interval, format_p(None if test is None else test.p_value)


def _emphasize_best(group: Group, row: Row, text: str) -> str:
    means = [record.mean for record in group.records]
    best = max(means) if row.record.higher_is_better else min(means)
    return Bold(text) if row.record.mean == best and means.count(best) == 1 else text


def _mean_and_std(record: RunRecord) -> str:
    return _spread(f"{record.mean:.2f}", None if record.std is None else f"{record.std:.2f}")


def _paper(row: Row) -> str:
    if row.paper is None:
        return MISSING
    spread = row.paper.std if row.paper.half is None else row.paper.half
    return _spread(_as_printed(row.paper.mean), None if spread is None else _as_printed(spread))


def _difference(group: Group, row: Row, what: str) -> str:
    """The difference to the baseline, and on how many folds or runs where not all can be paired."""
    baseline, text = group.find(group.baseline), format_signed(row.to_baseline)
    if row.test is None or baseline is None or row.test.count == _parts(row.record) == _parts(baseline.record):
        return text
    return f"{text} on {row.test.count} {what}"


def _interval(interval: Interval | None) -> str:
    return MISSING if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _runs(group: Group, row: Row) -> str:
    return str(row.record.count) if any(record.count > 1 for record in group.records) else MISSING


def _parts(record: RunRecord) -> int:
    """The number of folds or runs that a test can pair."""
    return count_folds(record)[0]


def _folds(record: RunRecord) -> str:
    folds, seeds = count_folds(record)
    return str(folds) if seeds == 1 else f"{folds}, {seeds} seeds"


def _seconds(record: RunRecord) -> str:
    return f"{record.seconds:.0f}" if record.seconds >= 1 else "< 1"
