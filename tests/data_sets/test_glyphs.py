"""Invented alphabets: the same pictures every time, classes that can be told apart, and files that are whole."""

from __future__ import annotations

import hashlib
import random
import stat
from collections import Counter
from itertools import combinations
from pathlib import Path

import PIL
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from powerpool.data import Episodes, FewShotSet, glyphs, load_fewshot, load_images
from powerpool.data.glyphs import ALPHABETS, DRAWINGS, GRID, LETTERS, Stroke, draw, glyphs_folder, letters, style
from powerpool.errors import ArgumentError, RecordError, UnknownNameError
from tests.data_sets.picture_sets import flat, write_folder

LETTER = st.tuples(st.integers(0, ALPHABETS - 1), st.integers(0, LETTERS - 1))


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory):
    """One cache for this file: the pictures are drawn once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POWERPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("POWERPOOL_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def images(shared_cache: None) -> FewShotSet:
    return load_fewshot("glyphs", size=28, channels=1, invert=True)


def pixels(picture: Image.Image) -> torch.Tensor:  # shape: (28, 28), ink is 1
    return 1 - torch.tensor(list(picture.tobytes())).view(28, 28) / 255


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few pictures instead of 2880."""
    for name, count in (("ALPHABETS", 2), ("DRAWINGS", 2)):
        monkeypatch.setattr(glyphs, name, count)


# ---- alphabets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alphabet", range(ALPHABETS))
def test_the_glyphs_of_an_alphabet_keep_to_its_style(alphabet):
    own, found = style(alphabet), letters(alphabet)
    assert len(found) == LETTERS
    for glyph in found:
        assert len(glyph) in own.strokes
        ends = []
        for stroke in glyph:
            assert len(stroke.points) == len(stroke.bends) + 1
            assert 2 <= len(stroke.points) <= 4
            assert set(stroke.bends) <= set(own.bends)
            assert all(0 <= place < GRID for point in stroke.points for place in point)
            for (x, y), (to_x, to_y) in zip(stroke.points, stroke.points[1:], strict=False):
                # Parallel to one of the directions: the cross product is 0.
                assert (x, y) != (to_x, to_y)
                assert any((to_x - x) * down == (to_y - y) * across for across, down in own.slopes)
                ends.append(frozenset({(x, y), (to_x, to_y)}))
        assert len(set(ends)) == len(ends)  # no line is drawn twice
        columns, rows = zip(*(point for stroke in glyph for point in stroke.points), strict=True)
        assert min(max(columns) - min(columns), max(rows) - min(rows)) >= 2


def test_alphabets_differ_in_style():
    styles = {style(alphabet) for alphabet in range(ALPHABETS)}
    assert len(styles) == ALPHABETS
    assert len({own.bends for own in styles}) > 2
    assert {count for own in styles for count in own.strokes} == {2, 3, 4}


def as_drawn(glyph: tuple[Stroke, ...]) -> set[tuple[tuple[int, int], tuple[int, int], float]]:
    """The lines of a glyph, from left to right, whichever way and in whichever order they were drawn."""
    found = set()
    for stroke in glyph:
        for start, end, bend in zip(stroke.points, stroke.points[1:], stroke.bends, strict=False):
            found.add((start, end, bend) if start < end else (end, start, -bend))
    return found


def test_no_two_glyphs_are_alike():
    everything = [as_drawn(glyph) for alphabet in range(ALPHABETS) for glyph in letters(alphabet)]
    assert all(first != second for first, second in combinations(everything, 2))
    for alphabet in range(ALPHABETS):
        for first, second in combinations(letters(alphabet), 2):
            assert len(as_drawn(first) ^ as_drawn(second)) > 2


# ---- drawings --------------------------------------------------------------------------------------------------------


def test_the_alphabets_are_those_of_every_machine():
    everything = repr([letters(alphabet) for alphabet in range(ALPHABETS)])
    assert hashlib.blake2b(everything.encode(), digest_size=8).hexdigest() == "693abee9eb0fd6cf"


def test_the_pictures_are_those_of_every_machine():
    if PIL.__version__ != "13.0.0":
        pytest.skip(f"the digest was taken with Pillow 13.0.0: {PIL.__version__} may draw otherwise")
    digest = hashlib.blake2b(digest_size=8)
    for alphabet in range(ALPHABETS):
        for letter in range(LETTERS):
            digest.update(draw(alphabet, letter, 0).tobytes())
    assert digest.hexdigest() == "ecf736ee57042142"


@given(LETTER, st.integers(0, 10**6), st.integers())
def test_a_drawing_depends_on_its_numbers_alone(which, number, seed):
    first = draw(*which, number)
    state = random.getstate()
    random.seed(seed)
    assert draw(*which, number) == first
    random.setstate(state)
    draw(*which, number)
    assert random.getstate() == state  # and changes no state
    assert draw(*which, number + 1) != first


@given(LETTER, st.integers(0, 10**6))
def test_a_drawing_is_ink_on_white(which, number):
    picture = draw(*which, number)
    assert (picture.mode, picture.size) == ("L", (28, 28))
    ink = pixels(picture)
    assert 0.01 < float(ink.mean()) < 0.45
    assert (ink == 0).any()
    assert float(ink.max()) == 1.0
    assert ((ink > 0) & (ink < 1)).any()  # grey edges


def test_pictures_are_seldom_cut_off(images):
    edges = torch.ones(28, 28, dtype=torch.bool)
    edges[1:-1, 1:-1] = False
    pictures = torch.cat([bank.pictures for bank in images.splits.values()])[:, 0]
    assert float((pictures[:, edges] > 127).any(1).float().mean()) < 0.15


