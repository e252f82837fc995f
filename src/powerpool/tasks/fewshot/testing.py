"""Tests in episodes: which episodes they are, and what a network predicts in them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from powerpool.data import Episode, Episodes, ImageBank
from powerpool.runs.record import Spectrum
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.fewshot.augmentation import Augmentation
from powerpool.tasks.fewshot.config import EpisodeConfig
from powerpool.tasks.fewshot.model import IMAGES, EpisodeNetwork, feature_sets, normalization
from powerpool.tasks.pooling import FeatureSet, mean_spectrum, spread_out
from powerpool.tasks.training import use_batch_statistics

VALIDATION_SEED, TEST_SEED = 1, 0
"""Seeds of episodes that are the same for every method and every training seed."""
LARGEST_MAPS = 2**28
"""Values of feature maps that a test keeps, 1 GiB: 11,600 images of 84 pixels or 1,400 of 224. With more images, each
episode encodes its own."""


@dataclass(frozen=True)
class EpisodeScores:
    """What a network predicted in test or validation episodes."""

    right: tuple[int, ...]
    """Correctly classified queries of each episode."""
    queries: int
    """Queries of an episode."""
    loss: float
    """Mean loss of the episodes."""

    @property
    def accuracy(self) -> float:
        """Accuracy in % over all episodes."""
        return 100 * sum(self.right) / (self.queries * len(self.right))


def draw_episodes(bank: ImageBank, test: EpisodeConfig, count: int, seed: int = TEST_SEED) -> list[Episode]:
    """Return the first test or validation episodes, which are the same for all methods."""
    episodes = Episodes(bank.targets, test.way, test.shot, test.queries, seed=seed)
    return [episodes[number] for number in range(count)]


def compare_queries(
    network: EpisodeNetwork,
    bank: ImageBank,
    episode: Episode,
    device: str = "cpu",
    augmentation: Augmentation | None = None,
) -> tuple[Tensor, Tensor]:  # shape: (L Q, L), (L Q,)
    """Return the logits of all queries of an episode, and the index of the true class of each."""
    targets = true_classes(episode, device)
    support, query = read_episode(bank, episode, device)
    if augmentation:
        images = augmentation.apply(torch.cat([support.flatten(0, 1), query]), episode.number)
        support, query = images[: -len(query)].view_as(support), images[-len(query) :]
    return network.logits(support, query), targets


def true_classes(episode: Episode, device: str = "cpu") -> Tensor:  # shape: (L Q,)
    """Return the index of the true class of each query."""
    return torch.arange(episode.way, device=device).repeat_interleave(episode.queries)


def read_episode(
    bank: ImageBank, episode: Episode, device: str = "cpu"
) -> tuple[Tensor, Tensor]:  # shape: (L, J, C, H, W), (L Q, C, H, W)
    """Return the support and query images of an episode."""
    turns = episode.turns[:, None] if bool(episode.turns.any()) else None
    support, query = (bank.batch(rows, turns).to(device) for rows in (episode.support, episode.query))
    return support, query.flatten(0, 1)


@dataclass(frozen=True)
class EncodedImages:
    """Feature maps of the images of some episodes. An image that many episodes draw is encoded once."""

    rows: Tensor
    """Row of each image in its bank, ascending."""
    maps: Tensor
    """Shape (images, K, h, w)."""

    @classmethod
    def of_episodes(
        cls,
        network: EpisodeNetwork,
        bank: ImageBank,
        episodes: Sequence[Episode],
        device: str = "cpu",
        watch: Watch = ignore_progress,
    ) -> EncodedImages | None:
        """Encode all images; None if their maps exceed ``LARGEST_MAPS`` values, or if images are rotated."""
        if any(bool(episode.turns.any()) for episode in episodes):
            return None
        first = episodes[0]
        rows = torch.cat([part.flatten() for episode in episodes for part in (episode.support, episode.query)]).unique()
        example = network.encode(bank.batch(rows[:1]).to(device))
        if len(rows) * example.numel() > LARGEST_MAPS:
            return None
        maps = torch.empty(
            (len(rows), *example.shape[1:]),
            dtype=example.dtype,
            device=example.device,
            memory_format=torch.channels_last,  # as the encoder returns them
        )
        at_once = min(IMAGES, first.support.numel() + first.query.numel())  # no more memory than a whole episode takes
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            maps[start : start + at_once] = network.encode(bank.batch(part).to(device))
            watch("test images", start + len(part), len(rows))
        return cls(rows, maps)

    def take(self, rows: Tensor) -> Tensor:  # shape: (*, K, h, w)
        """Return the maps of images."""
        return self.maps[torch.searchsorted(self.rows, rows.contiguous())]  # of transposed rows it warns


@torch.no_grad()
def run_episodes(
    network: EpisodeNetwork,
    bank: ImageBank,
    episodes: Sequence[Episode],
    device: str = "cpu",
    *,
    transductive: bool = False,
    watch: Watch = ignore_progress,
) -> EpisodeScores:
    """Test a network in episodes; it is left in evaluation mode.

    Args:
        network: the network.
        bank: the images that the episodes refer to.
        episodes: at least one, all of the same form.
        device: of the network.
        transductive: whether batch normalization uses the statistics of the episode.
        watch: called with the progress.
    """
    right, losses = [], []
    what = f"test episodes, {episodes[0].way}-way"
    with _evaluation(network, transductive):
        encoded = None if transductive else EncodedImages.of_episodes(network, bank, episodes, device, watch)
        for number, episode in enumerate(episodes, 1):
            if encoded is None:
                logits, targets = compare_queries(network, bank, episode, device)
            else:
                logits = network.compare(encoded.take(episode.support), encoded.take(episode.query).flatten(0, 1))
                targets = true_classes(episode, device)
            right.append(int((logits.argmax(1) == targets).sum()))
            losses.append(float(network.loss(logits, targets)))
            watch(what, number, len(episodes))
    return EpisodeScores(tuple(right), episodes[0].way * episodes[0].queries, math.fsum(losses) / len(losses))


@torch.no_grad()
def episode_spectrum(
    network: EpisodeNetwork,
    bank: ImageBank,
    episodes: Sequence[Episode],
    device: str = "cpu",
    *,
    transductive: bool = False,
) -> Spectrum | None:
    """Return the mean spectrum of the queries of the first episodes, which are encoded as in :func:`run_episodes`."""
    wanted = len(spread_out(len(episodes) * episodes[0].way * episodes[0].queries))

    def sets() -> Iterator[FeatureSet]:
        for episode in episodes:
            support, query = read_episode(bank, episode, device)
            maps = network.encode(torch.cat([support.flatten(0, 1), query]))
            yield from feature_sets(network, maps[-len(query) :])

    with _evaluation(network, transductive):
        return mean_spectrum(normalization(network), islice(sets(), wanted))


def _evaluation(network: EpisodeNetwork, transductive: bool) -> contextlib.AbstractContextManager[None]:
    network.eval()
    return use_batch_statistics(network) if transductive else contextlib.nullcontext()
