"""One case from start to end: compare the answers, measure memory and operations, then time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from powerpool.bench.cases import BenchCase, Contender
from powerpool.bench.measure import Counts, Stopwatch, count, measure_time, peak_bytes
from powerpool.bench.record import CaseRecord, Measured
from powerpool.bench.reference import Answer
from powerpool.errors import PowerPoolError

VALUE_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
"""Largest difference from the reference in the Frobenius norm, relative to the norm of the reference. Float32 keeps
about 1e-6; the gradient of a steep curve loses two more digits, and a wrong formula is off by 0.01 or more."""
COMPETITOR_VALUE_TOLERANCE = 1e-3
"""Beyond VALUE_TOLERANCE a competitor gets a note, beyond this it is refused: a plain 1 - (1-p)^50 loses the digits of
small p, 1e-4 of the norm at 2048 channels."""


class DisagreementError(PowerPoolError, ValueError):
    """A contender does not compute what its label says."""


@dataclass(frozen=True)
class Agreement:
    """How far a contender is from the reference; None if there is nothing to compare, or it is not finite."""

    value_error: float | None = None
    gradient_error: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Effort:
    """How long a case is measured."""

    repetitions: int
    budget: float
    """Seconds for one contender of one case; a slow one gets fewer repetitions, at least three."""
    warm_up: int


def run_case(
    case: BenchCase, effort: Effort, device: str = "cpu", progress: Callable[[str], None] = lambda text: None
) -> CaseRecord:
    """Measure a case. If answers disagree nothing is timed, and the record has the error."""
    progress("answers")
    torch.manual_seed(0)  # GSPN draws from the global generator
    try:
        agreements = check_answers(case)
    except DisagreementError as error:
        return CaseRecord(case.name, case.sizes, case.labels, skipped=case.skipped, error=str(error))
    progress("memory")
    steps = {contender.name: contender.step for contender in case.contenders}
    peaks: dict[str, int] = {}
    counts: dict[str, Counts] = {}
    for name, step in steps.items():
        once = partial(step, Stopwatch())
        once()  # inputs and networks are made on first use: they do not belong to the step
        peaks[name] = peak_bytes(once, device)
        counts[name] = count(once)
    is_cuda = torch.device(device).type == "cuda"
    watch = Stopwatch(synchronize=partial(torch.cuda.synchronize, device)) if is_cuda else Stopwatch()
    timings = measure_time(steps, effort.repetitions, effort.budget, effort.warm_up, watch, progress=progress)
    results = [
        Measured(
            name=contender.name,
            origin=contender.origin,
            answers=contender.answers,
            **vars(timings[contender.name]),
            peak_bytes=peaks[contender.name],
            **vars(counts[contender.name]),
            **vars(agreements[contender.name]),
        )
        for contender in case.contenders
    ]
    return CaseRecord(case.name, case.sizes, case.labels, results, case.skipped)


def check_answers(case: BenchCase) -> dict[str, Agreement]:
    """Run every contender once and compare value and gradient with the reference of its label.

    A contender of the library that disagrees is an error, and so is any wrong value that is not declared approximate.
    A competitor whose gradient is wrong or not finite is timed, with a note.
    """
    found: dict[str, Agreement] = {}
    for label in dict.fromkeys(contender.answers for contender in case.contenders):
        members = [contender for contender in case.contenders if contender.answers == label]
        if label in case.references:
            expected, against = case.references[label](), "the float64 reference"
        else:
            first, *members = members
            found[first.name] = Agreement()
            if not members:
                continue
            expected, against = first.step(Stopwatch()), repr(first.name)
        for contender in members:
            found[contender.name] = _judge(case, contender, contender.step(Stopwatch()), expected, against)
    return found


def relative_difference(given: Tensor, expected: Tensor) -> float:
    """|given - expected| / |expected| in the Frobenius norm; NaN or infinity if ``given`` is not finite."""
    given, expected = given.detach().double(), expected.detach().double()
    if given.shape != expected.shape:
        return math.inf
    difference = torch.linalg.vector_norm(given - expected) / torch.linalg.vector_norm(expected).clamp(min=1e-30)
    return difference.item()


def _judge(case: BenchCase, contender: Contender, given: Answer, expected: Answer, against: str) -> Agreement:
    errors = {"value": relative_difference(given.value, expected.value)}
    if expected.gradient is not None:
        errors["gradient"] = (
            math.inf if given.gradient is None else relative_difference(given.gradient, expected.gradient)
        )
    tolerances = {"value": VALUE_TOLERANCE, "gradient": GRADIENT_TOLERANCE}
    bounds = {"value": COMPETITOR_VALUE_TOLERANCE} if contender.origin == "competitor" else tolerances
    notes = []
    for part, error in errors.items():
        if part in bounds and not error <= bounds[part] and not contender.approximate:  # NaN is refused, too
            raise DisagreementError(
                f"{case.name}: the {part} of {contender.name!r} differs from {against} of {contender.answers!r} by "
                f"{error:.3g} of its norm, more than {bounds[part]:g}. Nothing of this case was timed."
            )
        if not error <= tolerances[part]:
            notes.append(f"{part}: off by {error:.2g}" if math.isfinite(error) else f"{part}: not finite")
    finite = {f"{part}_error": error for part, error in errors.items() if math.isfinite(error)}
    return Agreement(**finite, note=", ".join(notes))
