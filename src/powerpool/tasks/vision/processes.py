"""The processes of an end-to-end training, this one or one for each device, and how they are stopped."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from powerpool.errors import PowerPoolError
from powerpool.runs.checkpoint import load_state
from powerpool.tasks.interrupts import stopping_after
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.progress import STATE, FineTuningError, Flag, Plan, Stopped
from powerpool.tasks.vision.ranks import is_launched

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

LOGS = "logs"
KILLED = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
"""Exit codes of processes that did not end by themselves; that others end with SIGTERM is our doing."""


def train(plan: Plan, model: ImageClassifier) -> None:
    """Run the training in this process, or in one for each device, unless others have been started beside this one."""
    config = plan.config.training
    if is_launched() or config.devices * config.nodes == 1:
        stop: Any = threading.Event()
        with _on_interrupt(stop, plan):
            _run(plan, model, stop)
        return
    context = multiprocessing.get_context("spawn")
    stop, errors = context.Event(), context.SimpleQueue()
    # As bytes: tensors that are sent as such would lie in memory that all processes share, and all train.
    parts = (model.backbone, model.pool.config, model.classifier.out_features, model.state_dict())
    sent = pickle.dumps((plan, parts, multiprocessing.get_start_method(allow_none=True)))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if config.nodes == 1 else {}
    with _on_interrupt(stop, plan):
        started = spawn(_process, (sent, stop, errors, address), nprocs=config.devices, join=False)
        try:
            while not started.join():
                pass
        except (ProcessRaisedException, ProcessExitedException) as error:
            if not errors.empty():
                raise FineTuningError(errors.get()) from error
            if not stop.is_set():
                died = _death(error, started.processes)
                if died is None:
                    raise
                raise FineTuningError(f"{died} {_left(plan)}") from error
        finally:
            for process in started.processes:
                process.kill()  # those that would wait for one that failed
    if stop.is_set() and _epochs_done(plan) < config.epochs:
        raise KeyboardInterrupt(_stopped(plan))


def _death(error: Exception, processes: Sequence[Any]) -> str | None:
    """What to say of a process that was ended from outside; None where one failed by itself."""
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
    else:
        killed = [signal.Signals(-process.exitcode).name for process in processes if process.exitcode in KILLED]
        # One that lost another may come to its end before it is known that the other did.
        if not killed or not re.search("connection (closed|reset)", str(error), re.IGNORECASE):
            return None
        how = killed[0]
    return (
        f"One of the {len(processes)} processes died ({how}), and the others were stopped. Most likely the system "
        "ended it because memory ran out: take fewer training.devices or a smaller training.batch_size."
    )


def _process(rank: int, sent: bytes, stop: Flag, errors: Any, address: dict[str, str]) -> None:
    """What one of several processes does."""
    if hasattr(os, "setpgrp"):
        # A terminal sends Ctrl-C to the group of the process that started this one, which then tells all to stop.
        os.setpgrp()
    os.environ.update(address, LOCAL_RANK=str(rank))
    plan, (backbone, pool, classes, weights), method = pickle.loads(sent)
    # Those that read pictures are started as those of the caller are: as this one is, each would import all again.
    multiprocessing.set_start_method(method, force=True)
    model = ImageClassifier(backbone, pool, classes)
    model.load_state_dict(weights)
    try:
        _run(plan, model, stop)
    except PowerPoolError as error:
        errors.put(str(error))
        raise


def _run(plan: Plan, model: ImageClassifier, stop: Flag) -> None:
    from powerpool.tasks.vision.learner import Learner

    model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with _quiet():
        learner = Learner(plan, model, stop)
        trainer = _trainer(plan)
        path = plan.checkpoint if plan.checkpoint.exists() else None
        try:
            trainer.fit(learner, ckpt_path=path, weights_only=True)
        except Stopped:
            raise KeyboardInterrupt(_stopped(plan)) from None


def _trainer(plan: Plan) -> Trainer:
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import RichProgressBar
    from lightning.pytorch.strategies import DDPStrategy

    from powerpool.tasks.vision.learner import StateFiles

    config = plan.config.training
    accelerator = plan.config.accelerator
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    strategy: Any = "auto"
    if config.devices * config.nodes > 1:
        backend = "nccl" if on_gpu else "gloo"
        strategy = DDPStrategy(process_group_backend=backend)
    shows_bar = plan.show and sys.stderr.isatty()
    return Trainer(
        accelerator=accelerator,
        strategy=strategy,
        devices=config.devices,
        num_nodes=config.nodes,
        precision=config.precision,
        max_epochs=config.epochs,
        limit_val_batches=0 if plan.validation is None else 1.0,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,  # each epoch has its own batches
        use_distributed_sampler=False,
        sync_batchnorm=config.batch_norm and on_gpu,
        default_root_dir=plan.checkpoint.parent.parent,
        logger=_logger(plan),
        callbacks=[RichProgressBar(refresh_rate=1, console_kwargs={"stderr": True})] if shows_bar else [],
        # Of several processes, it is torchrun or this module that starts them, never Lightning.
        plugins=[StateFiles(), TorchElasticEnvironment() if is_launched() else LightningEnvironment()],
        enable_progress_bar=shows_bar,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_autolog_hparams=False,
    )


def _logger(plan: Plan) -> Any:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    folder = plan.checkpoint.parent.parent
    if plan.config.training.logger == "tensorboard":
        return TensorBoardLogger(folder, name=LOGS, version="")
    return CSVLogger(folder, name=LOGS, version="")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's advice on what it was not asked is left out; errors come through."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            from lightning.fabric.utilities.warnings import PossibleUserWarning

            warnings.filterwarnings("ignore", category=PossibleUserWarning)
            warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
            # Of torch, for what Lightning does when it wraps a loader.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _on_interrupt(stop: Any, plan: Plan) -> Iterator[None]:
    """The first Ctrl-C asks for a stop, a second one is as usual."""
    with stopping_after("batch, or the validation that runs", stop):
        try:
            yield
        except SystemExit:
            # Lightning makes this of an interrupt at once, and of a SIGTERM in validation.
            raise KeyboardInterrupt(_left(plan)) from None


def _stopped(plan: Plan) -> str:
    if not plan.checkpoint.exists():
        return f"Stopped before the first checkpoint in {plan.checkpoint.parent.parent}."
    progress = load_state(plan.checkpoint)[STATE]["progress"]
    done = f"{progress['epoch']} of {plan.config.training.epochs} epochs"
    more = f" and {progress['position']} batches" if progress["position"] else ""
    return f"Stopped after {done}{more}, which are in {plan.checkpoint}. The same command goes on from there."


def _left(plan: Plan) -> str:
    """What there is to go on from."""
    return _stopped(plan) if plan.checkpoint.exists() else "There is no checkpoint yet: the same command begins anew."


def _epochs_done(plan: Plan) -> int:
    return int(load_state(plan.checkpoint)[STATE]["progress"]["epoch"]) if plan.checkpoint.exists() else 0


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
