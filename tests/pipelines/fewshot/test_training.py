"""Training by episodes: the same twice, the same after a stop, that something is learnt, and statistics that stay."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from powerpool.data import ImageBank
from powerpool.data.episodes import EpisodeError
from powerpool.errors import ArgumentError, NotFiniteError, UnknownNameError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.fewshot.training import TEST_SEED, Training, answer, ask, draw_episodes, require_episodes
from tests.pipelines.fewshot.samples import small_config, stripe_set, stripes, without_validation


@pytest.fixture(scope="module")
def data():
    return stripe_set()


def make(data, method="SoSN(x)+SigmE", **changes):
    return Training(small_config(method, **changes), data)


def assert_same(one: Training, two: Training) -> None:
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, two.network.state_dict()[name]), name
    assert one.curves == two.curves
    assert (one.best.episode, one.best.value, one.best.loss) == (two.best.episode, two.best.value, two.best.loss)


def test_the_same_seed_gives_the_same_training_bit_for_bit(data):
    one, two, other = make(data), make(data), make(data, seed=1)
    one.run()
    torch.rand(7)  # what else the process draws does not matter
    two.run()
    other.run()
    assert_same(one, two)
    assert other.curves.train_loss != one.curves.train_loss


@pytest.mark.parametrize("method", ["RelationNet", "NCM(x+L)+SigmE", "SoSN(x)+SpecMaxExpF"])
@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_stopped_training_goes_on_as_if_it_had_not_been(data, tmp_path, method, stop):
    whole = make(data, method)
    whole.run()

    class StopError(Exception):
        pass

    def after(training):
        if training.done == stop:
            save_state(tmp_path / "state.pt", training.state_dict())
            raise StopError

    begun = make(data, method)
    with pytest.raises(StopError):
        begun.run(after)
    resumed = make(data, method)
    resumed.load_state_dict(load_state(tmp_path / "state.pt"))
    assert resumed.done == stop
    resumed.run()
    assert_same(whole, resumed)


def test_the_generator_of_the_caller_stays_where_it_is(data):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    make(data).run()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method, least", [("NCM(x+L)+SigmE", 65), ("PrototypicalNet", 85)])  # chance is 50
def test_stripes_are_learnt(data, method, least):
    training = make(data, method, training={"episodes": 60, "validate_every": 20, "validation_episodes": 20})
    before = ask(training.network, data["test"], [draw_episodes(data["test"], training.config.test)[0]])
    assert before.queries == 6
    training.run()
    drawn = draw_episodes(data["test"], training.config.test)
    found = ask(training.network, data["test"], [drawn[number] for number in range(40)])
    assert found.accuracy > least
    assert training.curves.episode == [20, 40, 60]
    assert training.curves.train_loss[-1] < training.curves.train_loss[0]


def test_the_best_validation_chooses_the_weights_and_of_equal_ones_the_lower_loss(data):
    training = make(data)
    training.run()
    curves = training.curves
    order = [(value, -loss) for value, loss in zip(curves.validation_value, curves.validation_loss, strict=True)]
    assert training.best.episode == curves.episode[order.index(max(order))]
    for name, value in training.network.state_dict().items():
        assert torch.equal(value, training.best.weights[name])


def test_without_validation_the_last_weights_are_taken(data):
    for training in (
        Training(small_config(training={"validation_episodes": 0}), data),
        Training(small_config(), without_validation(data)),
    ):
        training.run()
        assert training.best is None
        assert training.curves.episode == [2, 4, 6]
        assert training.curves.validation_value == []


def test_the_rate_falls_in_steps(data):
    training = make(data, training={"decay_every": 2, "decay_factor": 0.5, "learning_rate": 0.1})
    rates = []
    training.run(lambda one: rates.append(one.optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_gradients_of_encoder_and_comparison_are_shortened_each_by_itself(data, monkeypatch):
    training = make(data, training={"clip": 1e-3})
    norms = []

    def look(*args):
        parts = (training.network.encoder, training.network.pairs, training.network.similarity, training.network.score)
        squares = [sum(float(one.grad.square().sum()) for one in part.parameters()) for part in parts]
        norms.append((squares[0] ** 0.5, sum(squares[1:]) ** 0.5))

    monkeypatch.setattr(training.optimizer, "step", look)
    training.run()
    for encoder, comparison in norms:
        assert encoder == pytest.approx(1e-3, rel=1e-3)
        assert comparison == pytest.approx(1e-3, rel=1e-3)


def test_a_loss_that_is_no_number_stops_the_training(data):
    training = make(data)
    with torch.no_grad():
        training.network.encoder[0][0].weight.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match=r"in training episode 1. Take a lower training.learning_rate"):
        training.run()


def test_gradients_that_are_no_numbers_stop_the_training(data):
    training = make(data)
    training.network.encoder[0][0].weight.register_hook(lambda gradient: gradient * float("inf"))
    before = [one.clone() for one in training.network.parameters()]
    with pytest.raises(NotFiniteError, match=r"Gradients are not finite in training episode 1. Take a lower"):
        training.run()
    assert all(torch.equal(*pair) for pair in zip(before, training.network.parameters(), strict=True))


def test_features_that_are_no_numbers_at_the_end_of_a_part_are_told_alike(data, monkeypatch):
    def settle() -> None:
        raise NotFiniteError("The matrix has nan.")

    training = make(data)
    monkeypatch.setattr(training, "_settle", settle)
    with pytest.raises(NotFiniteError, match=r"Features are not finite after training episode 2. Take a lower"):
        training.run()


def test_episodes_that_do_not_fit_the_data_are_refused_before_training(data):
    with pytest.raises(EpisodeError, match="There are 6 classes"):
        make(data, test={"way": 7})
    with pytest.raises(EpisodeError, match="8"):
        make(data, training={"queries": 8})


def test_training_episodes_may_have_another_form_than_those_of_the_test(data):
    training = make(data, training={"way": 3, "shot": 2})
    assert (training.episodes.way, training.episodes.shot) == (3, 2)
    training.run()


def test_episodes_of_the_test_are_the_same_for_every_method_and_seed(data):
    drawn = [
        draw_episodes(data["test"], make(data, method, seed=seed).config.test)[3]
        for method, seed in (("RelationNet", 0), ("SoSN(x)", 1))
    ]
    assert torch.equal(drawn[0].support, drawn[1].support)
    assert torch.equal(drawn[0].query, drawn[1].query)
    assert TEST_SEED == 0  # published figures depend on it


def test_what_is_right_is_counted_by_episode(data):
    training = make(data)
    episodes = [draw_episodes(data["test"], training.config.test)[number] for number in range(5)]
    found = ask(training.network, data["test"], episodes)
    wanted = []
    for episode in episodes:
        with torch.no_grad():
            scores, targets = answer(training.network, data["test"], episode)
        assert targets.tolist() == [0, 0, 0, 1, 1, 1]
        wanted.append(int((scores.argmax(1) == targets).sum()))
    assert found.right == wanted
    assert found.accuracy == pytest.approx(100 * sum(wanted) / 30)


@pytest.mark.parametrize("method", ["SoSN(x)+SigmE", "RelationNet"])
def test_transductive_answers_depend_on_the_other_queries_and_keep_no_statistics(data, method):
    training = make(data, method)
    training.run()
    network, episode = training.network, draw_episodes(data["test"], training.config.test)[0]
    before = copy.deepcopy(network.state_dict())
    usual = ask(network, data["test"], [episode])
    told = ask(network, data["test"], [episode], transductive=True)
    assert told.loss != usual.loss
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(layer.training for layer in network.modules() if isinstance(layer, nn.BatchNorm2d))
    assert ask(network, data["test"], [episode]).loss == usual.loss
    network.train()
    with torch.no_grad():
        scores, targets = answer(network, data["test"], episode)
    assert float(network.loss(scores, targets)) == pytest.approx(told.loss)


def test_a_device_that_is_not_there_is_refused(data):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ArgumentError, match=r"The device 'cuda' cannot be used"):
        make(data, training={"device": "cuda"})


# ---- which pictures are seen -----------------------------------------------------------------------------------------


def watched(data, seen):
    """The same pictures, which write down of which split they are when they are looked at."""

    class Watched(ImageBank):
        def batch(self, rows, turns=None):
            seen.append(self.names[0].partition("/")[0])
            return super().batch(rows, turns)

    splits = {
        name: Watched(bank.images, bank.targets, bank.classes, tuple(f"{name}/{one}" for one in bank.names))
        for name, bank in data.splits.items()
    }
    return replace(data, splits=splits)


def test_training_settles_on_training_pictures_chooses_by_validation_pictures_and_sees_no_test_picture(data):
    seen = []
    training = make(watched(data, seen), training={"episodes": 2, "settling_episodes": 3, "validation_episodes": 4})
    training.run()
    # Support and queries: two episodes of training, three that settle, four of validation.
    assert seen == ["train"] * 10 + ["validation"] * 8


def test_statistics_are_the_means_over_training_episodes_with_the_weights_as_they_are(data):
    training = make(data, "RelationNet", training={"episodes": 2, "settling_episodes": 3, "validation_episodes": 0})
    training.run()
    first = training.network.encoder[0]
    means = []
    for number in (2, 3, 4):
        episode = training.episodes[number]
        pictures = torch.cat([data["train"].batch(rows).flatten(0, 1) for rows in (episode.support, episode.query)])
        with torch.no_grad():
            means.append(first[0](pictures).mean((0, 2, 3)))
    torch.testing.assert_close(first[1].running_mean, torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)


def test_without_settling_the_running_statistics_are_kept(data):
    settled, running = (make(data, training={"settling_episodes": count}) for count in (3, 0))
    settled.run()
    running.run()
    assert settled.curves.train_loss == running.curves.train_loss
    assert settled.curves.validation_loss != running.curves.validation_loss


def test_validation_is_transductive_where_the_test_is(data):
    usual, told = (make(data, test={"transductive": value}) for value in (False, True))
    usual.run()
    told.run()
    assert usual.curves.train_loss == told.curves.train_loss
    assert usual.curves.validation_loss != told.curves.validation_loss


def test_the_split_that_cannot_fill_an_episode_is_named(data):
    small = replace(data, splits={**data.splits, "validation": stripes(classes=2)})
    with pytest.raises(EpisodeError, match=r"The split validation of stripes: .*validation_episodes 0 does without"):
        make(small, test={"way": 3})
    make(small, test={"way": 3}, training={"validation_episodes": 0})
    with pytest.raises(EpisodeError, match=r"The split test of stripes: .*train_classes"):
        require_episodes(small_config(), data, ways=[2, 7])
    with pytest.raises(EpisodeError, match=r"The problem p1->p2 divides the classes; others have other ones.$"):
        require_episodes(small_config(problem="p1->p2"), data, ways=[2, 7])


@pytest.mark.parametrize("method", ["SoSN(x)+SigmE", "SoSN(x)+SpecMaxExpF", "RelationNet", "PrototypicalNet"])
def test_in_mixed_precision_convolutions_compute_in_bfloat16_in_training_alone(data, method):
    training = make(data, method, training={"precision": "bf16-mixed"})
    network, seen = training.network, []
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):  # the first of SoSN's comparison is computed by its block, in float32
            layer.register_forward_hook(lambda module, inputs, maps: seen.append(maps.dtype))
    support, query = torch.rand(2, 1, 1, 16, 16), torch.rand(3, 1, 16, 16)
    for mode, wanted in ((network.train, torch.bfloat16), (network.eval, torch.float32)):
        seen.clear()
        mode()
        assert network(support, query).dtype == torch.float32
        assert set(seen) == {wanted}
    training.run()
    assert all(value.dtype != torch.bfloat16 for value in network.state_dict().values())


def test_matrices_are_float32_in_mixed_precision(data, monkeypatch):
    training = make(data, training={"precision": "bf16-mixed"})
    seen, match = [], training.network.pairs.forward

    def watched(*matrices):
        seen.extend(one.dtype for one in matrices)
        return match(*matrices)

    monkeypatch.setattr(training.network.pairs, "forward", watched)
    training.run()
    assert set(seen) == {torch.float32}


def test_in_mixed_precision_every_step_sees_the_weights_of_the_last(data):
    training = make(data, training={"precision": "bf16-mixed"})
    network, pictures = training.network.train(), (torch.rand(2, 1, 1, 16, 16), torch.rand(3, 1, 16, 16))
    before = network(*pictures)
    with torch.no_grad():
        for parameter in network.similarity.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(network(*pictures), before)


def test_mixed_precision_is_near_the_full_one_and_not_equal(data):
    full, mixed = make(data), make(data, training={"precision": "bf16-mixed"})
    full.run()
    mixed.run()
    assert mixed.curves.train_loss != full.curves.train_loss
    assert mixed.curves.train_loss == pytest.approx(full.curves.train_loss, rel=0.05)


def test_a_precision_that_does_not_exist_is_refused():
    with pytest.raises(UnknownNameError, match=r"training\.precision"):
        small_config(training={"precision": "bf16"})
