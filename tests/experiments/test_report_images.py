"""Reports of image classification: one test split, picture by picture, beside figures for another network."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from powerpool.tasks.vision.methods import METHODS
from scipy import stats

from powerpool.errors import RecordError
from powerpool.report import report, tables
from powerpool.report.plots import draw_curves, draw_sweep, draw_values
from powerpool.report.report import ReportOptions, record_path, write_report
from powerpool.report.tables import Group, order_findings, right_pictures
from powerpool.runs.compare import mcnemar
from powerpool.runs.record import RunRecord
from tests.experiments import runs
from tests.experiments.test_report import HOSTILE, Page, rows

DASH = "\N{EN DASH}"
COUNT = 203  # no whole number of bytes
SHARES = {
    "Baseline": 0.89, "FOP": 0.70, "SOP": 0.85, "SOP+AsinhE": 0.87, "SOP+SC+AsinhE": 0.86, "SOP+SC+SigmE": 0.88,
    "SOP+SC+SpecGamma": 0.90, "SOP+SC+SpecMaxExpF": 0.93, "SOP+NewtonSchulz": 0.60,
}  # fmt: skip


def answers(share: float, seed: int, count: int = COUNT) -> list[bool]:
    draw = random.Random(seed)
    return [draw.random() < share for _ in range(count)]


def packed(right: Sequence[bool]) -> str:
    """The bits as a number with zeros behind it, in hexadecimal digits: another way than byte by byte."""
    size = math.ceil(len(right) / 8)
    number = sum(1 << (8 * size - 1 - place) for place, is_right in enumerate(right) if is_right)
    return f"{number:0{2 * size}x}"


def fold(right: Sequence[bool], number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "fold": number,
        "value": 100 * sum(right) / len(right),
        "top5": 99.25,
        "count": len(right),
        "right": packed(right),
        "validation": {"value": 81.5, "loss": 0.5},
        "chosen": {"eta": 20.0, "penalty": 1e-5},
        "converged": 17,
        "curves": {"train_loss": [1.0, 0.5, 0.25], "validation_value": [70.0, 80.0, 81.5]},
        "seconds": 3.0,
        **more,
    }


def image_run(method: str, *rights: Sequence[bool], backbone: str | None = "efficientnet-lite0", **more) -> RunRecord:
    """A record with one run for each list of answers; ``fold`` adds fields to every run, other names replace fields."""
    extra = more.pop("fold", {})
    config = {"data": "flower102", "pool": {"method": method}, "data_digest": "a"} | more.pop("config", {})
    fields = {
        "pipeline": "vision",
        "data": "flower102",
        "protocol": "frozen",
        "metric": "top-1 accuracy in %",
        "folds": tuple(fold(right, number, **extra) for number, right in enumerate(rights)),
        "config": config if backbone is None else config | {"backbone": backbone},
        "seed": 0,
        "seconds": 12.4,
        "environment": runs.ENVIRONMENT | {"command": "powerpool reproduce vision"},
    }
    return RunRecord(method=method, **(fields | more))


ANSWERS = {method: answers(share, seed) for seed, (method, share) in enumerate(SHARES.items())}
RECORDS = [image_run(method, right) for method, right in ANSWERS.items()]


def group(records: Sequence[RunRecord], baseline: str = "FOP") -> Group:
    (found,) = tables.group(records, baseline, tuple(METHODS))
    return found


@pytest.fixture
def plain(monkeypatch, tmp_path: Path) -> Callable[..., str]:
    """Writes a report without pictures, which take most of the time, and returns the Markdown."""
    monkeypatch.setattr(report, "_draw", lambda groups, folder: [[] for _ in groups])
    return lambda *records: write_report(records, tmp_path)[0].read_text(encoding="utf-8")


def write(records: Sequence[RunRecord], folder: Path) -> tuple[str, str]:
    paths = write_report(records, folder)
    assert sorted(paths) == sorted(folder.iterdir())
    return paths[0].read_text(encoding="utf-8"), paths[1].read_text(encoding="utf-8")


def p_value(ours: Sequence[bool], theirs: Sequence[bool]) -> float:
    """McNemar's test by SciPy."""
    pairs = list(zip(ours, theirs, strict=True))
    won, lost = pairs.count((True, False)), pairs.count((False, True))
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_bits_are_read_as_they_were_packed(right: list[bool]) -> None:
    assert right_pictures(fold(right), "a test") == right


