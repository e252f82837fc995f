"""The picture of the README: a burst of one pattern drowns three others, until the spectrum is bent.

    python docs/pictures/overview.py [FOLDER]

writes overview.svg into the folder, by default the one of this file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import powerpool as pp
from powerpool.report.drawing import COLOURS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PATTERNS, WIDTH = 4, 6
"""Patterns that the image shows, and the channels that answer to each."""
COUNTS = (150, 14, 12, 20)
"""Locations that show each pattern: the first is a burst, such as a wall of bricks behind the bird."""
ETA = 50


def features() -> torch.Tensor:
    """Non-negative features of 196 locations, each of which shows one pattern: (C, N)."""
    generator = torch.Generator().manual_seed(0)
    pattern = torch.repeat_interleave(torch.arange(PATTERNS), torch.tensor(COUNTS))
    pattern = pattern[torch.randperm(len(pattern), generator=generator)]
    channel = torch.arange(PATTERNS * WIDTH) // WIDTH
    answers = (channel[:, None] == pattern).to(torch.float64)
    strength = 0.7 + 0.3 * torch.rand(answers.shape, generator=generator, dtype=torch.float64)
    noise = 0.08 * torch.rand(answers.shape, generator=generator, dtype=torch.float64)
    return answers * strength + noise


def draw(figure: Figure) -> None:
    maps = features()
    matrix = pp.autocorrelation(maps)
    bent = pp.spectral(matrix, pp.MaxExp(eta=ETA))
    before, after = (torch.linalg.eigvalsh(one).flip(0) for one in (matrix / matrix.trace(), bent))
    first, second, third, fourth = figure.subplots(1, 4, width_ratios=(1.15, 1, 1.1, 1))
    heat(first, maps, "features of an image (made up)", f"{maps.shape[1]} locations", "24 channels")
    heat(second, matrix, "second-order matrix:\na burst drowns three patterns", "channels", "")
    third.semilogy(range(1, 9), before[:8], "o-", color=COLOURS[1], label="before")
    third.semilogy(range(1, 9), after[:8], "o-", color=COLOURS[0], label=f"after MaxExp({ETA})")
    third.set(title="its eigenvalues", xlabel="rank", ylim=(5e-4, 2))
    third.grid(alpha=0.3)
    third.legend(fontsize="small")
    heat(fourth, bent, "power-normalized:\nall four patterns count", "channels", "")


def heat(axes: Axes, values: torch.Tensor, title: str, below: str, beside: str) -> None:
    """A matrix as a picture, dark where it is large."""
    axes.imshow(values.tolist(), cmap="Blues", vmin=0, vmax=float(values.max()), aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel=below, ylabel=beside, xticks=[], yticks=[])


def main(folder: Path) -> None:
    save(draw, [folder / "overview.svg"], (12, 2.9), style={"font.size": 10, "svg.fonttype": "path"})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
