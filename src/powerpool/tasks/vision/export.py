"""``powerpool export vision``: a trained image classifier as one file that runs without powerpool."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from powerpool.console import emit, note, say, working
from powerpool.data import Crops
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.files import atomic
from powerpool.integrations.backbones import Backbone, fold_batch_norm
from powerpool.solvers import NewtonSchulz
from powerpool.tasks.vision.config import PoolConfig, chosen_values
from powerpool.tasks.vision.methods import METHODS
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.runs import TrainedModel, load_run

FORMATS = {".onnx": "ONNX", ".pt2": "a program of torch.export"}
INPUT, OUTPUT, METADATA = "crops", "probabilities", "metadata.json"
OPSET = 18
"""Of the ONNX operators: the oldest that the exporter writes, so that most runtimes read it."""
LARGEST_ONNX = 1536 * 2**20
"""Bytes of weights in one ONNX file. A file ends at 2 GB; from here on the exporter puts weights into a second one."""
TOLERANCE = 1e-5
"""How far a probability of the file may be from that of the model."""
CHATTY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
"""Loggers that tell of optional packages and of their own passes."""


class ExportError(PowerPoolError, RuntimeError):
    """A network could not be exported, or what was exported does not give what the model gives."""

    exit_code = 1


@dataclass(frozen=True)
class ExportOptions:
    """Write the model of a run as one file that runs without powerpool: ONNX, or a program of torch.export.

    Args:
        run: the run folder that 'powerpool train vision' wrote
        out: the file, .onnx or .pt2 by its name
        batch: how many pictures the file takes at once; any number without it
        check: whether the file is run on random crops, and refused if its probabilities are not those of the model
        download: whether weights that are not on this machine may be fetched from the network
    """

    run: str
    out: str
    batch: int | None = None
    check: bool = True
    download: bool = False

    def __post_init__(self) -> None:
        _require_format(self.out)
        _require_batch(self.batch)


def export(options: ExportOptions) -> None:
    """Write the file, and print what it takes and gives."""
    model = load_run(options.run, download=options.download)
    method = model.network.pool.config.method
    if takes_fast_form(model.network.pool.config):
        note(f"{method} is written in its fast form: products of matrices that give the same, without eigenvalues.")
    with working("exporting"):
        found = export_model(model, options.out, batch=options.batch, check=options.check)
    size, difference = Path(options.out).stat().st_size / 1e6, "not checked"
    if found is not None:
        difference = f"at most {found:.1g} from those of the model"
    emit(
        {
            "written": [Path(options.out)],
            "method": method,
            "backbone": model.backbone.name,
            "input": _shape(model, options.batch),
            "classes": len(model.classes),
            "difference": found,
        }
    )
    say(
        f"{method} on {model.backbone.name} as {FORMATS[Path(options.out).suffix]}, {size:.1f} MB. "
        f"Takes {INPUT} {_shape(model, options.batch)}, float32 from 0 to 1. "
        f"Gives {OUTPUT} of {len(model.classes)} classes, {difference}. It is in {options.out}."
    )


def export_model(
    model: TrainedModel, path: str | Path, *, batch: int | None = None, check: bool = True
) -> float | None:
    """Write a model as ONNX or as a program of torch.export, by the suffix of ``path``, atomically.

    The file takes ``crops``, float32 from 0 to 1 of shape (B, K, 3, S, S), and gives ``probabilities`` (B, classes).
    Mean, standard deviation and softmax are inside, batch normalization is folded into the convolutions. What it has to
    be fed with is in its metadata: see :func:`describe`. In a ``.pt2`` that is the extra file ``metadata.json``.

    MaxExp with a whole eta is written in its fast form, whichever form it was trained in. Other curves of eigenvalues
    are refused: ONNX has no eigenvalues.

    Args:
        model: the model; it is not changed.
        path: the file, ``.onnx`` or ``.pt2``.
        batch: B; any number without it.
        check: whether the file is run before it takes its place, and refused if it does not give what the model gives.

    Returns:
        The largest difference of a probability on random crops, ``None`` without ``check``.

    Example:
        >>> import tempfile
        >>> from powerpool.integrations.backbones import load_backbone
        >>> network = ImageClassifier(load_backbone(nn.Conv2d(3, 8, 3, stride=4)), PoolConfig("SOP"), classes=2)
        >>> model = TrainedModel(network, ("cat", "dog"), Crops(size=16, count=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_model(model, f"{folder}/model.pt2")
        ...     torch.export.load(f"{folder}/model.pt2").module()(torch.rand(5, 1, 3, 16, 16)).shape
        0.0
        torch.Size([5, 2])
    """
    suffix = _require_format(path)
    _require_batch(batch)
    _require_exportable(model.network.pool.config)
    write, open_file = (_write_onnx, _open_onnx) if suffix == ".onnx" else (_write_pt2, _open_pt2)
    with atomic(path) as temporary, _quiet():
        try:
            write(model, batch, temporary)
            run = open_file(temporary) if check else None
        except (PowerPoolError, ModuleNotFoundError):
            raise
        except Exception as error:  # exporters raise errors of many kinds, and pages of advice with them
            raise ExportError(
                f"{model.network.pool.config.method} on {model.backbone.name} was not exported as {FORMATS[suffix]}: "
                f"{_reason(error)}. Another backbone, or the other format, may do."
            ) from error
        if run is None:
            return None
        difference = _difference(run, model, batch)
        if not difference <= TOLERANCE:  # true for NaN, too
            raise ExportError(
                f"{path} was not written: its probabilities differ from those of the model by {difference:.2g} on "
                f"random crops, more than {TOLERANCE:g}. With check off (--check false) it is written all the same."
            )
        return difference


def takes_fast_form(pool: PoolConfig) -> bool:
    """Whether a pool that was trained with eigenvalues is exported without: MaxExp with a whole eta."""
    method = METHODS[pool.method]
    return method.is_spectral and method.make_solver(pool) == "eigen" and not needs_eigenvalues(pool)


def needs_eigenvalues(pool: PoolConfig) -> bool:
    """Whether there is no form of a pool that is made of products of matrices."""
    method = METHODS[pool.method]
    curve = method.make_curve(pool)
    if curve is None or not method.is_spectral or isinstance(method.make_solver(pool), NewtonSchulz):
        return False
    return curve.integer_power() is None


def describe(model: TrainedModel, batch: int | None = None) -> dict[str, str]:
    """What someone who has only the file needs to know: what goes in, what comes out, in which order."""
    pool, backbone = model.network.pool.config, model.backbone
    return {
        "input": f"{INPUT}: float32 {_shape(model, batch)}, numbers from 0 to 1; {model.crops.count} crops of each "
        "picture; red, green, blue",
        "output": f"{OUTPUT}: float32 ({batch or 'batch'}, {len(model.classes)}), in the order of 'classes'; each row "
        "sums to 1",
        "classes": _as_json(model.classes),
        "preprocessing": _preprocessing(model.crops),
        "crops": _as_json(asdict(model.crops)),
        "normalization": _as_json({"mean": backbone.mean, "std": backbone.std, "inside": True}),
        "backbone": backbone.name,
        "pool": _as_json({"method": pool.method, **chosen_values(pool)}),
        "powerpool": metadata.version("powerpool"),
    }


class _Probabilities(nn.Module):
    """What is exported: a classifier in a form without eigenvalues, its batch normalization folded, and softmax."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        network = copy.deepcopy(model.network).cpu().eval().requires_grad_(False)
        folded = fold_batch_norm(network.backbone, torch.rand(1, 3, model.crops.size, model.crops.size))
        assert isinstance(folded, Backbone)
        network.backbone = folded
        if network.pool.head is not None:  # that of the backbone before it was folded
            network.pool.head = folded.head
        if takes_fast_form(network.pool.config):
            network.pool.solver = "auto"
        self.network: ImageClassifier = network

    def forward(self, crops: Tensor) -> Tensor:  # shape: (B, K, 3, S, S) -> (B, classes)
        """The probabilities."""
        logits: Tensor = self.network(crops)
        return logits.softmax(-1)


def _trace(model: TrainedModel, batch: int | None) -> torch.export.ExportedProgram:
    # Two pictures: a dimension of 1 would be taken for a constant.
    example = torch.rand(batch or 2, model.crops.count, 3, model.crops.size, model.crops.size)
    with torch.no_grad():
        return torch.export.export(_Probabilities(model), (example,), dynamic_shapes=_free(batch))


def _free(batch: int | None) -> dict[str, dict[int, torch.export.Dim]] | None:
    """Which dimensions of the input are not fixed."""
    return None if batch is not None else {INPUT: {0: torch.export.Dim("batch", min=1)}}


def _write_pt2(model: TrainedModel, batch: int | None, path: Path) -> None:
    torch.export.save(_trace(model, batch), path, extra_files={METADATA: _as_json(describe(model, batch), indent=1)})


def _write_onnx(model: TrainedModel, batch: int | None, path: Path) -> None:
    import onnxscript  # noqa: F401  # the exporter needs it, and has an error of its own for that

    size = sum(tensor.nbytes for tensor in model.network.state_dict().values())
    if size > LARGEST_ONNX:
        raise ExportError(
            f"The weights take {size / 1e9:.2f} GB, and one ONNX file holds {LARGEST_ONNX / 1e9:.2f}. Write a .pt2, or "
            "train with fewer channels (pool.reduce_to)."
        )
    program = torch.onnx.export(
        _trace(model, batch),
        dynamo=True,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=_free(batch),  # once more, for the name of the dimension
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(describe(model, batch))
    program.save(path, external_data=False)


def _open_pt2(path: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(path).module()


def _open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda crops: torch.from_numpy(session.run([OUTPUT], {INPUT: crops.numpy()})[0])


def _difference(run: Callable[[Tensor], Tensor], model: TrainedModel, batch: int | None) -> float:
    """The largest difference of a probability on random crops; of one picture and of three where B is free."""
    generator, largest = torch.Generator().manual_seed(0), torch.zeros(())
    network = copy.deepcopy(model.network).cpu().eval()
    with torch.no_grad():
        for count in (1, 3) if batch is None else (batch,):
            shape = (count, model.crops.count, 3, model.crops.size, model.crops.size)
            crops = torch.rand(shape, generator=generator)
            expected = torch.cat([network(picture[None]) for picture in crops]).softmax(-1)
            largest = torch.maximum(largest, (run(crops) - expected).abs().max())
    return float(largest)


def _require_format(path: str | Path) -> str:
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        named = " or ".join(f"{known} ({name})" for known, name in FORMATS.items())
        raise ArgumentError(f"out must end in {named} (got {str(path)!r}).")
    return suffix


def _require_batch(batch: int | None) -> None:
    if batch is not None and batch < 1:
        raise ArgumentError(f"batch must be at least 1 picture, or null for any number (got {batch}).")


def _require_exportable(pool: PoolConfig) -> None:
    if needs_eigenvalues(pool):
        able = [name for name in METHODS if not needs_eigenvalues(PoolConfig(name))]
        values = ", ".join(f"{name}={value:g}" for name, value in chosen_values(pool).items())
        raise ExportError(
            f"{pool.method} with {values} needs eigenvalues, which exported files do not have. Train one of these: "
            f"{', '.join(able)} (MaxExp with a whole eta)."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say of themselves and of each other: nothing of it is for the user to put right."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _preprocessing(crops: Crops) -> str:
    side = f"{crops.resize}" if crops.resize else f"{crops.size} if it is shorter"
    cut = f"Bring the short side of the picture to {side} pixels, cut squares of {crops.size}"
    whole = f"all of the picture, squeezed to {crops.size} x {crops.size}"
    listed = ", ".join(whole if kind == "whole" else kind for kind in crops.kinds)
    mirrored = "; then their mirror images, in the same order" if crops.mirrored else ""
    first = "" if crops.kinds == ("whole",) else f"{cut}. "
    return (
        f"{first}The crops are: {listed}{mirrored}. Resize {crops.interpolation}, over the whole area that becomes a "
        "pixel. Divide bytes by 255. Mean and standard deviation are taken care of inside."
    )


def _shape(model: TrainedModel, batch: int | None) -> str:
    size = model.crops.size
    return f"({batch or 'batch'}, {model.crops.count}, 3, {size}, {size})"


def _as_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at the bottom."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
