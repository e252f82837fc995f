"""Whether a training on another set before helped a method, and whether it helped spectral methods alone."""

from __future__ import annotations

from itertools import product
from typing import Any

from powerpool.report.paper import FEW_SHOT_SIZE, PRETRAINED_ON, paper_figure, set_of_paper
from powerpool.report.tables.answers import accuracies, shared_runs
from powerpool.report.tables.base import CHANCE, Comparison, Group, Row
from powerpool.report.tables.formats import p_text, signed
from powerpool.runs.compare import paired_test
from powerpool.runs.record import RunRecord

PRETRAINED = "+Pretr"
"""Stands in the name of a method whose weights come from another set, as in the paper's tables."""

Pair = tuple[Row, Row]
"""With pre-training, and without."""


def findings(group: Group) -> list[str]:
    """A sentence for each method that is there with pre-training and without, and one about the paper's finding."""
    rows = {row.record.method: row for row in group.rows}
    pairs = [
        (row, rows[name.replace(PRETRAINED, "")])
        for name, row in rows.items()
        if PRETRAINED in name and name.replace(PRETRAINED, "") in rows
    ]
    spectral = [pair for pair in pairs if _is_spectral(pair)]
    others = [pair for pair in pairs if not _is_spectral(pair)]
    return [
        *(_gain_text(group, pair) for pair in pairs),
        *(_only_spectral(group, ours, other) for ours, other in product(spectral, others)),
    ]


def source_set(record: RunRecord) -> str | None:
    """The set that was trained on before, where the record says so."""
    before: Any = record.config.get("pretraining")
    name = before.get("data") if isinstance(before, dict) else None
    return name if isinstance(name, str) else None


def _is_spectral(pair: Pair) -> bool:
    return "+Spec" in pair[1].record.method


def _gain(group: Group, pair: Pair) -> Comparison | None:
    after, without = pair
    return group.kind.compare(after.record, without.record)


def _gain_text(group: Group, pair: Pair) -> str:
    after, without = pair
    found, means = _gain(group, pair), f"{after.record.mean:.2f} with it and {without.record.mean:.2f} without"
    kind = "spectral" if _is_spectral(pair) else "not spectral"
    source = source_set(after.record)
    start = f"Pre-training of {without.record.method}{'' if source is None else f' on {source}'}, {kind}"
    if found is None:
        return f"{start}: untested, {means} ({signed(after.record.mean - without.record.mean)}){_in_paper(after)}."
    return f"{start}: {_verdict(found)}, {means} ({_figures(found)}){_in_paper(after)}."


def _verdict(found: Comparison) -> str:
    if found.p_value >= CHANCE:
        return "no difference beyond what chance may give"
    return "helped" if found.difference > 0 else "did harm"


def _figures(found: Comparison) -> str:
    interval = " to ".join(map(signed, found.interval))
    return f"{signed(found.difference)}, 95 % interval {interval}, p {p_text(found.p_value)}"


def _in_paper(row: Row) -> str:
    """What the paper gained with the same method, or with spatial coordinates where it has no other, and from where."""
    record, name = row.record, set_of_paper(row.record.data)
    if name is None:
        return ""
    size = record.config.get("size")
    for added, words in (("", ""), ("+SC", ", with spatial coordinates")):
        ours = record.method.replace(PRETRAINED, PRETRAINED + added)
        after, without = (
            paper_figure(
                record.pipeline, record.data, method, record.protocol, size=size if isinstance(size, int) else None
            )
            for method in (ours, ours.replace(PRETRAINED, ""))
        )
        if after is not None and without is not None:
            gain, side = signed(after.mean - without.mean), FEW_SHOT_SIZE.get(name)
            at = "" if side is None else f", at {side} px"
            return f", in the paper, pre-trained on {PRETRAINED_ON[name]}{at}{words}, {gain}"
    return ""


def _only_spectral(group: Group, spectral: Pair, other: Pair) -> str:
    """The paper's finding needs three tests: both gains, and that one is larger than the other."""
    names = f"{spectral[1].record.method} and not {other[1].record.method}"
    start = f"That spectral normalization alone profits from pre-training ({names})"
    gains, more = [_gain(group, pair) for pair in (spectral, other)], _difference_of_gains(spectral, other)
    if gains[0] is None or gains[1] is None or more is None:
        return f"{start}: untested, for lack of the same test episodes."
    helped = [_verdict(gain) == "helped" for gain in gains if gain is not None]
    end = f"the spectral gain less the other is {_figures(more)}"
    if helped != [True, False]:
        return f"{start}: is not seen here; {end}."
    if more.p_value < CHANCE:
        return f"{start}: is seen here; {end}."
    return f"{start}: each test by itself says so, but the two gains differ by no more than chance may give; {end}."


def _difference_of_gains(spectral: Pair, other: Pair) -> Comparison | None:
    """How much more one pair gained than the other, over the same episodes of all four."""
    records = [row.record for pair in (spectral, other) for row in pair]
    runs = shared_runs(*records)
    if not runs:
        return None
    values = [accuracies(record, runs) for record in records]
    gains = [[after - without for after, without in zip(*pair, strict=True)] for pair in (values[:2], values[2:])]
    found = paired_test(*gains, test_to_train=0.0)
    return Comparison(found.difference, found.interval, found.p_value, len(runs))
