"""The data of a figure drawn with matplotlib, and written as a table."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from powerpool.figures import drawing
from powerpool.figures.data import Axis, FigureData, Line, Mark, Panel, linear, logarithmic
from powerpool.figures.drawing import draw, typeset, write_figure
from powerpool.figures.registry import make_figure
from powerpool.report import drawing as plotting


def two(name: str = "b", count: int = 3, **more) -> FigureData:
    x = torch.arange(1.0, 4.0, dtype=torch.float64)
    lines = [Line("a", x, x**2, (x**2 - 1, x**2 + 1), measured=True)]
    lines += [Line(f"{name}{number}", x, number * x, **more) for number in range(count - 1)]
    panel = Panel("first", Axis("size", "m", log=True), Axis("gain"), tuple(lines), (Mark("here", 2.0),))
    return FigureData("A title", (panel, Panel("second", panel.x, panel.y, panel.lines)), "from nowhere")


@pytest.mark.parametrize("name", ["curves", "kappa", "fahdp", "fahdp-line", "y-of-eta"])
def test_lines_and_marks_are_those_of_the_data(name):
    data, figure = make_figure(name), Figure()
    draw(data, figure)
    for panel, axes in zip(data.panels, figure.axes, strict=False):
        drawn = axes.get_lines()
        assert len(drawn) == len(panel.lines) + len(panel.marks)
        for line, found in zip(panel.lines, drawn, strict=False):
            assert list(found.get_xdata()) == line.x.tolist()
            assert list(found.get_ydata()) == line.y.tolist()
            assert found.get_label() == typeset(line.name)
        assert (axes.get_xlabel(), axes.get_ylabel()) == (typeset(panel.x.text), typeset(panel.y.text))
        assert (axes.get_xscale() == "log", axes.get_yscale() == "log") == (panel.x.log, panel.y.log)
        for mark, found in zip(panel.marks, drawn[len(panel.lines) :], strict=True):
            places = found.get_xdata() if mark.axis == "x" else found.get_ydata()
            assert list(places) == [mark.at] * 2
        looks = {(found.get_color(), found.get_linestyle()) for found in drawn[: len(panel.lines)]}
        assert len(looks) == len(panel.lines)
        assert {colour for colour, _ in looks} <= set(plotting.COLOURS)


def test_the_table_has_every_point_interval_and_mark():
    rows = list(two().rows())
    axes = {"panel": "first", "x_axis": "size (m)", "y_axis": "gain"}
    assert rows[1] == {**axes, "line": "a", "x": 2.0, "y": 4.0, "lower": 3.0, "upper": 5.0}
    assert rows[9] == {**axes, "line": "here", "x": 2.0, "y": "", "lower": "", "upper": ""}
    assert len(rows) == 2 * 9 + 1


def test_the_same_data_gives_the_same_files_and_leaves_matplotlib_unchanged(tmp_path):
    hostile = "costs 5$ & <b>6$"
    before = dict(mpl.rcParams)
    written = [write_figure(two(hostile), tmp_path / folder / "two.v1", dpi=30) for folder in ("a", "b")]
    assert [path.name for path in written[0]] == ["two.v1.png", "two.v1.svg", "two.v1.csv"]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert dict(mpl.rcParams) == before
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(path.name for path in written[0])
    # Text of an SVG can be searched, and names are not read as formulas.
    texts = [element.text for element in ET.parse(written[0][1]).iter("{http://www.w3.org/2000/svg}text")]
    for text in ("A title", "first", "second", "size (m)", "gain", "a", f"{hostile}0", "here", "from nowhere"):
        assert text in texts


def test_a_band_spans_the_interval_of_each_point():
    figure = Figure()
    draw(two(), figure)
    (band,) = figure.axes[0].collections
    (path,) = band.get_paths()
    expected = {(x, end) for x in (1.0, 2.0, 3.0) for end in (x * x - 1, x * x + 1)}
    assert {tuple(vertex) for vertex in path.vertices.tolist()} == expected


LONG = "With forming M; batch = 8, C = 256, N = 196; median and quartiles. Measured with powerpool 0.1.0 on Some Maker"
LONG += " (R) Processor (TM) Gold 6338 CPU @ 2.00GHz, 2 threads, Python 3.12.3, torch 2.9.0, at 5 $ and 6 $ an hour"


@pytest.mark.parametrize(
    "name, note", [("short", LONG), ("SOP+SC+SpecMaxExpF of a method whose name is long " * 3, "x" * 300)]
)
def test_long_text_is_wrapped_and_stays_inside_the_figure(name, note):
    given = two(name)
    data, figures = FigureData(given.title, given.panels, note), []

    def measure(draw, paths, size, *, style, **_):
        with mpl.rc_context(style):
            figures.append(Figure(figsize=size, layout="constrained"))
            draw(figures[0])
            figures[0].draw_without_rendering()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "save", measure)
        patch.setattr(drawing, "write_text", lambda *_: None)
        write_figure(data, Path("figure"))
    (figure,) = figures
    texts = [figure._supxlabel, figure._suptitle, *figure.axes[-1].get_legend().get_texts()]
    for text in texts:
        extent = text.get_window_extent()
        assert extent.x0 >= 0, text.get_text()
        assert extent.x1 <= figure.bbox.x1, text.get_text()
        assert extent.y0 >= 0, text.get_text()
        assert extent.y1 <= figure.bbox.y1, text.get_text()
    assert " ".join(figure._supxlabel.get_text().split()) == plotting.plain(note) or "x" * 80 in note


def test_a_line_like_another_has_the_same_colour_and_another_dash():
    figure = Figure()
    draw(two(count=2, like="a", dash=1), figure)
    first, second = figure.axes[0].get_lines()[:2]
    assert first.get_color() == second.get_color()
    assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")


def test_measured_sizes_are_the_ticks():
    x = torch.tensor([64.0, 128.0, 2048.0], dtype=torch.float64)
    panel = Panel("", Axis("C", log=True), Axis("s"), (Line("a", x, x, measured=True),))
    figure = Figure()
    draw(FigureData("", (panel,)), figure)
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["64", "128", "2048"]


@given(st.floats(1e-6, 1e3), st.floats(1.01, 1e6), st.integers(2, 50))
def test_points_rise_between_exact_ends(low, factor, points):
    for found in (linear(low, low * factor, points), logarithmic(low, low * factor, points)):
        assert (found[0].item(), len(found)) == (pytest.approx(low, rel=1e-12), points)
        assert found[-1].item() == pytest.approx(low * factor, rel=1e-12)
        assert (found.diff() > 0).all()
