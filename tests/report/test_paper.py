"""The paper's figures, found by the names of records."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from powerpool.data.layouts import EXHIBITIONS, OPEN_MIC_PAIRS
from powerpool.report.paper import Figure, figures, find_network, paper_figure, paper_network, set_of_paper

ORIGINAL = Path(__file__).parents[3] / "shared" / "paper" / "results.yaml"


@pytest.mark.parametrize(
    "data, method, protocol, mean, std",
    [
        ("MUTAG", "GIN0", "validation-only", 86.1, 5.8),
        ("COLLAB", "SOP+NewtonSchulz", "retrain", 81.2, 8.9),
        ("PTC_MR", "SOP+SpecGamma", "validation-only", 61.5, 3.8),  # the name in the TU collection
    ],
)
def test_figures_of_graphs(data: str, method: str, protocol: str, mean: float, std: float) -> None:
    assert paper_figure("graph", data, method, protocol) == Figure(mean, std)


@pytest.mark.parametrize(
    "task, data, method, protocol",
    [
        ("graph", "MUTAG", "GIN0+Sum", "validation-only"),
        ("graph", "ENZYMES", "GIN0", "validation-only"),
        ("vision", "flower102", "SOP+NewtonSchulz", "frozen"),
        ("vision", "flower102", "resnet50", "frozen"),
        ("few-shot", "flower102", "RelationNet", "frozen"),
    ],
)
def test_figures_that_the_paper_does_not_report(task: str, data: str, method: str, protocol: str) -> None:
    assert paper_figure(task, data, method, protocol) is None


@pytest.mark.parametrize(
    "data, method, backbone, figure",
    [
        ("flower102", "Baseline", "resnet50", Figure(94.06)),
        ("flower102", "Baseline", "alexnet", Figure(82.0)),
        ("flower102", "SOP+SC+SpecMaxExpF", "efficientnet-lite0", Figure(97.62)),  # those of ResNet-50
        ("flower102", "SOP+SC+SpecMaxExpF", "alexnet", None),
        ("imagenet2012", "Baseline", None, Figure(75.0, top5=91.9)),
        ("imagenet", "SOP+SC+SpecMaxExpF", "resnet50", Figure(77.95, top5=93.96)),
        ("imagenet", "SOP+NewtonSchulz", None, Figure(77.86, top5=93.78)),
    ],
)
def test_figures_of_images(data: str, method: str, backbone: str | None, figure: Figure | None) -> None:
    for protocol in ("frozen", "end-to-end"):
        assert paper_figure("vision", data, method, protocol, backbone) == figure


@pytest.mark.parametrize(
    "backbone, expected",
    [
        ("alexnet", "alexnet"),
        ("torchvision:alexnet", "alexnet"),
        ("timm:resnet50.a1_in1k", "resnet50"),
        ("hf:microsoft/resnet-50", "resnet50"),
        ("hf:/home/me/ResNet-50", "resnet50"),
        ("timm:resnet50d", None),
        ("hf:me/alexnet-like", None),
        (None, None),
    ],
)
def test_networks_by_the_names_of_collections(backbone: str | None, expected: str | None) -> None:
    assert find_network(backbone) == expected
    assert paper_network("flower102", backbone) == expected or paper_network("flower102", backbone) == "resnet50"
    assert paper_network("mit67", backbone) == "resnet50"


@pytest.mark.parametrize(
    "data, method, protocol, size, figure",
    [
        ("miniimagenet", "RelationNet", "5-way-1-shot", 84, Figure(50.44, half=0.8)),
        ("miniimagenet100", "SoSN(x+L)+SigmE", "5-way-5-shot", 84, Figure(70.94, half=0.6)),
        ("miniimagenet", "SoSN(x+L)+Pretr+SC+SigmE", "5-way-1-shot", 224, Figure(60.51, half=0.5)),
        ("miniimagenet", "RelationNet", "5-way-1-shot", 224, None),
        ("miniimagenet", "RelationNet", "20-way-1-shot", 84, None),
        ("flower102", "SoSN(x+L)+SigmE", "5-way-5-shot", 84, Figure(88.6, half=0.53)),
        ("flower102", "SoSN(x)+SigmE", "5-way-1-shot", 84, Figure(77.62, half=0.88)),
        ("flower102", "SoSN(x)+SigmE", "5-way-5-shot", 84, None),  # x and x+L differ with five images
        ("open_mic-p1-to-p2", "RelationNet", "5-way-1-shot", 84, Figure(55.45)),
        ("open_mic-p4-to-p3", "SoSN(x)", "20-way-1-shot", 84, Figure(45.31)),
        ("open_mic-p1-to-p2", "SoSN(x)+SigmE", "20-way-1-shot", 224, Figure(53.84)),
        ("open_mic-p1-to-p2", "RelationNet", "5-way-5-shot", 84, None),
        ("open_mic-shn", "RelationNet", "5-way-1-shot", 84, None),  # the second protocol has no table
        ("miniimagenet_84", "RelationNet", "5-way-1-shot", 84, None),  # a key of the file, not a data set
        ("flower102", "SoSN(x)+SigmE", "5-way-1-shot", 224, Figure(77.62, half=0.88)),
        ("miniimagenet", "RelationNet", "5-way-1-shot-transductive", 84, Figure(50.44, half=0.8)),
        ("omniglot", "RelationNet", "5-way-1-shot", 28, None),
    ],
)
def test_figures_of_episodes(data: str, method: str, protocol: str, size: int | None, figure: Figure | None) -> None:
    assert paper_figure("fewshot", data, method, protocol, size=size) == figure


def test_open_mic_by_pairs_of_parts() -> None:
    pairs = [f"open_mic-{pair.replace('->', '-to-')}" for pair in OPEN_MIC_PAIRS]
    assert len(pairs) == 12
    assert {set_of_paper(pair) for pair in pairs} == {"open_mic"}
    assert {set_of_paper(f"open_mic-{exhibition}") for exhibition in EXHIBITIONS} == {None}


def test_numbers_of_the_original_file() -> None:
    if not ORIGINAL.exists():
        pytest.skip(f"no {ORIGINAL}: the numbers were compared with it where it is")
    assert figures() == yaml.safe_load(ORIGINAL.read_text(encoding="utf-8"))
