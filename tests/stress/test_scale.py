"""Many images: a folder and shards give the same weights, with memory that hardly depends on their number."""

from __future__ import annotations

import pytest

from powerpool.cli.main import main
from powerpool.data import load_images
from powerpool.tasks.base import Unit
from powerpool.tasks.vision.tuned import train
from tests.stress.cases import digest
from tests.stress.scale import read_state, trial, words, write_backbone, write_sets
from tests.tasks.vision.fine_tuning_samples import small_config
from tests.tasks.vision.samples import use_tiny, write_images

MEGABYTES = 100
"""What memory may grow by from 1,000 to 50,000 training images, whose pixels alone are 150 MB more. Each of two
processes has a list of the images, and so has the one that starts them."""


def test_a_few_hundred_images_from_a_folder_and_from_shards_give_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    write_sets(tmp_path, 300, shard=90)
    write_backbone(tmp_path / "backbone")
    for name in ("classes", "shards"):
        assert main([*words(tmp_path, str(tmp_path / name), tmp_path / f"run-{name}"), "--workers", "0"]) == 0
    states = [read_state(tmp_path / f"run-{name}") for name in ("classes", "shards")]
    assert states[0]["progress"]["step"] == 3
    assert digest(states[0]["model"]) == digest(states[1]["model"])


def test_images_are_decoded_before_a_training_but_not_again_when_it_is_resumed(tmp_path, monkeypatch):
    use_tiny(monkeypatch)
    data = load_images(write_images(tmp_path / "images", 5))
    watched = []
    for _ in range(2):
        done = train(small_config(epochs=1), data, Unit(0), tmp_path / "run", lambda what, *rest: watched.append(what))
        assert done.epoch == 1
    assert watched.count("checked images of train") == len(data["train"])


@pytest.mark.stress
def test_an_epoch_of_50000_images_is_killed_and_resumed_in_bounded_memory(tmp_path):
    found = trial(tmp_path, 50_000)
    runs = found.runs
    assert found.equal
    assert runs["two processes"].loss == pytest.approx(runs["folder"].loss, rel=1e-2)
    for name in ("shards", "two processes"):
        assert 0 < runs[f"{name}, killed"].killed_at < found.batches
    assert max(runs[name].megabytes for name in ("folder", "shards")) < runs["few"].megabytes + MEGABYTES
    assert runs["two processes"].megabytes < runs["few, two processes"].megabytes + 3 * MEGABYTES
