"""Image data sets: loading, reading, listing, checking, and sending to the workers of a loader."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import powerpool.data
from powerpool.data import (
    Crops,
    ImageDataset,
    ImageError,
    ImageSplit,
    Limits,
    MissingDataError,
    Splits,
    check_images,
    list_images,
    load_images,
    read_image,
    store,
)
from powerpool.errors import ArgumentError, ShapeError, UnknownNameError
from tests.data.image_sets import encoded, flat, noise, png, png_of_size, split_set, write_folder, write_zip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "set", split_set(3))


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_a_folder_and_its_zip_are_the_same_data_set(tmp_path: Path) -> None:
    content = split_set()
    from_folder = load_images(write_folder(tmp_path / "flowers", content))
    from_zip = load_images(write_zip(tmp_path / "flowers.zip", content))
    for images in (from_folder, from_zip):
        assert images.name == "flowers"
        assert images.classes == ("iris", "rose")
        assert list(images.splits) == ["train", "validation", "test"]
        assert images["test"].names == ("test/iris/0.png", "test/iris/1.png", "test/rose/0.png", "test/rose/1.png")
        assert images["test"].targets.tolist() == [0, 0, 1, 1]
        assert encoded(images["test"].read(3)) == encoded(read_image(content["test/rose/1.png"]))
    assert from_folder.digest == from_zip.digest


def test_classes_are_sorted_by_name(tmp_path: Path) -> None:
    images = load_images(write_folder(tmp_path / "set", flat(("b", "10", "a", "9"))))
    assert images.classes == ("10", "9", "a", "b")
    for split in images.splits.values():
        for name, target in zip(split.names, split.targets, strict=True):
            assert images.classes[target] == name.split("/")[0]


def test_the_digest_depends_on_names_classes_splits_and_bytes(tmp_path: Path) -> None:
    content = {f"{label}/{number}.txt.png": f"{label} {number}".encode() for label in "ab" for number in range(5)}
    first = load_images(write_folder(tmp_path / "a", content)).digest
    assert first == "2936c1b740be0a2f"  # as in version 0.1: run folders and records contain digests
    changes: list[dict[str, bytes]] = [
        content | {"a/0.txt.png": b"other"},
        {name.replace("a/0", "a/x"): data for name, data in content.items()},
        {name.replace("a/", "c/"): data for name, data in content.items()},
        content | {"a/9.txt.png": b"more"},
    ]
    digests = [load_images(write_folder(tmp_path / f"{n}", other)).digest for n, other in enumerate(changes)]
    digests += [load_images(tmp_path / "a", splits=splits).digest for splits in (Splits(seed=1), Splits(test=0.5))]
    assert len({first, *digests}) == 7


def test_files_are_hashed_again_only_if_they_change(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "set", flat())
    first = load_images(folder).digest
    hashed, plain = [], store.content_hash
    monkeypatch.setattr(store, "content_hash", lambda: hashed.append(1) or plain())
    assert load_images(folder).digest == first
    assert hashed == []
    os.utime(folder / "rose/03.png", ns=(1, 1))
    assert load_images(folder).digest == first
    assert len(hashed) == 1
    (folder / "rose/04.png").write_bytes(png(1000))
    changed = load_images(folder).digest
    assert changed != first
    assert len(hashed) == 2
    (file,) = (cache / "images" / "digests").iterdir()
    for damage in ("{", "[]", '{"rose/00.png": 3}'):
        file.write_text(damage)
        assert load_images(folder).digest == changed
    (tmp_path / "file").touch()
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "file"))  # cannot be written
    assert load_images(folder).digest == changed


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", flat())
    (folder / "rose/00.png").unlink()
    (folder / "rose/00.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(ImageError, match=r"rose/00\.png"):
        load_images(folder)


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_reading_selecting_and_adding(folder: Path) -> None:
    images = load_images(folder)
    train, validation = images["train"], images["validation"]
    assert repr(images) == "ImageSet('set', 2 classes, train 6, validation 6, test 6)"
    assert repr(train) == "ImageSplit(6 images, 2 classes)"
    assert encoded(train.read(4)) == encoded(noise(12, 10, 4))
    assert encoded(train.read(-1)) == encoded(noise(12, 10, 5))
    chosen = train.select([5, 0, 0])
    assert chosen.names == ("train/rose/2.png", "train/iris/0.png", "train/iris/0.png")
    assert chosen.targets.tolist() == [1, 0, 0]
    assert encoded(chosen.read(0)) == encoded(noise(12, 10, 5))
    assert len(train.select([])) == 0
    both = train.select(torch.tensor([1])) + validation
    assert both.names == ("train/iris/1.png", *validation.names)
    assert both.targets.tolist() == [0, *validation.targets.tolist()]
    assert encoded(both.read(1)) == encoded(noise(12, 10, 6))


def test_invalid_indices_splits_and_lengths(folder: Path) -> None:
    images = load_images(folder)
    for index in (6, -7):
        with pytest.raises(IndexError):
            images["train"].read(index)
        with pytest.raises(IndexError):
            images["train"].select([0, index])
    with pytest.raises(MissingDataError, match=r"'dev'.*train, validation, test"):
        images["dev"]
    with pytest.raises(ShapeError, match="length"):
        ImageSplit(("a", "b"), torch.zeros(1, dtype=torch.long), ("a", "b"))


def test_a_split_is_cheap_to_send_and_keeps_its_limits(folder: Path) -> None:
    split = load_images(folder, limits=Limits(pixels=100))["train"]
    sent = pickle.dumps(split)
    assert len(sent) < 3000
    with pytest.raises(ImageError, match=r"train/iris/0\.png .*12 x 10, .*100"):
        pickle.loads(sent).read(0)


def test_names_of_version_0_1_warn() -> None:
    for old, new in (("PictureBank", "ImageBank"), ("list_pictures", "list_images"), ("readable", "check_images")):
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(powerpool.data, old) is getattr(powerpool.data, new)
    with pytest.raises(AttributeError):
        powerpool.data.nothing  # noqa: B018


# ---- lists of images -------------------------------------------------------------------------------------------------


def test_images_to_predict(tmp_path: Path) -> None:
    write_folder(tmp_path / "in", {"b/2.PNG": png(2), "a.jpg": png(0), "b/notes.txt": b"", ".x.png": b""})
    write_folder(tmp_path, {"odd.name": png(7)})
    found = list_images([tmp_path / "odd.name", str(tmp_path / "in"), tmp_path / "in" / "a.jpg"])
    assert found.names == (f"{tmp_path}/odd.name", f"{tmp_path}/in/a.jpg", f"{tmp_path}/in/b/2.PNG")
    assert found.targets.tolist() == [-1, -1, -1]
    assert encoded(found.read(2)) == encoded(noise(12, 10, 2))
    assert list_images(tmp_path / "odd.name").names == (f"{tmp_path}/odd.name",)


def test_nothing_to_predict(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="nowhere"):
        list_images([tmp_path / "nowhere"])
    with pytest.raises(MissingDataError, match="empty"):
        list_images([write_folder(tmp_path / "empty", {"notes.txt": b""})])
    with pytest.raises(ArgumentError):
        list_images([])


# ---- corrupt images --------------------------------------------------------------------------------------------------


def damaged(folder: Path) -> ImageSplit:
    (folder / "train/iris/1.png").write_bytes(png(1)[:60])
    (folder / "train/rose/0.png").write_text("words")
    (folder / "train/rose/2.png").write_bytes(png_of_size(60_000, 60_000))
    return load_images(folder)["train"]


def test_corrupt_images_are_an_error(folder: Path) -> None:
    with pytest.raises(ImageError, match=r'3 of 6 .*iris/1\.png .*rose/0\.png .*rose/2\.png .*corrupt="skip"'):
        check_images(damaged(folder))
    (folder / "train/rose/1.png").write_text("words")
    with pytest.raises(ImageError, match=r"4 of 6 .*\(1 more\)"):
        check_images(load_images(folder)["train"])


def test_corrupt_images_can_be_skipped_unless_none_is_left(folder: Path, tmp_path: Path) -> None:
    split, skipped = check_images(damaged(folder), "skip")
    assert skipped == ["train/iris/1.png", "train/rose/0.png", "train/rose/2.png"]
    assert split.names == ("train/iris/0.png", "train/iris/2.png", "train/rose/1.png")
    assert split.targets.tolist() == [0, 0, 1]
    with pytest.raises(ImageError, match="2 of 2"):
        check_images(list_images(write_folder(tmp_path / "in", {"a.png": b"", "b.png": b""})), "skip")


def test_good_images_pass_with_progress(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    split = load_images(folder)["train"]
    found, skipped = check_images(split, threads=2, progress=lambda done, count: calls.append((done, count)))
    assert found is split
    assert skipped == []
    assert calls == [(number, 6) for number in range(1, 7)]
    with pytest.raises(UnknownNameError, match="ignore"):
        check_images(split, "ignore")


# ---- loaders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders(folder: Path, workers: int) -> None:
    split, crops = load_images(folder)["train"], Crops(size=8, count=6)
    batches = list(DataLoader(ImageDataset(split, crops), batch_size=4, num_workers=workers))
    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert torch.cat([batch["target"] for batch in batches]).tolist() == split.targets.tolist()
    images = torch.cat([batch["images"] for batch in batches])
    assert torch.equal(images, torch.stack([crops(split.read(index)) for index in range(6)]))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_keeps_its_message(folder: Path, workers: int) -> None:
    loader = DataLoader(ImageDataset(damaged(folder), Crops(size=8)), batch_size=4, num_workers=workers)
    with pytest.raises(ImageError) as raised:
        list(loader)
    assert str(raised.value).startswith("train/iris/1.png is ")
    assert "\n" not in str(raised.value)


def test_an_image_too_long_for_crops_is_named(tmp_path: Path) -> None:
    split = list_images(write_folder(tmp_path, {"line.png": png(width=10_000, height=1)}) / "line.png")
    with pytest.raises(ImageError, match=r"line\.png: .*10,000 x 1"):
        ImageDataset(split, Crops())[0]
