"""Run folders: settings, data, model, record and checkpoints of one training.

====================  ================================================================
``config.yaml``       the merged settings
``data.json``         name and digest of the data
``model.json``        what the model is: sizes, classes, how inputs are read
``model.safetensors`` its weights
``record.json``       what was measured
``checkpoints/``      what is needed to resume
====================  ================================================================

Version 0.1 wrote ``model.pt`` instead of the two model files; it is still read.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from powerpool.console import print_note
from powerpool.curves.base import EXTRA_STATE
from powerpool.errors import PowerPoolError, RecordError, StateError, shown
from powerpool.files import atomic, read_json, read_tensors, require_writable, write_json, write_text
from powerpool.runs.config import RecipeError, Setting, make_config, read_settings, to_yaml
from powerpool.runs.typed import Json, from_json, to_json

CONFIG, DATA, RECORD, EVALUATION = "config.yaml", "data.json", "record.json", "evaluation.json"
MODEL, WEIGHTS, OLD_MODEL = "model.json", "model.safetensors", "model.pt"
CHECKPOINTS = "checkpoints"
OLD_CHECKPOINTS = ("trials", "points", "training")
"""Where version 0.1 kept what is needed to resume."""
FORMAT = 2
LONGEST_DESCRIPTION = 1000
"""Bytes of the description of a curve in a model file."""
LARGEST_SPEC = 64 << 20
"""Limit in bytes for ``model.json``."""
LARGEST_CHECKPOINT = 16 << 30
"""Limit in bytes; a checkpoint is read into memory."""

S = TypeVar("S")
N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True)
class DataIdentity:
    """Name and content digest of the data of a run."""

    name: str
    digest: str


def open_run(folder: Path, config: Any, data: DataIdentity, *, task: str, overwrite: bool = False) -> None:
    """Create a run folder, or check that an existing one is an unfinished run with the same settings and data.

    Args:
        folder: the run folder, locked by the caller.
        config: the settings, a dataclass.
        data: identity of the data.
        task: "graph", "vision" or "fewshot", for messages.
        overwrite: start anew where the folder contains another run, instead of refusing.
    """
    file, remedy = folder / CONFIG, "Choose another --out, or start anew with --overwrite."
    if overwrite:
        for name in (MODEL, WEIGHTS, OLD_MODEL, RECORD, EVALUATION):
            (folder / name).unlink(missing_ok=True)
        for name in (CHECKPOINTS, *OLD_CHECKPOINTS):
            shutil.rmtree(folder / name, ignore_errors=True)
    elif file.exists():
        found = _read_config(file, type(config))
        if found != config:
            others = [name for name, value in vars(config).items() if found and getattr(found, name) != value]
            named = f": {', '.join(others)}" if others else ""
            raise RecordError(f"{folder} contains a run with other settings{named} (see {file}). {remedy}")
        if not is_data_of(folder, data.digest):
            raise RecordError(f"{folder} contains this run, but {data.name} has changed since. {remedy}")
        if (folder / RECORD).exists():
            raise RecordError(
                f"{folder} contains this run, finished. Test it with 'powerpool evaluate {task} --run {folder}'. "
                f"{remedy}"
            )
        if any((folder / name).is_dir() for name in OLD_CHECKPOINTS) and not (folder / CHECKPOINTS).is_dir():
            print_note(f"The run in {folder} was started by version 0.1 and cannot be resumed; it starts anew.")
        else:
            print_note(f"Resuming the run in {folder}.")
    write_json(folder / DATA, to_json(data))
    write_text(file, to_yaml(config))


def _read_config(file: Path, kind: type[Any]) -> Any:
    """Return the settings of a run; those that it was started without are what ``kind.complete`` returns for them."""
    try:
        settings = read_settings(file, kind)
        given = {name: setting.value for name, setting in settings.items()}
        missing = kind.complete(given) if hasattr(kind, "complete") else {}
        return make_config(kind, {name: Setting(value) for name, value in missing.items()} | settings)
    except RecipeError:  # the settings of another kind of run
        return None


def read_identity(folder: str | Path) -> DataIdentity | None:
    """Return the data of a run; None where the folder does not name it."""
    file = Path(folder, DATA)
    return from_json(DataIdentity, read_json(file, limit=1 << 20), DATA) if file.exists() else None


def is_data_of(folder: str | Path, digest: str) -> bool:
    """Whether a run was started with the data of this digest."""
    found = read_identity(folder)
    return found is not None and found.digest == digest


def require_same_data(found: DataIdentity, digest: str) -> None:
    """Refuse data that differs from what the command read: a unit may run on another machine, or hours later."""
    if found.digest != digest:
        raise RecordError(
            f"{found.name} on {platform.node()} is not the data that the command has read: its digest is "
            f"{found.digest}, not {digest}. Put the same files on all machines, and give the command again."
        )


def require_output(*files: str | Path) -> None:
    """Refuse places that cannot be written before the work whose results go there."""
    for file in files:
        require_writable(file, "Choose another place with --out.")


# ---- models ----------------------------------------------------------------------------------------------------------


class Weights:
    """The weights in a file: their shapes without reading them, and the tensors when they are asked for."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], read: Callable[[], dict[str, Tensor]]) -> None:
        self.shapes, self.read = shapes, read

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Weights:
        """Wrap tensors that are in memory."""
        return cls({name: tuple(value.shape) for name, value in tensors.items()}, lambda: dict(tensors))

    def rename(self, old: str, new: str) -> Weights:
        """Return the weights with another prefix of their names."""

        def renamed(name: str) -> str:
            return new + name.removeprefix(old) if name.startswith(old) else name

        shapes = {renamed(name): shape for name, shape in self.shapes.items()}
        return Weights(shapes, lambda: {renamed(name): value for name, value in self.read().items()})

    @classmethod
    def open(cls, path: Path) -> Weights:
        """Read the header of a safetensors file."""
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load_file

        if path.exists() and not path.is_file():  # safe_open would wait for a pipe
            raise RecordError(f"Cannot read {path}: it is not a file.")
        try:
            with safe_open(path, framework="pt") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise RecordError(f"{path} is not a safetensors file, or is damaged: {error}.") from error
        return cls(shapes, lambda: load_file(path))


