"""What records say of every single test picture, or of every single test episode."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from powerpool.errors import RecordError
from powerpool.runs.record import RunRecord


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


def pictures(record: RunRecord) -> dict[int, list[bool]]:
    """Whether each test picture was right, by the number of the run."""
    return {fold["fold"]: right_pictures(fold, f"fold {fold['fold']} of {where(record)}") for fold in record.folds}


def right_by_episode(fold: dict[str, Any], where: str) -> list[int]:
    """The right queries of every test episode, from their numbers in a text.

    Args:
        fold: with ``right_by_episode``, ``count`` episodes, ``queries`` of each and ``value``; refused where they
            contradict one another.
        where: names the record in an error.

    Example:
        >>> right_by_episode({"right_by_episode": "3 2 4", "count": 3, "queries": 4, "value": 75.0}, "an example")
        [3, 2, 4]
    """
    text, count, queries, value = fold["right_by_episode"], fold.get("count"), fold.get("queries"), fold["value"]
    if not isinstance(text, str) or re.fullmatch(r"\d+( \d+)*", text, re.ASCII) is None:
        raise RecordError(
            f"right_by_episode must be whole numbers with a blank between two, in {where} (got {text!r})."
        )
    right = [int(number) for number in text.split(" ")]
    if not isinstance(count, int) or len(right) != count or count < 2:
        raise RecordError(
            f"right_by_episode must have a number for each of the episodes that count says, at least two, in {where} "
            f"(got {len(right)} numbers, and count {count!r})."
        )
    if not isinstance(queries, int) or queries < 1 or max(right) > queries:
        raise RecordError(
            f"queries must be at least 1, and as many as are right in an episode, in {where} (got {queries!r}, and up "
            f"to {max(right)} right ones)."
        )
    if abs(sum(right) - value * count * queries / 100) >= 0.5:  # to the query: a value may have been rounded
        raise RecordError(
            f"value must be the share of right queries in % in {where} (got {value}; {sum(right)} of "
            f"{count * queries} are right). Numbers are not edited by hand: make the record again, or restore the file."
        )
    return right


def accuracies(record: RunRecord, runs: Sequence[int] | None = None) -> list[float]:
    """The accuracy in % in every test episode, the mean over runs: all of them, or those of the given numbers."""
    own = [
        [100 * right / fold["queries"] for right in right_by_episode(fold, f"fold {fold['fold']} of {where(record)}")]
        for fold in record.folds
        if runs is None or fold["fold"] in runs
    ]
    if len(set(map(len, own))) > 1:
        raise RecordError(f"All runs must have the same test episodes in {where(record)} (got {list(map(len, own))}).")
    return [math.fsum(values) / len(values) for values in zip(*own, strict=True)]


def shared_runs(*records: RunRecord) -> list[int]:
    """The numbers of the runs that all records have; none where their test episodes are not the same."""
    if not all("right_by_episode" in fold for record in records for fold in record.folds):
        return []
    if len({_asked(record) for record in records}) > 1:
        return []
    return sorted(set.intersection(*({fold["fold"] for fold in record.folds} for record in records)))


def _asked(record: RunRecord) -> str:
    """What the test episodes depend on."""
    test: Any = record.config.get("test")
    test = test if isinstance(test, dict) else {}
    numbers = [test.get(name) for name in ("way", "shot", "queries")]
    numbers.append(bool(test.get("transductive")))  # what is said of a query then depends on the others
    folds = sorted({(str(fold.get("queries")), str(fold.get("count"))) for fold in record.folds})
    return repr((record.config.get("data_digest"), record.protocol, numbers, folds))


def where(record: RunRecord) -> str:
    """Names a record in an error."""
    return f"the record of {record.method} on {record.data}, protocol {record.protocol}"
