"""What tests and predictions of few-shot learning show, with a trained network or a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor

from powerpool.console import TextTable
from powerpool.data import Episodes
from powerpool.data.store import join_some
from powerpool.errors import ArgumentError
from powerpool.runs.compare import proportion_interval, summarize
from powerpool.runs.environment import environment
from powerpool.runs.record import Spectrum
from powerpool.runs.typed import Json, to_json
from powerpool.tasks.base import Evaluation
from powerpool.tasks.fewshot.config import EpisodeConfig
from powerpool.tasks.fewshot.testing import EpisodeScores

FEW_IMAGES = 200
"""Test images below which the interval over episodes is misleading: episodes draw the same images again and again."""


@dataclass(frozen=True)
class EpisodeTest:
    """A test in episodes: scores, mean spectrum of some queries, and the time that the scores took."""

    scores: EpisodeScores
    spectrum: Spectrum | None
    seconds: float


def describe_accuracy(accuracies: Sequence[float]) -> str:
    """Return the mean with half the width of its 95 % interval.

    Example:
        >>> describe_accuracy([50.0, 60.0, 70.0, 80.0])
        '65.00 ± 20.54'
    """
    found = summarize(accuracies)
    spread = "" if found.interval is None else f" ± {(found.interval[1] - found.interval[0]) / 2:.2f}"
    return f"{found.mean:.2f}{spread}"


def format_proportion(share: float, count: int) -> str:
    """Return Wilson's 95 % interval of a share of right images, in %.

    Example:
        >>> format_proportion(0.8, 5)
        '38 to 96 %'
    """
    low, high = proportion_interval(share * count, count)
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def describe_few_images(accuracy: float, count: int) -> list[str]:
    """Return a remark about the interval of an accuracy in % where there are few test images; none for many."""
    if count >= FEW_IMAGES:
        return []
    interval = format_proportion(accuracy / 100, count)
    return [f"There are {count} test images: over images, the 95 % interval of the accuracy is {interval}."]


def describe_left_out(targets: Tensor, episodes: EpisodeConfig) -> list[str]:
    """Return a remark on classes with too few images for the episodes; refuse episodes that no classes can fill."""
    drawn = Episodes(targets, episodes.way, episodes.shot, episodes.queries)
    if drawn.left_out == 0:
        return []
    least, total = episodes.shot + episodes.queries, len(targets.unique())
    return [
        f"Classes with fewer than {least} images are in no episode ({drawn.left_out} of {total}). Use fewer --queries."
    ]


def describe_unreadable(names: Iterable[str], kept: Iterable[str] = ()) -> list[str]:
    """Return a remark about images that were skipped because they cannot be read: all but the ones that were kept."""
    skipped = sorted({*names} - {*kept})
    what = "1 image was" if len(skipped) == 1 else f"{len(skipped)} images were"
    return [f"{what} skipped, not readable: {join_some(skipped)}."] if skipped else []


@dataclass(frozen=True)
class FewShotEvaluation(Evaluation):
    """The test of a model in episodes of some images."""

    method: str
    images: str
    """Which images were tested."""
    episodes: EpisodeConfig
    test: EpisodeTest
    remarks: tuple[str, ...] = ()

    def plain(self) -> dict[str, Json]:
        scores, spectrum = self.test.scores, self.test.spectrum
        return {
            "images": self.images,
            "pictures": self.images,  # as in version 0.1
            "method": self.method,
            "test": asdict(self.episodes),
            "value": scores.accuracy,
            "right_by_episode": " ".join(map(str, scores.right)),
            "queries": scores.queries,
            "count": len(scores.right),
            "test_loss": scores.loss,
            "test_seconds": self.test.seconds,
            **({} if spectrum is None else {"spectrum": to_json(spectrum)}),
            "environment": to_json(environment()),
        }

    def tables(self) -> list[TextTable]:
        scores, episodes = self.test.scores, self.episodes
        accuracy = describe_accuracy([100 * right / scores.queries for right in scores.right])
        row = (episodes.way, episodes.shot, episodes.queries, episodes.count, accuracy, f"{scores.loss:.4f}")
        title = f"{self.method} on {self.images}{', transductive' if episodes.transductive else ''}"
        columns = ("way", "shot", "queries", "episodes", "accuracy %, ± over episodes", "loss")
        return [TextTable(title, columns, (tuple(map(str, row)),))]


# ---- predictions -----------------------------------------------------------------------------------------------------


def require_classes(targets: Tensor, support: str) -> Tensor:
    """Return the numbers of the classes of examples; fewer than two are refused."""
    labels = targets.unique()
    if len(labels) < 2:
        raise ArgumentError(
            f"support must contain a folder of example images for each of at least two classes (got {len(labels)} in "
            f"{support})."
        )
    return labels
