"""What trainings of several tasks share: devices, precision, memory, batch-norm statistics, and stopping on Ctrl-C."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import platform
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from powerpool.console import print_note
from powerpool.errors import ArgumentError

ClassWeights = Literal["equal", "balanced"]
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt, from malloc.h of glibc."""


def require_device_name(device: str) -> None:
    """Refuse a string that does not name a torch device."""
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(
            f"training.device must be a torch device, such as cpu or cuda:0 (got {device!r})."
        ) from error


def require_device(device: str) -> str:
    """Refuse a device that this machine does not have."""
    try:
        torch.empty(1, device=device).item()
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ArgumentError(f"Device {device!r} is not available on this machine: {reason}. Use cpu.") from error
    return device


def has_native_bfloat16(device: str) -> bool:
    """Return whether a device has instructions for products of bfloat16.

    Without them products are emulated: a training step of SoSN on such a CPU took 7 to 11 times as long as in float32.
    Only x86 and CUDA are looked at, and a version of torch that cannot list the instructions of a CPU counts as none.
    """
    kind = torch.device(require_device(device)).type
    if kind == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    found: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in torch 2.5
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for new ones, where the C library is glibc.

    By default glibc returns every block above 32 MB to the system, which clears it before it is used again. A training
    step allocates the same blocks every time, so that clearing is a large part of its time: see docs/speed.md.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)


def balanced_weights(targets: Tensor, classes: int) -> Tensor:  # shape: (n,) -> (classes,)
    """Return weights inverse to the frequency of each class, as ``class_weight="balanced"`` in scikit-learn.

    A class without targets has no part in any loss, so its weight is arbitrary.
    """
    counts = targets.bincount(minlength=classes)
    return len(targets) / ((counts > 0).sum() * counts.clamp(min=1))


def choose_precision(device: str) -> Literal["32-true", "bf16-mixed"]:
    """Return the precision that ``auto`` stands for on a device."""
    return "bf16-mixed" if has_native_bfloat16(device) else "32-true"


def announce_precision(device: str) -> Literal["32-true", "bf16-mixed"]:
    """Return the precision that ``auto`` stands for on a device, and print it."""
    found = choose_precision(device)
    has = "has" if found == "bf16-mixed" else "has no"
    print_note(f"training.precision auto is {found} here: {device} {has} bfloat16 instructions.")
    return found


@contextlib.contextmanager
def recompute_batch_norm(model: nn.Module) -> Iterator[None]:
    """Replace the running statistics by their means over the batches that the model sees inside; no weight changes.

    The model is in evaluation mode except for batch normalization, and completely so afterwards.

    Example:
        >>> model = nn.BatchNorm1d(1)
        >>> with recompute_batch_norm(model):
        ...     _ = model(torch.tensor([[1.0], [3.0]])), model(torch.tensor([[5.0], [7.0]]))
        >>> model.running_mean.item(), model.momentum
        (4.0, 0.1)
    """
    layers = _batch_norms(model)
    momenta = [layer.momentum for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a cumulative mean
            layer.train()
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.eval()


@contextlib.contextmanager
def use_batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch normalization use the statistics of each batch inside, without changing the running ones."""
    layers = _batch_norms(model)
    kept = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.train()
            layer.momentum, layer.num_batches_tracked = 0.0, None
        yield
    finally:
        for layer, (momentum, count) in zip(layers, kept, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count
        model.eval()


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


class Event(Protocol):
    """An event of :mod:`threading` or :mod:`multiprocessing`."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


@contextlib.contextmanager
def stop_on_interrupt(what: str, stop: Event) -> Iterator[None]:
    """Set ``stop`` on the first Ctrl-C, so that ``what`` ends before the training stops; a second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        sys.stderr.write(f"Stopping after this {what}. Press Ctrl-C again to stop at once.\n")
        stop.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quiet_loggers(*names: str, warning: str = "") -> Iterator[None]:
    """Show only errors of loggers, and no warnings that match a regular expression; by default all match."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=warning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
