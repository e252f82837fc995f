"""Crops against slices of numpy: where they are cut, in which order, and that mirrors are mirrors."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from powerpool.data import Crops, ImageError
from powerpool.errors import ArgumentError, UnknownNameError
from tests.data_sets.picture_sets import noise

COUNTS = (1, 2, 5, 6, 10, 12)
sides = st.integers(1, 70)


def as_tensor(image: Image.Image) -> torch.Tensor:  # shape: (3, height, width)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def slices(image: Image.Image, size: int) -> list[torch.Tensor]:
    """Corners and centre of a picture that is as large as it should be."""
    pixels, (width, height) = np.array(image), image.size
    x, y = (width - size) // 2, (height - size) // 2
    cut = [pixels[:size, :size], pixels[:size, -size:], pixels[-size:, :size], pixels[-size:, -size:]]
    cut.append(pixels[y : y + size, x : x + size])
    return [torch.from_numpy(part.copy()).permute(2, 0, 1) for part in cut]


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (24, 24), (31, 24)])
def test_crops_are_slices_in_their_order(shape: tuple[int, int]) -> None:
    image = noise(*shape)
    whole = as_tensor(image.resize((24, 24), Image.Resampling.BILINEAR))
    expected = [*slices(image, 24), whole]
    crops = Crops(size=24, count=12)(image)
    torch.testing.assert_close(crops, torch.stack(expected + [part.flip(-1) for part in expected]))
    torch.testing.assert_close(Crops(size=24, count=6)(image), crops[:6])
    torch.testing.assert_close(Crops(size=24, count=10)(image), crops[[0, 1, 2, 3, 4, 6, 7, 8, 9, 10]])
    torch.testing.assert_close(Crops(size=24, count=5)(image), crops[:5])
    torch.testing.assert_close(Crops(size=24, count=2)(image), crops[[4, 10]])
    torch.testing.assert_close(Crops(size=24, count=1)(image), crops[4:5])
    torch.testing.assert_close(Crops(size=24, count=2, layout="whole")(image), crops[[5, 11]])
    torch.testing.assert_close(Crops(size=24, count=1, layout="whole")(image), crops[5:6])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "shape, resize, resized",
    [
        ((60, 30), 24, (48, 24)),
        ((30, 60), 24, (24, 48)),
        ((10, 15), None, (20, 30)),  # too small: enlarged to the size of a crop
        ((35, 60), None, (35, 60)),  # large enough: as it is
        ((10, 15), 24, (24, 36)),
        ((33, 50), 22, (22, 33)),  # 33.33
        ((4, 9), 26, (26, 59)),  # 58.5 is rounded up
    ],
)
def test_the_short_side_is_resized_first(
    shape: tuple[int, int], resize: int | None, resized: tuple[int, int], interpolation: str
) -> None:
    image = noise(*shape)
    larger = image.resize(resized, Image.Resampling[interpolation.upper()])
    crops = Crops(size=20, count=5, resize=resize, interpolation=interpolation)(image)
    torch.testing.assert_close(crops, torch.stack(slices(larger, 20)))


def test_reducing_takes_all_pixels_into_account() -> None:
    """Of stripes one pixel wide, sampling without a filter would keep black or white."""
    stripes = Image.fromarray(np.tile(np.array([0, 255], np.uint8), (64, 32))[..., None].repeat(3, -1))
    for interpolation in ("bilinear", "bicubic"):
        crop = Crops(size=16, count=1, layout="whole", interpolation=interpolation)(stripes)[..., 2:-2]
        assert 120 <= crop.min() <= crop.max() <= 135


@given(sides, sides, st.integers(1, 30), st.none() | st.integers(0, 20), st.sampled_from(COUNTS))
def test_properties(width: int, height: int, size: int, more: int | None, count: int) -> None:
    crops = Crops(size=size, count=count, resize=None if more is None else size + more)
    image = noise(width, height)
    found, places = crops(image), crops.positions(width, height)
    assert found.shape == (count, 3, size, size)
    assert found.dtype == torch.uint8
    assert found.is_contiguous()
    assert len(places) == count
    for place in places:
        assert 0 <= place.left < place.right <= 1
        assert 0 <= place.top < place.bottom <= 1
    if crops.mirrored:
        half = count // 2
        torch.testing.assert_close(found[half:], found[:half].flip(-1))
        assert [place.mirrored for place in places] == [False] * half + [True] * half
        assert [place[:4] for place in places[half:]] == [place[:4] for place in places[:half]]
    torch.testing.assert_close(crops(image), found)
    mirrored = crops(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    if count >= 5:  # the left corners of a mirrored picture are mirrors of the right ones
        torch.testing.assert_close(mirrored[0].flip(-1), found[1])
        torch.testing.assert_close(mirrored[2].flip(-1), found[3])


@given(st.integers(20, 60), st.integers(20, 60), st.integers(5, 20))
def test_positions_are_where_crops_were_cut(width: int, height: int, size: int) -> None:
    """Pixels that hold their own coordinates."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    image = Image.fromarray(np.stack([columns, rows, 0 * rows], -1).astype(np.uint8))
    crops = Crops(size=size, count=5)
    for crop, place in zip(crops(image), crops.positions(width, height), strict=True):
        assert crop[0, 0, 0] == pytest.approx(place.left * width)
        assert crop[1, 0, 0] == pytest.approx(place.top * height)
        assert crop[0, 0, -1] + 1 == pytest.approx(place.right * width)
        assert crop[1, -1, 0] + 1 == pytest.approx(place.bottom * height)


def test_extreme_shapes() -> None:
    assert Crops(size=8, count=12)(noise(1, 1)).shape == (12, 3, 8, 8)
    assert Crops(size=8, count=12)(noise(300, 1)).shape == (12, 3, 8, 8)
    assert Crops(size=1, count=12)(noise(5, 3)).shape == (12, 3, 1, 1)
    line = Image.new("RGB", (10_000, 1))
    with pytest.raises(ImageError, match=r"10,000 x 1 pixels is too long for crops: with 224 pixels on its short side"):
        Crops(count=12)(line)  # 2,240,000 x 224
    assert Crops(size=100, count=1)(line).shape == (1, 3, 100, 100)  # the most that is allowed


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"size": 0}, "size must be at least 1 pixel"),
        ({"count": 3}, r"count must be one of 1, 2, 5, 6, 10, 12 crops \(got 3\)"),
        ({"size": 64, "resize": 63}, r"resize must be at least size, 64 \(got 63\)"),
        ({"layout": "whole"}, r"unless count is 1 or 2 \(got 'whole' and 12 crops\)"),
    ],
)
def test_bad_settings(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Crops(**arguments)


def test_bad_choices_and_modes() -> None:
    with pytest.raises(UnknownNameError, match="layout of crops 'ten'"):
        Crops(layout="ten")
    with pytest.raises(UnknownNameError, match="interpolation 'nearest'"):
        Crops(interpolation="nearest")
    with pytest.raises(ArgumentError, match=r"in RGB \(got mode L\)"):
        Crops(size=4)(Image.new("L", (8, 8)))


def test_settings_as_a_key() -> None:
    crops = Crops(size=64, count=2, resize=80, layout="whole", interpolation="bicubic")
    assert crops.config == asdict(crops)
    assert Crops(**crops.config) == crops
    assert pickle.loads(pickle.dumps(crops)) == crops
    assert hash(crops) == hash(replace(crops))
    assert len({crops, replace(crops), replace(crops, size=65)}) == 2
