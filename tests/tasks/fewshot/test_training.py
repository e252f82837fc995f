"""Training by episodes: reproducible, resumable, and on the right images; tests in episodes."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from powerpool.data import EpisodeError, Episodes, ImageBank
from powerpool.errors import NotFiniteError
from powerpool.runs.folder import load_state, save_state
from powerpool.tasks.fewshot.fitting import require_episodes
from powerpool.tasks.fewshot.model import MEAN_DISTANCE
from powerpool.tasks.fewshot.testing import TEST_SEED, compare_queries, draw_episodes, run_episodes
from powerpool.tasks.fewshot.training import Training
from tests.tasks.fewshot.samples import assert_same_weights, small_config, stripe_set, stripes, without_validation


@pytest.fixture(scope="module")
def data():
    return stripe_set()


def make(data, method="SoSN(x)+SigmE", **changes):
    return Training(small_config(method, **changes), data)


def assert_same(one: Training, two: Training) -> None:
    assert_same_weights(one.network, two.network)
    assert one.curves == two.curves
    assert (one.best.episode, one.best.score) == (two.best.episode, two.best.score)


def test_the_seed_determines_the_training_and_the_callers_generator_is_unchanged(data):
    one, two, other = make(data), make(data), make(data, seed=1)
    one.run()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    two.run()
    other.run()
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(one, two)
    assert other.curves.train_loss != one.curves.train_loss


@pytest.mark.parametrize(
    "method, stop", [("RelationNet", 1), ("NCM(x+L)+SigmE", 2), ("SoSN(x)+SpecMaxExpF", 3), ("SoSN(x)+SigmE", 5)]
)
def test_a_resumed_training_equals_one_that_was_not_stopped(data, tmp_path, method, stop):
    whole = make(data, method)

    def save(training):
        if training.done == stop:
            save_state(tmp_path / "state", training.state_dict())

    whole.run(save)
    resumed = make(data, method)
    resumed.load_state_dict(load_state(tmp_path / "state"))
    assert resumed.done == stop
    resumed.run()
    assert_same(whole, resumed)


CURVES = ["", "+SigmE", "+AsinhE", "+SpecMaxExpF", "+SpecGamma"]


@pytest.mark.parametrize("curve", CURVES)
def test_the_first_episode_of_every_curve_has_distances_of_the_same_mean(data, curve):
    training = make(data, f"NCM(x+L){curve}", training={"learning_rate": 1e-9})
    training._step()
    with torch.no_grad():
        logits, _ = compare_queries(training.network.train(), training.train, training.episodes[0])
    assert float(logits.mean()) == pytest.approx(-MEAN_DISTANCE, rel=1e-3)


def test_a_given_temperature_and_that_of_other_weights_are_kept(data):
    given = make(data, "NCM(x+L)+SigmE", model={"temperature": 3.0}, training={"learning_rate": 1e-9})
    weights = given.network.state_dict()
    started = Training(small_config("NCM(x+L)+SigmE", training={"learning_rate": 1e-9}), data, weights)
    both = small_config("NCM(x+L)+SigmE", model={"temperature": 5.0}, training={"learning_rate": 1e-9})
    for training, temperature in ((given, 3), (started, 3), (Training(both, data, weights), 5)):
        training._step()
        assert float(training.network.log_scale.detach()) == pytest.approx(-math.log(temperature), abs=1e-6)


def test_equal_images_leave_the_temperature_as_it_is(data):
    network = make(data, "NCM(x+L)").network
    network.set_temperature(torch.zeros(4, 2))
    assert float(network.log_scale.detach()) == 0


@pytest.mark.parametrize("method, least", [("NCM(x+L)+SigmE", 65), ("PrototypicalNet", 85)])  # chance is 50
def test_stripes_are_learnt(data, method, least):
    training = make(data, method, training={"episodes": 60, "validate_every": 20, "validation_episodes": 20})
    training.run()
    found = run_episodes(training.network, data["test"], draw_episodes(data["test"], training.config.test, 40))
    assert found.accuracy > least
    assert training.curves.episode == [20, 40, 60]
    assert training.curves.train_loss[-1] < training.curves.train_loss[0]


def test_the_best_validation_selects_the_weights_and_of_equal_ones_the_lower_loss(data):
    training = make(data)
    training.run()
    curves = training.curves
    order = [(value, -loss) for value, loss in zip(curves.validation_value, curves.validation_loss, strict=True)]
    assert training.best.episode == curves.episode[order.index(max(order))]
    for name, value in training.network.state_dict().items():
        assert torch.equal(value, training.best.weights[name])


def test_without_validation_the_last_weights_are_kept(data):
    for training in (
        Training(small_config(training={"validation_episodes": 0}), data),
        Training(small_config(), without_validation(data)),
    ):
        training.run()
        assert training.best is None
        assert training.curves.episode == [2, 4, 6]
        assert training.curves.validation_value == []


def test_the_learning_rate_falls_in_steps(data):
    training = make(data, training={"decay_every": 2, "decay_factor": 0.5, "learning_rate": 0.1})
    rates = []
    training.run(lambda one: rates.append(one.optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_the_learning_rate_falls_along_a_cosine(data):
    training = make(data, training={"schedule": "cosine", "learning_rate": 0.1})
    rates = []
    training.run(lambda one: rates.append(one.optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * done / 6)) for done in range(6)])


@pytest.mark.parametrize("method", ["NCM(x+L)+SigmE", "SoSN(x)+SigmE", "RelationNet"])
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_the_loss_can_be_chosen_and_episodes_be_wider_than_in_the_test(data, method, loss):
    settings = {"loss": loss, "way": 4, "validation_episodes": 0, "validate_every": 1}
    training = make(data, method, training=settings, model={"temperature": 1.0})
    network = copy.deepcopy(training.network).train()
    with torch.no_grad():
        logits, targets = compare_queries(network, data["train"], training.episodes[0])
    assert logits.shape == (8, 4)
    if loss == "mse":
        chances = logits.softmax(1) if method.startswith("NCM") else logits.sigmoid()
        expected = float((chances - torch.eye(4)[targets]).square().mean())
    else:
        expected = float(-logits.log_softmax(1)[torch.arange(8), targets].mean())
    training.run()
    assert training.curves.train_loss[0] == pytest.approx(expected, rel=1e-5)


def test_gradients_of_encoder_and_comparison_are_clipped_separately(data, monkeypatch):
    training = make(data, training={"clip": 1e-3, "episodes": 2})
    norms = []

    def measure(*args):
        parts = (training.network.encoder, training.network.pairs, training.network.similarity, training.network.score)
        squares = [sum(float(one.grad.square().sum()) for one in part.parameters()) for part in parts]
        norms.extend([squares[0] ** 0.5, sum(squares[1:]) ** 0.5])

    monkeypatch.setattr(training.optimizer, "step", measure)
    training.run()
    assert norms == pytest.approx([1e-3] * 4, rel=1e-3)


def test_a_diverging_training_stops_with_advice(data, monkeypatch):
    training = make(data)
    with torch.no_grad():
        training.network.encoder[0][0].weight.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match=r"episode 1.*learning_rate"):
        training.run()
    training = make(data)
    training.network.encoder[0][0].weight.register_hook(lambda gradient: gradient * float("inf"))
    before = [one.clone() for one in training.network.parameters()]
    with pytest.raises(NotFiniteError, match=r"Gradients.*episode 1.*learning_rate"):
        training.run()
    assert all(torch.equal(*pair) for pair in zip(before, training.network.parameters(), strict=True))


def test_test_episodes_are_the_same_for_every_method_and_seed(data):
    configs = [small_config(method, seed=seed).test for method, seed in (("RelationNet", 0), ("SoSN(x)", 1))]
    one, two = (draw_episodes(data["test"], config, 4)[3] for config in configs)
    assert torch.equal(one.support, two.support)
    assert torch.equal(one.query, two.query)
    assert TEST_SEED == 0  # published numbers depend on it


def test_correct_queries_are_counted_by_episode(data):
    training = make(data)
    episodes = draw_episodes(data["test"], training.config.test, 5)
    found = run_episodes(training.network, data["test"], episodes)
    wanted = []
    for episode in episodes:
        with torch.no_grad():
            scores, targets = compare_queries(training.network, data["test"], episode)
        assert targets.tolist() == [0, 0, 0, 1, 1, 1]
        wanted.append(int((scores.argmax(1) == targets).sum()))
    assert found.right == tuple(wanted)
    assert found.accuracy == pytest.approx(100 * sum(wanted) / 30)


@pytest.mark.parametrize("method", ["SoSN(x+L)+SigmE", "RelationNet", "NCM(x+L)+SigmE"])
def test_an_image_of_many_episodes_is_encoded_once(data, method, monkeypatch):
    training = make(data, method)
    network, bank = training.network, data["test"]
    episodes = draw_episodes(bank, training.config.test, 20)
    encode, encoded = network.encode, []
    monkeypatch.setattr(network, "encode", lambda images: (encoded.append(len(images)), encode(images))[1])
    monkeypatch.setattr("powerpool.tasks.fewshot.testing.IMAGES", 7)  # several parts, of which the last is smaller
    once = run_episodes(network, bank, episodes)
    drawn = torch.cat([part.flatten() for one in episodes for part in (one.support, one.query)])
    example, *parts = encoded
    assert example == 1  # tells the size
    assert set(parts[:-1]) == {7}
    assert sum(parts) == len(drawn.unique()) < len(drawn)
    encoded.clear()
    monkeypatch.setattr("powerpool.tasks.fewshot.testing.LARGEST_MAPS", 0)
    each_time = run_episodes(network, bank, episodes)
    assert sum(encoded) >= len(drawn)
    assert once.right == each_time.right
    assert once.loss == pytest.approx(each_time.loss, rel=1e-5)


def test_rotations_of_one_image_in_test_episodes_are_encoded_separately(data):
    training = make(data)
    network, bank, test = training.network, data["test"], training.config.test
    turned = Episodes(bank.targets, test.way, test.shot, test.queries, seed=0, turns=True)
    episodes = [turned[number] for number in range(5)]
    assert any(bool(episode.turns.any()) for episode in episodes)
    found = run_episodes(network, bank, episodes)
    with torch.no_grad():
        losses = [float(network.loss(*compare_queries(network, bank, episode))) for episode in episodes]
    assert found.loss == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize("method", ["SoSN(x)+SigmE", "RelationNet"])
def test_transductive_scores_use_the_statistics_of_the_episode_and_keep_none(data, method):
    training = make(data, method)
    training.run()
    network, episodes = training.network, draw_episodes(data["test"], training.config.test, 1)
    before = copy.deepcopy(network.state_dict())
    usual = run_episodes(network, data["test"], episodes)
    transductive = run_episodes(network, data["test"], episodes, transductive=True)
    assert transductive.loss != usual.loss
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert run_episodes(network, data["test"], episodes).loss == usual.loss
    network.train()
    with torch.no_grad():
        scores, targets = compare_queries(network, data["test"], episodes[0])
    assert float(network.loss(scores, targets)) == pytest.approx(transductive.loss)


# ---- which images are used -------------------------------------------------------------------------------------------


def watched(data, seen):
    """The same images, which note their split whenever they are read."""

    class Watched(ImageBank):
        def batch(self, rows, turns=None):
            seen.append(self.names[0].partition("/")[0])
            return super().batch(rows, turns)

    splits = {
        name: Watched(bank.images, bank.targets, bank.classes, tuple(f"{name}/{one}" for one in bank.names))
        for name, bank in data.splits.items()
    }
    return replace(data, splits=splits)


def test_training_uses_no_test_image(data):
    seen = []
    training = make(watched(data, seen), training={"episodes": 2, "settling_episodes": 3, "validation_episodes": 4})
    training.run()
    # Support and queries of two training episodes and of three for batch-norm statistics; then the images of all
    # validation episodes together.
    assert seen[:10] == ["train"] * 10
    assert set(seen[10:]) == {"validation"}


def test_batch_norm_statistics_are_means_over_training_episodes(data):
    training = make(data, "RelationNet", training={"episodes": 2, "settling_episodes": 3, "validation_episodes": 0})
    training.run()
    first = training.network.encoder[0]
    means = []
    for number in (2, 3, 4):
        episode = training.episodes[number]
        images = torch.cat([data["train"].batch(rows).flatten(0, 1) for rows in (episode.support, episode.query)])
        with torch.no_grad():
            means.append(first[0](images).mean((0, 2, 3)))
    torch.testing.assert_close(first[1].running_mean, torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"training": {"settling_episodes": 0}}, {"test": {"transductive": True}}])
def test_statistics_of_validation_change_validation_only(data, changes):
    usual, other = make(data), make(data, **changes)
    usual.run()
    other.run()
    assert usual.curves.train_loss == other.curves.train_loss
    assert usual.curves.validation_loss != other.curves.validation_loss


def test_episodes_that_a_split_cannot_fill_are_refused_by_its_name(data):
    with pytest.raises(EpisodeError, match=r"train .*6 classes"):
        make(data, test={"way": 7})
    with pytest.raises(EpisodeError, match="8"):
        make(data, training={"queries": 8})
    small = replace(data, splits={**data.splits, "validation": stripes(classes=2)})
    with pytest.raises(EpisodeError, match=r"validation of stripes.*validation_episodes"):
        make(small, test={"way": 3})
    make(small, test={"way": 3}, training={"validation_episodes": 0})
    with pytest.raises(EpisodeError, match=r"test of stripes.*train_classes"):
        require_episodes(small_config(), data, ways=[2, 7])
    with pytest.raises(EpisodeError, match="p1->p2"):
        require_episodes(small_config(problem="p1->p2"), data, ways=[2, 7])


# ---- mixed precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["SoSN(x)+SpecMaxExpF", "RelationNet", "PrototypicalNet"])
def test_in_mixed_precision_convolutions_use_bfloat16_in_training_only(data, method):
    training = make(data, method, training={"precision": "bf16-mixed", "episodes": 2})
    network, seen = training.network, []
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):  # the first one of SoSN's comparison is computed in float32
            layer.register_forward_hook(lambda module, inputs, maps: seen.append(maps.dtype))
    support, query = torch.rand(2, 1, 1, 16, 16), torch.rand(3, 1, 16, 16)
    for mode, wanted in ((network.train, torch.bfloat16), (network.eval, torch.float32)):
        seen.clear()
        mode()
        assert network(support, query).dtype == torch.float32
        assert set(seen) == {wanted}
    training.run()
    assert all(value.dtype != torch.bfloat16 for value in network.state_dict().values())


def test_mixed_precision_keeps_matrices_in_float32_and_is_close_to_full_precision(data, monkeypatch):
    full, mixed = make(data), make(data, training={"precision": "bf16-mixed"})
    seen, forward = [], mixed.network.pairs.forward
    monkeypatch.setattr(
        mixed.network.pairs, "forward", lambda *both: seen.extend(one.dtype for one in both) or forward(*both)
    )
    full.run()
    mixed.run()
    assert set(seen) == {torch.float32}
    assert mixed.curves.train_loss != full.curves.train_loss
    assert mixed.curves.train_loss == pytest.approx(full.curves.train_loss, rel=0.05)


def test_in_mixed_precision_every_step_uses_the_current_weights(data):
    network = make(data, training={"precision": "bf16-mixed"}, model={"padding": True}).network.train()
    images = torch.rand(2, 1, 1, 16, 16), torch.rand(3, 1, 16, 16)
    before = network(*images)
    with torch.no_grad():
        for parameter in network.similarity.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(network(*images), before)
