"""``powerpool sweep vision``: validation accuracy against one setting, as in the paper's sensitivity plots."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from powerpool.cli.reproduce_vision import (
    read_config,
    read_features,
    require_processes,
    shared_settings,
    validate_stored,
)
from powerpool.console import emit, say
from powerpool.errors import ArgumentError, require_choice
from powerpool.files import locked, write_json
from powerpool.report.plots import draw_sweep
from powerpool.runs.engines import EngineOptions
from powerpool.runs.environment import environment
from powerpool.runs.folder import write_answers
from powerpool.runs.provenance import fingerprint, guarded, origin_of
from powerpool.runs.quick import FLAG, is_quick_recipe
from powerpool.runs.scheduler import Unit, run_units
from powerpool.tasks.vision.commands import read_pictures
from powerpool.tasks.vision.config import GridConfig, VisionConfig, grid_names
from powerpool.tasks.vision.extraction import Features
from powerpool.tasks.vision.methods import METHODS
from powerpool.tasks.vision.studies import PAPER, SCHEMA, STUDIES


@dataclass(frozen=True)
class SweepOptions(EngineOptions):
    """Try the values of one setting on the validation pictures, and pick the best. The test pictures are not looked at.

    Args:
        data: a data set that has a recipe, such as flower102, or a folder or zip of class folders
        over: settings, each of which is tried while the others stay as the recipe has them: beta, alpha, eta_prime and
            eta, as in the paper, and also gamma, gamma_prime, t, sigma and pivots
        values: to try, where there is one setting; a usual range without it
        method: to try them with, where there is one setting; the paper's without it
        recipe: other settings than those of the data set: a YAML file, or the name of one that ships
        quick: small pictures, to see that everything runs; the figures mean nothing
        jobs: values that are tried at once, each on one thread; as many as there are cores without it
        workers: processes that read pictures, and run the backbone on a CPU; as many as there are cores without it
        seed: of splits and batches, instead of that of the recipe
        out: where results and plots go; runs/sweep/vision (-quick) without it
        data_root: folder with data sets; without it $POWERPOOL_DATA and the cache are searched
        download: whether data and weights that are not on this machine may be fetched from the network
    """

    data: str | None = None
    over: list[str] = field(default_factory=lambda: list(PAPER))
    values: list[float] = field(default_factory=list)
    method: str | None = None
    recipe: str | None = None
    quick: bool = False
    jobs: int | None = None
    workers: int | None = None
    seed: int | None = None
    out: str | None = None
    data_root: str | None = None
    download: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.over or len(set(self.over)) != len(self.over):
            raise ArgumentError(f"over must name at least one setting, and each once (got {self.over}).")
        for name in self.over:
            require_choice(name, tuple(STUDIES), "value of over")
        require_processes(self.jobs, self.workers)
        if len(self.over) > 1 and (self.values or self.method):
            raise ArgumentError(f"values and method need one setting in over (got {', '.join(self.over)}).")
        if self.method is not None:
            require_choice(self.method, tuple(METHODS), "method")
            if self.over[0] not in grid_names(self.method):
                depends = ", ".join(grid_names(self.method)) or "no setting"
                raise ArgumentError(f"{self.method} does not depend on {self.over[0]}: it depends on {depends}.")

    @property
    def is_quick(self) -> bool:
        """Whether the figures mean nothing, which the records then say."""
        return self.quick or is_quick_recipe(self.recipe)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or f"runs/sweep/vision{'-quick' if self.quick else ''}")


def run(options: SweepOptions) -> None:
    """Try what is not done yet, then write values and plots, and print what was picked."""
    start = environment()
    with locked(options.folder):
        recipe = read_config(options, options.data if options.data or options.recipe else "digits")
        # Before the features: a value that the method cannot have shows at once.
        configs = {name: make_config(options, recipe, name) for name in options.over}
        features = read_features(recipe, read_pictures(recipe), options.workers)
        units = {name: make_units(config, features, options.folder) for name, config in configs.items()}
        # Two settings meet where both have the values of the recipe: that is one unit.
        every = {unit.path: unit for one in units.values() for unit in one}
        done = run_units(list(every.values()), options.jobs, description="values", engine=options.runs_on)
        results = dict(zip(every, done, strict=True))
        found = {name: [results[unit.path] for unit in one] for name, one in units.items()}
        emit([_write(options, name, configs[name], features, points, start) for name, points in found.items()])


def make_config(options: SweepOptions, recipe: VisionConfig, name: str) -> VisionConfig:
    """The recipe with a grid over one setting alone."""
    study = STUDIES[name]
    values = options.values or list(study.values)
    if name == "pivots":
        whole = [int(value) for value in values if value == int(value)]
        if len(whole) < len(values):
            raise ArgumentError(f"values of {name} must be whole numbers (got {values}).")
        values = list(whole)
    pool = replace(recipe.pool, method=options.method or study.method)
    return replace(recipe, pool=pool, grid=GridConfig(**{name: values}))  # type: ignore[arg-type]


def make_units(config: VisionConfig, features: Features, folder: Path) -> list[Unit]:
    """One for each value."""
    data, method = features.facts["data"], config.pool.method
    units = []
    for pool in config.points():
        point = replace(config, pool=pool, grid=GridConfig())
        name = fingerprint("vision", shared_settings(point, features), features.facts)
        units.append(
            Unit(
                folder / "points" / f"{name}.json",
                f"{data} {method}",
                guarded("vision", partial(validate_stored, (point,), pool, features.folder)),
                (point.head.kind, "origin"),
            )
        )
    return units


def _write(
    options: SweepOptions,
    name: str,
    config: VisionConfig,
    features: Features,
    points: list[dict[str, Any]],
    start: dict[str, Any],
) -> dict[str, Any]:
    """Write what was found of a setting, and print what was picked. What is written is returned, with the files."""
    data, method = str(features.facts["data"]), config.pool.method
    own = [point[config.head.kind] for point in points]
    rows = [{name: point["chosen"][name], "accuracy": point["value"], "loss": point["loss"]} for point in own]
    # Of equally good values that with the lower loss, of equal ones the first.
    picked = min(rows, key=lambda row: (-row["accuracy"], row["loss"], row[name]))
    stem = options.folder / f"{data}-{method}-{name}"
    settings = {**shared_settings(config, features), "pool": asdict(config.pool)}
    found = {
        "schema": SCHEMA,
        "data": data,
        "method": method,
        "setting": name,
        "metric": "top-1 accuracy in % on validation pictures",
        "values": rows,
        "pictures": len(features.targets["validation"]),
        "picked": picked[name],
        "config": settings,
        "environment": {**origin_of(points, start), **({FLAG: True} if options.is_quick else {})},
    }
    written = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("json", "csv", "svg")]
    write_json(written[0], found)
    write_answers(rows, str(written[1]))
    draw_sweep(rows, name, f"{method} on validation pictures of {data}", written[2])
    say(
        f"{name} of {method} on {data}: {picked[name]:g} has {picked['accuracy']:.2f} % of validation pictures right, "
        f"the worst value {min(row['accuracy'] for row in rows):.2f} %. Written: {stem}.json, .csv, .svg"
    )
    return {**found, "written": written}
