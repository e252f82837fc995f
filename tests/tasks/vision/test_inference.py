"""Models in run folders, evaluations against counting by hand, and hostile or damaged files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from powerpool.data import Crops, load_images
from powerpool.errors import RecordError
from powerpool.runs.folder import MODEL, OLD_MODEL, WEIGHTS, save_state
from powerpool.tasks.pooling import spread_out
from powerpool.tasks.vision import inference
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.evaluation import PAIRS, ROWS, VisionEvaluation
from powerpool.tasks.vision.inference import TrainedModel, load_run
from powerpool.tasks.vision.model import ImageClassifier
from tests.tasks.vision.samples import CLASSES, tiny_backbone, use_tiny


def make_model(method: str = "SOP+SC+SpecMaxExpF", is_trained: bool = False, **pool: object) -> TrainedModel:
    network = ImageClassifier(tiny_backbone(), PoolConfig(method, eta=5, pivots=3, **pool), len(CLASSES)).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters() if is_trained else network.classifier.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return TrainedModel(network, CLASSES, Crops(size=32, count=2, resize=32), is_trained)


@pytest.fixture(scope="module")
def split(textures):
    return load_images(textures)["test"]


@pytest.fixture
def saved(tmp_path, tiny) -> Path:
    make_model().save(tmp_path)
    return tmp_path


def change_spec(folder: Path, **changes: object) -> None:
    file = folder / MODEL
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("method", ["Baseline", "SOP+SC+SpecMaxExpF", "SOP+SC+NewtonSchulz"])
def test_a_model_is_read_as_it_was_written(method, is_trained, split, tmp_path):
    first = make_model(method, is_trained)
    first.save(tmp_path)
    again = load_run(tmp_path)
    assert (again.classes, again.crops, again.is_trained) == (first.classes, first.crops, is_trained)
    assert again.network.pool.config == first.network.pool.config
    assert torch.equal(again.logits(split, 0), first.logits(split, 0))
    size = (tmp_path / WEIGHTS).stat().st_size
    assert (size > sum(value.nbytes for value in first.network.backbone.state_dict().values())) or not is_trained


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_model_of_version_0_1_is_read(is_trained, split, tmp_path):
    first = make_model("SOP+SC+AsinhE", is_trained, asinhe_gamma=7.0, reduce_to=4)
    pool = dict(vars(first.network.pool.config))
    pool["gamma_prime"], pool["eta_prime"] = pool.pop("asinhe_gamma"), pool.pop("sigme_eta")
    weights = {
        name.replace(".pool.", "."): value
        for name, value in first.network.state_dict().items()
        if not name.endswith("_extra_state")
    }
    if not is_trained:
        weights = {name: value for name, value in weights.items() if not name.startswith(inference.FROZEN_PARTS)}
    state = {
        "format": 1,
        "pipeline": "vision",
        "pool": pool,
        "crops": vars(first.crops),
        "classes": list(CLASSES),
        "backbone": {"name": "tiny", "digest": first.backbone.digest(), "is_trained": is_trained},
        "weights": weights,
    }
    save_state(tmp_path / OLD_MODEL, state)
    again = load_run(tmp_path)
    assert again.network.pool.config.asinhe_gamma == 7.0
    assert torch.equal(again.logits(split, 0), first.logits(split, 0))
    for name in ("pool", "crops", "classes", "backbone", "weights"):
        save_state(tmp_path / OLD_MODEL, {**state, name: {"junk": 5}})
        with pytest.raises(RecordError, match=r"model\."):
            load_run(tmp_path)


def test_logits_are_those_of_a_forward(split):
    one = make_model()
    crops = torch.stack([one.crops(split.read(number)) for number in range(len(split))])
    with torch.no_grad():
        expected = one.network(crops)
    told: list[int] = []
    torch.testing.assert_close(one.logits(split, 0, told.append), expected, rtol=1e-4, atol=1e-4)
    assert told[-1] == len(split)
    many = split + split + split  # enough for worker processes
    # Products of other batch sizes may round differently.
    torch.testing.assert_close(one.logits(many, 2)[: len(split)], one.logits(split, 0), rtol=1e-5, atol=1e-5)


def test_the_spectrum_is_that_of_the_pooled_maps(textures):
    (first, *others) = load_images(textures).splits.values()
    images, own = sum(others, start=first), make_model("SOP+SC+SpecMaxExpF", is_trained=True)
    state = torch.get_rng_state()
    found = own.spectrum(images, "cpu")
    assert torch.equal(torch.get_rng_state(), state)
    chosen = spread_out(len(images)).tolist()
    assert (len(images), found.samples) == (30, 16)
    pool, shares = own.network.pool, []
    for number in chosen:
        with torch.no_grad():
            maps = own.network.maps(own.crops(images.read(number))[None])[0]
        values = torch.linalg.eigvalsh(pool.normalization.moment(*pool.feature_set(maps))).flip(0)
        shares.append(values / values.sum())
    torch.testing.assert_close(torch.tensor(found.before), torch.stack(shares).mean(0).float(), rtol=1e-2, atol=1e-4)
    assert make_model("FOP").spectrum(images, "cpu") is None


def test_a_backbone_that_has_changed_is_refused_and_another_can_be_given(saved, split, monkeypatch):
    use_tiny(monkeypatch, seed=1)
    with pytest.raises(RecordError, match="tiny"):
        load_run(saved)
    again = load_run(saved, backbone=tiny_backbone())
    assert torch.equal(again.logits(split, 0), make_model().logits(split, 0))


# ---- files that others hand to us ------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [None, {"name": 5}], ids=repr)
@pytest.mark.parametrize("name", ["format", "task", "pool", "crops", "classes", "backbone"])
def test_a_field_of_another_type_is_refused(saved, name, junk):
    change_spec(saved, **{name: junk})
    with pytest.raises(RecordError, match=MODEL):
        load_run(saved)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("crops", {"size": 30_000}),
        ("crops", {"resize": 10**9}),
        ("pool", {"pivots": 10**9}),
        ("pool", {"reduce_to": 10**9}),
        ("pool", {"reduce_to": 60_000}),  # in range, but the weights have other shapes
        ("pool", {"method": "SOP+SC+NewtonSchulz", "iterations": 10**9}),
    ],
)
def test_absurd_sizes_are_refused_before_memory_is_allocated(saved, name, changes):
    spec = json.loads((saved / MODEL).read_text())[name]
    change_spec(saved, **{name: {**spec, **changes}})
    with pytest.raises(RecordError, match=MODEL):
        load_run(saved)


def test_weights_that_do_not_fit_are_refused(saved):
    change_spec(saved, classes=["a", "b"])
    with pytest.raises(RecordError, match=r"classifier\.bias"):
        load_run(saved)
    change_spec(saved, classes=["a", "a", "b"])
    with pytest.raises(RecordError, match="classes"):
        load_run(saved)


# ---- evaluations -----------------------------------------------------------------------------------------------------


def answers(classes: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (count,), generator=generator)
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), targets] += 1.5
    return logits, targets


def evaluate(logits: Tensor, targets: Tensor, names: object = None) -> VisionEvaluation:
    names = [f"class {number}" for number in range(logits.shape[1])] if names is None else names
    return VisionEvaluation.of("SOP", "test", logits, targets, list(names))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 10**6))
def test_an_evaluation_is_what_counting_image_by_image_gives(classes: int, count: int, seed: int) -> None:
    logits, targets = answers(classes, count, seed)
    table = [[0] * classes for _ in range(classes)]
    first = among = 0
    loss = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        order = sorted(range(classes), key=lambda place: -row[place])
        table[target][order[0]] += 1
        first += order[0] == target
        among += target in order[:5]
        loss += math.log(sum(math.exp(value) for value in row)) - row[target]
    found = evaluate(logits, targets).plain()
    assert found["confusion"] == table
    assert found["count"] == count
    assert found["top1"] == pytest.approx(100 * first / count)
    assert found["top5"] == pytest.approx(100 * among / count)
    assert found["loss"] == pytest.approx(loss / count)
    for number, own in enumerate(found["accuracy_by_class"].values()):
        size = sum(table[number])
        assert own["count"] == size
        assert own["accuracy"] == (pytest.approx(100 * table[number][number] / size) if size else None)
    cells = {
        (f"class {row}", f"class {column}"): value
        for row, values in enumerate(table)
        for column, value in enumerate(values)
        if row != column and value
    }
    assert [pair["count"] for pair in found["confused"]] == sorted(cells.values(), reverse=True)[:PAIRS]
    assert all(cells[pair["class"], pair["said"]] == pair["count"] for pair in found["confused"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_tables_start_with_the_worst_class() -> None:
    logits = torch.eye(4)[[0, 1, 2, 0, 2, 2]]
    names = ["all", "half", "most", "none"]
    classes, pairs = evaluate(logits, torch.tensor([0, 1, 1, 2, 2, 2]), names).tables()
    assert [row[0] for row in classes.rows] == ["half", "most", "all", "none"]
    assert classes.rows[0] == ("half", "2", "50.0", "most (1)")
    assert classes.rows[-1] == ("none", "0", "-", "")
    assert "66.67 %" in classes.title
    assert pairs.rows[0] == ("half", "most", "1", "50.0")
    assert len(evaluate(torch.eye(3), torch.arange(3)).tables()) == 1  # nothing is confused


def test_of_many_classes_the_worst_are_listed() -> None:
    classes = evaluate(*answers(102, 500)).tables()[0]
    assert len(classes.rows) == ROWS
    assert "102" in classes.caption
