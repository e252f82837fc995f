"""How often each class was said for each, and the form in which a record keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def confusion_matrix(said: Tensor, targets: Tensor, classes: int) -> Tensor:  # shape: (n,), (n,) -> (classes, classes)
    """Counts: a row for each class, a column for each that was said.

    Example:
        >>> import torch
        >>> confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), classes=2)
        tensor([[1, 0],
                [1, 1]])
    """
    return (targets * classes + said).bincount(minlength=classes * classes).view(classes, classes)


def as_entry(counts: Tensor, classes: Sequence[object]) -> dict[str, Any]:  # shape: (classes, classes)
    """The matrix as plain values: the names, and a text ``CLASS SAID COUNT`` of numbers for each count that is not 0.

    Of a hundred classes most pairs never occur, and a line each is all that is left of the others in a file.

    Example:
        >>> import torch
        >>> as_entry(torch.tensor([[5, 0], [2, 3]]), ["cat", "dog"])
        {'classes': ['cat', 'dog'], 'counts': ['0 0 5', '1 0 2', '1 1 3']}
    """
    found = counts.cpu()
    return {
        "classes": [str(name) for name in classes],
        "counts": [f"{row} {column} {int(found[row, column])}" for row, column in found.nonzero().tolist()],
    }