def test_bits_worked_by_hand() -> None:
    found = right_pictures({"right": "8140", "count": 10, "value": 30.0}, "a test")
    assert found == [True, *[False] * 6, True, False, True]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"right": "zz"}, "right must be hexadecimal digits"),
        ({"right": "8"}, "right must be hexadecimal digits"),
        ({"right": None}, "right must be hexadecimal digits"),
        ({"right": "80"}, "got 8 bits, and count 10"),
        ({"right": "814000"}, "got 24 bits, and count 10"),
        ({"right": "8160"}, "got 16 bits, and count 10"),  # the eleventh picture of ten
        ({"count": None}, "count None"),
        ({"count": 0}, "count 0"),
        ({"value": 40.0}, r"got 40\.0; 3 of 10 are right"),
        ({"right": "8100"}, r"got 30\.0; 2 of 10 are right"),
    ],
)
def test_answers_that_contradict_the_value_are_refused(change: dict[str, Any], message: str) -> None:
    good = {"fold": 0, "right": "8140", "count": 10, "value": 30.0}
    assert sum(right_pictures(good, "a test")) == 3
    with pytest.raises(RecordError, match=message) as caught:
        group([image_run("SOP", folds=(good | change,))])
    assert "in fold 0 of the record of SOP on flower102, protocol frozen (" in str(caught.value)


def test_a_rounded_value_is_no_contradiction() -> None:
    assert sum(right_pictures({"right": "a0", "count": 3, "value": 66.67}, "a test")) == 2


def test_every_number_of_a_row_is_that_of_scipy(plain: Callable[..., str]) -> None:
    found = rows(plain(*RECORDS))
    assert list(found) == [method for method in METHODS if method in SHARES]
    for method, paper in (("SOP", 94.7), ("SOP+SC+SpecMaxExpF", 97.62), ("Baseline", 94.06)):
        row, ours, theirs = found[method], ANSWERS[method], ANSWERS["FOP"]
        mean, wilson = 100 * sum(ours) / COUNT, stats.binomtest(sum(ours), COUNT).proportion_ci(method="wilson")
        pairs = list(zip(ours, theirs, strict=True))
        won, lost = pairs.count((True, False)), pairs.count((False, True))
        more, fewer = (won + 1) / (COUNT + 2), (lost + 1) / (COUNT + 2)
        half = stats.norm.ppf(0.975) * math.sqrt((more + fewer - (more - fewer) ** 2) / (COUNT + 2))
        low, high = 100 * (more - fewer - half), 100 * (more - fewer + half)
        assert row["top-1"].strip("*") == f"{mean:.2f}"
        assert row["95 % interval"] == f"{100 * wilson.low:.2f} to {100 * wilson.high:.2f}"
        assert row["top-5"] == "99.25"
        assert row["paper"] == f"{paper:.2f}".removesuffix("0")
        assert row["ours - paper"] == f"{mean - paper:+.2f}"
        assert row["ours - FOP"] == f"{100 * (won - lost) / COUNT:+.2f}"
        assert row["95 % interval of it"] == f"{low:+.2f} to {high:+.2f}"
        assert row["p"].replace("\\", "") == p_text(p_value(ours, theirs))
        assert [row[name] for name in ("validation", "epochs to convergence", "seconds")] == ["81.50", "17", "12"]
        assert row["chosen"] == "eta 20; penalty 1e-05"
    assert {found["FOP"][name] for name in ("ours - FOP", "95 % interval of it", "p")} == {DASH}
    assert found["SOP+NewtonSchulz"]["paper"] == DASH
    assert [method for method, row in found.items() if "**" in row["top-1"]] == ["SOP+SC+SpecMaxExpF"]
    assert not {"runs", "paper, top-5", "folds", "corrected p", "within one std of the paper"} & set(found["SOP"])


