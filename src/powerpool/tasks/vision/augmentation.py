"""Random batches and crops of training pictures: they depend on the seed, the epoch and the picture alone."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from powerpool.data import ImageSplit
from powerpool.errors import ArgumentError
from powerpool.tasks.vision.config import VisionConfig

if TYPE_CHECKING:
    from PIL import Image

ASPECTS = (3 / 4, 4 / 3)
"""Width to height of a random crop, before it becomes a square; pictures that are longer than that have longer ones."""

Box = tuple[float, float, float, float]


class RandomCrops(Dataset[dict[str, Any]]):
    """Random crops of pictures, cut from the picture as it is and resized over the whole area that becomes a pixel.

    The draws of a picture come from a generator of its own, seeded by (seed, epoch, number of the picture): they are
    the same for every order of the pictures, every number of processes, and after a stop.

    Crops are cut in the worker processes, not from batches: 1.5 ms a crop with Pillow, against 2.0 ms with a batch of
    squeezed pictures and kornia's resampling, which does not look at all pixels where it shrinks. Colours change in
    batches: :func:`jitter`.

    Args:
        split: the pictures.
        config: size of the crops, and how they are drawn.
        epoch: whose draws these are, counted from 0.
    """

    def __init__(self, split: ImageSplit, config: VisionConfig, epoch: int) -> None:
        self.split, self.config, self.epoch = split, config, epoch

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Crops (K, size, size, 3) of bytes, the factors (K, 3) of :func:`jitter`, and the target."""
        from PIL import Image

        training, crops = self.config.training, self.config.crops
        generator = torch.Generator().manual_seed(mixed(self.config.seed, self.epoch, index))
        # All draws of a picture at once: a setting that is off does not move the draws of the others.
        draws = torch.rand(training.crops, 8, generator=generator, dtype=torch.float64)
        picture, square = self.split.read(index), (crops.size, crops.size)
        method = Image.Resampling[crops.interpolation.upper()]
        images = []
        for draw in draws.tolist():
            box = random_box(*picture.size, training.smallest_crop, *draw[:4])
            crop = picture.resize(square, method, box=box)
            images.append(_pixels(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if _flips(self, draw) else crop))
        lowest = max(0.0, 1 - training.jitter)
        factors = lowest + (1 + training.jitter - lowest) * draws[:, 5:]
        return {"images": torch.stack(images), "factors": factors.float(), "target": self.split.targets[index]}


def random_box(width: int, height: int, smallest: float, share: float, aspect: float, right: float, down: float) -> Box:
    """A box inside a picture whose share of the area is between ``smallest`` and 1, from four draws in [0, 1).

    Its aspect is between 3/4 and 4/3 where a box of that area can be, and as near to that as it can be elsewhere.

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
    wide, high_ = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = right * (width - wide), down * (height - high_)
    return left, top, min(left + wide, width), min(top + high_, height)


def jitter(images: Tensor, factors: Tensor) -> Tensor:  # shape: (n, 3, H, W), (n, 3) -> (n, 3, H, W)
    """Brightness, contrast and saturation of pictures in [0, 1], each times its factor; 1 leaves it as it is."""
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


def mixed(*parts: int) -> int:
    """A seed from several numbers: other numbers, another seed.

    Example:
        >>> mixed(0, 1) == mixed(0, 1), mixed(0, 1) == mixed(1, 0)
        (True, False)
    """
    digest = hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def draw_batches(count: int, size: int, seed: int, world: int = 1) -> list[Tensor]:
    """All pictures in a random order, ``size`` to a batch.

    A last batch with fewer pictures than there are processes joins the one before: the one thing that depends on their
    number.

    Example:
        >>> [len(batch) for batch in draw_batches(11, 5, seed=0)], [len(batch) for batch in draw_batches(11, 5, 0, 2)]
        ([5, 5, 1], [5, 6])
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    *parts, last = order.split(size)
    if parts and len(last) < world:
        return [*parts[:-1], torch.cat([parts[-1], last])]
    return [*parts, last]


def _flips(crops: RandomCrops, draw: list[float]) -> bool:
    return crops.config.training.flip and draw[4] < 0.5


def _pixels(picture: Image.Image) -> Tensor:  # shape: (H, W, 3), uint8
    # A copy in memory that can be written to: bytes cannot.
    flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return flat.view(picture.height, picture.width, 3)
