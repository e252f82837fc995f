"""How numbers of the tables are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from powerpool.runs.record import RunRecord

MISSING = "\N{EN DASH}"


def signed(value: float | None) -> str:
    """A difference with its sign; one that rounds to nothing has none."""
    if value is None:
        return MISSING
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def interval_text(interval: tuple[float, float] | None) -> str:
    return MISSING if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def decimals(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def seconds(record: RunRecord) -> str:
    return f"{record.seconds:.0f}" if record.seconds >= 1 else "< 1"


def spread(mean: str, std: str | None) -> str:
    return mean if std is None else f"{mean} ± {std}"


def as_printed(value: float) -> str:
    """One decimal, as the paper has it, and a second where there is one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def mean(values: Sequence[Any]) -> float | None:
    """The mean; None where one is no number."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return math.fsum(numbers) / len(numbers) if len(numbers) == len(values) else None


def span(values: Sequence[Any]) -> str:
    """One number, or from the least to the most; those that are none are left out."""
    numbers = sorted(value for value in values if isinstance(value, int))
    if not numbers:
        return MISSING
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"
