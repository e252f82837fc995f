"""What records say of a test beside its value: which classes were taken for which, and spectra around a curve.

Both are optional: records of versions that did not measure them stay as they are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from powerpool.errors import RecordError
from powerpool.report.tables import Group, where
from powerpool.runs.record import RunRecord

PAIRS = 15
"""Pairs of classes in a table of those that are mistaken most often."""


@dataclass(frozen=True)
class Confusion:
    """How often each class was said for each, over all folds of a record."""

    classes: tuple[str, ...]
    counts: dict[tuple[int, int], int]
    """By the numbers of the class and of what was said for it; pairs that never occur are left out."""

    @property
    def sizes(self) -> list[int]:
        """Test samples of each class."""
        sizes = [0] * len(self.classes)
        for (row, _), count in self.counts.items():
            sizes[row] += count
        return sizes

    def shares(self) -> dict[tuple[int, int], float]:
        """The counts in % of their class."""
        sizes = self.sizes
        return {(row, column): 100 * count / sizes[row] for (row, column), count in self.counts.items()}


@dataclass(frozen=True)
class Spectrum:
    """Mean shares of eigenvalues, the largest first, before and after the normalization of a pool."""

    size: int
    """The side of the matrices."""
    ranks: tuple[int, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    samples: int
    """Over all folds."""
    folds: int
    """Those whose matrices have this side: it may have been chosen for each."""


def confusion_of(record: RunRecord) -> Confusion | None:
    """The sum over folds; None where not every fold says it."""
    entries = [fold.get("confusion") for fold in record.folds]
    if any(entry is None for entry in entries):
        return None
    total: Counter[tuple[int, int]] = Counter()
    names: set[tuple[str, ...]] = set()
    for fold, entry in zip(record.folds, entries, strict=True):
        place = f"fold {fold['fold']} of {where(record)}"
        classes, counts = _read_confusion(entry, place)
        names.add(classes)
        _require_value(counts, fold["value"], place)
        total.update(counts)
    if len(names) > 1:
        raise RecordError(f"All folds must have the same classes in the confusion of {where(record)}.")
    return Confusion(names.pop(), dict(total))


def spectrum_of(record: RunRecord) -> Spectrum | None:
    """The mean over the folds with the most frequent size, of equally frequent ones the larger; None where none is."""
    found = [
        _read_spectrum(fold["spectrum"], f"fold {fold['fold']} of {where(record)}")
        for fold in record.folds
        if fold.get("spectrum") is not None
    ]
    if not found:
        return None
    counted = Counter(one.size for one in found)
    size = max(counted, key=lambda size: (counted[size], size))
    own = [one for one in found if one.size == size]
    if len({one.ranks for one in own}) > 1:
        raise RecordError(f"Spectra of one size must have the same ranks in {where(record)}.")
    before, after = (_mean([getattr(one, name) for one in own]) for name in ("before", "after"))
    return Spectrum(size, own[0].ranks, before, after, sum(one.samples for one in own), len(own))


def require_readable(record: RunRecord) -> None:
    """Refuse a record whose confusions or spectra are damaged."""
    confusion_of(record)
    spectrum_of(record)


def most_telling(group: Group) -> list[RunRecord]:
    """The baseline and the method with the highest mean: where not all can be shown."""
    records = group.records
    best = max(records, key=lambda record: record.mean)
    baseline = group.baseline_record
    return [best] if baseline is None or baseline is best else [baseline, best]


def mistaken(records: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """The pairs of classes that the records take for one another most often, all of them together, and how often each.

    Returns:
        For each pair the class, what it was taken for, and of each record ``3 (15 %)``: the count and the share of the
        class.
    """
    total: Counter[tuple[str, str]] = Counter()
    cells: list[dict[tuple[str, str], str]] = []
    for confusion in filter(None, map(confusion_of, records)):
        names, shares, own = confusion.classes, confusion.shares(), {}
        for (row, column), count in confusion.counts.items():
            if row != column:
                total[names[row], names[column]] += count
                own[names[row], names[column]] = f"{count} ({shares[row, column]:.0f} %)"
        cells.append(own)
    most = sorted(total, key=lambda pair: (-total[pair], pair))[:PAIRS]
    return [(*pair, *(own.get(pair, "0") for own in cells)) for pair in most]


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_confusion(entry: Any, place: str) -> tuple[tuple[str, ...], dict[tuple[int, int], int]]:
    facts: dict[str, Any] = entry if isinstance(entry, dict) else {}
    classes, counts = facts.get("classes", []), facts.get("counts", [])
    are_texts = all(_is_list(part, str) and part for part in (classes, counts))
    if not are_texts or len(set(classes)) != len(classes):
        raise RecordError(f"confusion must have the names of classes and a list of counts, in {place}.")
    found: dict[tuple[int, int], int] = {}
    for text in counts:
        numbers = re.fullmatch(r"(\d{1,9}) (\d{1,9}) (\d{1,15})", text, re.ASCII)
        row, column, count = map(int, numbers.groups()) if numbers else (len(classes), 0, 0)
        if max(row, column) >= len(classes) or count < 1 or (row, column) in found:
            raise RecordError(
                f"counts of a confusion must be texts CLASS SAID COUNT, with classes from 0 to {len(classes) - 1}, "
                f"counts from 1 on, and each pair once, in {place} (got {text!r})."
            )
        found[row, column] = count
    return tuple(classes), found


def _require_value(counts: dict[tuple[int, int], int], value: float, place: str) -> None:
    total, right = sum(counts.values()), sum(count for (row, column), count in counts.items() if row == column)
    if abs(right - value * total / 100) >= 0.5:  # to the sample: a value may have been rounded
        raise RecordError(
            f"value must be the share of right samples in % in {place} (got {value}; {right} of {total} are right by "
            "its confusion). Numbers are not edited by hand: make the record again, or restore the file."
        )


def _read_spectrum(entry: Any, place: str) -> Spectrum:
    facts: dict[str, Any] = entry if isinstance(entry, dict) else {}
    size, samples = facts.get("size"), facts.get("samples")
    ranks, before, after = (facts.get(name, []) for name in ("ranks", "before", "after"))
    if not (
        _is_list(ranks, int)
        and ranks
        and ranks == sorted(set(ranks))
        and isinstance(size, int)
        and isinstance(samples, int)
        and samples >= 1
        and ranks[0] >= 1
        and ranks[-1] <= size
        and all(_is_list(part, int | float) and len(part) == len(ranks) for part in (before, after))
        and all(math.isfinite(share) and 0 <= share <= 1 for share in (*before, *after))
    ):
        raise RecordError(
            f"spectrum must have samples, size, rising ranks from 1 to size, and a share from 0 to 1 before and after "
            f"at each of them, in {place}."
        )
    return Spectrum(size, tuple(ranks), tuple(before), tuple(after), samples, 1)


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(math.fsum(column) / len(column) for column in zip(*rows, strict=True))


def _is_list(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)
