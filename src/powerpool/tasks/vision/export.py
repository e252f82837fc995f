"""``powerpool export vision``: a trained image classifier as a file that needs no powerpool, or for transformers."""

from __future__ import annotations

import copy
import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from powerpool.checks import require_at_least
from powerpool.console import emit, print_line, print_note, show_status
from powerpool.data import Crops
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.files import PART, atomic, cannot_write, make_folder
from powerpool.integrations.backbones import fold_batch_norm
from powerpool.integrations.backbones.hf import quiet_transformers
from powerpool.runs.folder import RECORD, WEIGHTS
from powerpool.runs.record import RunRecord, SplitResult
from powerpool.solvers import NewtonSchulz
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.training import quiet_loggers
from powerpool.tasks.vision.config import PoolConfig, grid_values
from powerpool.tasks.vision.hub import load_hub
from powerpool.tasks.vision.inference import TrainedModel, load_run
from powerpool.tasks.vision.model import ImageClassifier

FORMATS = {".onnx": "ONNX", ".pt2": "a program of torch.export"}
INPUT, OUTPUT, METADATA = "crops", "probabilities", "metadata.json"
OPSET = 18
"""The oldest operator set that the exporter writes, which most runtimes support."""
LARGEST_ONNX = 1536 * 2**20
"""Bytes of weights in one ONNX file. The limit of the format is 2 GB; above this the exporter adds a second file."""
TOLERANCE = 1e-5
"""Largest allowed difference between a probability of the file and of the model."""
CHATTY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")  # their messages are of no use here


class ExportError(PowerPoolError, RuntimeError):
    """A network could not be exported, or the exported file computes something else than the model."""

    exit_code = 1


@dataclass(frozen=True)
class ExportOptions:
    """Write the model of a run as ONNX or a torch.export program, which run without powerpool, or for transformers.

    Args:
        run: run folder of 'powerpool train vision'
        out: file that ends in .onnx or .pt2, or a new folder for the format of transformers
        batch: number of images that the file takes at once; default: any number
        check: run the model in out on random crops, and refuse it if its probabilities differ from those of the run
        download: allow downloads of weights that are not on this machine
    """

    run: str
    out: str
    batch: int | None = None
    check: bool = True
    download: bool = False

    def __post_init__(self) -> None:
        if not is_folder(self.out):
            _require_file(self.out, self.batch)
        elif self.batch is not None:
            raise ArgumentError(f"batch is for files; a folder takes any number of images (got {self.batch}).")


def export(options: ExportOptions) -> None:
    """Write the file, and print its inputs and outputs."""
    model = load_run(options.run, download=options.download)
    method = model.method
    if is_folder(options.out):
        with show_status("exporting"):
            found = export_folder(model, options.out, check=options.check, metrics=_read_metrics(options.run))
        kind, size = "in the format of transformers", (Path(options.out) / WEIGHTS).stat().st_size / 1e6
    else:
        if takes_fast_form(model.network.pool.config):
            print_note(
                f"{method} is exported in its fast form: matrix products instead of eigenvalues, the same result."
            )
        with show_status("exporting"):
            found = export_model(model, options.out, batch=options.batch, check=options.check)
        kind, size = f"as {FORMATS[Path(options.out).suffix]}", Path(options.out).stat().st_size / 1e6
    shape = _shape(model, options.batch)
    difference = "not checked" if found is None else f"largest difference {found:.1g}"
    emit(
        {
            "written": [Path(options.out)],
            "method": method,
            "backbone": model.backbone.name,
            "input": shape,
            "classes": len(model.classes),
            "difference": found,
        }
    )
    given = f"pixel_values {shape}, normalized by its image processor"
    if not is_folder(options.out):
        given = f"{INPUT} {shape}, float32 from 0 to 1"
    print_line(
        f"Exported {method} on {model.backbone.name} {kind} to {options.out}, {size:.1f} MB. Input: {given}. "
        f"Output: {OUTPUT} of {len(model.classes)} classes, {difference}."
    )


