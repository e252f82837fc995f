"""Glyphs and digits: the same images on every machine, classes that can be distinguished, and complete folders."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import PIL
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerpool.data import Episodes, FewShotSet, load_fewshot, load_images, synthetic
from powerpool.data.synthetic import ALPHABETS, DRAWINGS, LETTERS, draw, glyphs_folder, letters
from tests.data.image_sets import flat, write_folder

LETTER = st.tuples(st.integers(0, ALPHABETS - 1), st.integers(0, LETTERS - 1))


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def images(shared_cache: Path) -> FewShotSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POWERPOOL_CACHE", str(shared_cache))
        patch.delenv("POWERPOOL_DATA", raising=False)
        return load_fewshot("glyphs", size=28, channels=1, invert=True)


# ---- drawings --------------------------------------------------------------------------------------------------------


def test_the_alphabets_are_those_of_version_0_1():
    everything = repr([letters(alphabet) for alphabet in range(ALPHABETS)])
    assert hashlib.blake2b(everything.encode(), digest_size=8).hexdigest() == "693abee9eb0fd6cf"


def test_the_images_are_those_of_version_0_1(images):
    if PIL.__version__ != "13.0.0":
        pytest.skip(f"digests were made with Pillow 13.0.0, and {PIL.__version__} may draw differently")
    assert images.digest == "ec080b4fc63fa550"
    digest = hashlib.blake2b(digest_size=8)
    for alphabet in range(ALPHABETS):
        for letter in range(LETTERS):
            digest.update(draw(alphabet, letter, 0).tobytes())
    assert digest.hexdigest() == "ecf736ee57042142"


@settings(max_examples=30)
@given(LETTER, st.integers(0, 10**6), st.integers())
def test_a_drawing_depends_on_its_numbers_only(which, number, seed):
    first = draw(*which, number)
    state = random.getstate()
    random.seed(seed)
    assert draw(*which, number) == first
    random.setstate(state)
    draw(*which, number)
    assert random.getstate() == state
    assert draw(*which, number + 1) != first


@settings(max_examples=30)
@given(LETTER, st.integers(0, 10**6))
def test_a_drawing_is_ink_on_white(which, number):
    image = draw(*which, number)
    assert (image.mode, image.size) == ("L", (28, 28))
    ink = 1 - torch.tensor(list(image.tobytes())).view(28, 28) / 255
    assert 0.01 < float(ink.mean()) < 0.45
    assert (ink == 0).any()
    assert float(ink.max()) == 1.0
    assert ((ink > 0) & (ink < 1)).any()  # gray edges


# ---- the data set ----------------------------------------------------------------------------------------------------


def test_the_splits_have_150_40_and_50_glyphs(images):
    assert [len(bank.targets.unique()) for bank in images.splits.values()] == [150, 40, 50]
    assert len(images.classes) == ALPHABETS * LETTERS
    assert (images.classes[0], images.classes[-1]) == ("alphabet01_glyph01", "alphabet12_glyph20")
    for bank in images.splits.values():
        assert set(Counter(bank.targets.tolist()).values()) == {DRAWINGS}
    pixels = torch.cat([bank.images for bank in images.splits.values()])[:, 0]
    edges = torch.ones(28, 28, dtype=torch.bool)
    edges[1:-1, 1:-1] = False
    assert float((pixels[:, edges] > 127).any(1).float().mean()) < 0.15  # few strokes are cut off


def nearest_mean(images: FewShotSet, shot: int, count: int = 100) -> float:
    """Return the accuracy of the nearest mean in pixel space."""
    bank = images["test"]
    episodes, right = Episodes(bank.targets, way=5, shot=shot, queries=5, seed=1), 0.0
    for number in range(count):
        episode = episodes[number]
        means = bank.batch(episode.support).mean(1).flatten(1)  # shape: (way, pixels)
        queries = bank.batch(episode.query).flatten(2)  # shape: (way, queries, pixels)
        answers = torch.cdist(queries, means.expand(5, -1, -1)).argmin(-1)
        right += float((answers == torch.arange(5)[:, None]).float().mean())
    return right / count


def test_glyphs_are_neither_trivial_nor_impossible(images):
    """Chance is 0.2."""
    assert 0.4 < nearest_mean(images, shot=1) < 0.7
    assert 0.7 < nearest_mean(images, shot=5) < 0.9


def test_glyphs_as_an_image_data_set(images, shared_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("POWERPOOL_CACHE", str(shared_cache))
    found = load_images("glyphs")
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 1920, "validation": 480, "test": 480}
    assert found["train"].read(0).size == (28, 28)
    write_folder(tmp_path / "glyphs", flat())  # a data set of that name in the data folder comes first
    assert load_images("glyphs", tmp_path).classes == ("iris", "rose")


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few images instead of 2880."""
    for name, count in (("ALPHABETS", 2), ("DRAWINGS", 2)):
        monkeypatch.setattr(synthetic, name, count)


def test_the_folder_is_made_once(small, tmp_path, monkeypatch):
    contents = []
    for name in "ab":
        monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / name))
        folder = glyphs_folder()
        contents.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")})
    assert contents[0] == contents[1]
    assert len(set(contents[0].values())) == len(contents[0]) == 2 * LETTERS * 2
    assert list(folder.parent.iterdir()) == [folder]  # nothing is left next to it
    monkeypatch.setattr(synthetic, "draw", None)
    assert glyphs_folder() == folder
