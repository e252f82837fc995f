"""One picture: every mode becomes RGB as computed here by hand, and nothing bad passes."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from powerpool.data import DataError, ImageError, Limits, read_image
from powerpool.errors import ArgumentError
from tests.data_sets.picture_sets import claims, encoded, noise, picture

PIXELS = np.asarray(noise(9, 7))


def pixels(content: bytes) -> np.ndarray:
    image = read_image(content)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(kind: str) -> None:
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(pixels(encoded(noise(9, 7), kind, **options)), PIXELS)


def test_jpeg_is_near_and_named_by_its_content(tmp_path: Path) -> None:
    smooth = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
    path = tmp_path / "called.png"
    path.write_bytes(encoded(smooth, "JPEG", quality=95))
    read = np.asarray(read_image(path)).astype(int)
    assert np.abs(read - np.asarray(smooth)).max() < 8


def test_gif_is_its_first_frame() -> None:
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
        read = pixels(encoded(Image.fromarray(levels), kind))
        np.testing.assert_array_equal(read[..., 1], levels >> 8)


def test_32_bits_beyond_16_are_refused() -> None:
    levels = np.array([[0, 70000]], dtype=np.int32)
    with pytest.raises(ImageError, match="gray levels from 0 to 70000"):
        read_image(encoded(Image.fromarray(levels), "TIFF"))
    with pytest.raises(ImageError, match="floating point"):
        read_image(encoded(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF"))


@pytest.mark.parametrize("gray", [False, True])
def test_what_is_transparent_lies_on_white(gray: bool) -> None:
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


def test_palettes_with_and_without_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    assert pixels(encoded(image)).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert pixels(encoded(image, transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    assert pixels(encoded(image, transparency=bytes([255, 0]))).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_a_color_that_stands_for_transparent() -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (9, 9, 9))
    assert pixels(encoded(image, transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [9, 9, 9]]]


def test_cmyk() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # no red is missing: red
    red = pixels(encoded(image, "TIFF"))
    assert (red == [255, 0, 0]).all()
    assert np.abs(pixels(encoded(image, "JPEG")).astype(int) - [255, 0, 0]).max() < 8


# How the picture on the sensor has to be turned, by numpy: rows from above, columns from the left.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", [*UPRIGHT, 0, 9, 1000])
def test_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = pixels(encoded(noise(9, 7), exif=exif))
    np.testing.assert_array_equal(read, UPRIGHT.get(orientation, UPRIGHT[1])(PIXELS))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_damaged_notes_of_the_camera_do_not_matter() -> None:
    for notes in (b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12"):
        content = encoded(noise(9, 7), "JPEG", exif=notes)
        assert read_image(content).size == (9, 7)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated(kind: str, share: float, tmp_path: Path) -> None:
    content = encoded(noise(64, 64), kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ImageError, match=rf"{path} is (damaged|no picture)"):
        read_image(path)


def test_text_empty_missing_and_folder(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    (tmp_path / "empty.png").touch()
    for name in ("text.jpg", "empty.png"):
        with pytest.raises(ImageError, match=rf"{name} is no picture in a format that is read: JPEG, PNG"):
            read_image(tmp_path / name)
    with pytest.raises(ImageError, match=r"Cannot read .*none\.jpg: No such file"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(ImageError, match="Is a directory"):
        read_image(tmp_path)


def test_other_formats_are_refused_even_under_the_name_of_one_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    for kind in ("PPM", "ICO", "EPS", "TGA"):
        path.write_bytes(encoded(noise(32, 32), kind))
        with pytest.raises(ImageError, match=r"photo\.jpg is no picture in a format"):
            read_image(path)


@pytest.mark.parametrize("width, height", [(60_000, 60_000), (12_000, 9_000), (10_000, 5_001), (2**31 - 1, 1)])
def test_bombs_are_refused_by_their_header(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*arguments: object) -> None:
        raise AssertionError("the picture was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    with pytest.raises(ImageError, match=r"bomb is too large.*at most 50,000,000 are read"):
        read_image(claims(width, height), name="bomb")
    with warnings.catch_warnings():  # as users have them: the warning of Pillow is one line more, the error the same
        warnings.simplefilter("ignore")
        with pytest.raises(ImageError, match=r"bomb is too large.*at most 50,000,000 are read"):
            read_image(claims(width, height), name="bomb")


def test_the_limit_of_pixels_is_exact() -> None:
    assert read_image(picture(width=12, height=10), Limits(pixels=120)).size == (12, 10)
    with pytest.raises(ImageError, match=r"it has 12 x 10 pixels, at most 119 are read"):
        read_image(picture(width=12, height=10), Limits(pixels=119))


@pytest.mark.parametrize("name", ["pixels", "files", "unpacked"])
def test_limits_check_themselves(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be at least 1"):
        Limits(**{name: 0})


@given(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"]), st.data())
def test_damaged_bytes_are_read_or_refused_by_our_error(kind: str, data: st.DataObject) -> None:
    content = bytearray(encoded(noise(16, 16), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ImageError):
        assert read_image(bytes(content), Limits(pixels=100_000)).mode == "RGB"


def test_an_image_error_is_a_data_error() -> None:
    assert issubclass(ImageError, DataError)
