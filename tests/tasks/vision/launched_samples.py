"""A training for torchrun, as a script; every process records which files it writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

NOTED = ("os.rename", "os.mkdir", "os.remove")


def watch(notes: Path) -> None:
    """Record the paths that this process writes to."""
    handle = os.open(notes / f"rank-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, arguments: tuple) -> None:
        flags = arguments[2] if event == "open" else 0
        if event in NOTED or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            os.write(handle, f"{event} {arguments[0]} {arguments[1]}\n".encode())

    sys.addaudithook(note)


def stored(folder: Path):
    """Return the images that another process has written."""
    import torch

    from powerpool.data import ImageSplit
    from tests.tasks.vision.fine_tuning_samples import CLASSES

    names = tuple(str(file) for file in sorted(folder.iterdir(), key=lambda file: int(file.stem)))
    return ImageSplit(names, torch.arange(len(names)) % CLASSES, names)


def train(folder: Path) -> None:
    from powerpool.tasks.vision.finetuning import fine_tune
    from tests.tasks.vision.fine_tuning_samples import network, small_config

    config = small_config(epochs=2, batch_size=5, jitter=0.2)
    splits = [stored(folder.parent / "images" / name) for name in ("train", "validation")]
    fine_tune(config, network(dropout=0.0), *splits, folder, show=False)


if __name__ == "__main__":
    watch(Path(sys.argv[2]))
    train(Path(sys.argv[1]))
