"""A command of powerpool as it is typed, in a process that writes down what it computes.

Two things differ from ``powerpool train graph ...``, and neither changes a result. Whatever is saved every few seconds
or minutes is saved after every epoch of graphs, every episode, and every few pictures; training end to end saves every
epoch, as always. And every epoch, episode, batch, picture or point of a grid that is computed is a line of the ledger,
with the time, before it is in any checkpoint. With the variable POWERPOOL_STRESS_HOLD, the process stands still after
so many lines, until it gets SIGCONT. With POWERPOOL_STRESS_EVERY, only every so many epochs and episodes are saved.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from powerpool.cli.main import main

HOLD, EVERY = "POWERPOOL_STRESS_HOLD", "POWERPOOL_STRESS_EVERY"
Note = Callable[[str], None]
Patch = Callable[[Any, str, Any], None]


@contextlib.contextmanager
def watched(ledger: Path, words: Sequence[str]) -> Iterator[None]:
    """Inside, the command of these words writes the ledger."""
    with contextlib.ExitStack() as stack:
        # A line is one write to the end of the file: a kill leaves it whole or not there.
        handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        stack.callback(os.close, handle)

        held, count = int(os.environ.get(HOLD, "0")), 0

        def note(unit: str) -> None:
            nonlocal count
            os.write(handle, f"{unit}\t{time.time()}\n".encode())
            count += 1
            if count == held:
                os.kill(os.getpid(), signal.SIGSTOP)

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        pipeline = " ".join(words[:2])
        if pipeline == "train graph":
            _watch_graph(note, patch)
        elif pipeline == "train fewshot":
            _watch_fewshot(note, patch)
        elif pipeline == "train vision":
            (_watch_end_to_end if "end-to-end" in words else _watch_frozen)(note, patch)
        yield


def _seconds_after(done: int) -> float:
    """Seconds between checkpoints, of which one is due now, or not yet."""
    return math.inf if done % int(os.environ.get(EVERY, "1")) else -1.0


def _watch_graph(note: Note, patch: Patch) -> None:
    from powerpool.tasks.graph import task
    from powerpool.tasks.graph.training import Training

    run, step, stage = task._run, Training.step, ""

    def noted_run(training: Training, epochs: int, file: Path, *rest: Any) -> None:
        nonlocal stage
        stage = file.name
        run(training, epochs, file, *rest)

    def noted_step(training: Training) -> None:
        step(training)
        task.CHECKPOINT_SECONDS = _seconds_after(training.epoch)
        note(f"{stage} epoch {training.epoch}")

    patch(task, "CHECKPOINT_SECONDS", -1.0)
    patch(task, "_run", noted_run)
    patch(Training, "step", noted_step)


def _watch_fewshot(note: Note, patch: Patch) -> None:
    from powerpool.tasks.fewshot import task
    from powerpool.tasks.fewshot.training import Training

    step = Training._step

    def noted_step(training: Training) -> None:
        step(training)
        task.CHECKPOINT_SECONDS = _seconds_after(training.done)
        note(f"episode {training.done}")

    patch(task, "CHECKPOINT_SECONDS", -1.0)
    patch(Training, "_step", noted_step)


def _watch_end_to_end(note: Note, patch: Patch) -> None:
    from powerpool.tasks.vision.loop import Loop

    step, save, last = Loop.train_batch, Loop.save, 0

    def note_batch(loop: Loop) -> None:
        nonlocal last
        if loop.progress.step != last:
            last = loop.progress.step
            note(f"batch {last}")

    def noted_step(loop: Loop, batch: Any) -> None:
        step(loop, batch)
        note_batch(loop)

    def noted_save(loop: Loop) -> None:
        note_batch(loop)  # a batch may save, and then stop the training
        save(loop)

    patch(Loop, "train_batch", noted_step)
    patch(Loop, "save", noted_save)


def _watch_frozen(note: Note, patch: Patch) -> None:
    from powerpool.data.banks import FeatureStore
    from powerpool.tasks.vision import extraction, frozen

    append, validate = FeatureStore.append, frozen.validate

    def noted_append(store: FeatureStore, items: Any) -> None:
        first = store.done
        append(store, items)
        for number in range(first, store.done):
            note(f"{store.folder.name} picture {number}")

    def noted_validate(config: Any, unit: Any, *rest: Any) -> Any:
        found = validate(config, unit, *rest)
        note(f"point {unit.point}")
        return found

    patch(extraction, "FLUSH_EVERY", 1)
    patch(extraction, "GPU_BATCH", 8 * 2)  # images with two crops that are computed at once
    patch(FeatureStore, "append", noted_append)
    patch(frozen, "validate", noted_validate)


def run(ledger: Path, words: Sequence[str]) -> int:
    """The exit code of the command."""
    with watched(ledger, words):
        return main(words)
