"""Pictures of what was found: spectra, the part of the trace in leading eigenvalues, correlations, burstiness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerpool.report.drawing import COLOURS, DASHES, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from powerpool.analysis.result import Inspection, Side

LOOKS = {"before": (COLOURS[1], DASHES[1]), "after": (COLOURS[0], DASHES[0])}
FLOOR = 1e-7
"""Shares below this are round-off of float32, and not drawn."""


def draw_pictures(found: Inspection, folder: Path) -> list[Path]:
    """Every picture as PNG and SVG; the files."""
    drawings: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
        "spectra": (lambda figure: _spectra(found, figure), (6.4, 4.6)),
        "trace": (lambda figure: _trace(found, figure), (6.4, 4.6)),
        "correlations": (lambda figure: _correlations(found, figure), (9.6, 4.6)),
        "burstiness": (lambda figure: _burstiness(found, figure), (6.4, 4.2)),
    }
    files = []
    for name, (draw, size) in drawings.items():
        paths = [folder / f"{name}{suffix}" for suffix in (".png", ".svg")]
        save(draw, paths, size, style={"svg.fonttype": "none"})  # text stays text, which is a tenth in size
        files += paths
    return files


def _sides(found: Inspection) -> dict[str, Side]:
    return {"before": found.before} if found.after is None else {"before": found.before, "after": found.after}


def _spectra(found: Inspection, figure: Figure) -> None:
    axes = figure.add_subplot()
    for name, side in _sides(found).items():
        _band(axes, side.spectra, name, f"{name}: effective rank {float(side.effective_rank.mean()):.1f}")
    axes.set(xscale="log", yscale="log", xlabel="eigenvalue, the largest first", ylabel="part of the trace")
    axes.set_ylim(max(FLOOR, 0.3 * _smallest(found)), 1.3)
    _plain_ticks(axes)
    _finish(axes, found, "Spectrum before and after the curve")


def _trace(found: Inspection, figure: Figure) -> None:
    axes = figure.add_subplot()
    for name, side in _sides(found).items():
        _band(axes, 100 * side.spectra.cumsum(-1), name, name)
    axes.set(
        xscale="log", xlabel="leading eigenvalues k", ylabel="part of the trace in the first k, in %", ylim=(0, 102)
    )
    _plain_ticks(axes)
    _finish(axes, found, "How much of the trace the first eigenvalues hold")


def _band(axes: Axes, rows: Tensor, name: str, label: str) -> None:
    """The mean over samples, and where eight of ten are."""
    colour, dash = LOOKS[name]
    places = torch.arange(1, rows.shape[1] + 1).tolist()
    low, high = rows.quantile(0.1, 0).tolist(), rows.quantile(0.9, 0).tolist()
    # A spectrum of one eigenvalue is a point.
    marker = "o" if len(places) == 1 else ""
    axes.plot(places, rows.mean(0).tolist(), dash, marker=marker, color=colour, linewidth=1.6, label=label)
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _correlations(found: Inspection, figure: Figure) -> None:
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, LOOKS, strict=True):
        side = _sides(found).get(name)
        if side is None:
            axes.text(0.5, 0.5, "the pool is of first order:\nthere is no matrix after it", ha="center", va="center")
            axes.set_axis_off()
            continue
        axes.set_facecolor("0.75")  # what shows where there is NaN: features that are silent in every sample
        image = axes.imshow(side.correlations.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        mean = float(side.correlation.mean())
        axes.set(xlabel="feature", ylabel="feature", title=f"{name}: mean |{found.relation}| {mean:.3f}")
        figure.colorbar(image, ax=axes, shrink=0.8, label=f"mean {found.relation}, with its sign")
    # Signs may cancel in the mean of a pair over samples; the number above a panel is of magnitudes, where none do.
    said = f"{found.relation}s of features, mean over samples with signs; grey: silent in every sample"
    figure.suptitle(f"{plain(found.normalization.describe())}\n{said}", fontsize="medium")


def _burstiness(found: Inspection, figure: Figure) -> None:
    axes = figure.add_subplot()
    known = found.burstiness[~found.burstiness.isnan()]
    if found.has_few_samples:
        said = f"{found.samples} samples are too few to tell"
        axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes)
    elif len(known):
        # Few features may repeat a hundred times more than chance: the last bar holds all from there on.
        end = max(2.0, float(known.quantile(0.98)))
        axes.hist(known.clamp(max=end).tolist(), bins=60, range=(0.0, end), color=LOOKS["after"][0], alpha=0.8)
    axes.axvline(1.0, color="black", linestyle=":", label="independent locations")
    axes.set(xlabel="burstiness b of a feature (1: as by chance)", ylabel="features")
    _finish(axes, found, "How much more a feature that fired fires again in the sample")


def _plain_ticks(axes: Axes) -> None:
    """1, 10 and 100 on a logarithmic axis, instead of powers."""
    from matplotlib.ticker import StrMethodFormatter

    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _finish(axes: Axes, found: Inspection, title: str) -> None:
    axes.set_title(f"{title}\n{plain(found.normalization.describe())}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _smallest(found: Inspection) -> float:
    means = torch.cat([side.spectra.mean(0) for side in _sides(found).values()])
    return float(means[means > 0].min())
