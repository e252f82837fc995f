"""Few-shot learning without training: episodes and predictions on the vectors of a frozen backbone."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from powerpool.data import Episodes, ImageSplit, Splits, check_images, list_images, load_images
from powerpool.data.episodes import list_fewshot
from powerpool.data.images import Corrupt
from powerpool.tasks.base import Watch
from powerpool.tasks.fewshot.classifiers import Classifier, Examples, choose, chosen_scores, class_scores
from powerpool.tasks.fewshot.config import EpisodeConfig
from powerpool.tasks.fewshot.feature_config import FeatureConfig
from powerpool.tasks.fewshot.features import FrozenBackbone, dot_products, pool_images, store_maps
from powerpool.tasks.fewshot.options import EvaluateOptions, PredictOptions
from powerpool.tasks.fewshot.results import (
    EpisodeTest,
    FewShotEvaluation,
    describe_few_images,
    describe_left_out,
    describe_unreadable,
    format_proportion,
    require_classes,
)
from powerpool.tasks.fewshot.testing import TEST_SEED, EpisodeScores
from powerpool.tasks.options import take_fields
from powerpool.tasks.predictions import Predictions

USUAL = EpisodeConfig(queries=15)
"""The form of episodes where options name none and the images allow it."""
CHUNK = 100
"""Episodes that are solved at once: with logistic regression 5 MB of each are in memory."""


# ---- episodes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DrawnEpisodes:
    """Episodes of one form as rows of images: support and query images class by class."""

    support: Tensor  # shape: (E, L J)
    query: Tensor  # shape: (E, L Q)
    way: int

    @classmethod
    def draw(cls, targets: Tensor, test: EpisodeConfig, seed: int = TEST_SEED) -> DrawnEpisodes:
        """Draw the episodes of a test."""
        episodes = Episodes(targets, test.way, test.shot, test.queries, seed=seed)
        drawn = [episodes[number] for number in range(test.count)]
        support, query = (
            torch.stack([rows.flatten() for rows in part])
            for part in ([one.support for one in drawn], [one.query for one in drawn])
        )
        return cls(support, query, test.way)

    def labels(self, rows: Tensor) -> Tensor:
        """Return the classes of support or query images within an episode."""
        return torch.arange(self.way).repeat_interleave(rows.shape[1] // self.way)


def run_on_products(
    products: Tensor,  # shape: (n, n)
    drawn: DrawnEpisodes,
    classifier: Classifier | None,
) -> EpisodeScores:
    """Test a classifier in episodes, given the dot products of all images; None lets the examples choose it."""
    labels, targets = drawn.labels(drawn.support), drawn.labels(drawn.query)
    right, losses = [], []
    for support, query in zip(drawn.support.split(CHUNK), drawn.query.split(CHUNK), strict=True):
        examples = Examples(products[support[:, :, None], support[:, None]], labels, drawn.way)
        across = products[query[:, :, None], support[:, None]]
        scores = chosen_scores(examples, across) if classifier is None else class_scores(classifier, examples, across)
        right += (scores.argmax(-1) == targets).sum(-1).tolist()
        wanted = targets.expand(len(scores), -1)
        losses += nn.functional.cross_entropy(scores.mT, wanted, reduction="none").mean(-1).tolist()
    return EpisodeScores(tuple(right), len(targets), sum(losses) / len(losses))


# ---- evaluate --------------------------------------------------------------------------------------------------------


def readable(split: ImageSplit, corrupt: Corrupt) -> tuple[ImageSplit, list[str]]:
    """Return the images that can be read, and remarks about the others."""
    if corrupt == "error":  # an image that cannot be read is an error where it is read
        return split, []
    kept, bad = check_images(split, corrupt)
    return kept, describe_unreadable(bad)


def evaluate(options: EvaluateOptions, watch: Watch) -> FewShotEvaluation:
    """Test in episodes of the test classes of a data set, or of all classes of one without a usual division."""
    config = take_fields(options, FeatureConfig)
    listing = list_fewshot(str(options.data), options.data_root, download=options.download, whole=True)
    images, remarks = readable(listing.splits["test"], options.corrupt)
    episodes = fill_episodes(options, images.targets)
    left_out = describe_left_out(images.targets, episodes)
    drawn = DrawnEpisodes.draw(images.targets, episodes)  # episodes that cannot be filled fail before the features
    which = "test classes" if listing.has_usual_splits else "all classes"
    backbone = FrozenBackbone(config, download=options.download)
    maps = store_maps(backbone, images, listing.digest(), "test", watch)
    start = time.perf_counter()
    scores = run_on_products(dot_products(config, maps, watch), drawn, config.fixed_classifier)
    tested = EpisodeTest(scores, None, time.perf_counter() - start)
    method = f"{config.method}, {config.fixed_classifier or 'classifier by leave-one-out'}, of {config.backbone}"
    few = describe_few_images(scores.accuracy, len(images.targets))
    return FewShotEvaluation(
        method, f"{which} of {listing.name}", episodes, tested, (*listing.listing.remarks, *remarks, *left_out, *few)
    )


def fill_episodes(options: EvaluateOptions, targets: Tensor) -> EpisodeConfig:
    """Return the episodes of a test; what is not given is as usual, or as large as the images allow."""
    counts = targets.unique(return_counts=True)[1].sort(descending=True).values.tolist()
    shot = options.shot or USUAL.shot
    way = options.way or max(2, min(USUAL.way, len(counts)))
    fewest = counts[min(way, len(counts)) - 1]
    queries = options.queries or max(1, min(USUAL.queries, fewest - shot))
    return EpisodeConfig(way, shot, queries, options.count or USUAL.count)


# ---- predict ---------------------------------------------------------------------------------------------------------


def predict(options: PredictOptions, watch: Watch) -> Predictions:
    """Classify images by the examples in class folders, with a frozen backbone and without any training."""
    config = take_fields(options, FeatureConfig)
    found = load_images(options.support, splits=Splits(validation=0.0, test=0.0), nested=True)
    first, *others = found.splits.values()
    examples, bad_examples = readable(sum(others, start=first), options.corrupt)
    labels = require_classes(examples.targets, options.support)
    queries, bad_queries = readable(list_images(options.images), options.corrupt)
    backbone = FrozenBackbone(config, download=options.download)
    vectors = pool_images(config, backbone, examples, "example images", watch)
    origin = vectors.mean(0)  # vectors are nearly parallel: without their common part, float32 tells them apart
    vectors -= origin
    unknown = pool_images(config, backbone, queries, "images", watch) - origin
    given = Examples((vectors @ vectors.T).double(), torch.searchsorted(labels, examples.targets), len(labels))
    classifier, accuracy = config.fixed_classifier, None
    if classifier is None:
        classifier, accuracy = choose(given)
    scores = class_scores(classifier, given, (unknown @ vectors.T).double())
    remarks = (*found.remarks, *bad_examples, *bad_queries, _describe(config, classifier, accuracy, given))
    return Predictions.of_images(queries.names, scores, [found.classes[label] for label in labels.tolist()], remarks)


def _describe(config: FeatureConfig, classifier: Classifier, accuracy: float | None, examples: Examples) -> str:
    """Return a line about what classified, and how well it classifies the examples."""
    count = len(examples.labels)
    text = f"{config.backbone}, {config.method}, {classifier}, {count} examples of {examples.way} classes"
    if accuracy is None:
        single = config.fixed_classifier is None
        return f"{text}{'; a class has a single example, so none was left out to choose it' if single else ''}."
    interval = format_proportion(accuracy, count)
    return f"{text}; leave-one-out accuracy {100 * accuracy:.0f} % (95 % interval over examples {interval})."
