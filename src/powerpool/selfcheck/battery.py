"""The checks: what is computed, what it is compared with, and how large an error may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from mpmath import mpf
from torch import Tensor

import powerpool as pp
from powerpool import solvers
from powerpool.bench import reference
from powerpool.bench.cases import Inputs
from powerpool.selfcheck import cases, checks, oracle
from powerpool.selfcheck.cases import CurveCase, Given
from powerpool.selfcheck.checks import Check, Findings, Operator, Problem, Right, run

SOLVERS = ("eigen", "squaring", "gram", "newton_schulz", "minimax", "jitter", "auto")

TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}
"""Errors of values are relative to the norm of the right value, errors of gradients to the largest gradient that the
spectrum can produce. In float64 and float32 the errors are usually ten times smaller, and a formula that is wrong by
1e-3 fails. Rounding the result to bfloat16 alone costs up to 4e-3, to float16 5e-4."""
NULL_SPACE = {torch.float64: 1e-9, torch.float32: 1e-2, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""For Newton-Schulz on singular matrices: round-off in the null space grows 1.5-fold in each of 15 iterations."""
JITTERED = 200 * solvers.Jitter().gap
"""The noise on C = 8 eigenvalues is at most 9 gaps; the steepest curve turns it into an error of about 80 gaps."""
LARGE_TOLERANCE = 3e-4
"""For float32 at the sizes of a network, relative to the norm of the right value or gradient."""
CUDA_REPEATS = 1e-5
"""Sums on a GPU may change their order from run to run; on the CPU two runs are equal bit by bit."""
AUTOCAST = (", random", ", few locations", "stacked, 6 x 6", "stacked, 8 x 4")
"""The cases that are repeated inside ``torch.autocast``."""


