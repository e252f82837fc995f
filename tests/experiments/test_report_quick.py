"""Records of quick runs: they say so, and a report of them says it first and finds nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli import reproduce_fewshot as fewshot
from powerpool.cli import reproduce_graph as graph
from powerpool.cli import reproduce_vision as vision
from powerpool.report import report
from powerpool.report.report import PAGES, conclude, is_current, read_records, record_path, write_report
from powerpool.runs.config import recipe_names
from powerpool.runs.quick import NOTE, as_quick, is_quick, is_quick_recipe, warning
from powerpool.runs.record import RunRecord
from tests.experiments import runs
from tests.experiments.test_report_episodes import RECORDS as EPISODES

GRAPHS = [runs.run("GIN0", [80.0, 84.0, 86.0]), runs.run("SOP", [75.0, 80.0, 80.0])]
ORDER = "Whether the methods are in the paper's order:"
LOSS = "Below GIN0, 1 of 1: SOP"


@pytest.fixture
def pages(monkeypatch, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Writes a report without pictures, and returns the Markdown and the HTML."""
    monkeypatch.setattr(report, "_draw", lambda groups, folder: [[] for _ in groups])

    def write(*records: RunRecord) -> tuple[str, str]:
        markdown, html = (path.read_text(encoding="utf-8") for path in write_report(records, tmp_path))
        return markdown.replace("\\", ""), html.replace("&#x27;", "'")

    return write


def test_a_report_of_quick_runs_begins_with_that_and_finds_nothing(pages):
    for text in (plain := pages(*EPISODES, *GRAPHS)):
        assert ORDER in text
        assert LOSS in text
        assert "quick" not in text
    markdown, html = pages(*map(as_quick, [*EPISODES, *GRAPHS]))
    assert markdown.split("\n\n")[1].startswith(f"**{NOTE}")
    assert markdown.split("\n\n")[1].endswith("**")
    assert f"</h1>\n<p><b>{NOTE}" in html
    for text in (markdown, html):
        for finding in (ORDER, LOSS, "are below it", "holds"):
            assert finding not in text
        assert "Of quick runs, whose figures mean nothing: GIN0, SOP." in text
    # The tables are there all the same.
    lines = [[line for line in text.splitlines() if line.startswith("| SOP")] for text in (plain[0], markdown)]
    assert lines[0] == lines[1] != []


def test_of_two_tables_only_that_with_a_quick_run_has_no_findings(pages):
    for text in pages(*EPISODES, GRAPHS[0], as_quick(GRAPHS[1])):
        assert f"1 of {len(EPISODES) + 2} records are of quick runs" in text
        assert NOTE not in text
        assert "Of quick runs, whose figures mean nothing: SOP." in text
        assert LOSS not in text
        assert ORDER in text
        assert "rows beside the baseline RelationNet are below it." in text
        assert "rows beside the baseline GIN0" not in text


def test_a_record_keeps_that_it_is_of_a_quick_run_and_old_ones_are_of_none(tmp_path):
    as_quick(GRAPHS[0]).write(tmp_path / "quick.json")
    assert is_quick(RunRecord.read(tmp_path / "quick.json"))
    assert not is_quick(GRAPHS[0])
    for other in ("yes", 1, False, None):
        assert not is_quick(replace(GRAPHS[0], environment={"quick": other}))
    assert warning([]) == warning(GRAPHS) == ""


def test_what_is_quick_is_known_by_option_and_by_recipe():
    quick = {name for name in recipe_names() if is_quick_recipe(name)}
    assert quick == {
        *(f"{pipeline}/quick" for pipeline in ("graph", "vision", "fewshot")),
        *(f"demo/{pipeline}-quick" for pipeline in ("graph", "vision", "fewshot")),
    }
    for kind in (graph.ReproduceGraphOptions, vision.ReproduceVisionOptions, fewshot.ReproduceFewShotOptions):
        pipeline = kind.__module__.rpartition(".")[2]
        assert not kind().is_quick
        assert not kind(recipe=f"demo/{pipeline}").is_quick
        assert not kind(recipe="my/quick").is_quick
        assert kind(quick=True).is_quick
        assert kind(recipe=f"demo/{pipeline}-quick").is_quick


# ---- filing and drawing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
def test_records_are_filed_with_the_flag_and_the_report_may_be_left_out(quick, tmp_path, pages):
    made = conclude(GRAPHS, tmp_path, quick=quick, report=False)
    assert (made.written, made.quick) == ([], quick)
    assert made.records == read_records(tmp_path)
    assert [is_quick(record) for record in made.records] == [quick] * 2
    assert not (tmp_path / PAGES[0]).exists()
    made = conclude(GRAPHS, tmp_path, quick=quick, report=True)
    assert made.written == [tmp_path / name for name in PAGES]
    assert (NOTE in made.written[0].read_text(encoding="utf-8")) == quick


def test_a_report_is_current_until_a_record_changes(tmp_path, pages):
    first, second = (tmp_path / record_path(record) for record in GRAPHS)

    def file(*records: RunRecord) -> None:
        conclude(records, tmp_path, quick=False, report=False)

    def draw() -> None:
        for path in (first, second):
            os.utime(path, ns=(10**18, 10**18))  # long before
        write_report(read_records(tmp_path), tmp_path)
        assert is_current(tmp_path)

    file(*GRAPHS)
    assert not is_current(tmp_path)  # there is none
    draw()
    file(*GRAPHS)
    assert is_current(tmp_path)
    assert first.stat().st_mtime_ns == 10**18
    for change in (
        lambda: file(replace(GRAPHS[1], seconds=1.0)),
        lambda: file(runs.run("SOP+SigmE", [1.0, 2.0])),
        (tmp_path / PAGES[0]).unlink,
        (tmp_path / PAGES[1]).unlink,
    ):
        change()
        for path in tmp_path.glob("*/*.json"):
            if path.stat().st_mtime_ns != 10**18:
                os.utime(path, ns=(4 * 10**18, 4 * 10**18))  # clocks of disks are coarse
        assert not is_current(tmp_path)
        for path in tmp_path.glob("*/*.json"):
            os.utime(path, ns=(10**18, 10**18))
        draw()


def test_a_damaged_record_is_written_anew(tmp_path):
    conclude(GRAPHS, tmp_path, quick=False, report=False)
    path = tmp_path / record_path(GRAPHS[0])
    path.write_text(path.read_text().replace("84.0", "85.0"))
    conclude(GRAPHS, tmp_path, quick=False, report=False)
    assert RunRecord.read(path) == GRAPHS[0]
