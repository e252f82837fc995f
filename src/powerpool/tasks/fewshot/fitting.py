"""Whether the classes and images of a data set can fill the episodes of a configuration, and episodes that they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from powerpool.data import EpisodeError, Episodes, FewShotSet
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig, TrainingConfig

WITHOUT_TRAINING = "classify without training: powerpool predict fewshot PHOTOS --support EXAMPLES."
"""What always works with a few images of a few classes."""


def require_episodes(config: FewShotConfig, data: FewShotSet, ways: Sequence[int] = ()) -> None:
    """Refuse episodes for which the data has too few images or classes; the error names the split.

    Args:
        config: all settings.
        data: the images.
        ways: further numbers of classes that are tested.
    """
    training, test = config.training, config.test
    needed: list[tuple[str, int, int, int, bool]] = [
        ("train", training.way or test.way, training.shot or test.shot, training.queries, training.turns)
    ]
    if training.validation_episodes and "validation" in data.splits:
        needed.append(("validation", test.way, test.shot, test.queries, False))
    needed += [("test", way, test.shot, test.queries, False) for way in dict.fromkeys([test.way, *ways])]
    for episode in needed:
        _require_episode(config, data, *episode)


def _require_episode(
    config: FewShotConfig, data: FewShotSet, split: str, way: int, shot: int, queries: int, turns: bool
) -> None:
    try:
        Episodes(data[split].targets, way, shot, queries, turns=turns)
    except EpisodeError as error:
        remedy = "Change train_classes, validation_classes and class_order to divide the classes otherwise"
        remedy += ", or set training.validation_episodes to 0." if split == "validation" else f", or {WITHOUT_TRAINING}"
        if config.problem is not None:
            remedy = f"The classes are those of the problem {config.problem}."
        raise EpisodeError(f"The split {split} of {data.name}: {error} {remedy}") from error


def fit_episodes(config: FewShotConfig, data: FewShotSet) -> FewShotConfig:
    """Return the settings with episodes that the data can fill; only settings that have their defaults are changed.

    Example:
        >>> import torch
        >>> from powerpool.data import ImageBank
        >>> names = tuple("abcdefghijklmno")
        >>> bank = ImageBank(torch.zeros(15, 3, 8, 8, dtype=torch.uint8), torch.arange(15) // 5, names[:3], names)
        >>> found = fit_episodes(FewShotConfig(), FewShotSet("photos", {"train": bank, "test": bank}, "digest"))
        >>> found.test.way, found.test.queries, found.training.queries
        (3, 3, 4)
    """
    test, training = config.test, config.training
    tested = ["test", *(["validation"] if training.validation_episodes else [])]
    for split in (name for name in tested if name in data.splits):
        sizes = _class_sizes(data, split)
        if test.way == EpisodeConfig.way and len(sizes) >= 2:
            test = replace(test, way=min(test.way, len(sizes)))
        room = sizes[min(test.way, len(sizes)) - 1] - test.shot
        if test.queries == EpisodeConfig.queries and room >= 1:
            test = replace(test, queries=min(test.queries, room))
    sizes = _class_sizes(data, "train")
    room = sizes[min(training.way or test.way, len(sizes)) - 1] - (training.shot or test.shot)
    if training.queries == TrainingConfig.queries and room >= 1:
        training = replace(training, queries=min(training.queries, room))
    return replace(config, test=test, training=training)


def _class_sizes(data: FewShotSet, split: str) -> list[int]:
    """Return the number of images of each class, the largest first."""
    found: list[int] = data[split].targets.unique(return_counts=True)[1].sort(descending=True).values.tolist()
    return found
