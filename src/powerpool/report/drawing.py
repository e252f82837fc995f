"""How every picture of the library is drawn and written: colours, lines, and files that are the same each time.

Pictures are drawn on a ``Figure`` of their own and not by pyplot: no window system is needed, and nothing global that
another user of matplotlib would notice is changed.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.files import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Colours of Okabe and Ito, which readers of every kind of colour vision tell apart; without their yellow, which is
faint on white. Further lines take another dash."""
DASHES = ("-", "--", ":", "-.")


def line_look(number: int) -> tuple[str, str]:
    """Colour and dash of a line by its number: first all colours, then the same with another dash.

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

    Without a date and with fixed ids the same drawing gives the same file.

    Args:
        draw: puts the picture on an empty figure.
        paths: of PNG and SVG files.
        size: width and height in inches.
        style: settings of matplotlib for this picture alone.
        salt: what the ids of an SVG are made from; the name of the first file without it.
        dpi: points of a PNG for each inch.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {"svg.hashsalt": salt or paths[0].name, **(style or {})}
    with rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for path in paths:
            with atomic(path) as temporary:
                figure.savefig(temporary, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of the same names as CSV, atomically; the names are the first line."""
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def plain(text: str) -> str:
    r"""``text`` without formulas, which matplotlib reads between two dollars, and without what no SVG may hold.

    Example:
        >>> plain("5 $ and 6 $")
        '5 \\$ and 6 \\$'
        >>> plain("a\x1bb")
        'a b'
    """
    return "".join(one if one.isprintable() else " " for one in text).replace("$", r"\$")
