"""``powerpool inspect`` as it is typed, on tiny runs of all pipelines that are trained here; and bad input."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from powerpool.analysis import Samples, inspect_run, result, runs
from powerpool.analysis.command import InspectOptions
from powerpool.analysis.command import run as run_inspect
from powerpool.analysis.runs import open_run
from powerpool.cli.main import COMMANDS, main
from powerpool.errors import RecordError
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.model import SetPool
from powerpool.vectorize import to_vector
from tests.pipelines.fewshot.samples import write_folder
from tests.pipelines.graph.samples import rings_and_stars, write_own_set
from tests.tasks.vision.samples import use_tiny, write_images
from tests.tolerances import tolerance

FILES = {"inspection.json", "inspection.md", "samples.csv", "spectra.csv"} | {
    f"{name}.{suffix}" for name in ("spectra", "trace", "correlations", "burstiness") for suffix in ("png", "svg")
}


DRAWN = (".png", ".svg")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.setenv("POWERPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield patch


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    data = write_own_set(tmp_path_factory.mktemp("graphs") / "OWN", rings_and_stars(24))
    folders = {}
    for method in ("SOP+SpecMaxExpF", "GIN0"):
        folders[method] = tmp_path_factory.mktemp("runs") / "graph"
        small = ["--model.hidden", 6, "--model.layers", 2, "--training.epochs", 1, "--folds", 3]
        words = ["--data", data, "--model.method", method, *small, "--download", "false", "--out", folders[method]]
        assert run("train", "graph", *words) == 0
    return folders


@pytest.fixture(scope="module")
def vision(cache, tmp_path_factory):
    data = write_images(tmp_path_factory.mktemp("pictures") / "stripes", count=6)
    folder = tmp_path_factory.mktemp("runs") / "vision"
    words = ["--backbone", "tiny", "--crops.size", 32, "--crops.count", 2, "--crops.resize", 32, "--workers", 0]
    assert run("train", "vision", "--data", data, "--accelerator", "cpu", *words, "--out", folder) == 0
    return folder, data


@pytest.fixture(scope="module")
def fewshot(cache, tmp_path_factory):
    data = write_folder(tmp_path_factory.mktemp("bars") / "bars", each=4)
    cut = ["--train_classes", 6, "--validation_classes", 3, "--class_order", "drawn"]
    small = ["--test.way", 2, "--test.count", 2, "--test.queries", 2, "--training.episodes", 1, "--training.queries", 2]
    few = ["--training.validation_episodes", 0, "--size", 16, "--channels", 1, "--model.hidden", 4]
    folders = {}
    for method in ("SoSN(x)+SC+SigmE", "RelationNet"):
        folders[method] = tmp_path_factory.mktemp("runs") / "fewshot"
        words = ["--data", data, "--model.method", method, *cut, *small, *few, "--out", folders[method]]
        assert run("train", "fewshot", *words) == 0
    return folders, data


# ---- every pipeline --------------------------------------------------------------------------------------------------


def test_a_run_of_graphs_is_shown_and_written(graph, capsys):
    folder = graph["SOP+SpecMaxExpF"]
    capsys.readouterr()
    run_inspect(InspectOptions(str(folder), samples=5))
    said = capsys.readouterr().out
    assert "5 samples of the train graphs of OWN, 6 channels, 4 to 6 locations" in said
    assert "effective rank" in said
    assert "Suggestion: " in said
    assert {path.name for path in (folder / "inspect").iterdir()} == FILES
    content = json.loads((folder / "inspect" / "inspection.json").read_text())
    assert (content["curve"], content["parameter"], content["mode"]) == ("MaxExp", 20.0, "spectral")


def test_the_matrices_of_a_graph_run_are_those_of_its_network(graph):
    from powerpool.tasks.graph.runs import load_run

    folder, which = graph["SOP+SpecMaxExpF"], Samples(samples=4, seed=3)
    source, model = open_run(folder, which), load_run(folder)
    assert source.count == 4
    found = torch.stack([source.normalization.matrix(one.features) for one in source.sets]).float()
    config = runs.read_recipe(folder / "config.yaml", _graph_config())
    graphs = model.read(config.data)
    fold = _fold(config, graphs)
    expected = model.network.pooled(graphs[runs.drawn(fold.train, which)])
    torch.testing.assert_close(to_vector(found), expected.detach(), **tolerance(torch.float32, slack=1000))


def _graph_config():
    from powerpool.tasks.graph.commands import RunConfig

    return RunConfig


def _fold(config, graphs):
    from powerpool.tasks.graph.evaluation import make_fold

    return make_fold(config, graphs, config.fold)


def test_stored_features_are_used_where_they_are_and_give_what_pictures_give(vision, monkeypatch):
    folder, data = vision
    stored = inspect_run(folder, Samples(samples=4))
    assert stored.source == "the train pictures of stripes, stored features"
    assert (stored.channels, stored.locations[0]) == (6 + 2 * 5, 72)
    monkeypatch.setattr(runs, "_stored_maps", lambda folder, which, model: None)
    computed = inspect_run(folder, Samples(samples=4))
    assert computed.source == "the train pictures of stripes"
    # Stored in half precision.
    torch.testing.assert_close(stored.before.spectra, computed.before.spectra, rtol=0.05, atol=1e-3)
    other = inspect_run(folder, Samples(data=str(data), samples=30))
    assert (other.source, other.samples) == ("all pictures of stripes", 18)


@pytest.mark.parametrize("method", ["SOP+SC+SpecMaxExpF", "SOP+SigmE", "SOP+NewtonSchulz"])
def test_the_set_of_a_picture_gives_the_vector_of_its_pool(method):
    pool, maps = SetPool(PoolConfig(method, unit_norm=False, beta=0.5), channels=7), torch.rand(3, 7, 2, 4)
    features, grid, _ = pool.feature_set(maps)
    matrix = pool.normalization.matrix(features, grid)
    found = to_vector(matrix[None]).float()
    torch.testing.assert_close(found, pool(maps[None]), **tolerance(torch.float32, slack=10))


def test_a_few_shot_run_has_its_coordinates(fewshot):
    folders, data = fewshot
    found = inspect_run(folders["SoSN(x)+SC+SigmE"], Samples(samples=5))
    assert found.source == "pictures of the train classes of bars"
    assert (found.samples, found.channels, found.locations[0]) == (5, 4 + 2 * 5, 4)
    assert found.suggestion.mode == "elementwise"
    assert inspect_run(folders["SoSN(x)+SC+SigmE"], Samples(data=str(data), samples=50)).samples == 48


def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures, which take most of the time."""
    monkeypatch.setattr(result, "draw_pictures", lambda found, folder: [])