def test_what_a_record_does_not_say_is_left_open(plain: Callable[..., str], tmp_path: Path) -> None:
    bare = dict.fromkeys(("top5", "validation", "chosen", "converged", "curves"))
    record = image_run("FOP", ANSWERS["FOP"], fold=bare)
    text = plain(record)
    names = ("top-5", "validation", "chosen", "epochs to convergence")
    assert [rows(text)["FOP"][name] for name in names] == [DASH] * 4
    assert not draw_curves(group([record]), tmp_path / "curves.svg")
    assert "There is no method beside FOP here." in text


def test_the_words_are_those_of_a_split_and_not_of_folds(tmp_path: Path) -> None:
    text, page = write(RECORDS, tmp_path)
    assert "## flower102, frozen efficientnet-lite0\n" in text
    assert f"One test split of {COUNT} pictures, seed 0; top-1 accuracy in %." in text
    assert "the interval is Wilson's" in text
    assert "\n\np is that of McNemar's exact, two-sided test" in text
    for output in (text, page):
        assert not re.search("fold|Student|t-test|graph", output.replace("data:image", ""))
    assert "Of 9 rows, 8 have a figure in the paper, of which 8 are for another network" in text
    below = sum(100 * sum(ANSWERS[method]) / COUNT < figure for method, figure in PAPER.items())
    assert f"or another training than ours: {below} are below it. 1 of 8 rows beside the baseline FOP are below" in text
    lost = 100 * (sum(ANSWERS["SOP+NewtonSchulz"]) - sum(ANSWERS["FOP"])) / COUNT
    p = p_value(ANSWERS["SOP+NewtonSchulz"], ANSWERS["FOP"])
    assert f"- Below FOP, 1 of 8: SOP+NewtonSchulz ({lost:+.2f}, p {p:.3f})." in text


PAPER = {
    "Baseline": 94.06, "FOP": 94.08, "SOP": 94.7, "SOP+AsinhE": 95.12, "SOP+SC+AsinhE": 95.74, "SOP+SC+SigmE": 96.78,
    "SOP+SC+SpecGamma": 96.88, "SOP+SC+SpecMaxExpF": 97.62,
}  # fmt: skip


@pytest.mark.parametrize(
    "backbone, protocol, said",
    [
        ("efficientnet-lite0", "frozen", "a fine-tuned ResNet-50; ours here are for a frozen efficientnet-lite0."),
        ("torchvision:resnet50", "frozen", "a fine-tuned ResNet-50; ours here are for a frozen torchvision:resnet50."),
        ("efficientnet-lite0", "end-to-end", "ours here are for a fine-tuned efficientnet-lite0."),
        ("hf:microsoft/resnet-50", "end-to-end", "a fine-tuned ResNet-50, and so are ours."),
        (
            "torchvision:alexnet",
            "end-to-end",
            "an AlexNet whose last two convolutional layers are fine-tuned, and so are",
        ),
        (None, "another", "for a fine-tuned ResNet-50; ours here are for a fine-tuned network without a name."),
    ],
)
def test_another_network_than_the_papers_is_named(
    plain: Callable[..., str], backbone: str | None, protocol: str, said: str
) -> None:
    text = plain(image_run("SOP", ANSWERS["SOP"], backbone=backbone, protocol=protocol))
    assert "- The paper's figures are for " in text
    assert said in text
    assert ("no measure of how well the methods were reproduced" in text) is ("so are" not in said)
    assert ("1 are for another network" in text) is ("so are" not in said)
    assert rows(text)["SOP"]["paper"] == ("87.2" if backbone == "torchvision:alexnet" else "94.7")


