"""Networks as backbones: loaded by name up to their last map, folded for frozen use, given another pooling.

``load_backbone`` knows a network by its name, ``fold_batch_norm`` makes a frozen one faster, and ``replace_pooling``
swaps the pooling of a whole classifier.
"""

from powerpool.integrations.backbones.base import BACKBONES_VERSION, Backbone, BackboneError
from powerpool.integrations.backbones.folding import fold_batch_norm
from powerpool.integrations.backbones.loading import load_backbone
from powerpool.integrations.backbones.surgery import replace_pooling

__all__ = ["BACKBONES_VERSION", "Backbone", "BackboneError", "fold_batch_norm", "load_backbone", "replace_pooling"]
