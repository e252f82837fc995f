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
    """Over folds; None in the tables of images, which have one number for each method, and in those of episodes."""
    top5: float | None = None
    """Accuracy of the best five guesses in %, where the paper has it."""
    half: float | None = None
    """Of a mean over episodes: what the paper has behind ±, half of the 95 % interval."""


@dataclass(frozen=True)
class Expectation:
    """That one method is above another in the paper's tables. An end ``*`` is the best of a kind."""

    text: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    single_shot: bool = True
    """Whether it is expected with one support picture, too; some methods differ with more of them only."""


IMAGE_ORDER = (
    Expectation("second order above first", ("SOP",), ("FOP",)),
    Expectation("an element-wise power normalization above none", ("SOP+AsinhE",), ("SOP",)),
    Expectation("with spatial coordinates above without", ("SOP+SC+AsinhE",), ("SOP+AsinhE",)),
    Expectation("SigmE above AsinhE", ("SOP+SC+SigmE",), ("SOP+SC+AsinhE",)),
    Expectation("spectral above element-wise", ("SOP+SC+Spec*",), ("SOP+SC+AsinhE", "SOP+SC+SigmE")),
)
"""What the paper's tables of images would have one expect of others."""

EPISODE_ORDER = (
    Expectation("second order above Relation Net, without a power normalization", ("SoSN(x)",), ("RelationNet",)),
    Expectation("SoSN with SigmE above Relation Net", ("SoSN(x)+SigmE", "SoSN(x+L)+SigmE"), ("RelationNet",)),
    Expectation("SoSN with SigmE above Prototypical Net", ("SoSN(x)+SigmE", "SoSN(x+L)+SigmE"), ("PrototypicalNet",)),
    Expectation("an element-wise power normalization above none", ("SoSN(x)+AsinhE", "SoSN(x)+SigmE"), ("SoSN(x)",)),
    Expectation("a spectral power normalization above none", ("SoSN(x)+Spec*",), ("SoSN(x)",)),
    Expectation("SigmE above AsinhE", ("SoSN(x)+SigmE",), ("SoSN(x)+AsinhE",)),
    Expectation("x+L above x", ("SoSN(x+L)+SigmE",), ("SoSN(x)+SigmE",), single_shot=False),
    Expectation("with spatial coordinates above without", ("SoSN(x+L)+SC+SigmE",), ("SoSN(x+L)+SigmE",)),
)
"""What the paper's tables of few-shot learning would have one expect of others."""

TRAINING_EPISODES = {
    "miniimagenet": 200_000,
    "miniimagenet100": 200_000,
    "food101": 200_000,
    "flower102": 40_000,
    "open_mic": 15_000,
}
"""How many the paper trains on."""
FEW_SHOT_SIZE = {"flower102": 224, "food101": 224}
"""Side of the pictures that SoSN is trained on there. Tables of other sets have a part for each size."""
FEW_SHOT_SIZES = (84, 224)
"""Sides of pictures that there are in tables of few-shot learning: what was measured at another has no figure."""
PRETRAINED_ON = {
    "miniimagenet": "Food-101",
    "miniimagenet100": "Food-101",
    "flower102": "miniImageNet",
    "food101": "miniImageNet",
    "open_mic": "miniImageNet",
}
"""What the paper trains on before, by the set of a table."""
SOURCE_NAMES = {"miniimagenet": "miniImageNet", "miniimagenet100": "miniImageNet", "food101": "Food-101"}
"""What it calls these sets."""