def export_model(
    model: TrainedModel, path: str | Path, *, batch: int | None = None, check: bool = True
) -> float | None:
    """Write a model as ONNX or as a program of torch.export, by the suffix of ``path``, atomically.

    The file takes ``crops``, float32 from 0 to 1 of shape (B, K, 3, S, S), and returns ``probabilities`` (B, classes).
    It contains normalization and softmax; batch normalization is folded into the convolutions. Its metadata describe
    the preprocessing, see :func:`describe`; in a ``.pt2`` they are the extra file ``metadata.json``.

    MaxExp with an integer eta is exported in its fast form, whichever form it was trained in. Other curves of
    eigenvalues are refused: ONNX has no eigendecomposition.

    Args:
        model: the model; it is not changed.
        path: the file, ``.onnx`` or ``.pt2``.
        batch: B; default: any number.
        check: run the file on random crops, and refuse it if its probabilities differ from those of the model.

    Returns:
        The largest difference of a probability on random crops; None without ``check``.

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
    suffix = _require_file(path, batch)
    _require_exportable(model.network.pool.config)
    write, open_file = (_write_onnx, _open_onnx) if suffix == ".onnx" else (_write_pt2, _open_pt2)
    with atomic(path) as temporary, quiet_loggers(*CHATTY):
        try:
            write(model, batch, temporary)
            run = open_file(temporary) if check else None
        except (PowerPoolError, ModuleNotFoundError):
            raise
        except Exception as error:  # exporters raise errors of many kinds
            raise ExportError(
                f"{model.network.pool.config.method} on {model.backbone.name} was not exported as {FORMATS[suffix]}: "
                f"{_reason(error)}. Try another backbone, or the other format."
            ) from error
        if run is None:
            return None
        difference = _difference(run, model, batch)
        if not difference <= TOLERANCE:  # true for NaN, too
            raise _differs(path, difference)
        return difference


def _differs(path: str | Path, difference: float) -> ExportError:
    return ExportError(
        f"{path} was not written: its probabilities differ from those of the model by {difference:.2g} on random "
        f"crops, more than {TOLERANCE:g}. Use --check false to write it anyway."
    )


def export_folder(
    model: TrainedModel, folder: str | Path, *, check: bool = True, metrics: Mapping[str, float] | None = None
) -> float | None:
    """Write a model in the format of transformers, see :mod:`powerpool.integrations.hub`: all at once, or nothing.

    Args:
        model: the model; it is not changed.
        folder: a new or empty folder.
        check: load the folder again, and refuse it if its probabilities differ from those of the model.
        metrics: measured numbers for the model card, by name.

    Returns:
        The largest difference of a probability on random crops; None without ``check``.
    """
    from powerpool.integrations.hub import PowerPoolForImageClassification, PowerPoolImageProcessor

    folder, backbone, network = Path(folder), model.backbone, model.network
    if folder.exists() and any(folder.iterdir()):
        raise ExportError(f"{folder} is not empty. Choose a new folder with --out.")
    hub = PowerPoolForImageClassification.from_parts(
        backbone, network.pool.pool, network.classifier, model.classes, unit_norm=network.pool.config.unit_norm
    )
    make_folder(folder.parent)
    temporary = folder.with_name(f"{PART}{secrets.token_hex(4)}")
    try:
        with quiet_transformers():
            hub.save_pretrained(temporary, metrics=metrics)
            PowerPoolImageProcessor(asdict(model.crops), backbone.mean, backbone.std).save_pretrained(temporary)
        found = _difference(_open_folder(temporary), model, None) if check else None
        if found is not None and not found <= TOLERANCE:
            raise _differs(folder, found)
        temporary.replace(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return found


def _open_folder(folder: Path) -> Callable[[Tensor], Tensor]:
    hub = load_hub(folder)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (hub.processor.image_mean, hub.processor.image_std))
    return lambda crops: hub.model((crops - mean) / std).logits.softmax(-1)


def _read_metrics(run: str) -> dict[str, float]:
    """Return the accuracies in the record of a run; none if it has no record."""
    file = Path(run, RECORD)
    if not file.is_file():
        return {}
    record = RunRecord.read(file)
    result = record.results[0]
    assert isinstance(result, SplitResult)
    tested = f"in % on {result.count} test images of {record.data}"
    return {f"top-1 accuracy {tested}": result.value, f"top-5 accuracy {tested}": result.top5}


def takes_fast_form(pool: PoolConfig) -> bool:
    """Whether a pool that was trained with eigenvalues is exported without: MaxExp with an integer eta."""
    method = VISION_METHODS[pool.method]
    return method.is_spectral and method.make_solver(pool) == "eigen" and not needs_eigenvalues(pool)


def needs_eigenvalues(pool: PoolConfig) -> bool:
    """Whether a pool cannot be computed by matrix products alone."""
    method = VISION_METHODS[pool.method]
    curve = method.make_curve(pool)
    if curve is None or not method.is_spectral or isinstance(method.make_solver(pool), NewtonSchulz):
        return False
    return curve.integer_power() is None


def describe(model: TrainedModel, batch: int | None = None) -> dict[str, str]:
    """Return the metadata of the file: inputs, preprocessing, outputs and the order of the classes."""
    pool, backbone = model.network.pool.config, model.backbone
    return {
        "input": f"{INPUT}: float32 {_shape(model, batch)}, numbers from 0 to 1; {model.crops.count} crops per image; "
        "red, green, blue",
        "output": f"{OUTPUT}: float32 ({batch or 'batch'}, {len(model.classes)}), in the order of 'classes'; each row "
        "sums to 1",
        "classes": _as_json(model.classes),
        "preprocessing": _preprocessing(model.crops),
        "crops": _as_json(asdict(model.crops)),
        "normalization": _as_json({"mean": backbone.mean, "std": backbone.std, "inside": True}),
        "backbone": backbone.name,
        "pool": _as_json({"method": pool.method, **grid_values(pool)}),
        "powerpool": metadata.version("powerpool"),
    }


class _Probabilities(nn.Module):
    """The exported module: a classifier without eigenvalues, with folded batch normalization, and softmax."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        network = copy.deepcopy(model.network).cpu().eval().requires_grad_(False)
        network.backbone = fold_batch_norm(network.backbone, torch.rand(1, 3, model.crops.size, model.crops.size))
        if network.pool.head is not None:  # it belongs to the backbone before folding
            network.pool.head = network.backbone.head
        if takes_fast_form(network.pool.config):
            network.pool.solver = "auto"
        self.network: ImageClassifier = network

    def forward(self, crops: Tensor) -> Tensor:  # shape: (B, K, 3, S, S) -> (B, classes)
        """Return the probabilities."""
        logits: Tensor = self.network(crops)
        return logits.softmax(-1)


