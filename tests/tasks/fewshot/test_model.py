"""Networks against their definitions, computed pair by pair and image by image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import powerpool as pp
from powerpool.errors import ShapeError
from powerpool.tasks.fewshot import model
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.model import make_network, map_side, relation_encoder
from powerpool.tasks.training import use_batch_statistics

METHODS = (
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


def change_statistics(network):
    """Give batch normalization statistics as after some training."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.2, 0.2)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.bias, -0.2, 0.2)


@pytest.mark.parametrize("method", METHODS)
def test_scores_have_gradients_for_all_weights_and_images_are_encoded_at_once(method):
    network, calls = make(method), []
    network.encoder.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    scores = network(*episode())
    assert scores.shape == (4, 3)
    assert calls == [10]
    network.loss(network.logits(*episode()), torch.tensor([0, 1, 2, 0])).backward()
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


@pytest.mark.parametrize("size, channels", [(84, 3), (16, 1)])
@pytest.mark.parametrize("method", ["RelationNet", "SoSN(x+L)+SC+SigmE", "PrototypicalNet", "NCM(x+L)"])
def test_images_of_every_size_can_be_compared(method, size, channels):
    network = make(method, hidden=4, channels=channels, size=size).eval()
    with torch.no_grad():
        assert network(*episode(2, 1, 2, channels, size)).shape == (2, 2)


def test_with_the_same_seed_encoders_have_the_same_weights():
    one, *others = (make(method, seed=3).encoder.state_dict() for method in METHODS if method != "PrototypicalNet")
    for other in others:
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["0.0.weight"], make("RelationNet", seed=4).encoder.state_dict()["0.0.weight"])


@pytest.mark.parametrize(
    "method, curve, mode, variant",
    [
        ("SoSN(x)+SigmE", pp.SigmE(500.0), "elementwise", "outer"),
        ("SoSN(x+L)+SpecMaxExpF", pp.MaxExp(20.0), "spectral", "outer+L"),
        ("SoSN(x+P)+SC+SpecGamma", pp.Gamma(0.5), "spectral", "outer+P"),
        ("SoSN(x+L)+SC+SigmE", pp.SigmE(500.0), "elementwise", "outer+L"),
    ],
)
def test_sosn_equals_its_definition_for_every_pair(method, curve, mode, variant):
    network = make(method).double().eval()
    change_statistics(network)
    support, query = (images.double() for images in episode())
    found = network(support, query)
    descriptor = pp.nn.RelationDescriptor(curve, mode, variant)
    grid = pp.spatial_coordinates(5, 5, 5, 0.5, 0.5, dtype=torch.float64) if "SC" in method else None
    first = network.pairs
    for place, one in enumerate(query):
        for label, examples in enumerate(support):
            maps = network.encoder(torch.cat([examples, one[None]]))
            both = descriptor(maps[:-1].flatten(2), maps[-1].flatten(1), grid)[None]  # (1, 2, K', K')
            hidden = nn.functional.max_pool2d(first.norm(first.convolution(both)), 2).relu()
            wanted = network.score(network.similarity(hidden)).sigmoid()
            torch.testing.assert_close(found[place, label], wanted.squeeze(), rtol=1e-8, atol=1e-10)


def test_relation_net_equals_its_definition_for_every_pair():
    network = make("RelationNet").double().eval()
    change_statistics(network)
    support, query = (images.double() for images in episode())
    found = network(support, query)
    for place, one in enumerate(query):
        for label, examples in enumerate(support):
            maps = network.encoder(torch.cat([examples, one[None]]))
            wanted = network.score(network.relation(torch.cat([maps[:-1].mean(0), maps[-1]])[None])).sigmoid()
            torch.testing.assert_close(found[place, label], wanted.squeeze())


@pytest.mark.parametrize("method, second_order", [("PrototypicalNet", False), ("NCM(x+L)+SpecMaxExpF", True)])
def test_distances_are_those_to_class_means(method, second_order):
    network = make(method).double().eval()
    change_statistics(network)
    support, query = (images.double() for images in episode())
    found = network(support, query)

    def vector(image):
        maps = network.encoder(image[None])[0]
        if not second_order:
            return maps.flatten()
        return pp.to_vector(pp.second_order_pool(maps.flatten(1), pp.MaxExp(20.0), "spectral"))

    scale = network.log_scale.exp() if second_order else 1
    for place, one in enumerate(query):
        for label, examples in enumerate(support):
            centre = torch.stack([vector(image) for image in examples]).mean(0)
            torch.testing.assert_close(found[place, label], -scale * (vector(one) - centre).square().sum())


