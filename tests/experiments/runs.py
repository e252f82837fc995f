"""Made-up records of runs, with numbers that can be checked independently."""

from __future__ import annotations

import random
from typing import Any

from powerpool.runs.record import RunRecord

ENVIRONMENT = {
    "processor": "a machine",
    "threads": 1,
    "python": "3.12",
    "torch": "2",
    "powerpool": "0",
    "cuda": None,
    "commit": "0123456789abcdef",
    "dirty": False,
    "time": "2026-01-01T00:00:00+00:00",
    "command": "powerpool reproduce graph",
}


def run(method: str, values: list[float], data: str = "MUTAG", protocol: str = "validation-only", **more) -> RunRecord:
    """A record with one fold for each value; ``fold`` adds fields to every fold, other names replace fields."""
    extra: dict[str, Any] = more.pop("fold", {})
    folds = tuple({"fold": number, "value": value, **extra} for number, value in enumerate(values))
    config = {"data": {"name": data}, "model": {"method": method, "hidden": 64}, "folds": 10}
    fields = {"folds": folds, "config": config, "seed": 0, "seconds": 12.4, "environment": ENVIRONMENT}
    return RunRecord("graph", data, method, protocol, **({"metric": "accuracy in %"} | fields | more))


def curves(seed: int, epochs: int = 5) -> dict[str, list[float]]:
    draw = random.Random(seed)
    names = ("train_loss", "validation_loss", "validation_accuracy")
    return {name: [draw.uniform(0.4, 0.9) for _ in range(epochs)] for name in names}


def with_curves(method: str, seed: int, **more) -> RunRecord:
    draw = random.Random(seed)
    folds = tuple(
        {
            "fold": number,
            "value": draw.uniform(75, 95),
            "chosen": {"hidden": draw.choice([32, 64]), "eta": 20.0},
            "curves": curves(draw.randrange(1000)),
        }
        for number in range(10)
    )
    return run(method, [], folds=folds, **more)
