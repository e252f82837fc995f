"""Records of runs as tables: each beside the paper's figure and the baseline, losses in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from powerpool.experiments.document import Bold, Table
from powerpool.experiments.paper import Figure, paper_figure
from powerpool.records import RecordError, RunRecord
from powerpool.statistics import PairedTest, paired_test

MISSING = "\N{EN DASH}"


@dataclass(frozen=True)
class Protocol:
    """How the validation part of a fold is used."""

    text: str
    not_trained_on: int
    """Parts of the data, of as many as there are folds, that the tested model has not seen."""


PROTOCOLS = {
    "validation-only": Protocol(
        "the validation part of a fold chooses the model, and the model that is tested was trained on the training "
        "part alone",
        not_trained_on=2,
    ),
    "retrain": Protocol(
        "the validation part of a fold chooses the model, which is then trained again on the training and validation "
        "parts together and tested",
        not_trained_on=1,
    ),
}


@dataclass(frozen=True)
class Row:
    """One method beside the paper and the baseline."""

    record: RunRecord
    paper: Figure | None
    to_baseline: float | None
    """Ours - baseline: on the folds that both have where they are paired, else of the means."""
    test: PairedTest | None
    """None where nothing can be paired: no baseline, another seed, or fewer than two folds in common."""

    @property
    def to_paper(self) -> float | None:
        return None if self.paper is None else self.record.mean - self.paper.mean

    @property
    def is_within(self) -> bool | None:
        """Whether our mean is within one standard deviation of the paper's."""
        return None if self.paper is None else abs(self.record.mean - self.paper.mean) <= self.paper.std


@dataclass(frozen=True)
class Group:
    """All methods of one data set under one protocol."""

    pipeline: str
    data: str
    protocol: str
    baseline: str
    rows: tuple[Row, ...]

    @property
    def metric(self) -> str:
        return self.rows[0].record.metric

    @property
    def baseline_record(self) -> RunRecord | None:
        return next((row.record for row in self.rows if row.record.method == self.baseline), None)

    @property
    def compared(self) -> list[Row]:
        """The rows that stand beside the baseline."""
        return [row for row in self.rows if row.to_baseline is not None]

    @property
    def below_baseline(self) -> list[Row]:
        # As it is printed: the same graphs in other folds add up to the same mean but for round-off.
        return [row for row in self.rows if row.to_baseline is not None and float(signed(row.to_baseline)) < 0]

    @property
    def outside_paper(self) -> list[Row]:
        return [row for row in self.rows if row.is_within is False]


def group(records: Iterable[RunRecord], baseline: str, order: Sequence[str]) -> list[Group]:
    """Sort records into groups, methods in the given order and unknown ones behind them."""
    found: dict[tuple[str, str, str], dict[str, RunRecord]] = {}
    for record in records:
        methods = found.setdefault((record.pipeline, record.data, record.protocol), {})
        where = f"{record.method} on {record.data}, protocol {record.protocol}"
        if record.method in methods:
            raise RecordError(f"Two records of {where}. Keep one of them: a table has one row for each method.")
        first = next(iter(methods.values()), record)
        if first.metric != record.metric:
            raise RecordError(
                f"The record of {where} holds {record.metric!r}, that of {first.method} {first.metric!r}. "
                "A table shows one quantity: make the records again with the same one."
            )
        methods[record.method] = record
    ranks, protocols = list(order), list(PROTOCOLS)
    groups = []
    for (pipeline, data, protocol), methods in sorted(
        found.items(), key=lambda item: (*item[0][:2], _rank(item[0][2], protocols))
    ):
        names = sorted(methods, key=lambda name: _rank(name, ranks))
        rows = tuple(_row(methods[name], methods.get(baseline)) for name in names)
        groups.append(Group(pipeline, data, protocol, baseline, rows))
    return groups


def table(group: Group) -> Table:
    """One line for each method; the best of ours is bold."""
    means = [row.record.mean for row in group.rows]
    best = max(means) if means.count(max(means)) == 1 else None  # of several there is no best
    headings = (
        "method", "ours", "95 % interval", "folds", "paper", "ours - paper", "within one std of the paper",
        f"ours - {group.baseline}", "p", "corrected p", "chosen (folds)", "seconds",
    )  # fmt: skip
    rows = []
    for row in group.rows:
        record, test = row.record, row.test
        ours = _spread(f"{record.mean:.2f}", None if record.std is None else f"{record.std:.2f}")
        interval = record.interval
        rows.append(
            (
                record.method,
                Bold(ours) if record.mean == best else ours,
                MISSING if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
                str(record.count),
                MISSING if row.paper is None else _spread(_as_printed(row.paper.mean), _as_printed(row.paper.std)),
                signed(row.to_paper),
                {True: "yes", False: "no", None: MISSING}[row.is_within],
                signed(row.to_baseline) + _fewer_folds(row, group.baseline_record),
                MISSING if test is None else p_text(test.p_value),
                MISSING if test is None else p_text(test.corrected_p_value),
                chosen(record) or MISSING,
                f"{record.seconds:.0f}" if record.seconds >= 1 else "< 1",
            )
        )
    return Table(headings, rows)


