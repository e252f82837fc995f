"""Records of runs as tables: each beside the paper's figure and the baseline, losses in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from powerpool.experiments.document import Bold, Table
from powerpool.experiments.paper import NETWORKS, ORDER, Expectation, Figure, network, paper_figure, paper_network
from powerpool.records import RecordError, RunRecord
from powerpool.statistics import PairedTest, mcnemar, paired_test, proportion_interval

MISSING = "\N{EN DASH}"
CHANCE = 0.05
"""A difference with a p of at least this may be chance."""


@dataclass(frozen=True)
class Protocol:
    """How the validation part of a fold is used, or what of a network is trained."""

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
    "frozen": Protocol(
        "the backbone keeps its pretrained weights, and ridge regression classifies; the validation pictures choose "
        "the settings, with which the classifier is then trained again on the training and validation pictures "
        "together and tested",
        not_trained_on=1,
    ),
    "frozen-softmax": Protocol(
        "the same features and choices, with softmax regression by gradient descent in the place of ridge regression",
        not_trained_on=1,
    ),
    "end-to-end": Protocol(
        "the backbone is trained together with all that follows it; the validation pictures choose the epoch, or are "
        "trained on, too, as the setting training.validation says",
        not_trained_on=2,
    ),
}


@dataclass(frozen=True)
class SplitTest:
    """How far two methods are apart on the same test pictures, in one run of each or in several.

    The pictures are the same in every run, so that further runs are no further pictures: of several, the difference is
    the mean, the interval spans theirs, and p is the largest.
    """

    difference: float
    """Ours - the other, in percentage points."""
    interval: tuple[float, float]
    """Of the difference, with a confidence of 95 %."""
    p_value: float
    """Of McNemar's exact test."""
    count: int
    """Runs that both have."""


@dataclass(frozen=True)
class Row:
    """One method beside the paper and the baseline."""

    record: RunRecord
    interval: tuple[float, float] | None
    """With a confidence of 95 %: of the mean over folds, or of the share of right pictures."""
    paper: Figure | None
    to_baseline: float | None
    """Ours - baseline: on the folds that both have where they are paired, else of the means."""
    test: PairedTest | SplitTest | None
    """None where nothing can be paired: no baseline, another seed, too few folds in common, or other pictures."""

    @property
    def to_paper(self) -> float | None:
        return None if self.paper is None else self.record.mean - self.paper.mean

    @property
    def is_within(self) -> bool | None:
        """Whether our mean is within one standard deviation of the paper's; None where the paper has none."""
        if self.paper is None or self.paper.std is None:
            return None
        return abs(self.record.mean - self.paper.mean) <= self.paper.std

    @property
    def validation(self) -> float | None:
        """What the chosen settings gave on the validation split, the mean of all runs; None where one does not say."""
        parts = [fold.get("validation") for fold in self.record.folds]
        return _mean([part.get("value") if isinstance(part, dict) else None for part in parts])


@dataclass(frozen=True)
class Group:
    """All methods of one data set under one protocol, with one backbone where there is one."""

    pipeline: str
    data: str
    protocol: str
    backbone: str | None
    baseline: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        return f"{self.data}, {self.protocol}" + ("" if self.backbone is None else f" {self.backbone}")

    @property
    def metric(self) -> str:
        return self.rows[0].record.metric

    @property
    def is_split(self) -> bool:
        """Whether there is one test split, with an answer for every picture, and no folds."""
        return any(is_split(row.record) for row in self.rows)

    @property
    def paper_network(self) -> str | None:
        """What the paper's figures are for: a network, in words; None where there are none, or none by network."""
        if self.pipeline != "vision" or all(row.paper is None for row in self.rows):
            return None
        return NETWORKS[paper_network(self.data, self.backbone)]

    @property
    def has_paper_network(self) -> bool:
        """Whether ours is that network, and is trained as it was in the paper."""
        return self.protocol == "end-to-end" and network(self.backbone) == paper_network(self.data, self.backbone)

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
    def below_paper(self) -> list[Row]:
        return [row for row in self.rows if row.to_paper is not None and float(signed(row.to_paper)) < 0]

    @property
    def outside_paper(self) -> list[Row]:
        return [row for row in self.rows if row.is_within is False]


