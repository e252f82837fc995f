"""Decoding and crops, compared with numpy: all modes become RGB, orientation is applied, damage is refused."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from powerpool.data import Crops, ImageError, Limits, read_image
from powerpool.errors import ArgumentError, UnknownNameError
from tests.data.image_sets import encoded, noise, png, png_of_size

PIXELS = np.asarray(noise(9, 7))


def pixels(content: bytes) -> np.ndarray:
    image = read_image(content)
    assert image.mode == "RGB"
    return np.asarray(image)


# ---- formats and modes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(kind: str) -> None:
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(pixels(encoded(noise(9, 7), kind, **options)), PIXELS)


def test_gif_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 3), color) for color in ("red", "blue")]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (pixels(content) == [255, 0, 0]).all()


def test_gray_and_two_levels() -> None:
    gray = noise(9, 7).convert("L")
    np.testing.assert_array_equal(pixels(encoded(gray)), np.asarray(gray)[..., None].repeat(3, -1))
    assert set(np.unique(pixels(encoded(noise(9, 7).convert("1"))))) == {0, 255}


def test_16_bits_give_their_high_byte() -> None:
    levels = np.array([[0, 255, 256, 511, 512, 32768, 65280, 65535]], dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(pixels(encoded(Image.fromarray(levels), kind))[..., 1], levels >> 8)
    with pytest.raises(ImageError, match="70000"):
        read_image(encoded(Image.fromarray(np.array([[0, 70000]], dtype=np.int32)), "TIFF"))
    with pytest.raises(ImageError, match="floating-point"):
        read_image(encoded(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF"))


@pytest.mark.parametrize("gray", [False, True])
def test_transparent_pixels_are_blended_with_white(gray: bool) -> None:
    rng = np.random.default_rng(1)
    color = rng.integers(0, 256, (7, 9, 1 if gray else 3), dtype=np.uint8)
    alpha = rng.integers(0, 256, (7, 9, 1), dtype=np.uint8)
    alpha[0, 0], alpha[0, 1] = 0, 255
    image = Image.fromarray(np.concatenate([color, alpha], -1), "LA" if gray else "RGBA")
    expected = (color * (alpha / 255.0) + 255 * (1 - alpha / 255.0)) * np.ones(3)
    read = pixels(encoded(image))
    assert np.abs(read - expected).max() <= 1.0
    np.testing.assert_array_equal(read[0, 0], [255, 255, 255])
    np.testing.assert_array_equal(read[0, 1], color[0, 1] * np.ones(3))


def test_palettes_and_transparent_colors() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    assert pixels(encoded(image)).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert pixels(encoded(image, transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    assert pixels(encoded(image, transparency=bytes([255, 0]))).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    rgb = Image.new("RGB", (2, 1), (1, 2, 3))
    rgb.putpixel((1, 0), (9, 9, 9))
    assert pixels(encoded(rgb, transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [9, 9, 9]]]


def test_cmyk() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert (pixels(encoded(image, "TIFF")) == [255, 0, 0]).all()
    assert np.abs(pixels(encoded(image, "JPEG")).astype(int) - [255, 0, 0]).max() < 8


UPRIGHT = {  # how the stored pixels must be turned, in numpy
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


def test_orientation() -> None:
    exif = Image.Exif()
    for orientation in (*UPRIGHT, 0, 1000):
        exif[0x0112] = orientation
        read = pixels(encoded(noise(9, 7), exif=exif))
        np.testing.assert_array_equal(read, UPRIGHT.get(orientation, UPRIGHT[1])(PIXELS))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_damaged_exif_data_is_ignored() -> None:
    for notes in (b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12"):
        assert read_image(encoded(noise(9, 7), "JPEG", exif=notes)).size == (9, 7)


# ---- damaged and hostile files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP"])
def test_truncated_files_are_named(kind: str, tmp_path: Path) -> None:
    content = encoded(noise(64, 64), kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ImageError, match=str(path)):
        read_image(path)


def test_what_is_not_an_image(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "empty.png").touch()
    for name in ("text.jpg", "empty.png", "none.jpg", ""):
        with pytest.raises(ImageError, match=str(tmp_path / name)):
            read_image(tmp_path / name)


@pytest.mark.parametrize("kind", ["PPM", "ICO", "EPS", "TGA"])
def test_other_formats_are_refused_whatever_the_suffix(kind: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(encoded(noise(32, 32), kind))
    with pytest.raises(ImageError, match=r"photo\.jpg is not an image"):
        read_image(tmp_path / "photo.jpg")


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_huge_images_are_refused_by_their_header(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*arguments: object) -> None:
        raise AssertionError("the image was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    for width, height in ((60_000, 60_000), (10_000, 5_001), (2**31 - 1, 1)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            with pytest.raises(ImageError, match=r"bomb .*50,000,000.*POWERPOOL_MAX_PIXELS"):
                read_image(png_of_size(width, height), name="bomb")


def test_the_limit_of_pixels_is_exact() -> None:
    assert read_image(png(width=12, height=10), Limits(pixels=120)).size == (12, 10)
    with pytest.raises(ImageError, match=r"12 x 10, .*119"):
        read_image(png(width=12, height=10), Limits(pixels=119))


# ---- crops -----------------------------------------------------------------------------------------------------------


def slices(image: Image.Image, size: int) -> list[torch.Tensor]:
    """Return the corners and the centre of an image."""
    array, (width, height) = np.array(image), image.size
    x, y = (width - size) // 2, (height - size) // 2
    cut = [array[:size, :size], array[:size, -size:], array[-size:, :size], array[-size:, -size:]]
    cut.append(array[y : y + size, x : x + size])
    return [torch.from_numpy(part.copy()).permute(2, 0, 1) for part in cut]


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (31, 24)])
def test_crops_are_slices_in_their_order(shape: tuple[int, int]) -> None:
    image = noise(*shape)
    whole = torch.from_numpy(np.array(image.resize((24, 24), Image.Resampling.BILINEAR))).permute(2, 0, 1)
    expected = torch.stack([*slices(image, 24), whole])
    crops = Crops(size=24, count=12)(image)
    assert torch.equal(crops, torch.cat([expected, expected.flip(-1)]))
    assert crops.dtype == torch.uint8
    for count, chosen in {1: [4], 2: [4, 10], 5: range(5), 6: range(6), 10: [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]}.items():
        assert torch.equal(Crops(size=24, count=count)(image), crops[list(chosen)])
    assert torch.equal(Crops(size=24, count=2, layout="whole")(image), crops[[5, 11]])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "shape, resize, resized",
    [
        ((60, 30), 24, (48, 24)),
        ((10, 15), None, (20, 30)),  # too small: enlarged to the size of a crop
        ((35, 60), None, (35, 60)),  # large enough: unchanged
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
    assert torch.equal(crops, torch.stack(slices(larger, 20)))


@settings(max_examples=30)
@given(st.integers(20, 60), st.integers(20, 60), st.integers(5, 20), st.sampled_from((5, 10)))
def test_positions_are_where_crops_were_cut(width: int, height: int, size: int, count: int) -> None:
    """Pixels contain their own coordinates."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    image = Image.fromarray(np.stack([columns, rows, 0 * rows], -1).astype(np.uint8))
    crops = Crops(size=size, count=count)
    for crop, place in zip(crops(image), crops.positions(width, height), strict=True):
        crop = crop.flip(-1) if place.mirrored else crop
        assert crop[0, 0, 0] == pytest.approx(place.left * width)
        assert crop[1, 0, 0] == pytest.approx(place.top * height)
        assert crop[0, 0, -1] + 1 == pytest.approx(place.right * width)
        assert crop[1, -1, 0] + 1 == pytest.approx(place.bottom * height)