@pytest.mark.parametrize(
    "numbers, message",
    [
        ((ALPHABETS, 0, 0), r"alphabet must be 0 to 11 \(got 12\)"),
        ((-1, 0, 0), r"alphabet must be 0 to 11 \(got -1\)"),
        ((0, LETTERS, 0), r"letter must be 0 to 19 \(got 20\)"),
        ((0, 0, -1), r"number must be at least 0 \(got -1\)"),
    ],
)
def test_drawings_that_there_are_not(numbers, message):
    with pytest.raises(ArgumentError, match=message):
        draw(*numbers)


# ---- the set ---------------------------------------------------------------------------------------------------------


def test_the_splits_have_150_40_and_50_glyphs(images):
    assert repr(images) == (
        "FewShotSet('glyphs', classes: train 150 (1800 pictures), validation 40 (480 pictures), test 50 (600 pictures))"
    )
    assert len(images.classes) == ALPHABETS * LETTERS
    assert (images.classes[0], images.classes[-1]) == ("alphabet01_glyph01", "alphabet12_glyph20")
    for bank in images.splits.values():
        assert set(Counter(bank.targets.tolist()).values()) == {DRAWINGS}
        assert bank.pictures.shape[1:] == (1, 28, 28)


def test_the_files_are_the_drawings(images):
    bank = images["test"]
    for row in range(0, len(bank), 37):
        alphabet, letter, number = (
            int(part.strip("alphbetgyn.")) for part in bank.names[row].replace("/", "_").split("_")
        )
        expected = draw(alphabet - 1, letter - 1, number - 1)
        assert (255 - bank.pictures[row]).flatten().tolist() == list(expected.tobytes())


def nearest_mean(images: FewShotSet, shot: int, count: int = 200) -> float:
    """The share of queries whose nearest mean of pixels is that of their class."""
    bank = images["test"]
    episodes, right = Episodes(bank.targets, way=5, shot=shot, queries=5, seed=1), 0.0
    for number in range(count):
        episode = episodes[number]
        means = bank.batch(episode.support).mean(1).flatten(1)  # shape: (way, pixels)
        queries = bank.batch(episode.query).flatten(2)  # shape: (way, queries, pixels)
        answers = torch.cdist(queries, means.expand(5, -1, -1)).argmin(-1)
        right += float((answers == torch.arange(5)[:, None]).float().mean())
    return right / count


def test_it_can_be_learned_and_is_not_trivial(images):
    """Chance is 0.2. Raw pixels leave much to be learned from one picture, and less from five."""
    assert 0.4 < nearest_mean(images, shot=1) < 0.7
    assert 0.7 < nearest_mean(images, shot=5) < 0.9


def test_glyphs_as_a_set_of_pictures():
    found = load_images("glyphs")
    assert (found.name, len(found.classes)) == ("glyphs", 240)
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 1920, "validation": 480, "test": 480}
    assert found["train"].read(0).size == (28, 28)


def test_a_set_of_that_name_in_the_data_folder_comes_first(tmp_path):
    write_folder(tmp_path / "glyphs", flat())
    assert load_images("glyphs", tmp_path).classes == ("iris", "rose")


def test_it_is_among_the_names_that_are_known():
    with pytest.raises(UnknownNameError, match=r"'glyph'. Did you mean glyphs\?.*open_mic, digits, glyphs; or"):
        load_images("glyph")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_the_folder_is_made_once_and_for_all_users(tmp_path, monkeypatch):
    small(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path))
    folder = glyphs_folder()
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert len(files) == 2 * LETTERS * 2
    assert files[0] == "alphabet01_glyph01/01.png"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert list(folder.parent.iterdir()) == [folder]  # nothing is left beside it
    monkeypatch.setattr(glyphs, "draw", None)
    assert glyphs_folder() == folder


def test_files_have_the_same_bytes_each_time(tmp_path, monkeypatch):
    small(monkeypatch)
    found = []
    for name in "ab":
        monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / name))
        folder = glyphs_folder()
        found.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")})
    assert found[0] == found[1]
    assert len(set(found[0].values())) == len(found[0])


@pytest.mark.parametrize(
    "error, expected, message",
    [
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (OSError(28, "No space left"), RecordError, r"Cannot write .*glyphs: .*No space left. Set .*POWERPOOL_CACHE"),
    ],
)
def test_a_process_that_stops_leaves_nothing(tmp_path, monkeypatch, error, expected, message):
    small(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path))
    plain, calls = glyphs.draw, []

    def fails(*numbers: int) -> Image.Image:
        calls.append(numbers)
        if len(calls) == 50:
            raise error
        return plain(*numbers)

    monkeypatch.setattr(glyphs, "draw", fails)
    with pytest.raises(expected, match=message):
        glyphs_folder()
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".png" or path.name.startswith(".")] == []
    assert len(list(glyphs_folder().rglob("*.png"))) == 2 * LETTERS * 2  # the next one does it


def test_another_process_that_is_faster(tmp_path, monkeypatch):
    small(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path))
    plain = glyphs._write

    def slow(folder: Path) -> None:
        plain(folder)
        write_folder(folder.parent / "glyphs", {"theirs/01.png": b""})

    monkeypatch.setattr(glyphs, "_write", slow)
    folder = glyphs_folder()
    assert [path.name for path in folder.iterdir()] == ["theirs"]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_cache_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(RecordError, match=r"Cannot write .*glyphs.*Set XDG_CACHE_HOME or POWERPOOL_CACHE"):
        glyphs_folder()


def test_another_version_of_pillow_has_a_folder_of_its_own(monkeypatch):
    before = glyphs._made_by()
    monkeypatch.setattr("PIL.__version__", "0.0")
    assert glyphs._made_by.__wrapped__() != before
