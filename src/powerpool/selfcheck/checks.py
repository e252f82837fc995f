"""A check, the comparisons it makes, and its result as a row of a table."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from powerpool.errors import PowerPoolError
from powerpool.selfcheck.oracle import Answer, floats

Operator: TypeAlias = Callable[[Tensor], Tensor]
Status = Literal["passed", "failed", "skipped"]

NAME_WIDTH = 34
HEADING = f"{'check':<{NAME_WIDTH}}  {'cases':>5}  {'worst error':>11}  {'tolerance':>9}  result"


class SelfcheckError(PowerPoolError, ValueError):
    """An operator returned the wrong shape or dtype."""


@dataclass(frozen=True)
class Right:
    """The right value and gradient, and the sizes that errors are relative to; float64, on the CPU."""

    value: Tensor
    value_size: Tensor
    """One number for the norm of the error, or one for each entry."""
    gradient: Tensor | None = None
    gradient_size: Tensor | None = None

    @staticmethod
    def of(answer: Answer) -> Right:
        """Convert an answer of the oracle."""
        parts = (floats(answer.value), float(answer.value_size), floats(answer.gradient), float(answer.gradient_size))
        return Right(*(torch.tensor(part, dtype=torch.float64) for part in parts))

    @staticmethod
    def of_tensors(value: Tensor, gradient: Tensor) -> Right:
        """A value and a gradient, with their norms as sizes."""
        value, gradient = value.detach().cpu().double(), gradient.detach().cpu().double()
        return Right(value, torch.linalg.vector_norm(value), gradient, torch.linalg.vector_norm(gradient))


@dataclass(frozen=True)
class Problem:
    """An input, the gradient of the loss with respect to the result (None: no backward), and the right answer."""

    given: Tensor
    upstream: Tensor | None
    right: Right
    name: str = ""


@dataclass
class Findings:
    """The errors that a check has found so far, each with a description."""

    errors: list[tuple[float, str]] = field(default_factory=list)
    raised: bool = False
    only: tuple[str, ...] = ("",)
    """Compare only cases whose label ends with one of these."""

    def compare(self, label: str, function: Operator, *problems: Problem) -> None:
        """Run an operator, on several problems as a batch, and compare. An exception is an infinite error."""
        if not label.endswith(self.only):
            return
        try:
            self.errors += [(error, f"{part} of {label}") for part, error in _errors(function, problems)]
        except Exception as error:  # a broken machine may raise anything
            self.add_exception(f"{label} raised", error)

    def add_exception(self, what: str, error: Exception) -> None:
        """Record an exception, with the first line of its message."""
        self.raised = True
        lines = str(error).strip().splitlines() or [""]
        self.errors.append((math.inf, f"{what} {type(error).__name__}: {lines[0]}"))


@dataclass(frozen=True)
class Check:
    """A row of the table: comparisons with one tolerance."""

    name: str
    tolerance: float
    run: Callable[[Findings], None]
    skipped: str = ""
    """Why the check does not apply on this machine, if that is known beforehand."""
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered around the check."""
    excuse: Callable[[], str | None] = lambda: None
    """Asked if something raised: the reason if the machine is at fault, which skips the check."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    name: str
    status: Status
    cases: int
    """Number of comparisons; values and gradients count separately."""
    failed: int
    worst: float | None
    """The largest error; None if nothing was compared or it is not finite."""
    tolerance: float
    note: str
    """The worst case, the exception, or why the check was skipped."""
    seconds: float

    @property
    def line(self) -> str:
        """The row of the table."""
        worst = "-" if self.status == "skipped" else "not finite" if self.worst is None else _number(self.worst)
        result = {
            "passed": "passed",
            "failed": f"FAILED ({self.failed} of {self.cases}): {self.note}",
            "skipped": f"skipped: {self.note}",
        }[self.status]
        return f"{self.name:<{NAME_WIDTH}}  {self.cases:>5}  {worst:>11}  {_number(self.tolerance):>9}  {result}"


def run_check(check: Check) -> Outcome:
    """Run a check; whatever raises has failed."""
    started = time.perf_counter()
    findings, skipped = Findings(), check.skipped
    if not skipped:
        with check.context():
            try:
                check.run(findings)
            except Exception as error:  # preparing a comparison computes, too
                findings.add_exception("the next case could not be made:", error)
            if findings.raised:
                skipped = check.excuse() or ""
    seconds = time.perf_counter() - started
    if skipped:
        return Outcome(check.name, "skipped", 0, 0, None, check.tolerance, skipped, seconds)
    errors = findings.errors or [(math.inf, "nothing was compared")]
    worst, note = max(errors, key=lambda one: one[0])
    failed = sum(error > check.tolerance for error, _ in errors)
    status: Status = "failed" if failed else "passed"
    finite = worst if math.isfinite(worst) else None
    return Outcome(check.name, status, len(errors), failed, finite, check.tolerance, note, seconds)


def run(function: Operator, given: Tensor, upstream: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The value of an operator, and the gradient of its input."""
    leaf = given.detach().requires_grad_()
    value = function(leaf)
    if value.dtype != given.dtype:
        raise SelfcheckError(f"The result has dtype {value.dtype}, but the input has {given.dtype}.")
    gradient = None if upstream is None else torch.autograd.grad(value, leaf, upstream)[0]
    return value.detach(), gradient


