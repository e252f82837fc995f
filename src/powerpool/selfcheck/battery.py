"""The checks: what is computed, what it is compared with, and how far the two may be apart."""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor, nn

import powerpool as pp
from powerpool import solvers
from powerpool.bench import reference
from powerpool.bench.agreement import relative_difference
from powerpool.bench.case import Answer as Reference
from powerpool.bench.inputs import Inputs
from powerpool.errors import PowerPoolError
from powerpool.selfcheck import cases, oracle
from powerpool.selfcheck.cases import CurveCase, FeatureCase, MatrixCase
from powerpool.selfcheck.oracle import Answer, Matrix

Errors: TypeAlias = dict[str, float]
"""By part: the value, the gradient."""
Operator: TypeAlias = Callable[[Tensor], Tensor]

SOLVERS = ("eigen", "squaring", "gram", "newton_schulz", "jitter", "auto")

TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}
"""Errors of values are relative to the norm of the right value, those of gradients to the largest gradient that the
spectrum lets through. In float64 and float32 good machines stay ten times below; a formula that is wrong by a
thousandth passes neither. Rounding the answer to bfloat16 alone moves it by up to 4e-3, to float16 by 5e-4."""
NULL_SPACE = {torch.float64: 1e-9, torch.float32: 1e-2, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Of Newton-Schulz and a singular matrix: what round-off leaves in a null space grows by 1.5 with each of 15
iterations, in half precision as in the float32 that it is computed in."""
JITTERED = 200 * solvers.Jitter().gap
"""The noise on C = 8 eigenvalues is up to 9 gaps; the steepest curve makes 80 of it, beside the norm of the answer."""
LARGE_TOLERANCE = 3e-4
"""Of float32 at the sizes of a network, relative to the norm of the right answer."""
CUDA_REPEATS = 1e-5
"""Sums on a GPU may change their order from run to run; on the CPU two runs are equal to the last bit."""


class SelfcheckError(PowerPoolError, ValueError):
    """An operator answered with the wrong shape or dtype."""


class Skipped(Exception):  # noqa: N818  # no error: a machine without a compiler is a good machine
    """A check does not apply here; the message says why."""


@dataclass(frozen=True)
class Problem:
    """What a solver is given, and its right answer, computed when it is asked for."""

    name: str
    given: Matrix  # shape: (C, C) or (C, N)
    upstream: Matrix  # shape: (C, C)
    answer: Callable[[], Answer]


@dataclass(frozen=True)
class Case:
    """One comparison; ``run`` gives the error of every part of the answer."""

    label: str
    run: Callable[[], Errors]


@dataclass(frozen=True)
class Check:
    """A row of the table."""

    name: str
    tolerance: float
    cases: Callable[[], Iterable[Case]]
    skipped: str = ""
    """Why it does not apply here, where that is known beforehand."""


class Battery:
    """All checks of one seed on one device. Right answers are computed once, for all solvers and dtypes."""

    def __init__(self, seed: int = 0, device: str = "cpu") -> None:
        self.seed, self.device = seed, device
        self.matrices = cases.matrices(seed)
        self.separated = cases.separated(seed)
        self.singular = [*(matrix for matrix in self.matrices if matrix.is_singular), *cases.singular(seed)]
        self.entries = cases.entries(seed)
        self.features = cases.feature_sets(seed)
        self._answers: dict[tuple[str, str, str], Answer] = {}

    def checks(self, quick: bool = False) -> Iterator[Check]:
        """Every check in the order of the table; a ``quick`` one leaves Inductor out, which takes half of the time."""
        names = dict.fromkeys(case.name for case in cases.CURVES)
        for name in names:
            for dtype in cases.WIDE:
                yield self._check(f"curve {name}", dtype, self._curve_cases, name)
        for solver in SOLVERS:
            for dtype in cases.ALL:
                yield self._check(f"solver {solver}", dtype, self._solver_cases, solver)
        for dtype, tolerance in NULL_SPACE.items():
            name = f"newton_schulz null space, {_short(dtype)}"
            yield Check(name, tolerance, partial(self._null_space_cases, dtype=dtype))
        yield self._check("learnable parameters", torch.float64, self._parameter_cases)
        yield self._check("autocast bfloat16", torch.float32, self._autocast_cases)
        for what, make in (("dense", self._dense), ("masked", self._masked), ("by segment", self._segments)):
            for dtype in cases.WIDE:
                yield self._check(f"pool {what}", dtype, make)
        for dtype in cases.ALL:
            yield self._check("to_vector, from_vector", dtype, self._vector_cases)
        yield Check("large pools, float32", LARGE_TOLERANCE, self._large_cases)
        same = 0.0 if torch.device(self.device).type == "cpu" else CUDA_REPEATS
        yield Check("two runs are equal", same, self._repeat_cases)
        yield Check("parameters saved and loaded", same, self._saved_cases)
        missing = "left out by --quick" if quick else _no_compiler(self.device)
        yield self._compile_check("inductor", missing)
        if missing:  # the half of torch.compile that needs no compiler
            yield self._compile_check("aot_eager", "")

    def _check(self, name: str, dtype: torch.dtype, make: Callable[..., Iterable[Case]], *arguments: str) -> Check:
        tolerance = TOLERANCES[dtype]
        if "jitter" in arguments:
            tolerance = max(tolerance, JITTERED)
        return Check(f"{name}, {_short(dtype)}", tolerance, partial(make, *arguments, dtype=dtype))

    def _compile_check(self, backend: str, missing: str) -> Check:
        return Check(
            f"torch.compile, {backend}", TOLERANCES[torch.float32], partial(self._compiled_cases, backend), missing
        )

    # Curves

    def _curve_cases(self, name: str, dtype: torch.dtype) -> Iterator[Case]:
        for curve in cases.CURVES:
            if curve.name != name:
                continue
            yield Case(f"{curve.label} point by point", partial(self._points, curve, dtype))
            for matrix in self.entries:
                if curve.signed or matrix.name != "signed":
                    run = partial(self._matrix_errors, matrix, dtype, partial(self._entries_answer, matrix, curve))
                    yield Case(f"element-wise {curve.label}, {matrix.name}", partial(run, partial(_elementwise, curve)))

    def _points(self, curve: CurveCase, dtype: torch.dtype) -> Errors:
        points = cases.points(curve, self.seed)
        given = torch.tensor(points, dtype=dtype, device=self.device)
        floor = Decimal(_least(dtype))
        errors = {}
        for part, formula, computed in (
            ("value", curve.scalar.value, curve.curve.value(given)),
            ("derivative", curve.scalar.slope, curve.curve.derivative(given)),
        ):
            with oracle.exactly():
                pairs = zip(points, computed.tolist(), strict=True)
                apart = [(Decimal(found), formula(Decimal(p))) for p, found in pairs if p != 0 or part == "value"]
                # Each of itself; NaN is as far away as can be.
                errors[part] = max(
                    float(abs(found - right) / max(abs(right), floor)) if found.is_finite() else float("inf")
                    for found, right in apart
                )
        return errors

    def _entries_answer(self, matrix: MatrixCase, curve: CurveCase) -> Answer:
        return self._once(
            ("entries", matrix.name, curve.label),
            lambda: oracle.elementwise(matrix.matrix, matrix.upstream, curve.scalar),
        )

    # Solvers

    def _solver_cases(self, solver: str, dtype: torch.dtype) -> Iterator[Case]:
        for curve in cases.CURVES:
            if solver != "auto" and solvers.resolve(solver).refusal(curve.curve) is not None:
                continue
            if solver != "gram":
                yield from self._from_matrices(solver, curve, dtype, self._taken(solver))
            if solver in ("gram", "auto"):
                yield from self._from_features(solver, curve, dtype)

    def _taken(self, solver: str) -> list[MatrixCase]:
        """All matrices that a solver is right for, to the tolerance of its row."""
        if solver == "jitter":
            return self.separated  # its gradient divides by the gaps
        if solver == "newton_schulz":  # these have a row of their own
            return [matrix for matrix in self.matrices if not matrix.is_singular]
        return self.matrices

    def _null_space_cases(self, dtype: torch.dtype) -> Iterator[Case]:
        return self._from_matrices("newton_schulz", _case_of("gamma"), dtype, self.singular)

    def _from_matrices(
        self, solver: str, curve: CurveCase, dtype: torch.dtype, taken: Iterable[MatrixCase]
    ) -> Iterator[Case]:
        right = self._root_answer if solver == "newton_schulz" else self._answer
        problems = [
            Problem(matrix.name, matrix.matrix, matrix.upstream, partial(right, matrix, curve))
            for matrix in taken
            if dtype in matrix.dtypes
        ]
        function = partial(_spectral, curve, solver)
        return self._alone_and_stacked(
            curve, problems, dtype, partial(_seeded, self.seed, function) if solver == "jitter" else function
        )

    def _from_features(self, solver: str, curve: CurveCase, dtype: torch.dtype) -> Iterator[Case]:
        problems = [
            Problem(given.name, given.features, given.upstream, partial(self._feature_answer, given, curve))
            for given in self.features
            if dtype in given.dtypes
        ]
        return self._alone_and_stacked(curve, problems, dtype, partial(_pool, curve, solver))

    def _alone_and_stacked(
        self, curve: CurveCase, problems: Iterable[Problem], dtype: torch.dtype, function: Operator
    ) -> Iterator[Case]:
        """Every problem, then all of one shape in one call: layers are given batches."""
        stacks: dict[tuple[int, int], list[Problem]] = {}
        for problem in problems:
            yield Case(f"{curve.label}, {problem.name}", partial(self._problem_errors, problem, dtype, function))
            stacks.setdefault((len(problem.given), len(problem.given[0])), []).append(problem)
        for (rows, columns), stack in stacks.items():
            if len(stack) > 1:
                label = f"{curve.label}, {len(stack)} stacked, {rows} x {columns}"
                yield Case(label, partial(self._stack_errors, stack, dtype, function))

    def _problem_errors(self, problem: Problem, dtype: torch.dtype, function: Operator) -> Errors:
        return _errors(self._run(function, problem.given, problem.upstream, dtype), problem.answer())

    def _stack_errors(self, stack: list[Problem], dtype: torch.dtype, function: Operator) -> Errors:
        """Each problem relative to its own size: a huge one hides no error of a tiny one."""
        given, upstream = (
            torch.stack([self._tensor(rows, dtype) for rows in side])
            for side in zip(*((problem.given, problem.upstream) for problem in stack), strict=True)
        )
        errors: Errors = {}
        values, gradients = _value_and_gradient(function, given, upstream)
        for problem, value, gradient in zip(stack, values, gradients, strict=True):
            apart = _errors((value, gradient), problem.answer())
            errors |= {f"{part} of {problem.name}": error for part, error in apart.items()}
        return errors

    def _answer(self, matrix: MatrixCase, curve: CurveCase) -> Answer:
        return self._once(
            ("matrix", matrix.name, curve.label),
            lambda: oracle.spectral(matrix.spectrum, matrix.upstream, curve.scalar),
        )

    def _root_answer(self, matrix: MatrixCase, curve: CurveCase) -> Answer:
        return self._once(
            ("root", matrix.name, curve.label),
            lambda: oracle.square_root(matrix.spectrum, matrix.upstream, solvers.NewtonSchulz().iterations),
        )

    def _feature_answer(self, given: FeatureCase, curve: CurveCase) -> Answer:
        def compute() -> Answer:
            of_matrix = oracle.spectral(given.spectrum, given.upstream, curve.scalar)
            gradient = oracle.moment_gradient(given.features, of_matrix.gradient)
            size = of_matrix.gradient_size * 2 * oracle.norm(given.features) / len(given.features[0])
            return Answer(of_matrix.value, of_matrix.value_size, gradient, size)

        return self._once(("features", given.name, curve.label), compute)

    def _once(self, key: tuple[str, str, str], compute: Callable[[], Answer]) -> Answer:
        if key not in self._answers:
            self._answers[key] = compute()
        return self._answers[key]

    def _matrix_errors(
        self, matrix: MatrixCase, dtype: torch.dtype, answer: Callable[[], Answer], function: Operator
    ) -> Errors:
        found = self._run(function, matrix.matrix, matrix.upstream, dtype)
        return _errors(found, answer())

    def _feature_errors(self, given: FeatureCase, curve: CurveCase, dtype: torch.dtype, function: Operator) -> Errors:
        found = self._run(function, given.features, given.upstream, dtype)
        return _errors(found, self._feature_answer(given, curve))

    def _run(self, function: Operator, given: Matrix, upstream: Matrix, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _value_and_gradient(function, self._tensor(given, dtype), self._tensor(upstream, dtype))

    def _tensor(self, rows: Matrix, dtype: torch.dtype) -> Tensor:
        return torch.tensor(oracle.floats(rows), dtype=dtype, device=self.device)

    # Parameters, autocast, compile

    def _parameter_cases(self, dtype: torch.dtype) -> Iterator[Case]:
        matrix, given = self.matrices[0], self.features[0]
        for curve in cases.CURVES:
            if curve.learnable:
                yield Case(f"eigen, {curve.label}", partial(self._parameter, curve, matrix, "eigen", dtype))
                yield Case(f"gram, {curve.label}", partial(self._parameter, curve, given, "gram", dtype))

    def _parameter(self, curve: CurveCase, given: MatrixCase | FeatureCase, solver: str, dtype: torch.dtype) -> Errors:
        theta = nn.Parameter(torch.tensor(float(curve.theta), dtype=dtype, device=self.device))
        learnt = curve.make(theta)
        if isinstance(given, MatrixCase):
            value = pp.spectral(self._tensor(given.matrix, dtype), learnt, solver)
        else:
            value = pp.second_order_pool(self._tensor(given.features, dtype), learnt, solver=solver)
        (slope,) = torch.autograd.grad(value, theta, self._tensor(given.upstream, dtype))
        right, size = oracle.parameter_slope(given.spectrum, given.upstream, curve.formula, Decimal(curve.theta))
        return {"gradient": float(abs(Decimal(slope.item()) - right) / size)}

    def _autocast_cases(self, dtype: torch.dtype) -> Iterator[Case]:
        for solver in SOLVERS:
            if solver == "jitter":  # its noise is larger than the tolerance
                continue
            for case in self._solver_cases(solver, dtype):
                if case.label.endswith((", random", ", few locations", "stacked, 6 x 6", "stacked, 8 x 4")):
                    yield Case(f"{solver}, {case.label}", partial(self._in_autocast, case.run))
        for name in dict.fromkeys(curve.name for curve in cases.CURVES):
            for case in self._curve_cases(name, dtype):
                if case.label.endswith(", random"):
                    yield Case(case.label, partial(self._in_autocast, case.run))

    def _in_autocast(self, run: Callable[[], Errors]) -> Errors:
        with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16):
            return run()

    def _compiled_cases(self, backend: str) -> Iterator[Case]:
        curve, given = _case_of("maxexp"), self.features[0]
        yield Case(f"squaring, {curve.label}, {given.name}", partial(self._compiled, backend, curve, given))

    def _compiled(self, backend: str, curve: CurveCase, given: FeatureCase) -> Errors:
        torch._dynamo.reset()  # so that it is compiled here, whatever ran before
        try:
            function = torch.compile(partial(_pool, curve, "squaring"), fullgraph=True, backend=backend)
            return self._feature_errors(given, curve, torch.float32, function)
        except Exception as error:
            if backend == "inductor" and (reason := _compiles_nothing(self.device)):
                raise Skipped(reason) from error
            raise
        finally:
            torch._dynamo.reset()

    # Pools

    def _dense(self, dtype: torch.dtype) -> Iterator[Case]:
        for given in (self.features[0], self.features[1]):
            for beta in (0.0, 0.5, 1.0):
                label = f"beta={beta:g}, {given.name}"
                moment = partial(pp.autocorrelation, beta=beta)
                pool = partial(pp.second_order_pool, curve=None, beta=beta)
                yield Case(f"autocorrelation, {label}", partial(self._moment, given, beta, dtype, moment))
                yield Case(f"second_order_pool, {label}", partial(self._moment, given, beta, dtype, pool))
                yield Case(f"coordinates, {label}", partial(self._with_coordinates, given, beta, dtype))
            yield Case(f"first_order_pool, {given.name}", partial(self._mean, given, dtype))

    def _moment(self, given: FeatureCase, beta: float, dtype: torch.dtype, function: Operator) -> Errors:
        found = self._run(function, given.features, given.upstream, dtype)
        return _errors(found, _moment_answer(given.features, given.upstream, Decimal(beta)))

    def _with_coordinates(self, given: FeatureCase, beta: float, dtype: torch.dtype) -> Errors:
        height, width, pivots = 2, len(given.features[0]) // 2, 3
        size = len(given.features) + 2 * pivots
        draw = random.Random(f"coordinates {self.seed}")
        upstream = oracle.exact([[draw.randint(-8, 8) / 8 for _ in range(size)] for _ in range(size)])
        codes = pp.spatial_coordinates(height, width, pivots, sigma=0.5, dtype=dtype, device=self.device)
        function = partial(pp.second_order_pool, curve=None, beta=beta, coordinates=codes)
        right = oracle.coordinates(height, width, pivots, sigma=Decimal("0.5"))
        found = self._run(function, given.features, upstream, dtype)
        return _errors(found, _moment_answer(given.features, upstream, Decimal(beta), right))

    def _mean(self, given: FeatureCase, dtype: torch.dtype) -> Errors:
        upstream = given.upstream[0]
        leaf = self._tensor(given.features, dtype).requires_grad_()
        value = pp.first_order_pool(leaf)
        (gradient,) = torch.autograd.grad(value, leaf, self._tensor((upstream,), dtype)[0])
        number = len(given.features[0])
        mean = tuple(sum(row, Decimal(0)) / number for row in given.features)
        share = tuple((entry / number,) * number for entry in upstream)
        answer = Answer((mean,), oracle.norm((mean,)), share, oracle.norm(share))
        return _errors((value.detach().unsqueeze(0), gradient), answer)

    def _masked(self, dtype: torch.dtype) -> Iterator[Case]:
        curve = _case_of("maxexp")
        for given in (self.features[0], self.features[1]):
            for beta in (0.0, 0.5):
                yield Case(f"autocorrelation, beta={beta:g}, {given.name}", partial(self._mask, given, beta, dtype))
            yield Case(f"second_order_pool, {given.name}", partial(self._mask_pool, given, curve, dtype))

    def _mask(self, given: FeatureCase, beta: float, dtype: torch.dtype) -> Errors:
        mask, padded = self._padded(given)
        found = self._run(partial(pp.autocorrelation, beta=beta, mask=mask), padded, given.upstream, dtype)
        answer = _moment_answer(given.features, given.upstream, Decimal(beta))
        return self._behind(mask, found, answer)

    def _mask_pool(self, given: FeatureCase, curve: CurveCase, dtype: torch.dtype) -> Errors:
        mask, padded = self._padded(given)
        found = self._run(partial(pp.second_order_pool, curve=curve.curve, mask=mask), padded, given.upstream, dtype)
        return self._behind(mask, found, self._feature_answer(given, curve))

    def _padded(self, given: FeatureCase) -> tuple[Tensor, Matrix]:
        """A location of NaN before every one that counts."""
        nothing = Decimal("NaN")
        padded = tuple(tuple(entry for x in row for entry in (nothing, x)) for row in given.features)
        return torch.tensor([False, True] * len(given.features[0]), device=self.device), padded

    def _behind(self, mask: Tensor, found: tuple[Tensor, Tensor], answer: Answer) -> Errors:
        value, gradient = found
        outside = gradient[:, ~mask].abs().max().item()  # exactly 0, NaN included
        return _errors((value, gradient[:, mask]), answer) | {"gradient behind the mask": outside}

    def _segments(self, dtype: torch.dtype) -> Iterator[Case]:
        for ordered in (True, False):
            for beta in (0.0, 0.5):
                label = f"{'sorted' if ordered else 'unsorted'} index, beta={beta:g}"
                yield Case(label, partial(self._segment_errors, ordered, beta, dtype))

    def _segment_errors(self, ordered: bool, beta: float, dtype: torch.dtype) -> Errors:
        draw = random.Random(f"segments {self.seed}")
        index = [segment for segment, size in enumerate((1, 9, 4)) for _ in range(size)]
        if not ordered:
            draw.shuffle(index)
        rows = oracle.exact([[draw.randint(1, 8) / 8 for _ in range(5)] for _ in index])
        upstream = [oracle.exact([[draw.randint(-8, 8) / 8 for _ in range(5)] for _ in range(5)]) for _ in range(3)]
        leaf = self._tensor(rows, dtype).requires_grad_()
        places = torch.tensor(index, device=self.device)
        value = pp.segment_autocorrelation(leaf, places, num_segments=4, beta=beta)
        sent = torch.stack([*(self._tensor(one, dtype) for one in upstream), torch.zeros_like(value[0])])
        (gradient,) = torch.autograd.grad(value, leaf, sent)
        errors = {"value of a segment without rows": value.detach()[3].abs().max().item()}
        for segment in range(3):
            members = [place for place, owner in enumerate(index) if owner == segment]
            columns = oracle.transpose(tuple(rows[place] for place in members))
            answer = _moment_answer(columns, upstream[segment], Decimal(beta))
            found = (value.detach()[segment], gradient[members].mT)
            errors |= {f"{part} of segment {segment}": error for part, error in _errors(found, answer).items()}
        return errors

    # Vectors

    def _vector_cases(self, dtype: torch.dtype) -> Iterator[Case]:
        for matrix in self.matrices:
            if dtype in matrix.dtypes:
                yield Case(matrix.name, partial(self._vector, matrix, dtype))

    def _vector(self, matrix: MatrixCase, dtype: torch.dtype) -> Errors:
        size, right = len(matrix.matrix), (oracle.vector(matrix.matrix),)
        leaf = self._tensor(matrix.matrix, dtype).requires_grad_()
        value = pp.to_vector(leaf)
        sent = [row[i:] for i, row in enumerate(matrix.upstream)]
        (gradient,) = torch.autograd.grad(value, leaf, self._tensor((tuple(x for row in sent for x in row),), dtype)[0])
        flat = oracle.vector(matrix.upstream)
        triangle = iter(flat)
        expected = tuple(tuple(next(triangle) if j >= i else Decimal(0) for j in range(size)) for i in range(size))
        answer = Answer(right, oracle.norm(right), expected, oracle.norm(expected))
        errors = _errors((value.detach().unsqueeze(0), gradient), answer)
        back = pp.from_vector(value.detach())
        return errors | {"round trip": _distance(back, matrix.matrix, oracle.norm(matrix.matrix))}

    # Sizes of a network, repetition, files

    def _large_cases(self) -> Iterator[Case]:
        scalars = {
            "maxexp(50)": (pp.MaxExp(50), reference.maxexp(50), ("eigen", "squaring", "gram", "auto")),
            "hdp(0.1)": (pp.HDP(0.1), reference.hdp(0.1), ("eigen", "gram", "auto")),
            "sigme(50)": (pp.SigmE(50.0), reference.sigme(50.0), ("eigen", "gram", "auto")),
        }
        for locations in (49, 196):
            inputs = Inputs(2, 96, locations, seed=self.seed)
            for name, (curve, scalar, taken) in scalars.items():
                right = reference.spectral(inputs.features, inputs.upstream, scalar)
                for solver in taken:
                    function = partial(pp.second_order_pool, curve=curve, solver=solver)
                    yield Case(f"{solver}, {name}, {inputs.name}", partial(self._large, inputs, function, right))

    def _large(self, inputs: Inputs, function: Operator, right: Reference) -> Errors:
        value, gradient = self._of_inputs(inputs, function)
        assert right.gradient is not None  # every reference of a pool has one
        return {
            "value": relative_difference(value.cpu(), right.value),
            "gradient": relative_difference(gradient.cpu(), right.gradient),
        }

    def _of_inputs(self, inputs: Inputs, function: Operator) -> tuple[Tensor, Tensor]:
        leaf = inputs.features.detach().to(self.device).requires_grad_()
        value = function(leaf)
        (gradient,) = torch.autograd.grad(value, leaf, inputs.upstream.to(self.device))
        return value.detach(), gradient

    def _repeat_cases(self) -> Iterator[Case]:
        inputs = Inputs(4, 64, 49, seed=self.seed)
        pools: dict[str, Operator] = {
            "eigen": partial(pp.second_order_pool, curve=pp.HDP(0.1), solver="eigen"),
            "squaring": partial(pp.second_order_pool, curve=pp.MaxExp(50), solver="squaring"),
            "gram": partial(pp.second_order_pool, curve=pp.MaxExp(50), solver="gram"),
            "newton_schulz": partial(
                pp.second_order_pool, curve=pp.Gamma(0.5), solver=solvers.NewtonSchulz(iterations=5)
            ),
            "element-wise": partial(pp.second_order_pool, curve=pp.SigmE(50.0), mode="elementwise"),
            "segments": _by_segment,
        }
        for name, function in pools.items():
            yield Case(name, partial(self._repeat, inputs, function))

    def _repeat(self, inputs: Inputs, function: Operator) -> Errors:
        first, second = (self._of_inputs(inputs, function) for _ in range(2))
        names = ("value", "gradient")
        return {name: relative_difference(two, one) for name, one, two in zip(names, first, second, strict=True)}

    def _saved_cases(self) -> Iterator[Case]:
        yield Case("SecondOrderPool2d with a learnable curve", self._saved)

    def _saved(self) -> Errors:
        def build(eta: float, seed: int) -> nn.Module:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                curve = pp.SigmE(nn.Parameter(torch.tensor(eta, dtype=torch.float32)))
                return pp.nn.SecondOrderPool2d(8, curve, "elementwise", coordinates=3, reduce_to=4).to(self.device)

        maps = Inputs(2, 8, 49, seed=self.seed).features.detach().unflatten(-1, (7, 7)).to(self.device)
        first, second = build(20.0, self.seed), build(5.0, self.seed + 1)
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second.load_state_dict(torch.load(file, map_location=self.device, weights_only=True))
        with torch.no_grad():
            return {"value": relative_difference(second(maps), first(maps))}


def _spectral(curve: CurveCase, solver: str, matrix: Tensor) -> Tensor:
    return pp.spectral(matrix, curve.curve, solver)


def _seeded(seed: int, function: Operator, matrix: Tensor) -> Tensor:
    """With noise that comes back with the seed, and that leaves the caller's generator alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return function(matrix)


def _elementwise(curve: CurveCase, matrix: Tensor) -> Tensor:
    return pp.elementwise(matrix, curve.curve)


def _pool(curve: CurveCase, solver: str, features: Tensor) -> Tensor:
    return pp.second_order_pool(features, curve.curve, solver=solver)


def _by_segment(features: Tensor) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """The same moments from rows with an index, in an order that is none."""
    batch, _, locations = features.shape
    rows = features.mT.flatten(0, 1)
    index = torch.arange(batch, device=features.device).repeat_interleave(locations)
    order = torch.arange(len(index), device=features.device).view(batch, locations).mT.flatten()
    return pp.segment_autocorrelation(rows[order], index[order], num_segments=batch)


def _moment_answer(features: Matrix, upstream: Matrix, beta: Decimal, codes: Matrix = ()) -> Answer:
    with oracle.exactly():
        whole = (*oracle.centre(features, beta), *codes)
        value = oracle.moment(whole)
        gradient = oracle.centre(oracle.moment_gradient(whole, upstream)[: len(features)], beta)
        size = 2 * oracle.norm(upstream) * oracle.norm(whole) / len(whole[0])
        return Answer(value, oracle.norm(value), gradient, size)


def _value_and_gradient(function: Operator, given: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    leaf = given.requires_grad_()
    value = function(leaf)
    if value.dtype != given.dtype:
        raise SelfcheckError(f"{given.dtype} was given and {value.dtype} came back.")
    (gradient,) = torch.autograd.grad(value, leaf, upstream)
    return value.detach(), gradient


def _errors(found: tuple[Tensor, Tensor], answer: Answer) -> Errors:
    value, gradient = found
    return {
        "value": _distance(value, answer.value, answer.value_size),
        "gradient": _distance(gradient, answer.gradient, answer.gradient_size),
    }


def _distance(found: Tensor, right: Matrix, size: Decimal) -> float:
    """The norm of the difference, relative to ``size``; NaN, for what is not finite, passes no tolerance."""
    expected = torch.tensor(oracle.floats(right), dtype=torch.float64)
    if found.shape != expected.shape:
        raise SelfcheckError(f"The answer has shape {tuple(found.shape)}, not {tuple(expected.shape)}.")
    difference = torch.linalg.vector_norm(found.cpu().double() - expected).item()
    return difference / max(float(size), _least(found.dtype))


def _least(dtype: torch.dtype) -> float:
    """So near to 0 the dtype has no digits left."""
    limits = torch.finfo(dtype)
    return limits.tiny / limits.eps


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _case_of(name: str) -> CurveCase:
    return next(case for case in cases.CURVES if case.name == name)


def _no_compiler(device: str) -> str:
    """What Inductor lacks: it makes C++ on the CPU and Triton elsewhere, and no compiler comes with torch; or ""."""
    if torch.device(device).type != "cpu":
        return "" if find_spec("triton") else "the package triton is not installed"
    found = any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)
    return "" if found else "no C++ compiler on this machine (g++ or clang++)"


def _compiles_nothing(device: str) -> str | None:
    """Why Inductor fails at x + 1 too: then it is the machine, not the library; None if it does not."""
    try:
        torch.compile(lambda x: x + 1, backend="inductor")(torch.zeros(2, device=device))
    except Exception as error:  # whatever a tool chain may raise
        lines = str(error).strip().splitlines() or [""]
        return f"Inductor does not work here, not even for x + 1: {type(error).__name__}: {lines[0][:100]}"
    return None
