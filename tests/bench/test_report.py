"""Plots of bench records: every contender, its numbers as CSV, the same bytes each time."""

from __future__ import annotations

import csv

import pytest

from powerpool.bench import report
from tests.bench import samples
from tests.bench.test_record import sweep


def test_plots_have_every_contender_and_their_numbers_as_csv(tmp_path):
    cases = sweep("channels", (64, 128, 256), lambda c: 1e-6 * c) + sweep("eta", (5, 100, 500), lambda eta: 1e-4 * eta)
    files = report.draw(samples.record(*cases), tmp_path)
    stems = ("time-against-channels", "memory-against-channels", "time-against-eta")
    assert [path.name for path in files] == [f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg", "csv")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in files[1].read_bytes()
    for name, contender, expected in (
        ("time", "powerpool auto", [0.064, 0.128, 0.256]),
        ("memory", "form M", [size / 2**20 for size in (64, 128, 256)]),
    ):
        with (tmp_path / f"{name}-against-channels.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["contender"] == contender]
        assert [float(row["median"]) for row in rows] == pytest.approx(expected)


def test_the_same_record_gives_the_same_plots_and_one_without_a_sweep_none(tmp_path):
    cases = sweep("channels", (64, 128, 256), lambda c: 1e-6 * c)
    first, second = (report.draw(samples.record(*cases), tmp_path / name, ("svg",)) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert report.draw(samples.pair(auto=3.0), tmp_path) == []
