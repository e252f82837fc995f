"""Data sets as tensors: graphs, images, folds and episodes for training and testing.

Example:
    >>> from powerpool.data import load_graphs, stratified_folds
    >>> graphs = load_graphs("MUTAG")
    >>> fold = stratified_folds(graphs.targets, count=10, seed=0)[0]
    >>> batch = graphs[fold.train[:32]]
    >>> batch.num_graphs, batch.x.shape[1]
    (32, 7)
"""

from __future__ import annotations

import warnings
from typing import Any

from powerpool.data.banks import ImageBank, read_bank
from powerpool.data.decoding import Crops, read_image
from powerpool.data.episodes import Episode, EpisodeError, Episodes
from powerpool.data.fewshot import FewShotSet, load_fewshot
from powerpool.data.graphs import GraphBatch, GraphSet, NodeFeatures, load_graphs
from powerpool.data.images import ImageDataset, ImageSet, ImageSplit, check_images, list_images, load_images
from powerpool.data.splits import ClassCut, Fold, Splits, stratified_folds
from powerpool.data.store import DataError, ImageError, Limits, MissingDataError

__all__ = [
    "ClassCut",
    "Crops",
    "DataError",
    "Episode",
    "EpisodeError",
    "Episodes",
    "FewShotSet",
    "Fold",
    "GraphBatch",
    "GraphSet",
    "ImageBank",
    "ImageDataset",
    "ImageError",
    "ImageSet",
    "ImageSplit",
    "Limits",
    "MissingDataError",
    "NodeFeatures",
    "Splits",
    "check_images",
    "list_images",
    "load_fewshot",
    "load_graphs",
    "load_images",
    "read_bank",
    "read_image",
    "stratified_folds",
]

_RENAMED = {"PictureBank": "ImageBank", "list_pictures": "list_images", "readable": "check_images"}


def __getattr__(name: str) -> Any:
    """Return a name of version 0.1 with a warning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(
        f"powerpool.data.{name} is now {new}; the old name will be removed.", DeprecationWarning, stacklevel=2
    )
    return globals()[new]
