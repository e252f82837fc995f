"""One picture: from a file, or its bytes, to pixels in red, green and blue, or to an error that names it."""

from __future__ import annotations

import io
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from powerpool.data.errors import DataError
from powerpool.data.limits import Limits, how_to_raise

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What is read, whatever a file is called. Every other decoder of Pillow is one more that a file could attack."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""How the names of pictures end, in small or capital letters."""
ORIENTATION = 0x0112
"""The EXIF tag of how the camera was held."""
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What brings a picture upright, by its orientation; 1 is upright."""
_one_at_a_time = threading.Lock()


class ImageError(DataError):
    """A picture cannot be read, is too large, or is of a kind that is not read; the message names it."""

    def __init__(self, message: str) -> None:
        # A DataLoader raises what a worker raised as an error of the same class, with the worker's whole traceback for
        # a message. The last line of it is ours, and says all.
        if message.startswith("Caught ") and "DataLoader worker" in message:
            message = message.rpartition(f"{type(self).__name__}: ")[2].strip()
        super().__init__(message)


def read_image(picture: str | Path | bytes, limits: Limits | None = None, name: str | None = None) -> Image.Image:
    """Read one picture as RGB, upright.

    JPEG, PNG, WebP, GIF (its first frame), BMP and TIFF are read, by their content: what a file is called does not
    matter. Gray pictures, palettes, CMYK and 16 bits become RGB of 8 bits; what is transparent is laid on white; the
    orientation that a camera notes is applied.

    Args:
        picture: a file, or the bytes of one.
        limits: a picture with more pixels than ``limits.pixels`` is refused before it is decoded.
        name: how an error calls the picture; by default the path.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (6, 4), 128).save(file, "PNG")
        >>> picture = read_image(file.getvalue())
        >>> picture.mode, picture.size, picture.getpixel((0, 0))
        ('RGB', (6, 4), (128, 128, 128))
    """
    require_pillow()
    limits = limits or Limits()
    name = name or (f"a picture of {len(picture)} bytes" if isinstance(picture, bytes) else str(picture))
    if isinstance(picture, bytes):
        return _read(io.BytesIO(picture), name, limits)
    try:
        require_file(picture)
        file = open(picture, "rb")  # noqa: SIM115
    except OSError as error:
        raise ImageError(f"Cannot read {name}: {error.strerror or error}.") from error
    with file:
        return _read(file, name, limits)


def require_file(path: str | Path) -> None:
    """Refuse pipes and devices, which would be waited for, or read without an end."""
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # a folder has an error of its own
        raise ImageError(f"Cannot read {path}: it is a pipe or a device, and no file.")


def require_pillow() -> None:
    """Say what to install where Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Reading pictures needs Pillow, which is not installed: pip install 'powerpool[vision]'.", name=error.name
        ) from error


def _read(file: BinaryIO, name: str, limits: Limits) -> Image.Image:
    with _open(file, name, limits) as image:
        try:
            image.load()
            return _to_rgb(_upright(image), name)
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
            raise ImageError(f"{name} is damaged: {_said(error)}. Copy it again, or leave it out.") from error


def _open(file: BinaryIO, name: str, limits: Limits) -> Image.Image:
    """The picture, of which only the header has been read."""
    from PIL import Image, UnidentifiedImageError

    too_large = f"at most {limits.pixels:,} are read. Make it smaller. {how_to_raise('pixels')}."
    try:
        image = _open_up_to(limits.pixels, file)
    except UnidentifiedImageError as error:
        raise ImageError(f"{name} is no picture in a format that is read: {', '.join(FORMATS)}.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # The second is an error where the user made warnings errors; elsewhere the sizes below say the same.
        raise ImageError(f"{name} is too large ({_said(error)}): {too_large}") from error
    except Exception as error:
        raise ImageError(f"{name} is damaged: {_said(error)}. Copy it again, or leave it out.") from error
    width, height = image.size
    if width * height > limits.pixels:
        image.close()
        raise ImageError(f"{name} is too large: it has {width:,} x {height:,} pixels, {too_large}")
    return image


def _open_up_to(pixels: int, file: BinaryIO) -> Image.Image:
    """Open a picture; Pillow's own limit, which is for the whole process, gives way only where ours is higher."""
    from PIL import Image

    if pixels <= (Image.MAX_IMAGE_PIXELS or pixels):
        return Image.open(file, formats=FORMATS)
    with _one_at_a_time:
        before = Image.MAX_IMAGE_PIXELS
        try:
            Image.MAX_IMAGE_PIXELS = pixels
            return Image.open(file, formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _upright(image: Image.Image) -> Image.Image:
    from PIL import Image

    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged notes of the camera, of which any error can come, do not make a picture useless
        return image
    return image if turn is None else image.transpose(Image.Transpose[turn])


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()  # without the file that it was read from
    if image.mode.startswith("I"):
        return _from_16_bits(image, name)
    if image.mode == "F":
        raise ImageError(f"{name} has pixels of floating point, and does not say which value is white. Convert it.")
    if "transparency" not in image.info and image.mode not in ("RGBA", "LA", "PA", "RGBa", "La"):
        return image.convert("RGB")
    with_alpha = image.convert("RGBA")
    white = Image.new("RGBA", with_alpha.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, with_alpha).convert("RGB")


def _from_16_bits(image: Image.Image, name: str) -> Image.Image:
    """The high byte of gray levels of 16 bits; Pillow itself would make white of all levels above 255."""
    wide = image.convert("I")
    low, high = cast("tuple[int, int]", wide.getextrema())
    if low < 0 or high > 65_535:
        raise ImageError(f"{name} has gray levels from {low} to {high}, and 0 to 65535 are read. Convert it to 8 bits.")
    return wide.point(lambda level: level * (1 / 256)).convert("L").convert("RGB")


def _said(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
