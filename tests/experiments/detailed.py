"""Made-up records with all that a report can show: confusions, spectra, episodes, curves."""

from __future__ import annotations

import random
from typing import Any

from powerpool.runs.record import RunRecord
from powerpool.tasks.spectra import ranks
from tests.experiments import runs

CLASSES = ("cat", "dog", "owl")


def confusion(seed: int, classes: tuple[str, ...] = CLASSES, each: int = 20) -> dict[str, Any]:
    """The value and the confusion of a fold with so many samples of each class."""
    draw, size = random.Random(seed), len(classes)
    counts: dict[tuple[int, int], int] = {}
    for row in range(size):
        for _ in range(each):
            pair = row, row if draw.random() < 0.7 else draw.randrange(size)
            counts[pair] = counts.get(pair, 0) + 1
    right = sum(count for (row, column), count in counts.items() if row == column)
    listed = [f"{row} {column} {count}" for (row, column), count in sorted(counts.items())]
    return {"value": 100 * right / (size * each), "confusion": {"classes": list(classes), "counts": listed}}


def spectrum(size: int = 12, power: float = 2.0, samples: int = 16) -> dict[str, Any]:
    """Shares that fall as powers of the rank, less steeply after the normalization."""
    found: dict[str, Any] = {"samples": samples, "size": size, "ranks": ranks(size)}
    for name, slope in (("before", power), ("after", power / 2)):
        values = [rank**-slope for rank in range(1, size + 1)]
        found[name] = [values[rank - 1] / sum(values) for rank in found["ranks"]]
    return found


def record(method: str, seed: int, classes: tuple[str, ...] = CLASSES, folds: int = 3, **more: Any) -> RunRecord:
    own = tuple(
        {
            "fold": number,
            **confusion(seed + 10 * number, classes),
            **({} if method == "GIN0" else {"spectrum": spectrum(power=1.5 + seed / 4)}),
            "curves": runs.curves(seed + number),
            "chosen": {"hidden": 32, "layers": 2 + number % 2},
        }
        for number in range(folds)
    )
    config = {"data": "MUTAG", "data_digest": "0123456789abcdef", "model": {"method": method, "hidden": 32}, "folds": 3}
    return runs.run(method, [], **({"folds": own, "config": config} | more))


def episodes(method: str, seed: int, **more: Any) -> RunRecord:
    draw = random.Random(seed)
    right = [draw.randint(4, 10) for _ in range(40)]
    fold = {
        "fold": 0,
        "value": 100 * sum(right) / (10 * len(right)),
        "right_by_episode": " ".join(map(str, right)),
        "count": len(right),
        "queries": 10,
        "episodes_per_second": 3.0,
        "spectrum": spectrum(8, samples=16),
        "curves": {"episode": [10, 20], "train_loss": [0.3, 0.2]},
    }
    config = {"data_digest": "d", "size": 28, "test": {"way": 5, "shot": 1, "queries": 2}, "training": {"episodes": 20}}
    found = runs.run(method, [], **({"folds": (fold,), "config": config} | more))
    return RunRecord(**{**vars(found), "pipeline": "fewshot", "data": "glyphs", "protocol": "5-way-1-shot"})


def everything() -> list[RunRecord]:
    """Records whose report has every section: few classes, more classes, many classes, and episodes."""
    digits, many = tuple(map(str, range(10))), tuple(f"flower number {name}" for name in range(40))
    methods = ("GIN0", "SOP", "SOP+SigmE", "SOP+SpecMaxExpF")
    return [
        *(record(method, seed) for seed, method in enumerate(methods)),
        *(record(method, seed, digits, data="DIGITS") for seed, method in enumerate(methods)),
        *(record(method, seed, many, data="FLOWERS") for seed, method in enumerate(methods)),
        *(episodes(method, seed) for seed, method in enumerate(("RelationNet", "SoSN(x)", "SoSN(x)+SigmE"))),
    ]
