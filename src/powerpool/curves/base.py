r"""The base class of curves: a scalar function :math:`g(p)` with one parameter, its derivative and its domain.

A curve does not depend on matrices. For the solvers it has the ratio :math:`g(\lambda)/\lambda`, the divided difference
:math:`(g(a)-g(b))/(a-b)` without cancellation, and, if one exists, its form as an integer power.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from powerpool.autodiff import Function, call, save
from powerpool.checks import require_floating
from powerpool.errors import ArgumentError, StateError, shown

Parameter: TypeAlias = float | Tensor
"""The parameter of a curve: a Python number, or a tensor (an ``nn.Parameter`` to learn it)."""


@dataclass(frozen=True)
class IntegerPower:
    r"""A curve as a matrix power, which matrix products evaluate without eigenvalues.

    ``scale * (1 - (1 - p)**exponent)`` if ``complement``, else ``scale * p**exponent``.
    """

    exponent: int
    complement: bool
    scale: float = 1.0


LARGEST = 1e30
"""Upper bound of parameters: float32 holds them and their products with any p in [0, 1]."""

LARGEST_POWER = 2**20
"""Largest exponent that is evaluated as a chain of products."""


EXTRA_STATE = "_extra_state"
"""The name under which PyTorch saves the extra state of a module."""


def whole_number(parameter: Parameter) -> int | None:
    """Return the parameter as the exponent of a chain of products; None for a tensor or a fraction."""
    if isinstance(parameter, Tensor) or parameter != int(parameter) or parameter > LARGEST_POWER:
        return None
    return int(parameter)


class Curve(nn.Module, ABC):
    r"""A power normalization :math:`g` with :math:`g(0) = 0`.

    A curve is a module so that a tensor parameter belongs to whatever module holds the curve: it is in its
    ``parameters()`` or ``buffers()``, moves with ``.to(device)`` and is saved in its ``state_dict()``. The class of the
    curve, a parameter that is a number and options are saved too, as the extra state; that of another curve is refused.

    Subclasses write formulas as functions of the point *and* the parameter, so that one formula serves numbers and
    tensors, and gradients with respect to both are exact.
    """

    domain: ClassVar[tuple[float, float]]
    """The closed interval on which the curve is defined."""
    parameter_name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()
    """Attributes other than the parameter that the constructor sets; they are part of the state."""
    adds_eps: ClassVar[bool] = False
    """Whether the element-wise form adds ``eps`` to every entry, which bounds the slope at 0."""
    keeps_value: ClassVar[bool] = False
    """Whether the derivative is a multiple of 1/g: then backward of an element-wise pool keeps only the value."""
    minimum: ClassVar[float]
    """The smallest effective value of a tensor parameter: training cannot push it lower."""
    maximum: ClassVar[float] = LARGEST
    """The largest effective value of a tensor parameter."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The forms for whole matrices belong to the formulas beside them: other formulas do not inherit them.
        if "_write_value" not in vars(cls) and not {"_value", "_derivative", "_slope"}.isdisjoint(vars(cls)):
            for name in ("_write_value", "_unit", "keeps_value"):
                setattr(cls, name, vars(Curve)[name])

    def __init__(self, parameter: Parameter, trace_normalize: bool) -> None:
        super().__init__()
        self.trace_normalize = trace_normalize
        """Whether matrices are divided by their trace before the curve is applied."""
        name = self.parameter_name
        if isinstance(parameter, Tensor):
            require_floating(parameter, name)
            given = parameter.detach()
            outside = ~((given >= self.minimum) & (given <= self.maximum))
            if bool(outside.any()):
                raise ArgumentError(self._range_message(given[outside][0].item()))
            if isinstance(parameter, nn.Parameter):
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, parameter)
        else:
            # numbers.Real includes NumPy scalars; they are converted because torch.compile guards on Python numbers.
            number_like: Any = parameter
            if isinstance(number_like, bool) or not isinstance(number_like, numbers.Real):
                raise ArgumentError(
                    f"{type(self).__name__} needs a number or a tensor for {name} (got {type(number_like).__name__})."
                )
            number = int(number_like) if isinstance(number_like, numbers.Integral) else float(number_like)
            if not self._is_allowed(number) or not number < LARGEST:
                raise ArgumentError(self._range_message(number))
            setattr(self, name, number)

    @property
    def parameter(self) -> Parameter:
        """The number, or the tensor clamped to :attr:`minimum` and :attr:`maximum`."""
        parameter: Parameter = getattr(self, self.parameter_name)
        return call(_Clamp, parameter, self.minimum, self.maximum) if isinstance(parameter, Tensor) else parameter

    @property
    def is_learnable(self) -> bool:
        """Whether the parameter is a tensor, which may receive a gradient."""
        return isinstance(getattr(self, self.parameter_name), Tensor)

    @property
    def has_infinite_slope(self) -> bool:
        r"""Whether :math:`g'(0) = \infty`: then the null space of a matrix is dropped and receives no gradient."""
        return False

    @property
    def needs_float64(self) -> bool:
        r"""Whether the spectral form of float32 features is computed in float64.

        Yes if at the round-off of a float32 eigenvalue the curve may exceed 1 % of its value at the largest. After
        division by the trace that takes a slope of :math:`10^4`; without it any slope does, if features are large. A
        tensor parameter of a curve that divides by the trace is not looked at.
        """
        parameter: Parameter = getattr(self, self.parameter_name)
        return not self.trace_normalize or (not isinstance(parameter, Tensor) and self._is_steep(parameter))

    def _is_steep(self, number: float) -> bool:
        """Return whether the slope exceeds :math:`10^4` with that parameter."""
        return number > 1e4

    def integer_power(self) -> IntegerPower | None:
        """Return the curve as an integer power of a matrix, or ``None`` if it is not one."""
        return None

    def value(self, p: Tensor) -> Tensor:  # shape: (*any) -> (*any)
        r"""Compute :math:`g(p)`, differentiable twice in ``p`` and in a tensor parameter."""
        return self._evaluate(p, evaluate)

    def derivative(self, p: Tensor) -> Tensor:  # shape: (*any) -> (*any)
        r"""Compute :math:`g'(p)`, which may be infinite at 0."""
        return self._evaluate(p, lambda q, theta, curve: curve._derivative(q, theta))

    def ratio(self, p: Tensor) -> Tensor:  # shape: (*any) -> (*any)
        r"""Compute :math:`g(p)/p` without cancellation; at 0 :math:`g'(0)` if that is finite, else 0."""
        return self._evaluate(p, lambda q, theta, curve: curve._ratio(q, theta))

    def divided_difference(self, a: Tensor, b: Tensor) -> Tensor:  # shape: broadcast of a and b
        r"""Compute :math:`(g(a)-g(b))/(a-b)` without cancellation, and :math:`g'(a)` on ties.

        If :math:`g'(0)` is infinite, the value at ``a = b = 0`` is defined as 0.
        """
        a, b = torch.broadcast_tensors(a, b)
        return self._evaluate(a, lambda q, theta, curve: curve._divided_difference(q, b.to(q.dtype), theta))

    def into_domain(self, p: Tensor, dims: tuple[int, ...], round_off: float) -> Tensor:  # shape: (*any) -> (*any)
        """Move ``p`` into the domain if it is outside by no more than ``round_off``, relative to the largest value over
        ``dims``; points further outside become NaN."""
        low, high = self.domain
        if math.isinf(low) and math.isinf(high):
            return p
        slack = round_off * p.detach().abs().amax(dims, keepdim=True) + torch.finfo(p.dtype).tiny
        outside = (p < low - slack) | (p > high + slack)
        return torch.where(outside, torch.nan, p.clamp(min=low, max=high))

    def get_extra_state(self) -> Tensor:
        """Return the description of the curve as a tensor of bytes, which safetensors files can hold."""
        return torch.tensor(list(self._description().encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse the state of another curve: of another class, or with another number or other options."""
        if state.is_meta:
            return
        # A state may have been cast to a floating type as a whole.
        codes = state.detach().flatten().double().round().to(torch.uint8)
        saved, own = bytes(codes.tolist()).decode(errors="replace"), self._description()
        if saved != own:
            raise StateError(
                f"The state was saved with the curve {shown(saved)}, but this one is {own!r}. Build it like the saved "
                f"one to load the state, or remove '...{EXTRA_STATE}' from the state to keep the present one."
            )

    def _description(self) -> str:
        """Return the class, the parameter and the options; a tensor parameter is saved under its own name."""
        given = getattr(self, self.parameter_name)
        value = "tensor" if isinstance(given, Tensor) else repr(float(given))
        options = "".join(f", {name}={getattr(self, name)}" for name in self.option_names)
        return f"{type(self).__name__}({self.parameter_name}={value}{options})"

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], *others: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *others)
        if prefix + EXTRA_STATE in missing:  # a state of version 0.1
            missing.remove(prefix + EXTRA_STATE)

    def forward(self, p: Tensor) -> Tensor:
        """Compute :meth:`value`, so that a curve can be used in ``nn.Sequential``."""
        return self.value(p)

    def extra_repr(self) -> str:
        """Show the parameter and whether it is learnable."""
        given = getattr(self, self.parameter_name)
        if not isinstance(given, Tensor):
            return f"{self.parameter_name}={given}"
        shown = f"{given.item():.6g}" if given.numel() == 1 else f"shape {tuple(given.shape)}"
        return f"{self.parameter_name}={shown} ({'learnable' if given.requires_grad else 'tensor'})"

    # Formulas of the point and the parameter. `theta` is a number, or a tensor that broadcasts against the point.

    @abstractmethod
    def _value(self, p: Tensor, theta: Parameter) -> Tensor: ...

    @abstractmethod
    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor: ...

    @abstractmethod
    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        """Return the derivative of the value with respect to the parameter."""

    @abstractmethod
    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor: ...

    @abstractmethod
    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor: ...

    def _slope(self, p: Tensor, theta: Parameter) -> Tensor:
        """Return the derivative for backward: finite everywhere in the domain."""
        return self._derivative(p, theta)

    # A form for whole matrices, with a number for a parameter. It takes few passes over memory, and its error is
    # round-off of the largest value of a matrix, where the formulas above are accurate in every entry.

    def _unit(self, theta: float) -> float:
        """Return the factor of the points that :meth:`_write_value` takes: in the product it costs nothing."""
        return 1.0

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        """Write the value into ``out`` and, if ``tracked``, a multiple of the derivative into ``p``, which is otherwise
        left undefined; return the factor that the multiple lacks.

        If :attr:`keeps_value`, both are one tensor, which becomes the value, and the factor is that of 1/g.
        """
        out.copy_(self._value(p, theta))
        if tracked:
            p.copy_(self._slope(p, theta))
        return 1.0

    def _is_allowed(self, number: float) -> bool:
        return number > 0

    def _range_message(self, given: float) -> str:
        return (
            f"{type(self).__name__} needs a finite {self.parameter_name} > 0, or from {self.minimum:g} to "
            f"{self.maximum:g} in a tensor (got {given})."
        )

    def _evaluate(self, p: Tensor, formula: Any) -> Tensor:
        require_floating(p, "p")
        q = p.to(torch.promote_types(p.dtype, torch.float32))
        return formula(q, self.parameter_like(q), self).to(p.dtype)

    def parameter_like(self, p: Tensor) -> Parameter:
        """Return the parameter; a tensor is cast to the dtype of ``p``."""
        theta = self.parameter
        return theta.to(p.dtype) if isinstance(theta, Tensor) else theta


def evaluate(p: Tensor, theta: Parameter, curve: Curve) -> Tensor:
    """Compute g(p) for a parameter, differentiable in both."""
    return call(_Value, p, theta, curve)


class _Value(Function):
    """g(p) with explicit g' and dg/dtheta: autograd through g gives 0 * inf = NaN at the ends of the domain."""

    @staticmethod
    def forward(p: Tensor, theta: Parameter, curve: Curve) -> Tensor:
        return curve._value(p, theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Parameter, Curve], output: Tensor) -> None:
        p, theta, curve = inputs
        ctx.curve = curve
        ctx.number = None if isinstance(theta, Tensor) else theta
        save(ctx, p, theta if isinstance(theta, Tensor) else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # Only inputs are saved, so with create_graph=True autograd differentiates these formulas correctly.
        p, theta = ctx.saved_tensors
        parameter = ctx.number if theta is None else theta
        grad_p = grad * ctx.curve._slope(p, parameter) if ctx.needs_input_grad[0] else None
        grad_theta = None
        if ctx.needs_input_grad[1]:
            grad_theta = (grad * ctx.curve._parameter_derivative(p, parameter)).sum_to_size(theta.shape)
        return grad_p, grad_theta, None

    @staticmethod
    def tangent(ctx: Any, p_tangent: Tensor, theta_tangent: Tensor | None, _: None) -> Tensor:
        p, theta = ctx.saved_tensors
        parameter = ctx.number if theta is None else theta
        result = p_tangent * ctx.curve._slope(p, parameter)
        if theta_tangent is None:
            return result
        return result + theta_tangent * ctx.curve._parameter_derivative(p, parameter)


class _Clamp(Function):
    """Clamp. Beyond a bound only a gradient whose descent leads back passes, so no value gets stuck."""

    @staticmethod
    def forward(theta: Tensor, low: float, high: float) -> Tensor:
        return theta.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        theta, ctx.low, ctx.high = inputs
        save(ctx, theta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (theta,) = ctx.saved_tensors
        passes = ((theta >= ctx.low) | (grad < 0)) & ((theta <= ctx.high) | (grad > 0))
        return grad * passes, None, None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        (theta,) = ctx.saved_tensors
        return tangent * ((theta >= ctx.low) & (theta <= ctx.high))
