"""Run folders of all pipelines: the feature sets that go into the pooling of a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from powerpool.analysis.gathering import SAMPLES, Gathering
from powerpool.analysis.result import Inspection
from powerpool.checks import require_at_least, require_seed
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import read_json
from powerpool.runs.checkpoint import load_state
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import CONFIG, DATA, MODEL, is_of
from powerpool.tasks.pooling import FeatureSet, Normalization

Config = TypeVar("Config")
Split = Literal["train", "validation", "test"]
Watcher = Callable[[int], None]
Maps = tuple[Iterator[Tensor], int, str, tuple[str, ...]]
"""Maps of pictures, how many, where they are from, and notes."""
BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Which samples of a run are looked at.

    Args:
        data: other data than that of the run, all of which is drawn from: a data set, or a folder or zip
        data_root: folder with data sets; that of the run without it
        split: which part of the run's own data to look at. A parameter that is chosen on test data has seen the test
        samples: how many pictures or graphs, drawn at random
        seed: of the draw
        download: whether data and weights that are not on this machine may be fetched from the network
    """

    data: str | None = None
    data_root: str | None = None
    split: Split = "train"
    samples: int = SAMPLES
    seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, "", samples=self.samples)
        require_seed(self.seed)


USUAL = Samples()
"""Those that are looked at where nobody says."""


@dataclass(frozen=True, eq=False)
class Source:
    """The feature sets of a run: made as they are asked for."""

    normalization: Normalization
    sets: Iterator[FeatureSet]
    count: int
    """How many samples were drawn: no more than there are."""
    name: str
    notes: tuple[str, ...] = ()


def inspect_run(folder: str | Path, which: Samples = USUAL, watch: Watcher = lambda done: None) -> Inspection:
    """What the pooling of a trained run sees, and what its normalization does to it.

    Args:
        folder: of the run.
        which: of its samples.
        watch: is told how many samples are done.
    """
    return look(open_run(folder, which), watch)


def look(source: Source, watch: Watcher = lambda done: None) -> Inspection:
    """Gather the sets of a run, which are made now."""
    gathering = Gathering(source.normalization, max(1, source.count))
    with torch.no_grad():
        for one in source.sets:
            gathering.add(one)
            watch(gathering.seen)
    return gathering.result(source.name, source.notes)


def open_run(folder: str | Path, which: Samples = USUAL) -> Source:
    """Read the model of a run, of whichever pipeline it is, and draw the samples."""
    folder = Path(folder)
    file = folder / MODEL
    if not file.is_file():
        if folder.is_dir():
            raise RecordError(
                f"{folder} holds no {MODEL}: it is no run, or its training did not end. The command that began it goes "
                "on with it."
            )
        raise RecordError(
            f"There is no run folder {folder}. Make one with --out {folder} of `powerpool train graph`, "
            "`powerpool train vision` or `powerpool train fewshot`."
        )
    readers = {"graph": _open_graph, "vision": _open_vision, "fewshot": _open_fewshot}
    pipeline = load_state(file).get("pipeline")
    if pipeline not in readers:
        raise RecordError(f"{file} is no model of powerpool: its pipeline is {pipeline!r}, not {', '.join(readers)}.")
    return readers[pipeline](folder, which)


# ---- graphs ----------------------------------------------------------------------------------------------------------


def _open_graph(folder: Path, which: Samples) -> Source:
    from powerpool.tasks.graph.commands import RunConfig
    from powerpool.tasks.graph.evaluation import make_fold
    from powerpool.tasks.graph.runs import load_run
    from powerpool.tasks.graph.training import batches

    model = load_run(folder)
    notes: tuple[str, ...] = ()
    if which.data is not None:
        graphs = model.read(which.data, which.data_root, labelled=False, download=which.download)
        chosen, name = torch.arange(len(graphs)), f"all graphs of {graphs.name}"
    else:
        config = _settings(folder, RunConfig)
        graphs = model.read(config.data, which.data_root or config.data_root, download=which.download)
        chosen = getattr(make_fold(config, graphs, config.fold), which.split)
        name, notes = f"the {which.split} graphs of {graphs.name}", _changed(folder, graphs.digest, graphs.name)
    network, rows = model.network.eval(), drawn(chosen, which)

    def sets() -> Iterator[FeatureSet]:
        for batch in batches(graphs, rows, BATCH):
            yield from network.feature_sets(batch)

    return Source(network.normalization, sets(), len(rows), name, notes)


# ---- pictures --------------------------------------------------------------------------------------------------------


def _open_vision(folder: Path, which: Samples) -> Source:
    from powerpool.tasks.vision.inference import load_run

    model = load_run(folder, download=which.download)
    pool = model.network.pool
    maps, count, name, notes = _stored_maps(folder, which, model) or _computed_maps(folder, which, model)
    return Source(pool.normalization, (pool.feature_set(one) for one in maps), count, name, notes)


