"""Settings of few-shot learning. A recipe is a YAML file of these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from powerpool.checks import require_above, require_at_least, require_seed
from powerpool.data import ClassCut
from powerpool.data.banks import Resize
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, require_choice
from powerpool.tasks.methods import FEWSHOT_METHODS
from powerpool.tasks.options import take_fields
from powerpool.tasks.training import require_device_name

Schedule = Literal["step", "cosine", "constant"]
Loss = Literal["cross-entropy", "mse"]
SMALLEST, LARGEST = 10, 2048
"""Limits of the image size. Two convolutions without padding and two poolings leave one location of 10 pixels. Sizes
above 2048 come from damaged or hostile files."""


@dataclass(frozen=True)
class ModelConfig:
    """Encoder, and how the images of an episode are compared.

    Args:
        method: by its name in the tables, such as RelationNet, SoSN(x)+SigmE or SoSN(x+L)+SC+SpecMaxExpF
        hidden: channels of every convolution, an even number
        eta: parameter of MaxExp
        sigme_eta: parameter of SigmE
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE
        t: parameter of HDP
        beta: strength of centering, from 0 (autocorrelation) to 1 (covariance)
        pivots: pivots of the spatial coordinates; Z pivots add 2 Z channels
        sigma: width of the spatial coordinates
        alpha: weight of the spatial coordinates
        temperature: initial value of what nearest-mean methods divide squared distances by; it is learnt. Default: what
            makes the mean logit of the first training episode -5, whatever the curve
        padding: pad the convolutions that compare matrices, and start linear layers with the weights of PyTorch, as in
            version 0.1; default: the networks of Relation Net and SoSN as their authors publish them
    """

    method: str = "SoSN(x+L)+SigmE"
    hidden: int = 64
    eta: float = 20.0
    sigme_eta: float = 500.0
    gamma: float = 0.5
    asinhe_gamma: float = 1000.0
    t: float = 0.01
    beta: float = 0.0
    pivots: int = 5
    sigma: float = 0.5
    alpha: float = 0.5
    temperature: float | None = None
    padding: bool = False

    def __post_init__(self) -> None:
        require_choice(self.method, tuple(FEWSHOT_METHODS), "model.method")
        if self.hidden < 2 or self.hidden % 2:
            raise ArgumentError(f"model.hidden must be an even number, at least 2 (got {self.hidden}).")
        if self.temperature is not None:
            require_above(0, "model", temperature=self.temperature)
        FEWSHOT_METHODS[self.method].require_settings(self.method, self, "model")


@dataclass(frozen=True)
class EpisodeConfig:
    """The episodes of test and validation.

    Args:
        way: classes of an episode
        shot: support images of each class
        queries: query images of each class
        count: number of test episodes
        transductive: use the batch-norm statistics of the test episode itself; a prediction then depends on the other
            queries
    """

    way: int = 5
    shot: int = 1
    queries: int = 3
    count: int = 600
    transductive: bool = False

    def __post_init__(self) -> None:
        require_at_least(2, "test", way=self.way, count=self.count)
        require_at_least(1, "test", shot=self.shot, queries=self.queries)


@dataclass(frozen=True)
class TrainingConfig:
    """Adam on one episode after the other.

    Args:
        episodes: training steps
        way: classes of a training episode; default: as in the test
        shot: support images of each class; default: as in the test
        queries: query images of each class
        learning_rate: initial learning rate
        schedule: step multiplies the learning rate by decay_factor after every decay_every episodes, cosine lowers it
            to 0 at the last episode along half a cosine, constant keeps it
        decay_every: episodes between two reductions of the learning rate, for the schedule step
        decay_factor: what the learning rate is multiplied by, for the schedule step
        loss: cross-entropy of the classes of an episode, or mse, the mean squared error to 1 for the true class and 0
            for the others; default: mse for Relation Net and SoSN, cross-entropy for the other methods
        clip: largest gradient norm, of the encoder and of all other layers separately; 0 for no limit. Default: 0 for
            SoSN, 0.5 for the other methods
        turns: treat classes rotated by 90, 180 and 270 degrees as further classes, as is usual for Omniglot
        flips: mirror training images at random, from left to right
        shift: shift training images at random, by up to so many pixels; the border is reflected
        validate_every: episodes between two validations, the best of which selects the model
        validation_episodes: number of episodes of a validation; 0 keeps the last model
        settling_episodes: training episodes from which batch-norm statistics are recomputed before a validation; 0
            keeps the running statistics
        precision: 32-true, or bf16-mixed, where convolutions and linear layers are trained in bfloat16; matrices,
            losses, validation and test are float32. auto is bf16-mixed if the device has instructions for it
        device: cpu, cuda or cuda:1
    """

    episodes: int = 5000
    way: int | None = None
    shot: int | None = None
    queries: int = 5
    learning_rate: float = 1e-3
    schedule: Schedule = "step"
    decay_every: int = 100_000
    decay_factor: float = 0.5
    loss: Loss | None = None
    clip: float | None = None
    turns: bool = False
    flips: bool = False
    shift: int = 0
    validate_every: int = 1000
    validation_episodes: int = 100
    settling_episodes: int = 50
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        counts = {"episodes": self.episodes, "decay_every": self.decay_every, "validate_every": self.validate_every}
        require_at_least(1, "training", queries=self.queries, **counts)
        if self.way is not None:
            require_at_least(2, "training", way=self.way)
        if self.shot is not None:
            require_at_least(1, "training", shot=self.shot)
        optional = {"validation_episodes": self.validation_episodes, "settling_episodes": self.settling_episodes}
        require_at_least(0, "training", clip=self.clip or 0, shift=self.shift, **optional)
        require_above(0, "training", learning_rate=self.learning_rate)
        if not 0 < self.decay_factor <= 1:
            raise ArgumentError(f"training.decay_factor must be above 0 and at most 1 (got {self.decay_factor}).")
        require_choice(self.schedule, get_args(Schedule), "training.schedule")
        if self.loss is not None:
            require_choice(self.loss, get_args(Loss), "training.loss")
        require_choice(self.precision, ("auto", "32-true", "bf16-mixed"), "training.precision")
        require_device_name(self.device)

    def rate(self, done: int) -> float:
        """Return the learning rate of the next episode, after a number of finished ones.

        Example:
            >>> settings = TrainingConfig(episodes=4, learning_rate=0.5, schedule="cosine")
            >>> [round(settings.rate(done), 3) for done in range(4)]
            [0.5, 0.427, 0.25, 0.073]
        """
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * done / self.episodes)) / 2
        if self.schedule == "step":
            return self.learning_rate * self.decay_factor ** (done // self.decay_every)
        return self.learning_rate


@dataclass(frozen=True)
class FewShotConfig:
    """All settings of a result.

    Args:
        data: a data set such as glyphs, omniglot or miniimagenet, or a folder or zip of class folders
        data_root: folder with data sets; default: $POWERPOOL_DATA, then the cache
        download: allow downloads of data that is not on this machine
        corrupt: whether an unreadable image is an error, or is skipped and counted
        size: image size in pixels
        channels: 3 for colour, 1 for grey
        resize: squeeze changes the aspect ratio of an image, crop takes its central square
        invert: invert brightness, for dark strokes on a bright background
        problem: problem of Open MIC: p1->p2 and so on, or the name of an exhibition
        train_classes: share or number of training classes; default: the usual split of the data set
        validation_classes: share or number of validation classes; the others are tested
        class_order: names takes the first classes by name or official order, drawn takes random ones
        pretrained: run folder of a model whose weights the training starts from
        pretrained_part: all weights, which needs a model of the same method, or those of the encoder
        model: encoder and comparison
        test: episodes of test and validation
        training: Adam and its episodes
        seed: of initial weights, training episodes and drawn classes. Test episodes do not depend on it, unless classes
            are drawn
    """

    RENAMED: ClassVar[dict[str, str]] = {
        "model.eta_prime": "model.sigme_eta",
        "model.gamma_prime": "model.asinhe_gamma",
    }

    data: str = "glyphs"
    data_root: str | None = None
    download: bool = False
    corrupt: Corrupt = "error"
    size: int = 84
    channels: int = 3
    resize: Resize = "squeeze"
    invert: bool = False
    problem: str | None = None
    train_classes: int | float | None = None
    validation_classes: int | float | None = None
    class_order: Literal["names", "drawn"] | None = None
    pretrained: str | None = None
    pretrained_part: Literal["all", "encoder"] = "all"
    model: ModelConfig = field(default_factory=ModelConfig)
    test: EpisodeConfig = field(default_factory=EpisodeConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        require_image_format(self.size, self.channels, self.model.method)
        require_seed(self.seed)
        require_choice(self.pretrained_part, ("all", "encoder"), "pretrained_part")
        if self.training.shift >= self.size:
            raise ArgumentError(f"training.shift must be below size, {self.size} (got {self.training.shift}).")
        given = [self.train_classes, self.validation_classes, self.class_order]
        if any(value is not None for value in given) and any(value is None for value in given):
            raise ArgumentError(
                "train_classes, validation_classes and class_order belong together: give all or none of them (got "
                f"{self.train_classes}, {self.validation_classes}, {self.class_order})."
            )
        _ = self.cut  # a bad share fails here

    @property
    def cut(self) -> ClassCut | None:
        """How classes are divided; None for the usual split of the data set."""
        if self.train_classes is None or self.validation_classes is None or self.class_order is None:
            return None
        return ClassCut(self.train_classes, self.validation_classes, self.class_order, self.seed)

    @property
    def protocol(self) -> str:
        """The name of the test in the tables.

        Example:
            >>> FewShotConfig().protocol
            '5-way-1-shot'
            >>> FewShotConfig(test=EpisodeConfig(shot=5, transductive=True)).protocol
            '5-way-5-shot-transductive'
        """
        return protocol_name(self.test)

    def with_test(self, way: int, transductive: bool) -> FewShotConfig:
        """Return the settings with another number of test classes, and with these batch-norm statistics in the test."""
        return replace(self, test=replace(self.test, way=way, transductive=transductive))


@dataclass(frozen=True)
class StudyConfig(FewShotConfig):
    """Settings of the study of pre-training: those of the target data set, and two for the source data set.

    Args:
        source: data set of the first training
        source_episodes: training steps on it
    """

    source: str = "miniimagenet100"
    source_episodes: int = 1000

    @property
    def target(self) -> FewShotConfig:
        """Settings of the second training."""
        return take_fields(self, FewShotConfig)

    @property
    def first(self) -> FewShotConfig:
        """Settings of the first training: the same on other data, with another number of episodes."""
        return replace(
            self.target,
            data=self.source,
            problem=None,
            train_classes=None,
            validation_classes=None,
            class_order=None,
            training=replace(self.training, episodes=self.source_episodes),
        )


def protocol_name(test: EpisodeConfig) -> str:
    """Return the name of a test in the tables."""
    return f"{test.way}-way-{test.shot}-shot{'-transductive' if test.transductive else ''}"


def require_image_format(size: int, channels: int, method: str) -> None:
    """Refuse images that the encoder of a method cannot process."""
    least = 16 if FEWSHOT_METHODS[method].kind == "prototype" else SMALLEST  # four poolings
    if not least <= size <= LARGEST:
        raise ArgumentError(f"size must be from {least} to {LARGEST} for {method} (got {size}).")
    if channels not in (1, 3):
        raise ArgumentError(f"channels must be 3 or 1 (got {channels}).")