def group(records: Iterable[RunRecord], baseline: str, order: Sequence[str]) -> list[Group]:
    """Sort records into groups, methods in the given order and unknown ones behind them."""
    found: dict[tuple[str, str, str, str], dict[str, RunRecord]] = {}
    for record in records:
        backbone = _backbone(record)
        methods = found.setdefault((record.pipeline, record.data, record.protocol, backbone), {})
        where = f"{record.method} on {record.data}, protocol {record.protocol}"
        where += f", backbone {backbone}" if backbone else ""
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
    for (pipeline, data, protocol, backbone), methods in sorted(
        found.items(), key=lambda item: (*item[0][:2], _rank(item[0][2], protocols), item[0][3])
    ):
        names = sorted(methods, key=lambda name: _rank(name, ranks))
        rows = tuple(_row(methods[name], methods.get(baseline)) for name in names)
        groups.append(Group(pipeline, data, protocol, backbone or None, baseline, rows))
    return groups


def table(group: Group) -> Table:
    """One line for each method; the best of ours is bold."""
    lines = [_split_line(group, row) if group.is_split else _fold_line(group, row) for row in group.rows]
    # Columns of which no row has anything to say.
    shown = [name for name in lines[0] if name not in OPTIONAL or any(line[name] != MISSING for line in lines)]
    return Table(tuple(shown), [tuple(line[name] for name in shown) for line in lines])


OPTIONAL = ("runs", "paper, top-5")
"""Columns that stand only where a row has something in them."""


def introduction(group: Group) -> str:
    """What the table shows: protocol, folds or pictures, and seeds."""
    protocol = PROTOCOLS.get(group.protocol)
    meaning = "" if protocol is None else f": {protocol.text}"
    cut = _split_text(group) if group.is_split else _folds_text(group)
    seeds = sorted({row.record.seed for row in group.rows})
    seeds_text = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"Protocol {group.protocol}{meaning}. {cut}, {seeds_text}; {group.metric}."


def losses(group: Group) -> list[str]:
    """What the table says against us, and against the claim that it repeats the paper."""
    against_paper = _against_network(group) if group.is_split else [_against_paper(group)]
    return [_against_baseline(group), *against_paper, *_not_paired(group)]


def order_findings(group: Group) -> list[str]:
    """Whether the paper's order of methods is that of these records: a sentence for each pair, with figures and p.

    Pairs that were not measured are named in the last one. There are none for tables that are not of images, or in
    which no pair was measured.
    """
    if group.pipeline != "vision":
        return []
    found = {expected.text: _finding(group, expected) for expected in ORDER}
    missing = [text for text, finding in found.items() if finding is None]
    if len(missing) == len(ORDER):
        return []
    said = [finding for finding in found.values() if finding is not None]
    return [*said, f"Not measured here: {'; '.join(missing)}."] if missing else said


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


def is_split(record: RunRecord) -> bool:
    """Whether a record says of every test picture whether it was right."""
    return all("right" in fold for fold in record.folds)


def right_pictures(fold: dict[str, Any], where: str) -> list[bool]:
    """Whether each test picture was right: the bits of ``right``, the most significant of the first byte first.

    Args:
        fold: with ``right`` as hexadecimal digits, ``count`` and ``value``; refused where they contradict one another.
        where: names the record in an error.

    Example:
        >>> right_pictures({"right": "a0", "count": 3, "value": 66.67}, "an example")
        [True, False, True]
    """
    count, text, value = fold.get("count"), fold["right"], fold["value"]
    try:
        bits = "".join(f"{byte:08b}" for byte in bytes.fromhex(text))
    except (TypeError, ValueError) as error:
        raise RecordError(f"right must be hexadecimal digits, two for each byte, in {where} ({error}).") from error
    if not isinstance(count, int) or count < 1 or len(bits) != 8 * math.ceil(count / 8) or "1" in bits[count:]:
        raise RecordError(
            f"right must have a bit for each of the pictures that count says, filled up to a byte with zeros, in "
            f"{where} (got {len(bits)} bits, and count {count!r})."
        )
    found = bits.count("1")
    if abs(found - value * count / 100) >= 0.5:  # to the picture: a value may have been rounded
        raise RecordError(
            f"value must be the share of right pictures in % in {where} (got {value}; {found} of {count} are right). "
            "Numbers are not edited by hand: make the record again, or restore the file."
        )
    return [bit == "1" for bit in bits[:count]]