@pytest.mark.parametrize("protocol, marker", [("frozen", "paper, for a fine-tuned ResNet-50"), ("end-to-end", "paper")])
def test_markers_of_another_network_say_so(tmp_path: Path, protocol: str, marker: str) -> None:
    draw_values(group([image_run("SOP", ANSWERS["SOP"], backbone="resnet50", protocol=protocol)]), tmp_path / "a.svg")
    assert f">{marker}</text>" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_what_is_below_the_paper_is_named(plain: Callable[..., str]) -> None:
    right = [True] * 96 + [False] * 4
    first, below, other = image_run("SOP", right), image_run("SOP+SC+SigmE", right), image_run("FOP", right)
    assert "- Below the paper's figure, 1 of 3: SOP+SC+SigmE (-0.78)." in plain(first, below, other)
    assert "- None of 2 with a figure in the paper is below it." in plain(first, other)
    unknown = image_run("SOP", right, data="my-pictures")
    assert "- The paper has no figures for these methods on this data set." in plain(unknown)


def test_errors_of_imagenet_are_accuracies_and_have_a_top_5(plain: Callable[..., str]) -> None:
    records = [image_run(name, ANSWERS[name], data="imagenet") for name in ("FOP", "SOP+NewtonSchulz", "SOP")]
    found = rows(plain(*records))
    assert [found["SOP+NewtonSchulz"][name] for name in ("paper", "paper, top-5")] == ["77.86", "93.78"]
    mean = 100 * sum(ANSWERS["SOP+NewtonSchulz"]) / COUNT
    assert found["SOP+NewtonSchulz"]["ours - paper"] == f"{mean - 77.86:+.2f}"
    assert [found["SOP"][name] for name in ("paper", "paper, top-5")] == [DASH, DASH]


@pytest.mark.parametrize(
    "other",
    [
        {"config": {"data_digest": "b"}},
        {"folds": ({"fold": 0, "value": 80.0},)},
        {"folds": (fold(answers(0.8, 9, count=COUNT - 1)),)},
        {"folds": (fold(ANSWERS["SOP"], number=1),)},
    ],
)
def test_other_pictures_are_not_paired(plain: Callable[..., str], other: dict[str, Any]) -> None:
    rights = () if "folds" in other else (ANSWERS["SOP"],)
    record = image_run("SOP", *rights, **other)
    text = plain(RECORDS[1], record)
    row = rows(text)["SOP"]
    assert row["ours - FOP"] == f"{record.mean - RECORDS[1].mean:+.2f}"
    assert (row["95 % interval of it"], row["p"]) == (DASH, DASH)
    assert "- Not tested against FOP, for lack of the same test pictures: SOP." in text
    assert (row["95 % interval"] == DASH) is ("right" not in record.folds[0])


def test_another_seed_is_no_other_split(plain: Callable[..., str]) -> None:
    text = plain(RECORDS[1], image_run("SOP", ANSWERS["SOP"], seed=5))
    assert rows(text)["SOP"]["p"].replace("\\", "") == p_text(p_value(ANSWERS["SOP"], ANSWERS["FOP"]))
    assert "pictures, seeds 0, 5;" in text


def test_several_runs_are_no_more_pictures(plain: Callable[..., str]) -> None:
    ours, theirs = ([answers(share, seed) for seed in seeds] for share, seeds in ((0.9, (1, 2, 3)), (0.8, (4, 5))))
    changes = [{"converged": epochs, "validation": {"value": value}} for epochs, value in ((9, 80), (9, 83), (11, 83))]
    folds = tuple(fold(right, number, **changes[number]) for number, right in enumerate(ours))
    text = plain(image_run("FOP", *theirs), image_run("SOP", folds=folds))
    row, shares = rows(text)["SOP"], [100 * sum(right) / COUNT for right in ours]
    mean = math.fsum(shares) / 3
    assert row["top-1"] == f"**{mean:.2f} ± {stats.tstd(shares):.2f}**"
    # Wilson's interval, solved: where the distance is 1.96 standard deviations of the share at the bound.
    low, high = (float(bound) / 100 for bound in row["95 % interval"].split(" to "))
    for bound in (low, high):
        assert abs(mean / 100 - bound) == pytest.approx(1.96 * math.sqrt(bound * (1 - bound) / COUNT), abs=2e-4)
    pairs = list(zip(ours, theirs, strict=False))
    assert row["p"].replace("\\", "") == p_text(max(p_value(*pair) for pair in pairs))
    gap = math.fsum(sum(one) - sum(other) for one, other in pairs) / 2 * 100 / COUNT
    assert row["ours - FOP"] == f"{gap:+.2f} on 2 runs"
    single = [mcnemar(*pair).interval for pair in pairs]
    spans = min(low for low, _ in single), max(high for _, high in single)
    assert row["95 % interval of it"] == f"{spans[0]:+.2f} to {spans[1]:+.2f}"
    assert [row[name] for name in ("runs", "epochs to convergence", "validation")] == ["3", "9 to 11", "82.00"]
    assert f"One test split of {COUNT} pictures, with 2 to 3 runs of each method" in text


