"""The data of a figure as PNG, SVG and CSV. All figures have one look, made for half the width of a page."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.figures.data import FigureData, Panel
from powerpool.report.drawing import COLOURS, DASHES, plain, save, write_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 3.0
"""Inches of a figure and of one panel. Panels are above one another: side by side their letters would be too small."""
ROW = 0.2
"""Inches of a line of text in the legend or the note."""
COLUMNS = 2
MANY = 4
"""A legend of more lines has columns, and stands below the axes where it can."""
LETTERS = {"note": 76, "legend": 58}
"""In each line of a note, and of a name in the legend."""
NARROW = 28
"""Letters of the longest name that a legend of two columns has room for."""
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
    "svg.fonttype": "none",  # text stays text: it can be searched, and is a tenth in size
}
FORMATS = ("png", "svg", "csv")
GREEK = ("alpha", "beta", "gamma", "eps", "eta", "kappa", "lambda")
SIGNS = {
    "<=": "\N{LESS-THAN OR EQUAL TO}",
    ">=": "\N{GREATER-THAN OR EQUAL TO}",
    "+-": "\N{PLUS-MINUS SIGN}",
    " - ": " \N{MINUS SIGN} ",
    "(-": "(\N{MINUS SIGN}",
}
NAMES = {"eps": "epsilon", "lambda": "lamda"}
"""Letters that Unicode calls otherwise."""
INDICES = {
    "_i": "LATIN SUBSCRIPT SMALL LETTER I",
    **{str(number): f"SUBSCRIPT {name}" for number, name in enumerate(("ZERO", "ONE", "TWO", "THREE", "FOUR"))},
}
SYMBOL = re.compile(rf"(?<![\w-])({'|'.join(GREEK)}|y)(-bar)?(')?([0-4]|_i)?(?![\w-])")


def write_figure(data: FigureData, stem: Path, dpi: int = 200) -> list[Path]:
    """Write ``stem`` with the suffixes png, svg and csv, each atomically, and return the paths."""
    paths = [stem.parent / f"{stem.name}.{suffix}" for suffix in FORMATS]
    size = (WIDTH, _height(data))
    save(lambda figure: draw(data, figure), paths[:2], size, style=STYLE, salt=stem.name, dpi=dpi)
    write_rows(paths[2], list(data.rows()))
    return paths


def draw(data: FigureData, figure: Figure) -> None:
    """Put panels, legends and the note on an empty figure."""
    heights = [HEIGHT] * len(data.panels)
    legend = _legend_height(data)
    # A row of its own for the legend: the note below has its place then, too.
    grid = figure.add_gridspec(len(heights) + bool(legend), height_ratios=[*heights, legend] if legend else heights)
    panels = [figure.add_subplot(grid[number]) for number in range(len(heights))]
    for axes, panel in zip(panels, data.panels, strict=True):
        _draw_panel(axes, panel)
        if not legend:
            axes.legend(loc="best", ncols=COLUMNS if len(panel.lines) > MANY else 1)
    figure.suptitle(typeset(data.title))
    if legend:
        row = figure.add_subplot(grid[-1], frameon=False, xticks=[], yticks=[])
        row.legend(
            *panels[0].get_legend_handles_labels(), loc="center", ncols=_columns(data.panels[0]), borderaxespad=0
        )
    if data.note:
        figure.supxlabel(_wrap(plain(data.note), "note"), fontsize=7)


def typeset(text: str) -> str:
    """Words that are letters of formulas as these letters, with their bars, primes and indices; no formulas else.

    Data and tables stay in plain letters, which are easier to look for.

    Example:
        >>> typeset("MaxExp, eta = 3, y1 >= y0") == "MaxExp, \u03b7 = 3, y\u2081 \u2265 y\u2080"
        True
        >>> typeset("Gamma on betas")
        'Gamma on betas'
    """
    for sign, typed in SIGNS.items():
        text = text.replace(sign, typed)
    return plain(SYMBOL.sub(_letter, text))


def _letter(found: re.Match[str]) -> str:
    name, bar, prime, index = found.groups()
    letter = name if name == "y" else unicodedata.lookup(f"GREEK SMALL LETTER {NAMES.get(name, name)}")
    low = "" if index is None else unicodedata.lookup(INDICES[index])
    return letter + ("\N{COMBINING MACRON}" if bar else "") + ("\N{PRIME}" if prime else "") + low


def _height(data: FigureData) -> float:
    note = ROW * (1 + _wrap(plain(data.note), "note").count("\n")) if data.note else 0.0
    return HEIGHT * len(data.panels) + 0.3 + _legend_height(data) + note


def _legend_height(data: FigureData) -> float:
    """Inches of a legend below the panels: where one is enough for all, and takes room that they may not have."""
    names = [[line.name for line in panel.lines] for panel in data.panels]
    first = data.panels[0]
    alike = all(found == names[0] for found in names)
    is_measured = any(line.measured for line in first.lines)  # nobody knows where these lines will leave room
    if not (alike and (len(names) > 1 or len(names[0]) > MANY or is_measured)):
        return 0.0
    lines = sum(1 + _wrap(typeset(name), "legend").count("\n") for name in names[0])
    return ROW * -(-lines // _columns(first)) + 0.2


def _columns(panel: Panel) -> int:
    return COLUMNS if max(len(line.name) for line in panel.lines) <= NARROW else 1


def _draw_panel(axes: Axes, panel: Panel) -> None:
    numbers: dict[str | None, int] = {}
    further = count()
    for line in panel.lines:
        number = numbers[line.like] if line.like in numbers else next(further)
        numbers[line.name] = number
        # Colour and dash change with every line: each alone tells neighbours apart.
        colour, dash = (
            COLOURS[number % len(COLOURS)],
            DASHES[(number if line.dash is None else line.dash) % len(DASHES)],
        )
        axes.plot(
            line.x.tolist(),
            line.y.tolist(),
            linestyle=dash if line.joined else "none",
            color=colour,
            marker="o" if line.measured else "" if line.joined else "D",
            fillstyle="full" if line.joined else "none",
            label=_wrap(typeset(line.name), "legend"),
        )
        if line.interval is not None:
            low, high = (values.tolist() for values in line.interval)
            axes.fill_between(line.x.tolist(), low, high, color=colour, alpha=0.15, linewidth=0)
    for axis, ruler in ((panel.x, "x"), (panel.y, "y")):
        axes.set(**{f"{ruler}label": typeset(axis.text)})
        if axis.log:
            axes.set(**{f"{ruler}scale": "log"})
            _label_sizes(axes, panel, ruler)
        if axis.limits is not None:
            axes.set(**{f"{ruler}lim": axis.limits})
    axes.set_title(typeset(panel.title))
    _draw_marks(axes, panel)


def _label_sizes(axes: Axes, panel: Panel, ruler: str) -> None:
    """On a logarithmic x axis the values at which was measured are what is labelled."""
    if ruler == "x" and all(line.measured for line in panel.lines):
        axes.set_xticks(sorted({value for line in panel.lines for value in line.x.tolist()}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="x", which="minor", bottom=False)


def _draw_marks(axes: Axes, panel: Panel) -> None:
    for mark in panel.marks:
        if mark.axis == "x":
            axes.axvline(mark.at, color="0.45", linewidth=0.9, linestyle="--", zorder=0)
            where, turn, side = axes.get_xaxis_transform(), 90, "right"
            axes.text(
                mark.at, 0.02, typeset(mark.name), transform=where, rotation=turn, ha=side, va="bottom", fontsize=8
            )
        else:
            axes.axhline(mark.at, color="0.45", linewidth=0.9, linestyle="--", zorder=0)
            where = axes.get_yaxis_transform()
            axes.text(0.99, mark.at, typeset(mark.name), transform=where, ha="right", va="bottom", fontsize=8)


def _wrap(text: str, where: str) -> str:
    """In lines, of text that is plain already: :func:`powerpool.report.drawing.plain` would join them again."""
    return textwrap.fill(text, LETTERS[where])
