"""Only finished records are published; the stored tables and plots are those of the stored records."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from powerpool.bench import plots, publish, record, tables
from powerpool.bench.publish import PublishOptions
from powerpool.bench.record import TARGETS
from powerpool.errors import ArgumentError, RecordError
from tests.bench import samples
from tests.bench.test_record import sweep

RESULTS = Path(__file__).parents[2] / "results" / "bench"
stored = pytest.mark.skipif(not RESULTS.exists(), reason="results are stored in a checkout only")


def test_finished_records_are_copied_and_their_tables_are_written(tmp_path: Path) -> None:
    source, out = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    out.mkdir()
    samples.record(suite="curves").save(out / "curves.json")  # published before: stays
    samples.pair(auto=3.0).save(source / "pools.json")
    publish.run(PublishOptions(source, out))
    assert record.load(out / "pools.json") == samples.pair(auto=3.0)
    text = (out / "README.md").read_text()
    assert text == publish.markdown([samples.pair(auto=3.0), samples.record(suite="curves")])
    assert "## pools" in text
    assert "## curves" in text
    assert "a machine, 2 threads" in text


@pytest.mark.parametrize("complete, quick", [(False, False), (True, True)])
def test_an_unfinished_or_quick_record_is_refused_and_nothing_is_written(tmp_path, complete, quick) -> None:
    unfit = samples.record(samples.case("first", {"channels": 2}), quick=quick)
    unfit.complete = complete
    samples.record(suite="curves").save(tmp_path / "curves.json")
    unfit.save(tmp_path / "pools.json")
    with pytest.raises(RecordError, match="quick" if quick else "unfinished"):
        publish.run(PublishOptions(tmp_path, tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_a_folder_without_records_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=tmp_path.name):
        publish.run(PublishOptions(tmp_path, tmp_path / "results"))
    with pytest.raises(ArgumentError, match="source"):
        PublishOptions(tmp_path / "missing")


def test_losses_and_cases_whose_answers_disagreed_are_listed() -> None:
    results = [samples.measured("powerpool auto", 3.0), samples.measured("rival", 2.0, "competitor")]
    wrong = dataclasses.replace(samples.case("wrong", {"channels": 64}), error="powerpool auto is off by 1")
    text = publish.markdown([samples.record(samples.case("row", {"channels": 64}, *results), wrong)])
    assert "| row | powerpool auto | rival | 1.50 |" in text
    assert "- wrong: powerpool auto is off by 1" in text


@stored
def test_the_stored_tables_are_those_of_the_stored_records() -> None:
    kept = [record.load(RESULTS / f"{suite}.json") for suite in publish.SUITES]
    assert all(one.complete and not one.options.quick for one in kept)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == publish.markdown(kept)
    table = tables.summary_table(record.load(RESULTS / "pools.json")).as_markdown()
    assert len(table) == 2 + len(TARGETS)
    assert "\n".join(table) in (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")


@stored
def test_stored_records_name_no_folder_of_a_machine() -> None:
    for path in RESULTS.glob("*.json"):
        assert "/root" not in path.read_text(encoding="utf-8")
        assert "/home" not in path.read_text(encoding="utf-8")


def test_plots_have_every_contender_and_their_numbers_as_csv(tmp_path):
    cases = sweep("channels", (64, 128, 256), lambda c: 1e-6 * c) + sweep("eta", (5, 100, 500), lambda eta: 1e-4 * eta)
    files = plots.draw(samples.record(*cases), tmp_path)
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
    first, second = (plots.draw(samples.record(*cases), tmp_path / name, ("svg",)) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert plots.draw(samples.pair(auto=3.0), tmp_path) == []