def signed(value: float | None) -> str:
    """A difference with its sign; one that rounds to nothing has none."""
    if value is None:
        return MISSING
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _row(record: RunRecord, baseline: RunRecord | None) -> Row:
    paper = paper_figure(record.pipeline, record.data, record.method, record.protocol, _backbone(record))
    interval = _share_interval(record) if is_split(record) else record.interval
    if baseline is None or baseline is record:
        return Row(record, interval, paper, None, None)
    test = _test(record, baseline)
    return Row(record, interval, paper, record.mean - baseline.mean if test is None else test.difference, test)


def _test(record: RunRecord, baseline: RunRecord) -> PairedTest | SplitTest | None:
    """The test that fits what both hold; None where nothing can be paired."""
    if is_split(record) or is_split(baseline):
        return _split_test(record, baseline)
    ours, theirs = record.paired(baseline)
    if _cut(record) != _cut(baseline) or len(ours) < 2:
        return None
    return paired_test(ours, theirs, test_to_train=_test_to_train(record))


def _split_test(record: RunRecord, other: RunRecord) -> SplitTest | None:
    # The digest is that of the test split as well, and the seed of a record is that of training alone.
    ours_digest, other_digest = (one.config.get("data_digest") for one in (record, other))
    if not (is_split(record) and is_split(other)) or ours_digest != other_digest:
        return None
    ours, theirs = _pictures(record), _pictures(other)
    runs = sorted(ours.keys() & theirs.keys())
    if not runs or any(len(ours[run]) != len(theirs[run]) for run in runs):
        return None
    tests = [mcnemar(ours[run], theirs[run]) for run in runs]
    lows, highs = zip(*(test.interval for test in tests), strict=True)
    difference = math.fsum(test.difference for test in tests) / len(tests)
    return SplitTest(difference, (min(lows), max(highs)), max(test.p_value for test in tests), len(tests))


def _share_interval(record: RunRecord) -> tuple[float, float]:
    """In %, and of several runs that of their mean share: further runs are no further pictures."""
    runs = list(_pictures(record).values())
    count = min(map(len, runs))
    share = math.fsum(sum(right) / len(right) for right in runs) / len(runs)
    low, high = proportion_interval(share * count, count)
    return 100 * low, 100 * high


def _pictures(record: RunRecord) -> dict[int, list[bool]]:
    """Whether each test picture was right, by the number of the run."""
    where = f"the record of {record.method} on {record.data}, protocol {record.protocol}"
    return {fold["fold"]: right_pictures(fold, f"fold {fold['fold']} of {where}") for fold in record.folds}


def _backbone(record: RunRecord) -> str:
    """The name of the backbone; nothing where a pipeline has none."""
    found: Any = record.config.get("backbone")
    return found if isinstance(found, str) else ""


def _cut(record: RunRecord) -> tuple[Any, ...]:
    """What the folds depend on: folds of the same number are the same graphs only where all of it is the same."""
    return record.seed, record.config.get("folds"), record.config.get("data_digest")


def _test_to_train(record: RunRecord) -> float:
    """Items tested on for each item trained on. A record may hold fewer folds than the data were cut into."""
    cut: Any = record.config.get("folds")
    parts = cut if isinstance(cut, int) else record.count
    protocol = PROTOCOLS.get(record.protocol, PROTOCOLS["validation-only"])
    return 1 / max(1, parts - protocol.not_trained_on)


def _fold_line(group: Group, row: Row) -> dict[str, str]:
    test = row.test if isinstance(row.test, PairedTest) else None
    return {
        "method": row.record.method,
        "ours": _ours(group, row),
        "95 % interval": _interval(row.interval),
        "folds": str(row.record.count),
        "paper": _paper(row),
        "ours - paper": signed(row.to_paper),
        "within one std of the paper": {True: "yes", False: "no", None: MISSING}[row.is_within],
        f"ours - {group.baseline}": signed(row.to_baseline) + _fewer(row, group.baseline_record, "folds"),
        "p": MISSING if test is None else p_text(test.p_value),
        "corrected p": MISSING if test is None else p_text(test.corrected_p_value),
        "chosen (folds)": chosen(row.record) or MISSING,
        "seconds": _seconds(row.record),
    }


