"""Few-shot learning as a task: a chain is a seed, with one training.

A network is trained by episodes of training classes, and its weights are selected by episodes of validation classes. It
is tested in episodes of test classes; a protocol is the form of these episodes, such as "5-way-1-shot". One training
serves protocols with different numbers of classes and with both kinds of batch-norm statistics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from powerpool.console import print_note
from powerpool.data import EpisodeError, FewShotSet, MissingDataError
from powerpool.data.sources import is_at_path
from powerpool.errors import ArgumentError, RecordError, UnknownNameError
from powerpool.runs.folder import DataIdentity, digest_weights, load_state, require_same_data, save_model, save_state
from powerpool.runs.record import EpisodeResult, RunRecord
from powerpool.runs.typed import Json
from powerpool.tasks.base import Evaluation, Task, Unit, Watch, ignore_progress, with_absolute_paths
from powerpool.tasks.fewshot import frozen
from powerpool.tasks.fewshot.config import FewShotConfig, ModelConfig
from powerpool.tasks.fewshot.fitting import WITHOUT_TRAINING, fit_episodes, require_episodes
from powerpool.tasks.fewshot.inference import (
    ImageFormat,
    TrainedModel,
    describe_skipped,
    evaluate,
    feature_source,
    predict,
    read_pretrained,
    read_set,
    run_test,
)
from powerpool.tasks.fewshot.options import BASELINE, QUICK_STUDY, EvaluateOptions, PredictOptions, ReproduceOptions
from powerpool.tasks.fewshot.results import describe_accuracy, describe_few_images
from powerpool.tasks.fewshot.rows import FewShotRow, make_row, with_method, with_pretraining
from powerpool.tasks.fewshot.study import study_features
from powerpool.tasks.fewshot.training import Training
from powerpool.tasks.methods import FEATURE_METHODS, FEWSHOT_METHODS, unused_settings
from powerpool.tasks.pooling import FeatureSource, Samples
from powerpool.tasks.predictions import Predictions
from powerpool.tasks.training import announce_precision, stop_on_interrupt

CHECKPOINT_SECONDS = 120.0
"""How much work a killed training may lose."""
SOSN = ("SoSN(x)", "SoSN(x)+SigmE", "SoSN(x)+AsinhE", "SoSN(x)+SpecMaxExpF")
ONE_SHOT = (BASELINE, "PrototypicalNet", "NCM(x+L)+SigmE", *SOSN)
MORE_SHOTS = (BASELINE, "NCM(x+L)+SigmE", "SoSN(x)+SigmE", "SoSN(x+L)+SigmE")
PRETRAINING = ("SoSN(x+L)+SigmE", "SoSN(x+L)+SpecMaxExpF")
"""The methods of a table where none are named: for one support image, for several, and in the study of pre-training."""

SEEDS = (0, 1, 2, 3, 4)
"""Seeds of test episodes in the study of frozen features."""


class FewShotTask(Task[FewShotConfig, FewShotSet, Training, TrainedModel]):
    """Few-shot learning by episodes."""

    name = "fewshot"
    version = 4
    baseline = BASELINE
    config_type = FewShotConfig
    packages = ("pillow",)
    keeps_models = True

    # ---- data ----

    def load(self, config: FewShotConfig, watch: Watch = ignore_progress) -> FewShotSet:
        try:
            return read_set(config, watch)
        except EpisodeError as error:
            raise EpisodeError(f"{error} Add classes, or {WITHOUT_TRAINING}") from error

    def identity(self, data: FewShotSet) -> DataIdentity:
        return DataIdentity(data.name, data.digest)

    def open(self, config: FewShotConfig, reference: Json) -> FewShotSet:
        data = self.load(config)
        require_same_data(self.identity(data), reference)
        return data

    def settings(self, config: FewShotConfig, data: FewShotSet) -> dict[str, Json]:
        counts = {name: len(bank) for name, bank in data.splits.items()}
        found = {**super().settings(config, data), "images": counts}
        if config.pretrained is not None:  # what it contains, not where it is
            found["pretrained"] = digest_weights(config.pretrained, self.name)
        return found

    def data_remarks(self, data: FewShotSet) -> list[str]:
        return describe_skipped(data)

    # ---- the protocol ----

    def with_protocol(self, config: FewShotConfig, protocol: str) -> FewShotConfig:
        return config.with_test(int(protocol.partition("-way-")[0]), protocol.endswith("-transductive"))

    def units(self, config: FewShotConfig, chain: int) -> list[Unit]:
        return [Unit(chain)]

    def fit(
        self,
        config: FewShotConfig,
        data: FewShotSet,
        unit: Unit,
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> Training:
        resumed = checkpoint is not None and checkpoint.exists()
        training = Training(config, data, None if resumed else read_pretrained(config, data))
        _run(training, checkpoint, watch)
        return training

    def select(self, fits: Sequence[Training], protocol: str) -> Training:
        """Return the only training; its weights were selected during the training."""
        return fits[0]

    def finish(
        self,
        config: FewShotConfig,
        data: FewShotSet,
        chain: int,
        fits: Sequence[Training],
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> dict[str, TrainedModel]:
        model = TrainedModel(fits[0].network.eval(), ImageFormat.of(config))
        return dict.fromkeys(protocols, model)

    def test(
        self,
        config: FewShotConfig,
        data: FewShotSet,
        chain: int,
        fits: Sequence[Training],
        models: Mapping[str, TrainedModel],
        watch: Watch,
    ) -> dict[str, EpisodeResult]:
        (training,) = fits
        best, found = training.best, {}
        for protocol, model in models.items():
            episodes = self.with_protocol(config, protocol).test
            tested = run_test(model, data["test"], episodes, config.training.device, watch)
            found[protocol] = EpisodeResult(
                number=chain,
                seed=config.seed,
                value=tested.scores.accuracy,
                right=tested.scores.right,
                queries=tested.scores.queries,
                test_loss=tested.scores.loss,
                test_seconds=tested.seconds,
                spectrum=tested.spectrum,
                chosen={"episode": training.done if best is None else best.episode},
                validation=None if best is None else best.score,
                curves={name: tuple(values) for name, values in asdict(training.curves).items() if values},
                seconds=training.seconds,
                episodes_per_second=training.done / training.step_seconds,  # without validation
                cpu_seconds=training.cpu_seconds,
            )
        return found

    # ---- trained models ----

    def save(self, model: TrainedModel, folder: Path) -> None:
        save_model(folder, self.name, model.spec, model.network.state_dict())

    def evaluate(self, options: EvaluateOptions, watch: Watch) -> Evaluation:
        return frozen.evaluate(options, watch) if options.run is None else evaluate(options, watch)

    def predict(self, options: PredictOptions, watch: Watch) -> Predictions:
        return frozen.predict(options, watch) if options.run is None else predict(options)

    def feature_source(self, folder: Path, samples: Samples) -> FeatureSource:
        return feature_source(folder, samples)

    # ---- commands ----

    def prepare(self, config: FewShotConfig) -> FewShotConfig:
        is_path = is_at_path(config.data, config.data_root, config.download)
        start = None if config.pretrained is None else str(Path(config.pretrained).expanduser().absolute())
        training = config.training
        if training.precision == "auto":
            training = replace(training, precision=announce_precision(training.device))
        return replace(with_absolute_paths(config, data_is_path=is_path), pretrained=start, training=training)

    def adapt(self, config: FewShotConfig, data: FewShotSet) -> FewShotConfig:
        found = fit_episodes(config, data)
        if found != config:
            require_episodes(found, data)
            counts = ", ".join(f"{len(bank.targets.unique())} {split}" for split, bank in data.splits.items())
            test, queries = found.test, found.training.queries
            print_note(
                f"Episodes that {data.name} can fill, with {counts} classes: {test.way}-way {test.shot}-shot, "
                f"{test.queries} queries of each class in tests and {queries} in training."
            )
        return found

    def check(self, config: FewShotConfig, data: FewShotSet, chain: int) -> None:
        Training(config, data, read_pretrained(config, data))

    def method(self, config: FewShotConfig) -> str:
        return config.model.method

    def remarks(self, config: FewShotConfig, data: FewShotSet) -> list[str]:
        method = config.model.method
        unused = unused_settings(FEWSHOT_METHODS[method], config.model, ModelConfig(), "model")
        return [f"{method} does not depend on {', '.join(unused)}."] if unused else []

    def plan(self, options: ReproduceOptions, watch: Watch) -> list[FewShotRow]:
        if options.study == "pretraining":
            return self._plan_study(options, watch)
        rows: list[FewShotRow] = []
        for name in options.data_sets:
            for problem in options.chosen_problems:
                config = self.prepare(options.read_config(name, problem))
                data = self.load(config, watch)
                for shot in options.shots or [config.test.shot]:
                    methods = options.methods or (ONE_SHOT if shot == 1 else MORE_SHOTS)
                    rows += [make_row(options, with_method(config, method, shot), data) for method in methods]
        return rows

    def study(self, options: ReproduceOptions, watch: Watch) -> list[RunRecord] | None:
        if options.study != "features":
            return None
        config = options.read_feature_study()
        ways, shots = options.ways or [config.test.way], options.shots or [config.test.shot]
        forms = [replace(config.test, way=way, shot=shot) for way in ways for shot in shots]
        return study_features(config, options.methods or tuple(FEATURE_METHODS), forms, options.seeds or SEEDS, watch)

    def _plan_study(self, options: ReproduceOptions, watch: Watch) -> list[FewShotRow]:
        """Return three rows for each method: on the source, on the target, and on the target from the source model."""
        study = options.read_study()
        first, source = self._load_for_study(study.first, "--source", watch)
        second, target = self._load_for_study(study.target, "--data", watch)
        if source.name == target.name:
            raise ArgumentError(f"--source and --data must be different data sets (got {source.name} for both).")
        rows = []
        for shot in options.shots or [second.test.shot]:
            for method in options.methods or PRETRAINING:
                before = make_row(options, with_method(first, method, shot), source)
                without = make_row(options, with_method(second, method, shot), target)
                rows += [before, without, with_pretraining(without, before)]
        return rows

    def _load_for_study(self, config: FewShotConfig, option: str, watch: Watch) -> tuple[FewShotConfig, FewShotSet]:
        try:
            found = self.prepare(config)
            return found, self.load(found, watch)
        except (MissingDataError, UnknownNameError) as error:
            raise MissingDataError(
                f"{option} of the study, {config.data}, was not found: {error} Name other data sets with --source and "
                f"--data; {' and '.join(QUICK_STUDY)} are always available."
            ) from error

    def describe(self, config: FewShotConfig, data: FewShotSet, protocol: str, result: Any) -> str:
        accuracy = describe_accuracy(result.accuracies)
        text = (
            f"{config.model.method} on {data.name}, {protocol}: accuracy {accuracy} % (95 % interval over "
            f"{len(result.right)} episodes), {result.seconds:.1f} s."
        )
        return " ".join([text, *describe_few_images(result.value, len(data["test"]))])


TASK = FewShotTask()


def _run(training: Training, file: Path | None, watch: Watch) -> None:
    """Train to the end, resuming from ``file`` and saving to it every few minutes and on Ctrl-C."""
    if file is not None and file.exists():
        try:
            training.load_state_dict(load_state(file))
        except RecordError as error:
            raise RecordError(f"{error} Delete it and repeat the command to train it anew.") from error
    saved, stop, episodes = time.monotonic(), threading.Event(), training.config.training.episodes

    def after(training: Training) -> None:
        nonlocal saved
        stopping = stop.is_set()
        due = stopping or training.done == episodes or time.monotonic() - saved >= CHECKPOINT_SECONDS
        if file is not None and due:
            save_state(file, training.state_dict())
            saved = time.monotonic()
        watch("training episodes", training.done, episodes, _describe_validation(training))
        if stopping and training.done < episodes:
            raise KeyboardInterrupt(
                f"Stopped after {training.done} of {episodes} training episodes. Repeat the command to resume."
            )

    with stop_on_interrupt("episode", stop):
        training.run(after)


def _describe_validation(training: Training) -> str:
    """Return a line about a validation that has just been made; an empty one otherwise."""
    curves = training.curves
    if not curves.episode or curves.episode[-1] != training.done:
        return ""
    text = f"episode {training.done} of {training.config.training.episodes}: loss {curves.train_loss[-1]:.4f}"
    return f"{text}, validation {curves.validation_value[-1]:.2f} %" if curves.validation_value else text