def test_extreme_shapes() -> None:
    assert Crops(size=8, count=12)(noise(1, 1)).shape == (12, 3, 8, 8)
    assert Crops(size=1, count=12)(noise(5, 3)).shape == (12, 3, 1, 1)
    line = Image.new("RGB", (10_000, 1))
    with pytest.raises(ImageError, match="10,000 x 1 pixels"):
        Crops(count=12)(line)  # would be resized to 2,240,000 x 224
    assert len(Crops(size=100, count=1).positions(10_000, 1)) == 1  # the most that is allowed


def test_invalid_settings() -> None:
    for arguments, error in (
        ({"size": 0}, ArgumentError),
        ({"count": 3}, ArgumentError),
        ({"size": 64, "resize": 63}, ArgumentError),
        ({"layout": "whole"}, ArgumentError),
        ({"layout": "ten"}, UnknownNameError),
        ({"interpolation": "nearest"}, UnknownNameError),
    ):
        with pytest.raises(error, match=str([*arguments.values()][-1])):
            Crops(**arguments)


def test_crops_need_rgb_and_can_be_stored() -> None:
    crops = Crops(size=64, count=2, resize=80, layout="whole", interpolation="bicubic")
    assert Crops(**crops.config) == crops == pickle.loads(pickle.dumps(crops))
    assert crops.config == asdict(crops)
    with pytest.raises(ArgumentError, match="mode L"):
        crops(Image.new("L", (8, 8)))
