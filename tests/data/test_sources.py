"""Where image data sets come from: names in a data folder, known data sets, and the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerpool.data import DataError, MissingDataError, load_images
from powerpool.data.sources import KNOWN, load_hub
from powerpool.errors import UnknownNameError
from tests.data.image_sets import encoded, noise, png, split_set, write_folder, write_zip

# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["images/mine.zip", "mine.zip", "images/mine", "mine"])
def test_names_in_a_data_folder(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (write_zip if place.endswith(".zip") else write_folder)(root / place, split_set())
    assert load_images("mine", root).name == "mine"
    monkeypatch.setenv("POWERPOOL_DATA", str(root))
    assert len(load_images("mine")["test"]) == 4


def test_an_unknown_name_suggests_another(tmp_path: Path) -> None:
    write_zip(tmp_path / "images" / "flowers.zip", split_set())
    write_folder(tmp_path / "birds", split_set())
    with pytest.raises(UnknownNameError, match=r"'flower'.*Did you mean flowers\?.*birds, flowers\."):
        load_images("flower", tmp_path)
    with pytest.raises(UnknownNameError, match=r"Did you mean food101\?.*digits, glyphs"):
        load_images("food-101")


def test_a_known_name_is_not_a_folder_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_folder(tmp_path, {f"fmd/{name}": data for name, data in split_set().items()}))
    with pytest.raises(MissingDataError, match="fmd was not found"):
        load_images("fmd")
    assert load_images("./fmd").name == load_images(Path("fmd")).name == "fmd"
    (tmp_path / "fmd").rename(tmp_path / "mine")
    assert load_images("mine").name == "mine"


def test_missing_paths(tmp_path: Path) -> None:
    for data, root in ((tmp_path / "nowhere", None), ("nowhere/set.zip", None), ("mine", tmp_path / "nowhere")):
        with pytest.raises(MissingDataError, match="nowhere"):
            load_images(data, root)
    with pytest.raises(MissingDataError, match="empty contains no images"):
        load_images(write_folder(tmp_path / "empty", {"README": b""}))


@pytest.mark.parametrize("name", KNOWN)
def test_known_data_sets_say_how_to_get_them(name: str) -> None:
    with pytest.raises(MissingDataError) as raised:
        load_images(name)
    assert KNOWN[name].layout in str(raised.value)
    assert (KNOWN[name].hub is None) == ("download=True" not in str(raised.value))


def test_imagenet_is_tested_on_its_validation_split(tmp_path: Path) -> None:
    content = split_set(5, ("train", "val"))
    images = load_images("imagenet", write_folder(tmp_path / "root" / "imagenet", content).parent)
    assert {name: len(split) for name, split in images.splits.items()} == {"train": 8, "validation": 2, "test": 10}
    assert all(name.startswith("val/") for name in images["test"].names)
    assert all(name.startswith("train/") for name in images["validation"].names)
    by_path = load_images(tmp_path / "root" / "imagenet")
    assert {name: len(split) for name, split in by_path.splits.items()} == {"train": 8, "validation": 10, "test": 2}


def test_food101_in_its_official_folder(tmp_path: Path) -> None:
    names = [f"images/{label}/{number}.jpg" for label in ("pie", "tea") for number in range(4)]
    content = {f"food-101/{name}": png(seed) for seed, name in enumerate(names)}
    content |= {"food-101/meta/train.txt": b"pie/0\npie/1\npie/2\ntea/0\ntea/1\ntea/2\n"}
    content |= {"food-101/meta/test.txt": b"pie/3\ntea/3\n"}
    images = load_images("food101", write_folder(tmp_path, content))
    assert images["test"].names == ("images/pie/3.jpg", "images/tea/3.jpg")
    assert len(images["validation"]) == 2


# ---- the hub ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers of ``load_dataset`` by name; it records whether the network was allowed."""
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

    rows = {"image": [{"bytes": png(seed + number), "path": None} for number in range(len(labels))], column: labels}
    return Dataset.from_dict(rows, features=Features({"image": Image(), column: ClassLabel(names=list(names))}))


def test_a_data_set_of_the_hub(hub: dict[str, Any]) -> None:
    import datasets
    import huggingface_hub.constants

    hub["owner/name"] = {"train": table([0, 1, 0]), "valid": table([1, 0], seed=10), "test": table([0], seed=20)}
    with pytest.raises(MissingDataError, match=r"owner/name.*download=True"):
        load_images("hf:owner/name")
    images = load_images("hf:owner/name", download=True)
    assert hub["offline"] == [(True, True), (False, False)]
    assert not datasets.config.HF_HUB_OFFLINE  # settings are restored
    assert not huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY
    assert images.name == "name"
    assert images.classes == ("rose", "iris")  # in the order of their numbers
    assert images["train"].targets.tolist() == [0, 1, 0]
    assert images["train"].names == ("train/rose/000000", "train/iris/000001", "train/rose/000002")
    assert encoded(images["validation"].read(1)) == encoded(noise(12, 10, 11))
    hub["cached"] = True
    assert load_images("hf:owner/name").digest == images.digest
    hub["owner/name"]["test"] = table([0], seed=21)
    assert load_images("hf:owner/name").digest != images.digest
    with pytest.raises(MissingDataError, match="hf:owner/name"):
        load_images("owner/name")  # a mistyped path must not be downloaded from a stranger


def test_offline_by_the_environment(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants
    from datasets import config

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub["owner/name"] = {"train": table([0, 1])}
    with pytest.raises(MissingDataError, match="HF_HUB_OFFLINE"):
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


def test_a_known_data_set_of_the_hub_that_is_on_this_machine(hub: dict[str, Any], tmp_path: Path) -> None:
    hub["mcimpoi/fmd_materials"], hub["cached"] = {"train": table([0, 1] * 5), "test": table([0, 1], seed=20)}, True
    with pytest.raises(MissingDataError, match="fmd was not found"):
        load_images("fmd")
    (tmp_path / "hub" / "datasets" / "mcimpoi___fmd_materials").mkdir(parents=True)
    assert len(load_images("fmd")["test"]) == 2


def test_other_tables_of_the_hub(hub: dict[str, Any]) -> None:
    from datasets import Dataset

    hub["owner/name"] = {"train": table([0] * 10, column="kind")}
    assert len(load_images("hf:owner/name", download=True)["train"]) == 6
    for tables, message in (
        ({"extra": table([0])}, "extra"),
        ({"train": table([0, -1])}, "row 1 of 2"),
        ({"train": Dataset.from_dict({"text": ["a"], "label": [0]})}, "text: Value"),
    ):
        hub["owner/name"] = tables
        with pytest.raises(DataError, match=message):
            load_images("hf:owner/name", download=True)
    with pytest.raises(UnknownNameError, match=r"owner/name.*'\.\./x'"):
        load_hub("../x", download=False)
