"""Spectra, burstiness and correlations of the features that a model pools, and parameters to try for its curve.

Example:
    >>> import torch, powerpool as pp
    >>> from powerpool.analysis import inspect_features
    >>> found = inspect_features(torch.rand(20, 8, 49), pp.MaxExp(eta=50))
    >>> bool((found.after.effective_rank > found.before.effective_rank).all())
    True
"""

from powerpool.analysis.gather import Gathering, inspect_features, inspect_run
from powerpool.analysis.models import inspect_model
from powerpool.analysis.result import Inspection, Side
from powerpool.analysis.suggestion import Suggestion, suggest
from powerpool.tasks.pooling import FeatureSet, Samples

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
