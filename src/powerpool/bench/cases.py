"""A case: contenders that answer the same question. Answers are compared first; then memory and time are measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from powerpool.bench import competitors, reference
from powerpool.bench.measure import Counts, Stopwatch, count, measure_time, peak_bytes
from powerpool.bench.record import CaseRecord, Measured, Skipped
from powerpool.bench.reference import Answer
from powerpool.errors import PowerPoolError

Origin = Literal["powerpool", "competitor", "floor"]
Reference: TypeAlias = Callable[[Tensor, Tensor], Answer]
"""A function of features and of the gradient of the result."""
MOMENT = "M"
"""The label of contenders that only form the moment."""
VALUE_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
"""Largest difference from the reference in the Frobenius norm, relative to the norm of the reference. Float32 keeps
about 1e-6; the gradient of a steep curve loses two more digits, and a wrong formula is off by 0.01 or more."""
COMPETITOR_VALUE_TOLERANCE = 1e-3
"""Beyond VALUE_TOLERANCE a competitor gets a note, beyond this it is refused: a plain 1 - (1-p)^50 loses the digits of
small p, 1e-4 of the norm at 2048 channels."""


@dataclass(frozen=True)
class Contender:
    """One way to answer. ``step`` runs it once, its forward and backward pass inside those of the stopwatch."""

    name: str
    origin: Origin
    answers: str
    """What it computes, such as "spectral MaxExp(50)": contenders with the same label have to agree."""
    step: Callable[[Stopwatch], Answer]
    approximate: bool = False
    """It differs from the reference by design: the difference is recorded, not refused."""


@dataclass(frozen=True)
class BenchCase:
    """Contenders on one input, with the float64 reference of every label.

    A label without a reference is compared with its first contender.
    """

    suite: str
    name: str
    sizes: dict[str, int]
    """For instance batch, channels, locations, eta."""
    contenders: list[Contender]
    references: dict[str, Callable[[], Answer]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """What is not a number: for instance the curve."""


@dataclass(frozen=True)
class Inputs:
    """Features as after a ReLU, and a gradient from above; float32, the same for all contenders."""

    batch: int
    channels: int
    locations: int
    device: str = "cpu"
    seed: int = 0

    @property
    def name(self) -> str:
        """The sizes as text."""
        return f"B{self.batch} C{self.channels} N{self.locations}"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name."""
        return {"batch": self.batch, "channels": self.channels, "locations": self.locations}

    @cached_property
    def features(self) -> Tensor:  # shape: (B, C, N)
        """Non-negative; drawn on the CPU, so that every device sees the same numbers."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(self.batch, self.channels, self.locations, generator=generator)
        return drawn.relu().to(self.device).requires_grad_()

    @cached_property
    def upstream(self) -> Tensor:  # shape: (B, C, C)
        """Not symmetric: the gradient from a layer above need not be."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randn(self.batch, self.channels, self.channels, generator=generator).to(self.device)

    def contender(
        self,
        name: str,
        origin: Origin,
        answers: str,
        function: Callable[[Tensor], Tensor],
        approximate: bool = False,
    ) -> Contender:
        """Make a contender from a function of the features, run forward and backward."""

        def step(watch: Stopwatch) -> Answer:
            features, upstream = self.features, self.upstream
            with watch.forward:
                value = function(features)
            with watch.backward:
                (gradient,) = torch.autograd.grad(value, features, upstream)
            return Answer(value.detach(), gradient)

        return Contender(name, origin, answers, step, approximate)

    def floor(self) -> Contender:
        """The contender that only forms M."""
        return self.contender("form M", "floor", MOMENT, competitors.form_moment)

    def references(self, others: Mapping[str, Reference]) -> dict[str, Callable[[], Answer]]:
        """References of :data:`MOMENT` and of other labels, computed on demand."""
        every = {MOMENT: reference.moment, **others}
        return {label: partial(self._answer, function) for label, function in every.items()}

    def _answer(self, function: Reference) -> Answer:
        return function(self.features, self.upstream)


# ---- measuring a case ------------------------------------------------------------------------------------------------


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

    def show(step: str) -> None:
        progress(f"{case.name}: {step}")

    show("answers")
    torch.manual_seed(0)  # GSPN draws from the global generator
    try:
        agreements = check_answers(case)
    except DisagreementError as error:
        return CaseRecord(case.name, case.sizes, case.labels, skipped=case.skipped, error=str(error))
    show("memory")
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
    timings = measure_time(steps, effort.repetitions, effort.budget, effort.warm_up, watch, progress=show)
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
