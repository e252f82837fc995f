"""Functions of the spectrum of a symmetric matrix: eigendecomposition and the Daleckii-Krein derivative."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerpool.autodiff import Function, call, is_differentiated, save
from powerpool.checks import has_values, nan_unless_finite
from powerpool.curves.base import Curve, Parameter
from powerpool.errors import ArgumentError, DoubleBackwardError, NotPositiveError
from powerpool.linalg.decomposition import eigh_on_one_thread
from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import symmetrize

STEEP = 0.01
"""A curve is steep at the noise floor if it is larger there than this part of its value at the largest eigenvalue."""


def noise_floor(eigenvalues: Tensor) -> Tensor:  # shape: (*, C) -> (*, 1)
    """Return the size up to which a computed eigenvalue of a moment may be the round-off of 0."""
    # The largest found for singular moments of every rank and up to 20,000 locations: 7 ulp of the largest eigenvalue
    # for matrices of up to 128 rows, 22, 14, 28, 36 and 64 ulp for 196, 256, 512, 784 and 1024. More than needed is an
    # error, too: C ulp would drop 2 % of a square root at 512 channels.
    size = eigenvalues.shape[-1]
    ulps = max(8.0, min(size / 8, 2 * math.sqrt(size)))
    return ulps * torch.finfo(eigenvalues.dtype).eps * eigenvalues.abs().amax(-1, keepdim=True)


@dataclass(frozen=True)
class SpectralForm(ABC):
    """A function f of eigenvalues, derived from a curve, with its derivatives."""

    solver: ClassVar[str]
    curve: Curve
    round_off: float
    """How far outside the domain, relative to the largest, an eigenvalue is moved to its end."""

    def points(self, eigenvalues: Tensor, dropped: Tensor) -> Tensor:  # shape: (*, C), (*, C) -> (*, C)
        """Move the eigenvalues into the domain of the curve, or set them to NaN; 0 if they are dropped."""
        return torch.where(dropped, 0.0, self.curve.into_domain(eigenvalues, (-1,), self.round_off))

    def dropped(self, eigenvalues: Tensor, theta: Parameter) -> Tensor:  # shape: (*, C) -> (*, C), bool
        """Return which eigenvalues span a null space that is dropped, in value and gradient.

        Those below the noise floor, if the curve is steep there: the slope at 0 would multiply nothing but round-off.
        For any other curve round-off matters less than the real eigenvalues that a full matrix has there.
        """
        floor = noise_floor(eigenvalues)
        null = eigenvalues.abs() <= floor
        if self.curve.has_infinite_slope:
            return null
        largest = eigenvalues.abs().amax(-1, keepdim=True)
        if self.curve.trace_normalize:
            largest = largest.clamp(max=1.0)
        return null & (self.curve._value(floor, theta) > STEEP * self.curve._value(largest, theta))

    # ``dropped`` marks the points of the null space on which f and its derivatives are 0.

    @abstractmethod
    def value(self, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:  # shape: (*, C) -> (*, C)
        """Compute f of the eigenvalues."""

    @abstractmethod
    def loewner_product(self, rotated: Tensor, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        """Multiply ``rotated``, (*, C, C), by the divided differences of f, entry by entry."""

    @abstractmethod
    def parameter_slope(self, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:  # shape: (*, C) -> (*, C)
        """Compute df/dtheta at the eigenvalues."""


def spectral_function(matrix: Tensor, form: SpectralForm) -> tuple[Tensor, Tensor]:  # shape: (*, C, C), (*, C)
    """Compute U f(lambda) U^T; also return the eigenvalues, for checks. Double backward raises."""
    result, eigenvalues, _ = call(_SpectralFunction, matrix, one_parameter(form.curve, matrix), form)
    return result, eigenvalues


class _SpectralFunction(Function):
    @staticmethod
    def forward(matrix: Tensor, theta: Parameter, form: SpectralForm) -> tuple[Tensor, Tensor, Tensor]:
        eigenvalues, vectors = eigh(matrix)
        dropped = form.dropped(eigenvalues, theta)
        values = form.value(form.points(eigenvalues, dropped), dropped, theta)
        return from_eigen(vectors, values), eigenvalues, vectors

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Parameter, SpectralForm], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        matrix, theta, ctx.form = inputs
        _, eigenvalues, vectors = output
        ctx.mark_non_differentiable(eigenvalues, vectors)
        ctx.number = None if isinstance(theta, Tensor) else theta
        save(ctx, matrix, theta if isinstance(theta, Tensor) else None, eigenvalues, vectors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor | None, None]:
        matrix, theta, _, vectors = ctx.saved_tensors
        form: SpectralForm = ctx.form
        with torch.no_grad(), without_autocast(matrix):
            rotated, changed, slopes = _SpectralFunction._derivative(ctx, grad)
            grad_matrix = vectors @ changed @ vectors.mT
            if slopes is not None:
                grad_theta = (rotated.diagonal(dim1=-2, dim2=-1) * slopes).sum()
        if theta is None:
            return _once_only(grad_matrix, form.solver, matrix, grad), None, None
        inputs = (matrix, grad, theta)
        return _once_only(grad_matrix, form.solver, *inputs), _once_only(grad_theta, form.solver, *inputs), None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, theta_tangent: Tensor | None, _: Any) -> tuple[Tensor, None, None]:
        matrix, theta, _, vectors = ctx.saved_tensors
        inputs = [matrix, tangent]
        with torch.no_grad():
            _, changed, slopes = _SpectralFunction._derivative(ctx, tangent)
            if slopes is not None and theta_tangent is not None:
                changed = changed + torch.diag_embed(slopes * theta_tangent)
                inputs += [theta, theta_tangent]
            result = vectors @ changed @ vectors.mT
        return _once_only(result, ctx.form.solver, *inputs), None, None

    @staticmethod
    def _derivative(ctx: Any, direction: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return a direction in the eigenbasis, the derivative there, and df/dtheta if theta is a tensor."""
        _, theta, eigenvalues, vectors = ctx.saved_tensors
        form: SpectralForm = ctx.form
        parameter = ctx.number if theta is None else theta
        dropped = form.dropped(eigenvalues, parameter)
        points = form.points(eigenvalues, dropped)
        rotated = vectors.mT @ symmetrize(direction) @ vectors
        slopes = None if theta is None else form.parameter_slope(points, dropped, parameter)
        return rotated, form.loewner_product(rotated, points, dropped, parameter), slopes


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:  # shape: (*, C, C) -> (*, C), (*, C, C)
    """Compute eigenvalues and eigenvectors, with a second attempt if LAPACK fails.

    A matrix with NaN or infinity has NaN eigenvalues; LAPACK would raise for the whole batch. In float32, matrices of
    very low rank sometimes give NaN vectors (one in a thousand constant 12 x 12 matrices, with MKL) or raise; in
    float64 and at another scale the same matrices succeed. While tracing there are no values to inspect, and no second
    attempt.
    """
    mark = nan_unless_finite(matrix)  # (*,)
    safe = torch.where(mark[..., None, None] == 0, matrix, 0.0)
    try:
        values, vectors = eigh_on_one_thread(safe)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # public, but missing from the stubs
        values, vectors = _eigh_again(safe)
    if matrix.device.type == "cpu" and has_values(matrix):  # elsewhere it would synchronise once more than eigh does
        failed = torch.isnan(vectors).flatten(-2).any(-1)
        if bool(failed.any()):
            values[failed], vectors[failed] = _eigh_again(safe[failed])
    return values + mark.unsqueeze(-1), vectors


