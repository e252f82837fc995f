"""The precision in which operators compute.

Half-precision inputs are computed in float32 and cast back. Inside ``torch.autocast`` float32 stays float32, because
an eigenvalue or a matrix power in bfloat16 has two correct digits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def as_float64(tensor: Tensor) -> Tensor:
    """Return the tensor as float64, if its device has that."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor, as float32 if it is float16 or bfloat16."""
    return tensor.float() if tensor.dtype in _HALF else tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products on the tensor's device keep the dtype of their operands."""
    # The meta device computes nothing, and torch.autocast does not accept it.
    device = "cpu" if tensor.is_meta else tensor.device.type
    if not torch.is_autocast_enabled(device):  # to switch it off takes as long as a product of small matrices
        return nullcontext()
    return torch.autocast(device_type=device, enabled=False)
