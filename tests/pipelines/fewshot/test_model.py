"""Networks against what their definitions say, written out pair by pair and picture by picture."""

from __future__ import annotations

import pytest
import torch
from powerpool.tasks.batch_norm import statistics_of_batches
from powerpool.tasks.fewshot.methods import METHODS
from torch import nn

import powerpool as pp
from powerpool.errors import ShapeError
from powerpool.tasks.fewshot import model
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.model import make_network, map_side, prototypical_encoder, relation_encoder

SOME = (
    "RelationNet",
    "PrototypicalNet",
    "NCM(x+L)+SigmE",
    "SoSN(x)",
    "SoSN(x)+MaxExp",
    "SoSN(x+L)+SC+AsinhE",
    "SoSN(x+P)+SpecMaxExpF",
    "SoSN(x+L)+SC+SpecHDP",
)


def make(method, *, hidden=8, channels=1, size=28, seed=0, **parameters):
    torch.manual_seed(seed)
    return make_network(ModelConfig(method, hidden=hidden, **parameters), channels, size)


def episode(way=3, shot=2, queries=4, channels=1, size=28, seed=1):
    torch.manual_seed(seed)
    return torch.rand(way, shot, channels, size, size), torch.rand(queries, channels, size, size)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_scores_and_learns(method):
    network = make(method)
    support, query = episode()
    scores = network(support, query)
    assert scores.shape == (4, 3)
    network.loss(scores, torch.tensor([0, 1, 2, 0])).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    assert network.encoder[0][0].weight.grad.any()


@pytest.mark.parametrize("size, side", [(28, 5), (84, 19), (224, 54), (10, 1)])
def test_the_encoder_is_that_of_relation_net(size, side):
    encoder = relation_encoder(1, 4)
    assert encoder(torch.rand(2, 1, size, size)).shape == (2, 4, side, side)
    assert map_side(size) == side
    layers = [type(layer) for block in encoder for layer in block if not isinstance(layer, nn.MaxPool2d)]
    assert layers == 4 * [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]


def test_the_encoder_of_prototypical_net_pools_four_times():
    assert prototypical_encoder(3, 4)(torch.rand(2, 3, 84, 84)).shape == (2, 4, 5, 5)


@pytest.mark.parametrize("size, channels", [(84, 3), (28, 1), (224, 3), (32, 3)])
@pytest.mark.parametrize("method", ["RelationNet", "SoSN(x+L)+SC+SigmE", "PrototypicalNet", "NCM(x+L)"])
def test_pictures_of_every_size_and_kind_can_be_compared(method, size, channels):
    network = make(method, hidden=4, channels=channels, size=size).eval()
    support, query = episode(2, 1, 2, channels, size)
    with torch.no_grad():
        assert network(support, query).shape == (2, 2)


def test_after_the_same_seed_encoders_have_the_same_weights():
    one, *others = (make(method, seed=3).encoder.state_dict() for method in SOME if method != "PrototypicalNet")
    for other in others:
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["0.0.weight"], make("RelationNet", seed=4).encoder.state_dict()["0.0.weight"])


@pytest.mark.parametrize("method", SOME)
def test_all_pictures_go_through_the_encoder_at_once(method):
    network = make(method)
    calls = []
    network.encoder.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    network(*episode(way=3, shot=2, queries=4))
    assert calls == [10]


@pytest.mark.parametrize("variant", ["x", "x+L", "x+P"])
@pytest.mark.parametrize("curve", ["+SigmE", "+SpecMaxExpF", "+SC+SpecGamma"])
def test_sosn_is_what_it_says_pair_by_pair(variant, curve):
    network = make(f"SoSN({variant}){curve}").double().eval()
    _use(network)
    support, query = (pictures.double() for pictures in episode())
    found = network(support, query)
    kinds = {"x": "outer", "x+L": "outer+L", "x+P": "outer+P"}
    curves = {"+SigmE": pp.SigmE(500.0), "+SpecMaxExpF": pp.MaxExp(20.0), "+SC+SpecGamma": pp.Gamma(0.5)}
    mode = "elementwise" if curve == "+SigmE" else "spectral"
    descriptor = pp.nn.RelationDescriptor(curves[curve], mode, kinds[variant])
    grid = pp.spatial_coordinates(5, 5, 5, 0.5, 0.5, dtype=torch.float64) if "SC" in curve else None
    first = network.pairs
    for place, one in enumerate(query):
        for label, shown in enumerate(support):
            maps = network.encoder(torch.cat([shown, one[None]]))
            both = descriptor(maps[:-1].flatten(2), maps[-1].flatten(1), grid)[None]  # (1, 2, K', K')
            hidden = nn.functional.max_pool2d(first.norm(first.convolution(both)), 2).relu()
            wanted = network.score(network.similarity(hidden))
            torch.testing.assert_close(found[place, label], wanted.squeeze(), rtol=1e-8, atol=1e-10)


