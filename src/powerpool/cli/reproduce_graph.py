"""``powerpool reproduce graph``: methods x data sets x folds, as in the paper's tables of graph classification."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from powerpool.data import GraphSet
from powerpool.errors import ArgumentError, require_choice
from powerpool.files import locked
from powerpool.report.report import BASELINE, Reproduced, conclude, tell
from powerpool.runs.config import Setting, make_config, read_settings, recipe_names
from powerpool.runs.engines import EngineOptions
from powerpool.runs.environment import environment
from powerpool.runs.provenance import fingerprint, guarded, origin_of, without_origin
from powerpool.runs.quick import is_quick_recipe
from powerpool.runs.record import RunRecord
from powerpool.runs.scheduler import Unit, run_units
from powerpool.tasks.graph.config import PROTOCOLS, GraphConfig
from powerpool.tasks.graph.evaluation import METRIC, make_fold, read_graphs, retrain, validation_only
from powerpool.tasks.graph.methods import METHODS

PLACES = ("data_root", "download")
"""Settings that say where data is, on which no result depends."""
RESULT = ("fold", "value", "chosen", "epoch", "seconds", "origin")
"""What the result of a fold has at least."""


@dataclass(frozen=True)
class ReproduceGraphOptions(EngineOptions):
    """Train and test readouts by fold, and put the table beside the paper's figures.

    Args:
        data: data sets of the TU collection, each of which has a recipe, or folders or zips in the TU format
        methods: rows of the table; all of them without it. The method of a recipe is not looked at
        protocols: validation-only, retrain or both
        recipe: settings for all data sets, instead of those of each: a YAML file, or the name of one that ships
        quick: a few small trainings, to see that everything runs; the figures mean nothing
        full: a grid over the paper's whole ranges of hidden units and layers: hours to days
        jobs: folds that run at once, each on one thread; as many as there are cores without it. Figures do not
            depend on it
        seed: of folds, weights and batches, instead of that of the recipe
        out: where fold results, records and the report go; runs/reproduce/graph (-quick, -full) without it
        data_root: folder with data sets, as zips or folders; without it $POWERPOOL_DATA and the cache are searched
        download: whether data that is not on this machine may be fetched from the network
    """

    data: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    protocols: list[str] = field(default_factory=lambda: list(PROTOCOLS))
    recipe: str | None = None
    quick: bool = False
    full: bool = False
    jobs: int | None = None
    seed: int | None = None
    out: str | None = None
    data_root: str | None = None
    download: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("methods", tuple(METHODS)), ("protocols", PROTOCOLS)):
            for value in getattr(self, name):
                require_choice(value, choices, f"value of {name}")
        for name in ("data", "methods", "protocols"):
            values = getattr(self, name)
            if len(set(values)) != len(values) or (name != "data" and not values):
                raise ArgumentError(f"{name} must name at least one, and each once (got {values}).")
        chosen = [f"--{name}" for name in ("recipe", "quick", "full") if getattr(self, name)]
        if len(chosen) > 1:
            raise ArgumentError(f"{' and '.join(chosen)} contradict one another: each says which settings to take.")

    @property
    def data_sets(self) -> list[str | None]:
        """What to read; None for the data set that the recipe names, which is MUTAG if none does."""
        return [*self.data] or ([None] if self.recipe else ["MUTAG"])

    @property
    def is_quick(self) -> bool:
        """Whether the figures mean nothing."""
        return self.quick or is_quick_recipe(self.recipe)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        scale = "-quick" if self.quick else "-full" if self.full else ""
        return Path(self.out or f"runs/reproduce/graph{scale}")


@dataclass(frozen=True)
class Row:
    """A method on a data set: a row of a table."""

    config: GraphConfig
    graphs: GraphSet
    folder: Path
    """Where the results of its folds are: for these settings, graphs, versions and this code alone."""

    @property
    def method(self) -> str:
        """The name of the row."""
        return self.config.model.method


def run(options: ReproduceGraphOptions) -> None:
    """Run what is not done yet, then write the records and the report, and say where they are."""
    tell(reproduce(options), options.folder)


def reproduce(options: ReproduceGraphOptions, *, report: bool = True) -> Reproduced:
    """Run what is not done yet, then write the records and, unless it is left to the caller, the report."""
    start = environment()
    with locked(options.folder):
        rows = [row for data in options.data_sets for row in make_rows(options, data)]
        _require_names(options, rows)
        folds = [(row.config, fold, row.graphs.digest) for row in rows for fold in range(row.config.folds)]
        chosen = _run("validation-only", rows, [partial(validation_only, *fold) for fold in folds], options)
        results = {"validation-only": chosen}
        if "retrain" in options.protocols:
            work = [partial(retrain, *fold, result) for fold, result in zip(folds, chosen, strict=True)]
            results["retrain"] = _run("retrain", rows, work, options)
        remaining = {protocol: iter(results[protocol]) for protocol in options.protocols}
        records = [
            make_record(row, protocol, list(islice(remaining[protocol], row.config.folds)), start)
            for protocol in options.protocols
            for row in rows
        ]
        return conclude(records, options.folder, quick=options.is_quick, report=report)


def make_rows(options: ReproduceGraphOptions, data: str | None) -> list[Row]:
    """The rows of a data set, once its graphs were read and can be cut into the folds that are asked for."""
    recipe = read_config(options, data)
    graphs = read_graphs(recipe)
    make_fold(recipe, graphs, 0)
    rows = []
    for method in options.methods:
        # A recipe is for all methods: its beta is for those that have one.
        beta = recipe.model.beta if "beta" in METHODS[method].parameters else 0.0
        config = replace(recipe, model=replace(recipe.model, method=method, beta=beta))
        folder = options.folder / "folds" / graphs.name / f"{method}-{_fingerprint(config, graphs)}"
        rows.append(Row(config, graphs, folder))
    return rows


def read_config(options: ReproduceGraphOptions, data: str | None) -> GraphConfig:
    """The settings for a data set: of its recipe, then of ``--quick`` or ``--full``, then the options themselves.

    Without a name the data set is that of the recipe.
    """
    names = recipe_names()
    settings = read_settings(
        options.recipe or (f"graph/{data}" if f"graph/{data}" in names else "graph/default"), GraphConfig
    )
    for scale in ("quick", "full"):
        if getattr(options, scale):
            settings |= read_settings(f"graph/{scale}", GraphConfig)
    typed = {"data": data, "data_root": options.data_root, "download": options.download, "seed": options.seed}
    settings |= {name: Setting(value) for name, value in typed.items() if value is not None}
    # The methods are those of the options. This one fits whatever parameters the recipe has for others.
    return make_config(GraphConfig, {**settings, "model.method": Setting(BASELINE)})


def make_record(row: Row, protocol: str, folds: list[dict[str, Any]], start: dict[str, Any]) -> RunRecord:
    """The record of a row, from the results of its folds."""
    return RunRecord(
        pipeline="graph",
        data=row.graphs.name,
        method=row.method,
        protocol=protocol,
        metric=METRIC,
        folds=tuple(without_origin(fold) for fold in folds),
        config=_settings(row.config, row.graphs),
        seed=row.config.seed,
        seconds=sum(fold["seconds"] for fold in folds),
        environment=origin_of(folds, start),
    )


def _run(
    protocol: str, rows: list[Row], work: list[partial[dict[str, Any]]], options: ReproduceGraphOptions
) -> list[dict[str, Any]]:
    """The result of every fold of every row under a protocol; those that are on the disk are read."""
    places = [(row, fold) for row in rows for fold in range(row.config.folds)]
    units = [
        Unit(
            row.folder / f"{protocol}-{fold:02d}.json",
            f"{row.graphs.name} {row.method} fold {fold}",
            guarded("graph", one),
            RESULT,
        )
        for (row, fold), one in zip(places, work, strict=True)
    ]
    return run_units(units, options.jobs, description=f"folds of {protocol}", engine=options.runs_on)


def _require_names(options: ReproduceGraphOptions, rows: list[Row]) -> None:
    """Refuse two data sets of one name, whose records would take each other's place."""
    names = [row.graphs.name for row in rows[:: len(options.methods)]]
    for data, name in zip(options.data_sets, names, strict=True):
        if names.count(name) > 1:
            raise ArgumentError(
                f"data names {names.count(name)} data sets that are called {name} (one is {data}). Rename a folder, or "
                "give each a command and an --out of its own."
            )


def _settings(config: GraphConfig, graphs: GraphSet) -> dict[str, Any]:
    """The configuration, with name and content of the data instead of the place where it lay."""
    settings = {name: value for name, value in asdict(config).items() if name not in PLACES}
    return {**settings, "data": graphs.name, "data_digest": graphs.digest}


def _fingerprint(config: GraphConfig, graphs: GraphSet) -> str:
    """Another one for other settings, graphs, versions or code, so that no result is taken for another's."""
    import torch_geometric

    return fingerprint("graph", _settings(config, graphs), torch_geometric.__version__)
