"""Reports: numbers computed another way, losses in words, no markup from outside, the same bytes each time."""

from __future__ import annotations

import base64
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from scipy import stats

from powerpool.cli.options import parse
from powerpool.errors import ArgumentError, RecordError
from powerpool.report import document, report, tables
from powerpool.report.plots import mean_curve
from powerpool.report.report import ReportOptions, read_records, record_path, write_report
from powerpool.runs.record import RunRecord
from tests.experiments import runs

DASH = "\N{EN DASH}"
ORDER = ("GIN0", "SOP", "SOP+SigmE", "SOP+SpecMaxExpF")
DRAW = random.Random(0)
VALUES = {method: [DRAW.gauss(85, 6) for _ in range(10)] for method in ORDER}
RECORDS = [runs.run(method, values) for method, values in VALUES.items()]


def write(records: list[RunRecord], folder: Path, baseline: str = "GIN0") -> tuple[str, str]:
    """The Markdown and the HTML of a report."""
    paths = write_report(records, folder, baseline=baseline, order=ORDER)
    assert all(path.is_file() for path in paths)
    assert sorted(paths) == sorted(folder.iterdir())
    return paths[0].read_text(encoding="utf-8"), paths[1].read_text(encoding="utf-8")


def rows(markdown: str, section: int = 0) -> dict[str, dict[str, str]]:
    """The cells of a table by method and heading."""
    blocks = [block.splitlines() for block in markdown.split("\n\n") if block.startswith("| method")]
    headings, _, *lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in blocks[section]]
    return {line[0]: dict(zip(headings, line, strict=True)) for line in lines}


