r"""Compositions: features -> moment matrix -> curve, entry by entry or on the spectrum.

All operators take any leading dimensions, compute in float32 or float64 (half precision is cast up and back, autocast
is switched off inside), and check values as ``check`` says: ``True``, ``False``, or ``None``: on the CPU yes, elsewhere
no. With checks off a matrix or set that contains NaN or infinity gives NaN, never a number.

Two residual terms, both 0 by default, can be added to every power-normalized matrix G of M (Remark of the paper):

.. math:: G^{*} = G\,(\operatorname{tr} M + \varepsilon)^{\gamma}\ (\gamma = \texttt{trace\_power}), \qquad
          G^{\ddagger} = G + \kappa M\ (\kappa = \texttt{slope})

:math:`G^*` gives the magnitude back that division by the trace removed; :math:`G^\ddagger` keeps a linear slope against
vanishing gradients. Together they give :math:`G (\operatorname{tr} M + \varepsilon)^{\gamma} + \kappa M`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from powerpool import curves, solvers
from powerpool.checks import (
    require_features,
    require_finite,
    require_mask,
    require_square,
    round_off,
    values_are_checked,
    zero_or_nan,
)
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, require_choice
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.linalg.products import symmetrize
from powerpool.linalg.trace import trace_of
from powerpool.moments.dense import count, kept
from powerpool.moments.sets import Sets, prepare
from powerpool.normalize import Terms, inside_domain, make_terms, require_symmetric, require_trace
from powerpool.solvers import Gram, GramFactor, Solver, select_solver
from powerpool.solvers.geometric import geometric_pool
from powerpool.solvers.gram import whole_power

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
    r"""A curve of every entry of a matrix.

    .. math:: \Psi_{kl} = g(P_{kl}), \qquad P = M/(\operatorname{tr} M + \varepsilon)
              \text{ where the curve asks for it, else } P = M

    and :math:`(M_{kl}+\varepsilon)^\gamma` for Gamma. The gradient is exact through the trace, which couples every
    entry to every diagonal entry. Double backward is right.

    Args:
        matrix: ``(*, C, C)``, M above.
        curve: a curve, or its name.
        eps: what is added to the trace by curves that divide by it, and to every entry by Gamma; at least 0.
        check: whether values are checked (finite, inside the domain of the curve): ``True``, ``False``, or ``None``: on
            the CPU yes, elsewhere no. Where it is off, a matrix with NaN or infinity gives NaN.
        trace_power: :math:`\gamma` of :math:`G^* = G\,(\operatorname{tr} M + \varepsilon)^\gamma`, which gives back the
            magnitude that division by the trace removed; 0 leaves it out.
        slope: :math:`\kappa` of :math:`G^\ddagger = G + \kappa M`, against vanishing gradients; 0 leaves it out. With
            both the result is :math:`G\,(\operatorname{tr} M + \varepsilon)^\gamma + \kappa M`.

    Returns:
        ``(*, C, C)``, in the dtype of the matrix.

    Example:
        >>> import torch, powerpool as pp
        >>> matrix = torch.tensor([[3.0, 1.0], [1.0, 1.0]])
        >>> pp.elementwise(matrix, pp.MaxExp(eta=2), eps=0.0)
        tensor([[0.9375, 0.4375],
                [0.4375, 0.4375]])
    """
    curve = curves.resolve(curve)
    require_square(matrix)
    terms = make_terms(eps, trace_power, slope, matrix.dtype)
    checked = values_are_checked(matrix, check)
    with without_autocast(matrix):
        moment = at_least_float32(matrix)
        trace = _usable_trace(moment, curve, terms, checked)
        divided = terms.divided(moment, trace, curve, checked)
        return terms.added(_elementwise(divided.p, curve, checked, terms, moment), divided).to(matrix.dtype)


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
    r"""A curve of the spectrum of a symmetric matrix.

    .. math:: \hat g(M) = U \operatorname{diag}(g(\lambda)) U^T, \qquad U \operatorname{diag}(\lambda) U^T =
              M/(\operatorname{tr} M + \varepsilon) \text{ where the curve asks for it, else } M

    Asymmetry up to round-off is averaged away, and so is the gradient's.

    Args:
        matrix: ``(*, C, C)``, M above, symmetric.
        curve: a curve, or its name.
        solver: ``"eigen"``, ``"squaring"``, ``"newton_schulz"``, ``"jitter"``, a configured solver such as
            ``solvers.NewtonSchulz(iterations=5)``, or ``"auto"``: what :func:`powerpool.select_solver` answers.
        eps: what is added to the trace by curves that divide by it; at least 0.
        check: whether values are checked (finite, symmetric, inside the domain of the curve): ``True``, ``False``, or
            ``None``: on the CPU yes, elsewhere no. Where it is off, a matrix with NaN or infinity gives NaN.
        trace_power: :math:`\gamma` of :math:`G^* = G\,(\operatorname{tr} M + \varepsilon)^\gamma`, which gives back the
            magnitude that division by the trace removed; 0 leaves it out.
        slope: :math:`\kappa` of :math:`G^\ddagger = G + \kappa M`, against vanishing gradients; 0 leaves it out. With
            both the result is :math:`G\,(\operatorname{tr} M + \varepsilon)^\gamma + \kappa M`.

    Returns:
        ``(*, C, C)``, symmetric, in the dtype of the matrix.

    Example:
        >>> import torch, powerpool as pp
        >>> matrix = torch.tensor([[5.0, 4.0], [4.0, 5.0]])
        >>> pp.spectral(matrix, pp.Gamma(gamma=0.5))
        tensor([[2.0000, 1.0000],
                [1.0000, 2.0000]])
    """
    curve = curves.resolve(curve)
    require_square(matrix)
    terms = make_terms(eps, trace_power, slope, matrix.dtype)
    chosen = _choose(solver, curve, matrix)
    checked = values_are_checked(matrix, check)
    with without_autocast(matrix):
        given = at_least_float32(matrix)
        moment = symmetrize(given)
        if checked:
            require_symmetric(given, moment, matrix.dtype)
        divided = terms.divided(moment, _usable_trace(moment, curve, terms, checked), curve, checked)
        return terms.added(chosen.apply(divided.p, curve, checked, terms.round_off), divided).to(matrix.dtype)


def first_order_pool(
    features: Tensor,  # shape: (*, C, N)
    curve: Curve | str | None = None,
    *,
    reduce: Literal["mean", "max"] = "mean",
    mask: Tensor | None = None,  # shape: (*, N), bool
    check: bool | None = None,
) -> Tensor:  # shape: (*, C)
    r"""First-order pooling: the mean over locations, then a curve; or the maximum, the classical reference.

    .. math:: \psi_k = g\Bigl(\frac1N \sum_n \phi_{kn}\Bigr)

    The curve sees the pooled features as they are: for MaxExp and FAHDP bring them to [0, 1] first.

    Args:
        features: channels by locations, ``(*, C, N)``.
        curve: a curve, its name, or None for plain pooling.
        reduce: ``"mean"`` or ``"max"``.
        mask: boolean, broadcastable to ``(*, N)``; False takes a location out of its set.
        check: whether values are checked (finite, inside the domain of the curve): ``True``, ``False``, or ``None``: on
            the CPU yes, elsewhere no. Where it is off, a channel with NaN or infinity gives NaN.

    Returns:
        ``(*, C)``, in the dtype of the features.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.first_order_pool(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), pp.AsinhE(gamma=1.0))
        tensor([1.4436, 0.0000])
    """
    curve = None if curve is None else curves.resolve(curve)
    require_features(features)
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
    # NaN where a channel has NaN or infinity (max passes over -inf, so the mean alone would show it) or no location.
    bad = zero_or_nan(pooled) + zero_or_nan(values).sum(-1)
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
        curve: a curve, its name, or None for plain second-order pooling.
        mode: ``"spectral"`` or ``"elementwise"``.
        beta: how much of the mean over locations is removed, 0 (autocorrelation) to 1 (covariance).
        coordinates: what is set below the features of every set, ``(2Z, N)``: :math:`c_n`, for instance of
            :func:`powerpool.spatial_coordinates`; None for nothing.
        mask: boolean, broadcastable to ``(*, N)``; False takes a location out of its set.
        solver: for the spectrum: those of :func:`powerpool.spectral`, and ``"gram"``, which works in the space of
            locations.
        eps: what is added to the trace by curves that divide by it, and to every entry by an element-wise Gamma; at
            least 0.
        check: whether values are checked (finite, inside the domain of the curve): ``True``, ``False``, or ``None``: on
            the CPU yes, elsewhere no. Where it is off, a set with NaN or infinity gives NaN.
        trace_power: :math:`\gamma` of :math:`G^* = G\,(\operatorname{tr} M + \varepsilon)^\gamma`, which gives back the
            magnitude that division by the trace removed; 0 leaves it out.
        slope: :math:`\kappa` of :math:`G^\ddagger = G + \kappa M`, against vanishing gradients; 0 leaves it out. With
            both the result is :math:`G\,(\operatorname{tr} M + \varepsilon)^\gamma + \kappa M`.

    Returns:
        ``(*, C', C')`` with C' = C + 2Z, symmetric, in the dtype of the features.

    Example:
        >>> import torch, powerpool as pp
        >>> features = torch.rand(8, 512, 49)
        >>> pp.second_order_pool(features, pp.MaxExp(eta=50)).shape
        torch.Size([8, 512, 512])
    """
    require_features(features)
    require_choice(mode, MODES, "mode")
    curve = None if curve is None else curves.resolve(curve)
    if solver != "auto":  # a misspelt name is an error even where no solver is needed
        solver = solvers.resolve(solver)
    terms = make_terms(eps, trace_power, slope, torch.float32)
    with without_autocast(features):
        sets = prepare(features, beta, coordinates, mask, check)
        chosen = None
        if curve is not None and mode == "spectral":
            chosen = _choose(solver, curve, sets.values, locations=sets.values.shape[-1])
        if isinstance(chosen, Gram):
            result = _gram(sets, curve, terms)
        else:
            divided = terms.divided_sets(sets, curve)
            if curve is None:
                value = divided.p
            elif chosen is None:
                value = _elementwise(divided.p, curve, sets.checked, terms, divided.p)
            else:
                # Positive and symmetric by construction: an exact solver has nothing left to check. Others may diverge.
                value = chosen.apply(divided.p, curve, sets.checked and not chosen.exact, terms.round_off)
            result = terms.added(value, divided)
        return result.to(features.dtype)


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
    r"""The matrix of :func:`second_order_pool` with ``solver="gram"``, as factors :math:`X T X^T`: never C x C.

    The factors stay in float32 or float64. :class:`powerpool.nn.FactoredHead` classifies from them.

    Args:
        features: channels by locations, ``(*, C, N)``.
        curve: a curve, which is applied to the spectrum, its name, or None for plain second-order pooling.
        beta: how much of the mean over locations is removed, 0 (autocorrelation) to 1 (covariance).
        coordinates: what is set below the features of every set, ``(2Z, N)``: :math:`c_n`, for instance of
            :func:`powerpool.spatial_coordinates`; None for nothing.
        mask: boolean, broadcastable to ``(*, N)``; False takes a location out of its set.
        eps: what is added to the trace by curves that divide by it; at least 0.
        check: whether values are checked (finite, inside the domain of the curve): ``True``, ``False``, or ``None``: on
            the CPU yes, elsewhere no. Where it is off, a set with NaN or infinity gives NaN.
        trace_power: :math:`\gamma` of :math:`G^* = G\,(\operatorname{tr} M + \varepsilon)^\gamma`, which gives back the
            magnitude that division by the trace removed; 0 leaves it out.
        slope: :math:`\kappa` of :math:`G^\ddagger = G + \kappa M`, against vanishing gradients; 0 leaves it out. With
            both the result is :math:`G\,(\operatorname{tr} M + \varepsilon)^\gamma + \kappa M`.

    Returns:
        ``features``, X of shape ``(*, C', N)`` with C' = C + 2Z, and ``core``, T of shape ``(*, N, N)``.

    Example:
        >>> import torch, powerpool as pp
        >>> factor = pp.gram_factor(torch.rand(2, 2048, 49), pp.MaxExp(eta=50))
        >>> factor.features.shape, factor.core.shape
        (torch.Size([2, 2048, 49]), torch.Size([2, 49, 49]))
    """
    require_features(features)
    curve = None if curve is None else curves.resolve(curve)
    with without_autocast(features):
        sets = prepare(features, beta, coordinates, mask, check)
        return _factor(sets, curve, make_terms(eps, trace_power, slope, torch.float32))