class Battery:
    """All checks for one seed and one device. Right answers are computed once, for all solvers and dtypes."""

    def __init__(self, seed: int = 0, device: str = "cpu") -> None:
        self.seed, self.device = seed, device
        self.matrices = cases.matrices(seed)
        self.features = cases.feature_sets(seed)
        self._answers: dict[tuple[str, str, str], Right] = {}

    def checks(self, quick: bool = False) -> Iterator[Check]:
        """All checks in the order of the table; with ``quick`` without Inductor, which takes half of the time."""
        for name in dict.fromkeys(curve.name for curve in cases.CURVES):
            for dtype in cases.WIDE:
                yield _check(f"curve {name}", dtype, partial(self._curve, name))
        for solver in SOLVERS:
            for dtype in cases.ALL:
                tolerance = max(TOLERANCES[dtype], JITTERED if solver == "jitter" else 0.0)
                yield _check(f"solver {solver}", dtype, partial(self._solver, solver), tolerance)
        for dtype, tolerance in NULL_SPACE.items():
            yield _check("newton_schulz null space", dtype, self._null_space, tolerance)
        yield _check("learnable parameters", torch.float64, self._parameters)
        autocast = partial(torch.autocast, torch.device(self.device).type, dtype=torch.bfloat16)
        yield replace(_check("autocast bfloat16", torch.float32, self._autocast), context=autocast)
        for kind, pool in (("dense", self._dense), ("masked", self._masked), ("by segment", self._segments)):
            for dtype in cases.WIDE:
                yield _check(f"pool {kind}", dtype, pool)
        for dtype in cases.ALL:
            yield _check("to_vector, from_vector", dtype, self._vectors)
        yield Check("large pools, float32", LARGE_TOLERANCE, self._large_pools)
        same = 0.0 if torch.device(self.device).type == "cpu" else CUDA_REPEATS
        yield Check("two runs are equal", same, self._repeat)
        missing = "left out by --quick" if quick else checks.find_obstacle(self.device)
        excuse = partial(checks.find_fault, self.device)
        yield replace(self._compile_check("inductor"), skipped=missing, excuse=excuse)
        if missing:  # tracing and differentiation, which need no compiler
            yield self._compile_check("aot_eager")

    # ---- curves and solvers, against the oracle ----------------------------------------------------------------------

    def _curve(self, name: str, findings: Findings, dtype: torch.dtype) -> None:
        for curve in (curve for curve in cases.CURVES if curve.name == name):
            points = cases.points(curve, self.seed)
            problem = Problem(self._tensor(points, dtype), None, _right_points(curve, points))
            findings.compare(f"{curve.label} point by point", partial(_value_and_slope, curve), problem)
            function = partial(pp.elementwise, curve=curve.curve)
            for given in self.matrices:
                if dtype in given.dtypes and (curve.scalar.signed or given.is_non_negative):
                    problem = self._problem("entries", given, curve, dtype)
                    findings.compare(f"element-wise {curve.label}, {given.name}", function, problem)

    def _solver(self, solver: str, findings: Findings, dtype: torch.dtype) -> None:
        matrices = self.matrices
        if solver == "jitter":  # its gradient divides by the gaps
            matrices = [given for given in matrices if given.name.startswith("separated")]
        # Singular matrices have a row with another tolerance for newton_schulz, and are refused by minimax.
        if solver in ("newton_schulz", "minimax"):
            matrices = [given for given in matrices if not given.is_singular]
        for curve in cases.CURVES:
            if solver != "auto" and solvers.resolve(solver).refusal(curve.curve) is not None:
                continue
            if solver != "gram":
                self._spectral(findings, solver, curve, matrices, dtype)
            if solver in ("gram", "auto"):
                function = partial(pp.second_order_pool, curve=curve.curve, solver=solver)
                self._alone_and_stacked(findings, function, "features", curve, self.features, dtype)

    def _null_space(self, findings: Findings, dtype: torch.dtype) -> None:
        singular = [given for given in self.matrices if given.is_singular]
        self._spectral(findings, "newton_schulz", _case_of("gamma"), singular, dtype)

    def _spectral(
        self, findings: Findings, solver: str, curve: CurveCase, matrices: Iterable[Given], dtype: torch.dtype
    ) -> None:
        function: Operator = partial(pp.spectral, curve=curve.curve, solver=solver)
        if solver == "jitter":
            function = partial(_with_seed, self.seed, function)
        kind = "root" if solver == "newton_schulz" else "matrix"
        self._alone_and_stacked(findings, function, kind, curve, matrices, dtype)

    def _alone_and_stacked(
        self,
        findings: Findings,
        function: Operator,
        kind: str,
        curve: CurveCase,
        inputs: Iterable[Given],
        dtype: torch.dtype,
    ) -> None:
        """Compare every input alone, then all inputs of one shape as a batch."""
        stacks: dict[str, list[Problem]] = {}
        for given in (given for given in inputs if dtype in given.dtypes):
            problem = self._problem(kind, given, curve, dtype)
            findings.compare(f"{curve.label}, {given.name}", function, problem)
            stacks.setdefault(f"{given.rows.rows} x {given.rows.cols}", []).append(problem)
        for shape, problems in stacks.items():
            if len(problems) > 1:
                findings.compare(f"{curve.label}, {len(problems)} stacked, {shape}", function, *problems)

    def _problem(self, kind: str, given: Given, curve: CurveCase, dtype: torch.dtype) -> Problem:
        key = (kind, given.name, curve.label)
        if key not in self._answers:
            if kind == "entries":
                answer = oracle.elementwise(given.rows, given.upstream, curve.scalar)
            elif kind == "root":
                answer = oracle.square_root(given.spectrum, given.upstream, solvers.NewtonSchulz().iterations)
            elif kind == "features":
                answer = oracle.pool(given.rows, given.spectrum, given.upstream, curve.scalar)
            else:
                answer = oracle.spectral(given.spectrum, given.upstream, curve.scalar)
            self._answers[key] = Right.of(answer)
        rows, upstream = (self._tensor(oracle.floats(matrix), dtype) for matrix in (given.rows, given.upstream))
        return Problem(rows, upstream, self._answers[key], given.name)

    def _parameters(self, findings: Findings, dtype: torch.dtype) -> None:
        for solver, kind, given in (("eigen", "matrix", self.matrices[0]), ("gram", "features", self.features[0])):
            for curve in (curve for curve in cases.CURVES if curve.learnable):
                fixed = self._problem(kind, given, curve, dtype)
                found = oracle.parameter_slope(given.spectrum, given.upstream, curve.formula, mpf(curve.theta))
                slope, size = (torch.tensor(float(number), dtype=torch.float64) for number in found)
                right = replace(fixed.right, gradient=slope, gradient_size=size)
                theta = torch.tensor(float(curve.theta), dtype=dtype, device=self.device)
                learn = partial(_learn, solver, fixed.given, curve)
                findings.compare(f"{solver}, {curve.label}", learn, Problem(theta, fixed.upstream, right))

    def _autocast(self, findings: Findings, dtype: torch.dtype) -> None:
        findings.only = AUTOCAST
        for solver in SOLVERS:
            if solver != "jitter":  # its noise is larger than the tolerance
                self._solver(solver, findings, dtype)
        for name in dict.fromkeys(curve.name for curve in cases.CURVES):
            self._curve(name, findings, dtype)

    def _compile_check(self, backend: str) -> Check:
        compiled = partial(self._compiled, backend)
        return Check(f"torch.compile, {backend}", TOLERANCES[torch.float32], compiled, context=checks.fresh_dynamo)

    def _compiled(self, backend: str, findings: Findings) -> None:
        curve, given = _case_of("maxexp"), self.features[0]
        pool = partial(pp.second_order_pool, curve=curve.curve, solver="squaring")
        function = torch.compile(pool, fullgraph=True, backend=backend)
        problem = self._problem("features", given, curve, torch.float32)
        findings.compare(f"squaring, {curve.label}, {given.name}", function, problem)

    # ---- moments and vectors, against their definitions in float64 ---------------------------------------------------

    def _dense(self, findings: Findings, dtype: torch.dtype) -> None:
        for given in self.features[:2]:
            x = self._tensor(oracle.floats(given.rows), dtype)
            height, width, pivots = 2, x.shape[1] // 2, 3
            codes = pp.spatial_coordinates(height, width, pivots, sigma=0.5, dtype=dtype, device=self.device)
            for beta in (0.0, 0.5, 1.0):
                label, moment = f"beta={beta:g}, {given.name}", partial(_moment, beta=beta)
                pool = partial(pp.second_order_pool, curve=None, beta=beta)
                self._define(findings, f"autocorrelation, {label}", partial(pp.autocorrelation, beta=beta), moment, x)
                self._define(findings, f"second_order_pool, {label}", pool, moment, x)
                moment = partial(moment, codes=_coordinates(height, width, pivots, sigma=0.5))
                self._define(findings, f"coordinates, {label}", partial(pool, coordinates=codes), moment, x)
            self._define(findings, f"first_order_pool, {given.name}", pp.first_order_pool, lambda x: x.mean(-1), x)

    def _masked(self, findings: Findings, dtype: torch.dtype) -> None:
        """A masked location of NaN before every other one; the gradient there has to be 0."""
        curve = _case_of("maxexp")
        for given in self.features[:2]:
            plain = self._problem("features", given, curve, dtype)
            padded = _interleave(torch.full_like(plain.given, torch.nan), plain.given)
            mask = ~padded[0].isnan()
            for beta in (0.0, 0.5):
                function = partial(pp.autocorrelation, beta=beta, mask=mask)
                definition = partial(_moment, beta=beta, mask=mask.cpu())
                self._define(findings, f"autocorrelation, beta={beta:g}, {given.name}", function, definition, padded)
            gradient = plain.right.gradient
            assert gradient is not None  # answers of the oracle have one
            right = replace(plain.right, gradient=_interleave(torch.zeros_like(gradient), gradient))
            pool = partial(pp.second_order_pool, curve=curve.curve, mask=mask)
            findings.compare(f"second_order_pool, {given.name}", pool, Problem(padded, plain.upstream, right))

    def _segments(self, findings: Findings, dtype: torch.dtype) -> None:
        """Segments of 1, 9, 4 and no rows."""
        draw = random.Random(f"segments {self.seed}")
        rows = self._tensor([[draw.randint(1, 8) / 8 for _ in range(5)] for _ in range(14)], dtype)
        ordered = [0] * 1 + [1] * 9 + [2] * 4
        for name, places in (("sorted", ordered), ("unsorted", draw.sample(ordered, 14))):
            index = torch.tensor(places, device=self.device)
            for beta in (0.0, 0.5):
                function = partial(pp.segment_autocorrelation, index=index, num_segments=4, beta=beta)
                definition = partial(_segment_moments, index=index.cpu(), number=4, beta=beta)
                self._define(findings, f"{name} index, beta={beta:g}", function, definition, rows)

    def _vectors(self, findings: Findings, dtype: torch.dtype) -> None:
        for given in (given for given in self.matrices if dtype in given.dtypes):
            matrix = self._tensor(oracle.floats(given.rows), dtype)
            self._define(findings, f"to_vector of {given.name}", pp.to_vector, _vector, matrix)
            self._define(findings, f"from_vector of {given.name}", pp.from_vector, _matrix, pp.to_vector(matrix))

    def _define(self, findings: Findings, label: str, function: Operator, definition: Operator, given: Tensor) -> None:
        """Compare with a definition, evaluated and differentiated in float64 on the CPU."""
        draw = random.Random(f"{label} {self.seed}")
        exact = given.cpu().double()
        shape = definition(exact).shape
        numbers = [(2 * draw.randint(-4, 3) + 1) / 8 for _ in range(shape.numel())]
        upstream = torch.tensor(numbers, dtype=torch.float64).view(shape)
        right = _right_run(definition, exact, upstream)
        findings.compare(label, function, Problem(given, upstream.to(self.device, given.dtype), right))

    def _tensor(self, numbers: list[list[float]] | list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self.device)

    # ---- sizes of a network, repetition ------------------------------------------------------------------------------

    def _large_pools(self, findings: Findings) -> None:
        curves = {
            "maxexp(50)": (pp.MaxExp(50), reference.maxexp(50), ("eigen", "squaring", "gram", "auto")),
            "hdp(0.1)": (pp.HDP(0.1), reference.hdp(0.1), ("eigen", "gram", "auto")),
            "sigme(50)": (pp.SigmE(50.0), reference.sigme(50.0), ("eigen", "gram", "auto")),
        }
        for locations in (49, 196):
            inputs = Inputs(2, 96, locations, self.device, self.seed)
            for name, (curve, scalar, names) in curves.items():
                answer = reference.spectral(inputs.features.cpu(), inputs.upstream.cpu(), scalar)
                assert answer.gradient is not None  # references of pools have one
                right = Right.of_tensors(answer.value, answer.gradient)
                for solver in names:
                    function = partial(pp.second_order_pool, curve=curve, solver=solver)
                    problem = Problem(inputs.features, inputs.upstream, right)
                    findings.compare(f"{solver}, {name}, {inputs.name}", function, problem)

    def _repeat(self, findings: Findings) -> None:
        inputs = Inputs(4, 64, 49, self.device, self.seed)
        pool = pp.second_order_pool
        functions: dict[str, Operator] = {
            "eigen": partial(pool, curve=pp.HDP(0.1), solver="eigen"),
            "squaring": partial(pool, curve=pp.MaxExp(50), solver="squaring"),
            "gram": partial(pool, curve=pp.MaxExp(50), solver="gram"),
            "newton_schulz": partial(pool, curve=pp.Gamma(0.5), solver=solvers.NewtonSchulz(iterations=5)),
            "element-wise": partial(pool, curve=pp.SigmE(50.0), mode="elementwise"),
            "segments": _by_segment,
        }
        for name, function in functions.items():
            first = _right_run(function, inputs.features, inputs.upstream)
            findings.compare(name, function, Problem(inputs.features, inputs.upstream, first))


