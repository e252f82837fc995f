"""Hand-written derivatives in forward mode: ``torch.func.jvp``, ``jacfwd``, ``hessian`` and dual numbers.

A :class:`Function` states its derivative in a direction as ``tangent``, which becomes the ``jvp`` of
``torch.autograd.Function`` only while forward mode is active: Dynamo does not trace a function that has one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from powerpool.errors import ArgumentError, DoubleBackwardError

try:
    from torch._functorch.utils import unwrap_dead_wrappers
except ImportError:  # private: another version of torch may have moved it, and function.apply works without it
    unwrap_dead_wrappers = None  # type: ignore[assignment]


class Function(torch.autograd.Function):
    """An autograd function with a derivative in both modes; run it by :func:`call`, save tensors by :func:`save`."""

    generate_vmap_rule = True

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Any:
        """Return the derivative of every output in the given direction: what ``jvp`` returns."""
        raise NotImplementedError


def call(function: type[Function], *inputs: Any) -> Any:
    """Apply the function, with a ``jvp`` if forward mode is active."""
    if not in_forward_mode():
        if unwrap_dead_wrappers is None or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return function.apply(*inputs)
        # What function.apply does, too, after it has inspected the signature of forward, which takes 7 us.
        return super(torch.autograd.Function, function).apply(*unwrap_dead_wrappers(inputs))  # type: ignore[misc]
    if torch.compiler.is_compiling():  # Dynamo would drop the jvp without a word
        raise ArgumentError("torch.compile cannot trace forward-mode AD (torch.func.jvp); call it outside.")
    from torch._functorch import eager_transforms  # private, too: only forward mode depends on it

    if eager_transforms.JVP_NESTING > 1:  # torch would return 0 for the outer derivative of a jvp
        raise DoubleBackwardError(
            "Forward mode over forward mode (jacfwd of jacfwd) is not available. Use torch.func.hessian, which is "
            "forward over reverse mode, or jacrev of jacfwd."
        )
    return _with_jvp(function).apply(*inputs)


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for backward, and for the tangent if forward mode is active."""
    ctx.save_for_backward(*tensors)
    if in_forward_mode():
        ctx.save_for_forward(*tensors)


def in_forward_mode() -> bool:
    """Return whether a dual level is open, by ``torch.func`` or by ``torch.autograd.forward_ad``."""
    return forward_ad._current_level >= 0


def is_differentiated() -> bool:
    """Return whether the derivative that is being computed may be differentiated itself.

    Then it must not use results that forward saved, which are constants to autograd.
    """
    return torch.is_grad_enabled() or in_forward_mode()


@cache
def _with_jvp(function: type[Function]) -> type[Function]:
    return type(function.__name__, (function,), {"jvp": staticmethod(function.tangent)})
