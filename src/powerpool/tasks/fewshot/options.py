"""Options of ``powerpool train|evaluate|predict|reproduce fewshot``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from powerpool.checks import require_at_least
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError
from powerpool.tasks import options as base
from powerpool.tasks.fewshot.config import FewShotConfig, StudyConfig
from powerpool.tasks.fewshot.feature_config import FeatureConfig, FeatureStudyConfig
from powerpool.tasks.methods import FEATURE_METHODS
from powerpool.tasks.options import read_layered, require_answer_file, require_distinct, take_fields

C = TypeVar("C", bound=FewShotConfig)

BASELINE = "RelationNet"
QUICK_STUDY = ("glyphs", "digits")
"""Source and target of a quick study where none are named: data sets that every machine has."""


@dataclass(frozen=True)
class TrainOptions(FewShotConfig):
    """Train a network by episodes, select its weights by validation classes, test it on other classes, and keep it.

    Args:
        out: run folder; default: runs/train/fewshot/DATA/METHOD-WAY-way-SHOT-shot
        overwrite: start anew where the folder contains another run, instead of refusing
    """

    task: ClassVar[str] = "fewshot"
    out: str | None = None
    overwrite: bool = False

    @property
    def config(self) -> FewShotConfig:
        """The settings of the task."""
        return take_fields(self, FewShotConfig)

    def stored_config(self, config: FewShotConfig) -> FewShotConfig:
        """Return the settings that are stored with the run."""
        return config

    @property
    def chain(self) -> int:
        """The only chain: a training has one seed."""
        return 0

    @property
    def protocols(self) -> Sequence[str]:
        """The protocol as a list of one."""
        return [self.protocol]

    def default_folder(self, data: str) -> Path:
        """Return the run folder where none is given."""
        return Path("runs", "train", "fewshot", data, f"{self.model.method}-{self.protocol}")


def require_no_features(options: FeatureConfig, run: str | None) -> None:
    """Refuse settings of frozen features beside a run, which has its own network."""
    if run is None:
        return
    names = [entry.name for entry in fields(FeatureConfig)]
    given = [name for name in names if getattr(options, name) != getattr(FeatureConfig(), name)]
    if given:
        raise ArgumentError(f"--run {run} has its own network, so --{given[0]} has no effect: leave one of them out.")


@dataclass(frozen=True)
class EvaluateOptions(base.EvaluateOptions, FeatureConfig):
    """Test the network of a run again, in other episodes or on other images; without a run, a frozen backbone.

    Args:
        run: run folder of 'powerpool train fewshot'; default: a frozen backbone is tested, without any training
        data: other images, all classes of which are tested: a folder or zip of class folders, or a data set. Without a
            run: the test classes of a data set, or all classes of a folder
        way: classes of an episode; default: as in the run, or 5
        shot: support images of each class; default: as in the run, or 1
        queries: query images of each class; default: as in the run, or 15
        count: number of episodes; default: as in the run, or 600
        transductive: use the batch-norm statistics of the episode itself; default: as in the run
        corrupt: whether an unreadable image is an error, or is skipped and counted
        device: cpu, cuda or cuda:1, for the network of a run
        out: folder for evaluation.json; default: the run folder, or runs/evaluate/fewshot
    """

    task: ClassVar[str] = "fewshot"
    run: str | None = None  # type: ignore[assignment]
    way: int | None = None
    shot: int | None = None
    queries: int | None = None
    count: int | None = None
    transductive: bool | None = None
    corrupt: Corrupt = "error"
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_no_features(self, self.run)
        if self.run is None and self.data is None:
            raise ArgumentError(
                "run or data is missing: name a run folder with --run, or images to test a frozen backbone on with "
                "--data."
            )
        if self.run is None and self.transductive:
            raise ArgumentError("--transductive needs --run: a frozen backbone keeps its batch-norm statistics.")
        if self.run is None and self.device != "cpu":
            raise ArgumentError(f"--device {self.device} needs --run: a frozen backbone runs on the CPU.")
        for name, least in (("way", 2), ("shot", 1), ("queries", 1), ("count", 2)):
            if (value := getattr(self, name)) is not None:
                require_at_least(least, "", **{name: value})


@dataclass(frozen=True)
class PredictOptions(FeatureConfig):
    """Classify images by a few examples of each class, without any training: with a frozen backbone, or by a run.

    Args:
        support: folder or zip with a folder of example images for each class, at least two classes
        images: image files, and folders that are searched recursively
        run: run folder of 'powerpool train fewshot', whose network compares the images; default: a frozen backbone
        corrupt: whether an unreadable image is an error, or is skipped
        download: allow downloads of weights that are not on this machine
        out: file for the predictions with all scores, .csv or .json; default: a table is printed
    """

    task: ClassVar[str] = "fewshot"
    RENAMED: ClassVar[dict[str, str]] = {"pictures": "images"}

    support: str = field(kw_only=True)
    images: list[str] = field(default_factory=list, kw_only=True)
    run: str | None = field(default=None, kw_only=True)
    corrupt: Corrupt = field(default="error", kw_only=True)
    download: bool = field(default=False, kw_only=True)
    out: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_answer_file(self.out)
        require_no_features(self, self.run)
        if not self.images:
            raise ArgumentError(
                "images must name at least one file or folder: powerpool predict fewshot photo.jpg --support EXAMPLES"
            )


@dataclass(frozen=True)
class ReproduceOptions(base.ReproduceOptions):
    """Train and test methods by episodes, and compare them with the figures of the paper.

    Args:
        data: data sets such as glyphs, omniglot, miniimagenet, flower102, food101 or open_mic, or folders or zips of
            class folders
        problems: problems of Open MIC: p1->p2 and so on, or names of exhibitions; default: that of the recipe
        methods: rows of the table; default: seven methods for one support image, four for more. The method of a recipe
            is ignored. For the study features: pools, such as FOP and SOP+SpecGamma
        shots: numbers of support images, with a training for each; default: that of the recipe
        ways: numbers of test classes, with one training for all; default: that of the recipe
        transductive: also test each training with the batch-norm statistics of the test episode; validation selects
            its weights as without this test
        seeds: of weights and training episodes, with a training for each; default: that of the recipe. For the study
            features: of test episodes; default: 0 1 2 3 4
        study: pretraining compares each method with and without a training on another data set before. features
            compares pools and classifiers on a frozen backbone, without training
        source: data set of the first training of the study pretraining; default: that of the recipe
        pretrained: run folders, one for all or one for each seed, from whose encoders the trainings start
        backbone: frozen network of the study features; default: that of the recipe
        out: folder for trainings, records and the report; default: runs/reproduce/fewshot (-pretraining, -features,
            -quick)
    """

    task: ClassVar[str] = "fewshot"
    default_data: ClassVar[str] = "glyphs"
    problems: list[str] = field(default_factory=list)
    shots: list[int] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)
    transductive: bool = False
    seeds: list[int] = field(default_factory=list)
    study: Literal["pretraining", "features"] | None = None
    source: str | None = None
    pretrained: list[str] = field(default_factory=list)
    backbone: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.study and self.pretrained:
            raise ArgumentError("--pretrained and --study exclude each other: a study trains its own first networks.")
        require_distinct(problems=self.problems, shots=self.shots, ways=self.ways, seeds=self.seeds)
        require_at_least(1, "", **{"each of shots": min(self.shots, default=1)})
        require_at_least(2, "", **{"each of ways": min(self.ways, default=2)})
        if self.study and max(len(self.data), len(self.problems)) > 1:
            raise ArgumentError(f"--study {self.study} takes one data set (got {self.data}, {self.problems}).")
        if self.source and self.study != "pretraining":
            raise ArgumentError("--source needs --study pretraining: no other training uses a second data set.")
        if self.problems and self.study == "features":
            raise ArgumentError(
                "--study features needs validation classes, and problems of Open MIC have none: leave out --problems."
            )
        if self.transductive and self.study == "features":
            raise ArgumentError(
                "--transductive has no effect in --study features, whose backbone is frozen: leave it out."
            )
        if self.backbone and self.study != "features":
            raise ArgumentError(
                "--backbone needs --study features: all other networks are trained, and none is frozen."
            )

    @property
    def known_methods(self) -> Sequence[str]:
        """What ``methods`` may name."""
        return tuple(FEATURE_METHODS) if self.study == "features" else super().known_methods

    @property
    def data_sets(self) -> list[str | None]:
        """What to read; None stands for the data set that the recipe names."""
        if self.study == "features" and not self.data:
            return ["digits"] if self.quick else [None]
        if self.study and not self.data:
            return [next(name for name in reversed(QUICK_STUDY) if name != self.source)] if self.quick else [None]
        return super().data_sets

    @property
    def chosen_problems(self) -> list[str | None]:
        """Problems of Open MIC; None stands for the one that the recipe names."""
        return [*self.problems] or [None]

    @property
    def source_set(self) -> str | None:
        """Data set of the first training of the study; None for the one that the recipe names."""
        if self.study and self.quick and self.source is None:
            return next(name for name in QUICK_STUDY if name not in self.data)
        return self.source

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        if self.out or not self.study:
            return super().folder
        return Path("runs", "reproduce", f"fewshot-{self.study}{'-quick' if self.quick else ''}")

    def read_config(self, data: str | None, problem: str | None = None) -> FewShotConfig:
        """Return the settings for a data set; None stands for the one that the recipe names."""
        return self._read(FewShotConfig, data, problem, self.recipe)

    def read_study(self) -> StudyConfig:
        """Return the settings of the study of pre-training."""
        (data,), (problem,) = self.data_sets, self.chosen_problems
        found = self._read(StudyConfig, data, problem, self.recipe or "fewshot/pretraining")
        return replace(found, source_episodes=found.training.episodes) if self.quick else found

    def read_feature_study(self) -> FeatureStudyConfig:
        """Return the settings of the study of frozen features."""
        (data,) = self.data_sets
        return read_layered(
            FeatureStudyConfig,
            "fewshot",
            data,
            self.recipe or f"fewshot/features{'-quick' if self.quick else ''}",
            [],
            data_root=self.data_root,
            download=self.download,
            backbone=self.backbone,
        )

    def _read(self, kind: type[C], data: str | None, problem: str | None, recipe: str | None) -> C:
        # Methods come from the options. The baseline fits whatever parameters a recipe has for others.
        found = read_layered(
            kind,
            "fewshot",
            data,
            recipe,
            ["quick"] if self.quick else [],
            problem=problem,
            data_root=self.data_root,
            download=self.download,
            source=self.source_set,
            model__method=BASELINE,
        )
        if found.pretrained is not None:
            raise ArgumentError(
                f"A recipe for reproduce must not set pretrained (got {found.pretrained}). Use --pretrained, or "
                "--study pretraining."
            )
        # Training episodes have as many support images as those of the test.
        return replace(found, training=replace(found.training, shot=None)) if self.shots else found
