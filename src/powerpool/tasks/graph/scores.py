"""Losses and scores of classifiers and regressors of graphs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from powerpool.runs.record import Score

ACCURACY, MAE = "accuracy in %", "MAE"


@dataclass(frozen=True)
class Objective:
    """What is trained: cross-entropy of classes, or the squared error of targets.

    Args:
        is_regression: whether targets are numbers.
        weights: of each class in the loss, (classes,); None for equal ones.
        scale: standard deviation of the training targets, by which errors are divided in the loss.
    """

    is_regression: bool = False
    weights: Tensor | None = None
    scale: float = 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # shape: (graphs, classes), (graphs,)
        """Return the mean loss."""
        if self.is_regression:
            return nn.functional.mse_loss(outputs[:, 0] / self.scale, targets / self.scale)
        weights = None if self.weights is None else self.weights.to(outputs.device)
        return nn.functional.cross_entropy(outputs, targets, weights)

    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        """Return accuracy in %, or the mean absolute error, and the loss."""
        loss = float(self.loss(outputs, targets))
        if self.is_regression:
            return Score(float((outputs[:, 0] - targets).abs().mean()), loss)
        return Score(100 * int((outputs.argmax(-1) == targets).sum()) / len(targets), loss)


def measure(outputs: Tensor, targets: Tensor) -> dict[str, float]:  # shape: (graphs, classes), (graphs,)
    """Return measures beside accuracy or MAE, by name.

    Balanced accuracy is the mean recall of the classes, and ROC-AUC the mean over classes, each against all others.
    Both are 50 % for a classifier that treats all graphs of two classes alike, however rare one of them is. A test of
    one class only has no ROC-AUC.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
        >>> measure(logits, torch.tensor([0, 1, 0]))
        {'balanced accuracy in %': 50.0, 'ROC-AUC in %': 100.0}
    """
    from sklearn.metrics import roc_auc_score

    if targets.is_floating_point():
        return {"RMSE": float((outputs[:, 0] - targets).square().mean().sqrt())}
    outputs, targets = outputs.softmax(-1).cpu(), targets.cpu()
    known = targets.unique().tolist()
    is_right = outputs.argmax(-1) == targets
    recall = [float(is_right[targets == label].double().mean()) for label in known]
    found = {"balanced accuracy in %": 100 * sum(recall) / len(recall)}
    if len(known) > 1:
        areas = [roc_auc_score(targets == label, outputs[:, label].double()) for label in known]
        found["ROC-AUC in %"] = 100 * float(sum(areas)) / len(areas)
    return found