def test_a_first_order_run_shows_what_second_order_would_see(graph, fewshot, capsys, monkeypatch):
    for folder, name in ((graph["GIN0"], "GIN0"), (fewshot[0]["RelationNet"], "RelationNet")):
        if name == "RelationNet":
            undrawn(monkeypatch)
        capsys.readouterr()
        run_inspect(InspectOptions(str(folder), samples=3))
        said = " ".join(capsys.readouterr().out.split())
        assert f"{name} pools in first order: it has no matrix and no spectrum to normalize" in said
        assert "Suggestion: MaxExp with eta" in said
        content = json.loads((folder / "inspect" / "inspection.json").read_text())
        assert content["order"] == 1
        assert "after" not in content


def test_the_sample_is_the_same_for_the_same_seed(graph):
    folder = graph["SOP+SpecMaxExpF"]
    one, two = (inspect_run(folder, Samples(samples=4, seed=1)) for _ in range(2))
    assert torch.equal(one.before.spectra, two.before.spectra)
    other = inspect_run(folder, Samples(samples=4, seed=2))
    assert not torch.equal(one.before.spectra, other.before.spectra)


def test_splits_and_other_data(graph):
    folder = graph["SOP+SpecMaxExpF"]
    counts = {split: inspect_run(folder, Samples(split=split)).samples for split in ("train", "validation", "test")}
    assert sum(counts.values()) == 24
    assert counts["test"] == 8


