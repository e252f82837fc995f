"""Pretrained networks: as backbones up to their last feature map or tokens, and folded for inference.

``load_backbone`` loads a network by name, and ``fold_batch_norm`` makes a frozen one faster. To replace the pooling of
a complete classifier see :func:`powerpool.integrations.replace_pooling`.
"""

import warnings
from typing import Any

from powerpool.integrations.backbones import surgery
from powerpool.integrations.backbones.base import BACKBONES_VERSION, Backbone, BackboneError, patches
from powerpool.integrations.backbones.folding import fold_batch_norm
from powerpool.integrations.backbones.hf import read_preprocessing
from powerpool.integrations.backbones.loading import load_backbone
from powerpool.integrations.backbones.preprocessing import Preprocessing

__all__ = [
    "BACKBONES_VERSION",
    "Backbone",
    "BackboneError",
    "Preprocessing",
    "fold_batch_norm",
    "load_backbone",
    "patches",
    "read_preprocessing",
]


def __getattr__(name: str) -> Any:
    if name == "replace_pooling":  # its name in version 0.1
        warnings.warn(
            f"{__name__}.replace_pooling is now powerpool.integrations.replace_pooling.",
            DeprecationWarning,
            stacklevel=2,
        )
        return surgery.replace_pooling
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
