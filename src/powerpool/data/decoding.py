"""From a file to pixels: decoding one image as RGB, and cutting it into crops of one size."""

from __future__ import annotations

import io
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

import torch
from torch import Tensor

from powerpool.data.store import DataError, ImageError, Limits, limit_hint, require_file, require_package
from powerpool.errors import ArgumentError, require_choice

if TYPE_CHECKING:
    from PIL import Image

DECODER_VERSION = 1
"""Part of the key of everything stored after decoding. Raise it if the same file would give other pixels or crops."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded, whatever the suffix. Every further decoder could be attacked by a file."""
_pillow_limit = threading.Lock()


# ---- one image -------------------------------------------------------------------------------------------------------


def read_image(image: str | Path | bytes, limits: Limits | None = None, name: str | None = None) -> Image.Image:
    """Read an image as upright RGB.

    JPEG, PNG, WebP, GIF (first frame), BMP and TIFF are recognised by their content; the suffix does not matter. Gray
    images, palettes, CMYK and 16-bit images are converted to 8-bit RGB, transparent pixels are blended with white, and
    the EXIF orientation is applied.

    Args:
        image: the path of a file, or its bytes.
        limits: an image with more than ``limits.pixels`` pixels is refused before it is decoded.
        name: what error messages call the image; the path by default.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (6, 4), 128).save(file, "PNG")
        >>> image = read_image(file.getvalue())
        >>> image.mode, image.size, image.getpixel((0, 0))
        ('RGB', (6, 4), (128, 128, 128))
    """
    require_package("PIL", "Reading images", "vision")
    limits = limits or Limits()
    if isinstance(image, bytes):
        return _read(io.BytesIO(image), name or f"Image of {len(image)} bytes", limits)
    name = name or str(image)
    try:
        require_file(image)
        file = open(image, "rb")  # noqa: SIM115
    except DataError as error:
        raise ImageError(str(error)) from error
    except OSError as error:
        raise ImageError(f"Cannot read {name}: {error.strerror or error}.") from error
    with file:
        return _read(file, name, limits)


def _read(file: BinaryIO, name: str, limits: Limits) -> Image.Image:
    with _open(file, name, limits) as image:
        try:
            image.load()
            _make_upright(image)
            return _to_rgb(image, name)
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
            raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> ImageError:
    reason = str(error).strip().rstrip(".") or type(error).__name__
    return ImageError(f"{name} is damaged: {reason}. Copy it again, or remove it.")


