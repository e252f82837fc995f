"""Image data sets that need no network: the digits of scikit-learn, and glyphs of invented alphabets.

A glyph, which is a class, has two to four strokes between the points of a coarse grid. The glyphs of an alphabet share
a style: directions, curvatures and a slant. Each drawing is different: points move, curvatures change, and the whole
glyph is shifted, scaled, rotated and sheared a little, as if written by another hand with another pen.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from powerpool.data.store import cache_folder, make_once

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")
Point = tuple[float, float]

DIGITS = "digits"
DIGIT_SIDE = 64
"""Pixels to which the 8 x 8 digits are enlarged, because a backbone sees nothing in fewer."""

GLYPHS = "glyphs"
GLYPHS_VERSION = 1
"""Part of the name of the cached folder. Raise it if any glyph is drawn differently."""
ALPHABETS, LETTERS, DRAWINGS = 12, 20, 12
"""The numbers of alphabets, of glyphs in each, and of drawings of each glyph: 240 classes, 2880 images."""
SIDE = 28
"""Width and height of an image, in pixels."""
FINER = 4
"""Glyphs are drawn in black and white at this many times the resolution, then averaged."""
GRID = 4
"""The number of grid points in a row."""
SLOPES = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2))
"""Directions from one grid point to another."""
STEPS = 8
"""The number of straight pieces that approximate a curve."""


def digits_folder() -> Path:
    """Return a cache folder with ten class folders and 1797 images, which is made on the first call."""
    import sklearn

    # By version: another one may have other images, and a folder must not change during a run.
    return make_once(cache_folder("images") / f"sklearn-{sklearn.__version__}" / DIGITS, _write_digits)


def _write_digits(folder: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        place = folder / str(label)
        place.mkdir(exist_ok=True)
        small = Image.fromarray((pixels * (255 / 16)).astype("uint8"))
        small.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BICUBIC).save(place / f"{number:04d}.png")


def glyphs_folder() -> Path:
    """Return a cache folder with 240 class folders and 2880 images, which is made on the first call."""
    import PIL

    return make_once(cache_folder("images") / f"glyphs-{GLYPHS_VERSION}-{PIL.__version__}" / GLYPHS, _write_glyphs)


def _write_glyphs(folder: Path) -> None:
    for alphabet in range(ALPHABETS):
        for letter in range(LETTERS):
            place = folder / f"alphabet{alphabet + 1:02d}_glyph{letter + 1:02d}"
            place.mkdir()
            for number in range(DRAWINGS):
                # Uncompressed: compression differs between builds of zlib, and the digest depends on the bytes.
                draw(alphabet, letter, number).save(place / f"{number + 1:02d}.png", compress_level=0)


# ---- alphabets -------------------------------------------------------------------------------------------------------


class _Dice:
    """Random numbers that depend only on a name.

    All come from ``Random.random``, the only method that Python promises never to change.
    """

    def __init__(self, *name: object) -> None:
        digest = hashlib.blake2b(repr((GLYPHS, *name)).encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "big"))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def near(self, spread: float) -> float:
        """Return a value within ``spread`` of 0, most likely close to it."""
        return spread * (self._random.random() - self._random.random())

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        left = list(choices)
        return [left.pop(int(self._random.random() * len(left))) for _ in range(count)]

    def happens(self, chance: float) -> bool:
        return self._random.random() < chance


@dataclass(frozen=True)
class Style:
    """What the glyphs of an alphabet have in common."""

    slopes: tuple[tuple[int, int], ...]
    bends: tuple[float, ...]
    """Distances of the middle of a curve from the line between its ends, relative to its length; 0 is straight."""
    strokes: tuple[int, ...]
    """Possible numbers of strokes."""
    continues: float
    """The probability that a stroke continues to another point."""
    joins: float
    """The probability that a stroke starts at a point of another one."""
    slant: float


@dataclass(frozen=True)
class Stroke:
    """The grid points that a pen passes, and the curvature on the way to each but the first."""

    points: tuple[tuple[int, int], ...]
    bends: tuple[float, ...]

    def pieces(self) -> Iterator[tuple[frozenset[tuple[int, int]], float]]:
        """Return the ends and the curvature of each piece, independent of the direction of the pen."""
        for start, end, bend in zip(self.points, self.points[1:], self.bends, strict=False):
            yield frozenset((start, end)), bend if start < end else -bend


Glyph = tuple[Stroke, ...]


@cache
def style(alphabet: int) -> Style:
    """Return the style of an alphabet.

    Example:
        >>> style(0) == style(0), style(0) == style(1)
        (True, False)
    """
    dice = _Dice("style", alphabet)
    return Style(
        slopes=tuple(dice.sample(SLOPES[:4], 2) + dice.sample(SLOPES[4:], 1)),
        bends=dice.pick(((0.0,), (0.0, 0.3), (0.25, -0.25), (0.4, -0.4), (0.0, 0.4, -0.4))),
        strokes=dice.pick(((2, 3), (2, 3, 4), (3, 4))),
        continues=dice.between(0.2, 0.6),
        joins=dice.between(0.4, 0.9),
        slant=dice.between(-0.25, 0.25),
    )


@cache
def letters(alphabet: int) -> tuple[Glyph, ...]:
    """Return the glyphs of an alphabet; any two differ in more than one piece."""
    dice, own = _Dice("letters", alphabet), style(alphabet)
    found: list[Glyph] = []
    while len(found) < LETTERS:
        glyph = _invent(dice, own)
        pieces = _pieces(glyph)
        if _is_wide(glyph) and all(len(pieces ^ _pieces(other)) > 2 for other in found):
            found.append(glyph)
    return tuple(found)


def _pieces(glyph: Glyph) -> set[tuple[frozenset[tuple[int, int]], float]]:
    return {piece for stroke in glyph for piece in stroke.pieces()}


def _is_wide(glyph: Glyph) -> bool:
    """Whether a glyph covers much of the grid; short dashes would be hard to distinguish."""
    return all(max(places) - min(places) >= GRID - 2 for places in zip(*_points(glyph), strict=True))


def _points(glyph: Glyph) -> list[tuple[int, int]]:
    return [point for stroke in glyph for point in stroke.points]


def _invent(dice: _Dice, own: Style) -> Glyph:
    strokes: list[Stroke] = []
    taken: set[frozenset[tuple[int, int]]] = set()
    count = dice.pick(own.strokes)
    while len(strokes) < count:
        there = _points(tuple(strokes))
        anywhere = (dice.pick(range(GRID)), dice.pick(range(GRID)))
        points = [dice.pick(there) if there and dice.happens(own.joins) else anywhere]
        while ways := _ways(points[-1], own.slopes, taken):
            points.append(dice.pick(ways))
            taken.add(frozenset(points[-2:]))
            if len(points) > 3 or not dice.happens(own.continues):
                break
        if len(points) > 1:
            strokes.append(Stroke(tuple(points), tuple(dice.pick(own.bends) for _ in points[1:])))
    return tuple(strokes)


def _ways(
    start: tuple[int, int], slopes: Sequence[tuple[int, int]], taken: set[frozenset[tuple[int, int]]]
) -> list[tuple[int, int]]:
    """Return the points that a stroke may go to, in the directions of the alphabet and without repeating a piece."""
    found = []
    for across, down in slopes:
        for times in (-3, -2, -1, 1, 2, 3):
            end = (start[0] + times * across, start[1] + times * down)
            if all(0 <= place < GRID for place in end) and frozenset((start, end)) not in taken:
                found.append(end)
    return found


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw(alphabet: int, letter: int, number: int) -> Image.Image:
    """Draw a glyph in black on white, with antialiasing.

    Example:
        >>> image = draw(alphabet=3, letter=7, number=0)
        >>> image.mode, image.size
        ('L', (28, 28))
        >>> image == draw(3, 7, 0), image == draw(3, 7, 1)
        (True, False)
    """
    from PIL import Image, ImageDraw

    dice, glyph = _Dice("drawing", alphabet, letter, number), letters(alphabet)[letter]
    hand = _Hand(dice, glyph, style(alphabet).slant)
    large = Image.new("L", (SIDE * FINER, SIDE * FINER), 255)
    pen = ImageDraw.Draw(large)
    width = round(dice.between(1.3, 2.3) * FINER)
    for stroke in glyph:
        line = [hand.place(point) for point in _curve(stroke, dice)]
        pen.line(line, fill=0, width=width, joint="curve")
        for x, y in (line[0], line[-1]):  # round ends
            pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=0)
    return large.reduce(FINER)


class _Hand:
    """The affine map from the grid to pixels: the slant of the alphabet, and the variation between drawings."""

    def __init__(self, dice: _Dice, glyph: Glyph, slant: float) -> None:
        columns, rows = zip(*_points(glyph), strict=True)
        self._middle = ((min(columns) + max(columns)) / 2, (min(rows) + max(rows)) / 2)
        size = SIDE * 0.56 / (GRID - 1)
        wide, high = size * dice.between(0.8, 1.15), size * dice.between(0.8, 1.15)
        shear, angle = slant + dice.near(0.3), dice.near(math.radians(20))
        cos, sin = math.cos(angle), math.sin(angle)
        self._matrix = ((cos * wide, (cos * shear - sin) * high), (sin * wide, (sin * shear + cos) * high))
        self._shift = (SIDE / 2 + dice.near(3), SIDE / 2 + dice.near(3))

    def place(self, point: Point) -> tuple[int, int]:
        """Return the pixel of a point in the large image; the last bit of a sine, which may differ, is rounded away."""
        x, y = point[0] - self._middle[0], point[1] - self._middle[1]
        (a, b), (c, d) = self._matrix
        return round((a * x + b * y + self._shift[0]) * FINER), round((c * x + d * y + self._shift[1]) * FINER)


def _curve(stroke: Stroke, dice: _Dice) -> list[Point]:
    """Return the path of the pen: parabolas between points that are moved a little.

    p(t) = (1 - t)^2 start + 2 t (1 - t) control + t^2 end, with t in [0, 1].
    """
    moved = [(x + dice.near(0.5), y + dice.near(0.5)) for x, y in stroke.points]
    line = [moved[0]]
    for start, end, bend in zip(moved, moved[1:], stroke.bends, strict=False):
        aside = 2 * (bend + dice.near(0.15))  # a parabola reaches half as far as its control point
        control = (
            (start[0] + end[0]) / 2 + aside * (end[1] - start[1]),
            (start[1] + end[1]) / 2 - aside * (end[0] - start[0]),
        )
        for step in range(1, STEPS + 1):
            t = step / STEPS
            first, middle, last = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
            x, y = (first * a + middle * b + last * c for a, b, c in zip(start, control, end, strict=True))
            line.append((x, y))
    return line
