"""Names that others chose - of data, methods, classes and files - are text in every report, and never markup."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from powerpool.bench import compare, publish
from powerpool.bench import tables as bench_tables
from powerpool.bench.compare import CompareOptions
from powerpool.bench.publish import PublishOptions
from powerpool.bench.record import BenchRecord, Fit, Outcome, Selection, Skipped
from powerpool.errors import RecordError
from powerpool.report.document import Bold, Code, Heading, Items, Table, Text, markdown, page
from powerpool.report.report import record_path, write_report
from powerpool.tasks.fewshot import commands as fewshot
from powerpool.tasks.vision import commands as vision
from tests.bench import samples
from tests.experiments import runs

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
"""Another's reader of Markdown, as GitHub reads it."""
SIGNS = [*"|`*_[]&#$\\\"'>7aé\n\t\u2028", "```", "~~~", "~~", "**", "__", "\n\n", "    "]
PIECES = [*SIGNS, "<b>", "</td>", "<script>", "<!--", "[x](y)", "![", "&lt;", "$$", ":--", "http://x.y"]
PIECES += ["---", "===", "## ", "- ", "+ ", "1. ", "2) ", "> "]
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=1, max_size=8).map("".join)
# Characters that XML and HTML do not have are no text in any report; they are told from markup all the same.
hostile = hostile.map(lambda text: re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "", text))
hostile = hostile.filter(lambda text: text.strip() != "")


