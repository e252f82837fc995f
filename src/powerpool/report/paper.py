"""The figures that the paper reports, which tables show beside those measured here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from powerpool.report.results import get_backbone, get_count, get_setting
from powerpool.runs.record import RunRecord

DATA_NAMES = {"PTC_MR": "PTC", "imagenet": "imagenet2012"}
"""Data sets that the paper calls by another name."""
METHOD_NAMES = {"Baseline": "baseline"}
"""Methods of image classification that the file calls by another name."""
IMAGENET_NAMES = {"SOP+NewtonSchulz": "Newton-Schulz"}
"""Methods that the table of ImageNet takes from other papers, and its names for them."""
RETRAINED = "retrained_on_train_and_validation"
PROTOCOL_NAMES = {
    "validation-only": "validation_only",
    "retrain": RETRAINED,
    "test-epoch": RETRAINED,
    "test-epoch-per-fold": RETRAINED,
}
NETWORKS = {
    "alexnet": "an AlexNet whose last two convolutional layers are fine-tuned",
    "resnet50": "a fine-tuned ResNet-50",
}
"""The networks of the paper's tables of images, and how they were trained."""
PRETRAINED = "+Pretr"
"""Part of the name of a method that was pre-trained on another data set."""


@dataclass(frozen=True)
class Figure:
    """A number of the paper."""

    mean: float
    std: float | None = None
    """Standard deviation over folds; None for images and few-shot learning."""
    top5: float | None = None
    """Top-5 accuracy in %, where the paper has it."""
    half: float | None = None
    """Half of the 95 % interval of a mean over episodes."""


@dataclass(frozen=True)
class FewShotSetup:
    """How the paper trains on a data set for few-shot learning."""

    episodes: int
    source: str
    """The data set of pre-training, as the paper calls it."""
    size: int | None = None
    """Side of the images in pixels; None where the paper has a table for each size."""


FEW_SHOT = {
    "miniimagenet": FewShotSetup(200_000, "Food-101"),
    "miniimagenet100": FewShotSetup(200_000, "Food-101"),
    "food101": FewShotSetup(200_000, "miniImageNet", 224),
    "flower102": FewShotSetup(40_000, "miniImageNet", 224),
    "open_mic": FewShotSetup(15_000, "miniImageNet"),
}
FEW_SHOT_SIZES = (84, 224)
"""Sides of images in the tables of few-shot learning."""
SOURCE_NAMES = {"miniimagenet": "miniImageNet", "miniimagenet100": "miniImageNet", "food101": "Food-101"}
"""The paper's names of the data sets that it pre-trains on."""


def paper_figure(
    task: str, data: str, method: str, protocol: str, backbone: str | None = None, size: int | None = None
) -> Figure | None:
    """Return the paper's number for one row of one table; None if it does not report one.

    Graph classification is found by protocol, image classification by network: that of ``backbone`` where the paper has
    a column for it, otherwise ResNet-50. Errors on ImageNet are converted to accuracies. Few-shot learning is found by
    protocol, transductive or not, and by the size of images in pixels, 84 or 224; the figures for Flower102 and
    Food-101 are for 224 px, and are returned for both.

    Example:
        >>> paper_figure("graph", "PTC_MR", "SOP+SpecMaxExpF", "validation-only")
        Figure(mean=68.3, std=9.3, top5=None, half=None)
        >>> paper_figure("vision", "flower102", "SOP", "end-to-end", "torchvision:alexnet")
        Figure(mean=87.2, std=None, top5=None, half=None)
        >>> paper_figure("fewshot", "miniimagenet", "SoSN(x)+SigmE", "5-way-5-shot", size=84)
        Figure(mean=68.63, std=None, top5=None, half=0.6)
    """
    if task == "vision":
        return _image_figure(data, method, backbone)
    if task == "fewshot":
        return _episode_figure(data, method, protocol, size)
    table = figures()["graph"].get(PROTOCOL_NAMES.get(protocol), {})
    found = table.get(DATA_NAMES.get(data, data), {}).get(method)
    return None if found is None else Figure(*map(float, found))


def record_figure(record: RunRecord, method: str | None = None) -> Figure | None:
    """Return the paper's number beside a record, or for another method under the same settings."""
    names = (record.task, record.data, method or record.method, record.protocol)
    return paper_figure(*names, get_backbone(record), get_count(record, "size"))


def describe_paper_setup(records: Sequence[RunRecord]) -> str | None:
    """Return what the paper's figures are for, as far as it differs from the setup of these records.

    Args:
        records: of one data set, protocol and backbone, each with a figure in the paper.
    """
    if not records or records[0].task == "graph":
        return None
    first = records[0]
    if first.task == "fewshot":
        return _describe_few_shot(records)
    backbone = get_backbone(first)
    wanted = paper_network(first.data, backbone)
    is_same = first.protocol == "end-to-end" and find_network(backbone) == wanted
    return None if is_same else NETWORKS[wanted]


