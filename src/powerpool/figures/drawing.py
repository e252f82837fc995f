"""Draw the data of a figure as PNG and SVG, and write it as CSV. All figures have one style, for half a page width."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.figures.data import FigureData, Line, Mark, Panel
from powerpool.files import csv_text, write_text
from powerpool.report.drawing import COLOURS, DASHES, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 3.0
"""Inches of a figure and of one panel. Panels are stacked: side by side their text would be too small."""
ROW = 0.2
"""Inches of a line of text in the legend or the note."""
COLUMNS = 2
MANY = 4
"""A legend with more lines has columns, and is placed below the axes if possible."""
NOTE_LETTERS, LEGEND_LETTERS = 76, 58
"""Characters in a line of the note, and of a name in the legend."""
NARROW = 28
"""Characters of the longest name that fits a legend with two columns."""
STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.titlesize": 11,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.framealpha": 0.85,
}
FORMATS = ("png", "svg", "csv")
GREEK = {name: f"GREEK SMALL LETTER {name}" for name in ("alpha", "beta", "gamma", "eta", "kappa")}
GREEK |= {"eps": "GREEK SMALL LETTER EPSILON", "lambda": "GREEK SMALL LETTER LAMDA", "y": "LATIN SMALL LETTER Y"}
SIGNS = {
    "<=": "\N{LESS-THAN OR EQUAL TO}",
    ">=": "\N{GREATER-THAN OR EQUAL TO}",
    "+-": "\N{PLUS-MINUS SIGN}",
    " - ": " \N{MINUS SIGN} ",
    "(-": "(\N{MINUS SIGN}",
}
INDICES = {
    "_i": "\N{LATIN SUBSCRIPT SMALL LETTER I}",
    **{str(number): chr(ord("\N{SUBSCRIPT ZERO}") + number) for number in range(5)},
}
SYMBOL = re.compile(rf"(?<![\w-])({'|'.join(GREEK)})(-bar)?(')?([0-4]|_i)?(?![\w-])")


def write_figure(data: FigureData, stem: Path, dpi: int = 200) -> list[Path]:
    """Write ``stem`` with the suffixes png, svg and csv, each atomically, and return the paths."""
    paths = [stem.parent / f"{stem.name}.{suffix}" for suffix in FORMATS]
    note = ROW * (1 + _wrap_note(data).count("\n")) if data.note else 0.0
    size = (WIDTH, HEIGHT * len(data.panels) + 0.3 + _legend_height(data) + note)
    save(lambda figure: draw(data, figure), paths[:2], size, style=STYLE, salt=stem.name, dpi=dpi)
    write_text(paths[2], csv_text(list(data.rows())))
    return paths


def draw(data: FigureData, figure: Figure) -> None:
    """Draw panels, legends and the note on an empty figure."""
    heights = [HEIGHT] * len(data.panels)
    legend = _legend_height(data)
    # The legend has its own row, so that it does not overlap the note below.
    grid = figure.add_gridspec(len(heights) + bool(legend), height_ratios=[*heights, legend] if legend else heights)
    panels = [figure.add_subplot(grid[number]) for number in range(len(heights))]
    for axes, panel in zip(panels, data.panels, strict=True):
        _draw_panel(axes, panel)
        if not legend:
            axes.legend(loc="best", ncols=COLUMNS if len(panel.lines) > MANY else 1)
    figure.suptitle(typeset(data.title))
    if legend:
        row = figure.add_subplot(grid[-1], frameon=False, xticks=[], yticks=[])
        handles, labels = panels[0].get_legend_handles_labels()
        row.legend(handles, labels, loc="center", ncols=_columns(data.panels[0]), borderaxespad=0)
    if data.note:
        figure.supxlabel(_wrap_note(data), fontsize=7)


def typeset(text: str) -> str:
    """Replace names of Greek letters, with bars, primes and indices, by the letters.

    Data and tables keep the names, which are easier to search for.

    Example:
        >>> typeset("MaxExp, eta = 3, y1 >= y0") == "MaxExp, \u03b7 = 3, y\u2081 \u2265 y\u2080"
        True
        >>> typeset("y1(eta-bar), exp(-y)") == "y\u2081(\u03b7\u0304), exp(\u2212y)"
        True
        >>> typeset("Gamma on betas, SpecMaxExp-eta")
        'Gamma on betas, SpecMaxExp-eta'
    """
    for sign, typed in SIGNS.items():
        text = text.replace(sign, typed)
    return plain(SYMBOL.sub(_letter, text))


def _letter(found: re.Match[str]) -> str:
    name, bar, prime, index = found.groups()
    accents = ("\N{COMBINING MACRON}" if bar else "") + ("\N{PRIME}" if prime else "")
    return unicodedata.lookup(GREEK[name]) + accents + INDICES.get(index, "")


def _legend_height(data: FigureData) -> float:
    """Inches of one legend below the panels; 0 if each panel has its own."""
    names = [[line.name for line in panel.lines] for panel in data.panels]
    first = data.panels[0]
    is_shared = all(found == names[0] for found in names)
    is_measured = any(line.measured for line in first.lines)  # unlike formulas, they may leave no room
    if not is_shared or not (len(names) > 1 or len(names[0]) > MANY or is_measured):
        return 0.0
    lines = sum(1 + _wrap_name(name).count("\n") for name in names[0])
    return ROW * -(-lines // _columns(first)) + 0.2


def _columns(panel: Panel) -> int:
    return COLUMNS if max(len(line.name) for line in panel.lines) <= NARROW else 1


def _draw_panel(axes: Axes, panel: Panel) -> None:
    numbers: dict[str | None, int] = {}
    unused = count()
    for line in panel.lines:
        number = numbers[line.like] if line.like in numbers else next(unused)
        numbers[line.name] = number
        _draw_line(axes, line, number)
    for axis, ruler in ((panel.x, "x"), (panel.y, "y")):
        axes.set(**{f"{ruler}label": typeset(axis.text)})
        if axis.log:
            axes.set(**{f"{ruler}scale": "log"})
        if axis.limits is not None:
            axes.set(**{f"{ruler}lim": axis.limits})
    if panel.x.log and all(line.measured for line in panel.lines):  # ticks at the measured sizes
        axes.set_xticks(sorted({value for line in panel.lines for value in line.x.tolist()}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_title(typeset(panel.title))
    for mark in panel.marks:
        _draw_mark(axes, mark)


def _draw_line(axes: Axes, line: Line, number: int) -> None:
    # Colour and dash both change with every line: neighbours can be told apart by either.
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[(number if line.dash is None else line.dash) % len(DASHES)]
    axes.plot(
        line.x.tolist(),
        line.y.tolist(),
        linestyle=dash if line.joined else "none",
        color=colour,
        marker="o" if line.measured else "" if line.joined else "D",
        fillstyle="full" if line.joined else "none",
        label=_wrap_name(line.name),
    )
    if line.interval is not None:
        low, high = (values.tolist() for values in line.interval)
        axes.fill_between(line.x.tolist(), low, high, color=colour, alpha=0.15, linewidth=0)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    look: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "linestyle": "--", "zorder": 0}
    place: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 8}
    if mark.axis == "x":
        axes.axvline(mark.at, **look)
        axes.text(mark.at, 0.02, typeset(mark.name), transform=axes.get_xaxis_transform(), rotation=90, **place)
    else:
        axes.axhline(mark.at, **look)
        axes.text(0.99, mark.at, typeset(mark.name), transform=axes.get_yaxis_transform(), **place)


def _wrap_name(name: str) -> str:
    return textwrap.fill(typeset(name), LEGEND_LETTERS)


def _wrap_note(data: FigureData) -> str:
    return textwrap.fill(plain(data.note), NOTE_LETTERS)
