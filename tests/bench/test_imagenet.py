"""The cost of ImageNet on the page about scaling: every number is a count or comes from a record."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import powerpool as pp
from powerpool.bench.measure import count
from powerpool.bench.networks import RESNET_50, make_resnet
from powerpool.bench.record import load

ROOT = Path(__file__).parents[2]
if not (ROOT / "results").exists():
    pytest.skip("results are stored in a checkout only", allow_module_level=True)


def load_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("imagenet", ROOT / "docs" / "making" / "imagenet.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for annotations
    spec.loader.exec_module(module)
    return module


imagenet = load_module()
STEP = load(ROOT / "results" / "bench" / "training.json").cases[0]
AVERAGE, OURS = STEP.results


def test_the_operations_of_the_backbone_are_those_that_torch_counts():
    with torch.device("meta"):
        network = make_resnet(RESNET_50)
        images = torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        network(images)
    assert pytest.approx(imagenet.BACKBONE_FLOPS, rel=0.01) == 3 * counter.get_total_flops()
    assert sum(weight.numel() for weight in network.parameters()) == imagenet.BACKBONE_WEIGHTS


def test_the_operations_of_factors_are_those_of_a_step():
    features = torch.rand(1, 32, 9, requires_grad=True)
    head = pp.nn.FactoredHead(32, 7, 4)
    found = count(lambda: head(pp.gram_factor(features, pp.MaxExp(eta=50))).sum().backward())
    assert found.product_flops == imagenet.factored_flops(32, 7, locations=9, rank=4)
    assert OURS.product_flops == 8 * imagenet.factored_flops(2048, classes=102)


@pytest.mark.parametrize("channels", [256, 2048])
@pytest.mark.parametrize("head", ["dense", "factored"])
def test_weights_are_those_of_the_modules(channels, head):
    found = imagenet.estimate(channels, head)
    with torch.device("meta"):
        size = channels * (channels + 1) // 2
        own = nn.Linear(size, 1000) if head == "dense" else pp.nn.FactoredHead(channels, 1000)
        reduction = nn.Conv2d(2048, channels, 1, bias=False) if channels < 2048 else nn.Identity()
    expected = sum(weight.numel() for layer in (own, reduction) for weight in layer.parameters())
    assert found.weights == expected
    # Weights, gradients, exchanged copies and averages, before any image.
    assert found.memory(0) == 16 * (expected + imagenet.BACKBONE_WEIGHTS)
    assert found.memory(2) - found.memory(1) == pytest.approx(found.image_bytes)


def test_the_page_has_these_numbers():
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert imagenet.table() in text
    assert imagenet.filled(text) == text
    page = " ".join(text.split())
    ours = 24.5e9 + imagenet.factored_flops(2048, classes=1000)
    growth = ours / (24.5e9 + imagenet.factored_flops(2048, classes=RESNET_50.classes))
    days = 20 * 1_281_167 / 8 * OURS.total.median * growth / 86400
    numbers = [f"{growth:.2f} times", f"{days:.0f} days", f"{OURS.total.median / AVERAGE.total.median:.2f} times"]
    numbers += [f"{imagenet.estimate(2048, 'dense').sent_bytes / 1e9:.1f} GB", f"{8 / OURS.total.median:.1f} "]
    numbers += [f"{peak / 1e12:.0f} x 10^12" for peak in imagenet.GPUS.values()] + [f"{100 * imagenet.SHARE} %"]
    for number in numbers:
        assert number in page, number
