"""Random batches and crops of training images; they depend on the seed, the epoch and the image only."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from powerpool.data import ImageSplit
from powerpool.errors import ArgumentError
from powerpool.tasks.vision.config import VisionConfig

ASPECTS = (3 / 4, 4 / 3)
"""Width to height of a random crop, before it is resized to a square; crops of elongated images exceed this."""


class RandomCrops(Dataset[dict[str, Any]]):
    """Random crops of images, resized with antialiasing.

    Each image has its own generator, seeded by (seed, epoch, index): its crops are the same for every order of the
    images, every number of processes, and after a stop.

    Crops are cut by Pillow in the worker processes: 1.5 ms per crop, against 2.0 ms for batches of squeezed images with
    kornia's resampling, which does not antialias. Colours are changed in batches: :func:`jitter`.

    Args:
        split: the images.
        config: size of the crops, and how they are drawn.
        epoch: counted from 0.
    """

    def __init__(self, split: ImageSplit, config: VisionConfig, epoch: int) -> None:
        self.split, self.config, self.epoch = split, config, epoch

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return crops (K, size, size, 3) of bytes, the factors (K, 3) of :func:`jitter`, and the target."""
        from PIL import Image

        training, crops = self.config.training, self.config.crops
        generator = torch.Generator().manual_seed(mix_seed(self.config.seed, self.epoch, index))
        # All numbers of an image are drawn at once, so that switching off one setting does not change the others.
        draws = torch.rand(training.crops, 8, generator=generator, dtype=torch.float64)
        image, square = self.split.read(index), (crops.size, crops.size)
        method = Image.Resampling[crops.interpolation.upper()]
        images = []
        for draw in draws.tolist():
            box = random_box(*image.size, training.smallest_crop, *draw[:4])
            crop = image.resize(square, method, box=box)
            if training.flip and draw[4] < 0.5:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            flat = torch.frombuffer(bytearray(crop.tobytes()), dtype=torch.uint8)  # bytes would not be writable
            images.append(flat.view(*square, 3))
        lowest = max(0.0, 1 - training.jitter)
        factors = lowest + (1 + training.jitter - lowest) * draws[:, 5:]
        return {"images": torch.stack(images), "factors": factors.float(), "target": self.split.targets[index]}


def random_box(
    width: int, height: int, smallest: float, share: float, aspect: float, right: float, down: float
) -> tuple[float, float, float, float]:
    """Return a box inside an image with ``smallest`` to 1 of its area, from four draws in [0, 1).

    Its aspect ratio is between 3/4 and 4/3 if a box of that area fits, and as near to that as possible otherwise.

    Example:
        >>> left, top, right, bottom = random_box(400, 100, 0.5, share=0.0, aspect=0.3, right=0.5, down=0.9)
        >>> round((right - left) * (bottom - top)), round(right - left)
        (20000, 200)
    """
    area = width * height * (smallest + (1 - smallest) * share)
    widest, narrowest = width**2 / area, area / height**2
    low = min(max(ASPECTS[0], narrowest), widest)
    high = max(min(ASPECTS[1], widest), narrowest)
    ratio = low * (high / low) ** aspect
    wide, tall = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = right * (width - wide), down * (height - tall)
    return left, top, min(left + wide, width), min(top + tall, height)


def jitter(images: Tensor, factors: Tensor) -> Tensor:  # shape: (n, 3, H, W), (n, 3) -> (n, 3, H, W)
    """Multiply brightness, contrast and saturation of images in [0, 1] by factors; 1 changes nothing."""
    try:
        from kornia import enhance
    except ModuleNotFoundError as error:
        raise ArgumentError(
            "training.jitter needs kornia, which is not installed: pip install 'powerpool[vision]', or set it to 0."
        ) from error
    brightness, contrast, saturation = factors.to(images).unbind(1)
    bright = enhance.adjust_brightness_accumulative(images, brightness)
    contrasted = enhance.adjust_contrast_with_mean_subtraction(bright, contrast)
    return enhance.adjust_saturation_with_gray_subtraction(contrasted, saturation)


def mix_seed(*parts: int) -> int:
    """Derive a seed from several numbers.

    Example:
        >>> mix_seed(0, 1) == mix_seed(0, 1), mix_seed(0, 1) == mix_seed(1, 0)
        (True, False)
    """
    digest = hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def draw_batches(count: int, size: int, seed: int, world: int = 1) -> list[Tensor]:
    """Split all images into batches of ``size``, in random order.

    A last batch with fewer images than there are processes joins the batch before.

    Example:
        >>> [len(batch) for batch in draw_batches(11, 5, seed=0)], [len(batch) for batch in draw_batches(11, 5, 0, 2)]
        ([5, 5, 1], [5, 6])
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    *parts, last = order.split(size)
    if parts and len(last) < world:
        return [*parts[:-1], torch.cat([parts[-1], last])]
    return [*parts, last]