def disagree(won: int, lost: int, both: int = 100, count: int = COUNT) -> tuple[list[bool], list[bool]]:
    """Answers of two methods: ``both`` right, then those that one has right and the other has not."""
    ours = [place < both + won for place in range(count)]
    theirs = [place < both or both + won <= place < both + won + lost for place in range(count)]
    return ours, theirs


@pytest.mark.parametrize(
    "won, lost, verdict",
    [
        (30, 5, "holds"),
        (5, 30, "does not hold"),
        (6, 5, "as in the paper, but by no more than chance may give"),
        (5, 6, "the other way round, but by no more than chance may give"),
        (7, 7, "there is no difference"),
    ],
)
def test_the_order_of_the_paper_is_checked_with_figures_and_p(won: int, lost: int, verdict: str) -> None:
    sop, fop = disagree(won, lost)
    p = p_text(stats.binomtest(won, won + lost).pvalue)
    gap = 100 * (won - lost) / COUNT
    signed = f"{gap:+.2f}" if gap else "0.00"
    figures = f"{100 * (100 + won) / COUNT:.2f} and {100 * (100 + lost) / COUNT:.2f} ({signed}, p {p})"
    found = order_findings(group([image_run("SOP", sop), image_run("FOP", fop)]))
    assert found[0] == f"Second order above first (SOP against FOP): {verdict}, {figures}, in the paper +0.62."
    assert len(found) == 2
    assert found[1] == (
        "Not measured here: an element-wise power normalization above none; with spatial coordinates above without; "
        "SigmE above AsinhE; spectral above element-wise."
    )


def test_an_order_that_cannot_be_tested_is_said_to_be_untested() -> None:
    records = [image_run("FOP", ANSWERS["FOP"]), image_run("SOP", ANSWERS["SOP"], config={"data_digest": "b"})]
    assert "(SOP against FOP): as in the paper, untested, " in order_findings(group(records))[0]
    turned = [image_run("SOP", ANSWERS["FOP"]), image_run("FOP", ANSWERS["SOP"], config={"data_digest": "b"})]
    assert "(SOP against FOP): the other way round, untested, " in order_findings(group(turned))[0]


def test_every_pair_of_the_order_is_the_right_one() -> None:
    found = order_findings(group(RECORDS))
    pairs = [re.search(r"\((\S+) against ([^\s,)]+)", finding).groups() for finding in found]
    assert pairs == [
        ("SOP", "FOP"),
        ("SOP+AsinhE", "SOP"),
        ("SOP+SC+AsinhE", "SOP+AsinhE"),
        ("SOP+SC+SigmE", "SOP+SC+AsinhE"),
        ("SOP+SC+SpecGamma", "SOP+SC+AsinhE"),  # all are equal on validation: the first
    ]
    assert "in the paper +0.62" in found[0]
    assert "in the paper +1.04" in found[3]


