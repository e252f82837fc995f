"""``powerpool train|evaluate|predict TASK``, written once for all tasks; progress bars and files of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from powerpool.console import Bars, emit, output_settings, print_line, print_note, print_table, print_text
from powerpool.files import csv_text, locked, read_json, write_json, write_text
from powerpool.runs.environment import environment
from powerpool.runs.folder import CHECKPOINTS, EVALUATION, RECORD, open_run, require_output
from powerpool.runs.record import RunRecord
from powerpool.tasks.base import Task, Watch, fit_units, get_task, ignore_progress, run_chain

CONFUSION = "confusion.png"


def train(options: Any) -> None:
    """Train a model, test it once, and keep it in a run folder; a stopped training is resumed."""
    task = get_task(options.task)
    is_leader = task.leads(options.config, overwrite=options.overwrite)
    config = task.prepare(options.config)
    if not is_leader:
        _take_part(task, config, options)
        return
    with show_progress() as watch:
        data = task.load(config, watch)
    adapted = task.adapt(config, data)
    if adapted != config:  # the protocol and the name of the folder follow
        config = adapted
        options = replace(options, **{entry.name: getattr(config, entry.name) for entry in fields(config)})
    (protocol,) = options.protocols
    folder = Path(options.out or options.default_folder(task.identity(data).name))
    start = environment()  # before the training: the code may change while it runs
    task.check(config, data, options.chain)
    with locked(folder):
        stored = options.stored_config(config)
        open_run(folder, stored, task.identity(data), task=task.name, overwrite=options.overwrite)
        for remark in (*task.data_remarks(data), *task.remarks(config, data)):
            print_note(remark)
        with show_progress() as watch:
            outcome = run_chain(task, config, data, options.chain, [protocol], folder / CHECKPOINTS, watch)
        result = outcome.results[protocol]
        for remark in task.result_remarks(config, protocol, result):
            print_note(remark)
        task.save(outcome.models[protocol], folder)
        RunRecord(
            task=task.name,
            data=task.identity(data).name,
            method=task.method(config),
            protocol=protocol,
            metric=task.metric_of(data),
            results=(result,),
            config=task.settings(config, data),
            seed=config.seed,
            seconds=result.seconds,
            environment=start,
        ).write(folder / RECORD)
    emit({"run": folder, "record": read_json(folder / RECORD)})
    print_line(f"{task.describe(config, data, protocol, result)} The model is in {folder}.")


def _take_part(task: Task[Any, Any, Any, Any], config: Any, options: Any) -> None:
    """Fit together with another process, which writes the run folder."""
    with output_settings(quiet=True):
        data = task.load(config)
        folder = Path(options.out or options.default_folder(task.identity(data).name))
        fit_units(task, config, data, options.chain, options.protocols, folder / CHECKPOINTS, ignore_progress)


def evaluate(options: Any) -> None:
    """Test the model of a run again; print and write the results."""
    out = Path(options.out or options.run or Path("runs", "evaluate", options.task))
    file = out if out.suffix == ".json" else out / EVALUATION
    task = get_task(options.task)
    require_output(file, *([file.with_name(CONFUSION)] if task.draws_confusion else []))
    with show_progress() as watch:
        found = task.evaluate(options, watch)
    for remark in found.remarks:
        print_note(remark)
    written = [file]
    for table in found.tables():
        print_table(table)
    write_json(file, found.plain())
    if found.confusion is not None:
        written.append(file.with_name(CONFUSION))
        from powerpool.report.plots import draw_confusion

        draw_confusion(found.confusion, written[-1], found.tables()[0].title)
    emit({**found.plain(), "written": written})
    print_line(f"written: {', '.join(map(str, written))}")


def predict(options: Any) -> None:
    """Predict the classes of new inputs; print them or write them to a file."""
    with show_progress() as watch:
        found = get_task(options.task).predict(options, watch)
    for remark in found.remarks:
        print_note(remark)
    emit(list(found.rows))
    if options.out is None and found.table is not None:
        print_table(found.table)
    else:
        write_answers(found.rows, options.out)


@contextmanager
def show_progress() -> Iterator[Watch]:
    """Show a bar for each kind of work that is reported."""
    with Bars() as bars:
        found: dict[str, Any] = {}

        def watch(what: str, done: int, total: int, remark: str = "") -> None:
            if what not in found:
                found[what] = bars.add(what, total)
            bars.update(found[what], done, total=total)
            if remark:
                print_note(remark)

        yield watch


def write_answers(rows: Sequence[dict[str, Any]], out: str | Path | None) -> None:
    """Write one row per answer: to a .csv or .json file, or to stdout as CSV."""
    if out is not None and Path(out).suffix == ".json":
        write_json(out, list(rows))
    elif out is not None:
        write_text(out, csv_text(rows))
    else:
        print_text(csv_text(rows))
