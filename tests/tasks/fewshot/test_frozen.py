"""Few-shot learning with a frozen backbone: episodes on dot products, and the commands without a run."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from powerpool.cli.main import main
from powerpool.data import Episodes
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot import features
from powerpool.tasks.fewshot.classifiers import Classifier
from powerpool.tasks.fewshot.config import EpisodeConfig
from powerpool.tasks.fewshot.feature_config import FeatureConfig
from powerpool.tasks.fewshot.features import dot_products
from powerpool.tasks.fewshot.frozen import DrawnEpisodes, run_on_products
from tests.tasks.fewshot.samples import write_folder


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def small_backbone(monkeypatch, tmp_path):
    """A random convolution instead of a downloaded network; everything else is real."""
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU())
    monkeypatch.setattr(features, "load_backbone", lambda name, download: load_backbone(body))


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "photos", classes=5, each=5)


SMALL = ["--size", "20", "--method", "SOP+SpecGamma"]


def test_dot_products_are_those_of_the_pooled_vectors_up_to_the_origin(monkeypatch):
    monkeypatch.setattr(features, "BLOCK", 4)  # several blocks
    maps = torch.rand(10, 2, 6, 3, 3).half()
    config = FeatureConfig(method="SOP+AsinhE")
    vectors = torch.cat([config.make_pool(6)(one[None].float()) for one in maps]).double()
    found = dot_products(config, maps)
    # Distances do not depend on the origin.
    squares = found.diagonal()
    distances = squares[:, None] + squares - 2 * found
    torch.testing.assert_close(distances, torch.cdist(vectors, vectors).square(), atol=1e-5, rtol=1e-4)


def test_episodes_are_those_of_the_sampler_and_count_right_queries():
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(6).repeat_interleave(7)
    vectors = torch.eye(6)[targets].double() * 2 + torch.randn(42, 6, generator=generator).double()
    test = EpisodeConfig(way=3, shot=2, queries=4, count=9)
    found = run_on_products(vectors @ vectors.T, DrawnEpisodes.draw(targets, test, seed=5), Classifier("ncm"))
    episodes = Episodes(targets, 3, 2, 4, seed=5)
    for number in range(9):
        means = vectors[episodes[number].support].mean(1)
        nearest = torch.cdist(vectors[episodes[number].query], means).argmin(-1)
        assert found.right[number] == int((nearest == torch.arange(3)[:, None]).sum())
    assert found.queries == 12


def test_a_folder_of_five_photos_of_five_classes_simply_works(small_backbone, folder, tmp_path, capsys):
    answers = tmp_path / "answers.json"
    words = ["predict", "fewshot", folder / "bar00" / "0.png", folder / "bar03", "--support", folder, *SMALL]
    assert run(*words, "--out", answers) == 0
    rows = json.loads(answers.read_text())
    assert len(rows) == 6
    assert rows[0]["class"] == "bar00"
    assert "25 examples of 5 classes; leave-one-out accuracy" in capsys.readouterr().err
    more = write_folder(tmp_path / "more", classes=5, each=6)  # with one photo of each class that is no example
    words[2:4] = [more / f"bar{number:02d}" / "5.png" for number in range(5)]
    for classifier in ("ncm", "ridge", "logistic"):
        assert run(*words, "--out", answers, "--classifier", classifier) == 0
        found = [row["class"] for row in json.loads(answers.read_text())]
        assert sum(name == f"bar{number:02d}" for number, name in enumerate(found)) >= 4  # the backbone is random


def test_evaluate_without_a_run_fits_episodes_to_the_images(small_backbone, folder, tmp_path, capsys):
    words = ["evaluate", "fewshot", "--data", folder, "--count", "20", "--out", tmp_path, *SMALL]
    assert run(*words) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["test"] == {"way": 5, "shot": 1, "queries": 4, "count": 20, "transductive": False}
    assert found["images"] == "all classes of photos"
    assert "25 test images" in capsys.readouterr().err
    assert run(*words, "--shot", "3", "--way", "3") == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert (found["test"]["queries"], found["queries"]) == (2, 6)
    assert run(*words, "--way", "6") == 2
    write_folder(tmp_path / "more", classes=6, each=2)
    (tmp_path / "more" / "bar05").rename(folder / "rare")
    capsys.readouterr()
    assert run(*words, "--queries", "3") == 0
    assert "Classes with fewer than 4 images are in no episode (1 of 6)" in capsys.readouterr().err


def test_episodes_are_fitted_to_the_images_that_can_be_read(small_backbone, folder, tmp_path, capsys):
    next(folder.glob("*/*.png")).write_bytes(b"damaged")
    words = ["evaluate", "fewshot", "--data", folder, "--count", "20", "--out", tmp_path, *SMALL]
    assert run(*words) == 2
    assert run(*words, "--corrupt", "skip") == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["test"] == {"way": 5, "shot": 1, "queries": 3, "count": 20, "transductive": False}
    assert "24 test images" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, shown",
    [
        (["predict", "fewshot", "a.png"], "support"),
        (["evaluate", "fewshot"], "--data"),
        (["evaluate", "fewshot", "--data", "a", "--transductive", "true"], "--run"),
        (["evaluate", "fewshot", "--data", "a", "--device", "cuda"], "--run"),
        (["evaluate", "fewshot", "--run", "a", "--backbone", "hf:b"], "--backbone"),
        (["predict", "fewshot", "a.png", "--support", "b", "--classifier", "svm"], "classifier"),
        (["predict", "fewshot", "a.png", "--support", "b", "--penalty", "0"], "penalty"),
        (["predict", "fewshot", "a.png", "--support", "b", "--method", "SOP+MaxExp"], "SOP"),
        (["reproduce", "fewshot", "--backbone", "b"], "--study features"),
        (["reproduce", "fewshot", "--study", "features", "--methods", "RelationNet"], "FOP"),
        (["reproduce", "fewshot", "--study", "features", "--problems", "shn"], "--problems"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(words, shown, capsys):
    assert run(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert shown in line


def test_the_study_chooses_by_validation_classes_and_tests_every_episode_seed(small_backbone, tmp_path, capsys):
    folder = write_folder(tmp_path / "bars", classes=12, each=6)
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        "size: 20\ntest: {way: 2, queries: 2, count: 10}\nvalidation_episodes: 10\ngrid: {gamma: [0.3, 0.7]}\n"
    )
    words = ["--study", "features", "--data", folder, "--recipe", recipe, "--methods", "FOP", "SOP+SpecGamma"]
    assert run("reproduce", "fewshot", *words, "--shots", "1", "2", "--seeds", "0", "1", "--out", tmp_path / "out") == 0
    files = sorted((tmp_path / "out" / "bars").glob("*.json"))
    assert len(files) == 2 * 3 * 2  # pools, classifiers, shots
    record = RunRecord.read(tmp_path / "out" / "bars" / "SOP+SpecGamma+Ridge.2-way-2-shot.json")
    assert [result.seed for result in record.results] == [0, 1]
    first = record.results[0]
    assert len(first.trials) == 2 * 3
    assert first.validation.value == max(trial.value for trial in first.trials)
    assert set(first.chosen) == {"gamma", "penalty"}
    assert (len(first.right), first.queries) == (10, 4)
    assert "FOP+NCM" in (tmp_path / "out" / "README.md").read_text()
    assert run("reproduce", "fewshot", *words, "--ways", "9", "--out", tmp_path / "out") == 2
    assert "--ways" in capsys.readouterr().err
    for damaged in folder.glob("*/0.png"):
        damaged.write_bytes(b"damaged")
    assert run("reproduce", "fewshot", *words, "--out", tmp_path / "no") == 2
    recipe.write_text(f"corrupt: skip\n{recipe.read_text()}")
    capsys.readouterr()
    assert run("reproduce", "fewshot", *words, "--out", tmp_path / "skipped") == 0
    assert "skipped" in capsys.readouterr().err
