"""What ``powerpool predict`` prints and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from powerpool.console import TextTable
from powerpool.runs.typed import Json

SHOWN = 3
"""Number of classes in the table of predictions unless another is asked for, the best first."""


@dataclass(frozen=True)
class Predictions:
    """One row of named values for each input; a table for the terminal where CSV is not what people read."""

    rows: Sequence[dict[str, Json]]
    table: TextTable | None = None
    remarks: tuple[str, ...] = ()
    """Warnings for the user."""

    @classmethod
    def of_images(
        cls,
        names: Sequence[str],
        scores: Tensor,
        classes: Sequence[str],
        remarks: Sequence[str] = (),
        *,
        word: str = "score",
        percent: bool = False,
        top: int | None = None,
    ) -> Predictions:  # shape: _, (n, classes)
        """Return the predictions of images by the scores of classes.

        Args:
            names: of the images.
            scores: of each class, the best is predicted.
            classes: their names.
            remarks: warnings for the user.
            word: what the scores are called.
            percent: whether the table shows them in %.
            top: number of classes to name for each image, the best first; by default the rows have the scores of all
                classes and the table has three.

        Example:
            >>> import torch
            >>> Predictions.of_images(["a.png"], torch.tensor([[0.25, 0.75]]), ["cat", "dog"], top=2).rows
            [{'picture': 'a.png', 'class': 'dog', 'score': 0.75, 'class 2': 'cat', 'score 2': 0.25}]
        """
        best = scores.topk(min(top or SHOWN, len(classes)), dim=-1)
        rows, shown = [], []
        for name, values, places, own in zip(
            names, best.values.tolist(), best.indices.tolist(), scores.tolist(), strict=True
        ):
            labels = [classes[place] for place in places]
            row: dict[str, Json] = {"picture": name, "class": labels[0], word: values[0]}
            if top is None:
                row |= {f"{word} of {label}": value for label, value in zip(classes, own, strict=True)}
            else:
                for rank, (label, value) in enumerate(zip(labels[1:], values[1:], strict=True), start=2):
                    row |= {f"class {rank}": label, f"{word} {rank}": value}
            rows.append(row)
            texts = [f"{100 * value:.1f} %" if percent else f"{value:.3f}" for value in values]
            others = [f"{label} {text}" for label, text in zip(labels[1:], texts[1:], strict=True)]
            shown.append((name, labels[0], texts[0], ", ".join(others)))
        columns = ("image", "class", word, "next")
        return cls(rows, TextTable("", columns, tuple(shown), (columns[0], columns[1], columns[3])), tuple(remarks))
