"""Figures that are computed from formulas: curves, the bounds of HDP, FAHDP, and effects on a spectrum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerpool.curves import FAHDP, HDP, AsinhE, Gamma, MaxExp, SigmE, SignedMaxExp
from powerpool.figures.data import (
    Axis,
    FigureData,
    Line,
    Mark,
    Panel,
    Sources,
    Spectra,
    formula,
    linear,
    logarithmic,
)
from powerpool.theory import (
    auxiliary_line,
    eta_bar_of_t,
    eta_of_t,
    eta_tilde_of_t,
    fahdp_line,
    gamma_of_t,
    kappa,
    leading_variance,
    push_forward,
    t_of_eta,
    t_of_eta_bar,
    touching_points,
    y_of_eta,
)

LIMIT = 1 / (math.e - 1)
FIRST = math.e / (2 * (math.e - 1))
ENTRY, VALUE = Axis("entry or eigenvalue p"), Axis("g(p)")
EIGENVALUE, OF_EIGENVALUE = Axis("eigenvalue lambda"), Axis("g(lambda)")
Y, OF_Y = Axis("y = t/lambda"), Axis("g(t/y)")

# ---- curves ----------------------------------------------------------------------------------------------------------

GAMMA, GAMMA_PRIME, ETA, ETA_PRIME = 0.5, 10.0, 10.0, 10.0
"""Parameters with which the curves are shown."""
GAMMAS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
TIMES = (0.01, 0.05, 0.1, 0.3, 1.0)
BOUND_TIMES = (0.02, 0.1)
CLOSE = 0.001
"""Where derivatives start: that of Gamma is infinite at 0."""


def curves() -> FigureData:
    """Gamma and AsinhE, which are unbounded; MaxExp and SigmE, which stay below 1."""
    entries, positive = linear(-1, 1), linear(0, 1)
    unbounded = (
        formula(f"Gamma, gamma = {GAMMA:g}", positive, Gamma(GAMMA).value),
        formula(f"AsinhE, gamma' = {GAMMA_PRIME:g}", entries, AsinhE(GAMMA_PRIME).value),
    )
    bounded = (
        formula(f"MaxExp, eta = {ETA:g}", positive, MaxExp(ETA).value),
        formula(f"MaxExp(+-), eta = {ETA:g}", entries, SignedMaxExp(ETA).value),
        formula(f"SigmE, eta' = {ETA_PRIME:g}", entries, SigmE(ETA_PRIME).value),
    )
    panels = (
        Panel("Gamma and AsinhE", ENTRY, VALUE, unbounded),
        Panel("MaxExp and SigmE", ENTRY, VALUE, bounded),
    )
    return FigureData("Power normalizations", panels)


def derivatives() -> FigureData:
    """The derivatives of the same curves."""
    entries = logarithmic(CLOSE, 1)
    # Without p = 1, where the derivative of MaxExp is 0, which a logarithmic axis cannot show.
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
    lines = tuple(formula(f"HDP, t = {t:g}", linear(0, 1), HDP(t).value) for t in TIMES)
    return FigureData("Heat diffusion, reversed in time", (Panel("", EIGENVALUE, OF_EIGENVALUE, lines),))


def hdp_bounds() -> FigureData:
    """MaxExp and Gamma with parameters tied to t, which are above HDP."""
    panels = []
    for t in BOUND_TIMES:
        eigenvalues = linear(0, 1) ** 2  # more points close to 0, where the bounds differ
        eta, gamma = eta_of_t(t), gamma_of_t(t)
        lines = (
            formula(f"Gamma, gamma = e t = {gamma:.3g}", eigenvalues, Gamma(gamma).value),
            formula(f"MaxExp, eta(t) = {eta:.3g}", eigenvalues, MaxExp(eta).value),
            formula(f"HDP, t = {t:g}", eigenvalues, HDP(t).value),
        )
        panels.append(Panel(f"t = {t:g}", EIGENVALUE, OF_EIGENVALUE, lines))
    return FigureData("MaxExp and Gamma are upper bounds of HDP", tuple(panels))


# ---- bounds of HDP, in y = t/lambda, where HDP is exp(-y), and in lambda ---------------------------------------------

BOUND_ETA, LOOSE = 3.0, 1.5
"""The exponent of the bound, and how much later than t(eta) the time of the loose bound is."""
SCALED_TIME, SCALED_LOOSE = 0.4, 2.0
"""The time of FAHDP, and how much larger than the tight exponent the loose one is."""
EARLY, LATE = (0.05, 0.2, 0.5), (1.0, 1.5, 3.0)
"""Times of FAHDP on both sides of 1, where it changes from MaxExp to Gamma."""
ROOM = 1.5
UNROUNDED = "FAHDP with rounding identity: its exponent is not rounded to a whole number."
RAISED = "MaxExp is lowered onto the line above HDP"


def y_of_eta_figure() -> FigureData:
    """Where MaxExp touches the line above HDP, for all exponents."""
    marks = (Mark("1/(e - 1)", LIMIT, "y"), Mark("1", 1.0, "y"))
    lines = (formula("y(eta)", logarithmic(0.01, 1000), y_of_eta),)
    panel = Panel("", Axis("eta", log=True), Axis("y(eta)"), lines, marks)
    return FigureData("y(eta) falls, and stays below 1 for eta >= 1", (panel,))


def bounds_in_y() -> FigureData:
    """MaxExp at two times and the line above HDP, in y = t/lambda."""
    t = t_of_eta(BOUND_ETA)

    def maxexp(name: str, time: float) -> Line:
        curve = MaxExp(BOUND_ETA)
        return formula(name, linear(time, 2), lambda y: curve.value((time / y).clamp(max=1.0)))

    lines = (
        formula("HDP, exp(-y)", linear(0, 2), lambda y: torch.exp(-y)),
        formula("line, (1/e - 1)y + 1", linear(0, 1), auxiliary_line),
        maxexp(f"MaxExp, eta = {BOUND_ETA:g}, t = t(eta)", t),
        maxexp(f"MaxExp, eta = {BOUND_ETA:g}, t = {LOOSE:g} t(eta)", LOOSE * t),
    )
    marks = (Mark("y(eta), gap eps2", y_of_eta(BOUND_ETA)), Mark("1, gap eps1", 1.0))
    return FigureData(RAISED, (Panel("reparametrised", Y, OF_Y, lines, marks),))


def bounds_in_eigenvalues() -> FigureData:
    """The same in lambda, close to where the gaps are measured."""
    t, maxexp = t_of_eta(BOUND_ETA), MaxExp(BOUND_ETA)
    near, beyond = linear(t / 2, 3 * t), linear(t, 3 * t)
    lines = (
        formula("HDP, t = t(eta)", near, HDP(t).value),
        formula("line, (1/e - 1)t/lambda + 1", beyond, lambda p: auxiliary_line(t / p)),
        formula(f"MaxExp, eta = {BOUND_ETA:g}, t = t(eta)", near, maxexp.value),
        formula(f"MaxExp({LOOSE:g} lambda), eta = {BOUND_ETA:g}", near, lambda p: maxexp.value(LOOSE * p)),
    )
    marks = (Mark("1/(eta + 1), gap eps2", 1 / (BOUND_ETA + 1)), Mark("t(eta), gap eps1", t))
    return FigureData(RAISED, (Panel("zoom, in lambda", EIGENVALUE, OF_EIGENVALUE, lines, marks),))


def fahdp_scaled() -> FigureData:
    """The scaled MaxExp, equal to the line at lambda = 1, lowered onto that line."""
    t = SCALED_TIME
    eta, scale, y = eta_bar_of_t(t), auxiliary_line(t), linear(t, 1.4)

    def scaled(name: str, exponent: float) -> Line:
        return formula(name, y, lambda y: scale * MaxExp(exponent).value(t / y))

    lines = (
        formula("HDP, exp(-y)", y, lambda y: torch.exp(-y)),
        formula("line, (1/e - 1)y + 1", linear(0, 1), auxiliary_line),
        scaled(f"scaled MaxExp, eta-bar(t) = {eta:.3g}", eta),
        scaled(f"scaled MaxExp, {SCALED_LOOSE:g} eta-bar(t)", SCALED_LOOSE * eta),
    )
    marks = (Mark("y0 = t", t), Mark("y1 = t eta-bar(t)", t * eta), Mark("least y1", LIMIT), Mark("largest y1", FIRST))
    return FigureData("The scaled MaxExp is lowered", (Panel(f"t = {t:g}", Y, OF_Y, lines, marks),))


def fahdp_tangent() -> FigureData:
    """FAHDP, which has a tighter scale, and a line between it and HDP."""
    t = SCALED_TIME
    y, eta, line, points = linear(t, 1.4), eta_tilde_of_t(t), fahdp_line(t), touching_points(t)
    lines = (
        formula("scaled MaxExp", y, lambda y: auxiliary_line(t) * MaxExp(eta).value(t / y)),
        formula("FAHDP, rounding identity", y, lambda y: FAHDP(t, rounding="identity").value(t / y)),
        formula("line, a y + b", linear(t, points.y3), lambda y: line.a * y + line.b),
        formula("HDP, exp(-y)", y, lambda y: torch.exp(-y)),
    )
    marks = (Mark("y0 = y2 = t", points.y0), Mark("y1", points.y1), Mark("y3", points.y3))
    return FigureData("A line between FAHDP and HDP", (Panel(f"t = {t:g}", Y, OF_Y, lines, marks),))


def fahdp_points() -> FigureData:
    """Where that line meets FAHDP (y0, y1) and HDP (y2, y3), for all times below 1."""
    times = linear(0.001, 0.999)
    points = touching_points(times)
    lines = (
        Line("y3, on HDP", times, points.y3),
        Line("y1, on FAHDP", times, points.y1),
        Line("y2 = y0 = t", times, points.y2),
    )
    return FigureData("y2 <= y1 <= y3", (Panel("", Axis("time t"), Axis("y"), lines),))


def y_of_eta_bar() -> FigureData:
    """Where the scaled MaxExp touches the line, for all exponents."""
    lines = (formula("y1(eta-bar) = eta-bar t(eta-bar)", logarithmic(1, 1000), lambda eta: eta * t_of_eta_bar(eta)),)
    marks = (Mark("1/(e - 1)", LIMIT, "y"), Mark("e/(2(e - 1))", FIRST, "y"))
    return FigureData("y1(eta-bar) falls", (Panel("", Axis("eta-bar", log=True), Axis("y1(eta-bar)"), lines, marks),))


def fahdp() -> FigureData:
    """FAHDP, which is above HDP at all times and equal at lambda = 1."""
    panels = []
    for title, times in (("t < 1: a scaled MaxExp", EARLY), ("t >= 1: a scaled Gamma", LATE)):
        # More points close to 0 for early times, whose curves rise there.
        eigenvalues = linear(0, 1) ** 2 if max(times) < 1 else linear(0, 1)
        lines: list[Line] = []
        for t in times:
            exact, fast = HDP(t).value(eigenvalues), FAHDP(t, rounding="identity").value(eigenvalues)
            lines.append(Line(f"HDP, t = {t:g}", eigenvalues, exact, dash=0))
            lines.append(Line(f"FAHDP, t = {t:g}, identity", eigenvalues, fast, dash=1, like=f"HDP, t = {t:g}"))
        # Room for the legend above the highest line, which ends at exp(-t) of the earliest time.
        y = Axis("g(lambda)", limits=(0.0, ROOM * math.exp(-min(times))))
        panels.append(Panel(title, EIGENVALUE, y, tuple(lines)))
    return FigureData("FAHDP is a tight upper bound of HDP", tuple(panels), UNROUNDED)


# ---- spectra and similarity learners ---------------------------------------------------------------------------------

BETA = (2.0, 10.0)
"""The Beta distribution of a spectrum: most eigenvalues are small."""
PUSHED_ETA = 20.0
SHOTS, LOCATIONS = (0, 1, 5, 20), (25, 100, 361, 2916)
"""Support images, and locations of maps: 361 for images of 84 px, 2916 for 224 px."""
MOST_SHOTS = 20
LEADING = (5, 7, 9, 11, 13, 15)
ETAS = logarithmic(1, 10_000, 121)
SYNTHETIC = 512
"""Eigenvalues of the synthetic spectrum."""


def beta_push_forward() -> FigureData:
    """A spectrum with a Beta distribution, before and after three curves with tied parameters."""
    t = t_of_eta(PUSHED_ETA)
    gamma = gamma_of_t(t)
    # Without the ends, where densities after a curve are infinite or 0.
    eigenvalues = linear(0.002, 0.9, 1001)
    density = torch.exp(torch.distributions.Beta(*torch.tensor(BETA, dtype=torch.float64)).log_prob(eigenvalues))
    applied = {
        f"MaxExp, eta = {PUSHED_ETA:g}": MaxExp(PUSHED_ETA),
        f"Gamma, gamma = e t = {gamma:.3g}": Gamma(gamma),
        f"HDP, t(eta) = {t:.3g}": HDP(t),
    }
    before = (Line(f"Beta({BETA[0]:g}, {BETA[1]:g})", eigenvalues, density),)
    after = tuple(Line(name, *push_forward(eigenvalues, density, curve)) for name, curve in applied.items())
    panels = (
        Panel("before", Axis("eigenvalue lambda", limits=(0, 1)), Axis("density"), before),
        Panel("after", Axis("g(lambda)", limits=(0, 1.02)), Axis("density", log=True, limits=(1e-3, 1e3)), after),
    )
    return FigureData("Power normalizations move a spectrum towards 1", panels)


def kappa_figure() -> FigureData:
    """How many more configurations of co-occurrences there are without MaxExp."""
    shots = torch.arange(MOST_SHOTS + 1, dtype=torch.float64)
    locations = logarithmic(1, 3000)
    against_shots = tuple(Line(f"N = {N}", shots, kappa(shots, shots.new_tensor(N))) for N in LOCATIONS)
    against_locations = tuple(Line(f"J = {J}", locations, kappa(locations.new_tensor(J), locations)) for J in SHOTS)
    wide = Axis("kappa", log=True, limits=(10, 1e5))  # room for the legend: the lines are level
    panels = (
        Panel("J = 0 is classification", Axis("support images J of a class"), wide, against_shots),
        Panel(
            "N grows with the size of images",
            Axis("locations N of an image", log=True),
            Axis("kappa", log=True),
            against_locations,
        ),
    )
    return FigureData("Configurations without MaxExp, for each one with it", panels)


def variance(sources: Sources) -> FigureData:
    """The variance of leading eigenvalues after MaxExp, which rises to a peak and falls."""
    spectra = sources.spectra() or synthetic_spectrum()
    lines = tuple(
        Line(f"{count} eigenvalues", ETAS, _mean_variance(spectra.eigenvalues, count))
        for count in LEADING
        if count <= spectra.eigenvalues.shape[-1]
    )
    panel = Panel(spectra.name, Axis("eta", log=True), Axis("variance of leading eigenvalues"), lines)
    return FigureData("Leading eigenvalues after MaxExp", (panel,), spectra.origin)


def synthetic_spectrum() -> Spectra:
    r"""Eigenvalues :math:`\lambda_i \sim 1/i` with sum 1, used if no features are given."""
    falling = 1 / torch.arange(1, SYNTHETIC + 1, dtype=torch.float64)
    eigenvalues = (falling / falling.sum())[None]
    origin = "For real features give --features, a folder of stored features or the name of their data set."
    return Spectra(f"synthetic spectrum, lambda_i ~ 1/i, C = {SYNTHETIC}", eigenvalues, origin)


def _mean_variance(eigenvalues: Tensor, leading: int) -> Tensor:  # shape: (n, C) -> (etas,)
    """The mean over matrices, for every eta."""
    return torch.stack([leading_variance(eigenvalues, MaxExp(eta), leading).mean() for eta in ETAS.tolist()])
