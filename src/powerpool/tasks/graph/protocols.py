"""Epochs that are chosen on test graphs, as in the code behind published figures.

Their accuracies are optimistic: the largest of many noisy values is above what it estimates. Graphs with permuted
labels, of which nothing can be learnt, show by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from powerpool.runs.record import FoldResult
from powerpool.tasks.base import round_curve
from powerpool.tasks.graph.training import TrainingCurves

EXACT = ("test_accuracy", "test_loss")
"""Curves that a value is taken from, which are not rounded."""


def shown_curves(curves: TrainingCurves, *, tested: bool) -> dict[str, tuple[float | None, ...]]:
    """Return the curves of a record, with those on test graphs only where the epoch is chosen by them."""
    found = {name: own for name, own in asdict(curves).items() if own and (tested or name not in EXACT)}
    return {name: round_curve(own, 17 if name in EXACT else 4) for name, own in found.items()}


def at_best_epoch(result: FoldResult) -> FoldResult:
    """Return the fold at the first epoch with its highest test accuracy."""
    accuracies = _accuracies(result)
    return _at_epoch(result, accuracies.index(max(accuracies)) + 1)


def at_common_epoch(results: Sequence[FoldResult]) -> list[FoldResult]:
    """Return the folds of each seed at the first epoch with the highest mean test accuracy over them."""
    epochs = {}
    for seed in {result.seed for result in results}:
        curves = [_accuracies(result) for result in results if result.seed == seed]
        totals = [math.fsum(column) for column in zip(*curves, strict=True)]
        epochs[seed] = totals.index(max(totals)) + 1
    return [_at_epoch(result, epochs[result.seed]) for result in results]


def _accuracies(result: FoldResult) -> list[float]:
    return [-math.inf if value is None else value for value in result.curves["test_accuracy"]]


def _at_epoch(result: FoldResult, epoch: int) -> FoldResult:
    """Return the test of another epoch; confusion, spectrum and measures, of the last one, are left out."""
    loss = result.curves["test_loss"][epoch - 1]
    return replace(
        result,
        value=_accuracies(result)[epoch - 1],
        test_loss=result.test_loss if loss is None else loss,
        epoch=epoch,
        confusion=None,
        spectrum=None,
        measures={},
    )
