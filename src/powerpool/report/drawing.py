"""Colours, lines and image files of all plots. The same drawing gives the same file.

Plots are drawn on their own ``Figure``, not by pyplot: no window system is needed, and no global state changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.files import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""The palette of Okabe and Ito, which every kind of colour vision can tell apart, without its yellow, which is faint on
white. Further lines take another dash."""
DASHES = ("-", "--", ":", "-.")


def line_look(number: int) -> tuple[str, str]:
    """Return colour and dash of a line by its number: first all colours, then the same with another dash.

    Example:
        >>> line_look(0), line_look(7)
        (('#0072B2', '-'), ('#0072B2', '--'))
    """
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def save(
    draw: Callable[[Figure], None],
    paths: Sequence[Path],
    size: tuple[float, float],
    *,
    style: Mapping[str, Any] | None = None,
    salt: str | None = None,
    dpi: int = 150,
) -> None:
    """Draw once, and write each file atomically, in the format of its suffix.

    Args:
        draw: draws on an empty figure.
        paths: PNG and SVG files.
        size: width and height in inches.
        style: settings of matplotlib for this plot alone.
        salt: seed of the ids in an SVG file; default: the name of the first file.
        dpi: resolution of PNG files.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text in an SVG stays text, which needs a tenth of the bytes, can be searched, and takes any font of the reader.
    settings: dict[Any, Any] = {"svg.hashsalt": salt or paths[0].name, "svg.fonttype": "none", **(style or {})}
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for path in paths:
            with atomic(path) as temporary:
                figure.savefig(temporary, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)


def plain(text: str) -> str:
    r"""Return ``text`` without formulas, which matplotlib reads between two dollars, and without control characters.

    Example:
        >>> plain("5 $ and 6 $")
        '5 \\$ and 6 \\$'
        >>> plain("a\x1bb")
        'a b'
    """
    return "".join(one if one.isprintable() else " " for one in text).replace("$", r"\$")


def shorten_middle(name: str, longest: int) -> str:
    """Keep the beginning and the end of a long name: related names often differ in their end.

    Example:
        >>> shorten_middle("abcdefghij", 6), shorten_middle("abc", 6)
        ('abc…ij', 'abc')
    """
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"
