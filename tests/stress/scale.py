"""Train end to end on many tiny images, from class folders and from WebDataset shards, and watch the memory.

    python -m tests.stress.scale --images 50000 --out runs/scale

The same images are written as a folder of class folders and as shards. A training reads the folder and is not
stopped; another reads the shards, is killed with SIGKILL between two checkpoints, and resumes. Both must end with the
same weights, bit for bit. A third is killed and resumed, too, with two processes, whose sums are rounded in another
order. Memory is that of all processes of a training, sampled ten times a second: the sum of their proportional set
sizes, in which shared pages count once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from powerpool.runs.folder import load_state
from tests.stress.cases import digest
from tests.stress.kills import ROOT

CLASSES, SIDE, SHARD = 100, 32, 1000
HELD_OUT = 0.02
"""Images for validation and for testing, each as a share of those for training."""
CHECKPOINT_MINUTES = 0.1
SECONDS_LOST = 2.0
"""Between a checkpoint and the kill."""
CHECKPOINT = Path("checkpoints", "00-00", "last.pt")
POLL = 0.1
"""Seconds."""
BATCH = 128
FEW = 1000
"""Training images of the run that shows what memory does not depend on their number."""


# ---- images ----------------------------------------------------------------------------------------------------------


def draw(number: int, label: int) -> bytes:
    """Return a JPEG of noise in the colours of its class."""
    random = np.random.default_rng([number, label])
    colour = np.random.default_rng(label).integers(40, 216, 3)
    pixels = np.clip(colour + random.normal(0, 40, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def write_sets(folder: Path, images: int, shard: int = SHARD) -> None:
    """Write the same images as ``folder/classes`` and as ``folder/shards``, in the same order."""
    for split, count in (("train", images), ("val", int(HELD_OUT * images)), ("test", int(HELD_OUT * images))):
        labels = sorted(number % CLASSES for number in range(count))
        for first in range(0, count, shard):
            path = folder / "shards" / f"{split}-{first // shard:06d}.tar"
            path.parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path, "w") as archive:
                for number in range(first, min(first + shard, count)):
                    content = draw(number, labels[number])
                    file = folder / "classes" / split / f"{labels[number]:03d}" / f"{number:06d}.jpg"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
                    for suffix, data in (("jpg", content), ("cls", str(labels[number]).encode())):
                        info = tarfile.TarInfo(f"{number:06d}.{suffix}")
                        info.size = len(data)
                        archive.addfile(info, io.BytesIO(data))


def write_backbone(folder: Path) -> Path:
    """Write the configuration of a ConvNeXt with two stages of one block.

    It has no batch normalization, whose statistics are those of the batch of one process.
    """
    from transformers import ConvNextConfig

    ConvNextConfig(num_stages=2, hidden_sizes=[16, 32], depths=[1, 1]).save_pretrained(folder)
    return folder


# ---- trainings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One command, which may be killed and given again."""

    seconds: float
    training_seconds: float | None
    """Without starting, listing, checking and testing; None if it was killed."""
    megabytes: float
    """The largest of all processes together."""
    processes: int
    loss: float | None
    """Of training, mean over the epoch; None if it was killed."""
    killed_at: int | None = None
    """Batches that were in the checkpoint at the kill."""