@dataclass(frozen=True)
class StoredModel(Generic[S]):
    """What a run folder holds of a model: its specification, a dataclass of the task, and its weights."""

    spec: S
    weights: Weights


def save_model(folder: Path, task: str, spec: Any, weights: Mapping[str, Tensor]) -> None:
    """Write a model atomically: the weights first, then the specification, which makes it readable."""
    from safetensors.torch import save

    content = save({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()})
    with atomic(folder / WEIGHTS) as temporary:
        temporary.write_bytes(content)  # save_file hides the error of the system, for instance of a full disk
    write_json(folder / MODEL, {"format": FORMAT, "task": task, **to_json(spec)})


def read_task(folder: str | Path, choices: Collection[str]) -> str:
    """Return the task of the model in a run folder; a name that is not among the choices is refused."""
    file = _find_model(Path(folder), "TASK")
    data = load_state(file) if file.name == OLD_MODEL else read_json(file, limit=LARGEST_SPEC)
    found = data.get("pipeline" if file.name == OLD_MODEL else "task") if isinstance(data, dict) else None
    # Texts only: a nested value may take forever to hash or to print.
    if not isinstance(found, str) or found not in choices:
        got = shown(found) if isinstance(found, str) else type(found).__name__
        raise RecordError(f"{file} is not a model of powerpool: its task is {got}, not {', '.join(choices)}.")
    return found


def _find_model(folder: Path, task: str) -> Path:
    for file in (folder / MODEL, folder / OLD_MODEL):
        if file.is_file():
            return file
    if not folder.is_dir():
        raise RecordError(f"There is no run folder {folder}. Make one with: powerpool train {task} --out {folder}")
    raise RecordError(
        f"{folder} contains no {MODEL}: it is not a run of powerpool train {task}, or its training was stopped. "
        f"Resume it with: powerpool train {task} --config {folder / CONFIG} --out {folder}"
    )


def digest_weights(folder: str | Path, task: str) -> str:
    """Return a digest of the weights in a run folder, wherever that is."""
    file = _find_model(Path(folder), task)
    weights = file.with_name(WEIGHTS) if file.name == MODEL else file
    return hashlib.blake2b(weights.read_bytes(), digest_size=8).hexdigest()


