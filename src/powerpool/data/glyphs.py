"""Pictures for few-shot learning on a machine without a network: invented alphabets, drawn by a seeded pen.

A class is a glyph: two to four strokes between the points of a coarse grid, in the style of its alphabet, which has
directions, bends and a slant of its own. A drawing of it is never twice the same: points move, bends change, and all of
it is shifted, scaled, turned and sheared a little, as by another hand with another pen.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from powerpool.data.places import cache_folder, made_once
from powerpool.errors import ArgumentError

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")
Point = tuple[float, float]

GLYPHS = "glyphs"
ALPHABETS, LETTERS, DRAWINGS = 12, 20, 12
"""Alphabets, glyphs of each, and drawings of each glyph: 240 classes, 2880 pictures."""
SIDE = 28
"""Width and height of a picture, in pixels."""
FINER = 4
"""Pictures are drawn so many times larger, in black and white, and each pixel is the mean of what it covers."""
GRID = 4
"""Points of the grid in a row."""
SLOPES = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2))
"""Directions from one point of the grid to another."""
STEPS = 8
"""Straight pieces that a curve is drawn in."""


class _Dice:
    """Random numbers that depend on a name alone.

    All come from ``Random.random``: the one method that Python promises never to change.
    """

    def __init__(self, *name: object) -> None:
        digest = hashlib.blake2b(repr((GLYPHS, *name)).encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "big"))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def near(self, spread: float) -> float:
        """At most ``spread`` from 0, and most often close to it."""
        return spread * (self._random.random() - self._random.random())

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        left = list(choices)
        return [left.pop(int(self._random.random() * len(left))) for _ in range(count)]

    def happens(self, chance: float) -> bool:
        return self._random.random() < chance


# ---- what is drawn ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """What the glyphs of an alphabet have in common."""

    slopes: tuple[tuple[int, int], ...]
    bends: tuple[float, ...]
    """How far the middle of a curve is from the line between its ends, in lengths of that line; 0 is straight."""
    strokes: tuple[int, ...]
    """How many strokes a glyph may have."""
    goes_on: float
    """The chance that a stroke goes on to another point."""
    joins: float
    """The chance that a stroke begins on one that is there already."""
    slant: float


@dataclass(frozen=True)
class Stroke:
    """Points of the grid that a pen passes through, and how it bends on the way to each but the first."""

    points: tuple[tuple[int, int], ...]
    bends: tuple[float, ...]

    def pieces(self) -> Iterator[tuple[frozenset[tuple[int, int]], float]]:
        """Two ends and the bend between them, whichever way the pen went."""
        for start, end, bend in zip(self.points, self.points[1:], self.bends, strict=False):
            yield frozenset((start, end)), bend if start < end else -bend


Glyph = tuple[Stroke, ...]


@cache
def style(alphabet: int) -> Style:
    """The style of an alphabet.

    Example:
        >>> style(0) == style(0), style(0) == style(1)
        (True, False)
    """
    dice = _Dice("style", alphabet)
    return Style(
        slopes=tuple(dice.some(SLOPES[:4], 2) + dice.some(SLOPES[4:], 1)),
        bends=dice.pick(((0.0,), (0.0, 0.3), (0.25, -0.25), (0.4, -0.4), (0.0, 0.4, -0.4))),
        strokes=dice.pick(((2, 3), (2, 3, 4), (3, 4))),
        goes_on=dice.between(0.2, 0.6),
        joins=dice.between(0.4, 0.9),
        slant=dice.between(-0.25, 0.25),
    )


@cache
def letters(alphabet: int) -> tuple[Glyph, ...]:
    """The glyphs of an alphabet; any two differ in more than one piece."""
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
    """Whether a glyph takes up much of the grid; a short dash is hard to tell from another."""
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
            if len(points) > 3 or not dice.happens(own.goes_on):
                break
        if len(points) > 1:
            strokes.append(Stroke(tuple(points), tuple(dice.pick(own.bends) for _ in points[1:])))
    return tuple(strokes)


def _ways(
    start: tuple[int, int], slopes: Sequence[tuple[int, int]], taken: set[frozenset[tuple[int, int]]]
) -> list[tuple[int, int]]:
    """Points that a stroke may go to: in the directions of the alphabet, and not where one went before."""
    found = []
    for across, down in slopes:
        for times in (-3, -2, -1, 1, 2, 3):
            end = (start[0] + times * across, start[1] + times * down)
            if all(0 <= place < GRID for place in end) and frozenset((start, end)) not in taken:
                found.append(end)
    return found


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw(alphabet: int, letter: int, number: int) -> Image.Image:
    """A drawing of a glyph: black on white, grey at the edges of strokes.

    Example:
        >>> picture = draw(alphabet=3, letter=7, number=0)
        >>> picture.mode, picture.size
        ('L', (28, 28))
        >>> picture == draw(3, 7, 0), picture == draw(3, 7, 1)
        (True, False)
    """
    from PIL import Image, ImageDraw

    for name, value, count in (("alphabet", alphabet, ALPHABETS), ("letter", letter, LETTERS), ("number", number, 0)):
        if value < 0 or (count and value >= count):
            raise ArgumentError(f"{name} must be {f'0 to {count - 1}' if count else 'at least 0'} (got {value}).")
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
    """From the grid to pixels: the slant of an alphabet, and what differs between two drawings."""

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
        """A point in pixels of the large picture. Whole ones: the last bit of a sine differs between machines."""
        x, y = point[0] - self._middle[0], point[1] - self._middle[1]
        (a, b), (c, d) = self._matrix
        return round((a * x + b * y + self._shift[0]) * FINER), round((c * x + d * y + self._shift[1]) * FINER)


def _curve(stroke: Stroke, dice: _Dice) -> list[Point]:
    """The way of the pen: from point to point, each moved a little, on parabolas.

    p(t) = (1 - t)^2 start + 2 t (1 - t) control + t^2 end, with t in [0, 1].
    """
    moved = [(x + dice.near(0.5), y + dice.near(0.5)) for x, y in stroke.points]
    line = [moved[0]]
    for start, end, bend in zip(moved, moved[1:], stroke.bends, strict=False):
        aside = 2 * (bend + dice.near(0.15))  # a parabola goes half as far as its control point
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


# ---- files -----------------------------------------------------------------------------------------------------------


def glyphs_folder() -> Path:
    """A folder of 240 class folders with 2880 pictures in all. It is made once, and is whole or not there."""
    target = cache_folder("images") / f"{GLYPHS}-{_made_by()}" / GLYPHS
    return made_once(target, _write)


def _write(folder: Path) -> None:
    for alphabet in range(ALPHABETS):
        for letter in range(LETTERS):
            place = folder / f"alphabet{alphabet + 1:02d}_glyph{letter + 1:02d}"
            place.mkdir()
            for number in range(DRAWINGS):
                # Not compressed: how that is done differs between builds of zlib, and a set is known by its bytes.
                draw(alphabet, letter, number).save(place / f"{number + 1:02d}.png", compress_level=0)


@cache
def _made_by() -> str:
    """A digest of what the pictures depend on, this file and Pillow: a folder must not change under a run."""
    import PIL

    source = inspect.getsource(sys.modules[__name__])
    return hashlib.blake2b(f"{PIL.__version__}\n{source}".encode(), digest_size=6).hexdigest()
