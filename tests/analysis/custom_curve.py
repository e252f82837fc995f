"""A curve that is not part of powerpool, as a user may write one: g(p) = k p."""

from __future__ import annotations

import torch
from torch import Tensor

import powerpool as pp


class Straight(pp.Curve):
    parameter_name, minimum, domain = "k", 1e-3, (-float("inf"), float("inf"))
    rounding = "unknown"  # an attribute of FAHDP

    def __init__(self, k: float) -> None:
        super().__init__(k, trace_normalize=True)

    def _value(self, p: Tensor, theta: float | Tensor) -> Tensor:
        return theta * p

    def _derivative(self, p: Tensor, theta: float | Tensor) -> Tensor:
        return theta * torch.ones_like(p)

    def _parameter_derivative(self, p: Tensor, theta: float | Tensor) -> Tensor:
        return p

    def _ratio(self, p: Tensor, theta: float | Tensor) -> Tensor:
        return self._derivative(p, theta)

    def _divided_difference(self, a: Tensor, b: Tensor, theta: float | Tensor) -> Tensor:
        return self._derivative(a + b, theta)
