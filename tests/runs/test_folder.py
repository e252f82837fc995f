"""Run folders: the same run is resumed, another one refused; models are stored without code and checked before use."""

from __future__ import annotations

import json
import pickle
import resource
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import powerpool as pp
from powerpool.errors import ArgumentError, RecordError
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
    load_state,
    open_run,
    read_identity,
    read_model,
    require_same_data,
    save_model,
    save_state,
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


def test_the_fixed_parameter_of_a_curve_is_compared(tmp_path):
    def pool(eta: float) -> nn.Module:
        return nn.Sequential(pp.nn.SecondOrderPool2d(4, pp.MaxExp(eta), reduce_to=3))

    save_model(tmp_path, "graph", Spec(Config(4)), pool(20).state_dict())
    weights = Weights.open(tmp_path / WEIGHTS)
    loaded = build_network(lambda: pool(20), weights, MODEL)
    assert torch.equal(loaded[0].reduction[0].weight, weights.read()["0.reduction.0.weight"])
    with pytest.raises(RecordError, match=r"model\.json.*eta=20.*eta=5"):
        build_network(lambda: pool(5), weights, MODEL)
    without = Weights.of({"0.reduction.0.weight": weights.read()["0.reduction.0.weight"]})  # as of version 0.1
    assert build_network(lambda: pool(5), without, MODEL)[0].curve.eta == 5
    long = Weights.of({**weights.read(), "0.curve._extra_state": torch.zeros(10_000, dtype=torch.uint8)})
    with pytest.raises(RecordError, match=r"\(0\.curve\._extra_state\)"):  # by its size, without being read
        build_network(lambda: pool(20), long, MODEL)


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


# ---- checkpoints ----


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path):
    state = {
        "weights": {"a": torch.randn(3, 2), "half": torch.randn(2).half(), "odd": torch.tensor([-0.0, torch.inf])},
        "random": [torch.get_rng_state()],
        "curves": {"loss": [0.1 + 0.2, 1e-300], "none": None},
        "epoch": 3,
        "names": ["x", "y"],
    }
    save_state(tmp_path / "new" / "state.pt", state)
    loaded = load_state(tmp_path / "new" / "state.pt")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["state.pt"]
    for name, value in state["weights"].items():
        assert loaded["weights"][name].dtype == value.dtype
        assert torch.equal(loaded["weights"][name], value)
    assert torch.equal(loaded["random"][0], state["random"][0])
    assert (loaded["curves"], loaded["epoch"], loaded["names"]) == (state["curves"], 3, ["x", "y"])


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    save_state(tmp_path / "state.pt", {"epoch": 1})
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save_state(tmp_path / "state.pt", {"epoch": lambda: 2})
    assert load_state(tmp_path / "state.pt") == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]


def test_a_file_that_was_cut_off_or_is_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    save_state(path, {"weights": torch.randn(100)})
    whole = path.read_bytes()
    cut = [whole[: int(kept * len(whole))] for kept in (0.0, 0.1, 0.5, 0.9, 0.999)]
    for content in (*cut, b"\0" * 100, b"PK\x03\x04", b"\x80\x02.", b"{}"):
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"state\.pt"):
            load_state(path)


def test_a_file_that_cannot_be_read_or_holds_no_dictionary_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"nowhere\.pt"):
        load_state(tmp_path / "nowhere.pt")
    with pytest.raises(RecordError, match=tmp_path.name):
        load_state(tmp_path)
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(RecordError, match=r"tensor\.pt.*Tensor"):
        load_state(tmp_path / "tensor.pt")
