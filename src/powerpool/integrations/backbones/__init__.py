"""Pretrained networks: as backbones up to their last feature map, folded for inference, or with another pooling.

``load_backbone`` loads a network by name, ``fold_batch_norm`` makes a frozen one faster, and ``replace_pooling``
replaces the pooling of a complete classifier.
"""

from powerpool.integrations.backbones.base import BACKBONES_VERSION, Backbone, BackboneError
from powerpool.integrations.backbones.folding import fold_batch_norm
from powerpool.integrations.backbones.loading import load_backbone
from powerpool.integrations.backbones.surgery import replace_pooling

__all__ = ["BACKBONES_VERSION", "Backbone", "BackboneError", "fold_batch_norm", "load_backbone", "replace_pooling"]