def _errors(function: Operator, problems: Sequence[Problem]) -> list[tuple[str, float]]:
    """The error of each part of the answer."""
    if len(problems) == 1:
        return _distances(run(function, problems[0].given, problems[0].upstream), problems[0].right)
    given = torch.stack([problem.given for problem in problems])
    upstream = torch.stack([problem.upstream for problem in problems if problem.upstream is not None])
    value, gradient = run(function, given, upstream)
    assert gradient is not None  # an upstream gradient was given
    found = []
    # Each problem relative to its own size: a huge one must not hide the error of a tiny one.
    for problem, *answer in zip(problems, value, gradient, strict=True):
        parts = _distances((answer[0], answer[1]), problem.right)
        found += [(f"{part} of {problem.name}", error) for part, error in parts]
    return found


def _distances(found: tuple[Tensor, Tensor | None], right: Right) -> list[tuple[str, float]]:
    value, gradient = found
    parts = [("value", _distance(value, right.value, right.value_size))]
    if gradient is not None and right.gradient is not None and right.gradient_size is not None:
        parts.append(("gradient", _distance(gradient, right.gradient, right.gradient_size)))
    return parts


def _distance(found: Tensor, right: Tensor, size: Tensor) -> float:
    """The norm of the difference, relative to ``size``."""
    if found.shape != right.shape:
        raise SelfcheckError(f"The result has shape {tuple(found.shape)}, but should have {tuple(right.shape)}.")
    limits = torch.finfo(found.dtype)
    least = limits.tiny / limits.eps  # smaller numbers lose digits in this dtype
    distance = torch.linalg.vector_norm((found.cpu().double() - right) / size.clamp(min=least)).item()
    return distance if math.isfinite(distance) else math.inf


def _number(error: float) -> str:
    return f"{error:.1e}" if error else "0"


# ---- torch.compile ---------------------------------------------------------------------------------------------------


@contextmanager
def fresh_dynamo() -> Iterator[None]:
    """Reset the compiler before and after the ``with`` block, so that everything inside is compiled."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def find_obstacle(device: str) -> str:
    """What Inductor lacks on this machine, or "": it generates C++ for the CPU and Triton for other devices."""
    if torch.device(device).type != "cpu":
        return "" if find_spec("triton") else "the package triton is not installed"
    found = any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)
    return "" if found else "no C++ compiler on this machine (g++ or clang++)"


def find_fault(device: str) -> str | None:
    """Why Inductor cannot even compile x + 1; None if it can, so that a failure is the library's."""
    try:
        torch.compile(lambda x: x + 1, backend="inductor")(torch.zeros(2, device=device))
    except Exception as error:  # a tool chain may raise anything
        lines = str(error).strip().splitlines() or [""]
        return f"Inductor does not work on this machine, not even for x + 1: {type(error).__name__}: {lines[0][:100]}"
    return None