def test_the_best_of_a_kind_is_chosen_on_validation() -> None:
    values = {"SOP+SC+SpecGamma": 90.0, "SOP+SC+SpecMaxExpF": 80.0, "SOP+SC+AsinhE": 70.0, "SOP+SC+SigmE": 75.0}
    records = [image_run(name, ANSWERS[name], fold={"validation": {"value": values[name]}}) for name in values]
    spectral = order_findings(group(records))[1]
    names = "SOP+SC+SpecGamma against SOP+SC+SigmE, the best of 2 and of 2 on validation"
    assert spectral.startswith(f"Spectral above element-wise ({names}): ")
    records[0] = image_run("SOP+SC+SpecGamma", ANSWERS["SOP+SC+SpecGamma"], fold={"validation": None})
    spectral = order_findings(group(records))[1]
    names = "SOP+SC+SpecMaxExpF against SOP+SC+SigmE, the best of 2 and of 2 on the test split, which favours"
    assert spectral.startswith(f"Spectral above element-wise ({names} the kind with more methods): ")


def test_there_is_no_order_without_a_pair_or_of_graphs(plain: Callable[..., str]) -> None:
    assert order_findings(group([image_run("SOP", ANSWERS["SOP"])])) == []
    graphs = [runs.run("SOP", [1.0, 2.0]), runs.run("FOP", [1.0, 3.0])]
    assert order_findings(group(graphs)) == []
    title = "Whether the methods are in the paper's order:"
    assert title not in plain(*graphs)
    text = plain(*RECORDS)
    assert (
        text.index("- Below FOP")
        < text.index(title)
        < text.index("- Second order above first")
        < text.index("## Configuration")
    )


def test_each_backbone_has_its_own_table(tmp_path: Path) -> None:
    records = [image_run("SOP", ANSWERS["SOP"], backbone=name) for name in ("timm:b", "timm:a")]
    records.append(image_run("SOP", ANSWERS["SOP"], backbone="timm:a", protocol="end-to-end"))
    text, _ = write(records, tmp_path)
    assert re.findall(r"^## (flower.*)$", text, re.MULTILINE) == [
        "flower102, frozen timm:a",
        "flower102, frozen timm:b",
        "flower102, end-to-end timm:a",
    ]
    assert len(list(tmp_path.glob("values-*.svg"))) == 3
    with pytest.raises(RecordError, match="Two records of SOP on flower102, protocol frozen, backbone timm:a"):
        write([records[1], records[1]], tmp_path / "twice")


def test_each_pipeline_has_its_own_baseline_order_and_words(plain: Callable[..., str]) -> None:
    graphs = [runs.run("SOP", [80.0, 84.0]), runs.run("GIN0", [81.0, 82.5])]
    text = plain(*RECORDS, *graphs)
    assert list(rows(text, 0)) == ["GIN0", "SOP"]
    assert "ours - GIN0" in rows(text, 0)["SOP"]
    assert "ours - FOP" in rows(text, 1)["SOP"]
    assert "Of 2 rows of graph, 2 have a figure in the paper: " in text
    assert "0 of 1 rows beside the baseline GIN0 are below it." in text
    assert "Of 9 rows of vision, 8 have a figure in the paper, " in text
    assert "1 of 8 rows beside the baseline FOP are below it." in text
    assert "overlap.\n\nWhere there is one test split, a value is the share of test pictures" in text
    assert "\n\np is that of a paired, two-sided t-test" in text
    assert "\n\nOn one test split, p is that of McNemar's exact" in text
    assert "Settings of every run of graph:" in text
    assert "Settings of every run of vision:" in text
    assert "\n    data: flower102\n    data_digest: a\n    backbone: efficientnet-lite0\n" in text
    assert DASH not in text.split("## Configuration")[1]


def test_images_by_folds_are_no_graphs(plain: Callable[..., str]) -> None:
    records = [
        image_run("FOP", folds=({"fold": 0, "value": 80.0},)),
        image_run("SOP", folds=({"fold": 0, "value": 81.0},)),
    ]
    text = plain(*records)
    assert "- Not tested against FOP, for lack of two folds with the same items: SOP." in text
    assert "Of 2 rows, 0 have a figure in the paper: 0 are within" in text  # none with a deviation
    assert rows(text)["SOP"]["paper"] == "94.7"