def paper_figure(
    pipeline: str, data: str, method: str, protocol: str, backbone: str | None = None, size: int | None = None
) -> Figure | None:
    """The paper's number for one row of one table; None where it reports none.

    Graph classification is known by protocol, image classification by network: that of ``backbone`` where the paper has
    a column for it, and ResNet-50 otherwise. It has errors for ImageNet, which are accuracies here. Few-shot learning
    is known by protocol, with transductive tests or without, and by the size of pictures in pixels: there are no
    figures for other sizes than 84 and 224. Those for Flower102 and Food-101 are for one size of the two, see
    :data:`FEW_SHOT_SIZE`, and are given for both.

    Example:
        >>> paper_figure("graph", "PTC_MR", "SOP+SpecMaxExpF", "validation-only")
        Figure(mean=68.3, std=9.3, top5=None, half=None)
        >>> paper_figure("vision", "flower102", "SOP", "end-to-end", "torchvision:alexnet")
        Figure(mean=87.2, std=None, top5=None, half=None)
        >>> paper_figure("fewshot", "miniimagenet", "SoSN(x)+SigmE", "5-way-5-shot", size=84)
        Figure(mean=68.63, std=None, top5=None, half=0.6)
    """
    if pipeline == "vision":
        return _image_figure(data, method, backbone)
    if pipeline == "fewshot":
        return _episode_figure(data, method, protocol, size)
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


def expectations(pipeline: str, protocol: str) -> tuple[Expectation, ...]:
    """The order of methods that the paper would have one expect in a table.

    Example:
        >>> [expected.text for expected in expectations("vision", "frozen")][:2]
        ['second order above first', 'an element-wise power normalization above none']
        >>> len(expectations("fewshot", "5-way-5-shot")) - len(expectations("fewshot", "5-way-1-shot"))
        1
    """
    if pipeline == "fewshot":
        shown = way_and_shot(protocol)
        return tuple(one for one in EPISODE_ORDER if one.single_shot or (shown is not None and shown[1] > 1))
    return IMAGE_ORDER if pipeline == "vision" else ()


def way_and_shot(protocol: str) -> tuple[int, int] | None:
    """The two numbers in the name of a protocol of episodes; None where it is no such name.

    Example:
        >>> way_and_shot("20-way-1-shot"), way_and_shot("5-way-5-shot-transductive"), way_and_shot("frozen")
        ((20, 1), (5, 5), None)
    """
    found = re.fullmatch(r"(\d+)-way-(\d+)-shot(?:-transductive)?", protocol)
    return None if found is None else (int(found[1]), int(found[2]))


def set_of_paper(data: str) -> str | None:
    """The set of few-shot learning that the paper has a table for, by the name of a record; None where it has none.

    Its table of Open MIC is for the first protocol, from one part to another, and the pair is in the name of a record.
    An exhibition by itself is of the second protocol.

    Example:
        >>> set_of_paper("open_mic-p1-to-p2"), set_of_paper("open_mic-shn"), set_of_paper("flower102")
        ('open_mic', None, 'flower102')
    """
    if re.fullmatch(r"open_mic-p[1-4]-to-p[1-4]", data):
        return "open_mic"
    return data if data in TRAINING_EPISODES and data != "open_mic" else None


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


def _episode_figure(data: str, method: str, protocol: str, size: int | None) -> Figure | None:
    name, shown = set_of_paper(data), way_and_shot(protocol)
    if name is None or shown is None or size not in FEW_SHOT_SIZES:
        return None
    way, shot = shown
    if name == "open_mic":
        return _museum_figure(method, way, shot, size)
    is_mini = name in ("miniimagenet", "miniimagenet100")
    table = figures()["few_shot"][f"miniimagenet_{size}" if is_mini else name]
    found = table.get(method if is_mini else _without_descriptor(method, shot))
    if found is None or way != 5 or shot not in (1, 5):
        return None
    mean, half = found[0 if shot == 1 else 1]
    return Figure(float(mean), half=float(half))


def _museum_figure(method: str, way: int, shot: int, size: int) -> Figure | None:
    """The table of Open MIC has one support picture, five or twenty classes, two sizes, and no intervals."""
    name = _without_descriptor(method, shot) + ("@224" if size == 224 else "")
    found = figures()["few_shot"]["open_mic"].get(name)
    return None if found is None or shot != 1 or way not in (5, 20) else Figure(float(found[0 if way == 5 else 1]))


def _without_descriptor(method: str, shot: int) -> str:
    """As tables call a method that have one relation descriptor alone, x+L: with one support picture all are that."""
    return re.sub(r"^SoSN\((x\+L|x\+P|x)\)" if shot == 1 else r"^SoSN\(x\+L\)", "SoSN", method)
