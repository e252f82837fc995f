"""Analysis of run folders: the features are those of the model, the samples are drawn, and bad folders are refused."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path

import pytest
import torch

from powerpool.analysis import Samples, inspect_run
from powerpool.analysis.runs import open_source
from powerpool.data import Crops, load_graphs
from powerpool.errors import ArgumentError, RecordError
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import CONFIG, MODEL, DataIdentity, open_run, save_model
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.inference import ModelSpec, load_run
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.graph.options import RunConfig
from powerpool.tasks.graph.task import TASK, make_fold
from powerpool.tasks.vision.config import PoolConfig, VisionConfig
from powerpool.tasks.vision.extraction import extract, read_images
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.vectorize import to_vector
from tests.fixtures.store import HERE
from tests.tasks.vision.samples import tiny_backbone, use_tiny, write_images
from tests.tolerances import tolerance

OLD_RUNS = HERE / "runs"


def write_run(folder: Path, method: str) -> Path:
    """A run folder of a graph model that was not trained."""
    graphs = load_graphs("MUTAG")
    config = RunConfig(folds=3, model=ModelConfig(method, hidden=6, layers=1))
    open_run(folder, config, TASK.identity(graphs), task="graph")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = GraphClassifier(config.model, graphs.channels, len(graphs.classes))
    save_model(folder, "graph", ModelSpec(config.model, graphs.features, graphs.classes), network.state_dict())
    return folder


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "graph", "SOP+SpecMaxExpF")


def test_matrices_are_those_of_the_network(graph):
    samples = Samples(samples=4, seed=3)
    source, model = open_source(graph, samples), load_run(graph)
    with torch.no_grad():
        found = torch.stack([source.normalization.matrix(one.features) for one in source.sets]).float()
        config = read_recipe(graph / CONFIG, RunConfig)
        graphs = model.read(config.data)
        rows = samples.draw(make_fold(config, graphs, config.fold).train)
        expected = model.network.pooled(graphs[rows])
    assert source.count == len(found) == 4
    torch.testing.assert_close(to_vector(found), expected, **tolerance(torch.float32, slack=1000))  # another solver


def test_same_seed_gives_the_same_samples(graph):
    one, two, other = (inspect_run(graph, Samples(samples=4, seed=seed)).before.spectra for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_splits_and_other_data(graph):
    counts = {split: open_source(graph, Samples(split=split)).count for split in ("train", "validation", "test")}
    assert sum(counts.values()) == 188
    assert counts["test"] in (62, 63)
    done = []
    found = inspect_run(graph, Samples(data="MUTAG", samples=3), done.append)
    assert (found.source, found.samples, done) == ("all graphs of MUTAG", 3, [1, 2, 3])


def test_changed_data_is_noted(graph, tmp_path):
    folder = shutil.copytree(graph, tmp_path / "run")
    assert inspect_run(folder, Samples(samples=2)).notes == ()
    text = (folder / "data.json").read_text()
    (folder / "data.json").write_text(text.replace('"digest": "', '"digest": "x'))
    assert "MUTAG has changed" in inspect_run(folder, Samples(samples=2)).notes[0]


def test_first_order_model(tmp_path):
    found = inspect_run(write_run(tmp_path / "run", "GIN0"), Samples(samples=3))
    assert found.after is None
    assert found.to_dict()["order"] == 1
    assert "MaxExp with eta" in found.advice()
    assert "first-order" in found.markdown()


def test_stored_features_of_images_are_used_if_there_are_any(tmp_path, monkeypatch):
    use_tiny(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    data = write_images(tmp_path / "stripes", count=6)
    config = VisionConfig(str(data), backbone="tiny", crops=Crops(size=32, count=2, resize=32), workers=0)
    images, _ = read_images(config)
    open_run(tmp_path, config, DataIdentity(images.name, images.digest), task="vision")
    network = ImageClassifier(tiny_backbone(), PoolConfig("SOP+SC+SpecMaxExpF"), len(images.classes))
    TrainedModel(network, images.classes, config.crops).save(tmp_path)
    computed = inspect_run(tmp_path, Samples(samples=4))
    assert (computed.channels, computed.locations[0]) == (6 + 2 * 5, 72)
    extract(config, images)
    stored = inspect_run(tmp_path, Samples(samples=4))
    assert stored.source == f"{computed.source}, stored features"
    torch.testing.assert_close(stored.before.spectra, computed.before.spectra, rtol=0.05, atol=1e-3)  # half precision
    assert inspect_run(tmp_path, Samples(data=str(data), samples=30)).samples == 18


@pytest.mark.parametrize(
    "task, channels, mode", [("graph", 8, "spectral"), ("fewshot", 8 + 4, "elementwise"), ("vision", 320, "spectral")]
)
def test_runs_of_version_0_1(task, channels, mode):
    """Their numbers are compared in tests/fixtures."""
    found = inspect_run(OLD_RUNS / task, Samples(samples=2))
    assert (found.samples, found.channels, found.suggestion.mode) == (2, channels, mode)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_folder_without_a_model(tmp_path):
    with pytest.raises(RecordError, match="none"):
        inspect_run(tmp_path / "none")
    with pytest.raises(RecordError, match=MODEL):
        inspect_run(tmp_path)


@pytest.mark.parametrize("content", ["[]", '{"format": 2}', '{"task": {"a": 1}}', '{"task": "other"}', "{"])
def test_damaged_model_json(tmp_path, content):
    (tmp_path / MODEL).write_text(content)
    with pytest.raises(RecordError, match=MODEL):
        inspect_run(tmp_path)


def nested(depth: int) -> object:
    """A value with 10 ** depth leaves, which a file stores in a few bytes."""
    value: object = "x"
    for _ in range(depth):
        value = collections.OrderedDict(zip(range(10), [value] * 10, strict=True))
    return value


@pytest.mark.parametrize("task", [None, ["graph"], nested(12), "y" * 10_000], ids=["none", "list", "nested", "long"])
def test_damaged_old_model(tmp_path, task):
    torch.save({"pipeline": task, "format": 1, "weights": {}}, tmp_path / "model.pt")
    with pytest.raises(RecordError, match=r"model\.pt") as error:
        inspect_run(tmp_path)
    assert len(str(error.value)) < 500
    with pytest.raises(RecordError, match=r"model\.pt") as error:
        load_run(tmp_path)
    assert len(str(error.value)) < 500


def test_model_without_settings_needs_data(graph, tmp_path):
    for name in (MODEL, "model.safetensors"):
        shutil.copy(graph / name, tmp_path)
    with pytest.raises(RecordError, match="--data"):
        inspect_run(tmp_path)
    assert inspect_run(tmp_path, Samples(data="MUTAG", samples=2)).samples == 2


@pytest.mark.parametrize("option", [{"samples": 0}, {"seed": -1}])
def test_bad_numbers(option):
    with pytest.raises(ArgumentError, match=next(iter(option))):
        Samples(**option)