class Page(HTMLParser):
    """Tags, texts and cells of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_every_number_of_a_row_is_that_of_numpy_and_scipy(tmp_path: Path) -> None:
    found = rows(write(RECORDS, tmp_path)[0])
    assert list(found) == list(ORDER)
    for method, paper_mean, paper_std in (("SOP", 86.2, 5.2), ("SOP+SpecMaxExpF", 88.9, 5.8)):
        ours, theirs, row = np.array(VALUES[method]), np.array(VALUES["GIN0"]), found[method]
        half = stats.t.ppf(0.975, 9) * ours.std(ddof=1) / math.sqrt(10)
        gaps = ours - theirs
        corrected = abs(gaps.mean()) / math.sqrt((1 / 10 + 1 / 8) * gaps.var(ddof=1))
        assert row["ours"].strip("*") == f"{ours.mean():.2f} ± {ours.std(ddof=1):.2f}"
        assert row["95 % interval"] == f"{ours.mean() - half:.2f} to {ours.mean() + half:.2f}"
        assert row["folds"] == "10"
        assert row["paper"] == f"{paper_mean} ± {paper_std}"
        assert row["ours - paper"] == f"{ours.mean() - paper_mean:+.2f}"
        assert row["within one std of the paper"] == ("yes" if abs(ours.mean() - paper_mean) <= paper_std else "no")
        assert row["ours - GIN0"] == f"{gaps.mean():+.2f}"
        assert row["p"] == f"{stats.ttest_rel(ours, theirs).pvalue:.3f}"
        assert row["corrected p"] == f"{2 * stats.t.sf(corrected, 9):.3f}"
        assert row["seconds"] == "12"
    assert {found["GIN0"][name] for name in ("ours - GIN0", "p", "corrected p")} == {DASH}
    best = max(ORDER, key=lambda method: np.mean(VALUES[method]))
    assert [method for method in ORDER if "**" in found[method]["ours"]] == [best]


def test_retraining_has_a_larger_training_set_and_so_a_smaller_correction() -> None:
    ratios = {}
    for protocol in ("validation-only", "retrain", "another"):
        found = tables.group([runs.run("GIN0", [80, 81, 85], protocol=protocol),
                              runs.run("SOP", [81, 84, 84], protocol=protocol)], "GIN0", ORDER)  # fmt: skip
        test = found[0].rows[1].test
        assert test is not None
        t, plain = stats.t.isf(test.corrected_p_value / 2, 2), stats.t.isf(test.p_value / 2, 2)
        ratios[protocol] = (plain / t) ** 2 / 3 - 1 / 3
    # The data are cut into ten parts though three folds were run.
    assert ratios == pytest.approx({"validation-only": 1 / 8, "retrain": 1 / 9, "another": 1 / 8})


@pytest.mark.parametrize("mean, within, sign", [(91.3, True, 1), (91.5, False, 1), (81.1, True, -1), (80.9, False, -1)])
def test_what_is_outside_one_deviation_of_the_paper_is_said(
    tmp_path: Path, mean: float, within: bool, sign: int
) -> None:
    # The paper has 86.2 +- 5.2 for SOP on MUTAG.
    text, page = write([runs.run("SOP", [mean - 1, mean + 1])], tmp_path)
    assert rows(text)["SOP"]["within one std of the paper"] == ("yes" if within else "no")
    if within:
        said = "All 1 with a figure in the paper are within one standard deviation of it."
        counted = "1 are within one of its standard deviations, 0 further below and 0 further above"
    else:
        said = f"Further than one standard deviation from the paper, 1 of 1: SOP ({mean - 86.2:+.2f})."
        ends = "0 further below and 1 further above" if sign > 0 else "1 further below and 0 further above"
        counted = f"0 are within one of its standard deviations, {ends}"
    for output in (text, page):
        assert said in output
        assert counted in output


def test_methods_below_the_baseline_are_named(tmp_path: Path) -> None:
    records = [runs.run("GIN0", [80.0, 84.0]), runs.run("SOP", [79.0, 82.0]), runs.run("SOP+SigmE", [85.0, 84.0])]
    text, _ = write(records, tmp_path)
    corrected = tables.group(records, "GIN0", ORDER)[0].rows[1].test.corrected_p_value
    assert f"- Below GIN0, 1 of 2: SOP (-1.50, corrected p {corrected:.3f})." in text
    assert "1 of 2 rows beside the baseline GIN0 are below it" in text
    text, _ = write([records[0], records[2]], tmp_path / "second")
    assert "- None of 1 is below GIN0." in text


def test_a_method_that_is_the_baseline_on_every_fold_is_neither_below_nor_nan(tmp_path: Path) -> None:
    text, _ = write([runs.run("GIN0", [80.0, 84.0]), runs.run("SOP", [80.0, 84.0])], tmp_path)
    row = rows(text)["SOP"]
    assert (row["ours - GIN0"], row["p"], row["corrected p"]) == ("0.00", "1.000", "1.000")
    assert "None of 1 is below GIN0" in text
    assert [name for name, cells in rows(text).items() if "**" in cells["ours"]] == []  # a tie


def test_without_the_baseline_nothing_is_compared(tmp_path: Path) -> None:
    text, _ = write([runs.run("SOP", [80.0, 84.0])], tmp_path)
    assert "There is no record of GIN0 here: no method is compared with it." in text
    assert rows(text)["SOP"]["ours - GIN0"] == DASH
    text, _ = write([runs.run("GIN0", [80.0, 84.0])], tmp_path / "second")
    assert "There is no method beside GIN0 here." in text


def test_missing_figures_of_the_paper_are_dashes(tmp_path: Path) -> None:
    text, _ = write([runs.run("SOP", [80.0, 84.0], data="ENZYMES"), runs.run("SOP", [80.0, 84.0])], tmp_path)
    row = rows(text)["SOP"]
    assert [row[name] for name in ("paper", "ours - paper", "within one std of the paper")] == [DASH] * 3
    assert "The paper has no figures for this data set and protocol." in text
    assert "Of 2 rows, 1 have a figure in the paper" in text


def test_folds_are_paired_by_number_and_fewer_of_them_are_said(tmp_path: Path) -> None:
    folds = tuple({"fold": number, "value": value} for number, value in ((7, 86.0), (0, 90.0), (3, 83.0)))
    records = [runs.run("GIN0", [float(80 + number) for number in range(10)]), runs.run("SOP", [], folds=folds)]
    text, _ = write(records, tmp_path)
    oracle = stats.ttest_rel([90.0, 83.0, 86.0], [80.0, 83.0, 87.0])
    row = rows(text)["SOP"]
    assert row["ours - GIN0"] == "+3.00 on 3 folds"
    assert row["p"] == f"{oracle.pvalue:.3f}"
    assert "3 to 10 folds, not the same number for every method" in text
    # The other way round: now the baseline has fewer.
    assert rows(write(records, tmp_path / "second", "SOP")[0])["GIN0"]["ours - SOP"] == "-3.00 on 3 folds"


@pytest.mark.parametrize("other", [{"folds": 5, "data_digest": "a"}, {"folds": 10, "data_digest": "b"}])
def test_folds_of_another_cut_or_of_other_graphs_are_not_paired(tmp_path: Path, other: dict[str, Any]) -> None:
    records = [
        runs.run("GIN0", [80.0, 84.0, 81.0], config={"folds": 10, "data_digest": "a"}),
        runs.run("SOP", [85.0, 88.0, 86.0], config=other),
    ]
    text, _ = write(records, tmp_path)
    assert rows(text)["SOP"]["p"] == DASH
    assert "Not tested against GIN0, for lack of two folds with the same graphs: SOP." in text


def test_other_seeds_and_single_folds_are_not_tested(tmp_path: Path) -> None:
    records = [
        runs.run("GIN0", [80.0, 84.0]),
        runs.run("SOP", [85.0, 88.0], seed=1),
        runs.run("SOP+SigmE", [81.0]),
    ]
    text, _ = write(records, tmp_path)
    found = rows(text)
    assert [found["SOP"][name] for name in ("ours - GIN0", "p", "corrected p")] == ["+4.50", DASH, DASH]
    assert [found["SOP+SigmE"][name] for name in ("ours", "95 % interval", "p")] == ["81.00", DASH, DASH]
    assert "Not tested against GIN0, for lack of two folds with the same graphs: SOP, SOP+SigmE." in text
    assert "seeds 0, 1" in text


def test_one_table_for_each_data_set_and_protocol(tmp_path: Path) -> None:
    records = [
        runs.run("SOP", [80.0, 84.0], data=data, protocol=protocol)
        for data in ("PTC_MR", "MUTAG")
        for protocol in ("retrain", "validation-only")
    ]
    text, _ = write(records, tmp_path)
    assert re.findall(r"^## (.*, .*)$", text, re.MULTILINE) == [
        "MUTAG, validation-only",
        "MUTAG, retrain",
        "PTC_MR, validation-only",
        "PTC_MR, retrain",
    ]
    assert rows(text, 3)["SOP"]["paper"] == DASH
    assert rows(text, 1)["SOP"]["paper"] == "89.9 ± 9.5"
    assert "trained again on the training and validation parts together" in text


def test_methods_that_nobody_ordered_come_last(tmp_path: Path) -> None:
    names = ["Zero", "SOP", "Another", "GIN0"]
    text, _ = write([runs.run(name, [80.0, 81.0]) for name in names], tmp_path)
    assert list(rows(text)) == ["GIN0", "SOP", "Another", "Zero"]


def test_chosen_hyper_parameters_are_counted() -> None:
    folds = tuple(
        {"fold": number, "value": 80.0, "chosen": {"hidden": hidden, "eta": 20.0}}
        for number, hidden in enumerate((32, 64, 64))
    )
    assert tables.chosen(runs.run("SOP", [], folds=folds)) == "hidden 64 (2), 32 (1); eta 20"
    assert tables.chosen(runs.run("SOP", [80.0])) == ""
    # Where not every fold says, the count is not left out.
    assert (
        tables.chosen(runs.run("SOP", [], folds=(*folds[1:], {"fold": 0, "value": 1.0}))) == "hidden 64 (2); eta 20 (2)"
    )


HOSTILE = '<script>alert("1")</script>|`*[x](y)* $\\frac{$ &lt;'


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    records = [
        runs.run(HOSTILE, [80.0, 84.0], data="<b>../&amp;", metric="<i>", protocol="<img src=x>"),
        runs.run("SOP", [80.0, 84.0], data="<b>../&amp;", metric="<i>", protocol="<img src=x>"),
    ]
    environment = runs.ENVIRONMENT | {"command": "powerpool </pre><script>"}
    records[1] = runs.run("SOP", [1.0, 2.0], config={"<u>": "</pre><script>"}, environment=environment)
    text, page = write(records, tmp_path)
    seen = Page(page)
    assert not {"script", "i", "u"} & set(seen.tags)
    assert seen.tags.count("img") == len(seen.images) == 2
    for expected in (HOSTILE, "powerpool '</pre><script>'", "<b>../&amp;, <img src=x>"):
        assert any(expected in found for found in seen.texts)
    for line in (line for line in text.splitlines() if not line.startswith("    ")):
        assert not re.search(r"(?<!\\)<", line)
    assert r"\<script\>alert(" in text
    assert r"\</script\>\|\`\*\[x\](y)\*" in text
    # The plots are valid XML with the name as text.
    drawn = [ET.parse(path) for path in tmp_path.glob("*.svg")]
    assert HOSTILE in {element.text for tree in drawn for element in tree.iter("{http://www.w3.org/2000/svg}text")}


def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    _, page = write([runs.with_curves("GIN0", 0), runs.with_curves("SOP", 1)], tmp_path)
    seen = Page(page)
    assert not {"link", "script", "iframe"} & set(seen.tags)
    head = "data:image/svg+xml;base64,"
    assert all(source.startswith(head) for source in seen.images)
    pictures = {path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert {base64.b64decode(source.removeprefix(head)) for source in seen.images} == pictures
    assert len(pictures) == 2
    assert "http" not in re.sub(r'src="[^"]*"|http-equiv', "", page)


def test_rows_tables_and_pictures_have_names_for_those_who_hear_the_page(tmp_path: Path) -> None:
    for name in ("a.svg", "b.png"):
        (tmp_path / name).write_bytes(b"x")
    blocks = [
        document.Heading('Results of "A" & B', 2),
        document.Table(("method", "value"), [("SOP", "1.0")]),
        *(document.Picture(f"<{name}>", tmp_path / name) for name in ("a.svg", "b.png")),
    ]
    text = document.page("title", blocks)
    assert '<th scope="row" class="short">SOP</th><td class="short">1.0</td>' in text
    assert 'role="region" aria-label="Table: Results of &quot;A&quot; &amp; B"' in text
    for name, media in (("a.svg", "image/svg+xml"), ("b.png", "image/png")):
        assert f'src="data:{media};base64,eA=="><figcaption>&lt;{name}&gt;</figcaption></figure>' in text


def test_a_machine_with_a_gpu_keeps_its_processor(tmp_path: Path) -> None:
    records = [
        runs.run(method, [1.0, 2.0], environment=runs.ENVIRONMENT | {"processor": "Some CPU", "cuda": cuda})
        for method, cuda in (("GIN0", "Some GPU"), ("SOP", None))
    ]
    text, _ = write(records, tmp_path)
    assert "- Some CPU with Some GPU, threads" in text
    assert "- Some CPU, threads" in text


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    records = [runs.with_curves(method, seed, data=data) for data in "AB" for seed, method in enumerate(ORDER)]
    first = write_report(records, tmp_path / "first", baseline="GIN0", order=ORDER)
    second = write_report(records[::-1], tmp_path / "second", baseline="GIN0", order=ORDER)
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 2 + 4
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_data_sets_with_similar_names_keep_their_own_plots(tmp_path: Path) -> None:
    paths = write_report(
        [runs.run("SOP", [1.0, 2.0], data="a/b"), runs.run("SOP", [3.0, 4.0], data="a b")],
        tmp_path,
        baseline="GIN0",
        order=ORDER,
    )
    assert len(set(paths)) == 4


def test_a_curve_is_the_mean_over_the_folds_that_reached_the_epoch() -> None:
    lines = ([1.0, 2.0, None], [3.0, 6.0, 5.0, 7.0])
    folds = tuple({"fold": number, "value": 1.0, "curves": {"loss": line}} for number, line in enumerate(lines))
    record = runs.run("SOP", [], folds=(*folds, {"fold": 9, "value": 1.0}))
    expected = [(1, 2.0, math.sqrt(2)), (2, 4.0, math.sqrt(8)), (3, 5.0, 0.0), (4, 7.0, 0.0)]
    assert np.array(mean_curve(record, "loss")) == pytest.approx(np.array(expected))
    assert mean_curve(record, "unknown") == []


def test_curves_are_drawn_for_the_methods_that_have_them(tmp_path: Path) -> None:
    more = {"curves": {"train_loss": [0.5, 0.4], "validation_loss": [], "own_curve": [1.0, 2.0]}}
    write([runs.run("GIN0", [1.0, 2.0]), runs.run("SOP", [1.0, 2.0], fold=more)], tmp_path)
    drawn = (tmp_path / "curves-MUTAG-validation-only.svg").read_text(encoding="utf-8")
    assert all(f">{text}</text>" in drawn for text in ("SOP", "training loss", "own_curve"))
    assert ">GIN0</text>" not in drawn
    assert "validation loss" not in drawn


def test_settings_are_given_once_and_differences_by_run(tmp_path: Path) -> None:
    records = [
        runs.run(method, [1.0, 2.0], data=data, config={"method": method, "data": {"name": data}, "epochs": epochs})
        for data, method, epochs in (("A", "GIN0", 10), ("A", "SOP", 10), ("B", "GIN0", 10), ("B", "SOP", 20))
    ]
    text, _ = write(records, tmp_path)
    assert "| epochs | 10 | A, B GIN0 (validation-only) |" in text
    assert "| epochs | 20 | B SOP (validation-only) |" in text
    assert "| method | GIN0" not in text  # the names of methods and data are in the tables already
    assert "none in common" in text
    assert "\n    epochs: 10\n" in write(records[:2], tmp_path / "second")[0]


def test_machines_versions_and_commands_are_named(tmp_path: Path) -> None:
    later = runs.ENVIRONMENT | {"time": "2026-01-03T00:00:00+00:00"}
    changed = runs.ENVIRONMENT | {"dirty": True, "command": "powerpool train graph"}
    records = [
        runs.run("GIN0", [1.0, 2.0]),
        runs.run("SOP", [1.0, 2.0], environment=later),
        runs.run("SOP+SigmE", [1.0, 2.0], environment=changed),
        runs.run("SOP+SpecMaxExpF", [1.0, 2.0], environment={}),
    ]
    text, _ = write(records, tmp_path)
    machine = "a machine, threads 1, python 3.12, torch 2, powerpool 0, commit 0123456789"
    assert f"- {machine}: 2 records, 2026-01-01 to 2026-01-03\n" in text
    assert f"- {machine} with changes: 1 records, 2026-01-01\n" in text
    assert "\n    powerpool reproduce graph\n    powerpool train graph\n" in text


def test_two_records_of_one_row_and_two_metrics_in_one_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="Two records of SOP on MUTAG, protocol validation-only"):
        write([runs.run("SOP", [1.0]), runs.run("SOP", [2.0])], tmp_path)
    with pytest.raises(RecordError, match="holds 'error in %', that of GIN0 'accuracy in %'"):
        write([runs.run("GIN0", [1.0]), runs.run("SOP", [2.0], metric="error in %")], tmp_path)
    with pytest.raises(
        RecordError, match=r"needs records .got none.*`powerpool reproduce graph` or `powerpool reproduce vision`"
    ):
        write([], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_reads_a_folder_and_writes_beside_the_records(tmp_path: Path, capsys) -> None:
    for record in (*RECORDS, runs.run("GIN0", [80.0, 81.0], protocol="retrain")):
        record.write(tmp_path / record_path(record))
    (tmp_path / "MUTAG" / "folds").mkdir()
    (tmp_path / "MUTAG" / "folds" / "0.json").write_text('{"value": 80.0}')  # the result of one fold
    (tmp_path / "MUTAG" / ".SOP-1.json").write_text("half of a fi")
    (tmp_path / "notes.txt").write_text("mine")
    assert {(record.method, record.protocol) for record in read_records(tmp_path)} == {
        *((record.method, "validation-only") for record in RECORDS),
        ("GIN0", "retrain"),
    }
    options = parse(ReportOptions, [f"--records={tmp_path}"])
    assert options == ReportOptions(tmp_path)
    report.run(options)
    assert "README.md, report.html and 2 plots from 5 records" in capsys.readouterr().out
    before = (tmp_path / "README.md").read_text()
    report.run(options)  # its own files are no records
    assert (tmp_path / "README.md").read_text() == before
    report.run(ReportOptions(tmp_path, tmp_path / "out"))
    assert (tmp_path / "out" / "README.md").read_text() == before


def test_records_are_filed_by_data_method_and_protocol() -> None:
    assert record_path(runs.run("SOP", [1.0])) == Path("MUTAG/SOP.json")
    assert record_path(runs.run("SOP", [1.0], protocol="retrain")) == Path("MUTAG/SOP.retrain.json")
    for name in ("a/b", "..", "/", "."):
        with pytest.raises(RecordError, match="must do as names of files"):
            record_path(runs.run("SOP", [1.0], data=name))
    with pytest.raises(RecordError, match="must do as names of files"):
        record_path(runs.run("../SOP", [1.0]))


def test_folders_without_records_say_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"no record of a run.*`powerpool reproduce graph` or `powerpool reproduce vision`"
    ):
        report.run(ReportOptions(tmp_path))
    with pytest.raises(
        ArgumentError, match=r"must be a folder.*`powerpool reproduce graph` or `powerpool reproduce vision`"
    ):
        ReportOptions(tmp_path / "missing")


def test_a_damaged_record_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "MUTAG" / "SOP.json"
    RECORDS[0].write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mean": 99.0}))
    with pytest.raises(RecordError, match=r"SOP\.json is a damaged record: its mean is 99\.0"):
        read_records(tmp_path)
