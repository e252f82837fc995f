"""``powerpool reproduce graph``: methods x data sets x folds, as in the paper's tables of graph classification."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from powerpool import __version__
from powerpool.checks import ArgumentError, require_choice
from powerpool.configs import read_recipe, recipe_names
from powerpool.data import GraphSet
from powerpool.experiments.report import BASELINE, read_records, record_path, write_report
from powerpool.experiments.runner import WORKER_VARIABLES, Unit, run_units
from powerpool.locks import locked
from powerpool.pipelines.graph.config import PROTOCOLS, GraphConfig
from powerpool.pipelines.graph.evaluation import METRIC, make_fold, read_graphs, retrain, validation_only
from powerpool.pipelines.graph.methods import METHODS
from powerpool.records import RunRecord, environment

PLACES = ("data_root", "download")
"""Settings that say where data is, on which no result depends."""
SEED_STEP = 100
"""From the seed of one repetition to the next: seeds of other runs, which people count from 0 on, are not repeated."""


@dataclass(frozen=True)
class ReproduceGraphOptions:
    """Train and test readouts by fold, and put the table beside the paper's figures.

    Args:
        data: data sets of the TU collection; each has a recipe with its settings
        methods: rows of the table; all of them without it
        protocols: validation-only, retrain or both
        recipe: settings for all data sets, instead of those of each: a YAML file, or the name of one that is installed
        quick: a few small trainings, to see that everything runs; the figures mean nothing
        full: the whole grid of the paper, instead of the small one
        jobs: folds that run at once, each on one thread; as many as there are cores without it. Figures do not
            depend on it
        repeats: cross-validations, each with other folds and weights, that a record is made of
        seed: of folds, weights and batches, instead of that of the recipe
        out: where fold results, records and the report go; runs/reproduce/graph (-quick, -full) without it
        data_root: folder with data sets, as zips or folders; without it $POWERPOOL_DATA and the cache are searched
        download: whether data that is not on this machine may be fetched from the network
    """

    data: list[str] = field(default_factory=lambda: ["MUTAG"])
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    protocols: list[str] = field(default_factory=lambda: list(PROTOCOLS))
    recipe: str | None = None
    quick: bool = False
    full: bool = False
    jobs: int | None = None
    repeats: int = 1
    seed: int | None = None
    out: str | None = None
    data_root: str | None = None
    download: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("methods", tuple(METHODS)), ("protocols", PROTOCOLS)):
            for value in getattr(self, name):
                require_choice(value, choices, f"value of {name}")
        for name in ("data", "methods", "protocols"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ArgumentError(f"{name} must name at least one, and each once (got {values}).")
        if self.repeats < 1:
            raise ArgumentError(f"repeats must be at least 1 (got {self.repeats}).")
        chosen = [f"--{name}" for name in ("recipe", "quick", "full") if getattr(self, name)]
        if len(chosen) > 1:
            raise ArgumentError(f"{' and '.join(chosen)} contradict one another: each says which settings to take.")

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        scale = "-quick" if self.quick else "-full" if self.full else ""
        return Path(self.out or f"runs/reproduce/graph{scale}")


@dataclass(frozen=True)
class Part:
    """A fold of a row."""

    config: GraphConfig
    """With the seed of its repetition."""
    fold: int
    folder: Path
    """Where its results are: for these settings, this data and these versions alone."""


@dataclass(frozen=True)
class Row:
    """A method on a data set: a row of a table."""

    config: GraphConfig
    data: str
    """The name of the data set; in the configuration it may be a folder."""
    parts: list[Part]
    """The folds of the first repetition, then those of the next."""


def run(options: ReproduceGraphOptions) -> None:
    """Run what is not done yet, then write the records and the report, and say where they are."""
    from rich.console import Console

    folder, start = options.folder, environment()
    with locked(folder):
        rows = [row for data in options.data for row in make_rows(options, data)]
        parts = [part for row in rows for part in row.parts]
        chosen = _run(
            "validation-only", parts, [partial(validation_only, part.config, part.fold) for part in parts], options.jobs
        )
        results = {"validation-only": chosen}
        if "retrain" in options.protocols:
            work = [
                partial(retrain, part.config, part.fold, result) for part, result in zip(parts, chosen, strict=True)
            ]
            results["retrain"] = _run("retrain", parts, work, options.jobs)
        for protocol in options.protocols:
            folds = iter(results[protocol])
            for row in rows:
                record = make_record(row, protocol, list(islice(folds, len(row.parts))), start)
                record.write(folder / record_path(record))
        records = read_records(folder)
        written = write_report(records, folder, baseline=BASELINE, order=tuple(METHODS))
    console = Console()
    for path in written[:2]:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


def make_rows(options: ReproduceGraphOptions, data: str) -> list[Row]:
    """The rows of a data set, once its graphs were read and can be cut into the folds that are asked for."""
    recipe = read_settings(options, data)
    graphs = read_graphs(recipe)
    make_fold(recipe, graphs, 0)
    rows = []
    for method in options.methods:
        # A recipe is for all methods: its beta is for those that have one.
        beta = recipe.model.beta if "beta" in METHODS[method].parameters else 0.0
        config = replace(recipe, model=replace(recipe.model, method=method, beta=beta))
        parts = []
        for repetition in range(options.repeats):
            repeated = replace(config, seed=config.seed + SEED_STEP * repetition)
            folder = options.folder / "folds" / graphs.name / f"{method}-{_fingerprint(repeated, graphs)}"
            parts += [Part(repeated, fold, folder) for fold in range(config.folds)]
        rows.append(Row(config, graphs.name, parts))
    return rows


def read_settings(options: ReproduceGraphOptions, data: str) -> GraphConfig:
    """The recipe for a data set, with the options that replace values of it."""
    scale = "graph/quick" if options.quick else "graph/full" if options.full else f"graph/{data}"
    name = options.recipe or (scale if scale in recipe_names() else "graph/default")
    changes = {"data": data, "data_root": options.data_root, "download": options.download}
    return read_recipe(name, GraphConfig, changes if options.seed is None else {**changes, "seed": options.seed})


def make_record(row: Row, protocol: str, folds: list[dict[str, Any]], start: dict[str, Any]) -> RunRecord:
    """The record of a row, from the results of its folds."""
    numbered = [
        {**result, "fold": number, "seed": part.config.seed}
        for number, (part, result) in enumerate(zip(row.parts, folds, strict=True))
    ]
    return RunRecord(
        pipeline="graph",
        data=row.data,
        method=row.config.model.method,
        protocol=protocol,
        metric=METRIC,
        folds=tuple(numbered),
        config=_settings(row.config),
        seed=row.config.seed,
        seconds=sum(fold["seconds"] for fold in folds),
        # Folds run in processes of their own.
        environment={**start, "threads": 1, "variables": WORKER_VARIABLES},
    )


def _run(
    protocol: str, parts: list[Part], work: list[partial[dict[str, Any]]], jobs: int | None
) -> list[dict[str, Any]]:
    """The result of every fold under a protocol; those that are on the disk are read."""
    units = [
        Unit(
            part.folder / f"{protocol}-{part.fold:02d}.json",
            f"{part.folder.parent.name} {part.config.model.method} seed {part.config.seed} fold {part.fold}",
            one,
        )
        for part, one in zip(parts, work, strict=True)
    ]
    return run_units(units, jobs, description=f"folds of {protocol}")


def _settings(config: GraphConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in PLACES}


def _fingerprint(config: GraphConfig, graphs: GraphSet) -> str:
    """Another one for other settings, other graphs or other versions, so that no result is taken for another's."""
    digest = hashlib.blake2b(digest_size=4)
    digest.update(json.dumps([_settings(config), __version__, torch.__version__], sort_keys=True).encode())
    for column in (graphs.columns, graphs.node_ptr, graphs.edge_index, graphs.targets):
        digest.update(column.numpy().tobytes())
    return digest.hexdigest()
