"""Plots of an analysis: spectra, the share of leading eigenvalues in the trace, correlations, burstiness."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerpool.report.drawing import COLOURS, DASHES, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from powerpool.analysis.result import Inspection

STYLES = {"before": (COLOURS[1], DASHES[1]), "after": (COLOURS[0], DASHES[0])}
FLOOR = 1e-7
"""Smaller shares are round-off of float32, and not drawn."""


def draw_plots(found: Inspection, folder: Path) -> list[Path]:
    """Draw every plot as PNG and SVG, and return the files."""
    drawings: dict[str, tuple[Callable[[Inspection, Figure], None], tuple[float, float]]] = {
        "spectra": (_draw_spectra, (6.4, 4.6)),
        "trace": (_draw_trace, (6.4, 4.6)),
        "correlations": (_draw_correlations, (9.6, 4.6)),
        "burstiness": (_draw_burstiness, (6.4, 4.2)),
    }
    files = []
    for name, (draw, size) in drawings.items():
        paths = [folder / f"{name}{suffix}" for suffix in (".png", ".svg")]
        save(partial(draw, found), paths, size)
        files += paths
    return files


def _draw_spectra(found: Inspection, figure: Figure) -> None:
    axes = figure.add_subplot()
    for name, side in found.sides.items():
        _draw_band(axes, side.spectra, name, f"{name}: effective rank {float(side.effective_rank.mean()):.1f}")
    means = torch.cat([side.spectra.mean(0) for side in found.sides.values()])
    axes.set(yscale="log", xlabel="rank of the eigenvalue", ylabel="share of the trace")
    axes.set_ylim(max(FLOOR, 0.3 * float(means[means > 0].min())), 1.3)
    _finish_ranks(axes, found, "Spectrum before and after the curve")


def _draw_trace(found: Inspection, figure: Figure) -> None:
    axes = figure.add_subplot()
    for name, side in found.sides.items():
        _draw_band(axes, 100 * side.spectra.cumsum(-1), name, name)
    axes.set(xlabel="number of leading eigenvalues k", ylabel="share of the first k in the trace, in %", ylim=(0, 102))
    _finish_ranks(axes, found, "Share of the leading eigenvalues in the trace")


def _draw_band(axes: Axes, rows: Tensor, name: str, label: str) -> None:
    """Draw the mean over samples, and the range from the 10 % to the 90 % quantile."""
    colour, dash = STYLES[name]
    places = torch.arange(1, rows.shape[1] + 1).tolist()
    low, high = rows.quantile(0.1, 0).tolist(), rows.quantile(0.9, 0).tolist()
    marker = "o" if len(places) == 1 else ""  # a line of one point is invisible
    axes.plot(places, rows.mean(0).tolist(), dash, marker=marker, color=colour, linewidth=1.6, label=label)
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _finish_ranks(axes: Axes, found: Inspection, title: str) -> None:
    from matplotlib.ticker import StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    _finish(axes, found, title)


def _draw_correlations(found: Inspection, figure: Figure) -> None:
    panels = figure.subplots(1, len(found.sides), squeeze=False)[0]
    for axes, (name, side) in zip(panels, found.sides.items(), strict=True):
        axes.set_facecolor("0.75")  # shows where the matrix is NaN
        image = axes.imshow(side.correlations.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        mean = float(side.correlation.mean())
        axes.set(xlabel="feature", ylabel="feature", title=f"{name}: mean |{found.relation}| {mean:.3f}")
        figure.colorbar(image, ax=axes, shrink=0.8, label=f"mean {found.relation}")
    # Signs can cancel in the mean over samples, so the mean magnitude above a panel may be larger than its colours.
    title = f"{found.relation}s of features, signed mean over samples; grey: no energy in any sample"
    figure.suptitle(f"{plain(found.normalization.describe())}\n{title}", fontsize="medium")


def _draw_burstiness(found: Inspection, figure: Figure) -> None:
    axes = figure.add_subplot()
    known = found.burstiness[~found.burstiness.isnan()]
    if found.has_few_samples:
        text = f"{found.samples} samples are too few"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    elif len(known):
        # A few features may be a hundred times burstier: the last bar counts them all.
        end = max(2.0, float(known.quantile(0.98)))
        axes.hist(known.clamp(max=end).tolist(), bins=60, range=(0.0, end), color=STYLES["after"][0], alpha=0.8)
    axes.axvline(1.0, color="black", linestyle=":", label="independent locations")
    axes.set(xlabel="burstiness b of a feature", ylabel="number of features")
    _finish(axes, found, "Burstiness of features")


def _finish(axes: Axes, found: Inspection, title: str) -> None:
    axes.set_title(f"{title}\n{plain(found.normalization.describe())}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
