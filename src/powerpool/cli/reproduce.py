"""Commands that run many trainings through the scheduler, written once for all tasks.

``powerpool reproduce TASK`` runs the chains of all methods and data sets and writes a report. ``powerpool sweep TASK``
measures validation accuracy as a function of one setting, as in the paper's sensitivity plots.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from powerpool.cli.commands import show_progress, write_answers
from powerpool.console import emit, print_line, print_note
from powerpool.errors import ArgumentError
from powerpool.files import locked, write_json, write_text
from powerpool.report.plots import draw_sweep
from powerpool.report.write import Reproduced, file_records, print_summary
from powerpool.runs.config import to_yaml
from powerpool.runs.environment import Environment, environment, merge_environments, resume_key
from powerpool.runs.folder import CHECKPOINTS, CONFIG, DATA
from powerpool.runs.record import KINDS, Result, RunRecord, Trial
from powerpool.runs.scheduler import WorkUnit, is_done, run_units
from powerpool.runs.typed import Json, from_json, to_json
from powerpool.tasks.base import Row, SweepableTask, Task, get_task, ignore_progress, run_chain
from powerpool.tasks.options import ReproduceOptions

AnyTask = Task[Any, Any, Any, Any]
AnyRow = Row[Any, Any]
AnySweep = SweepableTask[Any, Any, Any, Any]


def run(options: ReproduceOptions) -> None:
    """Run what is not done yet, write records and report, and print where they are."""
    print_summary(reproduce(options), options.folder)


def reproduce(options: ReproduceOptions, *, report: bool = True) -> Reproduced:
    """Run what is not done yet, and write the records and, unless told otherwise, the report."""
    task = get_task(options.task)
    environment()  # before the trainings, because the commit is looked up once: the code may change while they run
    with show_progress() as watch:
        studied = task.study(options, watch)
        rows = task.plan(options, watch) if studied is None else []
    if studied is not None:
        with locked(options.folder):
            return file_records(studied, options.folder, quick=options.is_quick, report=report)
    _require_distinct_rows(rows)
    for remark in dict.fromkeys(remark for row in rows for remark in task.data_remarks(row.data)):
        print_note(remark)
    with locked(options.folder):
        answers: dict[tuple[AnyRow, int], Answer] = {}
        for wave in _waves(rows):
            answers |= _run_rows(task, wave, options)
        records = []
        for row, parts in _group_rows(rows).items():
            own = [answers[part, place] for part in parts for place in range(len(part.configs))]
            for protocol in row.protocols:
                records.append(_make_record(task, row, protocol, own))
                for result in [] if options.is_quick else records[-1].results:
                    for remark in task.result_remarks(row.configs[0], protocol, result):
                        print_note(f"{row.data_name}, {remark}")
        return file_records(records, options.folder, quick=options.is_quick, report=report)


@dataclass(frozen=True)
class Answer:
    """What a unit of work gives: the results of a chain by protocol, and where they were computed."""

    results: dict[str, Json]
    environment: Environment

    def result(self, task: str, protocol: str) -> Result:
        """Return a typed result."""
        return from_json(KINDS[task], self.results[protocol], protocol)


def chain_folder(task: AnyTask, row: AnyRow, place: int, root: Path) -> Path:
    """Return the folder of a chain: for these settings, data, versions and this version of the task alone."""
    settings = {**task.settings(row.configs[place], row.data), **row.settings}
    key = resume_key(task.name, task.version, settings, task.packages)
    return root / "units" / row.data_name / f"{row.method}-{key}"


def result_path(task: AnyTask, row: AnyRow, place: int, root: Path) -> Path:
    """Return the file of the result of a chain."""
    name = f"{row.chain(place):02d}-{'-'.join(row.protocols)}.json"
    return chain_folder(task, row, place, root) / name


def compute_chain(
    name: str,
    config: Any,
    chain: int,
    protocols: tuple[str, ...],
    reference: Json,
    folder: Path,
    keeps_model: bool = False,
) -> dict[str, Json]:
    """Run a chain in this process, as a worker does; a model that is kept can be evaluated from the folder."""
    task, where = get_task(name), environment()  # before the training, because the code may change while it runs
    data = task.open(config, reference)
    outcome = run_chain(task, config, data, chain, protocols, folder / CHECKPOINTS / f"{chain:02d}")
    if keeps_model:  # the same model under every protocol
        write_json(folder / DATA, to_json(task.identity(data)))
        write_text(folder / CONFIG, to_yaml(config))
        task.save(next(iter(outcome.models.values())), folder)
    return {
        "results": {protocol: to_json(result) for protocol, result in outcome.results.items()},
        "environment": to_json(where),
    }


def _run_rows(task: AnyTask, rows: Sequence[AnyRow], options: ReproduceOptions) -> dict[tuple[AnyRow, int], Answer]:
    places, work, finished = [], [], []
    for row in rows:
        for place, config in enumerate(row.configs):
            chain = row.chain(place)
            folder = chain_folder(task, row, place, options.folder)
            own = config
            if row.source is not None and row.start_from is not None:
                own = row.start_from(config, result_path(task, row.source, place, options.folder))
            call = partial(
                compute_chain,
                task.name,
                own,
                chain,
                row.protocols,
                task.reference(config, row.data),
                folder.absolute(),
                task.keeps_models or row.exclusive,
            )
            number = f" {place}" if len(row.configs) > 1 else ""
            title = f"{row.data_name} {row.method}{number}"
            places.append((row, place))
            work.append(
                WorkUnit(result_path(task, row, place, options.folder), title, call, ("results", "environment"))
            )
            if not task.keeps_models:
                finished.append(folder / CHECKPOINTS / f"{chain:02d}")  # folds share the folder
    for (row, _), unit in zip(places, work, strict=True):
        if row.exclusive and not is_done(unit):
            write_json(unit.path, unit.work())
            shutil.rmtree(unit.path.parent / CHECKPOINTS, ignore_errors=True)
    found = run_units(work, options.jobs, description="trainings", engine=options)
    for checkpoints in finished:  # only now that all results are written
        shutil.rmtree(checkpoints, ignore_errors=True)
    return {place: from_json(Answer, answer) for place, answer in zip(places, found, strict=True)}


def _make_record(task: AnyTask, row: AnyRow, protocol: str, answers: Sequence[Answer]) -> RunRecord:
    found = task.combine(protocol, [answer.result(task.name, protocol) for answer in answers])
    results = tuple(replace(result, number=place) for place, result in enumerate(found))
    first = row.configs[0]
    return RunRecord(
        task=task.name,
        data=row.data_name,
        method=row.method,
        protocol=protocol,
        metric=task.metric_of(row.data),
        results=results,
        config={
            **task.settings(task.with_protocol(first, protocol), row.data),
            **row.settings,
            **row.facts,
            **task.protocol_settings(protocol),
        },
        seed=first.seed,
        seconds=sum(result.seconds for result in results),
        environment=merge_environments([answer.environment for answer in answers], environment().command),
    )


def _group_rows(rows: Sequence[AnyRow]) -> dict[AnyRow, list[AnyRow]]:
    """Return the rows of each record: a row, and those that extend it."""
    return {row: [row, *(own for own in rows if own.extends and own.source is row)] for row in rows if not row.extends}


def _waves(rows: Sequence[AnyRow]) -> list[list[AnyRow]]:
    """Order rows so that each starts after the row whose models it needs."""
    waves: list[list[AnyRow]] = []
    waiting = list(rows)
    while waiting:
        ready = [row for row in waiting if row.source not in waiting]
        waves.append(ready)
        waiting = [row for row in waiting if row not in ready]
    return waves


def _require_distinct_rows(rows: Sequence[AnyRow]) -> None:
    """Refuse two data sets of one name, whose records would replace each other."""
    names = [(row.data_name, row.method, row.protocols) for row in rows if not row.extends]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                f"Two data sets are called {name[0]}. Rename a folder, or run them separately with different --out "
                "folders."
            )


# ---- sweep -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """The validation score of a configuration, and where it was computed."""

    trial: Trial
    environment: Environment


def sweep(options: Any) -> None:
    """Try the values that are not done yet, write values and plots, and print the best values."""
    task = _get_sweepable(options.task)
    with locked(options.folder):
        recipe = options.read_config()
        # Before the data is read: a value that the method cannot have is refused at once.
        configs = {name: options.points(recipe, name) for name in options.over}
        with show_progress() as watch:
            data = task.load_selection(recipe, watch)
        units = {
            name: [_make_point(task, config, data, options.folder) for config in configs[name]] for name in configs
        }
        # Where two settings have the values of the recipe they share a unit.
        every = {unit.path: unit for own in units.values() for unit in own}
        answers = run_units(list(every.values()), options.jobs, description="values", engine=options)
        found = dict(zip(every, answers, strict=True))
        emit(
            [
                _write_sweep(
                    task, options, name, configs[name], data, [from_json(Tried, found[unit.path]) for unit in own]
                )
                for name, own in units.items()
            ]
        )


def try_point(name: str, config: Any, protocol: str, reference: Json) -> dict[str, Json]:
    """Fit a configuration with a single grid point and return its validation score; what a worker does."""
    task = _get_sweepable(name)
    data = task.open(config, reference)
    (unit,) = task.units(config, 0)
    fit = task.fit(config, data, unit, [protocol], None, ignore_progress)
    found: dict[str, Json] = to_json(Tried(task.trial(fit, protocol), environment()))
    return found


def _get_sweepable(name: str) -> AnySweep:
    task = get_task(name)
    if not isinstance(task, SweepableTask):
        raise ArgumentError(f"Settings of {name} cannot be swept.")
    return task


def _make_point(task: AnySweep, config: Any, data: Any, folder: Path) -> WorkUnit:
    key = resume_key(task.name, task.version, task.settings(config, data), task.packages)
    work = partial(try_point, task.name, config, task.protocol(config), task.reference(config, data))
    title = f"{task.identity(data).name} {task.method(config)}"
    return WorkUnit(folder / "points" / f"{key}.json", title, work, ("trial", "environment"))


def _write_sweep(
    task: AnySweep, options: Any, name: str, configs: Sequence[Any], data: Any, tried: Sequence[Tried]
) -> dict[str, Any]:
    """Write the values of a setting, print the best, and return what was written, with the files."""
    title, method = task.identity(data).name, task.method(configs[0])
    rows = [
        {name: float(one.trial.settings[name]), "accuracy": one.trial.value, "loss": one.trial.loss} for one in tried
    ]
    # The highest accuracy; of equal ones the lowest loss, then the smallest value.
    picked = min(rows, key=lambda row: (-row["accuracy"], row["loss"], row[name]))
    settings = task.settings(configs[0], data)
    where = merge_environments([one.environment for one in tried], environment().command)
    found = {
        "schema": task.sweep_schema,
        "data": title,
        "method": method,
        "setting": name,
        "metric": f"{task.metric} on {task.validation_part}",
        "values": rows,
        **task.sweep_facts(data),
        "picked": picked[name],
        "config": settings,
        "environment": to_json(replace(where, quick=options.is_quick)),
    }
    stem = options.folder / f"{title}-{method}-{name}"
    written = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("json", "csv", "svg")]
    write_json(written[0], found)
    write_answers(rows, written[1])
    draw_sweep(rows, name, f"{method} on {task.validation_part} of {title}", written[2])
    print_line(
        f"{name} of {method} on {title}: {picked[name]:g} has the highest validation accuracy, "
        f"{picked['accuracy']:.2f} %; the worst value has {min(row['accuracy'] for row in rows):.2f} %. "
        f"Written: {stem}.json, .csv, .svg"
    )
    return {**found, "written": written}
