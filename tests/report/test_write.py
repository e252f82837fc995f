"""Reports as files: records in, pages and plots out, the same bytes each time, and text from files is always text."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from powerpool.console import Bold, output_settings
from powerpool.errors import ArgumentError, RecordError
from powerpool.report import write
from powerpool.report.tables import Table, escaped
from powerpool.report.write import (
    PAGES,
    ReportOptions,
    file_records,
    is_current,
    print_summary,
    read_records,
    record_path,
    write_report,
)
from powerpool.runs.record import QUICK_NOTE, RunRecord, mark_quick
from tests.report.samples import (
    ENVIRONMENT,
    Page,
    confusion,
    curves,
    draw_flags,
    draw_right,
    episode_run,
    fold,
    full_graph_run,
    full_report,
    graph_run,
    image_run,
)

GRAPHS = [graph_run("GIN0", [80.0, 84.0, 86.0]), graph_run("SOP", [75.0, 80.0, 80.0])]


def read(paths: list[Path]) -> tuple[str, str]:
    """The Markdown and the HTML of a report."""
    return paths[0].read_text(encoding="utf-8"), paths[1].read_text(encoding="utf-8")


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_page_holds_all_plots_and_needs_no_other_file(tmp_path: Path) -> None:
    written = write_report([full_graph_run(method, seed) for seed, method in enumerate(("GIN0", "SOP"))], tmp_path)
    assert sorted(written) == sorted(tmp_path.iterdir())
    assert [path.name.split("-")[0] for path in written[2:]] == ["values", "curves", "confusion", "spectra"]
    text, html = read(written)
    seen = Page(html)
    assert not {"link", "script", "iframe"} & set(seen.tags)
    head = "data:image/svg+xml;base64,"
    assert [base64.b64decode(source.removeprefix(head)) for source in seen.images] == [
        path.read_bytes() for path in written[2:]
    ]
    assert "http" not in re.sub(r'src="[^"]*"|http-equiv', "", html)
    assert re.findall(r"!\[.*?\]\((.*?)\)", text) == [path.name for path in written[2:]]


def test_both_pages_have_the_same_tables(tmp_path: Path, without_plots: None) -> None:
    text, html = read(write_report(full_report(), tmp_path))
    cells = [
        cell.strip(" *").replace("\\", "")
        for line in text.splitlines()
        if line.startswith("|") and "---" not in line
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
    ]
    found = re.findall(r"<t[hd](?: [^>]*)?>(?:<b>)?(.*?)(?:</b>)?</t[hd]>", html)
    assert [cell.replace("&lt;", "<").replace("&#39;", "'") for cell in found] == cells


def test_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    records = [*full_report()[:2], *full_report()[-2:], image_run("SOP", draw_flags(0.8, 1))]
    first, second = write_report(records, tmp_path / "a"), write_report(records[::-1], tmp_path / "b")
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_similar_names_keep_their_own_plots(tmp_path: Path) -> None:
    records = [graph_run("SOP", [1.0, 2.0], data=data) for data in ("a/b", "a b", "a-b--2")]
    written = write_report(records, tmp_path)
    assert len(set(written)) == 5
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in written)


def test_names_in_plots_are_text(tmp_path: Path) -> None:
    name = '<script>alert("1")</script>|`*[x](y)* $\\frac{$ &lt;'
    more = {"curves": curves(1), "confusion": None}
    classes = ("<script>1</script>", "$\\frac{", "a|b\n# c", "\u82b1\u540d", "x" * 300)
    rows = [[1, 0, 0, 0, 1], *([0] * 5 for _ in range(4))]
    records = [graph_run(name, [50.0], data="<b>", result=more | confusion(rows, classes))]
    written = write_report(records, tmp_path)
    assert len(written) == 5
    for path in written[2:]:
        tags = {element.tag.rpartition("}")[2] for element in ET.parse(path).iter()}
        assert not {"script", "b"} & tags
    shown = {element.text for path in written[2:] for element in ET.parse(path).iter()}
    assert {name, classes[0]} <= shown


def test_damaged_records_write_nothing(tmp_path: Path) -> None:
    bad = graph_run("SOP", results=(fold(50.0, **confusion([[3, 0], [1, 0]], "ab")),))
    for records in ([GRAPHS[0], bad], []):
        with pytest.raises(RecordError):
            write_report(records, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# ---- quick runs ------------------------------------------------------------------------------------------------------


def test_quick_runs_are_marked(tmp_path: Path, without_plots: None) -> None:
    for records, warnings in (
        (GRAPHS, ()),
        ([mark_quick(record) for record in GRAPHS], (QUICK_NOTE, "mean nothing: GIN0, SOP.")),
        ([GRAPHS[0], mark_quick(GRAPHS[1])], ("1 of 2 records are from quick runs", "mean nothing: SOP.")),
    ):
        for text in read(write_report(records, tmp_path)):
            assert ("quick" in text) is bool(warnings)
            for warning in warnings:
                assert warning in text
            if warnings:
                assert text.index(warnings[0]) < text.index("MUTAG")


# ---- records in a folder ---------------------------------------------------------------------------------------------


def test_command_writes_beside_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], without_plots: None
) -> None:
    for record in (*GRAPHS, graph_run("GIN0", [80.0, 81.0], protocol="retrain")):
        record.write(tmp_path / record_path(record))
    (tmp_path / "MUTAG" / "units").mkdir()
    (tmp_path / "MUTAG" / "units" / "0.json").write_text('{"value": 80.0}')  # the result of one unit
    (tmp_path / "MUTAG" / ".SOP-1.json").write_text("half of a fi")
    GRAPHS[0].write(tmp_path / "run" / "record.json")  # of a run folder
    assert [(record.method, record.protocol) for record in read_records(tmp_path)] == [
        ("GIN0", "validation-only"),
        ("GIN0", "retrain"),
        ("SOP", "validation-only"),
    ]
    write.run(ReportOptions(tmp_path))
    assert "README.md, report.html and 0 plots from 3 records" in capsys.readouterr().out
    before = (tmp_path / "README.md").read_text()
    write.run(ReportOptions(tmp_path, tmp_path / "out"))  # its own files are not records
    assert (tmp_path / "out" / "README.md").read_text() == before


def test_json_has_a_row_for_each_record(tmp_path: Path, without_plots: None) -> None:
    with output_settings(as_json=True) as output:
        print_summary(file_records(GRAPHS, tmp_path, quick=True, report=True), tmp_path)
    found = json.loads(output.document)
    assert set(found) == {"folder", "written", "records", "quick"}
    assert found["quick"] is True
    names = {"pipeline", "data", "method", "protocol", "metric", "count", "mean", "std", "interval"}
    assert all(set(row) == names for row in found["records"])
    assert found["records"][1]["mean"] == GRAPHS[1].mean


def test_records_are_filed_by_data_method_and_protocol() -> None:
    assert record_path(GRAPHS[1]) == Path("MUTAG/SOP.json")
    assert record_path(graph_run("SOP", [1.0], protocol="retrain")) == Path("MUTAG/SOP.retrain.json")
    names = Path("miniimagenet100/SoSN(x).5-way-1-shot.json")
    assert record_path(episode_run("SoSN(x)", draw_right(0.5, 1))) == names


@pytest.mark.parametrize("name", ["../x", "..", ".hidden", "/abs"])
def test_records_cannot_be_filed_elsewhere(name: str) -> None:
    for record in (graph_run("SOP", [1.0], data=name), graph_run(name, [1.0])):
        with pytest.raises(RecordError, match="file names"):
            record_path(record)


def test_folders_without_records(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="powerpool reproduce graph"):
        read_records(tmp_path)
    with pytest.raises(ArgumentError, match="missing"):
        ReportOptions(tmp_path / "missing")


def test_damaged_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "MUTAG" / "SOP.json"
    GRAPHS[1].write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mean": 99.0}))
    with pytest.raises(RecordError, match=r"SOP\.json is a damaged record: mean is 99\.0"):
        read_records(tmp_path)
    file_records(GRAPHS, tmp_path, quick=False, report=False)
    assert read_records(tmp_path) == GRAPHS


@pytest.mark.parametrize("quick", [False, True])
def test_report_may_be_left_out(quick: bool, tmp_path: Path, without_plots: None) -> None:
    made = file_records(GRAPHS, tmp_path, quick=quick, report=False)
    assert (made.written, made.quick) == ([], quick)
    assert made.records == read_records(tmp_path)
    assert {record.environment.quick for record in made.records} == {quick}
    assert not (tmp_path / PAGES[0]).exists()
    made = file_records(GRAPHS, tmp_path, quick=quick, report=True)
    assert made.written == [tmp_path / name for name in PAGES]


def test_report_is_current_until_a_record_changes(tmp_path: Path, without_plots: None) -> None:
    def set_times() -> None:
        for path in tmp_path.glob("*/*.json"):
            os.utime(path, ns=(10**18, 10**18))  # long ago

    def file(*records: RunRecord) -> None:
        file_records(records, tmp_path, quick=False, report=False)

    file(*GRAPHS)
    assert not is_current(tmp_path)
    changes: list[Callable[[], None]] = [
        lambda: file(replace(GRAPHS[1], seconds=1.0)),
        lambda: file(graph_run("SOP+SigmE", [1.0, 2.0])),
        (tmp_path / PAGES[0]).unlink,
    ]
    for change in changes:
        set_times()
        write_report(read_records(tmp_path), tmp_path)
        file(*read_records(tmp_path))  # equal records keep their files
        assert is_current(tmp_path)
        change()
        for path in tmp_path.glob("*/*.json"):
            if path.stat().st_mtime_ns != 10**18:
                os.utime(path, ns=(4 * 10**18, 4 * 10**18))  # clocks of disks are coarse
        assert not is_current(tmp_path)


# ---- text of others --------------------------------------------------------------------------------------------------


READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
"""An independent reader of Markdown, which reads it as GitHub does."""
SIGNS = [*"|`*_[]&#$\\\"'>7aé\n\t\u2028", "```", "~~~", "~~", "**", "__", "\n\n", "    "]
PIECES = [*SIGNS, "<b>", "</td>", "<script>", "<!--", "[x](y)", "![", "&lt;", "$$", ":--", "http://x.y", "{{ 1 }}"]
PIECES += ["---", "===", "## ", "- ", "+ ", "1. ", "2) ", "> ", "{% if %}"]
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=1, max_size=8).map("".join)
# XML and HTML do not have these characters.
hostile = hostile.map(lambda text: re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "", text))
hostile = hostile.filter(lambda text: text.strip() != "")


@settings(max_examples=200)
@given(hostile)
def test_tables_show_every_text_as_it_is(text: str) -> None:
    tokens = READER.parse(
        f"## {escaped(text)}\n\n{Table((text, 'b'), [(text, Bold(text)), ('c', text)]).as_markdown()}"
    )
    kinds = [token.type for token in tokens if token.nesting == 1]
    cells = [*["th_open"] * 2, "tbody_open", *["tr_open", *["td_open"] * 2] * 2]
    assert kinds == ["heading_open", "table_open", "thead_open", "tr_open", *cells]
    shown = []
    for token in tokens:
        if token.type == "inline":
            assert {child.type for child in token.children or ()} <= {"text", "strong_open", "strong_close"}
            shown.append("".join(child.content for child in token.children or ()))
    expected = " ".join(text.split())
    # A bold text that ends in a sign may not be bold in Markdown; it is text in any case.
    assert [found.strip("*") for found in shown] == [
        part.strip("*") for part in (expected, expected, "b", expected, expected, "c", expected)
    ]


@pytest.fixture(scope="module")
def structure(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The tags and the Markdown tokens of a report with harmless names."""
    return read_report("x", tmp_path_factory.mktemp("plain"))[:2]