@dataclass(frozen=True)
class Record:
    """The trainings on few and on many images."""

    images: int
    runs: dict[str, Run]
    equal: bool
    """Whether the training from shards, killed and resumed, has the weights of the training from the folder."""

    @property
    def batches(self) -> int:
        """Of an epoch."""
        return -(-self.images // BATCH)


def words(folder: Path, data: str, run: Path, devices: int = 1) -> list[str]:
    """Return the command, without ``powerpool``."""
    options = {
        "--config": "vision/imagenet",
        "--data": data,
        "--backbone": f"hf:{folder / 'backbone'}",
        "--backbone_weights": "random",
        "--pool.method": "SOP+SpecMaxExpF",
        "--pool.reduce_to": 16,
        "--crops.size": SIDE,
        "--crops.resize": SIDE,
        "--training.epochs": 1,
        "--training.batch_size": BATCH,
        "--training.batch_norm": "true",  # there is none: then a CPU, too, computes all images of a batch at once
        "--training.learning_rate": 0.001,
        "--training.head_learning_rate": 0.001,
        "--training.devices": devices,
        "--accelerator": "cpu",
        "--workers": 1,
        "--out": run,
    }
    return ["train", "vision", *(str(word) for pair in options.items() for word in pair)]


def train(command: list[str], run: Path, cache: Path, *, kill: bool = False) -> Run:
    """Give the command in a process of its own; ``kill``: end it and all that it started after a checkpoint."""
    variables = {**os.environ, "POWERPOOL_CACHE": str(cache), "POWERPOOL_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    start, largest, most, saved = time.monotonic(), 0.0, 0, None
    log = run.with_suffix(".log")
    with log.open("ab") as file:
        started = [sys.executable, "-m", "tests.stress.scale", "--train", *command]
        process = psutil.Popen(started, env=variables, stdout=file, stderr=file, cwd=ROOT)
        while process.poll() is None:
            size, count = measure(process)
            largest, most = max(largest, size), max(most, count)
            if kill and (saved := position(run)):
                time.sleep(SECONDS_LOST)
                for one in (process, *process.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with the first
                        one.kill()
                process.wait()
            time.sleep(POLL)
    if process.returncode != (-signal.SIGKILL if kill else 0):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read_text()}")
    progress = {} if kill else read_state(run)["progress"]
    (loss,) = progress.get("train_loss", [None])
    return Run(time.monotonic() - start, progress.get("seconds"), largest, most, loss, saved)


def measure(process: psutil.Process) -> tuple[float, int]:
    """Return the megabytes and the number of the processes of a command."""
    sizes = []
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            sizes.append(one.memory_full_info().pss)
    return sum(sizes) / 2**20, len(sizes)


def position(run: Path) -> int | None:
    """Return the number of batches in the checkpoint of an unfinished epoch."""
    return read_state(run)["progress"]["position"] if (run / CHECKPOINT).exists() else None


def read_state(run: Path) -> dict[str, Any]:
    """Return the last checkpoint."""
    return load_state(run / CHECKPOINT)


def run_here(command: list[str]) -> int:
    """Run the command with frequent checkpoints: usually there is one every five minutes."""
    from powerpool.cli.main import main
    from powerpool.tasks.vision.finetuning import fine_tune

    fine_tune.__kwdefaults__["checkpoint_minutes"] = CHECKPOINT_MINUTES
    return main(command)


def trial(folder: Path, images: int) -> Record:
    """Write the images, train on them in three ways, and return what was measured."""
    few, many = (folder / "images" / name for name in ("few", "many"))
    write_sets(few, FEW)
    write_sets(many, images)
    write_backbone(folder / "backbone")
    shards = many / "shards" / f"{{train-{{000000..{(images - 1) // SHARD:06d}}},val-000000,test-000000}}.tar"
    found: dict[str, Run] = {}
    for name, data, devices in (
        ("few", few / "classes", 1),
        ("few, two processes", few / "shards", 2),
        ("folder", many / "classes", 1),
        ("shards", shards, 1),
        ("two processes", shards, 2),
    ):
        run = folder / name
        command = words(folder, str(data), run, devices)
        if data == shards:
            found[f"{name}, killed"] = train(command, run, folder / "cache", kill=True)
        found[name] = train(command, run, folder / "cache")
    whole, resumed = (digest(read_state(folder / name)["model"]) for name in ("folder", "shards"))
    return Record(images, found, whole == resumed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        sys.exit(run_here(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--out", type=Path, help="new folder for images and runs; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(asdict(trial((options.out or Path(temporary)).absolute(), options.images)), indent=2))
