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

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerpool.data.banks import read_bank
    from powerpool.data.decoding import Crops, read_image
    from powerpool.data.episodes import Episode, Episodes, FewShotSet, load_fewshot
    from powerpool.data.graphs import GraphBatch, GraphSet, NodeFeatures, load_graphs
    from powerpool.data.images import (
        ImageBank,
        ImageDataset,
        ImageSet,
        ImageSplit,
        check_images,
        list_images,
        load_images,
    )
    from powerpool.data.splits import ClassCut, EpisodeError, Fold, Splits, stratified_folds
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
_HOMES = {
    "banks": ("read_bank",),
    "decoding": ("Crops", "read_image"),
    "episodes": ("Episode", "Episodes", "FewShotSet", "load_fewshot"),
    "graphs": ("GraphBatch", "GraphSet", "NodeFeatures", "load_graphs"),
    "images": (
        "ImageBank",
        "ImageDataset",
        "ImageSet",
        "ImageSplit",
        "check_images",
        "list_images",
        "load_images",
    ),
    "splits": ("ClassCut", "EpisodeError", "Fold", "Splits", "stratified_folds"),
    "store": ("DataError", "ImageError", "Limits", "MissingDataError"),
}
"""The module of each name, imported when the name is used: a graph needs nothing that reads images."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        text = f"powerpool.data.{name} is now {_RENAMED[name]}; the old name will be removed."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