def test_records_of_an_unknown_pipeline_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"of the pipeline 'sound', whose methods are not known.*graph, vision"):
        write([image_run("SOP", ANSWERS["SOP"], pipeline="sound")], tmp_path)


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    names = {"data": "<b>../&amp;", "protocol": "<img src=x>", "backbone": "<u>&net"}
    records = [
        image_run(HOSTILE, ANSWERS["FOP"], fold={"chosen": {"<i>": "<script>"}}, **names),
        image_run("FOP", ANSWERS["SOP"], **names),
    ]
    text, page = write(records, tmp_path)
    seen = Page(page)
    assert not {"script", "i", "u"} & set(seen.tags)
    assert seen.tags.count("img") == len(seen.images) == 2
    for expected in (HOSTILE, "<i> <script>", "<b>../&amp;, <img src=x> <u>&net"):
        assert any(expected in found for found in seen.texts)
    for line in (line for line in text.splitlines() if not line.startswith("    ")):
        assert not re.search(r"(?<!\\)<", line)
    drawn = [ET.parse(path) for path in tmp_path.glob("*.svg")]
    assert HOSTILE in {element.text for tree in drawn for element in tree.iter("{http://www.w3.org/2000/svg}text")}


def test_the_bars_are_wilsons_and_reach_further_to_the_middle(tmp_path: Path, monkeypatch) -> None:
    from matplotlib.axes import Axes

    seen: list[tuple[Any, Any]] = []
    draw = Axes.errorbar

    def errorbar(self, x, y, **more):
        seen.append((x, more["xerr"]))
        return draw(self, x, y, **more)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    right = [True] * 95 + [False] * 5
    records = [image_run("SOP", right), image_run("FOP", folds=({"fold": 0, "value": 80.0},))]
    draw_values(group(records), tmp_path / "values.svg")
    ((means, (below, above)),) = seen
    wilson = stats.binomtest(95, 100).proportion_ci(method="wilson")
    assert list(means) == [80.0, 95.0]
    assert (below[1], above[1]) == pytest.approx((95 - 100 * wilson.low, 100 * wilson.high - 95))
    assert below[1] > above[1]
    assert math.isnan(below[0])
    assert math.isnan(above[0])


def test_validation_accuracy_is_drawn_by_epoch(tmp_path: Path) -> None:
    assert draw_curves(group(RECORDS[:3]), tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    for text in ("SOP", "FOP", "epoch", "training loss", "validation accuracy in %"):
        assert f">{text}</text>" in drawn


def test_a_sweep_is_drawn_with_a_logarithmic_axis_where_it_is_wide(tmp_path: Path) -> None:
    for name, values, is_log in (
        ("eta", (1, 20, 80), True),
        ("beta", (0.0, 0.5, 1.0), False),
        ("$t$", (1, 2, 3), False),
    ):
        rows = [{name: value, "accuracy": 80.0 + value % 3, "loss": 0.5} for value in values]
        draw_sweep(rows[::-1], name, "SOP <on> pictures", tmp_path / "a.svg")
        texts = [element.text for element in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")]
        assert {name, "accuracy in %", "SOP <on> pictures"} <= set(texts)
        drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
        draw_sweep(rows, name, "SOP <on> pictures", tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text(encoding="utf-8") == drawn  # in whatever order the rows come
        assert ("10^" in drawn or "mathdefault" in drawn) is is_log


def test_the_command_writes_the_report_of_a_folder(tmp_path: Path, capsys) -> None:
    for record in RECORDS[:3]:
        record.write(tmp_path / record_path(record))
    report.run(ReportOptions(tmp_path))
    assert "README.md, report.html and 2 plots from 3 records" in capsys.readouterr().out
    assert list(rows((tmp_path / "README.md").read_text(encoding="utf-8"))) == ["Baseline", "FOP", "SOP"]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (
        write_report(records, tmp_path / str(len(records[0].method))) for records in (RECORDS, RECORDS[::-1])
    )
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
