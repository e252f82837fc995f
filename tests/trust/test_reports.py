"""Names from files, of cases, contenders and classes, are text in every table, and never markup or control characters.

Reports of runs are tested in tests/report.
"""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt

from powerpool.bench import finished
from powerpool.bench import report as bench_report
from powerpool.bench.finished import CompareOptions, PublishOptions
from powerpool.bench.record import BenchRecord, Fit, Outcome, Selection, Skipped
from powerpool.cli.main import main
from powerpool.console import TextTable, print_table
from powerpool.errors import RecordError
from powerpool.runs.folder import load_state, save_state
from tests.bench import samples
from tests.data.image_sets import flat, write_folder

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
"""A run folder of version 0.1 for each task."""
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
"""An independent parser of Markdown, with the extensions of GitHub."""


def one_line(text: str) -> str:
    return " ".join(text.split())


NAMES = (
    '<script>alert("1")</script>',
    "~~~",
    "<img src=x onerror=alert(1)>|[a](javascript:b) $\\frac{$ & ]]> **c** `y`\n\n# d",
)


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


@pytest.mark.parametrize("name", NAMES)
def test_published_measurements_of_hostile_names(name: str, tmp_path: Path) -> None:
    source, out = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    for suite in ("pools", "solvers", "curves", "training"):
        hostile_bench(suite, name).save(source / f"{suite}.json")
    finished.run_publish(PublishOptions(source, out))
    tokens = READER.parse((out / "README.md").read_text())
    plain = finished.markdown([hostile_bench(suite, "x") for suite in ("pools", "solvers", "curves", "training")])
    assert [token.type for token in tokens] == [token.type for token in READER.parse(plain)]
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
    with pytest.raises(RecordError, match="elsewhere"):
        finished.run_publish(PublishOptions(tmp_path, tmp_path / "results"))
    assert {path.name for path in tmp_path.iterdir()} == {"pools.json"}


MARKUP = "[/red] x [bold]y :smile: \x1b[31m\nz"


def test_tables_of_a_terminal_show_every_name_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    record = hostile_bench("pools", MARKUP)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    record.save(old)
    record.cases[0].results[1] = samples.measured(MARKUP, 9.0)
    record.cases[1].skipped.append(Skipped(MARKUP, MARKUP))
    record.save(new)
    assert finished.run_compare(CompareOptions(old, new)) == 1
    assert_shown(capsys.readouterr().out)
    for table in (
        bench_report.case_table(record.cases[1]),
        bench_report.target_table(record),
        bench_report.growth_table(record),
        bench_report.selection_table(record),
    ):
        print_table(table)
        assert_shown(capsys.readouterr().out)
    for title, name, cell in ((MARKUP, "a", "b"), ("a", MARKUP, "b"), ("a", "b", MARKUP)):
        print_table(TextTable(title, (name,), ((cell,),)))
        assert_shown(capsys.readouterr().out)


def assert_shown(printed: str) -> None:
    words = re.sub(r"[\s│┃]+", "", printed)  # a cell may be broken between words
    assert "[/red]x[bold]y:smile:\\x1b[31m\\nz" in words
    assert "\x1b[31m" not in printed


# ---- predictions -----------------------------------------------------------------------------------------------------

CONTROLS = "a\x1b[2J\r\x07\u202eb"


def run_command(words: list[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and everything that a command prints."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    return code, "".join(capsys.readouterr())


def test_control_characters_of_class_names_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_folder(tmp_path / "images", flat(("rose", CONTROLS), count=2))
    words = ["predict", "fewshot", "--run", RUNS / "fewshot", "--support", images, images / "rose" / "00.png"]
    for flags in ([], ["--json"]):
        code, printed = run_command([*words, *flags], capsys)
        assert code == 0
        assert {one for one in printed if not one.isprintable()} <= {"\n"}
        assert "u001b" in printed if flags else "\\x1b[2J" in printed


def test_control_characters_of_a_hostile_model_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_state(RUNS / "graph" / "model.pt")
    for edit in ({"classes": [CONTROLS, "b"]}, {"pipeline": CONTROLS}, {"weights": {CONTROLS: torch.zeros(1)}}):
        save_state(tmp_path / "run" / "model.pt", state | edit)
        code, printed = run_command(["predict", "graph", "--run", tmp_path / "run", "--data", "MUTAG"], capsys)
        assert code == 2
        assert [one for one in printed if not one.isprintable()] == ["\n"]
