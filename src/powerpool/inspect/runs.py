"""Run folders of all pipelines: the feature sets that go into the pooling of a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from powerpool.checkpoints import load_state
from powerpool.checks import ArgumentError
from powerpool.configs import read_recipe
from powerpool.inspect.gathering import SAMPLES, Gathering
from powerpool.inspect.result import Inspection
from powerpool.pipelines.folders import CONFIG, DATA, MODEL, is_of
from powerpool.pipelines.pooling import FeatureSet, Normalization
from powerpool.records import RecordError, read_json

Config = TypeVar("Config")
Split = Literal["train", "validation", "test"]
Watcher = Callable[[int], None]
BATCH = 32


@dataclass(frozen=True)
class Wanted:
    """Which samples of a run are looked at.

    Args:
        run: the run folder.
        data: other data than that of the run; all of it.
        data_root: folder with data sets; that of the run without it.
        split: of the run's own data.
        samples: how many, drawn at random.
        seed: of the draw.
        download: whether data and weights that are not on this machine may be fetched from the network.
    """

    run: str | Path
    data: str | None = None
    data_root: str | None = None
    split: Split = "train"
    samples: int = SAMPLES
    seed: int = 0
    download: bool = False


@dataclass(frozen=True, eq=False)
class Source:
    """The feature sets of a run: made as they are asked for."""

    normalization: Normalization
    sets: Iterator[FeatureSet]
    name: str
    notes: tuple[str, ...] = ()


def inspect_run(wanted: Wanted, watch: Watcher = lambda done: None) -> Inspection:
    """What the pooling of a trained run sees, and what its normalization does to it.

    Args:
        wanted: the run, and which of its samples.
        watch: is told how many samples are done.
    """
    return look(open_run(wanted), wanted.samples, watch)


def look(source: Source, samples: int, watch: Watcher = lambda done: None) -> Inspection:
    """Gather the sets of a run, which are made now."""
    gathering = Gathering(source.normalization, samples)
    with torch.no_grad():
        for one in source.sets:
            gathering.add(one)
            watch(gathering.seen)
            if gathering.is_full:
                break
    return gathering.result(source.name, source.notes)


def open_run(wanted: Wanted) -> Source:
    """Read the model of a run, of whichever pipeline it is, and draw the samples."""
    folder = Path(wanted.run)
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
    return readers[pipeline](wanted)


# ---- graphs ----------------------------------------------------------------------------------------------------------


def _open_graph(wanted: Wanted) -> Source:
    from powerpool.pipelines.graph.commands import RunConfig
    from powerpool.pipelines.graph.evaluation import make_fold
    from powerpool.pipelines.graph.runs import load_run
    from powerpool.pipelines.graph.training import batches

    model = load_run(wanted.run)
    notes: tuple[str, ...] = ()
    if wanted.data is not None:
        graphs = model.read(wanted.data, wanted.data_root, labelled=False, download=wanted.download)
        chosen, name = torch.arange(len(graphs)), f"all graphs of {graphs.name}"
    else:
        config = _settings(wanted, RunConfig)
        graphs = model.read(config.data, wanted.data_root or config.data_root, download=wanted.download)
        chosen = getattr(make_fold(config, graphs, config.fold), wanted.split)
        name, notes = f"the {wanted.split} graphs of {graphs.name}", _changed(wanted, graphs.digest, graphs.name)
    network = model.network.eval()

    def sets() -> Iterator[FeatureSet]:
        for batch in batches(graphs, drawn(chosen, wanted), BATCH):
            yield from network.feature_sets(batch)

    return Source(network.normalization, sets(), name, notes)


# ---- pictures --------------------------------------------------------------------------------------------------------


def _open_vision(wanted: Wanted) -> Source:
    from powerpool.pipelines.vision.runs import load_run

    model = load_run(wanted.run, download=wanted.download)
    pool = model.network.pool
    maps, name, notes = _stored_maps(wanted, model) or _computed_maps(wanted, model)
    return Source(pool.normalization, (pool.feature_set(one) for one in maps), name, notes)


def _stored_maps(wanted: Wanted, model: Any) -> tuple[Iterator[Tensor], str, tuple[str, ...]] | None:
    """Maps that training on frozen features left in the cache, if they are there: nothing has to be computed."""
    from powerpool.data.places import cache_folder
    from powerpool.pipelines.vision.extraction import ITEMS, open_features

    if wanted.data is not None or model.is_trained or not Path(wanted.run, DATA).exists():
        return None
    facts = {
        "data_digest": read_json(Path(wanted.run, DATA)).get("digest"),
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
        stored = features.maps(wanted.split)
        rows = drawn(torch.arange(len(stored)), wanted).tolist()
        name = f"the {wanted.split} pictures of {features.facts['data']}, stored features"
        return (stored[row] for row in rows), name, ()
    return None


def _computed_maps(wanted: Wanted, model: Any) -> tuple[Iterator[Tensor], str, tuple[str, ...]]:
    from powerpool.data import ImageDataset, Splits, load_images
    from powerpool.integrations.backbones import fold_batch_norm
    from powerpool.pipelines.vision.config import VisionConfig
    from powerpool.pipelines.vision.evaluation import read_images
    from powerpool.pipelines.vision.extraction import Frozen, choose_device, stream_maps

    notes: tuple[str, ...] = ()
    if wanted.data is not None:
        uncut = Splits(validation=0.0, test=0.0)
        images = load_images(wanted.data, wanted.data_root, download=wanted.download, splits=uncut)
        first, *others = images.splits.values()
        pictures, name = sum(others, start=first), f"all pictures of {images.name}"
    else:
        config = _settings(wanted, VisionConfig)
        config = replace(config, data_root=wanted.data_root or config.data_root, download=wanted.download)
        images = read_images(config)[0]
        pictures, name = images[wanted.split], f"the {wanted.split} pictures of {images.name}"
        notes = _changed(wanted, images.digest, images.name)
    chosen = pictures.select(drawn(torch.arange(len(pictures)), wanted).tolist())
    example = torch.rand(1, 3, model.crops.size, model.crops.size)
    frozen = Frozen(fold_batch_norm(model.backbone, example), choose_device("auto"))
    parts = stream_maps(ImageDataset(chosen, model.crops), frozen, 0)
    return (maps for part in parts for maps in part), name, notes


# ---- few shots -------------------------------------------------------------------------------------------------------


def _open_fewshot(wanted: Wanted) -> Source:
    from powerpool.data import Splits, load_images
    from powerpool.data.banks import read_bank
    from powerpool.pipelines.fewshot.config import FewShotConfig
    from powerpool.pipelines.fewshot.evaluation import read_set
    from powerpool.pipelines.fewshot.model import feature_sets, normalization
    from powerpool.pipelines.fewshot.runs import load_run

    model = load_run(wanted.run)
    notes: tuple[str, ...] = ()
    if wanted.data is not None:
        uncut = Splits(validation=0.0, test=0.0)
        images = load_images(wanted.data, wanted.data_root, download=wanted.download, splits=uncut)
        first, *others = images.splits.values()
        settings = {name: value for name, value in asdict(model.pictures).items() if name != "centred"}
        bank = read_bank(sum(others, start=first), images.classes, **settings)
        bank = bank.centred() if model.pictures.centred else bank
        name = f"all pictures of {images.name}"
    else:
        config = _settings(wanted, FewShotConfig)
        config = replace(config, data_root=wanted.data_root or config.data_root, download=wanted.download)
        data = read_set(config)
        if wanted.split not in data.splits:
            raise ArgumentError(f"{data.name} has no {wanted.split} classes: choose one of {', '.join(data.splits)}.")
        bank, name = data[wanted.split], f"pictures of the {wanted.split} classes of {data.name}"
        notes = _changed(wanted, data.digest, data.name)
    network = model.network.eval()
    chosen = drawn(torch.arange(len(bank)), wanted)

    def sets() -> Iterator[FeatureSet]:
        for part in chosen.split(BATCH):
            yield from feature_sets(network, network.encode(bank.batch(part)))

    return Source(normalization(network), sets(), name, notes)


# ---- all of them -----------------------------------------------------------------------------------------------------


def drawn(rows: Tensor, wanted: Wanted) -> Tensor:
    """As many of the rows as are wanted, drawn without replacement; the same for the same seed."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(wanted.seed))
    return rows[order[: wanted.samples]]


def _settings(wanted: Wanted, config_type: type[Config]) -> Config:
    """The configuration of the run, which says what its data is."""
    file = Path(wanted.run, CONFIG)
    if not file.is_file():
        raise RecordError(f"{wanted.run} holds no {CONFIG}, which says what it was trained on: name data with --data.")
    return read_recipe(file, config_type)


def _changed(wanted: Wanted, digest: str, name: str) -> tuple[str, ...]:
    if is_of(wanted.run, digest):
        return ()
    return (f"{name} has changed since the run was trained: its samples may be others than those of the training.",)
