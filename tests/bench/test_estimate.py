"""The cost of ImageNet: every figure from a count or a record, and the page says what the function says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import powerpool as pp
from powerpool.bench import estimate as module
from powerpool.bench.counts import count
from powerpool.bench.estimate import GPUS, Device, Estimate, estimate, factored_flops, measured_days, table
from powerpool.bench.training import RESNET_50, make_resnet
from powerpool.errors import ArgumentError, UnknownNameError
from powerpool.files import read_json

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "bench"


def test_the_operations_of_the_backbone_are_those_that_torch_counts():
    pytest.importorskip("transformers", reason="a ResNet-50 is not counted: pip install transformers")
    with torch.device("meta"):
        network = make_resnet(RESNET_50)
        images = torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        network(images)
    assert pytest.approx(module.BACKBONE_FLOPS, rel=0.01) == 3 * counter.get_total_flops()
    assert sum(weight.numel() for weight in network.parameters()) == module.BACKBONE_WEIGHTS


@pytest.mark.parametrize("channels, locations, classes, rank", [(16, 5, 3, 2), (32, 9, 7, 4)])
def test_the_operations_of_factors_are_those_of_a_step(channels, locations, classes, rank):
    features = torch.rand(1, channels, locations, requires_grad=True)
    head = pp.nn.FactoredHead(channels, classes, rank)
    found = count(lambda: head(pp.gram_factor(features, pp.MaxExp(eta=50))).sum().backward())
    assert found.product_flops == factored_flops(channels, classes, locations, rank)


def test_the_operations_of_factors_are_those_of_the_record():
    case = next(case for case in read_json(RECORDS / "training.json")["cases"] if case["sizes"]["channels"] == 2048)
    recorded = next(result for result in case["results"] if result["origin"] == "powerpool")["product_flops"]
    assert 8 * factored_flops(2048, classes=102) == recorded


@pytest.mark.parametrize("channels", [256, 512, 2048])
@pytest.mark.parametrize("head", ["dense", "factored"])
def test_weights_are_those_of_the_modules(channels, head):
    found = estimate(channels, head, RECORDS)
    with torch.device("meta"):
        size = channels * (channels + 1) // 2
        own = nn.Linear(size, 1000) if head == "dense" else pp.nn.FactoredHead(channels, 1000)
        reduction = nn.Conv2d(2048, channels, 1, bias=False) if channels < 2048 else nn.Identity()
    expected = sum(weight.numel() for layer in (own, reduction) for weight in layer.parameters())
    assert found.weights == expected
    # Weights, gradients, exchanged copies and averages, before any picture.
    assert found.memory(0) == 16 * (expected + module.BACKBONE_WEIGHTS)
    assert found.memory(2) - found.memory(1) == pytest.approx(found.picture_bytes)


def test_hours_are_operations_over_the_rate():
    device = Device(peak=1e12, memory=1e9, share=0.5)
    found = Estimate(256, "dense", weights=0, flops=1e9, picture_bytes=1.0)
    assert found.hours(device, epochs=2) == pytest.approx(2 * 1_281_167 * 25.5e9 / 0.5e12 / 3600)
    assert all(0 < gpu.share < 1 for gpu in GPUS.values())


def growth() -> float:
    """Operations of a picture with the classes of ImageNet, in those with the classes of the measured step."""
    ours, measured = (24.5e9 + factored_flops(2048, classes) for classes in (1000, RESNET_50.classes))
    return ours / measured


def test_days_are_those_of_the_measured_step_with_the_classes_of_imagenet():
    case = read_json(RECORDS / "training.json")["cases"][0]
    seconds = next(result for result in case["results"] if result["origin"] == "powerpool")["total"]["median"]
    assert growth() > 1.1
    assert measured_days(RECORDS, epochs=1) == pytest.approx(1_281_167 / 8 * seconds * growth() / 86400)


def test_the_page_has_the_figures_of_the_function():
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- table of bench/estimate\.py -->\n(.*)<!-- end of the table -->", text, re.DOTALL)
    assert found[1] == table(RECORDS)
    page = " ".join(text.split())
    assert f"and {RESNET_50.classes} classes takes" in page
    assert f"{growth():.2f} times the operations: {measured_days(RECORDS):.0f} days for the 20 epochs" in page
    assert f"{estimate(2048, 'dense', RECORDS).sent_bytes / 1e9:.1f} GB are exchanged" in page
    case = read_json(RECORDS / "training.json")["cases"][0]
    average, ours = (result["total"]["median"] for result in case["results"])
    assert f"takes {ours / average:.2f} times the step" in page
    assert f"at {8 / ours:.1f} pictures a second" in page
    for device in GPUS.values():
        assert f"{device.peak / 1e12:.0f} x 10^12" in page
        assert f"{100 * device.share} %" in page


def test_what_was_not_measured_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"pools\.json has no case with channels 300.*'powerpool bench pools'"):
        estimate(300, "dense", RECORDS)
    with pytest.raises(UnknownNameError, match="sparse"):
        estimate(256, "sparse", RECORDS)