def test_relation_net_is_what_it_says_pair_by_pair():
    network = make("RelationNet").double().eval()
    _use(network)
    support, query = (pictures.double() for pictures in episode())
    found = network(support, query)
    for place, one in enumerate(query):
        for label, shown in enumerate(support):
            maps = network.encoder(torch.cat([shown, one[None]]))
            both = torch.cat([maps[:-1].mean(0), maps[-1]])[None]
            wanted = network.score(network.relation(both))
            torch.testing.assert_close(found[place, label], wanted.squeeze())


@pytest.mark.parametrize("method, second_order", [("PrototypicalNet", False), ("NCM(x+L)+SpecMaxExpF", True)])
def test_distances_are_to_the_means_of_the_classes(method, second_order):
    network = make(method).double().eval()
    _use(network)
    support, query = (pictures.double() for pictures in episode())
    found = network(support, query)

    def vector(picture):
        maps = network.encoder(picture[None])[0]
        if not second_order:
            return maps.flatten()
        return pp.to_vector(pp.second_order_pool(maps.flatten(1), pp.MaxExp(20.0), "spectral"))

    scale = network.log_scale.exp() if second_order else 1
    for place, one in enumerate(query):
        for label, shown in enumerate(support):
            centre = torch.stack([vector(picture) for picture in shown]).mean(0)
            wanted = -scale * (vector(one) - centre).square().sum()
            torch.testing.assert_close(found[place, label], wanted)


def test_with_one_shot_the_variants_are_one_method():
    support, query = episode(shot=1)
    one, *others = (make(f"SoSN({variant})+SigmE").eval()(support, query) for variant in ("x", "x+L", "x+P"))
    for other in others:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", SOME)
def test_many_pairs_are_compared_in_parts_outside_of_training(method, monkeypatch):
    network, (support, query) = make(method).eval(), episode(queries=12)
    _use(network)
    matched, encoded, match, encode = [], [], network.match, network.encode
    monkeypatch.setattr(network, "match", lambda classes, part: matched.append(len(part)) or match(classes, part))
    monkeypatch.setattr(network, "encode", lambda pictures: encoded.append(len(pictures)) or encode(pictures))
    with torch.no_grad():
        whole = network(support, query)
        monkeypatch.setattr(model, "PAIRS", 16)
        monkeypatch.setattr(model, "PICTURES", 10)
        parts = network(support, query)
        assert (matched, encoded) == ([12, 5, 5, 2], [18, 10, 8])
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
        with statistics_of_batches(network):  # those of the whole episode
            network(support, query)
        network.train()(support, query)
    assert (matched[4:], encoded[3:]) == ([12, 12], [18, 18])


@pytest.mark.parametrize("method", SOME)
def test_in_evaluation_a_query_does_not_depend_on_the_others(method):
    network = make(method).eval()
    _use(network)
    support, query = episode()
    with torch.no_grad():
        torch.testing.assert_close(network(support, query)[:1], network(support, query[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", SOME)
def test_the_order_of_the_classes_is_that_of_the_scores(method):
    network = make(method).eval()
    support, query = episode()
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        torch.testing.assert_close(network(support[order], query), network(support, query)[:, order])


def test_the_loss_of_pairs_is_the_mean_squared_distance_to_the_truth():
    scores, targets = torch.tensor([[0.9, 0.2], [0.4, 0.7]]), torch.tensor([0, 0])
    wanted = (0.1**2 + 0.2**2 + 0.6**2 + 0.7**2) / 4
    assert make("RelationNet").loss(scores, targets).item() == pytest.approx(wanted)


def test_pictures_of_two_sizes_are_refused():
    with pytest.raises(ShapeError, match="of one size"):
        make("RelationNet")(torch.rand(2, 1, 1, 28, 28), torch.rand(3, 1, 20, 20))
    with pytest.raises(ShapeError, match=r"\(2, 1, 28, 28\)"):
        make("RelationNet")(torch.rand(2, 1, 28, 28), torch.rand(3, 1, 28, 28))


def _use(network):
    """Statistics of batch normalization that are not those of the start."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.2, 0.2)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.bias, -0.2, 0.2)
