"""What the pooling of a model sees: spectra, burstiness and correlations of its features, and a parameter to try.

Example:
    >>> import torch, powerpool as pp
    >>> from powerpool.inspect import inspect_features
    >>> found = inspect_features(torch.rand(20, 8, 49), pp.MaxExp(eta=50))
    >>> bool((found.after.effective_rank > found.before.effective_rank).all())
    True
"""

from powerpool.inspect.gathering import Gathering, inspect_features
from powerpool.inspect.models import inspect_model
from powerpool.inspect.result import Inspection, Side
from powerpool.inspect.runs import Samples, inspect_run
from powerpool.inspect.suggestion import Suggestion, suggest
from powerpool.pipelines.pooling import FeatureSet

__all__ = [
    "FeatureSet",
    "Gathering",
    "Inspection",
    "Samples",
    "Side",
    "Suggestion",
    "inspect_features",
    "inspect_model",
    "inspect_run",
    "suggest",
]