def _open(file: BinaryIO, name: str, limits: Limits) -> Image.Image:
    """Open an image and read its header only."""
    from PIL import Image, UnidentifiedImageError

    limit = f"the limit is {limits.pixels:,}. {limit_hint('pixels')}"
    try:
        image = _open_with_limit(limits.pixels, file)
    except UnidentifiedImageError as error:
        raise ImageError(f"{name} is not an image in a supported format: {', '.join(FORMATS)}.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # a warning may be made an error
        raise ImageError(f"{name} has too many pixels, and {limit}") from error
    except Exception as error:
        raise _damaged(name, error) from error
    width, height = image.size
    if width * height > limits.pixels:
        image.close()
        raise ImageError(f"{name} has too many pixels: {width:,} x {height:,}, and {limit}")
    return image


def _open_with_limit(pixels: int, file: BinaryIO) -> Image.Image:
    """Open an image; Pillow's own limit, which is global, is raised only while it is lower than ours."""
    from PIL import Image

    if pixels <= (Image.MAX_IMAGE_PIXELS or pixels):
        return Image.open(file, formats=FORMATS)
    with _pillow_limit:
        before = Image.MAX_IMAGE_PIXELS
        try:
            Image.MAX_IMAGE_PIXELS = pixels
            return Image.open(file, formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _make_upright(image: Image.Image) -> None:
    """Apply the EXIF orientation in place."""
    from PIL import ImageOps

    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF data, which can raise anything, does not make an image unusable
        return


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()  # without the file that it was read from
    if image.mode.startswith("I"):
        return _from_16_bits(image, name)
    if image.mode == "F":
        raise ImageError(f"{name} has floating-point pixels, whose range is unknown. Convert it to 8 bits.")
    if "transparency" not in image.info and image.mode not in ("RGBA", "LA", "PA", "RGBa", "La"):
        return image.convert("RGB")
    with_alpha = image.convert("RGBA")
    white = Image.new("RGBA", with_alpha.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, with_alpha).convert("RGB")


def _from_16_bits(image: Image.Image, name: str) -> Image.Image:
    """Keep the high byte of 16-bit gray levels; Pillow itself would clip all levels above 255 to white."""
    wide = image.convert("I")
    low, high = cast("tuple[int, int]", wide.getextrema())
    if low < 0 or high > 65_535:
        raise ImageError(f"{name} has gray levels from {low} to {high}, outside 0 to 65535. Convert it to 8 bits.")
    return wide.point(lambda level: level * (1 / 256)).convert("L").convert("RGB")


# ---- crops -----------------------------------------------------------------------------------------------------------

CORNERS = ("top left", "top right", "bottom left", "bottom right")
KINDS = {
    1: ("centre",),
    2: ("centre",),
    5: (*CORNERS, "centre"),
    6: (*CORNERS, "centre", "whole"),
    10: (*CORNERS, "centre"),
    12: (*CORNERS, "centre", "whole"),
}
"""The crops for each count; if there are half as many, their mirror images follow."""
LAYOUTS = ("centre", "whole")
INTERPOLATIONS = ("bilinear", "bicubic")
LARGEST = 100_000_000
"""Maximum pixels of a resized image: an image one pixel wide would grow a thousandfold."""


class Region(NamedTuple):
    """Where a crop lies in its image: 0 is the left or top edge, 1 the right or bottom edge."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool


@dataclass(frozen=True)
class Crops:
    """Cut an image into a fixed set of crops of one size.

    The short side of the image is resized to ``resize`` pixels, and squares of ``size`` pixels are cut from it. The
    crop "whole" is the whole image, squeezed to a square. Mirror images come last, in the same order.

    | count | crops |
    |---|---|
    | 1, 2 | centre, or whole; with 2 also its mirror image |
    | 5, 10 | top left, top right, bottom left, bottom right, centre; with 10 also their mirror images |
    | 6, 12 | those and whole; with 12 also their mirror images |

    Args:
        size: width and height of a crop, in pixels
        count: number of crops: 1, 2, 5, 6, 10 or 12
        resize: short side of the image that crops are cut from, in pixels; by default unchanged, but at least size
        layout: the crop if count is 1 or 2: "centre" or "whole"
        interpolation: "bilinear" or "bicubic", both with antialiasing

    Example:
        >>> from PIL import Image
        >>> crops = Crops(size=32, count=12, resize=40)
        >>> crops(Image.new("RGB", (64, 48))).shape
        torch.Size([12, 3, 32, 32])
        >>> crops.positions(80, 50)[1]  # resized to 64 x 40 pixels, the 32 x 32 at the top right
        Region(left=0.5, top=0.0, right=1.0, bottom=0.8, mirrored=False)
    """

    size: int = 224
    count: int = 12
    resize: int | None = None
    layout: Literal["centre", "whole"] = "centre"
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ArgumentError(f"size must be at least 1 pixel (got {self.size}).")
        if self.count not in KINDS:
            raise ArgumentError(f"count must be one of {', '.join(map(str, KINDS))} (got {self.count}).")
        if self.resize is not None and self.resize < self.size:
            raise ArgumentError(f"resize must be at least size, {self.size} (got {self.resize}).")
        require_choice(self.layout, LAYOUTS, "layout of crops")
        if self.layout == "whole" and self.count > 2:
            raise ArgumentError(f"layout 'whole' needs a count of 1 or 2 (got {self.count}).")
        require_choice(self.interpolation, INTERPOLATIONS, "interpolation")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the crops, without mirror images."""
        return ("whole",) if self.layout == "whole" else KINDS[self.count]

    @property
    def mirrored(self) -> bool:
        """Whether mirror images follow."""
        return self.count == 2 * len(self.kinds)

    @property
    def config(self) -> dict[str, Any]:
        """All settings, for the key of a cache."""
        return asdict(self)

    def __call__(self, image: Image.Image) -> Tensor:  # shape: (count, 3, size, size), uint8
        """Return the crops of an RGB image."""
        from PIL import Image

        if image.mode != "RGB":
            raise ArgumentError(f"Crops need an RGB image (got mode {image.mode}). Read it with read_image().")
        method = Image.Resampling[self.interpolation.upper()]
        width, height = self._resized(*image.size)
        resized = image if self.kinds == ("whole",) else image.resize((width, height), method)
        parts = []
        for kind in self.kinds:
            if kind == "whole":
                part = image.resize((self.size, self.size), method)
            else:
                left, top = self._corner(kind, width, height)
                part = resized.crop((left, top, left + self.size, top + self.size))
            # A bytearray, because a tensor on immutable bytes would warn.
            parts.append(torch.frombuffer(bytearray(part.tobytes()), dtype=torch.uint8).view(self.size, self.size, 3))
        crops = torch.stack(parts).permute(0, 3, 1, 2)  # (kinds, 3, size, size)
        return (torch.cat([crops, crops.flip(-1)]) if self.mirrored else crops).contiguous()

    def positions(self, width: int, height: int) -> tuple[Region, ...]:
        """Return where each crop lies in an image of the given size."""
        wide, high = self._resized(width, height)
        found = []
        for kind in self.kinds:
            if kind == "whole":
                found.append(Region(0.0, 0.0, 1.0, 1.0, False))
                continue
            left, top = self._corner(kind, wide, high)
            right, bottom = left + self.size, top + self.size
            found.append(Region(left / wide, top / high, right / wide, bottom / high, False))
        return tuple(found + [region._replace(mirrored=True) for region in found if self.mirrored])

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of the image that crops are cut from."""
        short = min(width, height)
        if short < 1:
            raise ArgumentError(f"Crops need an image with pixels (got {width} x {height}).")
        wanted = max(short, self.size) if self.resize is None else self.resize
        if width * height * wanted**2 > LARGEST * short**2:
            raise ImageError(
                f"An image of {width:,} x {height:,} pixels is too long for crops: resized to {wanted} pixels on its "
                f"short side, it would have more than {LARGEST:,} pixels. Cut it, or remove it."
            )
        # Integers rounded half up: floating point could make a side one pixel shorter than a crop.
        return (2 * width * wanted + short) // (2 * short), (2 * height * wanted + short) // (2 * short)

    def _corner(self, kind: str, width: int, height: int) -> tuple[int, int]:
        """Return the top left corner of a crop."""
        free_x, free_y = width - self.size, height - self.size
        if kind == "centre":
            return free_x // 2, free_y // 2
        return free_x if kind.endswith("right") else 0, free_y if kind.startswith("bottom") else 0
