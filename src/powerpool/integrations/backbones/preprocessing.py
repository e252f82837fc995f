"""How the image processor of a network of transformers prepares images, as its file says."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from powerpool.errors import shown
from powerpool.integrations.backbones.base import IMAGENET_MEAN, IMAGENET_STD, BackboneError, Triple

FILE = "preprocessor_config.json"
BICUBIC = 3
"""Pillow's number of the method."""
LARGEST_SIZE = 4096
LARGEST_NUMBER = sys.float_info.max
WARPED = 384
"""From this size on, ConvNeXt resizes whole images and cuts nothing off."""


@dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for a network."""

    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    size: int | None = None
    """Width and height of the images in pixels; None if the network does not say."""
    resize: int | None = None
    """Short side of an image before a square of ``size`` is cut from it."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"


def parse_preprocessing(given: Any, source: str, image_size: int | None) -> Preprocessing:
    """Read the settings of an image processor; what they leave out are the defaults of its class.

    Args:
        given: the content of the file; empty if there is none.
        source: where it comes from, for errors.
        image_size: of the configuration of the network, where the processor has no size.
    """
    if not isinstance(given, dict):
        raise BackboneError(f"{FILE} in {source} must have named settings (got {shown(given)}).")
    found = {**_defaults(given), **{key: value for key, value in given.items() if value is not None}}
    if found.get("do_flip_channel_order"):
        raise BackboneError(
            f"{FILE} in {source} has do_flip_channel_order: the network takes blue, green and red, which is not "
            "supported. Choose another network."
        )
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if found.get("do_normalize", True):
        mean = _triple(found.get("image_mean", IMAGENET_MEAN), "image_mean", source)
        std = _triple(found.get("image_std", IMAGENET_STD), "image_std", source)
    if min(std) <= 0:
        raise BackboneError(f"image_std in {FILE} of {source} must be greater than 0 (got {std}).")
    resize = _side(found.get("size"), "size", source)
    crops = found.get("do_center_crop", "crop_size" in found)
    size = _side(found.get("crop_size"), "crop_size", source) if crops else None
    share = found.get("crop_pct")
    if size is None and resize is not None and resize < WARPED and isinstance(share, float) and 0.1 <= share < 1:
        size, resize = resize, int(resize / share)  # as ConvNeXt does
    size = size or resize or image_size
    interpolation: Literal["bilinear", "bicubic"] = "bicubic" if found.get("resample") == BICUBIC else "bilinear"
    return Preprocessing(mean, std, size, max(resize or size, size) if size else None, interpolation)


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the class of an image processor that transformers has."""
    import transformers

    kind = given.get("image_processor_type") or given.get("feature_extractor_type")
    name = str(kind).removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    found = getattr(transformers, f"{name}Pil", None) if name.endswith("ImageProcessor") else None
    return found().to_dict() if isinstance(found, type) else {}


def _triple(values: Any, name: str, source: str) -> Triple:
    numbers = list(values) if isinstance(values, list | tuple) else []
    if len(numbers) != 3 or not all(type(one) in (int, float) and abs(one) <= LARGEST_NUMBER for one in numbers):
        raise BackboneError(f"{name} in {FILE} of {source} must be three finite numbers (got {shown(values)}).")
    red, green, blue = map(float, numbers)
    return red, green, blue


def _side(size: Any, name: str, source: str) -> int | None:
    """Return the width, or the short side, of a size of an image processor; None for sizes of another kind."""
    if isinstance(size, dict):
        size = size.get("width") or size.get("shortest_edge")
    elif isinstance(size, list | tuple) and size:
        size = size[-1]
    if size is None:
        return None
    if type(size) is not int or not 1 <= size <= LARGEST_SIZE:
        raise BackboneError(
            f"{name} in {FILE} of {source} must be a whole number from 1 to {LARGEST_SIZE} (got {shown(size)})."
        )
    return size