def read_report(name: str, folder: Path) -> tuple[list[str], list[str], Page, str]:
    """Write a report in which every text is ``name``, and return its tags, tokens and text."""
    environment = replace(ENVIRONMENT, processor=name, variables={name: name})
    classes = (name, *map(str, range(30)))
    mistakes = [[0, 1, *[0] * 29], *([0] * 31 for _ in range(30))]
    names = {"data": name, "protocol": name, "metric": name, "environment": environment}
    result = {"chosen": {name: 1.0}, **confusion(mistakes, classes)}
    records = [
        graph_run(name, [0.0], result=result, config={name: name, "data_digest": name}, **names),
        graph_run(f"{name}2", [0.0], config={name: f"{name}2", "data_digest": name}, **names),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("powerpool.report.write.draw_plots", lambda group, folder, stem: {})
        text, html = (path.read_text(encoding="utf-8") for path in write_report(records, folder))
    page = Page(html)
    return page.tags, [token.type for token in READER.parse(text)], page, text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=hostile)
def test_whole_report_keeps_its_structure(text: str, structure: tuple[list[str], list[str]], tmp_path: Path) -> None:
    tags, tokens, page, written = read_report(text, tmp_path)
    assert tags == structure[0]
    assert tokens == structure[1]
    assert "".join(page.texts).count(text) >= 8
    for token in READER.parse(written):
        assert not {"html_inline", "image"} & {child.type for child in token.children or ()}
        links = [child.attrGet("href") for child in token.children or () if child.type == "link_open"]
        assert links in ([], ["#reading-the-tables"])


@pytest.mark.parametrize(
    "metrics, points, lower",
    [(["accuracy in %"], True, False), (["MAE"], False, True), (["accuracy in %", "MAE"], True, True)],
)
def test_units_of_differences(
    metrics: list[str], points: bool, lower: bool, tmp_path: Path, without_plots: None
) -> None:
    records = [graph_run("SOP", [1.0, 2.0], data=metric[:3], metric=metric) for metric in metrics]
    for path in write_report(records, tmp_path):
        text = path.read_text()
        assert (("percentage points" in text), ("lower is better" in text)) == (points, lower)
