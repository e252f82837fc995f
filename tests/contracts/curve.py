"""The battery of every curve: a subclass writes the paper's formulas in mpmath and inherits the tests.

The reference gets the same float as the library, so accuracy is relative, in units in the last place (ulp), over 42
decades and at both ends of the domain, whatever the condition of the curve near 1 or near a tie.
"""

from __future__ import annotations

import copy
import functools
import pickle
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import mpmath
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpmath import mpf
from torch import Tensor, nn

from powerpool.curves import Curve, IntegerPower
from powerpool.errors import DTypeError, StateError
from tests.tolerances import ULPS, tolerance

DTYPES = (torch.float32, torch.float64)
QUANTITIES = ("value", "derivative", "slope", "ratio", "divided_difference", "parameter_derivative")
# 1 - 1e-30 needs 30 digits, and a divided difference may be 1e-308 with values of 1.
DIGITS, DIGITS_OF_DIFFERENCES = 60, 400

# Inherited tests run in several classes, which hypothesis would report; without randomness a failure repeats.
property_test = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)


class CurveContract(ABC):
    """The properties of every curve. A subclass names the curve, states its facts and writes its formulas."""

    curve: ClassVar[type[Curve]]
    options: ClassVar[dict[str, Any]] = {}
    parameters: ClassVar[tuple[float, ...]]
    """Values to test. A value that float32 rounds is tested in float64 only: in float32 it is another curve."""
    trainable: ClassVar[tuple[float, ...]]
    """Values around which the curve is smooth in its parameter."""
    parameter_range: ClassVar[tuple[float, float]]
    """The range of parameters in property tests."""
    domain: ClassVar[tuple[float, float]]
    bound: ClassVar[float | None] = None
    trace_normalize: ClassVar[bool]
    exponential: ClassVar[tuple[str, ...]] = ()
    """Quantities that are e^-x of a rounded x, and so may have an error of another x ulp."""

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
        """The derivative in backward: finite."""
        return cls.derivative(p, theta)

    @classmethod
    def ratio(cls, p: mpf, theta: mpf) -> mpf:
        return cls.slope(p, theta) if p == 0 else cls.value(p, theta) / p

    @classmethod
    def divided_difference(cls, a: mpf, b: mpf, theta: mpf) -> mpf:
        return cls.slope(a, theta) if a == b else (cls.value(a, theta) - cls.value(b, theta)) / (a - b)

    @classmethod
    def exponent(cls, points: tuple[mpf, ...], theta: mpf) -> mpf:
        """The x of the quantities that are ``exponential``."""
        return mpf(0)

    @classmethod
    def integer_power(cls, theta: float) -> IntegerPower | None:
        return None

    @classmethod
    def steepest(cls, theta: float) -> list[float]:
        """The extrema of the derivative, beside the ends of an interval."""
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
        power = curve.integer_power()
        assert power == self.integer_power(theta)
        assert self.make(torch.tensor(float(theta))).integer_power() is None
        if power is not None:
            p = self.interior()
            base = 1 - p if power.complement else p
            by_products = functools.reduce(torch.mul, [base] * power.exponent)
            expected = power.scale * (1 - by_products if power.complement else by_products)
            torch.testing.assert_close(curve.value(p), expected, **tolerance(torch.float64))

    def test_nan_stays_nan(self, smooth: float) -> None:
        nan = torch.full((20,), torch.nan, requires_grad=True)
        other = torch.full((20,), 0.5)
        for curve in (self.make(smooth), self.learnable(smooth)):
            found = [curve.value(nan), curve.divided_difference(nan, other), curve.divided_difference(other, nan)]
            by_p, *by_theta = torch.autograd.grad(curve.value(nan).sum(), (nan, *curve.parameters()))
            found += by_theta
            if curve.derivative(other)[0] != curve.derivative(other / 2)[0]:  # the slope of a line is constant
                found += [curve.derivative(nan), curve.ratio(nan), by_p]
            assert all(torch.isnan(x).all() for x in found)

    # Gradients.

    def test_gradients_and_their_gradients(self, smooth: float) -> None:
        p = self.interior().requires_grad_()
        curve = self.learnable(smooth)
        name = self.curve.parameter_name

        def value(p: Tensor, theta: Tensor) -> Tensor:
            return torch.func.functional_call(curve, {name: theta}, p)

        for shape in ((), (2, 1)):
            theta = torch.full(shape, smooth, dtype=torch.float64).requires_grad_()
            assert value(p, theta).shape == torch.broadcast_shapes(p.shape, shape)
            torch.autograd.gradcheck(value, (p, theta), check_forward_ad=True)
            torch.autograd.gradgradcheck(value, (p, theta), check_fwd_over_rev=True, check_rev_over_rev=True)

    def test_second_derivatives_up_to_the_edges(self, smooth: float) -> None:
        """Against numerical differentiation of the first derivatives above; no NaN if the true value is infinite."""
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

        # derivative() is differentiable as well, if it is finite.
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
        """Whether the derivative has a kink at p, and so no second derivative."""
        return False

    # A tensor parameter.

    def test_a_tensor_parameter_is_registered(self) -> None:
        smooth, name = self.trainable[0], self.curve.parameter_name
        learnt = nn.Sequential(nn.Identity(), self.learnable(smooth))
        assert [key for key, _ in learnt.named_parameters()] == [f"1.{name}"]
        assert learnt.state_dict()[f"1.{name}"].item() == smooth
        assert learnt[1].is_learnable
        kept = nn.Sequential(self.make(torch.tensor(smooth)))
        assert list(kept.parameters()) == []
        assert list(kept.state_dict()) == [f"0.{name}", "0._extra_state"]

        single = self.learnable(smooth, torch.float32)
        double = copy.deepcopy(single).to(torch.float64)
        assert self.parameter_of(double).dtype == torch.float64
        p, rounded = self.interior(), self.parameter_of(single).item()
        torch.testing.assert_close(double.value(p), self.make(rounded).value(p), **tolerance(torch.float64))

    def test_a_number_is_part_of_the_state(self) -> None:
        one, other = self.trainable[0], self.trainable[0] + 0.5
        state = nn.Sequential(self.make(one)).state_dict()
        assert list(state) == ["0._extra_state"]
        assert state["0._extra_state"].dtype == torch.uint8  # a tensor, as safetensors files need
        same = nn.Sequential(self.make(one))
        same.load_state_dict(state)
        same.load_state_dict({name: value.half() for name, value in state.items()})
        same.load_state_dict({})  # as of version 0.1
        wrong = nn.Sequential(self.make(other))
        for strict in (True, False):
            with pytest.raises(StateError, match=rf"={float(one)}[,)].*={float(other)}[,)].*_extra_state"):
                wrong.load_state_dict(state, strict=strict)

    def test_a_learnt_parameter_loads_into_the_same_curve_only(self) -> None:
        one, other = self.trainable[0], self.trainable[0] + 0.5
        state = self.learnable(one).state_dict()
        loaded = self.learnable(other)
        loaded.load_state_dict(state)
        assert self.parameter_of(loaded).item() == one
        name = self.curve.parameter_name
        loaded.load_state_dict({name: state[name]})  # as of version 0.1
        with pytest.raises(StateError, match="tensor"):
            self.make(one).load_state_dict(state, strict=False)

    def test_below_its_bound_a_parameter_is_clamped_and_can_return(self) -> None:
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
            expected = min(sign * rise, 0.0)  # descent raises theta if the gradient is negative
            torch.testing.assert_close(grad.item(), expected, rtol=1e-9, atol=0)

    def test_at_its_bound_a_parameter_receives_every_gradient(self) -> None:
        bound = self.curve.minimum
        assert self.make(bound).parameter == bound
        curve = self.learnable(bound)
        for sign in (1.0, -1.0):
            (grad,) = torch.autograd.grad(sign * curve.value(self.interior()[:3]).sum(), self.parameter_of(curve))
            assert grad != 0

    def test_refuses_points_that_are_not_floating(self) -> None:
        curve = self.make(self.trainable[0])
        for call in (curve.value, curve.derivative, curve.ratio):
            with pytest.raises(DTypeError, match="int64"):
                call(torch.tensor([0, 1]))
            with pytest.raises(DTypeError, match="float"):
                call(0.5)

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
    def test_half_precision_is_computed_in_float32_and_cast_back(self, half: torch.dtype) -> None:
        smooth = self.trainable[0]
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

    def test_works_under_torch_func(self) -> None:
        smooth, p = self.trainable[0], self.interior()
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

    def test_copies_are_equal(self) -> None:
        smooth, p = self.trainable[0], self.interior()
        for curve in (self.make(smooth), self.learnable(smooth), self.make(torch.tensor(smooth))):
            for twin in (pickle.loads(pickle.dumps(curve)), copy.deepcopy(curve)):
                assert type(twin) is self.curve
                assert repr(twin) == repr(curve)
                torch.testing.assert_close(twin(p), curve(p), rtol=0, atol=0)
                assert twin.trace_normalize == curve.trace_normalize
            if curve.is_learnable:
                assert self.parameter_of(twin) is not self.parameter_of(curve)

    def test_repr(self) -> None:
        smooth = self.trainable[0]
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
    """Points, the exact quantity there, and the allowed error in ulp."""
    is_difference = quantity == "divided_difference"
    arguments = contract.pairs(dtype) if is_difference else (contract.points(dtype),)
    with mpmath.workdps(DIGITS_OF_DIFFERENCES if is_difference else DIGITS):
        exact = [tuple(map(mpf, at)) for at in zip(*(argument.tolist() for argument in arguments), strict=True)]
        expected = [getattr(contract, quantity)(*at, mpf(theta)) for at in exact]
        extra = quantity in contract.exponential
        allowed = [ULPS + (float(contract.exponent(at, mpf(theta))) if extra else 0.0) for at in exact]
    return arguments, expected, allowed