def _split_line(group: Group, row: Row) -> dict[str, str]:
    folds, test, top5 = row.record.folds, row.test, None if row.paper is None else row.paper.top5
    return {
        "method": row.record.method,
        "top-1": _ours(group, row),
        "95 % interval": _interval(row.interval if is_split(row.record) else None),
        "runs": str(row.record.count) if any(other.record.count > 1 for other in group.rows) else MISSING,
        "top-5": _decimals(_mean([fold.get("top5") for fold in folds])),
        "paper": _paper(row),
        "paper, top-5": MISSING if top5 is None else _as_printed(top5),
        "ours - paper": signed(row.to_paper),
        f"ours - {group.baseline}": signed(row.to_baseline) + _fewer(row, group.baseline_record, "runs"),
        "95 % interval of it": MISSING if test is None else " to ".join(map(signed, test.interval)),
        "p": MISSING if test is None else p_text(test.p_value),
        "validation": _decimals(row.validation),
        "chosen": chosen(row.record) or MISSING,
        "epochs to convergence": _range([fold.get("converged") for fold in folds]),
        "seconds": _seconds(row.record),
    }


def _ours(group: Group, row: Row) -> str:
    """Mean and deviation; in bold where they are the best, of which there is none among equals."""
    record, means = row.record, [other.record.mean for other in group.rows]
    text = _spread(f"{record.mean:.2f}", None if record.std is None else f"{record.std:.2f}")
    return Bold(text) if record.mean == max(means) and means.count(record.mean) == 1 else text


def _paper(row: Row) -> str:
    if row.paper is None:
        return MISSING
    return _spread(_as_printed(row.paper.mean), None if row.paper.std is None else _as_printed(row.paper.std))


def _fewer(row: Row, baseline: RunRecord | None, folds: str) -> str:
    """Says so where the difference is not that of the means, because some folds have no counterpart."""
    if row.test is None or baseline is None or row.test.count == row.record.count == baseline.count:
        return ""
    return f" on {row.test.count} {folds}"


def _folds_text(group: Group) -> str:
    counts = sorted({row.record.count for row in group.rows})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} folds, not the same number for every method"
    return f"{counts[0]} fold{'s' if counts[0] > 1 else ''}"


def _split_text(group: Group) -> str:
    records = [row.record for row in group.rows]
    pictures = _range([fold["count"] for record in records if is_split(record) for fold in record.folds])
    text = f"One test split of {pictures} pictures"
    if all(record.count == 1 for record in records):
        return text
    return (
        f"{text}, with {_range([record.count for record in records])} runs of each method: top-1 is their mean, ± "
        "their standard deviation, and p the largest of theirs"
    )


def _against_baseline(group: Group) -> str:
    name = group.baseline
    if group.baseline_record is None:
        return f"There is no record of {name} here: no method is compared with it."
    if not group.compared:
        return f"There is no method beside {name} here."
    if not group.below_baseline:
        return f"None of {len(group.compared)} is below {name}."
    listed = ", ".join(
        f"{row.record.method} ({signed(row.to_baseline)}{_p_of(row.test)})" for row in group.below_baseline
    )
    return f"Below {name}, {len(group.below_baseline)} of {len(group.compared)}: {listed}."


def _against_paper(group: Group) -> str:
    known = [row for row in group.rows if row.is_within is not None]
    if not known:
        return "The paper has no figures for this data set and protocol."
    if not group.outside_paper:
        return f"All {len(known)} with a figure in the paper are within one standard deviation of it."
    listed = ", ".join(f"{row.record.method} ({signed(row.to_paper)})" for row in group.outside_paper)
    return f"Further than one standard deviation from the paper, {len(group.outside_paper)} of {len(known)}: {listed}."


