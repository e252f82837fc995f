"""Where sets come from: folders, zips and their copies, names below a root, the hub; and zips that are refused."""

from __future__ import annotations

import os
import shutil
import stat
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from powerpool.data import (
    DataError,
    ImageError,
    Limits,
    MissingDataError,
    Splits,
    archives,
    image_hub,
    image_sources,
    load_images,
    read_image,
)
from powerpool.errors import UnknownNameError
from powerpool.files import locked
from tests.data_sets.picture_sets import encoded, flat, noise, picture, split_set, write_folder, write_zip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data folder."""
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    return tmp_path / "cache" / "images"


def left_in(cache: Path) -> list[str]:
    """What is in the folder of unpacked copies, hidden or not."""
    return sorted(os.listdir(cache / "unpacked")) if (cache / "unpacked").exists() else []


# ---- folders and zips ------------------------------------------------------------------------------------------------


def test_a_folder_and_a_zip_of_it_are_one_set(tmp_path: Path) -> None:
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


def test_what_systems_leave_is_passed_over(tmp_path: Path) -> None:
    content = split_set()
    rubbish = {
        "__MACOSX/train/iris/._0.png": b"",
        ".DS_Store": b"",
        "train/iris/.DS_Store": b"",
        "train/iris/Thumbs.db": b"",
        "train/iris/desktop.ini": b"",
        ".git/iris/0.png": b"",
    }
    plain = load_images(write_folder(tmp_path / "plain", content))
    assert load_images(write_folder(tmp_path / "folder", content | rubbish)).digest == plain.digest
    assert load_images(write_zip(tmp_path / "zip.zip", content | rubbish)).digest == plain.digest


def test_a_stray_file_in_a_class_is_an_error_in_folders_and_zips(tmp_path: Path) -> None:
    content = split_set() | {"train/iris/5.heic": b"", "LICENSE": b"", "train/notes.csv": b""}
    for path in (write_folder(tmp_path / "folder", content), write_zip(tmp_path / "set.zip", content)):
        with pytest.raises(DataError, match=rf"{path} has 1 file\(s\) in folders of classes .*: train/iris/5.heic\."):
            load_images(path)


def test_links_in_folders_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere", {"0.png": picture(0), "1.png": picture(1), "2.png": picture(2)})
    folder = write_folder(tmp_path / "set", {f"rose/{number}.png": picture(number) for number in range(3, 6)})
    (folder / "iris").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(folder)
    assert load_images(folder).classes == ("iris", "rose")


def test_the_digest_is_of_names_classes_splits_and_bytes(tmp_path: Path) -> None:
    content = flat()
    digests = [load_images(write_folder(tmp_path / "a", content)).digest]
    assert load_images(write_folder(tmp_path / "same", content)).digest == digests[0]
    changes: list[dict[str, bytes]] = [
        content | {"rose/00.png": picture(99)},  # other bytes
        {name.replace("rose/00", "rose/xx"): data for name, data in content.items()},  # another name
        {name.replace("rose", "tulip"): data for name, data in content.items()},  # another class
        content | {"rose/99.png": picture(99)},  # one more
    ]
    digests += [
        load_images(write_folder(tmp_path / f"other{number}", other)).digest for number, other in enumerate(changes)
    ]
    digests += [load_images(tmp_path / "a", splits=Splits(seed=1)).digest]
    digests += [load_images(tmp_path / "a", splits=Splits(test=0.3)).digest]
    assert len(set(digests)) == len(digests)


def test_files_are_hashed_again_only_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "set", flat())
    first = load_images(folder).digest
    hashed = []
    monkeypatch.setattr(image_sources, "content_hash", lambda: hashed.append(1) or archives.content_hash())
    assert load_images(folder).digest == first
    assert hashed == []
    os.utime(folder / "rose/03.png", ns=(1, 1))
    assert load_images(folder).digest == first
    assert len(hashed) == 1
    (folder / "rose/04.png").write_bytes(picture(1000))
    assert load_images(folder).digest != first
    assert len(hashed) == 2


def test_a_damaged_or_unwritable_cache_of_hashes_only_costs_time(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "set", flat())
    first = load_images(folder).digest
    (file,) = (cache / "digests").iterdir()
    for damage in ("{", "[]", '{"rose/00.png": 3}'):
        file.write_text(damage)
        assert load_images(folder).digest == first
    (tmp_path / "file").touch()
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "file"))
    assert load_images(folder).digest == first


def test_a_zip_is_unpacked_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    first = load_images(path)
    assert len(left_in(cache)) == 1
    monkeypatch.setattr(archives, "_make_copy", None)  # would raise
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "set.zip")
    os.utime(moved, ns=(5, 5))
    assert load_images(moved).digest == first.digest


def test_another_zip_of_the_same_name_is_another_copy(tmp_path: Path, cache: Path) -> None:
    first = load_images(write_zip(tmp_path / "a" / "set.zip", split_set()))
    second = load_images(write_zip(tmp_path / "b" / "set.zip", split_set() | {"test/rose/0.png": picture(77)}))
    assert first.digest != second.digest
    assert len(left_in(cache)) == 2


@pytest.mark.parametrize("damage", ["delete", "cut", "manifest", "no manifest"])
def test_a_copy_that_lost_files_is_made_again(tmp_path: Path, cache: Path, damage: str) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    first = load_images(path)
    (copy,) = (cache / "unpacked").iterdir()
    file = copy / "files" / "test" / "rose" / "0.png"
    if damage == "delete":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(b"")
    elif damage == "manifest":
        (copy / "manifest.json").write_text('{"files": [["x"]]}')
    else:
        (copy / "manifest.json").unlink()
    again = load_images(path)
    assert again.digest == first.digest
    assert again["test"].read(2).size == (12, 10)


# ---- zips that are refused, and what they leave ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../evil.png", "/tmp/evil.png", "a/../../evil.png", "..\\evil.png", "\\evil.png", "C:/evil.png", "C:\\e.png"],
)
def test_members_that_lead_elsewhere(name: str, tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "set.zip", split_set() | {name: picture()})
    with pytest.raises(DataError, match=r"set\.zip is refused: its member .* would be written outside of the folder"):
        load_images(path)
    assert left_in(cache) == []
    assert not list(tmp_path.parent.rglob("evil.png"))


def test_links_in_zips(tmp_path: Path, cache: Path) -> None:
    link = zipfile.ZipInfo("train/rose/link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = write_zip(tmp_path / "set.zip", split_set() | {link: b"/etc/passwd"})
    with pytest.raises(DataError, match=r"its member 'train/rose/link.png' is a link"):
        load_images(path)
    assert left_in(cache) == []


def test_zip_bombs(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("rose/0.png", b"\0" * 3_000_000)
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"bomb\.zip is refused: its files have 3,000,000 bytes, at most 2,999,999"):
        load_images(path, limits=Limits(unpacked=2_999_999))
    with pytest.raises(DataError, match=r"is refused: it has 12 files, at most 11 are unpacked"):
        load_images(write_zip(tmp_path / "many.zip", split_set()), limits=Limits(files=11))
    assert left_in(cache) == []


def test_a_zip_that_does_not_fit_on_the_disk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(
        DataError, match=r"set\.zip needs [\d,]+ bytes in .*unpacked, where 10 are free.*POWERPOOL_CACHE"
    ):
        load_images(write_zip(tmp_path / "set.zip", split_set()))
    assert left_in(cache) == []


def test_a_name_that_comes_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("rose/0.png", picture(0))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("rose/0.png", picture(1))
    with pytest.raises(DataError, match=r"set\.zip is refused: it has two files of the name 'rose/0.png'"):
        load_images(tmp_path / "set.zip")


def test_a_zip_with_a_damaged_member_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF  # among the bytes of a picture, which are stored as they are
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"set\.zip is damaged, or no zip: "):
        load_images(path)
    assert left_in(cache) == []


@pytest.mark.parametrize("content", [b"", b"words", b"PK\x03\x04 and then nothing"])
def test_a_file_that_is_no_zip(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"set\.zip is damaged, or no zip"):
        load_images(tmp_path / "set.zip")


def test_a_truncated_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"set\.zip is damaged, or no zip"):
        load_images(path)


def test_a_zip_with_a_password(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "set.zip", {"rose/0.png": picture()})
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag of encryption, at the member and in the index
    content[content.rfind(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"Cannot unpack .*set\.zip: .*password"):
        load_images(path)
    assert left_in(cache) == []


def test_other_archives_are_to_be_unpacked_first(tmp_path: Path) -> None:
    (tmp_path / "food-101.tgz").write_bytes(b"")
    with pytest.raises(DataError, match=r"food-101\.tgz is no zip: unpack it, and pass the folder"):
        load_images(tmp_path / "food-101.tgz")


def test_an_interrupted_process_leaves_nothing_that_is_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it unpacks: its folder stays, is never used, and goes with the next zip."""
    path = write_zip(tmp_path / "set.zip", split_set())
    with monkeypatch.context() as patch:
        patch.setattr(archives, "write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_images(path)
    assert left_in(cache) == []
    left, young, busy = (cache / "unpacked" / f"{archives.UNPACKING}{name}" for name in ("killed", "young", "busy"))
    for folder in (left, young, busy):
        write_folder(folder / "files", {"rose/0.png": b""})
    for folder in (left, busy):
        os.utime(folder, (0, time.time() - 2 * archives.ABANDONED))
    with locked(busy):
        os.utime(busy, (0, time.time() - 2 * archives.ABANDONED))
        load_images(path)
    assert left_in(cache)[:2] == [f"{archives.UNPACKING}{name}" for name in ("busy", "young")]
    assert len(left_in(cache)) == 3


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_two_processes_at_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one finishes while we unpack: its copy is used, ours is removed."""
    path = write_zip(tmp_path / "set.zip", split_set())
    write = archives.write_json

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(archives, "write_json", write)
        load_images(path)
        write(*arguments)

    monkeypatch.setattr(archives, "write_json", meanwhile)
    assert len(load_images(path)["test"]) == 4
    assert len(left_in(cache)) == 1


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"Cannot write .*POWERPOOL_CACHE"):
        load_images(write_zip(tmp_path / "set.zip", split_set()))


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["images/mine.zip", "mine.zip", "images/mine", "mine"])
def test_names_below_a_root(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (write_zip if place.endswith(".zip") else write_folder)(root / place, split_set())
    assert load_images("mine", root).name == "mine"
    monkeypatch.setenv("POWERPOOL_DATA", str(root))
    assert len(load_images("mine")["test"]) == 4


def test_an_unknown_name_lists_what_is_there(tmp_path: Path) -> None:
    write_zip(tmp_path / "images" / "flowers.zip", split_set())
    write_folder(tmp_path / "birds", split_set())
    with pytest.raises(UnknownNameError) as raised:
        load_images("flower", tmp_path)
    assert "Unknown set of pictures 'flower'. Did you mean flowers?" in str(raised.value)
    assert "In the data folder are birds, flowers." in str(raised.value)
    with pytest.raises(UnknownNameError, match="Did you mean food101"):
        load_images("food-101")


def test_names_against_folders_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_folder(tmp_path, {f"fmd/{name}": data for name, data in split_set().items()}))
    with pytest.raises(MissingDataError, match="fmd is not on this machine"):
        load_images("fmd")
    assert load_images("./fmd").name == load_images(Path("fmd")).name == "fmd"
    (tmp_path / "fmd").rename(tmp_path / "mine")
    assert load_images("mine").name == "mine"


def test_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"There is no file or folder .*nowhere"):
        load_images(tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match=r"There is no file or folder data/set\.zip"):
        load_images("data/set.zip")
    with pytest.raises(MissingDataError, match=r"There is no folder .*nowhere to look for data in"):
        load_images("mine", tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match="has no pictures"):
        load_images(write_folder(tmp_path / "empty", {"README": b""}))


@pytest.mark.parametrize("name", list(image_sources.KNOWN))
def test_known_sets_say_how_to_get_them(name: str) -> None:
    with pytest.raises(MissingDataError) as raised:
        load_images(name)
    known = image_sources.KNOWN[name]
    assert known.official in str(raised.value)
    assert (known.hub is None) == ("download=True" not in str(raised.value))


def test_imagenet_is_tested_on_its_validation_split(tmp_path: Path) -> None:
    content = split_set(5, ("train", "val"))
    images = load_images("imagenet", write_folder(tmp_path / "root" / "imagenet", content).parent)
    assert {name: len(split) for name, split in images.splits.items()} == {"train": 8, "validation": 2, "test": 10}
    assert all(name.startswith("val/") for name in images["test"].names)
    assert all(name.startswith("train/") for name in images["validation"].names)
    under_another_name = load_images(tmp_path / "root" / "imagenet")
    assert list(under_another_name.splits) == ["train", "validation"]


def test_fmd_is_cut_in_halves(tmp_path: Path) -> None:
    content = {f"FMD/{kind}/{name}": data for kind in ("image", "mask") for name, data in flat().items()}
    images = load_images("fmd", write_folder(tmp_path, content))
    assert {name: len(split) for name, split in images.splits.items()} == {"train": 6, "validation": 4, "test": 10}
    assert all(name.startswith("image/") for split in images.splits.values() for name in split.names)


def test_official_folders_of_known_sets(tmp_path: Path) -> None:
    names = [f"images/{label}/{number}.jpg" for label in ("pie", "tea") for number in range(4)]
    content = {f"food-101/{name}": picture(seed) for seed, name in enumerate(names)}
    content |= {"food-101/meta/train.txt": b"pie/0\npie/1\npie/2\ntea/0\ntea/1\ntea/2\n"}
    content |= {"food-101/meta/test.txt": b"pie/3\ntea/3\n"}
    images = load_images("food101", write_folder(tmp_path, content))
    assert images["test"].names == ("images/pie/3.jpg", "images/tea/3.jpg")
    assert len(images["validation"]) == 2


def test_a_file_that_cannot_be_read_names_itself(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", flat())
    (folder / "rose/00.png").unlink()
    (folder / "rose/00.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(ImageError, match=r"Cannot read .*rose/00\.png"):
        load_images(folder)


# ---- the hub ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers of ``load_dataset`` by name; it notes whether the network was allowed."""
    import datasets
    import huggingface_hub.constants

    tables: dict[str, Any] = {"offline": []}

    def load_dataset(name: str) -> Any:
        offline = (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)
        tables["offline"].append(offline)
        assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY
        if name not in tables or (all(offline) and not tables.get("cached")):
            raise ConnectionError(f"Couldn't reach {name!r}.")
        return tables[name]

    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return tables


def table(labels: list[int], names: tuple[str, ...] = ("rose", "iris"), seed: int = 0, column: str = "label") -> Any:
    from datasets import ClassLabel, Dataset, Features, Image

    rows = {
        "image": [{"bytes": picture(seed + number), "path": None} for number in range(len(labels))],
        column: labels,
    }
    return Dataset.from_dict(rows, features=Features({"image": Image(), column: ClassLabel(names=list(names))}))


def test_a_set_of_the_hub(hub: dict[str, Any]) -> None:
    hub["owner/name"] = {"train": table([0, 1, 0]), "valid": table([1, 0], seed=10), "test": table([0], seed=20)}
    with pytest.raises(MissingDataError, match=r"Cannot load owner/name .*It is not on this machine: allow download"):
        load_images("hf:owner/name")
    assert hub["offline"] == [(True, True)]
    images = load_images("hf:owner/name", download=True)
    assert hub["offline"][1] == (False, False)
    assert images.name == "name"
    assert images.classes == ("rose", "iris")  # in the order of their numbers there
    assert images["train"].targets.tolist() == [0, 1, 0]
    assert images["train"].names == ("train/rose/000000", "train/iris/000001", "train/rose/000002")
    assert encoded(images["validation"].read(1)) == encoded(noise(12, 10, 11))
    hub["cached"] = True
    assert load_images("hf:owner/name").digest == images.digest
    hub["owner/name"]["test"] = table([0], seed=21)
    assert load_images("hf:owner/name").digest != images.digest
    with pytest.raises(MissingDataError, match=r"no file or folder owner/name. A set of .* hub is hf:owner/name"):
        load_images("owner/name")  # a path that was mistyped must not be fetched from a stranger


def test_the_settings_of_the_hub_are_put_back(hub: dict[str, Any]) -> None:
    import huggingface_hub.constants
    from datasets import config

    with pytest.raises(MissingDataError):
        load_images("hf:owner/name")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert not huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY
    assert not config.HF_HUB_OFFLINE


def test_offline_by_the_environment(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants
    from datasets import config

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub["owner/name"] = {"train": table([0, 1])}
    with pytest.raises(MissingDataError, match="HF_HUB_OFFLINE is set"):
        load_images("hf:owner/name", download=True)


def test_imagenet_of_the_hub_has_secret_test_labels(hub: dict[str, Any]) -> None:
    hub["ILSVRC/imagenet-1k"] = {
        "train": table([0, 1] * 5),
        "validation": table([0, 1], seed=20),
        "test": table([-1, -1], seed=30),
    }
    images = load_images("imagenet", download=True)
    assert images.name == "imagenet"
    assert {name: len(split) for name, split in images.splits.items()} == {"train": 8, "validation": 2, "test": 2}
    assert encoded(images["test"].read(0)) == encoded(noise(12, 10, 20))


def test_a_named_set_of_the_hub_that_is_on_this_machine(hub: dict[str, Any], tmp_path: Path) -> None:
    hub["mcimpoi/fmd_materials"], hub["cached"] = {"train": table([0, 1] * 5), "test": table([0, 1], seed=20)}, True
    with pytest.raises(MissingDataError, match="fmd is not on this machine"):
        load_images("fmd")
    (tmp_path / "hub" / "datasets" / "mcimpoi___fmd_materials").mkdir(parents=True)
    assert len(load_images("fmd")["test"]) == 2


@pytest.mark.parametrize(
    "answer, message",
    [
        ({"extra": [0]}, r"no split of labelled pictures \(it has extra\)"),
        ({"train": [0, -1]}, "has no class in row 1 of 2"),
        ({"train": ([0], "kind")}, None),
    ],
)
def test_other_tables_of_the_hub(hub: dict[str, Any], answer: dict[str, Any], message: str | None) -> None:
    tables = {}
    for name, labels in answer.items():
        tables[name] = table(labels) if isinstance(labels, list) else table(labels[0] * 10, column=labels[1])
    hub["owner/name"] = tables
    if message is None:
        assert len(load_images("hf:owner/name", download=True)["train"]) == 6
        return
    with pytest.raises(DataError, match=message):
        load_images("hf:owner/name", download=True)


def test_a_table_without_pictures(hub: dict[str, Any]) -> None:
    from datasets import Dataset

    hub["owner/name"] = {"train": Dataset.from_dict({"text": ["a"], "label": [0]})}
    with pytest.raises(
        DataError, match=r"one column of pictures and one of classes, called label \(it has text: Value"
    ):
        load_images("hf:owner/name", download=True)


def test_names_that_are_none_of_the_hub() -> None:
    with pytest.raises(UnknownNameError, match="called owner/name"):
        image_hub.load_hub("../x", download=False)
