"""What training a ResNet-50 with second-order pooling on ImageNet would cost, from stored records and counts.

No GPU was at hand: times on one are operations over an assumed rate. What is counted or measured, and what is assumed,
is said where it stands, and every assumption is an argument or a constant here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from powerpool.errors import ArgumentError, require_choice
from powerpool.files import read_json

Head = Literal["dense", "factored"]

PICTURES, CLASSES, EPOCHS = 1_281_167, 1000, 20
"""Training pictures and classes of ImageNet, and the epochs of its recipe."""
LOCATIONS, WIDTH, RANK = 49, 2048, 8
"""Of the last maps of a ResNet-50 on one crop of 224 px, and of the factored head."""
CHAIN = 19
"""Products of N x N that MaxExp(50) takes on factors, forward and backward."""
BACKBONE_FLOPS = 24.5e9
"""Of a picture through the convolutions, forward and backward: three times 4.09e9 multiply-adds, of two each."""
BACKBONE_WEIGHTS = 23_508_032
STATES = 4
"""Numbers for each weight: itself, its gradient, the copy that processes exchange, and the average of RMSprop."""
FLOAT = 4
"""Bytes of a number in float32."""


@dataclass(frozen=True)
class Device:
    """A GPU, as its vendor describes it, and the share of that which a network reaches: an assumption.

    Example:
        >>> f"{GPUS['A100'].rate:.3g}"
        '1.95e+13'
    """

    peak: float
    """Operations a second in float32 inputs on tensor cores (TF32), dense."""
    memory: float
    """Bytes."""
    share: float = 0.125

    @property
    def rate(self) -> float:
        """Operations a second that are assumed to be done."""
        return self.peak * self.share


GPUS = {"A100": Device(156e12, 80e9), "H100": Device(495e12, 80e9)}


@dataclass(frozen=True)
class Estimate:
    """What a pool of C channels and a head cost."""

    channels: int
    head: Head
    weights: int
    """Of pool and head, without the backbone."""
    flops: float
    """Of pool and head for a picture, forward and backward."""
    picture_bytes: float
    """What a picture needs in memory: maps of the backbone, and the pool."""

    @property
    def total_flops(self) -> float:
        """Of a picture, with the backbone."""
        return BACKBONE_FLOPS + self.flops

    @property
    def sent_bytes(self) -> float:
        """Gradients that every process exchanges in a step."""
        return FLOAT * float(BACKBONE_WEIGHTS + self.weights)

    def memory(self, batch: int) -> float:
        """Bytes on a device that sees a batch."""
        return STATES * self.sent_bytes + batch * self.picture_bytes

    def hours(self, device: Device, epochs: int = EPOCHS) -> float:
        """Of one device, for all epochs; n devices share them, beside the time that gradients are on their way."""
        return PICTURES * epochs * self.total_flops / device.rate / 3600


def estimate(channels: int, head: Head, records: str | Path) -> Estimate:
    r"""Count and measure a pool and its head.

    A convolution reduces 2048 channels to C, where C is less. For each picture, with N locations, k classes and rank R:

    - dense: the operations of the pool as counted in the record of ``bench pools``, and
      :math:`6 k C (C+1) / 2` of a linear layer: one product forward, two backward;
    - factored: :math:`4 C N^2 + 38 N^3` of the factors, and :math:`6 k R N (C + N)` of the head.

    Memory for a picture is the peak that was measured, of a ResNet-50 with average pooling in ``bench training``,
    without the gradients of its weights, and of a dense pool in ``bench pools``; and what is counted: two vectors of
    :math:`C (C+1) / 2` of a dense head, the factors, and three arrays of :math:`k R N` of a factored one.

    Args:
        channels: C, one that the record of pools has for 49 locations.
        head: dense, a linear layer on matrices; or factored, a :class:`powerpool.nn.FactoredHead` of rank 8.
        records: the folder with ``training.json`` and ``pools.json``.
    """
    require_choice(head, ("dense", "factored"), "head")
    pool = _pool(channels, Path(records))
    size, n = channels * (channels + 1) // 2, LOCATIONS
    reduced = channels < WIDTH
    flops = 6.0 * WIDTH * channels * n if reduced else 0.0
    weights = WIDTH * channels if reduced else 0
    if head == "dense":
        weights += CLASSES * (size + 1)
        flops += pool["flops"] + 6.0 * CLASSES * size
        kept = pool["bytes"] + 2.0 * FLOAT * size
    else:
        weights += CLASSES * (RANK * channels + 1)
        flops += factored_flops(channels, CLASSES)
        # Features, their copies and a few matrices of N x N; the record of pools is above that: it forms C x C.
        kept = 3.0 * FLOAT * (channels * n + CHAIN * n * n) + 3.0 * FLOAT * CLASSES * RANK * n
    maps = FLOAT * channels * n * 2.0 if reduced else 0.0
    return Estimate(channels, head, weights, flops, _backbone_bytes(Path(records)) + maps + kept)


def factored_flops(channels: int, classes: int, locations: int = LOCATIONS, rank: int = RANK) -> float:
    """Operations in products of a factored pool and head for one picture, forward and backward.

    Example:
        >>> factored_flops(2, 1, locations=1, rank=1)
        64.0
    """
    factors = 4.0 * channels * locations**2 + 2.0 * CHAIN * locations**3
    return factors + 6.0 * classes * rank * locations * (channels + locations)


def measured_days(records: str | Path, epochs: int = EPOCHS) -> float:
    """Days of forward and backward on the machine of the record, from its step with a factored head of 2048 channels.

    The step has fewer classes than ImageNet and no optimiser. Its time is taken to grow as the operations do.
    """
    case = _case(Path(records) / "training.json", batch=8, channels=WIDTH)
    found, batch = _result(case, "second-order pooling, MaxExp(F)"), case["sizes"]["batch"]
    recorded = BACKBONE_FLOPS + found["product_flops"] / batch
    growth = (BACKBONE_FLOPS + factored_flops(WIDTH, CLASSES)) / recorded
    return float(PICTURES * epochs * growth * found["total"]["median"] / batch / 86400)


def table(records: str | Path, channels: Sequence[int] = (256, 512, 2048), batch: int = 64) -> str:
    """The estimates as a table in Markdown."""
    names = ["C", "head", "weights, million", "operations a picture, 10^9", "memory, GB", "sent a step, GB"]
    names += [f"{name}, hours" for name in GPUS]
    lines = [f"| {' | '.join(names)} |", "|---:|---|" + "---:|" * (len(names) - 2)]
    for count in channels:
        for head in ("dense", "factored"):
            found = estimate(count, head, records)
            cells = [
                str(count),
                head,
                f"{found.weights / 1e6:.1f}",
                f"{found.total_flops / 1e9:.1f}",
                f"{found.memory(batch) / 1e9:.1f}",
                f"{found.sent_bytes / 1e9:.2f}",
                *(f"{found.hours(device):.1f}" for device in GPUS.values()),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pool(channels: int, records: Path) -> dict[str, float]:
    """Operations and bytes for a picture of the pool that ``auto`` takes."""
    case = _case(records / "pools.json", channels=channels, locations=LOCATIONS, eta=50)
    found, batch = _result(case, "powerpool auto"), case["sizes"]["batch"]
    return {"flops": found["product_flops"] / batch, "bytes": found["peak_bytes"] / batch}


def _backbone_bytes(records: Path) -> float:
    case = _case(records / "training.json", batch=8, channels=WIDTH)
    peak = _result(case, "average pooling + Linear")["peak_bytes"]
    return (float(peak) - FLOAT * BACKBONE_WEIGHTS) / float(case["sizes"]["batch"])


def _case(file: Path, **sizes: int) -> dict[str, Any]:
    for case in read_json(file)["cases"]:
        if sizes.items() <= case["sizes"].items():
            found: dict[str, Any] = case
            return found
    asked = ", ".join(f"{name} {value}" for name, value in sizes.items())
    raise ArgumentError(f"{file} has no case with {asked}: measure it with 'powerpool bench {file.stem}'.")


def _result(case: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(result for result in case["results"] if result["name"] == name)
    return found
