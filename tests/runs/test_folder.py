"""Run folders: the same run is resumed, another one refused; models are stored without code and checked before use."""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from powerpool.errors import ArgumentError, RecordError
from powerpool.runs.checkpoint import save_state
from powerpool.runs.folder import (
    CONFIG,
    MODEL,
    OLD_MODEL,
    RECORD,
    WEIGHTS,
    DataIdentity,
    Weights,
    build_network,
    is_data_of,
    open_run,
    read_identity,
    read_model,
    require_same_data,
    save_model,
)

DATA = DataIdentity("MUTAG", "abc")


@dataclass(frozen=True)
class Config:
    """Settings of a run."""

    hidden: int = 8


@dataclass(frozen=True)
class Spec:
    """What a model is."""

    config: Config
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.config.hidden < 1:
            raise ArgumentError("hidden must be at least 1.")


def make(hidden: int) -> nn.Module:
    return nn.Linear(hidden, hidden)


def read(folder) -> nn.Module:
    stored = read_model(folder, "graph", Spec, lambda state: {"config": state["config"]})
    return build_network(lambda: make(stored.spec.config.hidden), stored.weights, folder)


def test_an_unfinished_run_is_resumed_and_others_are_refused(tmp_path):
    open_run(tmp_path, Config(), DATA, task="graph")
    open_run(tmp_path, Config(), DATA, task="graph")
    with pytest.raises(RecordError, match="other settings"):
        open_run(tmp_path, Config(9), DATA, task="graph")
    with pytest.raises(RecordError, match="changed"):
        open_run(tmp_path, Config(), DataIdentity("MUTAG", "other"), task="graph")
    (tmp_path / RECORD).touch()
    with pytest.raises(RecordError, match="finished"):
        open_run(tmp_path, Config(), DATA, task="graph")
    for name in ("checkpoints", "trials"):
        (tmp_path / name).mkdir()
    open_run(tmp_path, Config(9), DATA, task="graph", overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {CONFIG, "data.json"}
    assert (read_identity(tmp_path), is_data_of(tmp_path, "other")) == (DATA, False)
    with pytest.raises(RecordError, match="MUTAG"):
        require_same_data(DATA, "other")


def test_a_model_is_read_as_it_was_saved(tmp_path):
    network = make(4)
    save_model(tmp_path, "graph", Spec(Config(4), ("a",)), network.state_dict())
    found = read(tmp_path)
    assert all(torch.equal(found.state_dict()[name], value) for name, value in network.state_dict().items())
    assert not found.training


def test_a_model_of_version_0_1_is_read(tmp_path):
    network = make(4)
    state = {"format": 1, "pipeline": "graph", "config": {"hidden": 4}, "weights": network.state_dict()}
    save_state(tmp_path / OLD_MODEL, state)
    assert torch.equal(read(tmp_path).weight, network.weight)
    nested: dict = {}
    for _ in range(60):
        nested = {"a": nested, "b": nested}  # an exponential repr
    for edit in ({"pipeline": nested}, {"pipeline": "vision"}, {"format": 7}, {"weights": nested}, {"config": nested}):
        save_state(tmp_path / OLD_MODEL, state | edit)
        with pytest.raises(RecordError, match=r"model\.pt") as caught:
            read(tmp_path)
        assert len(str(caught.value)) < 500


def test_sizes_are_compared_before_memory_is_allocated(tmp_path):
    save_model(tmp_path, "graph", Spec(Config(4)), make(4).state_dict())
    data = json.loads((tmp_path / MODEL).read_text())
    data["config"]["hidden"] = 60_000  # weights of 14 GB
    (tmp_path / MODEL).write_text(json.dumps(data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordError, match="weight"):
        read(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@pytest.mark.parametrize(
    "edit", [{"task": "vision"}, {"format": 1}, {"config": {"hidden": 0}}, {"config": {"hidden": "4"}}, {"classes": 3}]
)
def test_an_edited_model_is_refused_by_file(tmp_path, edit):
    save_model(tmp_path, "graph", Spec(Config(4)), make(4).state_dict())
    (tmp_path / MODEL).write_text(json.dumps(json.loads((tmp_path / MODEL).read_text()) | edit))
    with pytest.raises(RecordError, match=r"model\.json"):
        read(tmp_path)


def test_damaged_and_missing_models_are_refused(tmp_path):
    with pytest.raises(RecordError, match="train graph"):
        read(tmp_path / "none")
    with pytest.raises(RecordError, match="train graph"):
        read(tmp_path)
    save_model(tmp_path, "graph", Spec(Config(4)), make(4).state_dict())
    (tmp_path / WEIGHTS).write_bytes(b"\xff" * 100)
    with pytest.raises(RecordError, match="safetensors"):
        read(tmp_path)


def test_weights_may_be_missing_only_where_that_is_expected():
    weights = Weights.of({"bias": torch.ones(3)})
    with pytest.raises(RecordError, match="weight"):
        build_network(lambda: make(3), weights, "file")
    assert torch.equal(build_network(lambda: make(3), weights, "file", optional=("weight",)).bias, torch.ones(3))
