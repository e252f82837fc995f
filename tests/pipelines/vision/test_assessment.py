"""What a test of an image classifier shows: figures against counting by hand, a picture, tables."""

from __future__ import annotations

import io
import json
import math
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from powerpool.errors import ArgumentError, DomainError, NotFiniteError, ShapeError
from powerpool.tasks.vision.assessment import PAIRS, ROWS, assess, assessment_table, draw_confusion

STRANGE = ("[bold]cat[/bold]", "<script>alert(1)</script>", "$x$ & $y$", ":dog:", "two\nlines\x1b[31m", "日本語", "a\\")


def _answers(classes: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (count,), generator=generator)
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), targets] += 1.5
    return logits, targets


def _figures(classes: int, count: int, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    return assess(*_answers(classes, count), names or [f"class {number}" for number in range(classes)])


def _printed(figures: dict[str, Any], title: str = "", width: int = 160) -> str:
    from rich.console import Console

    out = io.StringIO()
    for table in assessment_table(figures, title):
        Console(file=out, width=width, force_terminal=False).print(table)
    return out.getvalue()


# ---- figures ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 10**6))
def test_figures_are_what_counting_picture_by_picture_gives(classes: int, count: int, seed: int) -> None:
    logits, targets = _answers(classes, count, seed)
    names = [f"class {number}" for number in range(classes)]
    table = [[0] * classes for _ in names]
    first = among = 0
    loss = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        order = sorted(range(classes), key=lambda place: -row[place])
        table[target][order[0]] += 1
        first += order[0] == target
        among += target in order[:5]
        loss += math.log(sum(math.exp(value) for value in row)) - row[target]
    figures = assess(logits, targets, names)
    assert figures["confusion"] == table
    assert figures["count"] == count
    assert figures["top1"] == pytest.approx(100 * first / count)
    assert figures["top5"] == pytest.approx(100 * among / count)
    assert figures["loss"] == pytest.approx(loss / count)
    for number, name in enumerate(names):
        found, size = figures["accuracy_by_class"][name], sum(table[number])
        assert found["count"] == size
        assert found["accuracy"] == (pytest.approx(100 * table[number][number] / size) if size else None)


@given(st.integers(2, 7), st.integers(1, 60), st.integers(0, 10**6))
def test_confused_pairs_are_the_largest_cells_beside_the_diagonal(classes: int, count: int, seed: int) -> None:
    logits, targets = _answers(classes, count, seed)
    figures = assess(logits, targets, [f"class {number}" for number in range(classes)])
    cells = {
        (f"class {row}", f"class {column}"): value
        for row, values in enumerate(figures["confusion"])
        for column, value in enumerate(values)
        if row != column and value
    }
    pairs = figures["confused"]
    assert len(pairs) == min(PAIRS, len(cells))
    assert [pair["count"] for pair in pairs] == sorted(cells.values(), reverse=True)[:PAIRS]
    for pair in pairs:
        assert cells[pair["class"], pair["said"]] == pair["count"]
        assert pair["share"] == pytest.approx(
            100 * pair["count"] / figures["accuracy_by_class"][pair["class"]]["count"]
        )


def test_of_pairs_of_equal_count_the_larger_share_comes_first() -> None:
    # Class 0 has two pictures, one mistaken; class 1 has one, mistaken.
    logits = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    figures = assess(logits, torch.tensor([0, 0, 1]), "abc")
    assert [(pair["class"], pair["share"]) for pair in figures["confused"]] == [("b", 100.0), ("a", 50.0)]


def test_confusion_is_that_of_torchmetrics() -> None:
    classification = pytest.importorskip("torchmetrics.functional.classification")
    logits, targets = _answers(12, 300)
    found = assess(logits, targets, [str(number) for number in range(12)])
    expected = classification.multiclass_confusion_matrix(logits, targets, num_classes=12)
    assert found["confusion"] == expected.tolist()
    top5 = classification.multiclass_accuracy(logits, targets, num_classes=12, average="micro", top_k=5)
    assert found["top5"] == pytest.approx(100 * float(top5), rel=1e-6)


def test_figures_can_be_written_as_json() -> None:
    figures = _figures(4, 3)  # at least one class has no picture
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


@pytest.mark.parametrize(
    "logits, targets, classes, error, message",
    [
        (torch.zeros(2, 3), torch.zeros(2).long(), "ab", ShapeError, r"\(n, 2\)"),
        (torch.zeros(2, 2), torch.zeros(3).long(), "ab", ShapeError, r"\(2, 2\) and \(3,\)"),
        (torch.zeros(2), torch.zeros(2).long(), "ab", ShapeError, r"\(2,\)"),
        (torch.zeros(0, 2), torch.zeros(0).long(), "ab", ArgumentError, "no picture"),
        (torch.zeros(1, 2), torch.tensor([2]), "ab", DomainError, "from 0 to 1"),
        (torch.zeros(1, 2), torch.tensor([-1]), "ab", DomainError, "-1 to -1"),
        (torch.full((1, 2), torch.nan), torch.tensor([0]), "ab", NotFiniteError, "logits must be finite"),
        (torch.zeros(1, 2), torch.tensor([0]), "aa", ArgumentError, "different names"),
    ],
)
def test_refuses_what_is_no_answer(
    logits: Tensor, targets: Tensor, classes: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        assess(logits, targets, classes)


# ---- the picture -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 3, 20, 102])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_draws_a_picture_of_any_number_of_classes(tmp_path: Path, classes: int, suffix: str) -> None:
    file = tmp_path / f"confusion{suffix}"
    draw_confusion(_figures(classes, 4 * classes), file)
    head = file.read_bytes()[:300]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in head
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_picture_names_few_classes_and_numbers_many(tmp_path: Path) -> None:
    few, many = _texts(_figures(5, 50), tmp_path), _texts(_figures(102, 200), tmp_path)
    assert [f"class {number}" in few for number in range(5)] == [True] * 5
    assert not any(text.startswith("class ") and text[6:].isdigit() for text in many)
    assert any("number" in text for text in many)


def test_picture_has_the_accuracy_and_the_share_of_each_cell_in_its_row(tmp_path: Path) -> None:
    # Class a: three right, one mistaken for b. Class b: all right. Class c has no picture.
    logits = torch.eye(3)[[0, 0, 0, 1, 1, 1]]
    texts = _texts(assess(logits, torch.tensor([0, 0, 0, 0, 1, 1]), "abc"), tmp_path)
    assert any("top-1 83.33 %" in text and "6 pictures" in text for text in texts)
    ticks = Counter(("0", "1", "5", "10", "25", "50", "75", "100"))
    assert Counter(text for text in texts if text.isdigit()) == ticks + Counter(("75", "25", "100"))


def test_strange_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    texts = _texts(_figures(len(STRANGE), 60, STRANGE), tmp_path)
    for name in ("[bold]cat[/bold]", "<script>alert(1)</script>", "$x$ & $y$", ":dog:", "日本語", "a\\"):
        assert name in texts
    assert "<script>" not in (tmp_path / "confusion.svg").read_text(encoding="utf-8")


def test_long_names_keep_beginning_and_end(tmp_path: Path) -> None:
    names = tuple(f"a name that is much too long for a picture, number {number}" for number in range(3))
    shown = [text for text in _texts(_figures(3, 30, names), tmp_path) if text.startswith("a name")]
    assert len(set(shown)) == 3
    assert all(len(text) <= 28 for text in shown)


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    for suffix in (".png", ".svg"):
        files = [tmp_path / folder / f"confusion{suffix}" for folder in ("one", "other")]
        for file in files:
            draw_confusion(_figures(6, 60), file)
        assert files[0].read_bytes() == files[1].read_bytes()


def test_refuses_other_formats(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\.png or \.svg \(got .*confusion\.jpg"):
        draw_confusion(_figures(3, 9), tmp_path / "confusion.jpg")
    assert not list(tmp_path.iterdir())


def _texts(figures: dict[str, Any], folder: Path) -> list[str]:
    file = folder / "confusion.svg"
    draw_confusion(figures, file)
    elements = ET.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text")
    return [element.text or "" for element in elements]


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_worst_classes_come_first_and_those_without_pictures_last() -> None:
    logits = torch.eye(4)[[0, 1, 2, 0, 2, 2]]
    text = _printed(assess(logits, torch.tensor([0, 1, 1, 2, 2, 2]), ["all", "half", "most", "none"]))
    places = [text.index(f"│ {name} ") for name in ("half", "most", "all", "none")]
    assert places == sorted(places)
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("│")}
    assert rows["none"][3:7:2] == ["0", "-"]


def test_tables_have_the_figures() -> None:
    logits = torch.eye(2)[[0, 1, 1, 1]]
    text = _printed(assess(logits, torch.tensor([0, 0, 0, 1]), ["cat", "dog"]), "SOP on test")
    assert "SOP on test: top-1 50.00 %, top-5 100.00 %, loss " in text
    assert "4 pictures" in text
    cat = next(line for line in text.splitlines() if line.startswith("│ cat"))
    assert [word for word in cat.split() if word != "│"] == ["cat", "3", "33.3", "dog", "(2)"]
    pair = [line for line in text.splitlines() if line.startswith("│ cat")][1]
    assert [word for word in pair.split() if word != "│"] == ["cat", "dog", "2", "66.7"]


def test_of_many_classes_only_the_worst_are_listed() -> None:
    text = _printed(_figures(102, 500))
    assert f"the {ROWS} worst of 102 classes" in text
    assert len(text.splitlines()) < 60


def test_without_a_mistake_there_is_one_table() -> None:
    figures = assess(torch.eye(3), torch.arange(3), "abc")
    assert figures["confused"] == []
    assert len(assessment_table(figures)) == 1


def test_strange_names_are_printed_as_they_are() -> None:
    text = _printed(_figures(len(STRANGE), 60, STRANGE), "[red]title[/red] :smile:")
    for name in ("[bold]cat[/bold]", "<script>alert(1)</script>", "$x$ & $y$", ":dog:", "日本語", "a\\"):
        assert name in text
    assert "[red]title[/red] :smile:" in text
    assert "\x1b" not in text
    assert "two\\nlines" in text