def require_pool_solver(solver: str | Solver, curve: Curve | None, mode: Mode) -> None:
    """Refuse an unknown solver, and one that cannot take the curve: when a module is built, not in its first batch."""
    if solver != "auto":
        chosen = solvers.resolve(solver)
        if curve is not None and mode == "spectral":
            chosen.require(curve)


def require_matrix_solver(solver: Solver, curve: Curve) -> None:
    """Refuse a solver that cannot take the curve, or needs features where there is only a matrix."""
    if isinstance(solver, Gram):
        raise ArgumentError(Gram.NEEDS_FEATURES)
    solver.require(curve)


def _elementwise(p: Tensor, curve: Curve, checked: bool, terms: Terms, given: Tensor) -> Tensor:
    if checked:
        p = inside_domain(p, curve, given, "matrix", terms.round_off)
    else:
        p = curve.into_domain(p, (-2, -1), terms.round_off)
    return curve.value(p + terms.eps if curve.adds_eps else p)


def _usable_trace(moment: Tensor, curve: Curve, terms: Terms, checked: bool) -> Tensor:
    trace = trace_of(moment)
    if checked and curve.trace_normalize:
        require_trace(moment, trace, f"{type(curve).__name__} divides the matrix by its trace")
    if checked and terms.trace_power:
        require_trace(moment, trace, "trace_power multiplies by a power of the trace")
    return trace


def _gram(sets: Sets, curve: Curve | None, terms: Terms) -> Tensor:
    exponent = None if curve is None or terms.residual else whole_power(curve)
    if exponent is None:
        return _factor(sets, curve, terms).dense()
    return geometric_pool(sets.values, terms.shift(sets), exponent)


def _factor(sets: Sets, curve: Curve | None, terms: Terms) -> GramFactor:
    scaled = terms.divided_features(sets, curve)
    locations = scaled.p.shape[-1]
    identity = torch.eye(locations, dtype=scaled.p.dtype, device=scaled.p.device)
    if curve is None:
        core = identity.expand(*scaled.p.shape[:-2], locations, locations)
    else:
        core = Gram().factor(scaled.p, curve).core
    # The residual terms act on the small core, where p = X X^T is X I X^T.
    return GramFactor(scaled.p, terms.added(core, scaled._replace(p=identity)))


def _choose(solver: str | Solver, curve: Curve, values: Tensor, locations: int | None = None) -> Solver:
    if solver == "auto":
        solver = select_solver(curve, values.shape[-2], locations, values.dtype, values.device).name
    chosen = solvers.resolve(solver)
    if locations is None:
        require_matrix_solver(chosen, curve)
    else:
        chosen.require(curve)
    return chosen
