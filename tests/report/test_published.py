"""Published results: complete records from clean checkouts, and reports and pages with the numbers of the records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
import yaml

from powerpool.report import drawing
from powerpool.report.groups import BASELINES
from powerpool.report.results import Comparison, accuracies, compare_records
from powerpool.report.tables import MISSING, RENAMED, format_p
from powerpool.report.write import read_records, record_path, write_report
from powerpool.runs.compare import summarize
from powerpool.runs.record import RunRecord
from powerpool.runs.typed import Json
from powerpool.tasks.methods import GRAPH_METHODS

ROOT = Path(__file__).parents[2]
FOLDERS = ("graph", "vision", "fewshot", "fewshot-pretraining")
GRAPHS = ("MUTAG", "PTC_MR", "PROTEINS", "NCI1")
READOUTS = ("GIN0", "SOP", "SOP+SigmE", "SOP+NewtonSchulz", "SOP+SpecMaxExpF")
FROZEN = ("frozen", "frozen-softmax")
PAIR = ("RelationNet", "SoSN(x)+SigmE")
EPISODES = {
    ("omniglot", "5-way-1-shot"): PAIR,
    ("omniglot", "20-way-1-shot"): PAIR,
    ("miniimagenet100", "5-way-1-shot"): (
        *("RelationNet", "PrototypicalNet", "SoSN(x)", "SoSN(x)+AsinhE", "SoSN(x)+SigmE", "SoSN(x)+SpecMaxExpF"),
    ),
    ("miniimagenet100", "5-way-5-shot"): ("RelationNet", "SoSN(x)+SigmE", "SoSN(x+L)+SigmE"),
}
STUDIED = ("SoSN(x+L)+SigmE", "SoSN(x+L)+SpecMaxExpF")

Found = dict[tuple[str, str, str], RunRecord]


@cache
def load(folder: str) -> Found:
    """The records of a folder by data, protocol and method."""
    records = read_records(ROOT / "results" / folder)
    return {(record.data, record.protocol, record.method): record for record in records}


def compare(folder: str, data: str, protocol: str, method: str, other: str) -> Comparison:
    test = compare_records(*(load(folder)[data, protocol, name] for name in (method, other)))
    assert test is not None
    return test


@cache
def numbers(page: str) -> frozenset[str]:
    """All numbers with decimals on a page."""
    return frozenset(re.findall(r"\d+\.\d+", (ROOT / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize("folder", FOLDERS)
def test_report_is_that_of_the_records(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The plots depend on the version of matplotlib; the tables do not.
    monkeypatch.setattr(drawing, "save", lambda draw, paths, size, **more: paths[0].write_bytes(b""))
    written = write_report(list(load(folder).values()), tmp_path)
    published = ROOT / "results" / folder
    assert written[0].read_text() == (published / "README.md").read_text(), (
        f"run: powerpool report --records results/{folder}"
    )
    assert {path.name for path in written} == {path.name for path in published.iterdir() if path.is_file()}


@pytest.mark.parametrize("folder", FOLDERS)
def test_records_are_filed_by_name_and_from_a_clean_checkout(folder: str) -> None:
    for record in load(folder).values():
        assert (ROOT / "results" / folder / record_path(record)).exists()
        assert record.environment.dirty is False
        assert not record.environment.quick


def flatten(settings: dict[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in settings.items():
        name = prefix + RENAMED.get(name, name)
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


@pytest.mark.parametrize("folder", FOLDERS)
def test_records_have_the_settings_of_the_recipe(folder: str) -> None:
    for (data, protocol, method), record in load(folder).items():
        if protocol == "end-to-end":
            continue  # its settings are typed
        name = f"{record.task}/{data}{'-5-shot' if '5-shot' in protocol else ''}.yaml"
        if folder == "fewshot-pretraining":
            name = "fewshot/pretraining.yaml"
        text = resources.files("powerpool").joinpath("recipes", name).read_text(encoding="utf-8")
        found, wanted = dict(flatten(record.config)), dict(flatten(yaml.safe_load(text)))
        # A row has its own data set and number of classes, and beta only where the method has one.
        own = {
            "data",
            "test.way",
            *([] if "beta" in getattr(GRAPH_METHODS.get(method), "parameters", ()) else ["model.beta"]),
        }
        shared = found.keys() & wanted.keys() - own
        assert len(shared) >= 3
        assert {key: found[key] for key in shared} == {key: wanted[key] for key in shared}


# ---- pages that quote records ----------------------------------------------------------------------------------------


def test_tables_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for data in GRAPHS:
        records = [load("graph")[data, "validation-only", method] for method in READOUTS]
        assert f"| {data} | {' | '.join(f'{record.mean:.1f} ± {record.std:.1f}' for record in records)} |" in text
    for method in ("Baseline", "FOP", "SOP", "SOP+AsinhE", "SOP+SC+SigmE", "SOP+SC+NewtonSchulz", "SOP+SC+SpecMaxExpF"):
        means = [f"{load('vision')['flower102', protocol, method].mean:.2f}" for protocol in FROZEN]
        assert f"| {method} | {' | '.join(means)} |" in text
    for method in dict.fromkeys(method for methods in EPISODES.values() for method in methods):
        cells = []
        for place in EPISODES:
            record = load("fewshot").get((*place, method))
            low, high = (0.0, 0.0) if record is None else summarize(accuracies(record)).interval or (0.0, 0.0)
            cells.append(MISSING if record is None else f"{record.mean:.2f} ± {(high - low) / 2:.2f}")
        assert f"| {method} | {' | '.join(cells)} |" in text


def test_page_on_graphs() -> None:
    mean = {place: record.mean for place, record in load("graph").items()}
    for data in GRAPHS[:2]:
        for protocol in ("validation-only", "retrain"):
            twins = [mean[data, protocol, method] for method in ("SOP+SpecMaxExp", "SOP+SpecMaxExpF")]
            assert f"{abs(twins[0] - twins[1]):.1f}" in numbers("docs/graphs.md")
        gains = [mean[data, "retrain", method] - mean[data, "validation-only", method] for method in GRAPH_METHODS]
        assert f"{sum(gains) / len(gains):.1f}" in numbers("docs/graphs.md")
    for data in GRAPHS:
        test = compare("graph", data, "validation-only", "SOP+SpecMaxExpF", BASELINES["graph"])
        assert test.difference > 0
        assert f"{test.difference:.1f}" in numbers("docs/graphs.md")


def test_page_on_images() -> None:
    found = {(protocol, method): record for (_, protocol, method), record in load("vision").items()}
    quoted = {f"{found['frozen', name].mean:.2f}" for name in ("FOP", "SOP+SpecMaxExpF", "Baseline")}
    for method, other in (
        ("SOP+SpecMaxExpF", "FOP"),
        ("SOP+SpecMaxExpF", "SOP"),
        ("SOP", "FOP"),
        ("SOP+AsinhE", "SOP"),
        ("SOP+SC+SpecMaxExpF", "SOP+SpecMaxExpF"),
    ):
        quoted.add(f"{abs(compare('vision', 'flower102', 'frozen', method, other).difference):.2f}")
    whole = found["end-to-end", "SOP+SC+SpecMaxExpF"]
    test = compare_records(whole, found["frozen", "SOP+SC+SpecMaxExpF"])
    assert test is not None
    assert test.p_value < 0.001
    quoted |= {f"{whole.mean:.2f}", f"{test.difference:.2f}"}
    assert quoted <= numbers("docs/images.md")
    assert f"{whole.mean:.2f}" in numbers("README.md")
    wanted = {"epochs": 20, "crops": 1, "learning_rate": 5e-5, "decay_every": 12, "validation": "train"}
    assert {name: whole.config["training"][name] for name in wanted} == wanted


@pytest.mark.parametrize("page", ["README.md", "docs/fewshot.md"])
def test_pages_on_few_shot_learning(page: str) -> None:
    tests = [compare("fewshot", *place, "SoSN(x)+SigmE", "RelationNet") for place in EPISODES]
    assert all(test.p_value < 0.001 for test in tests)
    curves = ("SoSN(x)+SigmE", "SoSN(x)+AsinhE", "SoSN(x)+SpecMaxExpF")
    tests += [compare("fewshot", "miniimagenet100", "5-way-1-shot", method, "SoSN(x)") for method in curves]
    tests.append(compare("fewshot", "miniimagenet100", "5-way-5-shot", "SoSN(x+L)+SigmE", "SoSN(x)+SigmE"))
    for method in STUDIED:
        after = method.replace(")", ")+Pretr", 1)
        tests.append(compare("fewshot-pretraining", "flower102", "5-way-1-shot", after, method))
        assert tests[-1].difference < 0
    quoted = {f"{abs(test.difference):.2f}" for test in tests}
    assert quoted <= numbers(page)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert all(format_p(test.p_value) in text for test in tests[4:7])
