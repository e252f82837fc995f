"""The figures by name: what each shows, and which figure of the paper it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from powerpool.errors import UnknownNameError, did_you_mean
from powerpool.figures import computed, measured
from powerpool.figures.data import FigureData
from powerpool.figures.sources import Sources


@dataclass(frozen=True)
class Entry:
    """A figure: its data, what it shows, and the labels of the paper's figures in the LaTeX source."""

    make: Callable[[Sources], FigureData]
    shows: str
    paper: str


def _computed(make: Callable[[], FigureData]) -> Callable[[Sources], FigureData]:
    """A figure that reads nothing."""
    return lambda sources: make()


FIGURES: dict[str, Entry] = {
    "curves": Entry(_computed(computed.curves), "Gamma, AsinhE, MaxExp and SigmE", "pow1, pow2"),
    "derivatives": Entry(_computed(computed.derivatives), "the derivatives of these curves", "pow3"),
    "gammas": Entry(_computed(computed.gammas), "Gamma for several exponents, beside MaxExp", "pow4"),
    "hdp": Entry(_computed(computed.hdp), "the profile of HDP at several times", "pow33"),
    "hdp-bounds": Entry(_computed(computed.hdp_bounds), "MaxExp and Gamma as upper bounds of HDP", "pow5"),
    "push-forward": Entry(
        _computed(computed.beta_push_forward), "a Beta spectrum after MaxExp, Gamma and HDP", "dist1 to dist4"
    ),
    "kappa": Entry(_computed(computed.kappa_figure), "kappa against J and N", "poolunc"),
    "y-of-eta": Entry(_computed(computed.y_of_eta_figure), "y(eta)", "y-eta"),
    "bounds": Entry(_computed(computed.bounds_in_y), "HDP, a line and MaxExp in y = t/lambda", "bounds2"),
    "bounds-zoom": Entry(_computed(computed.bounds_in_eigenvalues), "the same in lambda", "bounds-zoom"),
    "fahdp-scaled": Entry(_computed(computed.fahdp_scaled), "the scaled MaxExp, lowered onto the line", "bounds4"),
    "fahdp-line": Entry(_computed(computed.fahdp_tangent), "FAHDP, HDP and a line between them", "bounds5"),
    "fahdp-points": Entry(_computed(computed.fahdp_points), "where that line meets both, against t", "bounds6"),
    "y-of-eta-bar": Entry(_computed(computed.y_of_eta_bar), "y1 against the exponent of the scaled MaxExp", "bounds7"),
    "fahdp": Entry(_computed(computed.fahdp), "FAHDP against HDP for t below and above 1", "bounds8"),
    "timing-eta": Entry(measured.timing_eta, "forward and backward time against eta", "tim1"),
    "timing-channels": Entry(measured.timing_channels, "forward and backward time against C", "tim2, tim3"),
    "variance": Entry(computed.variance, "the variance of 5 to 15 leading eigenvalues against eta", "var1"),
    "sensitivity-beta": Entry(partial(measured.sensitivity, setting="beta"), "accuracy against beta", "eval1"),
    "sensitivity-alpha": Entry(partial(measured.sensitivity, setting="alpha"), "accuracy against alpha", "eval2"),
    "sensitivity-eta-prime": Entry(
        partial(measured.sensitivity, setting="sigme_eta"), "accuracy against eta' of SigmE", "eval3"
    ),
    "sensitivity-eta": Entry(partial(measured.sensitivity, setting="eta"), "accuracy against eta of MaxExp", "eval4"),
    "open-mic-1": Entry(measured.open_mic_pairs, "accuracy against way, protocol I", "openmic1"),
    "open-mic-2": Entry(measured.open_mic_exhibitions, "accuracy against way, protocol II", "openmic2"),
}


def make_figure(name: str, sources: Sources | None = None) -> FigureData:
    """The data of a figure.

    Example:
        >>> [line.name for line in make_figure("hdp").panels[0].lines][:2]
        ['HDP, t = 0.01', 'HDP, t = 0.05']
    """
    require_figure(name)
    return FIGURES[name].make(sources or Sources())


def require_figure(name: str) -> None:
    """Refuse an unknown name, and suggest the nearest."""
    if name not in FIGURES:
        raise UnknownNameError(f"Unknown figure {name!r}.{did_you_mean(name, FIGURES)} Figures: {', '.join(FIGURES)}.")
