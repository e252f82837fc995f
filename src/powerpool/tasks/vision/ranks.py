"""Which of several processes this one is, where a launcher or a person on another machine started them.

A training end to end has one process that locks the folder, writes and talks: the first. The others compute with it,
and leave no trace. Processes that the command starts itself (``training.devices``) know nothing of commands.
"""

from __future__ import annotations

import os
from dataclasses import replace

from powerpool.errors import ArgumentError
from powerpool.tasks.vision.config import VisionConfig

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable by which torchrun is known."""


def is_launched() -> bool:
    """Whether torchrun started this process, and others like it."""
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


def as_launched(config: VisionConfig) -> VisionConfig:
    """The configuration with the numbers of devices and machines that torchrun has; as it is without torchrun."""
    if not is_launched():
        return config
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // devices
    for name, typed, has in (("devices", config.training.devices, devices), ("nodes", config.training.nodes, nodes)):
        if typed not in (1, has):
            raise ArgumentError(f"training.{name} is {typed}, and torchrun has started {has}: leave it out.")
    return replace(config, training=replace(config.training, devices=devices, nodes=nodes))


def require_together(config: VisionConfig, *, overwrite: bool) -> None:
    """Refuse what several commands cannot do in one folder, before anything is written."""
    if not is_launched() and config.training.nodes == 1:
        return
    who = "torchrun" if is_launched() else "training.nodes"
    if config.mode != "end-to-end":
        raise ArgumentError(f"{who} is for mode end-to-end (got {config.mode}): leave it out, one process does this.")
    if config.training.warm_start:
        raise ArgumentError(
            f"training.warm_start cannot be used with {who}: the classifier that it begins with is trained in one "
            "process. Use training.devices on one machine."
        )
    if overwrite:
        raise ArgumentError(
            f"--overwrite cannot be used with {who}: another process may read what this one deletes. Delete the "
            "folder, or choose another --out."
        )
