"""Trained networks in run folders: the same scores again, files of version 0.1, and hostile files refused."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerpool.errors import RecordError
from powerpool.files import write_json
from powerpool.runs.folder import load_state, save_state
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.inference import ImageFormat, TrainedModel, load_run, read_pretrained
from powerpool.tasks.fewshot.model import make_network
from powerpool.tasks.fewshot.results import describe_accuracy
from powerpool.tasks.fewshot.task import TASK
from tests.tasks.fewshot.samples import small_config, stripe_set

OLD_RUN = Path(__file__).parents[2] / "fixtures" / "runs" / "fewshot"


def make(method="SoSN(x+L)+SC+SigmE", **parameters):
    network = make_network(ModelConfig(method, hidden=8, **parameters), channels=1, size=16)
    return TrainedModel(network.eval(), ImageFormat(16, 1, "squeeze", False))


@pytest.mark.parametrize("method", ["SoSN(x+L)+SC+SigmE", "RelationNet", "NCM(x+L)+SpecMaxExpF", "PrototypicalNet"])
def test_a_model_is_loaded_as_it_was_saved(tmp_path, method):
    model = make(method, beta=0.5 if "SoSN" in method else 0.0)
    model = replace(model, images=ImageFormat.of(small_config(problem="p1->p2")))
    assert model.images.centred
    TASK.save(model, tmp_path)
    again = load_run(tmp_path)
    support, query = [torch.rand(2, 1, 16, 16), torch.rand(3, 1, 16, 16)], torch.rand(5, 1, 16, 16)
    assert torch.equal(model.scores(support, query), again.scores(support, query))
    assert again.spec == model.spec


@pytest.mark.parametrize("method", ["SoSN(x)+SigmE", "RelationNet", "PrototypicalNet"])
def test_scores_of_equally_large_classes_are_those_of_an_episode(method):
    model = make(method)
    support, query = torch.rand(3, 2, 1, 16, 16), torch.rand(5, 1, 16, 16)
    with torch.no_grad():
        wanted = model.network(support, query)
    torch.testing.assert_close(model.scores(list(support), query, batch_size=2), wanted, rtol=1e-4, atol=1e-5)


def test_a_model_of_version_0_1_is_loaded(tmp_path):
    model, state = load_run(OLD_RUN), load_state(OLD_RUN / "model.pt")
    assert model.network.config == ModelConfig("SoSN(x+L)+SC+SigmE", hidden=8, pivots=2, padding=True)
    assert model.images == ImageFormat(28, 1, "squeeze", True)
    for name, value in state["weights"].items():
        assert torch.equal(value, model.network.state_dict()[name])
    state["config"] |= {"eta_prime": 7.0, "gamma_prime": 8.0}
    save_state(tmp_path / "model.pt", state)
    config = load_run(tmp_path).network.config
    assert (config.sigme_eta, config.asinhe_gamma) == (7.0, 8.0)
    for name, value in (("config", {"hidden": 60_000}), ("pictures", {"size": 30_000})):
        save_state(tmp_path / "model.pt", {**state, name: state[name] | value})
        with pytest.raises(RecordError, match=r"model\.(pt|json)"):
            load_run(tmp_path)


@pytest.mark.parametrize(
    "group, edit",
    [
        ("config", {"hidden": 60_000}),
        ("config", {"hidden": 2**40}),
        ("config", {"pivots": 10**9}),
        ("config", {"method": "SoSN"}),
        ("config", {"sigme_eta": "many"}),
        ("images", {"size": 30_000}),
        ("images", {"channels": 10**6}),
        ("images", {"resize": "stretch"}),
    ],
)
def test_hostile_sizes_are_refused_before_memory_is_allocated(tmp_path, group, edit):
    TASK.save(make(), tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    content[group] |= edit
    (tmp_path / "model.json").write_text(json.dumps(content))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordError, match=r"model\.json"):
        load_run(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_pretrained_weights_are_those_of_the_run(tmp_path):
    model = make("SoSN(x)+SigmE")
    TASK.save(model, tmp_path)
    config = small_config("SoSN(x)+SigmE", pretrained=str(tmp_path))
    found = read_pretrained(config, stripe_set())
    saved = model.network.state_dict()
    assert set(saved) - set(found) == {"descriptor.curve._extra_state"}
    assert all(torch.equal(value, saved[name]) for name, value in found.items())
    make_network(replace(config.model, sigme_eta=7.0), config.channels, config.size).load_state_dict(found)
    assert read_pretrained(replace(config, size=32), stripe_set()) is not None  # no shape depends on the size
    assert read_pretrained(small_config("SoSN(x)+SigmE"), stripe_set()) is None


@pytest.mark.parametrize(
    "changes, shown",
    [
        ({"method": "SoSN(x)+AsinhE"}, "model.method"),
        ({"model": {"hidden": 4}}, "model.hidden 8"),
        ({"channels": 3}, "encoder.0.0.weight"),
        ({"model": {"pivots": 30}}, "5 pivots"),
        ({"method": "PrototypicalNet", "pretrained_part": "encoder"}, "other padding and pooling"),
    ],
)
def test_pretrained_weights_that_do_not_fit_are_refused(tmp_path, changes, shown):
    TASK.save(make("SoSN(x)+SC+SigmE"), tmp_path)
    config = small_config(**{"method": "SoSN(x)+SC+SigmE", "pretrained": str(tmp_path), **changes})
    with pytest.raises(RecordError, match=shown):
        read_pretrained(config, stripe_set())


def test_a_model_that_may_have_seen_test_classes_is_refused(tmp_path):
    TASK.save(make("SoSN(x)+SigmE"), tmp_path)
    config = small_config("SoSN(x)+SigmE", pretrained=str(tmp_path))
    for name, digest in (("stripes", "digest 0"), ("others", "digest 5")):  # the same classes, and another data set
        write_json(tmp_path / "data.json", {"name": name, "digest": digest})
        assert read_pretrained(config, stripe_set()) is not None
    write_json(tmp_path / "data.json", {"name": "stripes", "digest": "digest 5"})
    with pytest.raises(RecordError, match="stripes"):
        read_pretrained(config, stripe_set())


def test_a_mean_is_shown_with_half_of_its_interval():
    # 2.776 is the 97.5 % quantile of Student's t with 4 degrees of freedom.
    assert describe_accuracy([40.0, 50.0, 60.0, 70.0, 80.0]) == f"60.00 ± {2.77645 * (250 / 5) ** 0.5:.2f}"
    assert describe_accuracy([40.0]) == "40.00"
