"""Crops: how one picture becomes a set of pictures of one size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from powerpool.data.pictures import ImageError, require_pillow
from powerpool.errors import ArgumentError, require_choice

if TYPE_CHECKING:
    from PIL import Image

CORNERS = ("top left", "top right", "bottom left", "bottom right")
KINDS = {
    1: ("centre",),
    2: ("centre",),
    5: (*CORNERS, "centre"),
    6: (*CORNERS, "centre", "whole"),
    10: (*CORNERS, "centre"),
    12: (*CORNERS, "centre", "whole"),
}
"""The crops that each count stands for; where there are half as many, their mirror images follow."""
LAYOUTS = ("centre", "whole")
INTERPOLATIONS = ("bilinear", "bicubic")
LARGEST = 100_000_000
"""Pixels of the picture that crops are cut from. A line of pixels would become a thousand times as large."""


class Region(NamedTuple):
    """Where a crop lies in its picture: 0 is the left or upper edge, 1 the right or lower one."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool


@dataclass(frozen=True)
class Crops:
    """How one picture becomes a set of pictures of one size, the same on every call.

    The short side of the picture is brought to ``resize`` pixels, and squares of ``size`` pixels are cut from it.
    The crop "whole" is all of the picture, squeezed to a square. Mirror images come last, in the order of the others.

    | count | crops |
    |---|---|
    | 1, 2 | centre, or whole; with 2 its mirror image too |
    | 5, 10 | top left, top right, bottom left, bottom right, centre; with 10 their mirror images too |
    | 6, 12 | those, and whole; with 12 their mirror images too |

    Args:
        size: width and height of a crop, in pixels
        count: how many crops, 1, 2, 5, 6, 10 or 12
        resize: short side of the picture that crops are cut from, in pixels; without it as it is, but at least size
        layout: which crop it is if there are 1 or 2, "centre" or "whole"
        interpolation: "bilinear" or "bicubic"; both take all pixels into account that become one

    Example:
        >>> from PIL import Image
        >>> crops = Crops(size=32, count=12, resize=40)
        >>> crops(Image.new("RGB", (64, 48))).shape
        torch.Size([12, 3, 32, 32])
        >>> crops.positions(80, 50)[1]  # of 64 x 40 pixels, the 32 x 32 at the top right
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
            raise ArgumentError(f"count must be one of {', '.join(map(str, KINDS))} crops (got {self.count}).")
        if self.resize is not None and self.resize < self.size:
            raise ArgumentError(
                f"resize must be at least size, {self.size} (got {self.resize}): crops are cut from what it leaves."
            )
        require_choice(self.layout, LAYOUTS, "layout of crops")
        if self.layout == "whole" and self.count > 2:
            raise ArgumentError(f"layout must be 'centre' unless count is 1 or 2 (got 'whole' and {self.count} crops).")
        require_choice(self.interpolation, INTERPOLATIONS, "interpolation")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The crops that are no mirror images, by name."""
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
        """The crops of a picture in RGB."""
        require_pillow()
        from PIL import Image

        if image.mode != "RGB":
            raise ArgumentError(f"A picture must be in RGB (got mode {image.mode}): read it with read_image().")
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
            # A copy in memory that can be written to: bytes cannot.
            parts.append(torch.frombuffer(bytearray(part.tobytes()), dtype=torch.uint8).view(self.size, self.size, 3))
        crops = torch.stack(parts).permute(0, 3, 1, 2)  # (kinds, 3, size, size)
        return (torch.cat([crops, crops.flip(-1)]) if self.mirrored else crops).contiguous()

    def positions(self, width: int, height: int) -> tuple[Region, ...]:
        """Where each crop of a picture of that size lies in it."""
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
        """The size of the picture that crops are cut from."""
        short = min(width, height)
        if short < 1:
            raise ArgumentError(f"A picture must have pixels (got {width} x {height}).")
        wanted = max(short, self.size) if self.resize is None else self.resize
        if width * height * wanted**2 > LARGEST * short**2:
            raise ImageError(
                f"a picture of {width:,} x {height:,} pixels is too long for crops: with {wanted} pixels on its short "
                f"side it would have more than {LARGEST:,}. Cut it, or leave it out."
            )
        # Whole numbers, rounded half up: floating point could make a side one pixel shorter than a crop.
        return (2 * width * wanted + short) // (2 * short), (2 * height * wanted + short) // (2 * short)

    def _corner(self, kind: str, width: int, height: int) -> tuple[int, int]:
        """The left upper corner of a crop."""
        free_x, free_y = width - self.size, height - self.size
        if kind == "centre":
            return free_x // 2, free_y // 2
        return free_x if kind.endswith("right") else 0, free_y if kind.startswith("bottom") else 0
