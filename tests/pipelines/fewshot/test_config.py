"""Settings of few-shot learning: what is refused, and with which words."""

from __future__ import annotations

import pytest
from powerpool.tasks.fewshot.methods import METHODS

from powerpool.data import ClassCut
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig, ModelConfig, TrainingConfig


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: ModelConfig("SoSN"), "model.method"),
        (lambda: ModelConfig(hidden=0), "model.hidden must be an even number, at least 2"),
        (lambda: ModelConfig(hidden=7), "even"),
        (lambda: ModelConfig(beta=1.5), "model.beta"),
        (lambda: ModelConfig("SoSN(x)+MaxExp", beta=0.5), r"model.beta must be 0 for SoSN\(x\)\+MaxExp"),
        (lambda: ModelConfig("SoSN(x)+SpecMaxExpF", eta=2.5), "whole eta"),
        (lambda: ModelConfig("SoSN(x)+SigmE", eta_prime=-1.0), "model.eta_prime=-1.0"),
        (lambda: ModelConfig("SoSN(x)+SC+SigmE", pivots=1), "pivots"),
        (lambda: EpisodeConfig(way=1), "test.way must be at least 2"),
        (lambda: EpisodeConfig(shot=0), "test.shot must be at least 1"),
        (lambda: EpisodeConfig(count=1), "test.count must be at least 2"),
        (lambda: TrainingConfig(episodes=0), "training.episodes"),
        (lambda: TrainingConfig(way=1), "training.way"),
        (lambda: TrainingConfig(shot=0), "training.shot"),
        (lambda: TrainingConfig(learning_rate=0.0), "training.learning_rate must be above 0"),
        (lambda: TrainingConfig(clip=0.0), "training.clip"),
        (lambda: TrainingConfig(decay_factor=2.0), "training.decay_factor"),
        (lambda: TrainingConfig(device="tpu9"), "training.device"),
        (lambda: FewShotConfig(size=9), "size must be at least 10"),
        (lambda: FewShotConfig(size=15, model=ModelConfig("PrototypicalNet")), "size must be at least 16"),
        (lambda: FewShotConfig(channels=2), "channels must be 3 or 1"),
        (lambda: FewShotConfig(seed=-1), "seed"),
        (lambda: FewShotConfig(train_classes=5), "belong together"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, said):
    with pytest.raises(PowerPoolError, match=said):
        make()


def test_settings_of_other_methods_are_not_looked_at():
    ModelConfig("SoSN(x)+SigmE", eta=2.5)
    ModelConfig("RelationNet", beta=0.5)


def test_classes_are_divided_as_usual_or_as_the_settings_say():
    assert FewShotConfig().cut is None
    found = FewShotConfig(train_classes=5, validation_classes=0.2, class_order="names", seed=3).cut
    assert found == ClassCut(5, 0.2, "names", 3)
    with pytest.raises(ArgumentError):
        _ = FewShotConfig(train_classes=0.9, validation_classes=0.2, class_order="names").cut


def test_the_methods_of_the_paper_are_there():
    paper = ["RelationNet", "PrototypicalNet", "SoSN(x)", "SoSN(x)+AsinhE", "SoSN(x)+SigmE", "SoSN(x+L)+SC+SigmE"]
    assert METHODS.keys() >= {*paper, "SoSN(x+L)+SC+SpecGamma", "SoSN(x+L)+SC+SpecMaxExpF", "SoSN(x+P)+SigmE"}
    assert METHODS["SoSN(x)+SC+SpecHDP"].is_spectral
    assert not METHODS["SoSN(x)+SigmE"].is_spectral
    assert not METHODS["SoSN(x)"].is_spectral
    assert not METHODS["RelationNet"].is_second_order