def _eigh_again(matrix: Tensor) -> tuple[Tensor, Tensor]:
    scale = 0.7
    values, vectors = torch.linalg.eigh(scale * matrix.double())
    return (values / scale).to(matrix.dtype), vectors.to(matrix.dtype)


def from_eigen(vectors: Tensor, values: Tensor) -> Tensor:  # shape: (*, C, C), (*, C) -> (*, C, C)
    """Compute U diag(v) U^T."""
    return (vectors * values.unsqueeze(-2)) @ vectors.mT


def require_spectrum_in_domain(eigenvalues: Tensor, curve: Curve, round_off: float) -> None:
    """Refuse a spectrum that leaves the domain of the curve by more than round-off. Reads values."""
    if round_off == math.inf:
        return
    low, high = curve.domain
    slack = round_off * eigenvalues.abs().amax(-1, keepdim=True) + torch.finfo(eigenvalues.dtype).tiny
    if bool((eigenvalues < low - slack).any()):
        raise NotPositiveError(
            f"{type(curve).__name__} needs a matrix with eigenvalues >= {low:g} "
            f"(got {eigenvalues.min().item():.6g} to {eigenvalues.max().item():.6g}). "
            "For an indefinite symmetric matrix use AsinhE or SigmE."
        )
    if bool((eigenvalues > high + slack).any()):
        raise NotPositiveError(
            f"{type(curve).__name__} needs eigenvalues <= {high:g} after division by the trace "
            f"(got {eigenvalues.max().item():.6g}): the matrix is indefinite. Use AsinhE or SigmE."
        )


def one_parameter(curve: Curve, like: Tensor) -> Parameter:
    """Return the parameter of the curve; a tensor must have one element, shared by all eigenvalues."""
    theta = curve.parameter_like(like)
    if isinstance(theta, Tensor):
        if theta.numel() != 1:
            raise ArgumentError(
                f"A spectral curve needs one {curve.parameter_name} for all eigenvalues "
                f"(got a tensor of shape {tuple(theta.shape)}). Use a tensor of one element, or mode='elementwise'."
            )
        return theta.reshape(())
    return theta


class _OnceOnly(Function):
    """The identity on a derivative, whose own derivative raises."""

    @staticmethod
    def forward(gradient: Tensor, solver: str, *inputs: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.solver = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise DoubleBackwardError(
            f"Second derivatives through solver {ctx.solver!r} are not available. Use an integer exponent with "
            "solver='squaring' or 'gram', or mode='elementwise', which has them for every curve."
        )

    tangent = backward


def _once_only(gradient: Tensor, solver: str, *inputs: Tensor) -> Tensor:
    """Return ``gradient``, which raises if it is differentiated again with respect to any of ``inputs``."""
    return call(_OnceOnly, gradient, solver, *inputs) if is_differentiated() else gradient
