"""Files become tensors here: graphs, pictures, folds and episodes to train and test on. No model and no training.

Example:
    >>> from powerpool.data import load_graphs, stratified_folds
    >>> graphs = load_graphs("MUTAG")
    >>> fold = stratified_folds(graphs.targets, count=10, seed=0)[0]
    >>> batch = graphs[fold.train[:32]]
    >>> batch.num_graphs, batch.x.shape[1]
    (32, 7)
"""

from __future__ import annotations

from powerpool.data.banks import PictureBank, read_bank
from powerpool.data.crops import Crops
from powerpool.data.episodes import Episode, EpisodeError, Episodes
from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.fewshot import ClassCut, FewShotSet, load_fewshot
from powerpool.data.folds import Fold, stratified_folds
from powerpool.data.graphs import GraphBatch, GraphSet, NodeFeatures, load_graphs
from powerpool.data.images import ImageDataset, ImageSet, ImageSplit, Splits, list_pictures, load_images, readable
from powerpool.data.limits import Limits
from powerpool.data.pictures import ImageError, read_image

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
    "ImageDataset",
    "ImageError",
    "ImageSet",
    "ImageSplit",
    "Limits",
    "MissingDataError",
    "NodeFeatures",
    "PictureBank",
    "Splits",
    "list_pictures",
    "load_fewshot",
    "load_graphs",
    "load_images",
    "read_bank",
    "read_image",
    "readable",
    "stratified_folds",
]