def _check(name: str, dtype: torch.dtype, compare: Callable[..., None], tolerance: float | None = None) -> Check:
    allowed = TOLERANCES[dtype] if tolerance is None else tolerance
    return Check(f"{name}, {str(dtype).removeprefix('torch.')}", allowed, partial(compare, dtype=dtype))


def _case_of(name: str) -> CurveCase:
    return next(curve for curve in cases.CURVES if curve.name == name)


def _value_and_slope(curve: CurveCase, points: Tensor) -> Tensor:
    """Value and slope, without the slope at the first point, 0, where it may be infinite."""
    return torch.cat([curve.curve.value(points), curve.curve.derivative(points)[1:]])


def _right_points(curve: CurveCase, points: list[float]) -> Right:
    with oracle.exactly():
        values = [curve.scalar.value(mpf(p)) for p in points]
        slopes = [curve.scalar.slope(mpf(p)) for p in points[1:]]
    right = torch.tensor([float(number) for number in (*values, *slopes)], dtype=torch.float64)
    return Right(right, right.abs())


def _right_run(function: Operator, given: Tensor, upstream: Tensor) -> Right:
    """What an operator returns, as the right answer for another one or for a second run."""
    value, gradient = run(function, given, upstream)
    assert gradient is not None  # an upstream gradient was given
    return Right.of_tensors(value, gradient)


