"""The cost of training a ResNet-50 with second-order pooling on ImageNet, from stored records and counts.

``docs/scaling.md`` has the table. Times on a GPU are operations over an assumed rate, because no GPU was available;
every assumption is a constant here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from powerpool.bench.record import CaseRecord, Measured, load

PAGE = Path(__file__).parents[1] / "scaling.md"
MARKED = re.compile(r"(<!-- table of docs/making/imagenet\.py -->\n).*?(<!-- end of the table -->)", re.DOTALL)
RECORDS = Path(__file__).parents[2] / "results" / "bench"
IMAGES, CLASSES, EPOCHS = 1_281_167, 1000, 20
"""Training images and classes of ImageNet, and the epochs of its recipe."""
LOCATIONS, WIDTH, RANK = 49, 2048, 8
"""Of the last maps of a ResNet-50 on one crop of 224 px, and of the factored head."""
CHAIN = 19
"""N x N products of MaxExp(50) on factors, forward and backward."""
BACKBONE_FLOPS = 24.5e9
"""Of an image through the convolutions, forward and backward: three times 4.09e9 multiply-adds, of two each."""
BACKBONE_WEIGHTS = 23_508_032
STATES = 4
"""Numbers for each weight: itself, its gradient, the copy that processes exchange, and the average of RMSprop."""
FLOAT = 4
"""Bytes of a number in float32."""
SHARE = 0.125
"""The part of its peak rate that a GPU is assumed to reach."""
GPUS = {"A100": 156e12, "H100": 495e12}
"""Peak operations a second with float32 inputs on tensor cores (TF32), dense, by the vendor."""


@dataclass(frozen=True)
class Estimate:
    """The cost of a pool of C channels and a head."""

    weights: int
    """Of pool and head, without the backbone."""
    flops: float
    """Of pool and head for an image, forward and backward."""
    image_bytes: float
    """Memory for an image: maps of the backbone, and the pool."""

    @property
    def total_flops(self) -> float:
        """Operations for an image, with the backbone."""
        return BACKBONE_FLOPS + self.flops

    @property
    def sent_bytes(self) -> float:
        """Gradients that every process exchanges in a step."""
        return FLOAT * float(BACKBONE_WEIGHTS + self.weights)

    def memory(self, batch: int) -> float:
        """Bytes on a device that sees a batch."""
        return STATES * self.sent_bytes + batch * self.image_bytes

    def hours(self, peak: float, epochs: int = EPOCHS) -> float:
        """Hours of one device for all epochs, without the exchange of gradients."""
        return IMAGES * epochs * self.total_flops / (SHARE * peak) / 3600


def estimate(channels: int, head: str) -> Estimate:
    """Add up the cost of a pool and its head, ``dense`` (a linear layer on matrices) or ``factored`` (of rank 8).

    A convolution reduces 2048 channels to C if C is less. For each image, with N locations, k classes and rank R:

    - dense: the operations of the pool as counted by ``bench pools``, and 6 k C (C+1)/2 of a linear layer, one product
      forward and two backward;
    - factored: 4 C N^2 + 38 N^3 of the factors, and 6 k R N (C+N) of the head.

    Memory for an image is measured: the peak of a ResNet-50 with average pooling in ``bench training``, without the
    gradients of its weights, and of a dense pool in ``bench pools``. Counted are two vectors of C (C+1)/2 of a dense
    head, the factors, and three arrays of k R N of a factored head.
    """
    case = _case("pools", channels=channels, locations=LOCATIONS, eta=50)
    pool, batch = _result(case, "powerpool auto"), case.sizes["batch"]
    size, n = channels * (channels + 1) // 2, LOCATIONS
    reduced = channels < WIDTH
    flops = 6.0 * WIDTH * channels * n if reduced else 0.0
    weights = WIDTH * channels if reduced else 0
    if head == "dense":
        weights += CLASSES * (size + 1)
        flops += pool.product_flops / batch + 6.0 * CLASSES * size
        kept = pool.peak_bytes / batch + 2.0 * FLOAT * size
    else:
        weights += CLASSES * (RANK * channels + 1)
        flops += factored_flops(channels, CLASSES)
        # Features, their copies and a few N x N matrices; the record of pools is larger: it forms C x C.
        kept = 3.0 * FLOAT * (channels * n + CHAIN * n * n) + 3.0 * FLOAT * CLASSES * RANK * n
    maps = FLOAT * channels * n * 2.0 if reduced else 0.0
    return Estimate(weights, flops, _backbone_bytes() + maps + kept)


def factored_flops(channels: int, classes: int, locations: int = LOCATIONS, rank: int = RANK) -> float:
    """Operations in products of a factored pool and head for one image, forward and backward."""
    factors = 4.0 * channels * locations**2 + 2.0 * CHAIN * locations**3
    return factors + 6.0 * classes * rank * locations * (channels + locations)


def table(batch: int = 64) -> str:
    """The estimates as a table in Markdown."""
    names = ["C", "head", "weights, million", "operations a picture, 10^9", "memory, GB", "sent a step, GB"]
    names += [f"{name}, hours" for name in GPUS]
    lines = [f"| {' | '.join(names)} |", "|---:|---|" + "---:|" * (len(names) - 2)]
    for channels in (256, 512, 2048):
        for head in ("dense", "factored"):
            found = estimate(channels, head)
            cells = [
                str(channels),
                head,
                f"{found.weights / 1e6:.1f}",
                f"{found.total_flops / 1e9:.1f}",
                f"{found.memory(batch) / 1e9:.1f}",
                f"{found.sent_bytes / 1e9:.2f}",
                *(f"{found.hours(peak):.1f}" for peak in GPUS.values()),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _backbone_bytes() -> float:
    case = _case("training", batch=8, channels=WIDTH)
    peak = _result(case, "average pooling + Linear").peak_bytes
    return (peak - FLOAT * BACKBONE_WEIGHTS) / case.sizes["batch"]


def _case(suite: str, **sizes: int) -> CaseRecord:
    return next(case for case in load(RECORDS / f"{suite}.json").cases if sizes.items() <= case.sizes.items())


def _result(case: CaseRecord, name: str) -> Measured:
    found = case.find(name)
    assert found is not None, name
    return found


def filled(text: str) -> str:
    """A page with the table between its marks."""
    return MARKED.sub(lambda found: found[1] + table() + found[2], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
