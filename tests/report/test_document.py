"""Text from files is text on every page, whatever it contains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from powerpool.console import Bold
from powerpool.report.tables import Table, escaped
from powerpool.report.write import write_report
from tests.report.samples import ENVIRONMENT, Page, confusion, graph_run

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
