"""Figures of the curves: their profiles and derivatives, Gamma for several exponents, HDP and its upper bounds."""

from __future__ import annotations

from powerpool.curves import HDP, AsinhE, Gamma, MaxExp, SigmE, SignedMaxExp
from powerpool.figures.data import Axis, FigureData, Panel, formula, linear, logarithmic
from powerpool.theory import eta_of_t, gamma_of_t

GAMMA, GAMMA_PRIME, ETA, ETA_PRIME = 0.5, 10.0, 10.0, 10.0
"""Parameters with which the curves are shown."""
GAMMAS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
TIMES = (0.01, 0.05, 0.1, 0.3, 1.0)
BOUND_TIMES = (0.02, 0.1)
CLOSE = 0.001
"""Where derivatives begin: that of Gamma is infinite at 0."""
ENTRY = Axis("entry or eigenvalue p")
VALUE = Axis("g(p)")
EIGENVALUE = Axis("eigenvalue lambda")


def curves() -> FigureData:
    """Gamma and AsinhE, which grow without end, above; MaxExp and SigmE, which stay below 1."""
    entries, positive = linear(-1, 1), linear(0, 1)
    growing = (
        formula(f"Gamma, gamma = {GAMMA:g}", positive, Gamma(GAMMA).value),
        formula(f"AsinhE, gamma' = {GAMMA_PRIME:g}", entries, AsinhE(GAMMA_PRIME).value),
    )
    bounded = (
        formula(f"MaxExp, eta = {ETA:g}", positive, MaxExp(ETA).value),
        formula(f"MaxExp(+-), eta = {ETA:g}", entries, SignedMaxExp(ETA).value),
        formula(f"SigmE, eta' = {ETA_PRIME:g}", entries, SigmE(ETA_PRIME).value),
    )
    panels = (
        Panel("Gamma and AsinhE", ENTRY, VALUE, growing),
        Panel("MaxExp and SigmE", ENTRY, VALUE, bounded),
    )
    return FigureData("Power normalizations", panels)


def derivatives() -> FigureData:
    """The derivatives of the same curves: only that of Gamma is infinite at 0."""
    entries = logarithmic(CLOSE, 1)
    # MaxExp's derivative is 0 at p = 1, which a logarithmic axis has no place for: it ends just before.
    inner = entries[:-1]
    lines = (
        formula(f"Gamma, gamma = {GAMMA:g}", entries, Gamma(GAMMA).derivative),
        formula(f"AsinhE, gamma' = {GAMMA_PRIME:g}", entries, AsinhE(GAMMA_PRIME).derivative),
        formula(f"MaxExp, eta = {ETA:g}", inner, MaxExp(ETA).derivative),
        formula(f"SigmE, eta' = {ETA_PRIME:g}", entries, SigmE(ETA_PRIME).derivative),
    )
    x, y = Axis(ENTRY.label, log=True), Axis("g'(p)", log=True, limits=(1e-2, 30))
    return FigureData("Derivatives of power normalizations", (Panel("", x, y, lines),))


def gammas() -> FigureData:
    """Gamma for several exponents, and MaxExp, which small ones resemble."""
    entries = linear(0, 1)
    lines = [formula(f"Gamma, gamma = {gamma:g}", entries, Gamma(gamma).value) for gamma in GAMMAS]
    lines.append(formula(f"MaxExp, eta = {ETA:g}", entries, MaxExp(ETA).value))
    return FigureData("Gamma for several gamma", (Panel("", ENTRY, VALUE, tuple(lines)),))


def hdp() -> FigureData:
    """The profile of the time-reversed heat diffusion process."""
    eigenvalues = linear(0, 1)
    lines = tuple(formula(f"HDP, t = {t:g}", eigenvalues, HDP(t).value) for t in TIMES)
    return FigureData("Heat diffusion, reversed in time", (Panel("", EIGENVALUE, Axis("g(lambda)"), lines),))


def hdp_bounds() -> FigureData:
    """MaxExp and Gamma with parameters tied to t are above HDP."""
    panels = []
    for t in BOUND_TIMES:
        # Close to 0 the bounds part: more points there.
        eigenvalues = linear(0, 1) ** 2
        eta, gamma = eta_of_t(t), gamma_of_t(t)
        lines = (
            formula(f"Gamma, gamma = e t = {gamma:.3g}", eigenvalues, Gamma(gamma).value),
            formula(f"MaxExp, eta(t) = {eta:.3g}", eigenvalues, MaxExp(eta).value),
            formula(f"HDP, t = {t:g}", eigenvalues, HDP(t).value),
        )
        panels.append(Panel(f"t = {t:g}", EIGENVALUE, Axis("g(lambda)"), lines))
    return FigureData("MaxExp and Gamma are upper bounds of HDP", tuple(panels))
