"""One small CNN, four poolings, the digits that come with scikit-learn: what changes when only the pooling does.

Every method starts from the same trunk weights, sees the same batches in the same order and trains for the same number
of epochs. The accuracy is that of the last epoch: choosing the best one would be choosing on the test set.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from powerpool.checks import ArgumentError
from powerpool.console import Bars, console, emit
from powerpool.curves import MaxExp, SigmE
from powerpool.nn import FirstOrderPool2d, SecondOrderPool2d

if TYPE_CHECKING:
    from rich.table import Table

CHANNELS = 32
CLASSES = 10
BATCH = 64
SPLIT_SEED = 0  # the split is part of the task, not of the trial: --seed leaves it alone


@dataclass(frozen=True)
class DemoOptions:
    """Train a small CNN on digits with four poolings and print one table.

    Args:
        epochs: passes over the training images, for every method
        seed: seed of the initial weights and of the order of the batches
        quick: one epoch on a quarter of the training images, to see that everything runs; overrides epochs
    """

    epochs: int = 20
    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ArgumentError(f"epochs must be >= 1 (got {self.epochs}).")
        if not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed must be >= 0 and below 2**63 (got {self.seed}).")


@dataclass(frozen=True)
class Split:
    """Images and labels to train on, and others to test on."""

    train_images: Tensor  # shape: (B, 1, 8, 8)
    train_labels: Tensor  # shape: (B,)
    test_images: Tensor  # shape: (T, 1, 8, 8)
    test_labels: Tensor  # shape: (T,)


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    method: str
    accuracy: float
    parameters: int
    seconds: float


METHODS: dict[str, Callable[[], FirstOrderPool2d | SecondOrderPool2d]] = {
    "average pooling": lambda: FirstOrderPool2d(CHANNELS),
    "SOP": lambda: SecondOrderPool2d(CHANNELS),
    "SOP + SigmE": lambda: SecondOrderPool2d(CHANNELS, SigmE(eta=50.0), mode="elementwise"),
    "SOP + spectral MaxExp(F)": lambda: SecondOrderPool2d(CHANNELS, MaxExp(eta=50)),
}


def run(options: DemoOptions) -> None:
    """Train every method, showing progress, and print the table."""
    split = load_digits(fraction=0.25 if options.quick else 1.0)
    epochs = 1 if options.quick else options.epochs
    torch.manual_seed(options.seed)
    trunk = make_trunk()
    warm_up(trunk, split)
    results = []
    with Bars(left=False, stay=True) as bars:
        for method, make_pool in METHODS.items():
            bar = bars.add(method, epochs)
            torch.manual_seed(options.seed)
            model = make_model(trunk, make_pool())
            start = time.perf_counter()
            for _ in train(model, split, epochs, options.seed):
                bars.advance(bar)
            seconds = time.perf_counter() - start
            parameters = sum(parameter.numel() for parameter in model.parameters())
            results.append(Result(method, accuracy(model, split.test_images, split.test_labels), parameters, seconds))
    emit(
        {
            "train_images": len(split.train_labels),
            "test_images": len(split.test_labels),
            "epochs": epochs,
            "seed": options.seed,
            "results": [asdict(result) for result in results],
        }
    )
    console().print(make_table(results, split, epochs, options.seed))


def load_digits(fraction: float = 1.0) -> Split:
    """The 1,797 digits of scikit-learn, halved into training and test with every class in equal share.

    Args:
        fraction: how much of the training half to keep; the test half stays whole.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)  # shape: (1797, 1, 8, 8)
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=0.5, stratify=labels, random_state=SPLIT_SEED)
    train = train[: max(1, round(fraction * len(train)))]
    return Split(images[train], labels[train], images[test], labels[test])


def make_trunk() -> nn.Module:
    """Three 3x3 convolutions at full resolution: ``(B, 1, 8, 8) -> (B, CHANNELS, 8, 8)``, non-negative."""
    widths = (1, CHANNELS, CHANNELS, CHANNELS)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def make_model(trunk: nn.Module, pool: FirstOrderPool2d | SecondOrderPool2d) -> nn.Module:
    """A copy of ``trunk``, then the pooling, then a linear classifier as wide as the pooling says."""
    return nn.Sequential(copy.deepcopy(trunk), pool, nn.Linear(pool.out_features, CLASSES))


def warm_up(trunk: nn.Module, split: Split) -> None:
    """Train a throw-away model on one batch.

    The first step of a process also imports parts of torch and starts its threads, about a second here. Without this
    the first method of the table would be billed for it.
    """
    batch = replace(split, train_images=split.train_images[:BATCH], train_labels=split.train_labels[:BATCH])
    for _ in train(make_model(trunk, FirstOrderPool2d(CHANNELS)), batch, epochs=1, seed=0):
        pass


def train(model: nn.Module, split: Split, epochs: int, seed: int) -> Iterator[int]:
    """Train ``model`` in place with Adam and a one-cycle rate, and yield after every epoch."""
    count = len(split.train_labels)
    steps = -(-count // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=epochs * steps)
    order = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        model.train()
        for batch in torch.randperm(count, generator=order).split(BATCH):
            loss = nn.functional.cross_entropy(model(split.train_images[batch]), split.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        yield epoch


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The fraction of images whose highest score is that of their label."""
    model.eval()
    return float((model(images).argmax(-1) == labels).float().mean())


def make_table(results: list[Result], split: Split, epochs: int, seed: int) -> Table:
    """The table that the demo prints."""
    from rich.table import Table

    count = len(split.test_labels)
    table = Table(
        title=f"Digits, {len(split.train_labels)} training and {count} test images",
        caption=f"epoch {epochs} of {epochs}, seed {seed}; one test image is {100 / count:.2f} points",
    )
    table.add_column("method")
    for heading in ("test accuracy %", "parameters", "seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        cells = (f"{100 * result.accuracy:.2f}", f"{result.parameters:,}", f"{result.seconds:.1f}")
        table.add_row(result.method, *cells)
    return table