def _stored_maps(folder: Path, which: Samples, model: Any) -> Maps | None:
    """Maps that training on frozen features left in the cache, if they are there: nothing has to be computed."""
    from powerpool.data.store import cache_folder
    from powerpool.tasks.vision.extraction import ITEMS, open_features

    if which.data is not None or model.is_trained or not (folder / DATA).exists():
        return None
    facts = {
        "data_digest": read_json(folder / DATA).get("digest"),
        "backbone_digest": model.backbone.digest(),
        "crops": model.crops.config,
    }
    for file in sorted(cache_folder("features").glob(f"*/{ITEMS}"), key=lambda path: -path.stat().st_mtime):
        try:
            found = read_json(file)
            if {name: found["facts"][name] for name in facts} != facts:
                continue
            features = open_features(file.parent)
        except (RecordError, KeyError, TypeError):  # of another version, or not finished: the pictures are read instead
            continue
        stored = features.maps(which.split)
        rows = drawn(torch.arange(len(stored)), which).tolist()
        name = f"the {which.split} pictures of {features.facts['data']}, stored features"
        return (stored[row] for row in rows), len(rows), name, ()
    return None


def _computed_maps(folder: Path, which: Samples, model: Any) -> Maps:
    from powerpool.data import ImageDataset, Splits, load_images
    from powerpool.integrations.backbones import fold_batch_norm
    from powerpool.tasks.vision.config import VisionConfig
    from powerpool.tasks.vision.extraction import Frozen, choose_device, read_images, stream_maps

    notes: tuple[str, ...] = ()
    if which.data is not None:
        uncut = Splits(validation=0.0, test=0.0)
        images = load_images(which.data, which.data_root, download=which.download, splits=uncut)
        first, *others = images.splits.values()
        pictures, name = sum(others, start=first), f"all pictures of {images.name}"
    else:
        config = _settings(folder, VisionConfig)
        config = replace(config, data_root=which.data_root or config.data_root, download=which.download)
        images = read_images(config)[0]
        pictures, name = images[which.split], f"the {which.split} pictures of {images.name}"
        notes = _changed(folder, images.digest, images.name)
    chosen = pictures.select(drawn(torch.arange(len(pictures)), which).tolist())
    example = torch.rand(1, 3, model.crops.size, model.crops.size)
    frozen = Frozen(fold_batch_norm(model.backbone, example), choose_device("auto"))
    parts = stream_maps(ImageDataset(chosen, model.crops), frozen, 0)
    return (maps for part in parts for maps in part), len(chosen), name, notes


# ---- few shots -------------------------------------------------------------------------------------------------------


def _open_fewshot(folder: Path, which: Samples) -> Source:
    from powerpool.tasks.fewshot.config import FewShotConfig
    from powerpool.tasks.fewshot.evaluation import read_set
    from powerpool.tasks.fewshot.model import feature_sets, normalization
    from powerpool.tasks.fewshot.runs import load_run

    model = load_run(folder)
    notes: tuple[str, ...] = ()
    if which.data is not None:
        bank, known = model.pictures.read_all(which.data, which.data_root, download=which.download)
        name = f"all pictures of {known}"
    else:
        config = _settings(folder, FewShotConfig)
        config = replace(config, data_root=which.data_root or config.data_root, download=which.download)
        data = read_set(config)
        if which.split not in data.splits:
            raise ArgumentError(f"{data.name} has no {which.split} classes: choose one of {', '.join(data.splits)}.")
        bank, name = data[which.split], f"pictures of the {which.split} classes of {data.name}"
        notes = _changed(folder, data.digest, data.name)
    network = model.network.eval()
    chosen = drawn(torch.arange(len(bank)), which)

    def sets() -> Iterator[FeatureSet]:
        for part in chosen.split(BATCH):
            yield from feature_sets(network, network.encode(bank.batch(part)))

    return Source(normalization(network), sets(), len(chosen), name, notes)


# ---- all of them -----------------------------------------------------------------------------------------------------


def drawn(rows: Tensor, which: Samples) -> Tensor:
    """As many of the rows as are wanted, drawn without replacement; the same for the same seed."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(which.seed))
    return rows[order[: which.samples]]


def _settings(folder: Path, config_type: type[Config]) -> Config:
    """The configuration of the run, which says what its data is."""
    file = folder / CONFIG
    if not file.is_file():
        raise RecordError(f"{folder} holds no {CONFIG}, which says what it was trained on: name data with --data.")
    return read_recipe(file, config_type)


def _changed(folder: Path, digest: str, name: str) -> tuple[str, ...]:
    if is_of(folder, digest):
        return ()
    return (f"{name} has changed since the run was trained: its samples may be others than those of the training.",)
