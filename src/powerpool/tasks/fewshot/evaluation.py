"""Training and test of one network, as a unit of work: what it found, and where it is if it was stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from powerpool.data import FewShotSet, ImageBank, load_fewshot
from powerpool.errors import RecordError
from powerpool.files import write_json
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.runs.folder import DATA, MODEL, require_same_data
from powerpool.tasks.devices import require_device
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig
from powerpool.tasks.fewshot.runs import Pictures, TrainedModel, pretrained_weights
from powerpool.tasks.fewshot.training import Training, ask, draw_episodes, episode_spectrum
from powerpool.tasks.interrupts import stopping_after

METRIC = "accuracy in %"
PLACES = ("data_root", "download")
"""Settings that say where data is, on which no result depends."""
CHECKPOINT = Path("checkpoints") / "last.ckpt"
MINUTES = 2.0
"""Between two checkpoints."""
OUTCOME = ("chosen", "validation", "curves", "seconds", "episodes_per_second")
"""What a result says of the training."""


def read_set(config: FewShotConfig, **options: Any) -> FewShotSet:
    """The pictures of a configuration; see :func:`powerpool.data.load_fewshot`."""
    return load_fewshot(
        config.data,
        config.data_root,
        size=config.size,
        channels=config.channels,
        cut=config.cut,
        problem=config.problem,
        invert=config.invert,
        resize=config.resize,
        download=config.download,
        corrupt=config.corrupt,
        **options,
    )


def train_and_test(config: FewShotConfig, folder: Path, digest: str) -> dict[str, Any]:
    """Train a network in a folder, from where it was if it was stopped, and test it.

    Args:
        config: all settings.
        folder: for checkpoints and the model.
        digest: of the pictures that the caller read: those that are found here must be the same.

    Returns:
        What a record keeps of it, as a fold.
    """
    data = _read_same(config, digest)
    write_json(folder / DATA, {"name": data.name, "digest": data.digest})
    training = train(make_training(config, data), folder)
    found = assess(training_model(training), data["test"], config.test, config.training.device)
    return {"fold": 0, **found, **outcome(training)}


def assess_again(
    config: FewShotConfig, folder: Path, digest: str, result: dict[str, Any], episodes: EpisodeConfig
) -> dict[str, Any]:
    """The network of such a folder in other episodes, such as those with more classes.

    Args:
        config: what it was trained with.
        folder: where :func:`train_and_test` trained it.
        digest: of the pictures, as there.
        result: what that returned.
        episodes: the other ones.
    """
    model = TrainedModel.load(folder / MODEL)
    own = {name: result[name] for name in OUTCOME if name in result}
    found = assess(model, _read_same(config, digest)["test"], episodes, config.training.device)
    return {"fold": result["fold"], **found, **own}


def _read_same(config: FewShotConfig, digest: str) -> FewShotSet:
    """The pictures of a configuration, which must be those of the caller: it may be another machine, or hours ago."""
    data = read_set(config)
    require_same_data(data.name, data.digest, digest)
    return data


def make_training(config: FewShotConfig, data: FewShotSet) -> Training:
    """A training that has not begun; settings that do not fit the pictures or the run to start from are refused."""
    return Training(config, data, pretrained_weights(config, data))


def train(
    training: Training,
    folder: Path,
    *,
    minutes: float = MINUTES,
    watch: Callable[[Training], None] = lambda training: None,
) -> Training:
    """Bring a training to its end, from the checkpoint in the folder if there is one.

    Args:
        training: one that has not begun. It is returned, with the chosen weights.
        folder: where checkpoints and the model go.
        minutes: between two checkpoints.
        watch: called after every episode.
    """
    config = training.config
    checkpoint = folder / CHECKPOINT
    # Without paths: a folder that was moved together with its data goes on.
    settings = {name: value for name, value in asdict(config).items() if name not in (*PLACES, "data", "pretrained")}
    facts = {**settings, "data_digest": training.data.digest}
    if checkpoint.exists():
        state = load_state(checkpoint)
        if state.get("facts") != facts:
            raise RecordError(
                f"{checkpoint} is of another training: of other settings, or of other pictures. Take another folder, "
                "or delete that one."
            )
        training.load_state_dict(state["training"])
    saved, stop = time.monotonic(), threading.Event()

    def after(_: Training) -> None:
        nonlocal saved
        asked = stop.is_set()
        if asked or time.monotonic() - saved >= 60 * minutes or training.done == config.training.episodes:
            # Only here, between two episodes: inside of one weights and counts do not fit one another.
            save_state(checkpoint, {"facts": facts, "training": training.state_dict()})
            saved = time.monotonic()
        watch(training)
        if asked and training.done < config.training.episodes:
            raise KeyboardInterrupt(
                f"Stopped after {training.done} of {config.training.episodes} training episodes, which are in "
                f"{checkpoint}. The same command goes on from there."
            )

    with stopping_after("episode", stop):
        training.run(after)
    training_model(training).save(folder / MODEL)
    return training


def training_model(training: Training) -> TrainedModel:
    """The network of a training that is done."""
    return TrainedModel(training.network.eval(), Pictures.of(training.config))


def assess(
    model: TrainedModel,
    bank: ImageBank,
    episodes: EpisodeConfig,
    device: str = "cpu",
    watch: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Accuracy over test episodes, the right queries of each of them, and the spectra of some queries."""
    start = time.perf_counter()
    drawn = draw_episodes(bank, episodes)
    asked = [drawn[number] for number in range(episodes.count)]
    network = model.network.to(require_device(device))
    found = ask(network, bank, asked, device, transductive=episodes.transductive, watch=watch)
    seconds = time.perf_counter() - start
    spectrum = episode_spectrum(network, bank, asked, device, transductive=episodes.transductive)
    return {
        "value": found.accuracy,
        "right_by_episode": " ".join(map(str, found.right)),
        "queries": found.queries,
        "count": len(found.right),
        "test_loss": found.loss,
        "test_seconds": seconds,
        **({"spectrum": spectrum} if spectrum else {}),
    }


def outcome(training: Training) -> dict[str, Any]:
    """What a result says of a training."""
    best, curves = training.best, {name: value for name, value in asdict(training.curves).items() if value}
    return {
        "chosen": {"episode": training.done if best is None else best.episode},
        **({} if best is None else {"validation": {"value": best.value, "loss": best.loss}}),
        "curves": curves,
        "seconds": training.seconds,
        "episodes_per_second": training.done / training.step_seconds,  # without settling and validation
    }