def _free_dimensions(batch: int | None) -> dict[str, dict[int, torch.export.Dim]] | None:
    return None if batch is not None else {INPUT: {0: torch.export.Dim("batch", min=1)}}


def _trace(model: TrainedModel, batch: int | None) -> torch.export.ExportedProgram:
    # Two images: a dimension of 1 would be treated as a constant.
    example = torch.rand(batch or 2, model.crops.count, 3, model.crops.size, model.crops.size)
    with torch.no_grad():
        return torch.export.export(_Probabilities(model), (example,), dynamic_shapes=_free_dimensions(batch))


def _write_pt2(model: TrainedModel, batch: int | None, path: Path) -> None:
    torch.export.save(_trace(model, batch), path, extra_files={METADATA: _as_json(describe(model, batch), indent=1)})


def _write_onnx(model: TrainedModel, batch: int | None, path: Path) -> None:
    import onnxscript  # noqa: F401  # the error of a missing package is clearer here

    size = sum(tensor.nbytes for tensor in model.network.state_dict().values())
    if size > LARGEST_ONNX:
        raise ExportError(
            f"The weights take {size / 1e9:.2f} GB, more than the {LARGEST_ONNX / 1e9:.2f} GB of one ONNX file. Export "
            "a .pt2, or train with fewer channels (pool.reduce_to)."
        )
    program = torch.onnx.export(
        _trace(model, batch),
        dynamo=True,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=_free_dimensions(batch),  # for the name of the dimension
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
    """Return the largest difference of a probability on random crops; of one image and of three where B is free."""
    generator, largest = torch.Generator().manual_seed(0), torch.zeros(())
    network = copy.deepcopy(model.network).cpu().eval()
    with torch.no_grad():
        for count in (1, 3) if batch is None else (batch,):
            shape = (count, model.crops.count, 3, model.crops.size, model.crops.size)
            crops = torch.rand(shape, generator=generator)
            expected = torch.cat([network(one[None]) for one in crops]).softmax(-1)
            largest = torch.maximum(largest, (run(crops) - expected).abs().max())
    return float(largest)


def is_folder(path: str | Path) -> bool:
    """Whether a model is written to this path as a folder."""
    return str(path).endswith("/") or Path(path).suffix == "" or Path(path).is_dir()


def _require_file(path: str | Path, batch: int | None) -> str:
    """Return the suffix of a file that can be exported."""
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        named = " or ".join(f"{known} ({name})" for known, name in FORMATS.items())
        raise ArgumentError(f"out must end in {named}, or be a folder without a suffix or with / (got {str(path)!r}).")
    if batch is not None:
        require_at_least(1, "", batch=batch)
    return suffix


def _require_exportable(pool: PoolConfig) -> None:
    if needs_eigenvalues(pool):
        able = [name for name in VISION_METHODS if not needs_eigenvalues(PoolConfig(name))]
        values = ", ".join(f"{name}={value:g}" for name, value in grid_values(pool).items())
        raise ExportError(
            f"{pool.method} with {values} needs eigenvalues, which cannot be exported. Train one of these: "
            f"{', '.join(able)} (MaxExp with an integer eta)."
        )


def _preprocessing(crops: Crops) -> str:
    side = crops.resize or f"{crops.size} if it is shorter"
    cut = f"Resize the short side of the image to {side} pixels, cut squares of {crops.size}. "
    whole = f"the whole image, squeezed to {crops.size} x {crops.size}"
    listed = ", ".join(whole if kind == "whole" else kind for kind in crops.kinds)
    mirrored = "; then their mirror images, in the same order" if crops.mirrored else ""
    return (
        f"{'' if crops.kinds == ('whole',) else cut}The crops are: {listed}{mirrored}. Resize {crops.interpolation} "
        "with antialiasing. Divide bytes by 255. The file itself applies mean and standard deviation."
    )


def _shape(model: TrainedModel, batch: int | None) -> str:
    size = model.crops.size
    return f"({batch or 'batch'}, {model.crops.count}, 3, {size}, {size})"


def _as_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _reason(error: BaseException) -> str:
    """Return the first line of the original error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
