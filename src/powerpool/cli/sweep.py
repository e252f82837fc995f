"""``powerpool sweep TASK``: validation accuracy as a function of one setting, as in the paper's sensitivity plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from powerpool.cli.show import show_progress, write_answers
from powerpool.console import emit, print_line
from powerpool.errors import ArgumentError
from powerpool.files import locked, write_json
from powerpool.report.plots import draw_sweep
from powerpool.runs.environment import Environment, environment, merge_environments, resume_key
from powerpool.runs.record import Trial
from powerpool.runs.scheduler import WorkUnit, run_units
from powerpool.runs.typed import Json, from_json, to_json
from powerpool.tasks.base import SweepableTask, get_task, ignore_progress
from powerpool.tasks.vision.options import SCHEMA

AnyTask = SweepableTask[Any, Any, Any, Any]


@dataclass(frozen=True)
class Tried:
    """The validation score of a configuration, and where it was computed."""

    trial: Trial
    environment: Environment


def run(options: Any) -> None:
    """Try the values that are not done yet, write values and plots, and print the best values."""
    task = _get_task(options.task)
    with locked(options.folder):
        recipe = options.read_config()
        # Before the data is read: a value that the method cannot have is refused at once.
        configs = {name: options.points(recipe, name) for name in options.over}
        with show_progress() as watch:
            data = task.load(recipe, watch)
        units = {name: [_make_unit(task, config, data, options.folder) for config in configs[name]] for name in configs}
        # Where two settings have the values of the recipe they share a unit.
        every = {unit.path: unit for own in units.values() for unit in own}
        answers = run_units(list(every.values()), options.jobs, description="values", engine=options)
        found = dict(zip(every, answers, strict=True))
        emit(
            [
                _write(task, options, name, configs[name], data, [from_json(Tried, found[unit.path]) for unit in own])
                for name, own in units.items()
            ]
        )


def try_point(name: str, config: Any, protocol: str, reference: Json) -> dict[str, Json]:
    """Fit a configuration with a single grid point and return its validation score; what a worker does."""
    task = _get_task(name)
    data = task.open(config, reference)
    (unit,) = task.units(config, 0)
    fit = task.fit(config, data, unit, [protocol], None, ignore_progress)
    found: dict[str, Json] = to_json(Tried(task.trial(fit, protocol), environment()))
    return found


def _get_task(name: str) -> AnyTask:
    task = get_task(name)
    if not isinstance(task, SweepableTask):
        raise ArgumentError(f"Settings of {name} cannot be swept.")
    return task


def _make_unit(task: AnyTask, config: Any, data: Any, folder: Path) -> WorkUnit:
    key = resume_key(task.name, task.version, task.settings(config, data), task.packages)
    work = partial(try_point, task.name, config, task.protocol(config), task.reference(config, data))
    title = f"{task.identity(data).name} {task.method(config)}"
    return WorkUnit(folder / "points" / f"{key}.json", title, work, ("trial", "environment"))


def _write(
    task: AnyTask, options: Any, name: str, configs: Sequence[Any], data: Any, tried: Sequence[Tried]
) -> dict[str, Any]:
    """Write the values of a setting, print the best, and return what was written, with the files."""
    title, method = task.identity(data).name, task.method(configs[0])
    rows = [{name: one.trial.settings[name], "accuracy": one.trial.value, "loss": one.trial.loss} for one in tried]
    # The highest accuracy; of equal ones the lowest loss, then the smallest value.
    picked = min(rows, key=lambda row: (-row["accuracy"], row["loss"], row[name]))
    settings = task.settings(configs[0], data)
    where = merge_environments([one.environment for one in tried], environment().command)
    found = {
        "schema": SCHEMA,
        "data": title,
        "method": method,
        "setting": name,
        "metric": f"{task.metric} on validation images",
        "values": rows,
        "pictures": settings["pictures"]["validation"],
        "picked": picked[name],
        "config": settings,
        "environment": to_json(replace(where, quick=options.is_quick)),
    }
    stem = options.folder / f"{title}-{method}-{name}"
    written = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("json", "csv", "svg")]
    write_json(written[0], found)
    write_answers(rows, written[1])
    draw_sweep(rows, name, f"{method} on validation images of {title}", written[2])
    print_line(
        f"{name} of {method} on {title}: {picked[name]:g} has the highest validation accuracy, "
        f"{picked['accuracy']:.2f} %; the worst value has {min(row['accuracy'] for row in rows):.2f} %. "
        f"Written: {stem}.json, .csv, .svg"
    )
    return {**found, "written": written}