class Page(HTMLParser):
    """Tags, and all text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def one_line(text: str) -> str:
    return " ".join(text.split())


@settings(max_examples=200)
@given(hostile)
def test_markdown_shows_every_text_as_it_is(text: str) -> None:
    blocks = [Heading(text, 2), Text(text), Items([text, "x"]), Table((text, "b"), [(text, Bold(text)), ("c", text)])]
    tokens = READER.parse(markdown(blocks))
    kinds = [token.type for token in tokens if token.nesting == 1]
    # A bold text that ends in a sign may not be bold to Markdown; it is text in any case.
    assert kinds == [
        "heading_open", "paragraph_open", "bullet_list_open", *["list_item_open", "paragraph_open"] * 2,
        "table_open", "thead_open", "tr_open", *["th_open"] * 2, "tbody_open", *["tr_open", *["td_open"] * 2] * 2,
    ]  # fmt: skip
    shown = []
    for token in tokens:
        if token.type == "inline":
            assert {child.type for child in token.children or ()} <= {"text", "strong_open", "strong_close"}
            shown.append("".join(child.content for child in token.children or ()))
    expected = one_line(text)
    assert [found.strip("*") for found in shown] == [
        part.strip("*")
        for part in (expected, expected, expected, "x", expected, "b", expected, expected, "c", expected)
    ]


@given(hostile)
def test_html_shows_every_text_as_it_is(text: str) -> None:
    blocks = [Heading(text, 2), Text(text), Items([text]), Code(text), Table((text,), [(Bold(text), text)])]
    seen = Page(page(text, blocks))
    head = ["html", "head", "meta", "meta", "title", "meta", "style", "body"]
    body = ["h2", "p", "ul", "li", "pre", "div", "table", "thead", "tr", "th", "tbody", "tr", "th", "b", "td"]
    assert seen.tags == [*head, *body]
    assert "".join(seen.texts).count(text) >= 8


@given(hostile)
def test_code_in_markdown_is_code_to_its_end(text: str) -> None:
    tokens = READER.parse(markdown([Text("before"), Code(f"x{text}"), Text("after")]))
    assert [token.type for token in tokens if token.type == "code_block"] == ["code_block"]
    assert tokens[-2].content == "after"


NAMES = (
    '<script>alert("1")</script>',
    "a|b\nc|d",
    "<img src=x onerror=alert(1)>",
    "$\\frac{$ & ]]>",
    "~~~",
    "## x",
    "$x$ `y`",
)


def test_a_whole_report_of_hostile_names(tmp_path: Path) -> None:
    records = [runs.with_curves(name, seed, data="../<b>|\n| x", metric="<i>|", protocol="<u>\n# x")
               for seed, name in enumerate(NAMES)]  # fmt: skip
    environment = runs.ENVIRONMENT | {"command": "powerpool </pre><script>\n\n# x", "processor": "<i>|"}
    records.append(runs.run("SOP", [1.0, 2.0], config={"<u>|\n": "</pre><script>"}, environment=environment))
    written = write_report(records, tmp_path / "out")
    assert {path.parent for path in written} == {tmp_path / "out"}
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in written)
    seen = Page(written[1].read_text())
    assert not {"script", "u", "i"} & set(seen.tags)
    assert seen.tags.count("img") == len([path for path in written if path.suffix == ".svg"])
    for token in READER.parse(written[0].read_text()):
        assert token.type != "html_block"
        assert not {"html_inline", "link_open"} & {child.type for child in token.children or ()}
    for path in written[2:]:  # well-formed, with the names as text, and nothing that runs
        tree = ET.parse(path)
        tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert not {"script", "img", "foreignObject", "b", "u"} & tags
    texts = {element.text for path in written[2:] for element in ET.parse(path).iter() if element.text}
    assert {NAMES[0], NAMES[2]} <= texts


HOSTILE = "<img src=x onerror=alert(1)>|[a](javascript:b) $\\frac{$ **c**\n\n# d"


def hostile_bench(suite: str, name: str) -> BenchRecord:
    """A record of bench whose every text is ``name``, with a sweep, a case that failed and a target."""
    cases = [
        samples.case(f"{name} {size}", {"channels": size, name: 3},
                     samples.measured("form M", 1.0, "floor"), samples.measured(name, 3.0),
                     dataclasses.replace(samples.measured(f"{name}2", 1.5, "competitor"), note=name))
        for size in (2, 4, 8)
    ]  # fmt: skip
    cases.append(dataclasses.replace(samples.case(name, {"channels": 9}), error=name))
    record = samples.record(*cases, suite=suite)
    record.environment = dataclasses.replace(record.environment, processor=name, torch=name, powerpool=name)
    record.targets = [Outcome(cases[0].name, name, wanted=1.0, measured=2.0, met=False)]
    record.fits = [Fit("form M", name, {name: 1}, [[1.0, 1.0]], 1.0, None, None, 0.5)]
    record.selection = [Selection(name, 8, 2, None, {name: 1.0}, {name: 1000000}, {name: 1}, name, name, 2.0)]
    return record


@pytest.mark.parametrize("name", [*NAMES, HOSTILE])
def test_published_measurements_of_hostile_names(name: str, tmp_path: Path) -> None:
    source, out = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    for suite in ("pools", "solvers", "curves", "training"):
        hostile_bench(suite, name).save(source / f"{suite}.json")
    publish.run(PublishOptions(source, out))
    tokens = READER.parse((out / "README.md").read_text())
    ours = publish.markdown([hostile_bench(suite, "x") for suite in ("pools", "solvers", "curves", "training")])
    assert [token.type for token in tokens] == [token.type for token in READER.parse(ours)]
    inside = [child for token in tokens for child in token.children or ()]
    assert "html_inline" not in {child.type for child in inside}
    assert [child.attrGet("href") for child in inside if child.type == "link_open"] == ["../../docs/speed.md"]
    shown = "".join(child.content for child in inside)
    assert shown.count(one_line(name)) >= 12
    tags = {element.tag.rpartition("}")[2] for path in out.glob("*.svg") for element in ET.parse(path).iter()}
    assert "svg" in tags
    assert not {"script", "img"} & tags


def test_a_record_of_bench_is_published_under_its_own_name_alone(tmp_path: Path) -> None:
    samples.record(suite="../elsewhere").save(tmp_path / "pools.json")
    with pytest.raises(RecordError, match=r"holds the suite '../elsewhere'"):
        publish.run(PublishOptions(tmp_path, tmp_path / "results"))
    assert {path.name for path in tmp_path.iterdir()} == {"pools.json"}


MARKUP = "[/red] x [bold]y :smile: \x1b[31m\nz"


def test_tables_of_a_terminal_show_every_name_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = hostile_bench("pools", MARKUP)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    record.save(old)
    record.cases[0].results[1] = samples.measured(MARKUP, 9.0)
    record.cases[1].skipped.append(Skipped(MARKUP, MARKUP))
    record.save(new)
    assert compare.run(CompareOptions(old, new)) == 1
    assert_shown(capsys.readouterr().out)
    classes, scores = (MARKUP, "b"), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    for table in (
        bench_tables.case_table(record.cases[1]).as_rich(),
        bench_tables.target_table(record).as_rich(),
        bench_tables.growth_table(record).as_rich(),
        bench_tables.selection_table(record).as_rich(),
        vision._prediction_table((MARKUP, "c"), scores, classes),
        fewshot._table(("c", MARKUP), scores, [*classes]),
    ):
        wide().print(table)
        assert_shown(capsys.readouterr().out)


def wide() -> Console:
    return Console(width=400, emoji=True)


def assert_shown(printed: str) -> None:
    words = re.sub(r"[\s│┃]+", "", printed)  # a cell may be broken between words
    assert "[/red]x[bold]y:smile:\\x1b[31m\\nz" in words
    assert "\x1b[31m" not in printed


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "/abs"])
def test_a_record_cannot_be_filed_elsewhere(name: str) -> None:
    for record in (runs.run("SOP", [1.0, 2.0], data=name), runs.run(name, [1.0, 2.0])):
        with pytest.raises(RecordError, match="must do as names of files"):
            record_path(record)
