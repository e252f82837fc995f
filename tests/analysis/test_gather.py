"""Analysis of given features and of run folders, against NumPy's eigenvalues, known answers and the models."""

from __future__ import annotations

import collections
import shutil

import numpy as np
import pytest
import torch

import powerpool as pp
from powerpool.analysis import FeatureSet, Gathering, Samples, inspect_features, inspect_run
from powerpool.analysis.gather import open_source
from powerpool.data import Crops
from powerpool.errors import ArgumentError, NotFiniteError, RecordError, ShapeError, UnknownNameError
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import CONFIG, MODEL, DataIdentity, open_run
from powerpool.tasks.graph.inference import load_run
from powerpool.tasks.graph.options import RunConfig
from powerpool.tasks.graph.task import make_fold
from powerpool.tasks.pooling import Normalization
from powerpool.tasks.vision.config import PoolConfig, VisionConfig
from powerpool.tasks.vision.extraction import extract, read_images
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.vectorize import to_vector
from tests.analysis.samples import make_features, write_run
from tests.fixtures.store import HERE
from tests.tasks.vision.samples import tiny_backbone, use_tiny, write_images
from tests.tolerances import tolerance

OLD_RUNS = HERE / "runs"


def numpy_shares(matrix: np.ndarray) -> np.ndarray:
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    return values / values.sum()


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_spectra_before_and_after_match_numpy(beta):
    given = make_features().double()
    found = inspect_features(given, pp.MaxExp(eta=5), beta=beta, eps=0.0)
    for row, phi in enumerate(given.numpy()):
        centred = phi - beta * phi.mean(1, keepdims=True)
        before = numpy_shares(centred @ centred.T / phi.shape[1])
        after = 1 - (1 - before) ** 5
        np.testing.assert_allclose(found.before.spectra[row], before, atol=1e-12)
        np.testing.assert_allclose(found.after.spectra[row], after / after.sum(), atol=1e-9)


def test_element_wise_curve_acts_on_entries():
    given = make_features(1).double()
    found = inspect_features(given, pp.SigmE(eta=40.0), "elementwise", eps=0.0)
    phi = given[0].numpy()
    moment = phi @ phi.T / phi.shape[1]
    matrix = np.tanh(20 * moment / np.trace(moment))
    np.testing.assert_allclose(found.after.spectra[0], numpy_shares(matrix), atol=1e-9)
    values = np.linalg.eigvalsh(matrix)
    assert found.after.negative[0].item() == pytest.approx(-values[values < 0].sum() / np.abs(values).sum(), abs=1e-6)
    root = np.sqrt(np.diag(matrix))
    np.testing.assert_allclose(found.after.correlations, matrix / np.outer(root, root), atol=1e-9)


def test_matrix_of_rank_one_stays_of_rank_one():
    found = inspect_features(torch.rand(3, 5, 1).expand(3, 5, 7), pp.MaxExp(eta=20))
    ones = torch.ones(3, dtype=torch.float64)
    for side in (found.before, found.after):
        torch.testing.assert_close(side.effective_rank, ones, rtol=1e-4, atol=0)
    assert found.suggestion.eta == 1
    torch.testing.assert_close(found.before.correlation, ones, rtol=1e-5, atol=0)


def test_mean_correlations_skip_samples_in_which_a_feature_has_no_energy():
    first, second = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    found = inspect_features(torch.stack([first, second]))
    assert found.before.correlations[0, 1].item() == pytest.approx(1 / 2**0.5, rel=1e-6)
    assert found.before.correlations[0, 0].item() == pytest.approx(1.0)


def test_maps_lists_and_sets_give_the_same():
    given = make_features(3, 4, 6)
    first, *others = (inspect_features(form) for form in (given, given.view(3, 4, 2, 3), list(given)))
    for other in others:
        torch.testing.assert_close(first.before.spectra, other.before.spectra)
    assert inspect_features([given[0], given[1, :, :2]]).locations == (6, 2)


def test_coordinates_add_channels_but_not_burstiness():
    grid = pp.spatial_coordinates(5, 6, pivots=3)
    found = inspect_features(make_features(2, 4, 30), pp.MaxExp(eta=3), coordinates=grid)
    assert (found.channels, len(found.burstiness)) == (10, 4)


def test_samples_without_energy_are_skipped_and_counted():
    given = make_features(3)
    given[1] = 0
    found = inspect_features(given, pp.MaxExp(eta=3))
    assert (found.samples, found.skipped) == (2, 1)
    assert "1 of 3 samples" in found.notes[0]
    # Constant features are zero after centering, up to round-off.
    constant = torch.cat([make_features(1), torch.full((1, 6, 30), 0.1)])
    assert inspect_features(constant, beta=1.0).skipped == 1
    with pytest.raises(ArgumentError, match=r"With beta 1 .*smaller beta"):
        inspect_features(constant[1:], beta=1.0)


def test_bad_input():
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        inspect_features(torch.rand(3, 4))
    with pytest.raises(ShapeError, match="5 after 4"):
        inspect_features([torch.rand(4, 3), torch.rand(5, 3)])
    with pytest.raises(NotFiniteError):
        inspect_features(torch.full((1, 2, 3), torch.nan))
    with pytest.raises(UnknownNameError, match="mode"):
        inspect_features(torch.rand(1, 2, 3), mode="both")
    with pytest.raises(ArgumentError, match="0 samples"):
        inspect_features([])
    with pytest.raises(ArgumentError, match="2 samples"):  # coordinates alone do not count
        inspect_features(torch.zeros(2, 3, 4), coordinates=pp.spatial_coordinates(2, 2))
    with pytest.raises(ArgumentError, match="samples"):
        Gathering(Normalization("none"), samples=0)


def test_gathering_stops_at_the_number_of_samples():
    gathering = Gathering(Normalization("plain"), samples=2)
    gathering.extend(FeatureSet(one) for one in make_features(5))
    assert gathering.is_full
    assert gathering.result("here").samples == 2


# ---- run folders -----------------------------------------------------------------------------------------------------


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


@pytest.mark.filterwarnings("ignore:.* is now:DeprecationWarning")
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


@pytest.mark.parametrize("content", ['{"task": {"a": 1}}', '{"task": "other"}', "{"])
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


@pytest.mark.parametrize("task", [["graph"], nested(12)], ids=["list", "nested"])
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
