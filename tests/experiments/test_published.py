"""The published graph results: records that are whole, and a report that says what they say."""

from dataclasses import asdict
from pathlib import Path

import pytest
from powerpool.cli.reproduce_graph import PLACES
from powerpool.tasks.graph.methods import METHODS

from powerpool.report import tables
from powerpool.report.report import BASELINE, read_records, record_path, write_report
from powerpool.runs.config import read_recipe
from powerpool.tasks.graph.config import PROTOCOLS, GraphConfig

RESULTS = Path(__file__).parents[2] / "results/graph"
PAPER = ("MUTAG", "PTC_MR", "PROTEINS", "NCI1")
SHOWN = ("GIN0", "SOP", "SOP+SigmE", "SOP+NewtonSchulz", "SOP+SpecMaxExpF")


@pytest.fixture(scope="module")
def records():
    return read_records(RESULTS)


def test_the_report_is_the_one_of_the_records(records, tmp_path):
    written = write_report(records, tmp_path, baseline=BASELINE, order=tuple(METHODS))
    for path in written:
        # The HTML page and the pictures depend on the version of matplotlib; the tables do not.
        if path.name == "README.md":
            assert path.read_text() == (RESULTS / path.name).read_text(), (
                "run: powerpool report --records results/graph"
            )
        assert (RESULTS / path.relative_to(tmp_path)).exists()


def test_every_record_lies_where_its_name_says_and_is_from_a_clean_checkout(records):
    for record in records:
        assert (RESULTS / record_path(record)).exists()
        assert record.environment["dirty"] is False
        assert record.environment["threads"] == 1


def test_every_record_was_made_with_the_recipe_that_ships(records):
    for record in records:
        model = {"method": record.method, "beta": record.config["model"]["beta"]}
        wanted = asdict(read_recipe(f"graph/{record.data}", GraphConfig))
        wanted["model"] |= model  # a row has its own method, and beta only where the method has one
        found = {name: value for name, value in record.config.items() if name != "data_digest"}
        assert found == {name: value for name, value in wanted.items() if name not in PLACES}


def test_all_rows_are_there(records):
    rows = {(record.data, record.method, record.protocol) for record in records}
    for data in PAPER:
        small = data in ("MUTAG", "PTC_MR")
        methods = METHODS if small else SHOWN
        for method in methods:
            for protocol in PROTOCOLS if small else ("validation-only",):
                assert (data, method, protocol) in rows
    assert all(record.count == 10 for record in records)


def test_rows_of_a_data_set_are_on_the_same_folds(records):
    for data in PAPER:
        cuts = {
            (record.seed, record.config["folds"], record.config["data_digest"])
            for record in records
            if record.data == data
        }
        assert len(cuts) == 1


def test_the_table_of_the_readme_has_the_figures_of_the_records(records):
    text = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    found = {(record.data, record.method): record for record in records if record.protocol == "validation-only"}
    for data in PAPER:
        cells = [f"{found[data, method].mean:.1f} ± {found[data, method].std:.1f}" for method in SHOWN]
        assert f"| {data} | {' | '.join(cells)} |" in text


def test_the_readme_counts_rows_beside_the_paper(records):
    text = " ".join((RESULTS.parents[1] / "README.md").read_text(encoding="utf-8").split())
    groups = tables.group(records, BASELINE, tuple(METHODS))
    known = {name: [row for group in groups if group.protocol == name for row in group.known] for name in PROTOCOLS}
    within = sum(bool(row.is_within) for row in known["validation-only"])
    assert f"{within} of {len(known['validation-only'])} of these rows" in text
    apart = [row.to_paper for row in known["retrain"] if not row.is_within]
    assert (len(apart), len(known["retrain"])) == (8, 9)
    assert "eight of nine rows are 5 to 14 points below it" in text
    assert (round(max(apart)), round(min(apart))) == (-5, -14)


def test_the_page_on_graphs_has_the_figures_of_the_records(records):
    text = " ".join((RESULTS.parents[1] / "docs/graphs.md").read_text(encoding="utf-8").split())
    mean = {(record.data, record.method, record.protocol): record.mean for record in records}
    for data in ("MUTAG", "PTC_MR"):
        pairs = [(mean[data, "SOP+SpecMaxExp", name], mean[data, "SOP+SpecMaxExpF", name]) for name in PROTOCOLS]
        assert " and ".join(f"{abs(eigen - fast):.1f}" for eigen, fast in pairs) in text
        gains = [mean[data, method, "retrain"] - mean[data, method, "validation-only"] for method in METHODS]
        assert f"{sum(gains) / len(gains):.1f} on {data}" in text
    for data in PAPER:
        assert mean[data, "SOP+SpecMaxExpF", "validation-only"] > mean[data, "GIN0", "validation-only"]