def introduction(group: Group) -> str:
    """What the table shows: protocol, folds and seeds."""
    protocol = PROTOCOLS.get(group.protocol)
    meaning = "" if protocol is None else f": {protocol.text}"
    counts = sorted({row.record.count for row in group.rows})
    folds = f"{counts[0]} fold{'s' if counts[0] > 1 else ''}"
    if len(counts) > 1:
        folds = f"{counts[0]} to {counts[-1]} folds, not the same number for every method"
    seeds = sorted({row.record.seed for row in group.rows})
    seeds_text = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"Protocol {group.protocol}{meaning}. {folds[0].upper()}{folds[1:]}, {seeds_text}; {group.metric}."


def losses(group: Group) -> list[str]:
    """What the table says against us, and against the claim that it repeats the paper."""
    return [_against_baseline(group), _against_paper(group), *_not_paired(group)]


def chosen(record: RunRecord) -> str:
    """How often each hyper-parameter was chosen: ``hidden 32 (7), 64 (3); eta 20``. Nothing where no fold says."""
    counts: dict[str, Counter[str]] = {}
    for fold in record.folds:
        settings = fold.get("chosen")
        for name, value in settings.items() if isinstance(settings, dict) else ():
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            counts.setdefault(name, Counter())[shown] += 1
    parts = []
    for name, values in counts.items():
        ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        everywhere = len(ordered) == 1 and ordered[0][1] == record.count
        listed = ordered[0][0] if everywhere else ", ".join(f"{value} ({count})" for value, count in ordered)
        parts.append(f"{name} {listed}")
    return "; ".join(parts)


def signed(value: float | None) -> str:
    """A difference with its sign; one that rounds to nothing has none."""
    if value is None:
        return MISSING
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _row(record: RunRecord, baseline: RunRecord | None) -> Row:
    paper = paper_figure(record.pipeline, record.data, record.method, record.protocol)
    if baseline is None or baseline is record:
        return Row(record, paper, None, None)
    ours, theirs = record.paired(baseline)
    if _cut(record) != _cut(baseline) or len(ours) < 2:
        return Row(record, paper, record.mean - baseline.mean, None)
    test = paired_test(ours, theirs, test_to_train=_test_to_train(record))
    return Row(record, paper, test.difference, test)


def _cut(record: RunRecord) -> tuple[Any, ...]:
    """What the folds depend on: folds of the same number are the same graphs only where all of it is the same."""
    return record.seed, record.config.get("folds"), record.config.get("data_digest")


def _test_to_train(record: RunRecord) -> float:
    """Items tested on for each item trained on. A record may hold fewer folds than the data were cut into."""
    cut: Any = record.config.get("folds")
    parts = cut if isinstance(cut, int) else record.count
    protocol = PROTOCOLS.get(record.protocol, PROTOCOLS["validation-only"])
    return 1 / max(1, parts - protocol.not_trained_on)


def _against_baseline(group: Group) -> str:
    name = group.baseline
    if group.baseline_record is None:
        return f"There is no record of {name} here: no method is compared with it."
    if not group.compared:
        return f"There is no method beside {name} here."
    if not group.below_baseline:
        return f"None of {len(group.compared)} is below {name}."
    listed = ", ".join(
        f"{row.record.method} ({signed(row.to_baseline)}"
        + (")" if row.test is None else f", corrected p {p_text(row.test.corrected_p_value)})")
        for row in group.below_baseline
    )
    return f"Below {name}, {len(group.below_baseline)} of {len(group.compared)}: {listed}."


def _against_paper(group: Group) -> str:
    known = [row for row in group.rows if row.paper is not None]
    if not known:
        return "The paper has no figures for this data set and protocol."
    if not group.outside_paper:
        return f"All {len(known)} with a figure in the paper are within one standard deviation of it."
    listed = ", ".join(f"{row.record.method} ({signed(row.to_paper)})" for row in group.outside_paper)
    return f"Further than one standard deviation from the paper, {len(group.outside_paper)} of {len(known)}: {listed}."


def _not_paired(group: Group) -> list[str]:
    alone = [row.record.method for row in group.compared if row.test is None]
    if not alone:
        return []
    return [f"Not tested against {group.baseline}, for lack of two folds with the same graphs: {', '.join(alone)}."]


def _fewer_folds(row: Row, baseline: RunRecord | None) -> str:
    """Says so where the difference is not that of the means, because some folds have no counterpart."""
    if row.test is None or baseline is None or row.test.count == row.record.count == baseline.count:
        return ""
    return f" on {row.test.count} folds"


def _rank(name: str, order: list[str]) -> tuple[int, str]:
    return (order.index(name), "") if name in order else (len(order), name)


def _spread(mean: str, std: str | None) -> str:
    return mean if std is None else f"{mean} ± {std}"


def _as_printed(value: float) -> str:
    """One decimal, as the paper has it, and a second where there is one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"
