"""Cells of tables against NumPy and SciPy."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from scipy import stats

from powerpool.report.groups import group_records
from powerpool.report.tables import MISSING, count_chosen, make_cells, make_pretraining_table
from powerpool.runs.record import RunRecord
from powerpool.tasks.methods import METHODS
from tests.report.samples import QUERIES, draw_flags, draw_right, episode_run, fold, graph_run, image_run

ORDER = ("GIN0", "SOP", "SOP+SigmE", "SOP+SpecMaxExpF")
DRAW = random.Random(0)
VALUES = {method: [DRAW.gauss(85, 6) for _ in range(10)] for method in ORDER}
FLAGS = {"FOP": draw_flags(0.7, 0), "SOP": draw_flags(0.85, 1), "SOP+SC+SpecMaxExpF": draw_flags(0.93, 2)}
RIGHT = {"RelationNet": draw_right(0.45, 0), "SoSN(x)": draw_right(0.47, 1), "SoSN(x)+SigmE": draw_right(0.6, 2)}


def rows(*records: RunRecord, **options: Any) -> dict[str, dict[str, str]]:
    """The cells of a table by method and heading; the bold ones are marked."""
    (group,) = group_records(records, **options)
    return {row.record.method: make_cells(group, row) for row in group.rows}


def format_p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def test_folds() -> None:
    found = rows(*(graph_run(method, values) for method, values in VALUES.items()))
    assert list(found) == list(ORDER)
    for method, paper_mean, paper_std in (("SOP", 86.2, 5.2), ("SOP+SpecMaxExpF", 88.9, 5.8)):
        ours, theirs, row = np.array(VALUES[method]), np.array(VALUES["GIN0"]), found[method]
        half = stats.t.ppf(0.975, 9) * ours.std(ddof=1) / math.sqrt(10)
        gaps = ours - theirs
        corrected = abs(gaps.mean()) / math.sqrt((1 / 10 + 1 / 8) * gaps.var(ddof=1))
        assert row == {
            "method": method,
            "ours": f"{ours.mean():.2f} ± {ours.std(ddof=1):.2f}",
            "95 % interval": f"{ours.mean() - half:.2f} to {ours.mean() + half:.2f}",
            "folds": "10",
            "paper": f"{paper_mean} ± {paper_std}",
            "ours - paper": f"{ours.mean() - paper_mean:+.2f}",
            "within one std of the paper": "yes" if abs(ours.mean() - paper_mean) <= paper_std else "no",
            "ours - GIN0": f"{gaps.mean():+.2f}",
            "p": f"{stats.ttest_rel(ours, theirs).pvalue:.3f}",
            "corrected p": f"{2 * stats.t.sf(corrected, 9):.3f}",
            "chosen (folds)": MISSING,
            "seconds": "12",
        }
    assert {found["GIN0"][name] for name in ("ours - GIN0", "p", "corrected p")} == {MISSING}
    best = max(ORDER, key=lambda method: np.mean(VALUES[method]))
    assert [name for name, row in found.items() if type(row["ours"]) is not str] == [best]


def test_images() -> None:
    found = rows(*(image_run(method, flags) for method, flags in FLAGS.items()))
    for method, paper in (("SOP", "94.7"), ("SOP+SC+SpecMaxExpF", "97.62")):
        row, ours, theirs = found[method], FLAGS[method], FLAGS["FOP"]
        count = len(ours)
        mean, wilson = 100 * sum(ours) / count, stats.binomtest(sum(ours), count).proportion_ci(method="wilson")
        pairs = list(zip(ours, theirs, strict=True))
        won, lost = pairs.count((True, False)), pairs.count((False, True))
        more, fewer = (won + 1) / (count + 2), (lost + 1) / (count + 2)
        half = stats.norm.ppf(0.975) * math.sqrt((more + fewer - (more - fewer) ** 2) / (count + 2))
        low, high = 100 * (more - fewer - half), 100 * (more - fewer + half)
        assert row == {
            "method": method,
            "top-1": f"{mean:.2f}",
            "95 % interval": f"{100 * wilson.low:.2f} to {100 * wilson.high:.2f}",
            "runs": MISSING,
            "top-5": "99.25",
            "paper": paper,
            "paper, top-5": MISSING,
            "ours - paper": f"{mean - float(paper):+.2f}",
            "ours - FOP": f"{100 * (won - lost) / count:+.2f}",
            "95 % interval of it": f"{low:+.2f} to {high:+.2f}",
            "p": format_p(stats.binomtest(won, won + lost).pvalue),
            "validation": "81.50",
            "chosen": "eta 20; penalty 1e-05",
            "epochs to convergence": "17",
            "seconds": "12",
        }


def test_episodes() -> None:
    found = rows(*(episode_run(method, right) for method, right in RIGHT.items()))
    for method, paper in (("SoSN(x)", "50.88 ± 0.8"), ("SoSN(x)+SigmE", "52.96 ± 0.8")):
        row, (ours, theirs) = found[method], (100 * np.array(RIGHT[name]) / QUERIES for name in (method, "RelationNet"))
        half = stats.t.ppf(0.975, len(ours) - 1) * stats.sem(ours)
        test = stats.ttest_rel(ours, theirs)
        low, high = test.confidence_interval(0.95)
        assert row == {
            "method": method,
            "ours": f"{ours.mean():.2f} ± {half:.2f}",
            "runs": MISSING,
            "std over seeds": MISSING,
            "paper": paper,
            "ours - paper": f"{ours.mean() - float(paper.split()[0]):+.2f}",
            "ours - RelationNet": f"{ours.mean() - theirs.mean():+.2f}",
            "95 % interval of it": f"{low:+.2f} to {high:+.2f}",
            "p": format_p(test.pvalue),
            "p over": "episodes",
            "validation": "51.50",
            "chosen": "episode 750",
            "training episodes": "1000",
            "CPU seconds": MISSING,
            "episodes/s": "2.50",
            "seconds": "400",
        }


def test_equal_methods_differ_by_zero_and_neither_is_the_best() -> None:
    found = rows(graph_run("GIN0", [80.0, 84.0]), graph_run("SOP", [80.0, 84.0]))
    assert [found["SOP"][name] for name in ("ours - GIN0", "p", "corrected p")] == ["0.00", "1.000", "1.000"]
    assert {type(row["ours"]) for row in found.values()} == {str}


@pytest.mark.parametrize("mean, within", [(91.3, "yes"), (80.9, "no")])
def test_within_one_deviation_of_the_paper(mean: float, within: str) -> None:
    # The paper has 86.2 +- 5.2 for SOP on MUTAG.
    assert rows(graph_run("SOP", [mean - 1, mean + 1]))["SOP"]["within one std of the paper"] == within


def test_fewer_folds_in_common_are_counted() -> None:
    some = tuple(fold(value, number) for number, value in ((7, 86.0), (0, 90.0), (3, 83.0)))
    records = [graph_run("GIN0", [float(80 + number) for number in range(10)]), graph_run("SOP", results=some)]
    row = rows(*records)["SOP"]
    assert row["ours - GIN0"] == "+3.00 on 3 folds"
    assert row["p"] == f"{stats.ttest_rel([90.0, 83.0, 86.0], [80.0, 83.0, 87.0]).pvalue:.3f}"
    assert rows(*records, baseline="SOP")["GIN0"]["ours - SOP"] == "-3.00 on 3 folds"


def test_imagenet_has_a_top_5() -> None:
    found = rows(*(image_run(name, FLAGS["SOP"], data="imagenet") for name in ("SOP+NewtonSchulz", "SOP")))
    assert [found["SOP+NewtonSchulz"][name] for name in ("paper", "paper, top-5")] == ["77.86", "93.78"]
    assert [found["SOP"][name] for name in ("paper", "paper, top-5")] == [MISSING, MISSING]


def test_several_runs_of_episodes() -> None:
    ours, theirs = ([draw_right(share, seed) for seed in seeds] for share, seeds in ((0.6, (1, 2, 3)), (0.5, (4, 5))))
    row = rows(episode_run("RelationNet", *theirs), episode_run("SoSN(x)", *ours))["SoSN(x)"]
    by_run = 100 * np.array(ours) / QUERIES
    mean = by_run.mean(0)
    assert row["ours"] == f"{mean.mean():.2f} ± {stats.t.ppf(0.975, len(mean) - 1) * stats.sem(mean):.2f}"
    assert (row["runs"], row["std over seeds"]) == ("3", f"{by_run.mean(1).std(ddof=1):.2f}")
    other = 100 * np.array(theirs) / QUERIES
    assert row["ours - RelationNet"] == f"{by_run[:2].mean() - other.mean():+.2f} on 2 runs"
    assert row["p over"] == "seeds"
    assert row["p"] == format_p(stats.ttest_rel(by_run[:2].mean(1), other.mean(1)).pvalue)


def test_chosen_settings_are_counted() -> None:
    results = [fold(80.0, number, chosen={"hidden": hidden, "eta": 20.0}) for number, hidden in enumerate((32, 64, 64))]
    assert count_chosen(graph_run("SOP", results=tuple(results))) == "hidden 64 (2), 32 (1); eta 20"
    assert count_chosen(graph_run("SOP", [80.0])) == ""
    # A result without the setting is not counted.
    assert count_chosen(graph_run("SOP", results=(fold(1.0), *results[1:]))) == "hidden 64 (2); eta 20 (2)"


def test_settings_of_version_0_1_have_their_new_names() -> None:
    chosen = {"eta_prime": 1000.0, "gamma_prime": 0.5, "beta": 0.0}
    assert (
        count_chosen(graph_run("SOP", [80.0], result={"chosen": chosen})) == "sigme_eta 1000; asinhe_gamma 0.5; beta 0"
    )


def test_methods_are_in_the_order_of_the_task() -> None:
    names = [*list(METHODS["vision"])[::-1], "Zero", "Another"]
    found = rows(*(image_run(name, FLAGS["SOP"]) for name in names))
    assert list(found) == [*METHODS["vision"], "Another", "Zero"]


# ---- pre-training ----------------------------------------------------------------------------------------------------


def study(seeds: int = 4) -> list[RunRecord]:
    """Two methods on Flower102, with pre-training and without."""
    records = []
    for seed, name in enumerate(("+SigmE", "+SpecMaxExpF")):
        for part, share, extra in (("", 0.5, {}), ("+Pretr", 0.6, {"data": "glyphs", "episodes": 3000})):
            config = {"pretraining": extra} if extra else {}
            rights = [draw_right(share, 20 * run + 2 * seed + len(part)) for run in range(seeds)]
            records.append(episode_run(f"SoSN(x+L){part}{name}", *rights, data="flower102", config=config))
    return records


def test_gains_of_pretraining_and_their_difference() -> None:
    records = study()
    (group,) = group_records(records)
    table = make_pretraining_table(group)
    assert table is not None
    # The unit is the seed: one accuracy for each.
    values = {record.method: np.array([result.value for result in record.results]) for record in records}
    gains = {}
    for row, name, paper in zip(table.rows, ("+SigmE", "+SpecMaxExpF"), ("+0.05", "+1.50"), strict=False):
        after, before = values[f"SoSN(x+L)+Pretr{name}"], values[f"SoSN(x+L){name}"]
        gains[name] = after - before
        test = stats.ttest_rel(after, before)
        low, high = test.confidence_interval(0.95)
        assert row[:4] == [f"SoSN(x+L){name}", "glyphs", f"{after.mean():.2f}", f"{before.mean():.2f}"]
        assert row[4:7] == [f"{gains[name].mean():+.2f}", f"{low:+.2f} to {high:+.2f}", format_p(test.pvalue)]
        assert row[7:] == ["4", f"{paper} (from miniImageNet, 224 px, with SC)"]
    test = stats.ttest_rel(gains["+SpecMaxExpF"], gains["+SigmE"])
    gap = gains["+SpecMaxExpF"].mean() - gains["+SigmE"].mean()
    assert table.rows[2][0] == "SoSN(x+L)+SpecMaxExpF less SoSN(x+L)+SigmE"
    assert (table.rows[2][4], table.rows[2][6]) == (f"{gap:+.2f}", format_p(test.pvalue))
    assert make_cells(group, group.rows[2])["training episodes"] == "3000 + 1000"


def test_one_seed_has_a_gain_but_no_test() -> None:
    table = make_pretraining_table(*group_records(study(seeds=1)))
    assert table is not None
    for row in table.rows:
        assert row[4] != MISSING
        assert row[5:8] == [MISSING, MISSING, "1"]


def test_gain_of_the_paper_with_the_same_method() -> None:
    names = ("SoSN(x+L)+SC+SpecMaxExpF", "SoSN(x+L)+Pretr+SC+SpecMaxExpF")
    for data, paper in (("miniimagenet", "+0.92 (from Food-101)"), ("omniglot", MISSING)):
        records = [episode_run(name, RIGHT["SoSN(x)"], data=data, config={"size": 224}) for name in names]
        table = make_pretraining_table(*group_records(records))
        assert table is not None
        assert [row[8] for row in table.rows] == [paper]


def test_the_spread_over_folds_is_that_of_means_over_seeds() -> None:
    results = tuple(
        fold(value, number, fold=number % 3, seed=number // 3)
        for number, value in enumerate((80.0, 90.0, 84.0, 82.0, 88.0, 88.0))
    )
    (group,) = group_records([graph_run("GIN0", results=results)])
    cells = make_cells(group, group.rows[0])
    assert cells["ours"] == f"85.33 ± {np.std([81, 89, 86], ddof=1):.2f}"
    assert cells["folds"] == "3, 2 seeds"
