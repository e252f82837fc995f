"""Trained networks in files: the same scores again, and what is no such file refused."""

from __future__ import annotations

import pytest
import torch

from powerpool.errors import RecordError
from powerpool.files import write_json
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.model import make_network
from powerpool.tasks.fewshot.runs import Pictures, TrainedModel, load_run, pretrained_weights
from tests.pipelines.fewshot.samples import small_config, stripe_set


def make(method="SoSN(x+L)+SC+SigmE", **parameters):
    network = make_network(ModelConfig(method, hidden=8, **parameters), channels=1, size=16)
    return TrainedModel(network.eval(), Pictures(16, 1, "squeeze", False))


@pytest.mark.parametrize("method", ["SoSN(x+L)+SC+SigmE", "RelationNet", "NCM(x+L)+SpecMaxExpF", "PrototypicalNet"])
def test_a_model_that_was_read_says_the_same(tmp_path, method):
    model = make(method)
    model.save(tmp_path / "model.pt")
    again = load_run(tmp_path)
    support, query = [torch.rand(2, 1, 16, 16), torch.rand(3, 1, 16, 16)], torch.rand(5, 1, 16, 16)
    assert torch.equal(model.scores(support, query), again.scores(support, query))
    assert again.pictures == model.pictures
    assert again.network.config == model.network.config


@pytest.mark.parametrize("method", ["SoSN(x)+SigmE", "RelationNet", "PrototypicalNet"])
def test_scores_of_classes_of_one_size_are_those_of_the_episode(method):
    model = make(method)
    support, query = torch.rand(3, 2, 1, 16, 16), torch.rand(5, 1, 16, 16)
    with torch.no_grad():
        wanted = model.network(support, query)
    torch.testing.assert_close(model.scores(list(support), query, batch_size=2), wanted, rtol=1e-4, atol=1e-5)


def test_a_folder_without_a_model_says_what_to_do(tmp_path):
    with pytest.raises(RecordError, match="powerpool train fewshot --out"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RecordError, match=r"holds no model.pt"):
        load_run(tmp_path)


def test_what_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.pt"
    save_state(path, {"pipeline": "graph", "format": 1})
    with pytest.raises(RecordError, match="no model of few-shot learning: it has pipeline 'graph'"):
        TrainedModel.load(path)
    make().save(path)
    state = load_state(path)
    state["weights"].pop("encoder.0.0.weight")
    save_state(path, state)
    with pytest.raises(RecordError, match="damaged model"):
        TrainedModel.load(path)


def test_pretrained_weights_are_those_of_the_run(tmp_path):
    model = make("SoSN(x)+SigmE")
    model.save(tmp_path / "model.pt")
    config = small_config("SoSN(x)+SigmE", pretrained=str(tmp_path))
    found = pretrained_weights(config, stripe_set())
    assert all(torch.equal(found[name], value) for name, value in model.network.state_dict().items())
    assert pretrained_weights(small_config("SoSN(x)+SigmE"), stripe_set()) is None


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"method": "SoSN(x)+AsinhE"}, r"model.method SoSN\(x\)\+SC\+SigmE"),
        ({"model": {"hidden": 4}}, "model.hidden 8"),
        ({"channels": 3}, r"encoder.0.0.weight has the shape \(8, 1, 3, 3\), needed is \(8, 3, 3, 3\)"),
        ({"model": {"pivots": 30}}, "5 pivots"),
    ],
)
def test_pretrained_weights_that_do_not_fit_are_refused(tmp_path, changes, said):
    make("SoSN(x)+SC+SigmE").save(tmp_path / "model.pt")
    config = small_config(**{"method": "SoSN(x)+SC+SigmE", "pretrained": str(tmp_path), **changes})
    with pytest.raises(RecordError, match=said):
        pretrained_weights(config, stripe_set())


def test_another_size_of_pictures_is_no_hindrance_where_shapes_do_not_depend_on_it(tmp_path):
    make("SoSN(x)+SigmE").save(tmp_path / "model.pt")
    config = small_config("SoSN(x)+SigmE", pretrained=str(tmp_path), size=32)
    assert pretrained_weights(config, stripe_set()) is not None


def test_classes_that_may_have_been_trained_on_are_not_tested_on(tmp_path):
    make("SoSN(x)+SigmE").save(tmp_path / "model.pt")
    config = small_config("SoSN(x)+SigmE", pretrained=str(tmp_path))
    for name, digest in (("stripes", "digest 0"), ("others", "digest 5")):  # the same division, and another set
        write_json(tmp_path / "data.json", {"name": name, "digest": digest})
        assert pretrained_weights(config, stripe_set()) is not None
    write_json(tmp_path / "data.json", {"name": "stripes", "digest": "digest 5"})
    with pytest.raises(RecordError, match="may have been trained on there"):
        pretrained_weights(config, stripe_set())


def test_a_model_of_centred_pictures_knows_it(tmp_path):
    pictures = Pictures.of(small_config(problem="p1->p2"))
    assert pictures.centred
    assert not Pictures.of(small_config()).centred
    TrainedModel(make().network, pictures).save(tmp_path / "model.pt")
    assert load_run(tmp_path).pictures.centred
