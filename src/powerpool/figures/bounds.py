"""Figures of the bounds of HDP: in y = t/lambda, where HDP is exp(-y), and in lambda; FAHDP and its line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerpool.curves import FAHDP, HDP, MaxExp
from powerpool.figures.data import Axis, FigureData, Line, Mark, Panel, formula, linear, logarithmic
from powerpool.theory import (
    auxiliary_line,
    eta_bar_of_t,
    eta_tilde_of_t,
    fahdp_line,
    t_of_eta,
    t_of_eta_bar,
    touching_points,
    y_of_eta,
)

ETA, LOOSE = 3.0, 1.5
"""MaxExp whose bound is shown, and how much later than the tight one its time is before it is lowered."""
SCALED_TIME, SCALED_LOOSE = 0.4, 2.0
"""The same of FAHDP: its time, and how much larger than the tight exponent the first one is."""
EARLY, LATE = (0.05, 0.2, 0.5), (1.0, 1.5, 3.0)
"""Times of FAHDP on both sides of 1, where it changes from MaxExp to Gamma."""
ROOM = 1.5
UNROUNDED = "FAHDP with rounding identity: its exponent is not rounded to a whole number."
LIMIT = 1 / (math.e - 1)
FIRST = math.e / (2 * (math.e - 1))
Y = Axis("y = t/lambda")
EIGENVALUE = Axis("eigenvalue lambda")


def y_of_eta_figure() -> FigureData:
    """Where MaxExp touches the line above HDP, for all exponents."""
    x = Axis("eta", log=True)
    marks = (Mark("1/(e - 1)", LIMIT, "y"), Mark("1", 1.0, "y"))
    panel = Panel("", x, Axis("y(eta)"), (formula("y(eta)", logarithmic(0.01, 1000), y_of_eta),), marks)
    return FigureData("y(eta) falls, and stays below 1 for eta >= 1", (panel,))


def bounds_in_y() -> FigureData:
    """MaxExp is lowered onto the line above HDP, all in y = t/lambda."""
    t = t_of_eta(ETA)
    lines = (
        formula("HDP, exp(-y)", linear(0, 2), lambda y: torch.exp(-y)),
        formula("line, (1/e - 1)y + 1", linear(0, 1), auxiliary_line),
        _maxexp_in_y(f"MaxExp, eta = {ETA:g}, t = t(eta)", t, linear(t, 2)),
        _maxexp_in_y(f"MaxExp, eta = {ETA:g}, t = {LOOSE:g} t(eta)", LOOSE * t, linear(LOOSE * t, 2)),
    )
    marks = (Mark("y(eta), gap eps2", y_of_eta(ETA)), Mark("1, gap eps1", 1.0))
    return FigureData(
        "MaxExp is lowered onto the line above HDP", (Panel("reparametrised", Y, Axis("g(t/y)"), lines, marks),)
    )


def bounds_in_eigenvalues() -> FigureData:
    """The same in lambda, close to where the gaps are measured."""
    t = t_of_eta(ETA)
    near, beyond = linear(t / 2, 3 * t), linear(t, 3 * t)
    lines = (
        formula("HDP, t = t(eta)", near, HDP(t).value),
        formula("line, (1/e - 1)t/lambda + 1", beyond, lambda p: auxiliary_line(t / p)),
        formula(f"MaxExp, eta = {ETA:g}, t = t(eta)", near, MaxExp(ETA).value),
        formula(f"MaxExp({LOOSE:g} lambda), eta = {ETA:g}", near, lambda p: MaxExp(ETA).value(LOOSE * p)),
    )
    marks = (Mark("1/(eta + 1), gap eps2", 1 / (ETA + 1)), Mark("t(eta), gap eps1", t))
    return FigureData(
        "MaxExp is lowered onto the line above HDP",
        (Panel("zoom, in lambda", EIGENVALUE, Axis("g(lambda)"), lines, marks),),
    )


def fahdp_scaled() -> FigureData:
    """The scaled MaxExp, which is HDP's line at lambda = 1, is lowered onto that line."""
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
    marks = (
        Mark("y0 = t", t),
        Mark("y1 = t eta-bar(t)", t * eta),
        Mark("least y1", LIMIT),
        Mark("largest y1", FIRST),
    )
    return FigureData("The scaled MaxExp is lowered", (Panel(f"t = {t:g}", Y, Axis("g(t/y)"), lines, marks),))


def fahdp_tangent() -> FigureData:
    """A tighter scale makes FAHDP; a line is between it and HDP."""
    t = SCALED_TIME
    y, eta, line, points = linear(t, 1.4), eta_tilde_of_t(t), fahdp_line(t), touching_points(t)
    lines = (
        formula("scaled MaxExp", y, lambda y: auxiliary_line(t) * MaxExp(eta).value(t / y)),
        formula("FAHDP, rounding identity", y, lambda y: FAHDP(t, rounding="identity").value(t / y)),
        formula("line, a y + b", linear(t, points.y3), lambda y: line.a * y + line.b),
        formula("HDP, exp(-y)", y, lambda y: torch.exp(-y)),
    )
    marks = (Mark("y0 = y2 = t", points.y0), Mark("y1", points.y1), Mark("y3", points.y3))
    return FigureData("A line between FAHDP and HDP", (Panel(f"t = {t:g}", Y, Axis("g(t/y)"), lines, marks),))


def fahdp_points() -> FigureData:
    """Where the line meets FAHDP (y0, y1) and HDP (y2, y3), for all times below 1."""
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
    """FAHDP is above HDP at all times, and meets it at lambda = 1."""
    panels = []
    for title, times in (("t < 1: a scaled MaxExp", EARLY), ("t >= 1: a scaled Gamma", LATE)):
        # Early times rise close to 0: more points there.
        eigenvalues = linear(0, 1) ** 2 if max(times) < 1 else linear(0, 1)
        lines: list[Line] = []
        for t in times:
            exact = HDP(t).value(eigenvalues)
            fast = FAHDP(t, rounding="identity").value(eigenvalues)
            lines.append(Line(f"HDP, t = {t:g}", eigenvalues, exact, dash=0))
            lines.append(Line(f"FAHDP, t = {t:g}, identity", eigenvalues, fast, dash=1, like=f"HDP, t = {t:g}"))
        # Room for the legend above the lines: the highest ends at exp(-t) of the earliest time.
        y = Axis("g(lambda)", limits=(0.0, ROOM * math.exp(-min(times))))
        panels.append(Panel(title, EIGENVALUE, y, tuple(lines)))
    return FigureData("FAHDP is a tight upper bound of HDP", tuple(panels), UNROUNDED)


def _maxexp_in_y(name: str, t: float, y: Tensor) -> Line:
    return formula(name, y, lambda y: MaxExp(ETA).value((t / y).clamp(max=1.0)))
