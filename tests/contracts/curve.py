"""The battery of every curve: a subclass types the paper's formulas in mpmath and inherits the tests.

The reference sees the very float that the library saw, so accuracy is relative, in units in the last place (ulp), over
42 decades and at both ends of the domain. How badly conditioned a curve is near 1 or near a tie is no excuse.
"""

from __future__ import annotations

import copy
import functools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import mpmath
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpmath import mpf
from torch import Tensor, nn

from powerpool.curves import Curve, IntegerPower
from powerpool.errors import ArgumentError, DTypeError
from tests.tolerances import ULPS, tolerance

DTYPES = (torch.float32, torch.float64)
QUANTITIES = ("value", "derivative", "slope", "ratio", "divided_difference", "parameter_derivative")
# p = 1e-30 takes 30 digits of 1 - p, and a divided difference may be 1e-308 beside values of 1.
DIGITS, DIGITS_OF_DIFFERENCES = 60, 400

# Inherited tests run in several classes, which hypothesis takes for an accident; without randomness a failure repeats.
property_test = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)


class CurveContract(ABC):
    """What holds for every curve. A subclass names the curve, states its facts and types its formulas."""

    curve: ClassVar[type[Curve]]
    options: ClassVar[dict[str, Any]] = {}
    parameters: ClassVar[tuple[float, ...]]
    """Values to test. One that float32 would round is tested in float64 only: in float32 it is another curve."""
    trainable: ClassVar[tuple[float, ...]]
    """Values around which the curve is smooth in its parameter."""
    fit: ClassVar[tuple[float, float, float]]
    """Start, target and learning rate of a descent."""
    parameter_range: ClassVar[tuple[float, float]]
    """Where property tests draw the parameter from."""
    refused: ClassVar[tuple[float, ...]] = (0, 0.0, -1.0)
    requirement: ClassVar[str]
    """What the error says that the parameter must be."""
    domain: ClassVar[tuple[float, float]]
    bound: ClassVar[float | None] = None
    trace_normalize: ClassVar[bool]
    exponential: ClassVar[tuple[str, ...]] = ()
    """Quantities that are e^-x of a rounded x, and so may be off by another x ulp."""

    # Formulas, of mpmath numbers.

    @classmethod
    @abstractmethod
    def value(cls, p: mpf, theta: mpf) -> mpf: ...

    @classmethod
    @abstractmethod
    def derivative(cls, p: mpf, theta: mpf) -> mpf: ...

    @classmethod
    @abstractmethod
    def parameter_derivative(cls, p: mpf, theta: mpf) -> mpf: ...

    @classmethod
    def slope(cls, p: mpf, theta: mpf) -> mpf:
        """The derivative as backward gives it: finite."""
        return cls.derivative(p, theta)

    @classmethod
    def ratio(cls, p: mpf, theta: mpf) -> mpf:
        return cls.slope(p, theta) if p == 0 else cls.value(p, theta) / p

    @classmethod
    def divided_difference(cls, a: mpf, b: mpf, theta: mpf) -> mpf:
        return cls.slope(a, theta) if a == b else (cls.value(a, theta) - cls.value(b, theta)) / (a - b)

    @classmethod
    def exponent(cls, points: tuple[mpf, ...], theta: mpf) -> mpf:
        """The x of the quantities that are ``exponential``; of no matter where there are none."""
        return mpf(0)

    @classmethod
    def integer_power(cls, theta: float) -> IntegerPower | None:
        return None

    @classmethod
    def steepest(cls, theta: float) -> list[float]:
        """Where the derivative turns, beside the ends of an interval."""
        return [0.0]

    # Inputs.

    @classmethod
    def make(cls, theta: Any) -> Curve:
        return cls.curve(theta, **cls.options)

    @classmethod
    def learnable(cls, theta: Any, dtype: torch.dtype = torch.float64) -> Curve:
        return cls.make(nn.Parameter(torch.as_tensor(theta, dtype=dtype)))

    @classmethod
    def parameter_of(cls, curve: Curve) -> Tensor:
        return getattr(curve, cls.curve.parameter_name)

    @classmethod
    def is_odd(cls) -> bool:
        return cls.domain[0] < 0

    @classmethod
    def points(cls, dtype: torch.dtype) -> Tensor:
        """Log-uniform over the domain; 0, 1, and the last floats before 1."""
        top = 0 if cls.domain[1] == 1 else 12
        drawn = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        eps = torch.finfo(dtype).eps
        near_one = [1 - eps / 2, 1 - eps, 1 - 3 * eps, 1 - 1e-6, 1 - 1e-4, 0.99, 0.9, 0.75, 0.6, 0.5]
        fixed = torch.tensor([0.0, 1.0, *near_one, 0.3, 0.1, 0.02, 1e-3, 1e-12], dtype=torch.float64)
        points = torch.cat([fixed, 10 ** ((top + 30) * drawn - 30)]).to(dtype)
        return torch.cat([points, -points]) if cls.is_odd() else points

    @classmethod
    def pairs(cls, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Ties, near ties, far pairs, both tiny, one zero, opposite signs; each in both orders."""
        scales = [1e-30, 1e-12, 1e-4, 0.01, 0.3, 0.7, 0.999, 1.0] + ([] if cls.domain[1] == 1 else [37.0, 1e6, 1e12])
        pairs = [(a, b) for a in [0.0, 3e-30, *scales] for b in [0.0, *scales] if a >= b]
        for k in range(1, 17):
            gap = 10.0**-k
            pairs += [(x, x * (1 - gap)) for x in scales[k % 2 :: 2]]
            pairs += [(1 - gap, 1 - 2 * gap), (1 - gap, 1.0)]
        a, b = torch.tensor(pairs, dtype=dtype).unbind(1)
        if cls.is_odd():
            a, b = torch.cat([a, a, -a[::2]]), torch.cat([b, -b, -b[::2]])
        return torch.cat([a, b[::3]]), torch.cat([b, a[::3]])

    @classmethod
    def interior(cls) -> Tensor:
        """A few points away from every edge, in float64."""
        points = [0.04, 0.35, 0.8] + ([] if cls.domain[1] == 1 else [2.5])
        return torch.tensor([*points, *(-p for p in points if cls.is_odd())], dtype=torch.float64)

    @classmethod
    def edges(cls) -> list[float]:
        return sorted({0.0, *(end for end in cls.domain if abs(end) == 1)})

    # Tests. Those that name `theta`, `dtype` or `smooth` run for every value of it.

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        names = metafunc.fixturenames
        if "theta" in names and "dtype" in names:
            cases = [(theta, dtype) for theta in cls.parameters for dtype in DTYPES if _represents(dtype, theta)]
            metafunc.parametrize("theta, dtype", cases, ids=[f"{theta:g}-{_name(dtype)}" for theta, dtype in cases])
        elif "theta" in names:
            metafunc.parametrize("theta", cls.parameters)
        elif "dtype" in names:
            metafunc.parametrize("dtype", DTYPES, ids=_name)
        if "smooth" in names:
            metafunc.parametrize("smooth", cls.trainable)

    @pytest.fixture
    def fresh_dynamo(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @pytest.mark.parametrize("quantity", QUANTITIES)
    def test_is_accurate_to_a_few_ulp(self, quantity: str, theta: float, dtype: torch.dtype) -> None:
        arguments, expected, allowed = _reference(type(self), quantity, theta, dtype)
        if quantity == "parameter_derivative":
            # One parameter for each point, so that the gradient is not summed over points.
            curve = self.learnable(torch.full_like(arguments[0], theta), dtype)
            (found,) = torch.autograd.grad(curve.value(*arguments).sum(), curve.parameters())
            assert_ulps(found, expected, allowed, arguments)
            return
        for curve in (self.make(theta), self.make(torch.tensor(theta, dtype=dtype))):
            if quantity == "slope":
                leaf = arguments[0].clone().requires_grad_()
                (found,) = torch.autograd.grad(curve.value(leaf).sum(), leaf)
            else:
                found = getattr(curve, quantity)(*arguments)
            assert_ulps(found, expected, allowed, arguments)

    def test_states_its_facts(self, theta: float) -> None:
        curve = self.make(theta)
        assert curve.domain == self.domain
        assert curve.trace_normalize is self.trace_normalize
        assert curve.parameter == theta
        assert not curve.is_learnable
        assert curve.has_infinite_slope == bool(mpmath.isinf(self.derivative(mpf(0), mpf(theta))))

    def test_nan_stays_nan(self, smooth: float) -> None:
        nan = torch.full((20,), torch.nan, requires_grad=True)
        other = torch.full((20,), 0.5)
        for curve in (self.make(smooth), self.learnable(smooth)):
            found = [curve.value(nan), curve.divided_difference(nan, other), curve.divided_difference(other, nan)]
            by_p, *by_theta = torch.autograd.grad(curve.value(nan).sum(), (nan, *curve.parameters()))
            found += by_theta
            if curve.derivative(other)[0] != curve.derivative(other / 2)[0]:  # the slope of a line is known everywhere
                found += [curve.derivative(nan), curve.ratio(nan), by_p]
            assert all(torch.isnan(x).all() for x in found)

    # Gradients.

    @pytest.mark.parametrize("shape", [(), (1,), (2, 1)], ids=str)
    def test_gradients_and_their_gradients(self, shape: tuple[int, ...], smooth: float) -> None:
        p = self.interior().requires_grad_()
        theta = torch.full(shape, smooth, dtype=torch.float64).requires_grad_()
        curve = self.learnable(smooth)
        name = self.curve.parameter_name

        def value(p: Tensor, theta: Tensor) -> Tensor:
            return torch.func.functional_call(curve, {name: theta}, p)

        assert value(p, theta).shape == torch.broadcast_shapes(p.shape, shape)
        torch.autograd.gradcheck(value, (p, theta))
        torch.autograd.gradgradcheck(value, (p, theta))

    def test_second_derivatives_up_to_the_edges(self, smooth: float) -> None:
        """Against numerical differentiation of the typed first derivatives; where the truth is infinite, no NaN."""
        at = [*self.edges(), 1e-12, 1e-6, *self.interior().tolist()]
        p = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        curve = self.learnable(torch.full_like(p, smooth))
        theta = self.parameter_of(curve)
        by_p, by_theta = torch.autograd.grad(curve.value(p).sum(), (p, theta), create_graph=True)
        found = [
            *torch.autograd.grad(by_p.sum(), (p, theta), retain_graph=True),
            *torch.autograd.grad(by_theta.sum(), (p, theta), retain_graph=True),
        ]
        true: list[list[mpf]] = [[], [], [], []]
        with mpmath.workdps(DIGITS):
            t = mpf(smooth)
            for x in map(mpf, at):
                side = -1 if x == 1 else 1 if x in (0, -1) else 0
                mixed = mpmath.diff(lambda s, x=x: self.slope(x, s), t)
                true[0].append(mpmath.diff(lambda y: self.derivative(y, t), x, direction=side))
                true[1].append(mixed)
                true[2].append(mixed)
                true[3].append(mpmath.diff(lambda s, x=x: self.parameter_derivative(x, s), t))
        for second, expected in zip(found, true, strict=True):
            self.assert_equal_where_finite(second, expected, at)

        # derivative() itself can be differentiated too, where it is finite.
        keep = torch.isfinite(curve.derivative(p)).nonzero().flatten().tolist()
        inner = p.detach()[keep].requires_grad_()
        curve = self.learnable(torch.full_like(inner, smooth))
        found = torch.autograd.grad(curve.derivative(inner).sum(), (inner, self.parameter_of(curve)))
        for second, expected in zip(found, true[:2], strict=True):
            self.assert_equal_where_finite(second, [expected[i] for i in keep], [at[i] for i in keep])

    @classmethod
    def assert_equal_where_finite(cls, found: Tensor, true: list[mpf], at: list[float]) -> None:
        assert not torch.isnan(found).any()
        finite = [i for i, y in enumerate(true) if abs(y) < 1e15 and not cls.has_kink(at[i])]
        expected = torch.tensor([float(true[i]) for i in finite], dtype=torch.float64)
        torch.testing.assert_close(found[finite], expected, rtol=1e-10, atol=1e-12)

    @classmethod
    def has_kink(cls, p: float) -> bool:
        """Whether the derivative has a kink at p: then there is no second derivative to compare with."""
        return False

    # A tensor parameter.

    def test_a_parameter_belongs_to_the_module_that_holds_the_curve(self, smooth: float) -> None:
        name = self.curve.parameter_name
        learnt = nn.Sequential(nn.Identity(), self.learnable(smooth))
        assert [key for key, _ in learnt.named_parameters()] == [f"1.{name}"]
        assert learnt.state_dict()[f"1.{name}"].item() == smooth
        assert learnt[1].is_learnable

        kept = nn.Sequential(self.make(torch.tensor(smooth)))
        assert list(kept.parameters()) == []
        assert [key for key, _ in kept.named_buffers()] == [f"0.{name}"]
        assert list(kept.state_dict()) == [f"0.{name}"]

        assert not nn.Sequential(self.make(smooth)).state_dict()

    def test_to_moves_the_parameter(self, smooth: float) -> None:
        single = self.learnable(smooth, torch.float32)
        double = copy.deepcopy(single).to(torch.float64)
        assert self.parameter_of(double).dtype == torch.float64
        rounded = self.parameter_of(single).item()
        p = self.interior()
        torch.testing.assert_close(double.value(p), self.make(rounded).value(p), **tolerance(torch.float64))

    def test_below_its_bound_a_parameter_acts_as_the_bound_and_can_come_back(self) -> None:
        bound = self.curve.minimum
        curve = self.learnable(self.trainable[0])
        theta = self.parameter_of(curve)
        with torch.no_grad():
            theta.fill_(bound - 0.25)
        p = self.interior()[:3]
        torch.testing.assert_close(curve.value(p), self.make(bound).value(p), rtol=1e-12, atol=0)
        with mpmath.workdps(DIGITS):
            rise = float(sum(self.parameter_derivative(mpf(x), mpf(bound)) for x in p.tolist()))
        assert rise != 0
        for sign in (1.0, -1.0):
            (grad,) = torch.autograd.grad(sign * curve.value(p).sum(), theta)
            expected = min(sign * rise, 0.0)  # descent raises theta where the gradient is negative
            torch.testing.assert_close(grad.item(), expected, rtol=1e-9, atol=0)

    def test_at_its_bound_a_parameter_receives_every_gradient(self) -> None:
        curve = self.learnable(self.curve.minimum)
        p = self.interior()[:3]
        for sign in (1.0, -1.0):
            (grad,) = torch.autograd.grad(sign * curve.value(p).sum(), self.parameter_of(curve))
            assert grad != 0

    def test_descent_finds_the_parameter_that_made_the_data(self) -> None:
        start, target, rate = self.fit
        p = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
        data = self.make(target).value(p)
        curve = self.learnable(start)
        optimizer = torch.optim.SGD(curve.parameters(), lr=rate, momentum=0.9)
        for _ in range(200):
            optimizer.zero_grad()
            (curve.value(p) - data).square().mean().backward()
            optimizer.step()
        assert abs(start - target) > 0.1 * target
        torch.testing.assert_close(self.parameter_of(curve).item(), target, rtol=1e-3, atol=0)

    def test_refuses_a_parameter_outside_its_range(self) -> None:
        wrong = (*self.refused, float("nan"), float("inf"), -float("inf"))
        for number in wrong:
            with pytest.raises(ArgumentError, match=rf"{self.curve.__name__} needs {self.requirement}.*\(got {number}"):
                self.make(number)
            for tensor in (torch.tensor(float(number)), nn.Parameter(torch.tensor([self.trainable[0], number]))):
                with pytest.raises(ArgumentError, match=rf"needs {self.requirement}.*\(got {float(number)}"):
                    self.make(tensor)
        for thing, kind in ((True, "bool"), ("2", "str"), (None, "NoneType"), ([2.0], "list"), (2j, "complex")):
            with pytest.raises(ArgumentError, match=rf"as a number or a tensor \(got {kind}\)"):
                self.make(thing)
        for dtype in (torch.int64, torch.bool, torch.complex64):
            with pytest.raises(DTypeError, match=rf"{self.curve.parameter_name} must have a floating-point .*{dtype}"):
                self.make(torch.ones(1, dtype=dtype))

    def test_takes_a_parameter_at_the_bound(self) -> None:
        bound = self.curve.minimum
        assert self.make(torch.tensor(bound)).parameter == torch.tensor(bound)
        assert self.make(bound).parameter == bound

    @pytest.mark.parametrize("method", ["value", "derivative", "ratio"])
    def test_refuses_points_that_are_not_floating(self, method: str) -> None:
        call = getattr(self.make(self.trainable[0]), method)
        with pytest.raises(DTypeError, match=r"p must have a floating-point dtype.*int64"):
            call(torch.tensor([0, 1]))
        with pytest.raises(DTypeError, match=r"p must be a torch.Tensor \(got float\)"):
            call(0.5)

    def test_an_integer_power_is_the_curve(self, theta: float) -> None:
        power = self.make(theta).integer_power()
        assert power == self.integer_power(theta)
        if power is None:
            return
        p = self.interior()
        base = 1 - p if power.complement else p
        by_products = functools.reduce(torch.mul, [base] * power.exponent)
        expected = power.scale * (1 - by_products if power.complement else by_products)
        torch.testing.assert_close(self.make(theta).value(p), expected, **tolerance(torch.float64))
        assert isinstance(power.exponent, int)

    def test_a_tensor_parameter_is_no_integer_power(self, theta: float) -> None:
        assert self.make(torch.tensor(float(theta))).integer_power() is None

    # Properties, of random points and parameters.

    @property_test
    @given(data=st.data())
    def test_vanishes_at_zero_rises_and_stays_in_its_bounds(self, data: st.DataObject) -> None:
        curve, (a, b) = self.draw(data, 2)
        low, high = curve.value(torch.minimum(a, b)), curve.value(torch.maximum(a, b))
        assert curve.value(torch.zeros(1)).item() == 0
        assert low <= high + 1e-12 * high.abs()
        if self.bound is not None:
            assert -self.bound <= low
            assert high <= self.bound

    @property_test
    @given(data=st.data())
    def test_is_odd_where_its_domain_is(self, data: st.DataObject) -> None:
        curve, (p,) = self.draw(data, 1)
        if self.is_odd():
            assert curve.value(-p) == -curve.value(p)
            assert curve.derivative(-p) == curve.derivative(p)
            assert curve.ratio(-p) == curve.ratio(p)
        else:
            assert curve.value(p) >= 0

    @property_test
    @given(data=st.data())
    def test_divided_difference_is_symmetric_and_a_mean_slope(self, data: st.DataObject) -> None:
        curve, (a, b) = self.draw(data, 2)
        difference = curve.divided_difference(a, b)
        assert difference == curve.divided_difference(b, a)
        assert curve.divided_difference(a, a) == pytest.approx(curve.ratio(a) if a == 0 else curve.derivative(a), 1e-12)
        low, high = sorted((a.item(), b.item()))
        turns = [p for p in self.steepest(self.parameter_of(curve)) if low < p < high]
        slopes = curve.derivative(torch.tensor([low, high, *turns], dtype=torch.float64))
        if a != b:
            assert slopes.min() * (1 - 1e-12) <= difference
        assert difference <= slopes.max() * (1 + 1e-12)

    @property_test
    @given(data=st.data())
    def test_ratio_times_the_point_is_the_value(self, data: st.DataObject) -> None:
        curve, (p,) = self.draw(data, 1)
        torch.testing.assert_close(curve.ratio(p) * p, curve.value(p), rtol=1e-12, atol=1e-300)

    @classmethod
    def draw(cls, data: st.DataObject, count: int) -> tuple[Curve, Tensor]:
        """A curve and ``count`` float64 points, each of shape (1,)."""
        curve = cls.make(data.draw(st.floats(*cls.parameter_range), label=cls.curve.parameter_name))
        top = min(cls.domain[1], 1e12)
        sizes = st.one_of(
            st.floats(0, top, allow_subnormal=False),
            st.builds(lambda k: min(10.0**k, top), st.floats(-30, 12)),
            st.sampled_from([0.0, 1.0, 1 - 2.0**-53]),
        )
        signed = (
            st.builds(lambda size, sign: sign * size, sizes, st.sampled_from([-1.0, 1.0])) if cls.is_odd() else sizes
        )
        points = data.draw(st.lists(signed, min_size=count, max_size=count), label="points")
        return curve, torch.tensor(points, dtype=torch.float64).unsqueeze(1)

    # Half precision, transforms, copies.

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_is_computed_in_float32_and_cast_back(self, half: torch.dtype, smooth: float) -> None:
        p = torch.cat([self.points(torch.float32).to(half), self.interior().to(half)])
        p = p[p.abs() <= min(1e4, self.domain[1])]
        for curve in (self.make(smooth), self.learnable(smooth, torch.float32), self.make(torch.tensor(smooth))):
            for method in (curve.value, curve.derivative, curve.ratio):
                assert method(p).dtype == half
                torch.testing.assert_close(method(p), method(p.float()).to(half), rtol=0, atol=0)
            torch.testing.assert_close(
                curve.divided_difference(p, p.flip(0)),
                curve.divided_difference(p.float(), p.float().flip(0)).to(half),
                rtol=0,
                atol=0,
            )
            leaves = p.clone().requires_grad_(), p.float().requires_grad_()
            grads = [torch.autograd.grad(curve.value(leaf).sum(), leaf)[0] for leaf in leaves]
            torch.testing.assert_close(grads[0], grads[1].to(half), rtol=0, atol=0)

    # Dynamo itself makes an instance of a torch.autograd.Function, and torch warns that one should not.
    @pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
    @pytest.mark.usefixtures("fresh_dynamo")
    def test_compiles_without_a_graph_break(self) -> None:
        theta = self.trainable[0]
        for curve in (self.make(theta), self.learnable(theta)):
            compiled = torch.compile(curve, fullgraph=True, backend="aot_eager")
            leaves = [self.interior().requires_grad_() for _ in range(2)]
            results = [f(leaf) for f, leaf in zip((curve, compiled), leaves, strict=True)]
            torch.testing.assert_close(results[1], results[0], **tolerance(torch.float64))
            grads = [
                torch.autograd.grad(result.square().sum(), (leaf, *curve.parameters()))
                for result, leaf in zip(results, leaves, strict=True)
            ]
            torch.testing.assert_close(grads[1], grads[0], **tolerance(torch.float64))

    @pytest.mark.usefixtures("fresh_dynamo")
    def test_exports(self) -> None:
        p = self.interior()
        for curve in (self.make(self.trainable[0]), self.learnable(self.trainable[0])):
            model = nn.Sequential(curve)
            exported = torch.export.export(model, (p.flip(0),)).module()
            torch.testing.assert_close(exported(p), model(p), **tolerance(torch.float64))

    def test_works_under_torch_func(self, smooth: float) -> None:
        p = self.interior()
        batch = torch.stack([p, p / 2])
        curve = self.learnable(smooth)
        weights = dict(curve.named_parameters())
        close = tolerance(torch.float64)
        torch.testing.assert_close(torch.func.vmap(curve)(batch), curve(batch), **close)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(curve.value))(p), curve.derivative(p), **close)

        def loss(weights: dict[str, Tensor], p: Tensor) -> Tensor:
            return torch.func.functional_call(curve, weights, p).sum()

        per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, batch)
        one_by_one = [torch.autograd.grad(curve(row).sum(), curve.parameters())[0] for row in batch]
        torch.testing.assert_close(per_row[self.curve.parameter_name], torch.stack(one_by_one), **close)

    def test_survives_pickling_and_copying(self, smooth: float) -> None:
        p = self.interior()
        for curve in (self.make(smooth), self.learnable(smooth), self.make(torch.tensor(smooth))):
            for twin in (pickle.loads(pickle.dumps(curve)), copy.deepcopy(curve)):
                assert type(twin) is self.curve
                assert repr(twin) == repr(curve)
                torch.testing.assert_close(twin(p), curve(p), rtol=0, atol=0)
                assert twin.trace_normalize == curve.trace_normalize
            if curve.is_learnable:
                assert self.parameter_of(twin) is not self.parameter_of(curve)

    def test_says_what_it_is(self, smooth: float) -> None:
        shown = f"{self.curve.__name__}({self.curve.parameter_name}="
        assert repr(self.make(smooth)).startswith(f"{shown}{smooth}")
        assert repr(self.learnable(smooth)).startswith(f"{shown}{smooth:.6g} (learnable)")
        assert repr(self.make(torch.tensor(smooth))).startswith(f"{shown}{smooth:.6g} (tensor)")
        assert repr(self.make(torch.full((2, 1), smooth))).startswith(f"{shown}shape (2, 1) (tensor)")


def assert_ulps(found: Tensor, expected: list[mpf], allowed: list[float], points: tuple[Tensor, ...]) -> None:
    """Each entry is its reference up to ``allowed`` units in the last place.

    The unit stops shrinking at 64 times the smallest normal number: below, a factor of the result may be subnormal.
    """
    info = torch.finfo(found.dtype)
    worst, where = 0.0, ""
    for i, (got, true, ulps) in enumerate(zip(found.tolist(), expected, allowed, strict=True)):
        if mpmath.isfinite(got) and abs(true) <= info.max:
            error = float(abs(mpf(got) - true) / (info.eps * max(abs(true), 64 * info.tiny))) / ulps
        else:
            overflows = abs(true) > info.max and got == (float("inf") if true > 0 else -float("inf"))
            error = 0.0 if overflows else float("inf")
        if error > worst:
            at = ", ".join(repr(p[i].item()) for p in points)
            worst, where = error, f"at ({at}): got {got!r}, true {mpmath.nstr(true, 18)}, allowed {ulps:.4g} ulp"
    assert worst <= 1, f"{worst:.3g} times the allowed error {where}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _represents(dtype: torch.dtype, number: float) -> bool:
    return torch.tensor(number, dtype=dtype).item() == number


def _reference(
    contract: type[CurveContract], quantity: str, theta: float, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], list[mpf], list[float]]:
    """Points, the exact quantity there, and how many ulp it may be off."""
    is_difference = quantity == "divided_difference"
    arguments = contract.pairs(dtype) if is_difference else (contract.points(dtype),)
    with mpmath.workdps(DIGITS_OF_DIFFERENCES if is_difference else DIGITS):
        exact = [tuple(map(mpf, at)) for at in zip(*(argument.tolist() for argument in arguments), strict=True)]
        expected = [getattr(contract, quantity)(*at, mpf(theta)) for at in exact]
        extra = quantity in contract.exponential
        allowed = [ULPS + (float(contract.exponent(at, mpf(theta))) if extra else 0.0) for at in exact]
    return arguments, expected, allowed
