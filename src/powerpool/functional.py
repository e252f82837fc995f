r"""Compositions: features -> moment matrix -> curve, entry by entry or on the spectrum.

All operators accept any leading dimensions and compute in float32 or float64: half precision is cast up and back, and
autocast is switched off inside.

Shared arguments:
    curve: a curve such as ``MaxExp(eta=50)``, or its name for the default parameter. ``None``, where it is allowed,
        leaves the curve out.
    solver: how the curve is applied to the spectrum: ``"eigen"``, ``"squaring"``, ``"newton_schulz"``, ``"minimax"``,
        ``"jitter"``, a configured solver such as ``solvers.NewtonSchulz(iterations=5)``, or ``"auto"`` for the choice
        of :func:`powerpool.select_solver`. With features also ``"gram"``, which works in the space of locations.
    beta: the share of the mean over locations that is removed, from 0 (autocorrelation) to 1 (covariance).
    coordinates: ``(2Z, N)``, appended to the features of every set, for instance from
        :func:`powerpool.spatial_coordinates`.
    mask: boolean, broadcastable to ``(*, N)``; False removes a location from its set.
    eps: added to the trace by curves that divide by it, and to every entry by an element-wise Gamma; at least 0.
    check: whether values are checked (finite, inside the domain of the curve, symmetric): ``True``, ``False``, or
        ``None`` for on the CPU only, because reading values synchronises other devices. With checks off, a matrix or
        set that contains NaN or infinity gives NaN.
    trace_power, slope: weights :math:`\gamma` and :math:`\kappa` of two residual terms (Remark of the paper), 0 for
        none, which turn a power-normalized matrix G of M into

        .. math:: G\,(\operatorname{tr} M + \varepsilon)^{\gamma} + \kappa M

        The first, :math:`G^*`, restores the magnitude that division by the trace removes. The second,
        :math:`G^\ddagger`, keeps a linear slope against vanishing gradients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor

from powerpool import curves, solvers
from powerpool.checks import (
    require_features,
    require_finite,
    require_mask,
    require_square,
    require_symmetric,
    round_off,
    values_are_checked,
    zero_or_nan,
)
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, require_choice
from powerpool.linalg.elementwise import apply_to_entries, curve_of_product, inside_domain, takes_curve
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.linalg.products import symmetrize
from powerpool.linalg.trace import make_terms
from powerpool.moments.dense import count, kept, prepare
from powerpool.solvers import SOLVERS, FeatureSolver, GramFactor, MatrixSolver, Solver, select_solver
from powerpool.solvers.gram import factorize
from powerpool.solvers.pool import require_representable, spectral_moment, spectral_pool, split_unit
from powerpool.vectorize import to_vector

Mode = Literal["elementwise", "spectral"]
MODES = ("elementwise", "spectral")
REDUCTIONS = ("mean", "max")


def elementwise(
    matrix: Tensor,  # shape: (*, C, C)
    curve: Curve | str,
    eps: float = 1e-6,
    check: bool | None = None,
    *,
    trace_power: float = 0.0,
    slope: float = 0.0,
) -> Tensor:  # shape: (*, C, C)
    r"""Apply a curve to every entry of a matrix.

    .. math:: \Psi_{kl} = g(P_{kl}), \qquad P = M/(\operatorname{tr} M + \varepsilon)
              \text{ if the curve divides by the trace, else } P = M

    and :math:`(M_{kl}+\varepsilon)^\gamma` for Gamma. The gradient is exact through the trace, which couples every
    entry to every diagonal entry. Differentiable twice.

    Args:
        matrix: ``(*, C, C)``, M above.
        curve, eps, check, trace_power, slope: see :mod:`powerpool.functional`.

    Returns:
        ``(*, C, C)``, in the dtype of the matrix.

    Example:
        >>> import torch, powerpool as pp
        >>> matrix = torch.tensor([[3.0, 1.0], [1.0, 1.0]])
        >>> pp.elementwise(matrix, pp.MaxExp(eta=2), eps=0.0)
        tensor([[0.9375, 0.4375],
                [0.4375, 0.4375]])
    """
    curve = _as_curve(curve)
    require_square(matrix)
    terms = make_terms(eps, trace_power, slope, matrix.dtype)
    checked = values_are_checked(matrix, check)
    with without_autocast(matrix):
        moment = at_least_float32(matrix)
        divided = terms.divide_matrix(moment, curve, checked)
        result = terms.add_residual(apply_to_entries(divided.p, curve, checked, terms, moment), divided).to(
            matrix.dtype
        )
    if checked:
        require_representable(result, curve, terms, matrix, "entries")
    return result


def spectral(
    matrix: Tensor,  # shape: (*, C, C)
    curve: Curve | str,
    solver: str | Solver = "auto",
    eps: float = 1e-6,
    check: bool | None = None,
    *,
    trace_power: float = 0.0,
    slope: float = 0.0,
) -> Tensor:  # shape: (*, C, C)
    r"""Apply a curve to the spectrum of a symmetric matrix.

    .. math:: \hat g(M) = U \operatorname{diag}(g(\lambda)) U^T, \qquad U \operatorname{diag}(\lambda) U^T =
              M/(\operatorname{tr} M + \varepsilon) \text{ if the curve divides by the trace, else } M

    The matrix and its gradient are symmetrised, which removes asymmetry by round-off.

    Args:
        matrix: ``(*, C, C)``, M above, symmetric.
        curve, solver, eps, check, trace_power, slope: see :mod:`powerpool.functional`.

    Returns:
        ``(*, C, C)``, symmetric, in the dtype of the matrix.

    Example:
        >>> import torch, powerpool as pp
        >>> matrix = torch.tensor([[5.0, 4.0], [4.0, 5.0]])
        >>> pp.spectral(matrix, pp.Gamma(gamma=0.5))
        tensor([[2.0000, 1.0000],
                [1.0000, 2.0000]])
    """
    curve = _as_curve(curve)
    require_square(matrix)
    terms = make_terms(eps, trace_power, slope, matrix.dtype)
    chosen = choose_matrix_solver(solver, curve, matrix)
    checked = values_are_checked(matrix, check)
    with without_autocast(matrix):
        given = at_least_float32(matrix)
        moment = symmetrize(given)
        if checked:
            require_symmetric(given, moment, matrix.dtype)
        result = spectral_moment(moment, curve, chosen, terms, checked, is_positive=False).to(matrix.dtype)
    if checked:
        require_representable(result, curve, terms, matrix, "entries")
    return result


def first_order_pool(
    features: Tensor,  # shape: (*, C, N)
    curve: Curve | str | None = None,
    *,
    reduce: Literal["mean", "max"] = "mean",
    mask: Tensor | None = None,  # shape: (*, N), bool
    check: bool | None = None,
) -> Tensor:  # shape: (*, C)
    r"""First-order pooling: the mean over locations, then a curve; or the maximum.

    .. math:: \psi_k = g\Bigl(\frac1N \sum_n \phi_{kn}\Bigr)

    The pooled features are not rescaled: for MaxExp and FAHDP scale the features to [0, 1] first.

    Args:
        features: channels by locations, ``(*, C, N)``.
        reduce: ``"mean"`` or ``"max"``.
        curve, mask, check: see :mod:`powerpool.functional`. With checks off, a channel that contains NaN or infinity
            gives NaN.

    Returns:
        ``(*, C)``, in the dtype of the features.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.first_order_pool(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), pp.AsinhE(gamma=1.0))
        tensor([1.4436, 0.0000])
    """
    curve = None if curve is None else _as_curve(curve)
    require_features(features)
    if reduce not in REDUCTIONS:
        require_choice(reduce, REDUCTIONS, "reduction")
    checked = values_are_checked(features, check)
    if mask is not None:
        require_mask(mask, features, check)
    values = kept(at_least_float32(features), mask)
    if checked:
        require_finite(values, "features")
    if reduce == "mean":
        number = count(values, mask)
        pooled = values.sum(-1) / (number.unsqueeze(-1) if isinstance(number, Tensor) else number)
    else:
        pooled = (values if mask is None else torch.where(mask.unsqueeze(-2), values, -torch.inf)).amax(-1)
    # NaN for a channel with NaN or infinity (the maximum ignores -inf), or without locations.
    bad = 0 if checked else zero_or_nan(pooled) + zero_or_nan(values).sum(-1)
    if curve is not None:
        precision = round_off(features.dtype)
        inside = (
            inside_domain(pooled, curve, values, "features", precision)
            if checked
            else curve.into_domain(pooled, (-1,), precision)
        )
        pooled = curve.value(inside)
    return (pooled if checked else pooled + bad).to(features.dtype)


def second_order_pool(
    features: Tensor,  # shape: (*, C, N)
    curve: Curve | str | None = None,
    mode: Mode = "spectral",
    beta: float = 0.0,
    coordinates: Tensor | None = None,  # shape: (2Z, N)
    mask: Tensor | None = None,  # shape: (*, N), bool
    solver: str | Solver = "auto",
    eps: float = 1e-6,
    check: bool | None = None,
    *,
    trace_power: float = 0.0,
    slope: float = 0.0,
) -> Tensor:  # shape: (*, C', C'), C' = C + 2Z
    r"""Power-normalized second-order pooling: one symmetric matrix per set of features.

    .. math:: M = \frac1N \bar\Phi \bar\Phi^T, \qquad \bar\phi_n = [\phi_n - \beta\mu;\ c_n], \qquad \Psi = g(M)

    with the curve applied entry by entry or to the spectrum, as in :func:`powerpool.elementwise` and
    :func:`powerpool.spectral`.

    Args:
        features: channels by locations, ``(*, C, N)``: :math:`\Phi`, with columns :math:`\phi_n`.
        mode: ``"spectral"`` or ``"elementwise"``.
        curve, beta, coordinates, mask, solver, eps, check, trace_power, slope: see :mod:`powerpool.functional`.

    Returns:
        ``(*, C', C')`` with C' = C + 2Z, symmetric, in the dtype of the features.

    Example:
        >>> import torch, powerpool as pp
        >>> features = torch.rand(8, 512, 49)
        >>> pp.second_order_pool(features, pp.MaxExp(eta=50)).shape
        torch.Size([8, 512, 512])
    """
    return _pool(
        features,
        curve,
        mode=mode,
        beta=beta,
        coordinates=coordinates,
        mask=mask,
        solver=solver,
        eps=eps,
        check=check,
        trace_power=trace_power,
        slope=slope,
        as_vector=False,
    )


def _pool(
    features: Tensor,
    curve: Curve | str | None,
    *,
    mode: Mode,
    beta: float,
    coordinates: Tensor | None,
    mask: Tensor | None,
    solver: str | Solver,
    eps: float,
    check: bool | None,
    trace_power: float,
    slope: float,
    as_vector: bool,
) -> Tensor:
    """Return :func:`second_order_pool`, or its vector: then element-wise curves compute the upper triangle alone."""
    require_features(features)
    if mode not in MODES:
        require_choice(mode, MODES, "mode")
    curve = None if curve is None else _as_curve(curve)
    if solver != "auto":  # a misspelt name is an error even if no solver is needed
        solver = solvers.resolve(solver)
    terms = make_terms(eps, trace_power, slope, torch.float32)
    with without_autocast(features):
        sets = prepare(features, beta, coordinates, mask, check)
        if curve is not None and mode == "spectral":
            chosen = _choose(solver, curve, sets.values, locations=sets.values.shape[-1])
            result = spectral_pool(sets, curve, chosen, terms).to(features.dtype)
        elif curve is not None and takes_curve(curve, sets.values, terms, sets.checked):
            result = curve_of_product(sets.values, sets.energy, sets.number, curve, terms, sets.checked, as_vector)
            result, as_vector = result.to(features.dtype), False
        else:
            divided = terms.divide_product(sets.values, sets.number, curve)
            value = divided.p if curve is None else apply_to_entries(divided.p, curve, sets.checked, terms, divided.p)
            result = terms.add_residual(value, divided).to(features.dtype)
    if as_vector:
        result = to_vector(result)
    if sets.checked:
        require_representable(result, curve, terms, features, "features")
    return result


def gram_factor(
    features: Tensor,  # shape: (*, C, N)
    curve: Curve | str | None = None,
    beta: float = 0.0,
    coordinates: Tensor | None = None,  # shape: (2Z, N)
    mask: Tensor | None = None,  # shape: (*, N), bool
    eps: float = 1e-6,
    check: bool | None = None,
    *,
    trace_power: float = 0.0,
    slope: float = 0.0,
) -> GramFactor:  # features (*, C', N), core (*, N, N)
    r"""Factors :math:`X T X^T` of :func:`second_order_pool` with ``solver="gram"``, without any C x C matrix.

    The factors stay in float32 or float64. :class:`powerpool.nn.FactoredHead` classifies from them. Unlike
    :func:`second_order_pool`, steep curves (AsinhE of large features) are not computed in float64, because rounding the
    factors would lose more: pass float64 features where their digits matter.

    Args:
        features: channels by locations, ``(*, C, N)``.
        curve, beta, coordinates, mask, eps, check, trace_power, slope: see :mod:`powerpool.functional`; the curve is
            applied to the spectrum.

    Returns:
        ``features``, X of shape ``(*, C', N)`` with C' = C + 2Z, and ``core``, T of shape ``(*, N, N)``.

    Example:
        >>> import torch, powerpool as pp
        >>> factor = pp.gram_factor(torch.rand(2, 2048, 49), pp.MaxExp(eta=50))
        >>> factor.features.shape, factor.core.shape
        (torch.Size([2, 2048, 49]), torch.Size([2, 49, 49]))
    """
    require_features(features)
    curve = None if curve is None else _as_curve(curve)
    with without_autocast(features):
        terms = make_terms(eps, trace_power, slope, torch.float32)
        sets, unit = split_unit(prepare(features, beta, coordinates, mask, check), curve, terms)
        factor = factorize(sets, curve, terms)
        return factor if unit is None else replace(factor, core=unit * factor.core)


def require_pool_solver(solver: str | Solver, curve: Curve | None, mode: Mode) -> None:
    """Refuse an unknown solver, and one that cannot apply the curve; for use when a module is built."""
    if solver != "auto":
        chosen = solvers.resolve(solver)
        if curve is not None and mode == "spectral":
            chosen.require(curve)


def require_matrix_solver(solver: Solver, curve: Curve) -> MatrixSolver:
    """Refuse a solver that cannot apply the curve, or that needs features."""
    if isinstance(solver, FeatureSolver):
        raise ArgumentError(
            f"solver {solver.name!r} needs features, not a matrix: call second_order_pool(features, curve, "
            f"solver={solver.name!r}), or use 'eigen' or 'squaring' for a matrix."
        )
    solver.require(curve)
    return cast("MatrixSolver", solver)


def _as_curve(curve: Curve | str) -> Curve:
    return curve if isinstance(curve, Curve) else curves.resolve(curve)


def _choose(solver: str | Solver, curve: Curve, values: Tensor, locations: int | None) -> Solver:
    if solver == "auto":
        return SOLVERS[select_solver(curve, values.shape[-2], locations, values.dtype, values.device).name]()
    chosen = solvers.resolve(solver)
    chosen.require(curve)
    return chosen


def choose_matrix_solver(solver: str | Solver, curve: Curve, matrix: Tensor) -> MatrixSolver:
    """Return the solver for a matrix; ``"auto"`` chooses."""
    if solver == "auto":
        return cast("MatrixSolver", _choose(solver, curve, matrix, locations=None))
    return require_matrix_solver(solvers.resolve(solver), curve)
