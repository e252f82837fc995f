"""Plots: numbers against NumPy and SciPy, and texts of the SVG files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from powerpool.errors import ArgumentError
from powerpool.report import plots
from powerpool.report.groups import Group, group_records
from powerpool.report.plots import (
    bin_edges,
    draw_confusion,
    draw_confusions,
    draw_costs,
    draw_curves,
    draw_episodes,
    draw_spectra,
    draw_sweep,
    draw_values,
    mean_curve,
)
from powerpool.report.tables import MISSING, make_table
from powerpool.runs.record import Confusion, RunRecord
from tests.report.samples import (
    confused,
    confusion,
    draw_right,
    episode_run,
    episodes,
    fold,
    graph_run,
    image_run,
    spectrum,
)

RIGHT = draw_right(0.5, 1)


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def only(*records: RunRecord) -> Group:
    (group,) = group_records(records)
    return group


# ---- values and curves -----------------------------------------------------------------------------------------------


def test_bars_of_values_are_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    seen: list[tuple[Any, Any]] = []
    draw = Axes.errorbar

    def errorbar(self: Axes, x: Any, y: Any, **more: Any) -> Any:
        seen.append((x, more["xerr"]))
        return draw(self, x, y, **more)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    draw_values(only(image_run("SOP", [True] * 95 + [False] * 5)), tmp_path / "a.svg")
    draw_values(only(graph_run("SOP", [80.0])), tmp_path / "b.svg")
    (means, (below, above)), (_, single) = seen
    wilson = stats.binomtest(95, 100).proportion_ci(method="wilson")
    assert list(means) == [95.0]
    assert (below[0], above[0]) == pytest.approx((95 - 100 * wilson.low, 100 * wilson.high - 95))
    assert np.isnan(single).all()


def test_curve_is_the_mean_over_the_results_that_reached_the_epoch() -> None:
    lines = ((1.0, 2.0, None), (3.0, 6.0, 5.0, 7.0), ())
    results = tuple(fold(1.0, number, curves={"loss": line}) for number, line in enumerate(lines))
    record = graph_run("SOP", results=(*results, fold(1.0, 9)))
    expected = [(1, 2.0, math.sqrt(2)), (2, 4.0, math.sqrt(8)), (3, 5.0, 0.0), (4, 7.0, 0.0)]
    np.testing.assert_allclose(mean_curve(record, "loss"), expected)
    assert mean_curve(record, "unknown") == []


def test_curve_over_training_episodes() -> None:
    other = episodes(RIGHT, 1, curves={"episode": (500.0, 750.0), "train_loss": (0.25, 0.1)})
    record = episode_run("SoSN(x)", results=(episodes(RIGHT), other))
    expected = [(250, 0.2, 0.0), (500, 0.2, math.sqrt(0.005)), (750, 0.1, 0.0), (1000, 0.1, 0.0)]
    np.testing.assert_allclose(mean_curve(record, "train_loss"), expected)


def test_curves_are_drawn_for_the_methods_that_have_them(tmp_path: Path) -> None:
    more = {"curves": {"train_loss": (0.5, 0.4), "validation_loss": (), "own_curve": (1.0, 2.0)}}
    group = only(graph_run("GIN0", [1.0, 2.0]), graph_run("SOP", [1.0, 2.0], result=more))
    assert draw_curves(group, tmp_path / "a.svg")
    drawn = texts(tmp_path / "a.svg")
    assert {"SOP", "epoch", "training loss", "own_curve"} <= set(drawn)
    assert not {"GIN0", "validation loss"} & set(drawn)
    assert draw_curves(only(episode_run("SoSN(x)", RIGHT)), tmp_path / "b.svg")
    assert "training episode" in texts(tmp_path / "b.svg")
    assert not draw_curves(only(graph_run("GIN0", [1.0, 2.0])), tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()


def test_wide_sweep_has_a_logarithmic_axis(tmp_path: Path) -> None:
    for name, values, is_log in (
        ("eta", (1, 20, 80), True),
        ("beta", (0.0, 0.5, 1.0), False),
        ("$t$", (1, 2, 3), False),
    ):
        rows = [{name: value, "accuracy": 80.0 + value % 3, "loss": 0.5} for value in values]
        draw_sweep(rows[::-1], name, "SOP <on> images", tmp_path / "a.svg")
        assert {name, "accuracy in %", "SOP <on> images"} <= set(texts(tmp_path / "a.svg"))
        drawn = (tmp_path / "a.svg").read_bytes()
        draw_sweep(rows, name, "SOP <on> images", tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_bytes() == drawn  # in whatever order the rows come
        assert (b"10^" in drawn or b"mathdefault" in drawn) is is_log


# ---- episodes --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300))
def test_every_accuracy_is_inside_a_bin(queries: int) -> None:
    edges = bin_edges(queries)
    counts, _ = np.histogram([100 * right / queries for right in range(queries + 1)], edges)
    assert sum(counts) == queries + 1
    assert all(count > 0 for count in counts)
    assert len(set(np.round(np.diff(edges), 9))) == 1


def test_episodes_are_drawn_for_every_method(tmp_path: Path) -> None:
    group = only(episode_run("SoSN(x)", RIGHT), episode_run("RelationNet", RIGHT))
    assert draw_episodes(group, tmp_path / "a.svg")
    assert {"SoSN(x)", "RelationNet", "% of the episodes"} <= set(texts(tmp_path / "a.svg"))
    assert not draw_episodes(only(graph_run("SOP", [1.0])), tmp_path / "b.svg")


# ---- spectra and confusions ------------------------------------------------------------------------------------------


def test_spectra_are_drawn_for_the_methods_that_have_them(tmp_path: Path) -> None:
    group = only(graph_run("GIN0", [1.0]), graph_run("SOP", [1.0], result={"spectrum": spectrum(100)}))
    assert draw_spectra(group, tmp_path / "a.svg")
    drawn = texts(tmp_path / "a.svg")
    assert {"SOP", "1", "64"} <= set(drawn)
    assert not {"GIN0", "128"} & set(drawn)
    assert not draw_spectra(only(graph_run("GIN0", [1.0])), tmp_path / "b.svg")


def test_few_classes_have_a_panel_for_each_method(tmp_path: Path) -> None:
    records = [
        graph_run("GIN0", [50.0], result=confusion([[11, 0], [11, 0]], "ab")),
        graph_run("SOP", [50.0], result=confusion([[12, 3], [9, 0]], "ab")),
        graph_run("SOP+SigmE", [1.0]),
    ]
    assert draw_confusions(only(*records), tmp_path / "a.svg")
    drawn = texts(tmp_path / "a.svg")
    assert {"GIN0", "SOP", "a", "b", "true", "predicted"} <= set(drawn)
    assert "SOP+SigmE" not in drawn
    assert sorted(text for text in drawn if text.isdigit()) == ["100", "100", "100", "20", "80"]


@pytest.mark.parametrize("classes, is_drawn", [(7, True), (26, False)])
def test_more_classes_show_the_baseline_and_the_best(tmp_path: Path, classes: int, is_drawn: bool) -> None:
    names = tuple(f"c{number}" for number in range(classes))
    records = [
        graph_run(method, results=(fold(**confused(seed, names)),))
        for seed, method in enumerate(("GIN0", "SOP", "SOP+SigmE"))
    ]
    best, other = sorted(records[1:], key=lambda record: -record.mean)
    assert draw_confusions(only(*records), tmp_path / "a.svg") is is_drawn
    if is_drawn:
        drawn = texts(tmp_path / "a.svg")
        assert {"GIN0", best.method} <= set(drawn) or best.mean < records[0].mean
        assert other.method not in drawn


@pytest.mark.parametrize("classes, has_names, has_numbers", [(3, True, True), (30, True, False), (50, False, False)])
def test_one_confusion_matrix(tmp_path: Path, classes: int, has_names: bool, has_numbers: bool) -> None:
    names = tuple(f"class {number}" for number in range(classes))
    entries = tuple(f"{number} 0 8" for number in range(1, classes))  # class 0 has no samples
    draw_confusion(Confusion(names, entries), tmp_path / "a.svg", "a <title>")
    drawn = texts(tmp_path / "a.svg")
    assert "a <title>" in drawn
    assert ("class 1" in drawn) is has_names
    assert (drawn.count("100") == classes) is has_numbers  # one is a tick of the colour bar
    with pytest.raises(ArgumentError, match="jpg"):
        draw_confusion(Confusion(names, entries), tmp_path / "a.jpg")


def test_accuracy_against_episodes_and_cpu_seconds(tmp_path):
    own = {"episode": (250.0, 500.0), "validation_value": (40.0, 50.0), "cpu_seconds": (10.0, 20.0)}
    record = episode_run("SoSN(x)", RIGHT, RIGHT, result={"curves": own})
    assert draw_costs(only(record), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "CPU seconds" in text
    assert "training episodes" in text
    assert not draw_costs(only(episode_run("SoSN(x)", RIGHT)), tmp_path / "b.svg")


def test_a_method_that_starts_from_an_encoder_begins_where_its_training_ends(tmp_path, monkeypatch):
    own = {"episode": (250.0, 500.0), "validation_value": (40.0, 50.0), "cpu_seconds": (10.0, 20.0)}
    training = {"training": {"episodes": 500}}
    start = {"part": "encoder", "data": "miniimagenet100", "method": "NCM(x+L)", "episodes": 500}
    first = episode_run("NCM(x+L)", RIGHT, result={"curves": own, "cpu_seconds": 30.0}, config=training)
    config = {**training, "pretraining": start}
    then = episode_run("SoSN(x)+Enc", RIGHT, result={"curves": own, "cpu_seconds": 40.0}, config=config)
    drawn = {}

    def noted(axes: Any, places: Any, points: Any, record: RunRecord, number: int, marker: str) -> None:
        drawn.setdefault(record.method, []).append(places)

    monkeypatch.setattr(plots, "_draw_means", noted)
    group = only(first, then)
    assert draw_costs(group, tmp_path / "a.svg")
    assert drawn == {"NCM(x+L)": [[250, 500], [10, 20]], "SoSN(x)+Enc": [[750, 1000], [30, 40]]}
    table = make_table(group)
    cells = dict(zip(table.headings, table.rows[1], strict=True))
    assert (cells["training episodes"], cells["CPU seconds"]) == ("500 + 500", "30 + 40")
    other = replace(then, config={**config, "pretraining": {**start, "episodes": 400}})  # of another training
    group = only(first, other)
    assert group.encoder_of(other) is None
    drawn.clear()
    assert draw_costs(group, tmp_path / "c.svg")
    assert list(drawn) == ["NCM(x+L)"]
    table = make_table(group)
    assert dict(zip(table.headings, table.rows[1], strict=True))["CPU seconds"] == f"{MISSING} + 40"
    without = episode_run("NCM(x+L)", RIGHT, config=training)  # as recorded by version 0.1
    assert not draw_costs(only(without, then), tmp_path / "b.svg")
