"""Records sorted into groups, each of one kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from powerpool.errors import RecordError
from powerpool.report.paper import paper_figure
from powerpool.report.tables.answers import where
from powerpool.report.tables.base import PROTOCOLS, Group, Kind, Row
from powerpool.report.tables.episodes import Episodes
from powerpool.report.tables.folds import Folds
from powerpool.report.tables.splits import Splits
from powerpool.runs.record import RunRecord

KINDS: tuple[Kind, ...] = (Folds(), Splits(), Episodes())
"""In the order in which a report explains them. Every record has folds: the first is what remains."""


def by_pipeline(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Records sorted by what made them, in the order of the names."""
    names = sorted({record.pipeline for record in records})
    return {name: [record for record in records if record.pipeline == name] for name in names}


def kind_of(records: Iterable[RunRecord]) -> Kind:
    """The kind of a group, in which one record that says more decides."""
    records = list(records)
    return next(kind for kind in (*KINDS[1:], KINDS[0]) if any(kind.holds(record) for record in records))


def group(records: Iterable[RunRecord], baseline: str, order: Sequence[str]) -> list[Group]:
    """Sort records into groups, methods in the given order and unknown ones behind them."""
    found: dict[tuple[str, str, str, str], dict[str, RunRecord]] = {}
    for record in records:
        backbone = _backbone(record)
        methods = found.setdefault((record.pipeline, record.data, record.protocol, backbone), {})
        place = where(record).removeprefix("the record of ") + (f", backbone {backbone}" if backbone else "")
        if record.method in methods:
            raise RecordError(f"Two records of {place}. Keep one of them: a table has one row for each method.")
        first = next(iter(methods.values()), record)
        if first.metric != record.metric:
            raise RecordError(
                f"The record of {place} holds {record.metric!r}, that of {first.method} {first.metric!r}. "
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
        kind = kind_of(methods.values())
        groups.append(Group(pipeline, data, protocol, backbone or None, baseline, rows, kind))
    return groups


def _row(record: RunRecord, baseline: RunRecord | None) -> Row:
    size: Any = record.config.get("size")
    paper = paper_figure(
        record.pipeline,
        record.data,
        record.method,
        record.protocol,
        _backbone(record),
        size if isinstance(size, int) else None,
    )
    interval = kind_of([record]).interval(record)
    if baseline is None or baseline is record:
        return Row(record, interval, paper, None, None)
    test = kind_of([record, baseline]).compare(record, baseline)
    return Row(record, interval, paper, record.mean - baseline.mean if test is None else test.difference, test)


def _backbone(record: RunRecord) -> str:
    """The name of the backbone; nothing where a pipeline has none."""
    found: Any = record.config.get("backbone")
    return found if isinstance(found, str) else ""


def _rank(name: str, order: list[str]) -> tuple[int, list[str | int], str]:
    """Known names in their order, then the others, with 5-way before 20-way."""
    if name in order:
        return order.index(name), [], ""
    parts = re.split(r"(\d+)", name, flags=re.ASCII)
    return len(order), [int(part) if place % 2 else part for place, part in enumerate(parts)], name
