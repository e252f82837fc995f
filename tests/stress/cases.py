"""What is killed: small runs of every pipeline, what they have computed, what of it is safe, and what comes out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerpool.runs.folder import load_state

Stamps = dict[str, float]
"""What was computed, and when the last time."""
TIMES = (
    *("seconds", "step_seconds", "test_seconds", "cpu_seconds", "step_cpu_seconds"),
    *("episodes_per_second", "environment"),
)
"""What records and checkpoints say of time and machine: all else is the same in every run."""
RECIPE = "model: {hidden: 8, layers: 2, eta: 5}\ntraining: {epochs: 40}\nfolds: 5\n"


@dataclass(frozen=True)
class Case:
    """A command, and how to look into its run folder."""

    name: str
    words: tuple[str, ...]
    """Without ``--out``; paths start at the folder that it is called in."""
    unit: str
    """What is counted, in the plural."""
    saved: Callable[[Path, Path], set[str]]
    """The units that are safe, from the run folder and the cache."""
    prepare: Callable[[Path], None] = lambda folder: None
    """Make the data."""
    stamps: Callable[[Path, Path], Stamps] = lambda run, ledger: read_ledger(ledger)
    """The units that were computed, from the run folder and the ledger."""


def read_ledger(ledger: Path) -> Stamps:
    """The units of a ledger, each with the time of its last line."""
    if not ledger.exists():
        return {}
    lines = [line.split("\t") for line in ledger.read_text().splitlines()]
    return {unit: float(when) for unit, when in lines}


def outcome(run: Path) -> dict[str, Any]:
    """The result of a run without times: digests of all weights, of the last checkpoints, and all records."""
    weights = run / "model.safetensors"
    records = [run / "record.json"] if (run / "record.json").exists() else sorted(run.glob("MUTAG/*.json"))
    return {
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else None,
        "checkpoints": {file.name: digest(load_state(file)) for file in checkpoints(run)},
        "records": {file.name: without_times(json.loads(file.read_text())) for file in records},
    }


def without_times(value: Any) -> Any:
    """A value of JSON without what is never the same twice."""
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if name not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def digest(state: Any) -> str:
    """Of a model or checkpoint: names, types, shapes and the bits of all tensors, and all plain values but times."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for name in (name for name in value if name not in TIMES):
                found.update(f"{name!r}:".encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            found.update(f"{len(value)} of".encode())
            for one in value:
                add(one)
        elif hasattr(value, "numpy"):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())

    add(state)
    return found.hexdigest()


# ---- what is safe ----------------------------------------------------------------------------------------------------


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of graphs and episodes, without what a killed process was writing."""
    return [file for file in sorted(run.glob("checkpoints/[!.]*")) if file.is_file() and not file.suffix]


def saved_graph(run: Path, cache: Path) -> set[str]:
    """The epochs of all grid points, and of training again."""
    del cache
    return {
        f"{file.name} epoch {epoch}"
        for file in checkpoints(run)
        for epoch in range(1, len(load_state(file)["curves"]["train_loss"]) + 1)
    }


def saved_fewshot(run: Path, cache: Path) -> set[str]:
    """The episodes."""
    del cache
    file = run / "checkpoints" / "00-00"
    done = load_state(file)["done"] if file.exists() else 0
    return {f"episode {number}" for number in range(1, done + 1)}


def saved_end_to_end(run: Path, cache: Path) -> set[str]:
    """The batches."""
    del cache
    file = run / "checkpoints" / "00-00" / "last.pt"
    done = load_state(file)["progress"]["step"] if file.exists() else 0
    return {f"batch {number}" for number in range(1, done + 1)}


def saved_frozen(run: Path, cache: Path) -> set[str]:
    """The pictures whose features are stored, and the points of the grid."""
    pictures = {
        f"{store.parent.name} picture {number}"
        for store in cache.glob("features/*/*/store.json")
        for number in range(json.loads(store.read_text())["done"])
    }
    return pictures | {f"point {int(file.stem[-2:])}" for file in run.glob("checkpoints/00-*.json")}


def folds(run: Path) -> Stamps:
    """The results of folds, and when each was written."""
    files = [file for file in run.glob("units/**/*.json") if not file.name.startswith(".")]
    return {str(file.relative_to(run)): file.stat().st_mtime for file in files}


# ---- the commands ----------------------------------------------------------------------------------------------------


def write_pictures(folder: Path, count: int = 16) -> None:
    """Two classes of stripes."""
    from tests.tasks.vision import samples

    samples.write_images(folder / "stripes", count, classes=("across", "along"))


def write_recipe(folder: Path) -> None:
    """Settings of ``reproduce``, shorter than the usual ones."""
    (folder / "short.yaml").write_text(RECIPE)


PICTURES = ("--data", "stripes", "--crops.size", "32", "--crops.count", "2", "--crops.resize", "32")


def graph(epochs: int = 40) -> Case:
    """A grid of three on MUTAG, and the best once more on all but the test graphs."""
    size = ("--model.layers", "2", "--grid.hidden", "6", "8", "10", "--training.epochs", str(epochs))
    words = ("train", "graph", "--data", "MUTAG", "--download", "false", *size, "--protocol", "retrain")
    return Case("graph", words, "epochs", saved_graph)


def fewshot(episodes: int = 150) -> Case:
    """SoSN on drawn glyphs."""
    size = ("--size", "16", "--channels", "1", "--model.hidden", "8", "--test.count", "20")
    length = ("--training.episodes", str(episodes), "--training.validate_every", str(episodes // 5))
    fewer = ("--training.validation_episodes", "5", "--training.settling_episodes", "5")
    words = ("train", "fewshot", "--data", "glyphs", *size, *length, *fewer)
    return Case("few-shot", words, "episodes", saved_fewshot)


def frozen(points: int = 6, workers: int = 1) -> Case:
    """Features of EfficientNet-Lite0 and a grid of curves."""
    grid = ("--grid.eta", *(str(2 + point) for point in range(points)))
    words = ("train", "vision", *PICTURES, "--workers", str(workers), "--mode", "frozen", *grid)
    return Case("vision, frozen", words, "pictures and points", saved_frozen, write_pictures)


def end_to_end(epochs: int = 10, workers: int = 1) -> Case:
    """EfficientNet-Lite0, pool and classifier together."""
    size = ("--training.epochs", str(epochs), "--training.crops", "1", "--training.batch_size", "4")
    mode = ("--mode", "end-to-end", "--pool.method", "SOP+SigmE", "--workers", str(workers))
    words = ("train", "vision", *PICTURES, *mode, *size)
    return Case("vision, end to end", words, "batches", saved_end_to_end, write_pictures)


def reproduce() -> Case:
    """Two methods on five folds of MUTAG, in two processes."""
    methods = ("--data", "MUTAG", "--download", "false", "--methods", "GIN0", "SOP+SpecMaxExpF")
    words = ("reproduce", "graph", *methods, "--recipe", "short.yaml", "--jobs", "2")
    return Case(
        "reproduce",
        words,
        "folds",
        saved=lambda run, cache: set(folds(run)),
        prepare=write_recipe,
        stamps=lambda run, ledger: folds(run),
    )