def _against_network(group: Group) -> list[str]:
    """What the paper's figures are for, which may be another network, and what is below them."""
    known = sum(row.paper is not None for row in group.rows)
    if not known:
        return ["The paper has no figures for these methods on this data set."]
    said = f"The paper's figures are for {group.paper_network}, and so are ours."
    if not group.has_paper_network:
        how = "a frozen " if group.protocol.startswith("frozen") else "a fine-tuned "
        said = (
            f"The paper's figures are for {group.paper_network}; ours here are for {how}"
            f"{group.backbone or 'network without a name'}. The difference to the paper is therefore one of network "
            "and training first, and no measure of how well the methods were reproduced: their order is."
        )
    listed = ", ".join(f"{row.record.method} ({signed(row.to_paper)})" for row in group.below_paper)
    below = f"Below the paper's figure, {len(group.below_paper)} of {known}: {listed}."
    return [said, below if listed else f"None of {known} with a figure in the paper is below it."]


def _not_paired(group: Group) -> list[str]:
    alone = [row.record.method for row in group.compared if row.test is None]
    if not alone:
        return []
    items = "graphs" if group.pipeline == "graph" else "items"
    lack = "the same test pictures" if group.is_split else f"two folds with the same {items}"
    return [f"Not tested against {group.baseline}, for lack of {lack}: {', '.join(alone)}."]


def _finding(group: Group, expected: Expectation) -> str | None:
    """Whether one method is above another; None where one of them is missing."""
    sides = [_rows(group, names) for names in (expected.above, expected.below)]
    if not all(sides):
        return None
    # Of a kind with more methods the best on the test split is better by luck alone: validation chooses.
    by_validation = all(row.validation is not None for rows in sides for row in rows)
    above, below = (max(rows, key=lambda row: _height(row, by_validation)) for rows in sides)
    names = f"{above.record.method} against {below.record.method}"
    if max(map(len, sides)) > 1:
        where = "validation" if by_validation else "the test split, which favours the kind with more methods"
        names += f", the best of {len(sides[0])} and of {len(sides[1])} on {where}"
    test = _split_test(above.record, below.record)
    gap = above.record.mean - below.record.mean if test is None else test.difference
    figures = f"{above.record.mean:.2f} and {below.record.mean:.2f} ({signed(gap)}{_p_of(test)})"
    paper = f", in the paper {signed(above.paper.mean - below.paper.mean)}" if above.paper and below.paper else ""
    return f"{expected.text[0].upper()}{expected.text[1:]} ({names}): {_verdict(gap, test)}, {figures}{paper}."


def _rows(group: Group, names: Sequence[str]) -> list[Row]:
    """The rows of the named methods; a name that ends with ``*`` is that of a kind."""
    return [
        row
        for row in group.rows
        if row.record.method in names
        or any(name.endswith("*") and row.record.method.startswith(name[:-1]) for name in names)
    ]


def _height(row: Row, by_validation: bool) -> float:
    return row.validation if by_validation and row.validation is not None else row.record.mean


def _verdict(gap: float, test: SplitTest | None) -> str:
    if float(signed(gap)) == 0:
        return "there is no difference"
    if test is not None and test.p_value < CHANCE:
        return "holds" if gap > 0 else "does not hold"
    reason = "untested" if test is None else "but by no more than chance may give"
    return f"{'as in the paper' if gap > 0 else 'the other way round'}, {reason}"


def _p_of(test: PairedTest | SplitTest | None) -> str:
    match test:
        case None:
            return ""
        case PairedTest():
            return f", corrected p {p_text(test.corrected_p_value)}"
        case SplitTest():
            return f", p {p_text(test.p_value)}"


def _rank(name: str, order: list[str]) -> tuple[int, str]:
    return (order.index(name), "") if name in order else (len(order), name)


def _mean(values: Sequence[Any]) -> float | None:
    """The mean; None where one is no number."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return math.fsum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _range(values: Sequence[Any]) -> str:
    """One number, or from the least to the most; those that are none are left out."""
    numbers = sorted(value for value in values if isinstance(value, int))
    if not numbers:
        return MISSING
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def _interval(interval: tuple[float, float] | None) -> str:
    return MISSING if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _decimals(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _seconds(record: RunRecord) -> str:
    return f"{record.seconds:.0f}" if record.seconds >= 1 else "< 1"


def _spread(mean: str, std: str | None) -> str:
    return mean if std is None else f"{mean} ± {std}"


def _as_printed(value: float) -> str:
    """One decimal, as the paper has it, and a second where there is one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"