def read_model(
    folder: str | Path,
    task: str,
    spec_type: type[S],
    convert_old: Callable[[dict[str, Json]], Json],
    complete: Callable[[dict[str, Json]], Json] = lambda spec: spec,
) -> StoredModel[S]:
    """Read the model of a run folder.

    Args:
        folder: the run folder.
        task: the task that is expected.
        spec_type: the dataclass of its specification.
        convert_old: makes the JSON of a specification from the content of a ``model.pt`` of version 0.1.
        complete: adds settings that a specification of an older version lacks, if their defaults are others now.
    """
    file = _find_model(Path(folder), task)
    if file.name == MODEL:
        weights = Weights.open(file.with_name(WEIGHTS))
        found = read_json(file, limit=LARGEST_SPEC)
        return _build_model(complete(found) if isinstance(found, dict) else found, weights, file, task, spec_type)
    state = load_state(file)
    tensors = state.pop("weights", None)
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise RecordError(f"{file} is a damaged model: weights must be tensors by name.")
    named = {"format": FORMAT, "task": state.pop("pipeline", None)}
    if state.pop("format", None) != 1:
        raise RecordError(f"{file} is not a model of powerpool 0.1.")
    try:
        spec = complete(convert_old(state))
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{file} is a damaged model: {type(error).__name__}: {shown(str(error))}.") from error
    return _build_model({**spec, **named}, Weights.of(tensors), file, task, spec_type)


def _build_model(data: Json, weights: Weights, file: Path, task: str, spec_type: type[S]) -> StoredModel[S]:
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("task") != task:
        found = {name: data.get(name) for name in ("task", "format")} if isinstance(data, dict) else data
        raise RecordError(f"{file} is not a {task} model of format {FORMAT} (got {shown(found)}).")
    try:
        spec = from_json(spec_type, {name: value for name, value in data.items() if name not in ("format", "task")})
    except PowerPoolError as error:
        raise RecordError(f"{file} is a damaged model: {error}") from error
    return StoredModel(spec, weights)


def build_network(make: Callable[[], N], weights: Weights, file: str | Path, *, optional: tuple[str, ...] = ()) -> N:
    """Build a network and load its weights; shapes are compared first, on the meta device, before memory is allocated.

    Args:
        make: builds the network with its initial weights.
        weights: what it gets.
        file: named in errors.
        optional: prefixes of weights that may be missing, as those of a backbone that was not trained.
    """
    try:
        with torch.device("meta"):
            expected = {name: tuple(value.shape) for name, value in make().state_dict().items()}
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that no tensor can have
        raise RecordError(f"{file}: no network can be built from the stored settings.") from error
    # Models of version 0.1 have no extra states, which describe curves.
    missing = [
        name
        for name in expected.keys() - weights.shapes.keys()
        if not name.startswith(optional or ("\0",)) and not name.endswith(EXTRA_STATE)
    ]
    wrong = [
        name
        for name, shape in weights.shapes.items()
        if expected.get(name) != shape and not (name in expected and _is_description(name, shape))
    ]
    if missing or wrong:
        names = ", ".join(sorted([*missing, *wrong])[:3])
        raise RecordError(f"{file}: the weights do not fit the stored settings ({shown(names)[1:-1]}).")
    network = make()
    try:
        network.load_state_dict(weights.read(), strict=False)
    except StateError as error:
        raise RecordError(f"{file}: the weights do not fit the stored settings. {error}") from error
    return network.eval()


def _is_description(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor may be the description of another curve, which loading refuses by what it says."""
    return name.endswith(EXTRA_STATE) and len(shape) == 1 and shape[0] <= LONGEST_DESCRIPTION


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def save_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write a dictionary of tensors and plain values atomically."""
    with atomic(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch hides the error of the system, for instance of a full disk
            raise _system_error(error) or error from None


def load_state(path: str | Path) -> dict[str, Any]:
    """Read a file of :func:`save_state` to the CPU; anything but tensors and plain values is refused."""
    state = read_tensors(path, LARGEST_CHECKPOINT, "powerpool checkpoint")
    if not isinstance(state, dict):
        raise RecordError(f"{path} is not a powerpool checkpoint: it contains a {type(state).__name__}.")
    return state


def _system_error(error: BaseException) -> OSError | None:
    cause = error.__context__
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause
