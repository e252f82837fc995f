"""Invented records, with numbers that can be checked independently."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from powerpool.runs.environment import Environment
from powerpool.runs.record import Confusion, EpisodeResult, FoldResult, RunRecord, Score, Spectrum, SplitResult

ENVIRONMENT = Environment(
    processor="a machine",
    threads=1,
    python="3.12",
    torch="2",
    powerpool="0",
    commit="0123456789abcdef",
    dirty=False,
    time="2026-01-01T00:00:00+00:00",
    command="powerpool reproduce graph",
)
QUERIES = 15
CLASSES = ("cat", "dog", "owl")


def graph_run(method: str, values: Sequence[float] = (), **more: Any) -> RunRecord:
    """A record with one fold for each value; ``result`` adds fields to every fold, other names replace fields."""
    extra = more.pop("result", {})
    folds = tuple(fold(value, number, **extra) for number, value in enumerate(values))
    config = {"data": "MUTAG", "model": {"method": method, "hidden": 64}, "folds": 10, "data_digest": "a"}
    fields: dict[str, Any] = {
        "task": "graph",
        "data": "MUTAG",
        "protocol": "validation-only",
        "metric": "accuracy in %",
        "results": folds,
        "seed": 0,
        "seconds": 12.4,
        "environment": ENVIRONMENT,
    }
    return RunRecord(method=method, config=config | more.pop("config", {}), **(fields | more))


def fold(value: float, number: int = 0, **more: Any) -> FoldResult:
    return FoldResult(**({"number": number, "value": value, "test_loss": 0.5, "seconds": 1.0, "epoch": 1} | more))


def image_run(method: str, *flags: Sequence[bool], **more: Any) -> RunRecord:
    """A record with one run for each list of flags that say which samples are right."""
    extra = more.pop("result", {})
    config = {"pool": {"method": method}, "backbone": "efficientnet-lite0", "data_digest": "a"}
    fields: dict[str, Any] = {
        "task": "vision",
        "data": "flower102",
        "protocol": "frozen",
        "metric": "top-1 accuracy in %",
        "results": tuple(split(one, number, **extra) for number, one in enumerate(flags)),
    }
    return graph_run(method, config=config | more.pop("config", {}), **(fields | more))


def split(flags: Sequence[bool], number: int = 0, **more: Any) -> SplitResult:
    fields: dict[str, Any] = {
        "number": number,
        "value": 100 * sum(flags) / len(flags),
        "test_loss": 0.5,
        "seconds": 3.0,
        "top5": 99.25,
        "count": len(flags),
        "right": pack(flags),
        "validation": Score(81.5, 0.5),
        "chosen": {"eta": 20.0, "penalty": 1e-5},
        "converged": 17,
        "curves": {"train_loss": (1.0, 0.5, 0.25), "validation_value": (70.0, 80.0, 81.5)},
    }
    return SplitResult(**(fields | more))


def pack(flags: Sequence[bool]) -> str:
    """The flags as the bits of one number, in hexadecimal digits: another way than byte by byte."""
    size = math.ceil(len(flags) / 8)
    number = sum(1 << (8 * size - 1 - place) for place, flag in enumerate(flags) if flag)
    return f"{number:0{2 * size}x}"


def draw_flags(share: float, seed: int, count: int = 203) -> list[bool]:
    """Flags of samples, of which about this share is right; by default not a whole number of bytes."""
    draw = random.Random(seed)
    return [draw.random() < share for _ in range(count)]


def episode_run(method: str, *rights: Sequence[int], **more: Any) -> RunRecord:
    """A record with one run for each list of correct queries by episode."""
    extra = more.pop("result", {})
    protocol = more.get("protocol", "5-way-1-shot")
    way, shot = (int(word) for word in protocol.split("-") if word.isdigit())
    test = {"way": way, "shot": shot, "queries": 3, "transductive": protocol.endswith("transductive")}
    config = {"size": 84, "model": {"method": method}, "test": test, "training": {"episodes": 1000}, "data_digest": "a"}
    fields: dict[str, Any] = {
        "task": "fewshot",
        "data": "miniimagenet100",
        "protocol": protocol,
        "results": tuple(episodes(one, number, **extra) for number, one in enumerate(rights)),
        "seconds": 400.2,
    }
    return graph_run(method, config=config | more.pop("config", {}), **(fields | more))


def episodes(right: Sequence[int], /, number: int = 0, **more: Any) -> EpisodeResult:
    queries = more.get("queries") or QUERIES
    fields: dict[str, Any] = {
        "number": number,
        "value": 100 * sum(right) / (queries * len(right)),
        "test_loss": 0.1,
        "seconds": 400.0,
        "right": tuple(right),
        "queries": queries,
        "test_seconds": 20.0,
        "episodes_per_second": 2.5,
        "chosen": {"episode": 750.0},
        "validation": Score(51.5, 0.1),
        "curves": {"episode": (250.0, 500.0, 1000.0), "train_loss": (0.2, 0.15, 0.1)},
    }
    return EpisodeResult(**(fields | more))


def draw_right(share: float, seed: int, count: int = 60) -> list[int]:
    """Correct queries of episodes."""
    draw = random.Random(seed)
    return [sum(draw.random() < share for _ in range(QUERIES)) for _ in range(count)]


# ---- records with everything -----------------------------------------------------------------------------------------


def curves(seed: int, epochs: int = 5) -> dict[str, tuple[float, ...]]:
    draw = random.Random(seed)
    names = ("train_loss", "validation_loss", "validation_accuracy")
    return {name: tuple(draw.uniform(0.4, 0.9) for _ in range(epochs)) for name in names}


def spectrum(size: int = 12, power: float = 2.0, samples: int = 16) -> Spectrum:
    """Shares that fall as powers of the rank, less steeply after the normalization."""
    ranks = tuple(range(1, size + 1))
    before, after = ([rank**-slope for rank in ranks] for slope in (power, power / 2))
    shares = (tuple(value / sum(values) for value in values) for values in (before, after))
    return Spectrum(samples, size, ranks, *shares)


def confused(seed: int, classes: tuple[str, ...] = CLASSES, each: int = 20) -> dict[str, Any]:
    """The value and the confusion matrix of a fold with so many samples of each class."""
    draw, size = random.Random(seed), len(classes)
    rows = [[0] * size for _ in classes]
    for true, row in enumerate(rows):
        for _ in range(each):
            row[true if draw.random() < 0.7 else draw.randrange(size)] += 1
    return {"value": 100 * sum(row[true] for true, row in enumerate(rows)) / (size * each), **confusion(rows, classes)}


def confusion(rows: Sequence[Sequence[int]], classes: Sequence[str] = CLASSES) -> dict[str, Confusion]:
    entries = (f"{true} {place} {count}" for true, row in enumerate(rows) for place, count in enumerate(row) if count)
    return {"confusion": Confusion(tuple(classes), tuple(entries))}


def full_graph_run(method: str, seed: int, classes: tuple[str, ...] = CLASSES, **more: Any) -> RunRecord:
    own = {} if method == "GIN0" else {"spectrum": spectrum(power=1.5 + seed / 4)}
    results = tuple(
        fold(
            **confused(seed + 10 * number, classes),
            number=number,
            curves=curves(seed + number),
            chosen={"hidden": 32.0, "layers": 2.0 + number % 2},
            **own,
        )
        for number in range(3)
    )
    return graph_run(method, results=results, **more)


def full_report() -> list[RunRecord]:
    """Records whose report has every section: few classes, more classes, many classes, episodes and pre-training."""
    digits, many = tuple(map(str, range(10))), tuple(f"flower number {name}" for name in range(40))
    methods = ("GIN0", "SOP", "SOP+SigmE", "SOP+SpecMaxExpF")
    episode_methods = ("RelationNet", "SoSN(x)+SigmE", "SoSN(x)+Pretr+SigmE")
    extra = {"spectrum": spectrum(8)}
    return [
        *(full_graph_run(method, seed) for seed, method in enumerate(methods)),
        *(full_graph_run(method, seed, digits, data="DIGITS") for seed, method in enumerate(methods)),
        *(full_graph_run(method, seed, many, data="FLOWERS") for seed, method in enumerate(methods)),
        *(episode_run(name, draw_right(0.6, seed), result=extra) for seed, name in enumerate(episode_methods)),
    ]


class Page(HTMLParser):
    """Tags, texts and images of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.images: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")