def _learn(solver: str, rows: Tensor, curve: CurveCase, theta: Tensor) -> Tensor:
    operator = pp.second_order_pool if solver == "gram" else pp.spectral
    result: Tensor = operator(rows, curve.make(theta), solver=solver)
    return result


def _with_seed(seed: int, function: Operator, matrix: Tensor) -> Tensor:
    """Draw the noise from the seed, and leave the caller's generator alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return function(matrix)


def _interleave(first: Tensor, second: Tensor) -> Tensor:  # shape: (C, N), (C, N) -> (C, 2 N)
    return torch.stack([first, second], -1).flatten(1)


def _by_segment(features: Tensor) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """The moments of a batch from shuffled rows with an index."""
    batch, _, locations = features.shape
    rows = features.mT.flatten(0, 1)
    index = torch.arange(batch, device=features.device).repeat_interleave(locations)
    order = torch.arange(len(index), device=features.device).view(batch, locations).mT.flatten()
    return pp.segment_autocorrelation(rows[order], index[order], num_segments=batch)


# Definitions: sums of products, because products of matrices are what they check.


def _moment(
    x: Tensor, beta: float, codes: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:  # shape: (C, N) -> (C, C)
    x = x if mask is None else x[:, mask]
    x = x - beta * x.mean(-1, keepdim=True)
    x = x if codes is None else torch.cat([x, codes])
    return (x[:, None] * x[None]).mean(-1)


def _segment_moments(x: Tensor, index: Tensor, number: int, beta: float) -> Tensor:  # shape: (R, C) -> (S, C, C)
    empty = x.new_zeros(x.shape[1], x.shape[1])
    members = [x[index == segment].T for segment in range(number)]
    return torch.stack([_moment(rows, beta) if rows.shape[1] else empty for rows in members])


def _coordinates(height: int, width: int, pivots: int, sigma: float) -> Tensor:  # shape: (2 pivots, H W)
    places = [(column / (width - 1), row / (height - 1)) for row in range(height) for column in range(width)]
    centres = torch.linspace(-0.2, 1.2, pivots, dtype=torch.float64)
    axes = torch.tensor(places, dtype=torch.float64).T
    return torch.cat([torch.exp(-(((axis - centres[:, None]) / sigma) ** 2)) for axis in axes])


def _vector(matrix: Tensor) -> Tensor:  # shape: (C, C) -> (C (C+1)/2,)
    size = len(matrix)
    return torch.stack([matrix[i, j] * (1 if i == j else 2**0.5) for i in range(size) for j in range(i, size)])


def _matrix(vector: Tensor) -> Tensor:  # shape: (C (C+1)/2,) -> (C, C)
    size = int((2 * len(vector)) ** 0.5)
    rows, columns = torch.triu_indices(size, size)
    entries = torch.where(rows == columns, vector, vector / 2**0.5)
    upper = vector.new_zeros(size, size).index_put((rows, columns), entries)
    return upper + upper.triu(1).T