def test_distances_have_exact_gradients_and_are_float32_under_autocast(monkeypatch):
    network = make("PrototypicalNet")
    monkeypatch.setattr(network, "vectors", lambda maps: maps)
    torch.manual_seed(0)
    classes, query, weights = (torch.randn(*shape).double() for shape in ((5, 30), (7, 30), (7, 5)))
    pair = (classes.requires_grad_(), query.requires_grad_())
    direct = -torch.cdist(query, classes).square()
    found, wanted = (
        torch.autograd.grad((distances * weights).sum(), pair) for distances in (network.match(*pair), direct)
    )
    torch.testing.assert_close(found, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        far = network.match(*(vectors.detach().float() + 1000 for vectors in pair))
    torch.testing.assert_close(far.double(), direct, rtol=1e-3, atol=0)  # what adding 1000 rounds away


def test_with_one_shot_the_variants_are_equal():
    support, query = episode(shot=1)
    one, *others = (make(f"SoSN({variant})+SigmE").eval()(support, query) for variant in ("x", "x+L", "x+P"))
    for other in others:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", ["RelationNet", "NCM(x+L)+SigmE", "SoSN(x+L)+SC+AsinhE"])
def test_in_evaluation_pairs_are_compared_in_parts_and_queries_are_independent(method, monkeypatch):
    network, (support, query) = make(method).eval(), episode(queries=12)
    change_statistics(network)
    matched, encoded, match, encode = [], [], network.match, network.encode
    monkeypatch.setattr(network, "match", lambda classes, part: matched.append(len(part)) or match(classes, part))
    monkeypatch.setattr(network, "encode", lambda images: encoded.append(len(images)) or encode(images))
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        whole = network(support, query)
        monkeypatch.setattr(model, "PAIRS", 16)
        monkeypatch.setattr(model, "IMAGES", 10)
        parts = network(support, query)
        assert (matched, encoded) == ([12, 5, 5, 2], [18, 10, 8])
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(network(support, query[:1]), whole[:1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(network(support[order], query), whole[:, order], rtol=1e-4, atol=1e-5)
        del matched[:], encoded[:]
        with use_batch_statistics(network):  # those of the whole episode
            network(support, query)
        network.train()(support, query)
    assert (matched, encoded) == ([12, 12], [18, 18])


def test_the_loss_of_pairs_is_the_mean_squared_error():
    scores, targets = torch.tensor([[0.9, 0.2], [0.4, 0.7]]), torch.tensor([0, 0])
    wanted = (0.1**2 + 0.2**2 + 0.6**2 + 0.7**2) / 4
    assert make("RelationNet").loss(scores.logit(), targets).item() == pytest.approx(wanted)


def test_images_of_different_sizes_are_refused():
    with pytest.raises(ShapeError, match="20"):
        make("RelationNet")(torch.rand(2, 1, 1, 28, 28), torch.rand(3, 1, 20, 20))
    with pytest.raises(ShapeError, match=r"\(2, 1, 28, 28\)"):
        make("RelationNet")(torch.rand(2, 1, 28, 28), torch.rand(3, 1, 28, 28))


# ---- the published form ----------------------------------------------------------------------------------------------


def test_the_published_similarity_network_has_no_padding():
    """64 x 64 matrices become maps of side 31, 14, 6 and 2, and the linear layer has 256 inputs."""
    network = make_network(ModelConfig("SoSN(x)+SigmE"), channels=3, size=84)
    maps = network.pairs(torch.rand(2, 64, 64), torch.rand(3, 64, 64))
    sides = [maps.shape[-1]]
    for block in network.similarity:
        maps = block(maps)
        sides.append(maps.shape[-1])
    assert sides == [31, 14, 6, 2]
    first, last = (layer for layer in network.score if isinstance(layer, torch.nn.Linear))
    assert first.in_features == 256
    for layer in (first, last):
        assert torch.equal(layer.bias, torch.ones_like(layer.bias))
    assert 0.008 < float(first.weight.detach().std()) < 0.012
    assert network.clip == 0


def test_the_padded_form_is_that_of_version_0_1():
    network = make_network(ModelConfig("SoSN(x)+SigmE", padding=True), channels=3, size=84)
    assert network.score[1].in_features == 1024


@pytest.mark.parametrize("hidden", [2, 4, 8, 16, 64])
def test_small_matrices_are_padded_where_they_would_vanish(hidden):
    network = make_network(ModelConfig("SoSN(x)+SigmE", hidden=hidden), channels=1, size=28)
    assert network(torch.rand(3, 1, 1, 28, 28), torch.rand(2, 1, 28, 28)).shape == (2, 3)
