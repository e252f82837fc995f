"""What reports show of a test beside its value: sums and means computed another way, damaged records refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerpool.errors import RecordError
from powerpool.report import detail_plots, details, tables
from powerpool.report.report import write_report
from powerpool.runs.record import RunRecord
from tests.experiments import detailed, runs

TEXT = "{http://www.w3.org/2000/svg}text"


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter(TEXT)]


def report(records: list[RunRecord], folder: Path) -> str:
    paths = write_report(records, folder)
    assert sorted(paths) == sorted(folder.iterdir())
    return paths[0].read_text(encoding="utf-8")


def with_folds(*folds: dict[str, Any], method: str = "SOP") -> RunRecord:
    own = ({"fold": number, "value": 50.0, **fold} for number, fold in enumerate(folds))
    return runs.run(method, [], folds=tuple(own))


def answers(*counts: str, classes: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    return {"confusion": {"classes": list(classes), "counts": list(counts)}}


# ---- confusions ------------------------------------------------------------------------------------------------------


def test_counts_are_summed_over_folds() -> None:
    found = details.confusion_of(with_folds(answers("0 0 3", "1 0 3"), answers("0 1 2", "1 1 2")))
    assert found is not None
    assert found.counts == {(0, 0): 3, (1, 0): 3, (0, 1): 2, (1, 1): 2}
    assert found.sizes == [5, 5]
    assert found.shares() == {(0, 0): 60.0, (1, 0): 60.0, (0, 1): 40.0, (1, 1): 40.0}


def test_records_without_them_have_none() -> None:
    assert details.confusion_of(runs.run("SOP", [1.0, 2.0])) is None
    assert details.confusion_of(with_folds(answers("0 0 3", "1 0 3"), {})) is None  # a part is no whole
    assert details.spectrum_of(runs.run("SOP", [1.0, 2.0])) is None


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {"classes": ["a", "b"]},
        {"classes": [], "counts": []},
        {"classes": ["a", "a"], "counts": ["0 0 1", "1 0 1"]},
        {"classes": ["a", 1], "counts": ["0 0 1", "1 0 1"]},
        {"classes": ["a", "b"], "counts": [[0, 0, 1]]},
        *({"classes": ["a", "b"], "counts": ["0 0 1", text]} for text in (
            "1 0 0", "1 0", "1 2 1", "2 0 1", "-1 0 1", "0 0 1", "1 0 1.5", "1 0 1 ", "\u0661 0 1", "1 0 " + "9" * 99,
        )),
    ],
)  # fmt: skip
def test_a_damaged_confusion_is_refused(entry: Any) -> None:
    with pytest.raises(RecordError, match=r"in fold 0 of the record of SOP on MUTAG, protocol validation-only"):
        details.confusion_of(with_folds({"confusion": entry}))


@pytest.mark.parametrize("damaged", [answers("0 0 3", "1 0 1"), {"spectrum": {}}])
def test_nothing_is_written_of_damaged_records(damaged: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        write_report([runs.run("GIN0", [1.0, 2.0]), with_folds(damaged)], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_confusion_that_is_not_of_its_value_is_refused() -> None:
    with pytest.raises(RecordError, match=r"got 50.0; 3 of 4 are right by its confusion"):
        details.confusion_of(with_folds(answers("0 0 3", "1 0 1")))
    with pytest.raises(RecordError, match="the same classes"):
        details.confusion_of(with_folds(answers("0 0 1", "1 0 1"), answers("0 0 1", "1 0 1", classes=("a", "c"))))


def test_a_heat_map_has_a_panel_for_each_method_and_the_counts(tmp_path: Path) -> None:
    records = [
        with_folds(answers("0 0 11", "1 0 11"), method="GIN0"),
        with_folds(answers("0 0 12", "0 1 3", "1 0 9"), method="SOP"),
        runs.run("SOP+SigmE", [1.0, 2.0]),  # says nothing
    ]
    text = report(records, tmp_path)
    assert "### Confusion\n\nHow often each class was taken for each in the test:" in text
    assert "![Confusion matrices: MUTAG, validation-only](confusion-MUTAG-validation-only.svg)" in text
    shown = texts(tmp_path / "confusion-MUTAG-validation-only.svg")
    assert [name for name in shown if name in ("GIN0", "SOP", "SOP+SigmE")] == ["GIN0", "SOP"]
    assert sorted(number for number in shown if number.isdigit()) == ["11", "11", "12", "3", "9"]
    assert {"a", "b"} <= set(shown)


def test_of_more_classes_the_baseline_and_the_best_are_shown(tmp_path: Path) -> None:
    classes = tuple("abcdefg")
    records = [detailed.record(method, seed, classes) for seed, method in enumerate(("GIN0", "SOP", "SOP+SigmE"), 4)]
    best = max(records[1:], key=lambda record: record.mean)
    other = next(record.method for record in records[1:] if record is not best)
    assert best.mean > records[0].mean  # else there would be one panel
    text = report(records, tmp_path)
    assert f"in the test parts of all folds of GIN0 and {best.method}:" in text
    shown = texts(tmp_path / "confusion-MUTAG-validation-only.svg")
    assert {"GIN0", best.method} <= set(shown)
    assert other not in shown


def test_of_many_classes_the_pairs_that_are_mistaken_most_are_listed(tmp_path: Path) -> None:
    classes = tuple(f"c{number}" for number in range(30))
    records = [
        with_folds(answers("3 4 5", "3 3 5", "2 1 2", "2 2 2", classes=classes), method="GIN0"),
        with_folds(answers("3 4 1", "7 8 4", "7 7 5", classes=classes), method="SOP"),
    ]
    text = report(records, tmp_path)
    assert not list(tmp_path.glob("confusion*"))
    lines = text.partition("### Confusion")[2].split("\n\n")[2].splitlines()
    # Equal means: the first is the best, and the only one that is shown.
    assert lines == ["| class | taken for | GIN0 |", "| --- | --- | --- |", "| c3 | c4 | 5 (50 %) |",
                     "| c2 | c1 | 2 (50 %) |"]  # fmt: skip
    assert details.mistaken(records) == [
        ("c3", "c4", "5 (50 %)", "1 (100 %)"),
        ("c7", "c8", "0", "4 (44 %)"),
        ("c2", "c1", "2 (50 %)", "0"),
    ]


def test_many_classes_without_a_mistake(tmp_path: Path) -> None:
    classes = tuple(f"c{number}" for number in range(30))
    fold = {"value": 100.0, **answers(*(f"{row} {row} 1" for row in range(30)), classes=classes)}
    assert "No class was taken for another in the test of SOP." in report([with_folds(fold)], tmp_path)


# ---- spectra ---------------------------------------------------------------------------------------------------------


def test_spectra_are_means_over_the_folds_of_the_most_frequent_size() -> None:
    parts = [detailed.spectrum(4, 1.0, 10), detailed.spectrum(6, 3.0, 7), detailed.spectrum(4, 2.0, 9)]
    found = details.spectrum_of(with_folds(*({"spectrum": part} for part in parts), {}))
    assert found is not None
    assert (found.size, found.ranks, found.samples, found.folds) == (4, (1, 2, 3, 4), 19, 2)
    for name in ("before", "after"):
        np.testing.assert_allclose(getattr(found, name), np.mean([parts[0][name], parts[2][name]], 0))
    # Of equally frequent sizes the larger.
    found = details.spectrum_of(with_folds(*({"spectrum": part} for part in parts[:2])))
    assert found is not None
    assert found.size == 6


@pytest.mark.parametrize(
    "change",
    [{"before": [0.5]}, {"after": [0.5, float("1e9")]}, {"after": [-0.1, 0.1]}, {"ranks": [2, 1]}, {"ranks": [1, 1]},
     {"ranks": [0, 1]}, {"ranks": [1, 3]}, {"ranks": []}, {"size": "2"}, {"samples": 0}, {"before": "ab"},
     {"ranks": [1, 1.5]}, {"before": None}],
)  # fmt: skip
def test_a_damaged_spectrum_is_refused(change: dict[str, Any]) -> None:
    good = {"samples": 3, "size": 2, "ranks": [1, 2], "before": [0.9, 0.1], "after": [0.6, 0.4]}
    assert details.spectrum_of(with_folds({"spectrum": good})) is not None
    with pytest.raises(RecordError, match="spectrum must have samples, size, rising ranks"):
        details.spectrum_of(with_folds({"spectrum": good | change}))


def test_spectra_are_drawn_for_the_methods_that_have_them(tmp_path: Path) -> None:
    records = [detailed.record(method, seed) for seed, method in enumerate(("GIN0", "SOP", "SOP+SigmE"))]
    text = report(records, tmp_path)
    assert "means over 48 test samples that were looked at" in text
    shown = texts(tmp_path / "spectra-MUTAG-validation-only.svg")
    assert {"SOP", "SOP+SigmE"} <= set(shown)
    assert "GIN0" not in shown
    assert {"1", "2", "4", "8"} <= set(shown)


def test_folds_that_are_not_in_the_mean_are_named(tmp_path: Path) -> None:
    folds = ({"spectrum": detailed.spectrum(size)} for size in (4, 8, 8))
    text = report([with_folds(*folds)], tmp_path)
    assert "- SOP: 2 of 3 folds, those with matrices of side 8\n" in text


def test_zeros_of_a_spectrum_are_not_drawn(tmp_path: Path) -> None:
    part = {"samples": 3, "size": 3, "ranks": [1, 2, 3], "before": [1.0, 0.0, 0.0], "after": [0.0, 0.0, 0.0]}
    (group,) = tables.group([with_folds({"spectrum": part})], "GIN0", ())
    assert detail_plots.draw_spectra(group, tmp_path / "x.svg")  # on axes of logarithms


# ---- episodes --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.data())
def test_a_histogram_counts_episodes(queries: int, data: st.DataObject) -> None:
    edges = detail_plots.bin_edges(queries)
    possible = [100 * right / queries for right in range(queries + 1)]
    inside = np.histogram(possible, bins=edges)[0]
    assert inside.sum() == queries + 1  # each accuracy is in one of them
    assert len(set(inside[:-1])) <= 1  # as many in each, but for the last
    widths = np.diff(edges)
    np.testing.assert_allclose(widths, widths[0])
    assert detail_plots.BIN - 1e-9 <= widths[0] < detail_plots.BIN + 100 / queries - 1e-9  # no wider than it has to be
    values = data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=30))
    expected = np.histogram(values, bins=edges)[0]
    np.testing.assert_allclose(detail_plots.counted(values, edges), 100 * expected / len(values))


def test_episodes_are_drawn_where_there_are_some(tmp_path: Path) -> None:
    text = report([detailed.episodes("RelationNet", 0), detailed.episodes("SoSN(x)", 1)], tmp_path)
    assert "### Test episodes" in text
    assert {"RelationNet", "SoSN(x)"} <= set(texts(tmp_path / "episodes-glyphs-5-way-1-shot.svg"))
    assert "### Confusion" not in text


# ---- all of it -------------------------------------------------------------------------------------------------------


def test_old_records_have_no_such_sections(tmp_path: Path) -> None:
    text = report([runs.with_curves("GIN0", 0), runs.with_curves("SOP", 1)], tmp_path)
    assert re.findall("^### (.*)$", text, re.MULTILINE) == ["Training curves"]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    records = [*detailed.everything()[:4], *detailed.everything()[-3:]]
    first, second = write_report(records, tmp_path / "a"), write_report(records[::-1], tmp_path / "b")
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 2 + 4 + 4
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_names_of_classes_are_text_and_never_markup(tmp_path: Path) -> None:
    names = ("<script>1</script>", "$\\frac{", "a|b\n# c", "\u82b1\u540d", "x" * 300)
    many = (*names, *map(str, range(40)))
    records = [detailed.record("GIN0", 0, names), detailed.record("SOP", 1, many, data="MANY")]
    paths = write_report(records, tmp_path)
    page, text = (paths[place].read_text(encoding="utf-8") for place in (1, 0))
    assert "<script" not in page
    assert all("\n# c" not in part for part in (text,))
    assert not re.search(r"(?<!\\)<script", text)
    for path in paths[2:]:
        assert "script" not in {element.tag.rpartition("}")[2] for element in ET.parse(path).iter()}
