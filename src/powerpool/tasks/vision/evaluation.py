"""What the test of an image classifier found: accuracies, by class too, and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from powerpool.console import TextTable
from powerpool.runs.environment import environment
from powerpool.runs.record import Confusion
from powerpool.runs.typed import Json, to_json
from powerpool.tasks.base import Evaluation, confusion_matrix
from powerpool.tasks.vision.linear import top_five

PAIRS = 10
"""Number of pairs of confused classes that are listed."""
ROWS = 20
"""Number of classes in a table for the terminal."""


@dataclass(frozen=True)
class VisionEvaluation(Evaluation):
    """Accuracies in %, mean cross-entropy and the confusion matrix of a model on some images."""

    method: str
    images: str
    """Which images were tested."""
    top1: float
    top5: float
    loss: float
    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]
    """A row for each true class, a column for each predicted one."""
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, method: str, images: str, logits: Tensor, targets: Tensor, classes: Sequence[str]
    ) -> VisionEvaluation:  # shape: (n, classes), (n,)
        """Compute the evaluation of logits.

        Example:
            >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
            >>> found = VisionEvaluation.of("SOP", "all", logits, torch.tensor([0, 1, 1]), ["cat", "dog"])
            >>> found.matrix, found.accuracy_by_class["dog"], found.confused
            (((1, 0), (1, 1)), 50.0, [('dog', 'cat', 1, 50.0)])
        """
        matrix = confusion_matrix(logits.argmax(-1), targets, len(classes))
        return cls(
            method=method,
            images=images,
            top1=100 * int(matrix.diagonal().sum()) / len(targets),
            top5=top_five(logits, targets),
            loss=float(nn.functional.cross_entropy(logits.double(), targets)),
            classes=tuple(classes),
            matrix=tuple(tuple(row) for row in matrix.tolist()),
        )

    @property
    def counts(self) -> dict[str, int]:
        """Number of images of each class."""
        return {name: sum(row) for name, row in zip(self.classes, self.matrix, strict=True)}

    @property
    def accuracy_by_class(self) -> dict[str, float | None]:
        """Accuracy in % of each class; None for a class without images."""
        return {
            name: 100 * row[place] / sum(row) if sum(row) else None
            for place, (name, row) in enumerate(zip(self.classes, self.matrix, strict=True))
        }

    @property
    def confused(self) -> list[tuple[str, str, int, float]]:
        """Confused pairs, the most frequent first: true class, predicted class, count, share of the true class in %."""
        found = [
            (name, self.classes[column], count, 100 * count / sum(row))
            for place, (name, row) in enumerate(zip(self.classes, self.matrix, strict=True))
            for column, count in enumerate(row)
            if count and column != place
        ]
        return sorted(found, key=lambda pair: (-pair[2], -pair[3]))

    @property
    def confusion(self) -> Confusion:
        return Confusion.of(torch.tensor(self.matrix), self.classes)

    def plain(self) -> dict[str, Json]:
        counts = self.counts
        return {
            "images": self.images,
            "pictures": self.images.replace(" images of ", " pictures of ", 1),  # as in version 0.1
            "top1": self.top1,
            "top5": self.top5,
            "loss": self.loss,
            "count": sum(counts.values()),
            "accuracy_by_class": {
                name: {"accuracy": accuracy, "count": counts[name]} for name, accuracy in self.accuracy_by_class.items()
            },
            "confusion": [list(row) for row in self.matrix],
            "confused": [
                {"class": name, "said": predicted, "count": count, "share": share}
                for name, predicted, count, share in self.confused[:PAIRS]
            ],
            "environment": to_json(environment()),
        }

    def tables(self) -> list[TextTable]:
        counts, by_class = self.counts, self.accuracy_by_class
        title = (
            f"{self.method} on {self.images}: top-1 {self.top1:.2f} %, top-5 {self.top5:.2f} %, loss {self.loss:.3f}, "
            f"{sum(counts.values())} images"
        )
        most_confused: dict[str, str] = {}
        for name, other, count, _ in self.confused:
            most_confused.setdefault(name, f"{other} ({count})")
        # Classes without images come last.
        worst = sorted(self.classes, key=lambda name: math.inf if (value := by_class[name]) is None else value)
        rows = []
        for name in worst[:ROWS]:
            accuracy = by_class[name]
            shown = "-" if accuracy is None else f"{accuracy:.1f}"
            rows.append((name, str(counts[name]), shown, most_confused.get(name, "")))
        columns = ("class", "images", "accuracy %", "most often predicted as")
        caption = f"the {ROWS} worst of {len(self.classes)} classes" if len(self.classes) > ROWS else ""
        tables = [TextTable(title, columns, tuple(rows), (columns[0], columns[3]), caption)]
        if self.confused:
            columns = ("class", "predicted", "images", "% of the class")
            pairs = [(name, other, str(count), f"{share:.1f}") for name, other, count, share in self.confused[:PAIRS]]
            tables.append(TextTable("most confused", columns, tuple(pairs), columns[:2]))
        return tables