def paper_network(data: str, backbone: str | None) -> str:
    """Return the network that the paper's numbers for images belong to, by its name in :data:`NETWORKS`."""
    found = find_network(backbone)
    return found if found is not None and found in _image_table(data) else "resnet50"


def find_network(backbone: str | None) -> str | None:
    """Return which of :data:`NETWORKS` a backbone is, with or without the prefix of a collection; None if another."""
    name = re.sub(r".*[:/]", "", (backbone or "").lower())
    found = re.match(r"(alexnet|resnet-?50)(?:\.|$)", name)  # timm names the weights after a full stop
    return None if found is None else found[1].replace("-", "")


def way_and_shot(protocol: str) -> tuple[int, int] | None:
    """Return the two numbers in the name of a few-shot protocol; None for other names."""
    found = re.fullmatch(r"(\d+)-way-(\d+)-shot(?:-transductive)?", protocol)
    return None if found is None else (int(found[1]), int(found[2]))


def set_of_paper(data: str) -> str | None:
    """Return the data set of :data:`FEW_SHOT` that a record belongs to, by its name; None if the paper has no table.

    The table of Open MIC is for the first protocol, from one part to another, and the pair is in the name of a record.
    """
    if re.fullmatch(r"open_mic-p[1-4]-to-p[1-4]", data):
        return "open_mic"
    return data if data in FEW_SHOT and data != "open_mic" else None


@cache
def figures() -> dict[str, Any]:
    """Return every number of the paper, in the structure of the YAML file that ships with the package."""
    import yaml

    text = resources.files("powerpool").joinpath("recipes", "paper.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _describe_few_shot(records: Sequence[RunRecord]) -> str | None:
    name = set_of_paper(records[0].data)
    if name is None:
        return None
    setup, parts = FEW_SHOT[name], []
    if name == "miniimagenet100":
        parts.append("all 600 images of a class")
    if name == "open_mic":
        parts.append("the mean over twelve pairs of parts (protocol I)")
    if setup.size is not None and {get_count(record, "size") for record in records} != {setup.size}:
        parts.append(f"SoSN on images of {setup.size} px")
    if {get_count(record, "training", "episodes") for record in records} != {setup.episodes}:
        parts.append(f"{setup.episodes} training episodes")
    sources = {get_setting(record, "pretraining", "data") for record in records if PRETRAINED in record.method}
    if any(SOURCE_NAMES.get(str(source)) != setup.source for source in sources):
        parts.append(f"pre-training on {setup.source}")
    if not records[0].protocol.endswith("-transductive"):
        parts.append("transductive tests")
    return ", ".join(parts) or None


def _image_table(data: str) -> dict[str, Any]:
    found: dict[str, Any] = figures()["image_classification"].get(DATA_NAMES.get(data, data), {})
    return found


def _image_figure(data: str, method: str, backbone: str | None) -> Figure | None:
    table = _image_table(data)
    table = table.get(paper_network(data, backbone), table)  # only Flower102 has two networks
    found = table.get(METHOD_NAMES.get(method, method), table.get(IMAGENET_NAMES.get(method)))
    if isinstance(found, list):
        # Top-1 and top-5 errors. Rounded, because 100 - 22.05 is 77.95 only up to round-off.
        top1, top5 = (round(100 - float(error), 2) for error in found)
        return Figure(top1, top5=top5)
    return None if found is None else Figure(float(found))


def _episode_figure(data: str, method: str, protocol: str, size: int | None) -> Figure | None:
    name, numbers = set_of_paper(data), way_and_shot(protocol)
    if name is None or numbers is None or size not in FEW_SHOT_SIZES:
        return None
    tables, shot = figures()["few_shot"], numbers[1]
    if name.startswith("miniimagenet"):
        found = tables[f"miniimagenet_{size}"].get(method)
    else:
        suffix = "@224" if name == "open_mic" and size == 224 else ""
        found = tables[name].get(_without_descriptor(method, shot) + suffix)
    # The table of Open MIC has a column for five classes and one for twenty, and no intervals.
    columns = [(5, 1), (20, 1)] if name == "open_mic" else [(5, 1), (5, 5)]
    if found is None or numbers not in columns:
        return None
    entry = found[columns.index(numbers)]
    return Figure(float(entry)) if name == "open_mic" else Figure(float(entry[0]), half=float(entry[1]))


def _without_descriptor(method: str, shot: int) -> str:
    """Name a method as tables with x+L alone do; with one support image all descriptors are the same."""
    return re.sub(r"^SoSN\((x\+L|x\+P|x)\)" if shot == 1 else r"^SoSN\(x\+L\)", "SoSN", method)
