"""What the paper reports, to be printed beside what was measured here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

DATA_NAMES = {"PTC_MR": "PTC", "imagenet": "imagenet2012"}
"""Data sets that the paper calls by another name."""

METHOD_NAMES = {"Baseline": "baseline"}
"""Methods of image classification that the file calls by another name."""

IMAGENET_NAMES = {"SOP+NewtonSchulz": "Newton-Schulz"}
"""Methods that the table of ImageNet takes from others, under the name it has for them."""

PROTOCOL_NAMES = {"validation-only": "validation_only", "retrain": "retrained_on_train_and_validation"}

NETWORKS = {
    "alexnet": "an AlexNet whose last two convolutional layers are fine-tuned",
    "resnet50": "a fine-tuned ResNet-50",
}
"""The networks of the paper's tables of images, by the names of the file, and how they were trained."""


@dataclass(frozen=True)
class Figure:
    """A number of the paper."""

    mean: float
    std: float | None = None
    """None in the tables of images, which have one number for each method."""
    top5: float | None = None
    """Accuracy of the best five guesses in %, where the paper has it."""


@dataclass(frozen=True)
class Expectation:
    """That one method is above another, as in the paper's table of Flower102. An end ``*`` is the best of a kind."""

    text: str
    above: tuple[str, ...]
    below: tuple[str, ...]


ORDER = (
    Expectation("second order above first", ("SOP",), ("FOP",)),
    Expectation("an element-wise power normalization above none", ("SOP+AsinhE",), ("SOP",)),
    Expectation("with spatial coordinates above without", ("SOP+SC+AsinhE",), ("SOP+AsinhE",)),
    Expectation("SigmE above AsinhE", ("SOP+SC+SigmE",), ("SOP+SC+AsinhE",)),
    Expectation("spectral above element-wise", ("SOP+SC+Spec*",), ("SOP+SC+AsinhE", "SOP+SC+SigmE")),
)
"""What the paper's tables of images would have one expect of others."""


def paper_figure(pipeline: str, data: str, method: str, protocol: str, backbone: str | None = None) -> Figure | None:
    """The paper's number for one row of one table; None where it reports none.

    Graph classification is known by protocol, image classification by network: that of ``backbone`` where the paper has
    a column for it, and ResNet-50 otherwise. It has errors for ImageNet, which are accuracies here.

    Example:
        >>> paper_figure("graph", "PTC_MR", "SOP+SpecMaxExpF", "validation-only")
        Figure(mean=68.3, std=9.3, top5=None)
        >>> paper_figure("vision", "flower102", "SOP", "end-to-end", "torchvision:alexnet")
        Figure(mean=87.2, std=None, top5=None)
    """
    if pipeline == "vision":
        return _image_figure(data, method, backbone)
    if pipeline != "graph":
        return None
    table = figures()["graph"].get(PROTOCOL_NAMES.get(protocol), {})
    found = table.get(DATA_NAMES.get(data, data), {}).get(method)
    return None if found is None else Figure(*map(float, found))


def paper_network(data: str, backbone: str | None) -> str:
    """The network that the paper's numbers for images belong to, by its name in :data:`NETWORKS`.

    Example:
        >>> paper_network("flower102", "hf:microsoft/resnet-50"), paper_network("flower102", "efficientnet-lite0")
        ('resnet50', 'resnet50')
        >>> paper_network("flower102", "alexnet"), paper_network("food101", "alexnet")
        ('alexnet', 'resnet50')
    """
    found = network(backbone)
    return found if found is not None and found in _image_table(data) else "resnet50"


def network(backbone: str | None) -> str | None:
    """Which of :data:`NETWORKS` a backbone is, with or without the name of a collection before it; None: another."""
    name = re.sub(r".*[:/]", "", (backbone or "").lower())
    found = re.match(r"(alexnet|resnet-?50)(?:\.|$)", name)  # timm has the weights behind a full stop
    return None if found is None else found[1].replace("-", "")


@cache
def figures() -> dict[str, Any]:
    """Every number of the paper, in the structure of the file that ships with the package."""
    import yaml

    text = resources.files("powerpool").joinpath("recipes", "paper.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _image_table(data: str) -> dict[str, Any]:
    found: dict[str, Any] = figures()["image_classification"].get(DATA_NAMES.get(data, data), {})
    return found


def _image_figure(data: str, method: str, backbone: str | None) -> Figure | None:
    table = _image_table(data)
    table = table.get(paper_network(data, backbone), table)  # only Flower102 is there for two networks
    found = table.get(METHOD_NAMES.get(method, method), table.get(IMAGENET_NAMES.get(method)))
    if isinstance(found, list):
        # Errors of the first guess and of the best five. Rounded, for 100 - 22.05 is 77.95 but for round-off.
        top1, top5 = (round(100 - float(error), 2) for error in found)
        return Figure(top1, top5=top5)
    return None if found is None else Figure(float(found))
