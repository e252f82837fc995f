"""The processes of an end-to-end training: this one, one for each device, or those that torchrun has started.

One process locks the folder, writes and prints: the first. The others only compute with it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.checkpoint import load_state
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.training import stop_on_interrupt
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.loop import FineTuningError, Flag, Loop, Plan, Progress, Stopped, make_fabric, quiet_fabric
from powerpool.tasks.vision.model import ImageClassifier

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable that torchrun sets."""
KILLED = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
"""Exit codes of processes that were killed; SIGTERM is how the other processes of a training are ended."""


# ---- which process this is -------------------------------------------------------------------------------------------


def is_launched() -> bool:
    """Whether torchrun started this process and others."""
    return LAUNCHED in os.environ


def is_first(config: VisionConfig) -> bool:
    """Whether this is the process that writes.

    Example:
        >>> is_first(VisionConfig())
        True
    """
    if is_launched():
        return os.environ["RANK"] == "0"
    return config.training.nodes == 1 or os.environ.get("NODE_RANK", "0") == "0"


def with_launched_sizes(config: VisionConfig) -> VisionConfig:
    """Return the configuration with torchrun's numbers of devices and machines; unchanged without torchrun."""
    if not is_launched():
        return config
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // devices
    for name, typed, has in (("devices", config.training.devices, devices), ("nodes", config.training.nodes, nodes)):
        if typed not in (1, has):
            raise ArgumentError(f"training.{name} is {typed}, but torchrun has started {has}. Leave it out.")
    return replace(config, training=replace(config.training, devices=devices, nodes=nodes))


def require_joint_training(config: VisionConfig, *, overwrite: bool) -> None:
    """Refuse what several commands cannot do in one folder, before anything is written."""
    if not is_launched() and config.training.nodes == 1:
        return
    who = "torchrun" if is_launched() else "training.nodes"
    if config.mode != "end-to-end":
        raise ArgumentError(f"{who} needs mode end-to-end (got {config.mode}). One process trains frozen features.")
    if config.training.warm_start:
        raise ArgumentError(
            f"training.warm_start cannot be used with {who}: one process trains the first classifier. Use "
            "training.devices on one machine."
        )
    if overwrite:
        raise ArgumentError(
            f"--overwrite cannot be used with {who}: another process may read what this one deletes. Delete the "
            "folder, or choose another --out."
        )


# ---- training --------------------------------------------------------------------------------------------------------


def train(plan: Plan, model: ImageClassifier, watch: Watch) -> None:
    """Train in this process, or start one for each device, unless others were started beside this one."""
    config = plan.config.training
    what = "batch, or the validation that is running"
    if is_launched() or config.devices * config.nodes == 1:
        stop = threading.Event()
        with stop_on_interrupt(what, stop):
            try:
                _run(plan, model, stop, watch)
            except Stopped:
                raise KeyboardInterrupt(_describe_stop(plan)) from None
        return
    context = multiprocessing.get_context("spawn")
    stop_all, errors = context.Event(), context.SimpleQueue()
    # Pickled: tensors that are sent as such would lie in shared memory, and all processes train.
    parts = (model.backbone, model.pool.config, model.classifier.out_features, model.state_dict())
    sent = pickle.dumps((plan, parts, multiprocessing.get_start_method(allow_none=True)))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if config.nodes == 1 else {}
    with stop_on_interrupt(what, stop_all):
        started = spawn(_train_in_child, (sent, stop_all, errors, address), nprocs=config.devices, join=False)
        try:
            while not started.join():
                pass
        except (ProcessRaisedException, ProcessExitedException) as error:
            if not errors.empty():
                raise FineTuningError(errors.get()) from error
            if not stop_all.is_set():
                cause = _describe_death(error, started.processes)
                if cause is None:
                    raise
                raise FineTuningError(f"{cause} {_describe_stop(plan)}") from error
        finally:
            for process in started.processes:
                process.kill()  # those that would wait for one that failed
    if stop_all.is_set() and _read_progress(plan).epoch < config.epochs:
        raise KeyboardInterrupt(_describe_stop(plan))


def _run(plan: Plan, model: ImageClassifier, stop: Flag, watch: Watch) -> None:
    with quiet_fabric():
        Loop(plan, model, make_fabric(plan, launched=is_launched()), stop, watch).run()


def _train_in_child(rank: int, sent: bytes, stop: Flag, errors: Any, address: dict[str, str]) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C of a terminal reaches the parent only, which tells all children to stop
    os.environ.update(address, LOCAL_RANK=str(rank))
    plan, (backbone, pool, classes, weights), method = pickle.loads(sent)
    # Loader processes start as those of the parent do: spawned ones would import everything again.
    multiprocessing.set_start_method(method, force=True)
    model = ImageClassifier(backbone, pool, classes)
    model.load_state_dict(weights)
    try:
        _run(plan, model, stop, ignore_progress)
    except Stopped:
        return
    except PowerPoolError as error:
        errors.put(str(error))
        raise


def _describe_death(error: Exception, processes: Sequence[Any]) -> str | None:
    """Return how a process was killed from outside; None where one failed by itself."""
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
    else:
        killed = [signal.Signals(-process.exitcode).name for process in processes if process.exitcode in KILLED]
        # A process that lost its peer may fail before the death of the peer is noticed.
        if not killed or not re.search("connection (closed|reset)", str(error), re.IGNORECASE):
            return None
        how = killed[0]
    return (
        f"One of the {len(processes)} processes died ({how}), and the others were stopped. The memory was probably "
        "exhausted: use fewer training.devices or a smaller training.batch_size."
    )


def _read_progress(plan: Plan) -> Progress:
    return Progress(**load_state(plan.checkpoint)["progress"]) if plan.checkpoint.exists() else Progress()


def _describe_stop(plan: Plan) -> str:
    if not plan.checkpoint.exists():
        return "There is no checkpoint yet, so the same command starts anew."
    done = _read_progress(plan).describe().replace("epochs", f"of {plan.config.training.epochs} epochs")
    return f"Stopped after {done}. The same command resumes from {plan.checkpoint}."


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
