"""Figures of what curves do: to the spectrum of a matrix, and to what a similarity learner has to memorise."""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.curves import HDP, Gamma, MaxExp
from powerpool.figures.data import Axis, FigureData, Line, Panel, linear, logarithmic
from powerpool.figures.sources import Sources, Spectra
from powerpool.theory import gamma_of_t, kappa, leading_variance, push_forward, t_of_eta

BETA = (2.0, 10.0)
"""The Beta distribution of a spectrum: most eigenvalues are small."""
ETA = 20.0
SHOTS, LOCATIONS = (0, 1, 5, 20), (25, 100, 361, 2916)
"""Support pictures, and locations of maps: 361 for pictures of 84 px, 2916 for 224 px."""
MOST_SHOTS = 20
LEADING = (5, 7, 9, 11, 13, 15)
ETAS = logarithmic(1, 10_000, 121)
SYNTHETIC = 512
"""Eigenvalues of the synthetic spectrum."""


def beta_push_forward() -> FigureData:
    """A spectrum that follows a Beta distribution, before and after three curves with tied parameters."""
    t = t_of_eta(ETA)
    gamma = gamma_of_t(t)
    # To both ends the densities after a curve are infinite or 0.
    eigenvalues = linear(0.002, 0.9, 1001)
    density = torch.exp(torch.distributions.Beta(*torch.tensor(BETA, dtype=torch.float64)).log_prob(eigenvalues))
    curves = {
        f"MaxExp, eta = {ETA:g}": MaxExp(ETA),
        f"Gamma, gamma = e t = {gamma:.3g}": Gamma(gamma),
        f"HDP, t(eta) = {t:.3g}": HDP(t),
    }
    before = (Line(f"Beta({BETA[0]:g}, {BETA[1]:g})", eigenvalues, density),)
    after = tuple(Line(name, *push_forward(eigenvalues, density, curve)) for name, curve in curves.items())
    panels = (
        Panel("before", Axis("eigenvalue lambda", limits=(0, 1)), Axis("density"), before),
        Panel("after", Axis("g(lambda)", limits=(0, 1.02)), Axis("density", log=True, limits=(1e-3, 1e3)), after),
    )
    return FigureData("Power normalizations move a spectrum towards 1", panels)


def kappa_figure() -> FigureData:
    """How many more configurations of co-occurrences are met without MaxExp."""
    shots = torch.arange(MOST_SHOTS + 1, dtype=torch.float64)
    locations = logarithmic(1, 3000)
    against_shots = tuple(Line(f"N = {N}", shots, kappa(shots, shots.new_tensor(N))) for N in LOCATIONS)
    against_locations = tuple(Line(f"J = {J}", locations, kappa(locations.new_tensor(J), locations)) for J in SHOTS)
    y = Axis("kappa", log=True)
    roomy = Axis("kappa", log=True, limits=(10, 1e5))  # for the legend: the lines are level
    panels = (
        Panel("J = 0 is classification", Axis("support pictures J of a class"), roomy, against_shots),
        Panel("N grows with the size of pictures", Axis("locations N of a picture", log=True), y, against_locations),
    )
    return FigureData("Configurations without MaxExp, for each one with it", panels)


def variance(sources: Sources) -> FigureData:
    """The variance of leading eigenvalues after MaxExp: it rises, has a peak, and falls."""
    spectra = sources.spectra() or synthetic_spectrum()
    lines = tuple(
        Line(f"{count} eigenvalues", ETAS, _mean_variance(spectra.eigenvalues, count))
        for count in LEADING
        if count <= spectra.eigenvalues.shape[-1]
    )
    panel = Panel(spectra.name, Axis("eta", log=True), Axis("variance of leading eigenvalues"), lines)
    return FigureData("Leading eigenvalues after MaxExp", (panel,), spectra.origin)


def synthetic_spectrum() -> Spectra:
    r"""Eigenvalues :math:`\lambda_i \sim 1/i` with sum 1, which stand in for those of features."""
    falling = 1 / torch.arange(1, SYNTHETIC + 1, dtype=torch.float64)
    eigenvalues = (falling / falling.sum())[None]
    origin = "Real features are taken with --features, a folder of stored features or the name of their data set."
    return Spectra(f"synthetic spectrum, lambda_i ~ 1/i, C = {SYNTHETIC}", eigenvalues, origin)


def _mean_variance(eigenvalues: Tensor, leading: int) -> Tensor:  # shape: (n, C) -> (etas,)
    """Over all matrices, for every eta."""
    return torch.stack([leading_variance(eigenvalues, MaxExp(eta), leading).mean() for eta in ETAS.tolist()])