def test_the_bar_is_as_long_as_there_are_samples(graph, vision, fewshot):
    for folder in (graph["GIN0"], vision[0], fewshot[0]["RelationNet"]):
        source = open_run(folder, Samples(samples=1000))
        assert source.count == len(list(source.sets)) < 1000
        assert open_run(folder, Samples(samples=3)).count == 3


def test_data_that_has_changed_is_noted(graph):
    folder = graph["SOP+SpecMaxExpF"]
    text = (folder / "data.json").read_text()
    (folder / "data.json").write_text(text.replace('"digest": "', '"digest": "x'))
    try:
        assert "OWN has changed since the run was trained" in inspect_run(folder, Samples(samples=2)).notes[0]
    finally:
        (folder / "data.json").write_text(text)


# ---- as it is typed --------------------------------------------------------------------------------------------------


@pytest.fixture
def typed():
    if "inspect" not in COMMANDS:
        pytest.skip("powerpool.cli.main has no command inspect")


def test_typed(typed, graph, tmp_path, capsys, monkeypatch):
    undrawn(monkeypatch)
    capsys.readouterr()
    assert run("inspect", graph["SOP+SpecMaxExpF"], "--samples", 3, "--out", tmp_path / "out") == 0
    assert f"written: {tmp_path / 'out'}" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {name for name in FILES if name[-4:] not in DRAWN}


def test_help_has_the_options_of_samples_in_their_words(typed, capsys):
    for command, own, samples in (("inspect", "--run RUN", 200), ("explore", "--out OUT", 100)):
        assert run(command, "--help") == 0
        said = " ".join(capsys.readouterr().out.split())
        for expected in (own, "--split SPLIT", "--seed SEED of the draw", "drawn at random", f"default: {samples})"):
            assert expected in said


def test_typed_wrongly(typed, tmp_path, capsys):
    assert run("inspect", "--run", tmp_path / "none") == 2
    said = capsys.readouterr().err
    assert said.startswith("powerpool inspect: error: There is no run folder")
    assert said.count("\n") == 1
    assert run("inspect", "--run", tmp_path, "--samples", 0) == 2
    assert "samples must be at least 1 (got 0)" in capsys.readouterr().err


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_no_run_and_no_model(tmp_path):
    with pytest.raises(
        RecordError, match=r"There is no run folder .*none of `powerpool train graph`, `powerpool train vision` or"
    ):
        inspect_run(tmp_path / "none")
    with pytest.raises(RecordError, match=r"holds no model\.pt: it is no run, or its training did not end"):
        inspect_run(tmp_path)


def test_a_damaged_model(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK nothing")
    with pytest.raises(RecordError, match=r"model\.pt"):
        inspect_run(tmp_path)
    torch.save({"weights": {}}, tmp_path / "model.pt")
    with pytest.raises(RecordError, match="is no model of powerpool: its pipeline is None"):
        inspect_run(tmp_path)
    torch.save({"pipeline": "graph", "format": 1}, tmp_path / "model.pt")
    with pytest.raises(RecordError, match="is a damaged model"):
        inspect_run(tmp_path)


def test_a_model_without_its_settings_needs_data(graph, tmp_path):
    shutil.copy(graph["GIN0"] / "model.pt", tmp_path)
    with pytest.raises(RecordError, match=r"holds no config\.yaml, which says what it was trained on: name data with"):
        inspect_run(tmp_path)
    data = runs.read_recipe(graph["GIN0"] / "config.yaml", _graph_config()).data
    assert inspect_run(tmp_path, Samples(data=data)).samples == 24


def test_bad_numbers():
    with pytest.raises(ValueError, match=r"samples must be at least 1 \(got 0\)"):
        InspectOptions("run", samples=0)
    with pytest.raises(ValueError, match=r"seed must be at least 0 and below 2\*\*31 \(got -1\)"):
        InspectOptions("run", seed=-1)
