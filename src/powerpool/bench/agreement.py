"""Do the contenders answer the same? Asked before any clock starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from powerpool.bench.case import Answer, BenchCase, Contender
from powerpool.bench.timing import Stopwatch
from powerpool.errors import PowerPoolError

VALUE_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
"""Largest difference from the reference in the Frobenius norm, relative to the norm of the reference. Float32 keeps
about 1e-6; the gradient of a steep curve loses two more digits, and a wrong formula is off by 0.01 or more."""
COMPETITOR_VALUE_TOLERANCE = 1e-3
"""Beyond VALUE_TOLERANCE a competitor gets a note, beyond this it is refused: 1 - (1-p)^50 as it stands loses the
digits of small p, 1e-4 of the norm at 2048 channels."""


class DisagreementError(PowerPoolError, ValueError):
    """A contender does not compute what its label says."""


@dataclass(frozen=True)
class Agreement:
    """How far a contender is from the reference; None where there is nothing to compare, or it is not finite."""

    value_error: float | None
    gradient_error: float | None
    note: str = ""


def check_answers(case: BenchCase) -> dict[str, Agreement]:
    """Run every contender once and compare value and gradient with the reference of its label.

    A contender of the library that disagrees is an error, and so is anyone's wrong value that is not declared
    approximate. A competitor whose gradient is wrong or not finite is a finding: it stays, with a note.
    """
    found: dict[str, Agreement] = {}
    labels = list(dict.fromkeys(contender.answers for contender in case.contenders))
    for label in labels:
        members = [contender for contender in case.contenders if contender.answers == label]
        if label in case.references:
            expected, against = case.references[label](), "the float64 reference"
        elif len(members) > 1:
            first, *members = members
            expected, against = first.step(Stopwatch()), repr(first.name)
            found[first.name] = Agreement(None, None)
        else:
            found[members[0].name] = Agreement(None, None)
            continue
        for contender in members:
            found[contender.name] = _judge(case, contender, contender.step(Stopwatch()), expected, against)
    return found


def relative_difference(given: Tensor, expected: Tensor) -> float:
    """|given - expected| / |expected| in the Frobenius norm; NaN or infinity where ``given`` is not finite."""
    given, expected = given.detach().double(), expected.detach().double()
    if given.shape != expected.shape:
        return math.inf
    difference = torch.linalg.vector_norm(given - expected) / torch.linalg.vector_norm(expected).clamp(min=1e-30)
    return difference.item()


def _judge(case: BenchCase, contender: Contender, given: Answer, expected: Answer, against: str) -> Agreement:
    value_error = relative_difference(given.value, expected.value)
    value_agrees = value_error <= VALUE_TOLERANCE  # NaN does not
    gradient_error = None
    if expected.gradient is not None:
        gradient_error = math.inf
        if given.gradient is not None:
            gradient_error = relative_difference(given.gradient, expected.gradient)
    gradient_agrees = gradient_error is None or gradient_error <= GRADIENT_TOLERANCE
    competes = contender.origin == "competitor"
    bound = COMPETITOR_VALUE_TOLERANCE if competes else VALUE_TOLERANCE
    value_passes = contender.approximate or value_error <= bound
    gradient_passes = contender.approximate or competes or gradient_agrees
    if not (value_passes and gradient_passes):
        part, error = ("gradient", gradient_error) if value_passes else ("value", value_error)
        bound = GRADIENT_TOLERANCE if value_passes else bound
        raise DisagreementError(
            f"{case.name}: the {part} of {contender.name!r} differs from {against} of {contender.answers!r} by "
            f"{error:.3g} of its norm, more than {bound:g}. Nothing of this case was timed: a time of a wrong answer "
            "says nothing."
        )
    notes = []
    if not value_agrees:
        notes.append(_remark("value", value_error))
    if gradient_error is not None and not gradient_agrees:
        notes.append(_remark("gradient", gradient_error))
    return Agreement(_finite(value_error), _finite(gradient_error), ", ".join(notes))


def _remark(part: str, error: float) -> str:
    return f"{part}: off by {error:.2g}" if math.isfinite(error) else f"{part}: not finite"


def _finite(error: float | None) -> float | None:
    return error if error is not None and math.isfinite(error) else None
