"""What run folders and answers of all pipelines have in common: whose a folder is, and tables of predictions."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from powerpool.console import note
from powerpool.console import write_text as print_text
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import read_json, require_writable, write_json, write_text
from powerpool.runs.config import RecipeError, read_recipe, to_yaml

CONFIG, DATA, MODEL, RECORD, EVALUATION = "config.yaml", "data.json", "model.pt", "record.json", "evaluation.json"


def open_run(
    folder: Path,
    wanted: Any,
    data: tuple[str, str],
    *,
    pipeline: str,
    made: Iterable[Path] = (),
    overwrite: bool = False,
) -> None:
    """Make a run folder, or see that what is in it is the beginning of this very run.

    Args:
        folder: the run folder; the caller has locked it.
        wanted: the configuration of the run, a dataclass.
        data: name and digest of the data.
        pipeline: "graph", "vision" or "fewshot", for what is said.
        made: what a run leaves in the folder, beside model, record and evaluation; ``overwrite`` deletes it.
        overwrite: start anew where the folder holds another run, instead of refusing.
    """
    file, (name, digest) = folder / CONFIG, data
    if overwrite:
        for old in (folder / MODEL, folder / RECORD, folder / EVALUATION, *made):
            old.unlink(missing_ok=True)
    elif file.exists():
        if _settings(file, type(wanted)) != wanted:
            raise RecordError(
                f"{folder} holds a run with other settings (see {file}). Choose another --out, or start anew there "
                "with --overwrite."
            )
        if not is_of(folder, digest):
            raise RecordError(
                f"{folder} holds this run, but of other data: {name} has changed since. Choose another --out, "
                "or start anew there with --overwrite."
            )
        if (folder / RECORD).exists():
            raise RecordError(
                f"{folder} holds this very run, finished. Look at it with 'powerpool evaluate {pipeline} --run "
                f"{folder}', choose another --out, or train it anew with --overwrite."
            )
        note(f"Going on with the run in {folder}.")
    write_json(folder / DATA, {"name": name, "digest": digest})
    write_text(file, to_yaml(wanted))


def _settings(file: Path, config_type: type[Any]) -> Any:
    """The settings of a run; None where they are those of another kind of run."""
    try:
        return read_recipe(file, config_type)
    except RecipeError:
        return None


def require_same_data(name: str, digest: str, wanted: str) -> None:
    """Refuse data that is not what a command read when it began: a unit may run on another machine, or hours later.

    Args:
        name: of the data.
        digest: what was found here.
        wanted: what the command has.
    """
    if digest != wanted:
        raise RecordError(
            f"{name} on {platform.node()} is not the data that the command has read: its digest is {digest}, not "
            f"{wanted}. Put the same files on all machines, leave them alone while the command runs, and give it again."
        )


def is_of(folder: str | Path, digest: str) -> bool:
    """Whether a run was started with the data of this digest; one that does not say was not."""
    file = Path(folder, DATA)
    found = read_json(file) if file.exists() else None
    return isinstance(found, dict) and found.get("digest") == digest


def require_answer_file(out: str | None) -> None:
    """Answers are written as CSV or JSON, by the name of the file; where that cannot be is said before the work."""
    if out is None:
        return
    if Path(out).suffix not in (".csv", ".json"):
        raise ArgumentError(f"out must end in .csv or .json (got {out!r}).")
    require_place(out)


def require_place(*files: str | Path) -> None:
    """Refuse places that cannot be written, before the work whose results go there."""
    for file in files:
        require_writable(file, "Choose another place with --out.")


def write_answers(rows: Sequence[dict[str, Any]], out: str | None) -> None:
    """One row for each answer: to a file, .csv or .json by its name, or printed as CSV without one."""
    if out is not None and out.endswith(".json"):
        write_json(out, list(rows))
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        print_text(text.getvalue())
    else:
        write_text(out, text.getvalue())


def missing_model(folder: Path, pipeline: str, called: str) -> RecordError:
    """Why a run folder has no model, and what to do."""
    if not folder.is_dir():
        return RecordError(f"There is no run folder {folder}. Make one with: powerpool train {pipeline} --out {folder}")
    return RecordError(
        f"{folder} holds no {MODEL}: it is no run of {called}, or its training did not end. Give it the same command "
        f"again to go on: powerpool train {pipeline} --config {folder / CONFIG} --out {folder}"
    )
