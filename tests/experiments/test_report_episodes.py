"""Reports of few-shot learning: right queries of every test episode, beside figures for other budgets."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from powerpool.tasks.fewshot.methods import METHODS
from scipy import stats

from powerpool.errors import RecordError
from powerpool.report import report, tables
from powerpool.report.plots import draw_curves, draw_values, mean_curve
from powerpool.report.report import record_path, write_report
from powerpool.report.tables import Group, order_findings, right_by_episode
from powerpool.runs.record import RunRecord
from tests.experiments import runs
from tests.experiments.test_report import rows

DASH = "\N{EN DASH}"
COUNT, QUERIES = 60, 15
SHARES = {
    "RelationNet": 0.45, "PrototypicalNet": 0.44, "SoSN(x)": 0.47, "SoSN(x)+AsinhE": 0.50, "SoSN(x)+SigmE": 0.60,
    "SoSN(x)+SpecMaxExpF": 0.40, "NCM(x+L)": 0.41,
}  # fmt: skip


def answers(share: float, seed: int, count: int = COUNT) -> list[int]:
    draw = random.Random(seed)
    return [sum(draw.random() < share for _ in range(QUERIES)) for _ in range(count)]


def fold(right: Sequence[int], number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "fold": number,
        "value": 100 * sum(right) / (QUERIES * len(right)),
        "right_by_episode": " ".join(map(str, right)),
        "queries": QUERIES,
        "count": len(right),
        "chosen": {"episode": 750},
        "validation": {"value": 51.5, "loss": 0.1},
        "curves": {
            "episode": [250, 500, 1000],
            "train_loss": [0.2, 0.15, 0.1],
            "validation_loss": [0.2, 0.16, 0.14],
            "validation_value": [30.0, 40.0, 51.5],
        },
        "seconds": 400.0,
        "episodes_per_second": 2.5,
        "test_seconds": 20.0,
        **more,
    }


def episode_run(method: str, *rights: Sequence[int], **more: Any) -> RunRecord:
    """A record with one run for each list of answers; ``fold`` adds fields to every run, ``config`` settings."""
    extra = more.pop("fold", {})
    fields: dict[str, Any] = {
        "pipeline": "fewshot",
        "data": "miniimagenet100",
        "protocol": "5-way-1-shot",
        "metric": "accuracy in %",
        "folds": tuple(fold(right, number, **extra) for number, right in enumerate(rights)),
        "seed": 0,
        "seconds": 400.2,
        "environment": runs.ENVIRONMENT | {"command": "powerpool reproduce fewshot"},
    } | {name: value for name, value in more.items() if name != "config"}
    way, shot = map(int, re.findall(r"\d+", fields["protocol"]))
    transductive = fields["protocol"].endswith("-transductive")
    config = {
        "data": fields["data"],
        "size": 84,
        "model": {"method": method},
        "test": {"way": way, "shot": shot, "queries": 3, "count": COUNT, "transductive": transductive},
        "training": {"episodes": 1000},
        "data_digest": "a",
    }
    return RunRecord(method=method, config=config | more.get("config", {}), **fields)


ANSWERS = {method: answers(share, seed) for seed, (method, share) in enumerate(SHARES.items())}
RECORDS = [episode_run(method, right) for method, right in ANSWERS.items()]


def shares(right: Sequence[int]) -> np.ndarray:
    return 100 * np.array(right) / QUERIES


def group(records: Sequence[RunRecord]) -> Group:
    (found,) = tables.group(records, "RelationNet", tuple(METHODS))
    return found


@pytest.fixture
def plain(monkeypatch, tmp_path: Path) -> Callable[..., str]:
    """Writes a report without pictures, which take most of the time, and returns the Markdown."""
    monkeypatch.setattr(report, "_draw", lambda groups, folder: [[] for _ in groups])
    return lambda *records: write_report(records, tmp_path)[0].read_text(encoding="utf-8").replace("\\", "")


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


@given(st.lists(st.integers(0, QUERIES), min_size=2, max_size=40))
def test_answers_are_read_as_they_were_written(right: list[int]) -> None:
    assert right_by_episode(fold(right), "a test") == right


@pytest.mark.parametrize(
    "change, message",
    [
        ({"right_by_episode": [1, 2, 3]}, "must be whole numbers with a blank"),
        ({"right_by_episode": "1 2  3"}, "must be whole numbers with a blank"),
        ({"right_by_episode": "1 -2 7"}, "must be whole numbers with a blank"),
        ({"right_by_episode": ""}, "must be whole numbers with a blank"),
        ({"right_by_episode": "1 5"}, "got 2 numbers, and count 3"),
        ({"right_by_episode": "6", "count": 1}, "at least two"),
        ({"count": None}, "and count None"),
        ({"queries": 2}, "got 2, and up to 3 right ones"),
        ({"queries": None}, "queries must be at least 1"),
        ({"value": 60.0}, r"got 60\.0; 6 of 12 are right"),
        ({"right_by_episode": "1 2 4"}, r"got 50\.0; 7 of 12 are right"),
    ],
)
def test_answers_that_contradict_the_value_are_refused(change: dict[str, Any], message: str) -> None:
    good = {"fold": 0, "right_by_episode": "1 2 3", "count": 3, "queries": 4, "value": 50.0}
    assert right_by_episode(good, "a test") == [1, 2, 3]
    with pytest.raises(RecordError, match=message) as caught:
        group([episode_run("SoSN(x)", folds=(good | change,))])
    assert "fold 0 of the record of SoSN(x) on miniimagenet100, protocol 5-way-1-shot (" in str(caught.value)


def test_every_number_of_a_row_is_that_of_scipy(plain: Callable[..., str]) -> None:
    found = rows(plain(*RECORDS))
    assert list(found) == [method for method in METHODS if method in SHARES]
    for method, paper in (("SoSN(x)", 50.88), ("SoSN(x)+SigmE", 52.96), ("PrototypicalNet", 49.42)):
        row, ours, theirs = found[method], shares(ANSWERS[method]), shares(ANSWERS["RelationNet"])
        half = stats.t.ppf(0.975, COUNT - 1) * stats.sem(ours)
        test = stats.ttest_rel(ours, theirs)
        low, high = test.confidence_interval(0.95)
        assert row["ours"].strip("*") == f"{ours.mean():.2f} ± {half:.2f}"
        assert row["paper"] == f"{paper:.2f} ± 0.{7 if method == 'PrototypicalNet' else 8}"
        assert row["ours - paper"] == f"{ours.mean() - paper:+.2f}"
        assert row["ours - RelationNet"] == f"{ours.mean() - theirs.mean():+.2f}"
        assert row["95 % interval of it"] == f"{low:+.2f} to {high:+.2f}"
        assert row["p"] == p_text(test.pvalue)
        assert [row[name] for name in ("validation", "chosen", "training episodes")] == ["51.50", "episode 750", "1000"]
        assert [row[name] for name in ("episodes/s", "seconds")] == ["2.50", "400"]
    assert {found["RelationNet"][name] for name in ("ours - RelationNet", "95 % interval of it", "p")} == {DASH}
    assert (found["NCM(x+L)"]["paper"], found["SoSN(x)+SpecMaxExpF"]["paper"]) == (DASH, DASH)
    assert [method for method, row in found.items() if "**" in row["ours"]] == ["SoSN(x)+SigmE"]
    assert not {"runs", "std over runs", "folds", "corrected p", "top-5"} & set(found["SoSN(x)"])


def test_the_words_are_those_of_episodes(plain: Callable[..., str]) -> None:
    text = plain(*RECORDS)
    assert "A value is the mean accuracy over test episodes, and ± is half of its 95 % interval" in text
    assert "\n\np is that of a paired, two-sided t-test over the same test episodes" in text
    assert (
        "Protocol 5-way-1-shot: an episode has 5 classes, and 1 support picture of each; batch normalization keeps the "
        "statistics of training, while the original code took those of the test episode itself (transductive). 60 test "
        "episodes with 15 queries each, seed 0; accuracy in %."
    ) in text
    assert "episodes/s is of training steps alone, without validation" in text
    assert "Each training had one thread, beside whatever else ran on the machine" in text
    assert not re.search("fold|Wilson|graph|epoch", text)
    known = ["RelationNet", "PrototypicalNet", "SoSN(x)", "SoSN(x)+AsinhE", "SoSN(x)+SigmE"]
    paper = dict(zip(known, (50.44, 49.42, 50.88, 52.1, 52.96), strict=True))
    below = [name for name in known if shares(ANSWERS[name]).mean() < paper[name]]
    assert (
        "Of 7 rows, 5 have a figure in the paper, of which 5 are for another training or another test than ours: "
        f"{len(below)}"
    ) in text
    gap = shares(ANSWERS["NCM(x+L)"]).mean() - shares(ANSWERS["RelationNet"]).mean()
    assert re.search(rf"- Below RelationNet, 3 of 6: .*NCM\(x\+L\) \({gap:+.2f}, p ", text)


@pytest.mark.parametrize(
    "data, changes, paper, ours",
    [
        (
            "miniimagenet100",
            {},
            "all 600 pictures of a class, 200000 training episodes",
            "100 pictures of a class, pictures of 84 px, 1000 training episodes",
        ),
        ("miniimagenet", {}, "200000 training episodes", "pictures of 84 px, 1000 training episodes"),
        ("miniimagenet", {"training": {"episodes": 200_000}}, "", "pictures of 84 px, 200000 training episodes"),
        (
            "flower102",
            {},
            "SoSN on pictures of 224 px, 40000 training episodes",
            "pictures of 84 px, 1000 training episodes",
        ),
        ("food101", {"size": 224}, "200000 training episodes", "pictures of 224 px, 1000 training episodes"),
        (
            "open_mic-p1-to-p2",
            {},
            "the mean over twelve pairs of parts (protocol I), 15000 training episodes",
            "open_mic-p1-to-p2 alone, pictures of 84 px, 1000 training episodes",
        ),
    ],
)
def test_other_data_sizes_and_budgets_than_the_papers_are_named(
    plain: Callable[..., str], data: str, changes: dict[str, Any], paper: str, ours: str
) -> None:
    for protocol, papers, tests in (
        ("5-way-1-shot", ["transductive tests"], "tests that are not transductive"),
        ("5-way-1-shot-transductive", [], "transductive tests"),
    ):
        text = plain(
            *(
                episode_run(name, ANSWERS[name], data=data, protocol=protocol, config=changes)
                for name in ("RelationNet", "SoSN(x)+SigmE")
            )
        )
        named = ", ".join([*([paper] if paper else []), *papers])
        said = f"The paper's figures are for {named}; ours are for {ours} and {tests}. The difference"
        assert (said in text) is bool(named)
        assert ("The paper's figures are for " in text) is bool(named)
        assert ("for another training or another test than ours" in text) is bool(named)


def test_pretraining_on_another_set_than_the_papers_is_named() -> None:
    def found(source: str | None, data: str = "flower102") -> str | None:
        names = ("SoSN(x+L)+Pretr+SC+SigmE", "SoSN(x+L)+SC+SigmE")
        config = {"size": 224} | ({} if source is None else {"pretraining": {"data": source}})
        records = [episode_run(name, ANSWERS["SoSN(x)"], data=data, config=config) for name in names]
        return group(records).paper_for

    for source, data, said in (
        ("glyphs", "flower102", "pre-training on miniImageNet"),
        ("food101", "flower102", "pre-training on miniImageNet"),
        (None, "food101", "pre-training on miniImageNet"),
        ("miniimagenet", "miniimagenet", "pre-training on Food-101"),
    ):
        assert f", {said}, " in (found(source, data) or "")
    for source, data in (("miniimagenet100", "flower102"), ("food101", "miniimagenet")):
        assert "pre-training" not in (found(source, data) or "")


def test_transductive_tests_have_a_table_of_their_own(plain: Callable[..., str]) -> None:
    """What is said of a query then depends on the others: nothing is paired across the two."""
    names = ("RelationNet", "SoSN(x)+SigmE")
    records = [
        episode_run(name, ANSWERS[name], protocol=f"5-way-1-shot{end}")
        for end in ("", "-transductive")
        for name in names
    ]
    text = plain(*records)
    tables_of = ["5-way-1-shot", "5-way-1-shot-transductive"]
    assert re.findall(r"^## miniimagenet100, (.*)$", text, re.MULTILINE) == tables_of
    assert text.count("batch normalization keeps the statistics of training, while the original code took") == 1
    assert text.count("statistics from the test episode itself (transductive), as in the original code, and") == 1
    assert text.count("| 52.96 ± 0.8 |") == 2  # beside both
    assert record_path(records[2]).name == "RelationNet.5-way-1-shot-transductive.json"
    mixed = {"test": {"way": 5, "shot": 1, "queries": 3, "transductive": True}}
    unpaired = group([RECORDS[0], episode_run("SoSN(x)", ANSWERS["SoSN(x)"], config=mixed)])
    assert [row.test for row in unpaired.rows] == [None, None]


@pytest.mark.parametrize(
    "training, said",
    [
        ({"episodes": 2000}, "on the same number of episodes (1000, 2000)"),
        ({"way": 20}, "with the same number of classes in an episode (5, 20)"),
        ({"shot": 5}, "with the same number of support pictures of a class (1, 5)"),
        ({"queries": 15}, "with the same number of queries of a class (5, 15)"),
        ({"precision": "bf16-mixed"}, "with the same precision (32-true, bf16-mixed)"),
    ],
)
def test_unequal_training_is_no_fair_comparison(plain: Callable[..., str], training: dict[str, int], said: str) -> None:
    usual = {"episodes": 1000, "way": None, "shot": None, "queries": 5, "precision": "32-true"}
    first, same, other = (
        episode_run(name, ANSWERS[name], config={"training": usual | changes})
        for name, changes in (("RelationNet", {}), ("SoSN(x)", {"way": 5, "shot": 1}), ("SoSN(x)+SigmE", training))
    )
    text = plain(first, same, other)
    assert f"- The methods were not trained {said}: that is not a fair comparison." in text
    assert text.count("not a fair comparison") == 1
    assert "not a fair comparison" not in plain(first, same)  # given, and the same as in the test


@pytest.mark.parametrize(
    "other",
    [
        {"config": {"data_digest": "b"}},
        {"config": {"test": {"way": 5, "shot": 1, "queries": 5}}},
        {"folds": ({"fold": 0, "value": 50.0},)},
        {"folds": (fold(answers(0.5, 9, count=COUNT - 1)),)},
        {"folds": (fold(ANSWERS["SoSN(x)"], number=1),)},
        {"folds": (fold([2 * right for right in ANSWERS["SoSN(x)"]], queries=2 * QUERIES, value=RECORDS[2].mean),)},
    ],
)
def test_other_episodes_are_not_paired(plain: Callable[..., str], other: dict[str, Any]) -> None:
    rights = () if "folds" in other else (ANSWERS["SoSN(x)"],)
    record = episode_run("SoSN(x)", *rights, **other)
    text = plain(RECORDS[0], record)
    row = rows(text)["SoSN(x)"]
    assert row["ours - RelationNet"] == f"{record.mean - RECORDS[0].mean:+.2f}"
    assert (row["95 % interval of it"], row["p"]) == (DASH, DASH)
    assert "- Not tested against RelationNet, for lack of the same test episodes: SoSN(x)." in text
    assert "(SoSN(x) against RelationNet): " in text
    assert "untested" in text


def test_several_runs_are_no_more_episodes(plain: Callable[..., str]) -> None:
    ours, theirs = ([answers(share, seed) for seed in seeds] for share, seeds in ((0.6, (1, 2, 3)), (0.5, (4, 5))))
    text = plain(episode_run("RelationNet", *theirs), episode_run("SoSN(x)", *ours))
    row = rows(text)["SoSN(x)"]
    by_run = np.stack([shares(right) for right in ours])
    mean = by_run.mean(0)
    assert row["ours"] == f"**{mean.mean():.2f} ± {stats.t.ppf(0.975, COUNT - 1) * stats.sem(mean):.2f}**"
    assert (row["runs"], row["std over runs"]) == ("3", f"{by_run.mean(1).std(ddof=1):.2f}")
    test = stats.ttest_rel(by_run[:2].mean(0), np.stack([shares(right) for right in theirs]).mean(0))
    gap = by_run[:2].mean() - np.mean([shares(right) for right in theirs])
    assert row["ours - RelationNet"] == f"{gap:+.2f} on 2 runs"
    assert row["p"] == p_text(test.pvalue)
    assert "queries each, 2 to 3 runs of each method, of which ours is the mean, seed 0" in text


def test_the_seeds_of_all_runs_are_listed(plain: Callable[..., str]) -> None:
    def record(method: str, *seeds: int) -> RunRecord:
        folds = tuple(fold(answers(0.5, seed), number, seed=seed) for number, seed in enumerate(seeds))
        return episode_run(method, folds=folds, seed=seeds[0])

    text = plain(record("RelationNet", 3, 5), record("SoSN(x)", 3, 5, 11))
    assert "of which ours is the mean, seeds 3, 5, 11; accuracy in %." in text
    assert "queries each, seed 7; accuracy" in plain(record("SoSN(x)", 7))


def test_runs_of_different_episodes_are_refused() -> None:
    with pytest.raises(RecordError, match=r"All runs must have the same test episodes.*got \[60, 59\]"):
        group([episode_run("SoSN(x)", ANSWERS["SoSN(x)"], answers(0.5, 1, COUNT - 1))])


def test_the_order_of_the_paper_is_checked_with_figures_and_p() -> None:
    found = order_findings(group(RECORDS))
    pairs = [re.search(r"\((\S+) against ([^\s,]+)(?:\)|,)", finding).groups() for finding in found[:-1]]
    assert pairs == [
        ("SoSN(x)", "RelationNet"),
        ("SoSN(x)+SigmE", "RelationNet"),
        ("SoSN(x)+SigmE", "PrototypicalNet"),
        ("SoSN(x)+AsinhE", "SoSN(x)"),  # equal on validation: the first
        ("SoSN(x)+SpecMaxExpF", "SoSN(x)"),
        ("SoSN(x)+SigmE", "SoSN(x)+AsinhE"),
    ]
    assert found[-1] == "Not measured here: with spatial coordinates above without."
    ours, theirs = shares(ANSWERS["SoSN(x)+SigmE"]), shares(ANSWERS["RelationNet"])
    p = p_text(stats.ttest_rel(ours, theirs).pvalue)
    gap = ours.mean() - theirs.mean()
    assert found[1] == (
        f"SoSN with SigmE above Relation Net (SoSN(x)+SigmE against RelationNet): holds, {ours.mean():.2f} and "
        f"{theirs.mean():.2f} ({gap:+.2f}, p {p}), in the paper +2.52."
    )


def test_relation_descriptors_differ_with_several_support_pictures_only() -> None:
    names = ("SoSN(x)+SigmE", "SoSN(x+L)+SigmE")
    for shot, expected in ((1, False), (5, True)):
        records = [episode_run(name, ANSWERS["SoSN(x)"], protocol=f"5-way-{shot}-shot") for name in names]
        assert any(said.startswith("X+L above x (") for said in order_findings(group(records))) is expected


def test_several_candidates_without_validation_are_said_to_be_chosen_on_the_test() -> None:
    bare = {"validation": None}
    records = [episode_run(name, ANSWERS[name], fold=bare) for name in ("SoSN(x)", "SoSN(x)+SigmE", "SoSN(x)+AsinhE")]
    said = "(SoSN(x)+SigmE against SoSN(x), the best of 2 and of 1 on the test episodes themselves, a choice that"
    assert any(said in finding for finding in order_findings(group(records)))


def study(spectral: int, elementwise: int, noise: int = 1) -> list[RunRecord]:
    """Four records on one target: what pre-training adds to the right queries of an episode, for each kind."""
    draw = random.Random(0)
    base = [draw.randrange(3, 8) for _ in range(COUNT)]
    gains = {"+SigmE": elementwise, "+SpecMaxExpF": spectral}
    records = []
    for name, gain in gains.items():
        without = [right + draw.randrange(-noise, noise + 1) for right in base]
        after = [right + gain + draw.randrange(-noise, noise + 1) for right in base]
        for pretrained, right in (("", without), ("+Pretr", after)):
            extra = {"pretraining": {"data": "glyphs", "episodes": 3000}} if pretrained else {}
            records.append(episode_run(f"SoSN(x+L){pretrained}{name}", right, data="flower102", config=extra))
    return records


@pytest.mark.parametrize(
    "spectral, elementwise, verdicts, end",
    [
        (4, 0, ("no difference beyond what chance may give", "helped"), "is seen here"),
        (4, 4, ("helped", "helped"), "is not seen here"),
        (0, 4, ("helped", "no difference beyond what chance may give"), "is not seen here"),
        (-2, 0, ("no difference beyond what chance may give", "did harm"), "is not seen here"),
    ],
)
def test_pretraining_is_judged_for_each_kind_and_for_their_difference(
    spectral: int, elementwise: int, verdicts: tuple[str, str], end: str
) -> None:
    records = {record.method: record for record in study(spectral, elementwise)}
    found = [said for said in order_findings(group(list(records.values()))) if "re-training" in said]
    assert len(found) == 3
    values = {name: shares(right_by_episode(record.folds[0], "a test")) for name, record in records.items()}
    gains = []
    for said, name, kind, verdict, paper in zip(
        found, ("+SigmE", "+SpecMaxExpF"), ("not spectral", "spectral"), verdicts, ("+0.05", "+1.50"), strict=False
    ):
        after, without = values[f"SoSN(x+L)+Pretr{name}"], values[f"SoSN(x+L){name}"]
        test = stats.ttest_rel(after, without)
        low, high = test.confidence_interval(0.95)
        start = f"Pre-training of SoSN(x+L){name} on glyphs, {kind}: {verdict}, {after.mean():.2f} with it and"
        assert said.startswith(start)
        assert f"95 % interval {low:+.2f} to {high:+.2f}, p {p_text(test.pvalue)}), in the paper, pre-trained" in said
        # The paper's own source and size, whatever ours are.
        assert said.endswith(f"pre-trained on miniImageNet, at 224 px, with spatial coordinates, {paper}.")
        gains.append(after - without)
    more = stats.ttest_rel(gains[1], gains[0])
    assert f"(SoSN(x+L)+SpecMaxExpF and not SoSN(x+L)+SigmE): {end}; " in found[2]
    gap = gains[1].mean() - gains[0].mean()
    assert f"less the other is {gap:+.2f}, " in found[2] or abs(gap) < 0.005
    assert found[2].endswith(f"p {p_text(more.pvalue)}.")


def test_the_papers_gain_on_miniimagenet_is_one_from_food() -> None:
    names = ("SoSN(x+L)+SC+SpecMaxExpF", "SoSN(x+L)+Pretr+SC+SpecMaxExpF")
    records = [episode_run(name, ANSWERS["SoSN(x)"], data="miniimagenet", config={"size": 224}) for name in names]
    assert order_findings(group(records))[-1].endswith("), in the paper, pre-trained on Food-101, +0.92.")
    others = [episode_run(name, ANSWERS["SoSN(x)"], data="omniglot", config={"size": 224}) for name in names]
    assert "paper" not in order_findings(group(others))[-1]


def test_gains_that_differ_by_chance_are_no_finding() -> None:
    base = [5] * COUNT
    gains = {"+SigmE": (-3, 4, 0), "+SpecMaxExpF": (-1, 2, 1)}  # of three episodes, again and again
    records = []
    for name, gain in gains.items():
        records.append(episode_run(f"SoSN(x){name}", base))
        after = [right + gain[place % 3] for place, right in enumerate(base)]
        records.append(episode_run(f"SoSN(x)+Pretr{name}", after))
    found = order_findings(group(records))
    assert "SoSN(x)+SpecMaxExpF, spectral: helped" in found[-2]
    assert "SoSN(x)+SigmE, not spectral: no difference" in found[-3]
    assert "each test by itself says so, but the two gains differ by no more than chance may give; " in found[-1]


def test_pretraining_in_other_episodes_is_untested() -> None:
    records = study(4, 0)
    records[0] = episode_run(records[0].method, answers(0.5, 1), data="flower102", config={"data_digest": "b"})
    found = order_findings(group(records))
    assert "Pre-training of SoSN(x+L)+SigmE on glyphs, not spectral: untested, " in found[-3]
    assert found[-1].endswith(": untested, for lack of the same test episodes.")


def test_budgets_of_both_trainings_are_in_the_table(plain: Callable[..., str]) -> None:
    found = rows(plain(*study(1, 0)))
    assert found["SoSN(x+L)+Pretr+SigmE"]["training episodes"] == "3000 + 1000"
    assert found["SoSN(x+L)+SigmE"]["training episodes"] == "1000"


def test_fewer_classes_come_first_and_each_protocol_has_a_table(plain: Callable[..., str]) -> None:
    protocols = ["20-way-1-shot", "5-way-5-shot", "5-way-1-shot"]
    text = plain(*(episode_run("SoSN(x)", ANSWERS["SoSN(x)"], protocol=protocol) for protocol in protocols))
    assert re.findall(r"^## miniimagenet100, (.*)$", text, re.MULTILINE) == sorted(protocols, key=protocols[::-1].index)


def test_each_kind_of_record_is_explained_where_it_is_not_alone(plain: Callable[..., str]) -> None:
    graphs = [runs.run("SOP", [80.0, 84.0]), runs.run("GIN0", [81.0, 82.5])]
    text = plain(*RECORDS, *graphs)
    assert "overlap.\n\nWhere a test consists of episodes, a value is the mean accuracy over test episodes" in text
    assert "\n\nOver test episodes, p is that of a paired, two-sided t-test over the same test episodes" in text
    assert "Of 7 rows of fewshot, 5 have a figure in the paper, " in text
    assert "Of 2 rows of graph, 2 have a figure in the paper: " in text


def test_curves_are_drawn_over_training_episodes(tmp_path: Path) -> None:
    assert mean_curve(RECORDS[0], "validation_value") == [(250, 30.0, 0.0), (500, 40.0, 0.0), (1000, 51.5, 0.0)]
    two = episode_run("SoSN(x)", folds=(fold(ANSWERS["SoSN(x)"]), fold(ANSWERS["SoSN(x)"], 1, curves={
        "episode": [500, 750], "train_loss": [0.25, 0.1]})))  # fmt: skip
    points = mean_curve(two, "train_loss")
    assert [point[0] for point in points] == [250, 500, 750, 1000]
    assert points[1][1:] == pytest.approx((0.2, math.sqrt(0.005)))
    assert draw_curves(group([RECORDS[0], two]), tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    for text in ("training episode", "training loss", "validation accuracy in %", "SoSN(x)"):
        assert f">{text}</text>" in drawn
    assert ">epoch</text>" not in drawn
    assert ">episode</text>" not in drawn  # where the points are is no curve


def test_a_curve_that_does_not_fit_its_steps_is_refused(tmp_path: Path) -> None:
    bad = episode_run("SoSN(x)", ANSWERS["SoSN(x)"], fold={"curves": {"episode": [1, 2], "train_loss": [0.5]}})
    with pytest.raises(RecordError, match=r"train_loss must have a point for each episode \(got 1, 2\)"):
        draw_curves(group([bad]), tmp_path / "curves.svg")


def test_markers_of_another_budget_say_so(tmp_path: Path) -> None:
    draw_values(group(RECORDS[:2]), tmp_path / "a.svg")
    marker = "paper, for all 600 pictures of a class, 200000 training episodes, transductive tests"
    assert f">{marker}</text>" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_long_marker_has_a_line_of_the_legend_to_itself(tmp_path: Path) -> None:
    pretrained = {"pretraining": {"data": "glyphs"}}
    names = ("SoSN(x+L)+SC+SigmE", "SoSN(x+L)+Pretr+SC+SigmE")
    records = [episode_run(name, ANSWERS["SoSN(x)"], data="flower102", config=pretrained) for name in names]
    for shown, lines in ((RECORDS[:2], 1), (records, 2)):
        draw_values(group(shown), tmp_path / "a.svg")
        legend = (tmp_path / "a.svg").read_text(encoding="utf-8").rpartition('id="legend_1"')[2]
        places = re.findall(r'<text [^>]*?y="([\d.]+)"', legend)
        assert len(places) == 2
        assert len(set(places)) == lines


def test_a_record_is_filed_by_its_protocol() -> None:
    assert record_path(RECORDS[3]) == Path("miniimagenet100", "SoSN(x)+AsinhE.5-way-1-shot.json")
