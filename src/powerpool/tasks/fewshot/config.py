"""What a run of few-shot learning is made of. A recipe is a YAML file of these fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from powerpool.checks import require_above, require_at_least, require_seed
from powerpool.data import ClassCut
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, PowerPoolError, require_choice
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.tasks.devices import require_device_name
from powerpool.tasks.fewshot.methods import METHODS


@dataclass(frozen=True)
class ModelConfig:
    """Encoder, and how the pictures of an episode are compared.

    Args:
        method: by its name in the tables, such as RelationNet, SoSN(x)+SigmE or SoSN(x+L)+SC+SpecMaxExpF
        hidden: K, channels of every convolution
        eta: parameter of MaxExp
        eta_prime: parameter of SigmE, the eta' of the paper
        gamma: parameter of Gamma
        gamma_prime: parameter of AsinhE, the gamma' of the paper
        t: parameter of HDP
        beta: how much of the mean of a picture's features is removed, 0 (autocorrelation) to 1 (covariance)
        pivots: Z, the pivots of the spatial coordinates; they add 2 Z channels
        sigma: width of the spatial coordinates
        alpha: weight of the spatial coordinates
    """

    method: str = "SoSN(x+L)+SigmE"
    hidden: int = 64
    eta: float = 20.0
    eta_prime: float = 500.0
    gamma: float = 0.5
    gamma_prime: float = 1000.0
    t: float = 0.01
    beta: float = 0.0
    pivots: int = 5
    sigma: float = 0.5
    alpha: float = 0.5

    def __post_init__(self) -> None:
        require_choice(self.method, tuple(METHODS), "model.method")
        if self.hidden < 2 or self.hidden % 2:
            raise ArgumentError(f"model.hidden must be an even number, at least 2 (got {self.hidden}).")
        if not 0 <= self.beta <= 1:
            raise ArgumentError(f"model.beta must be at least 0 and at most 1 (got {self.beta}).")
        method = METHODS[self.method]
        if method.is_second_order and self.beta and "beta" not in method.parameters:
            raise ArgumentError(
                f"model.beta must be 0 for {self.method} (got {self.beta}): centred features give negative entries, "
                "which this curve has no value for. Take SigmE or AsinhE, or a method on the spectrum."
            )
        try:  # the curve knows what its parameter may be
            method.make_curve(self)
            method.make_solver(self)
            if method.coordinates:
                spatial_coordinates(2, 2, self.pivots, self.sigma, self.alpha)
        except PowerPoolError as error:
            named = ", ".join(f"model.{name}={getattr(self, name)}" for name in method.parameters)
            raise ArgumentError(f"{self.method} cannot be built from {named}: {error}") from error


@dataclass(frozen=True)
class EpisodeConfig:
    """What an episode of test and validation is, and how many there are.

    Args:
        way: L, classes of an episode
        shot: J, support pictures of each class
        queries: pictures of each class that are to be named
        count: episodes of the test
        transductive: whether batch normalization takes its statistics from the pictures of the test episode itself;
            what is said of a query then depends on the other queries
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
    """Adam on one episode after the other, with a rate that falls in steps.

    Args:
        episodes: steps
        way: classes of a training episode; as many as in the test without it
        shot: support pictures of each class; as many as in the test without it
        queries: query pictures of each class
        learning_rate: of Adam, in the first episodes
        decay_every: episodes after which the rate falls
        decay_factor: what the rate is multiplied with then
        clip: largest norm of the gradient of the encoder, and of all else; longer ones are shortened to it
        turns: whether a class that is turned by 90, 180 or 270 degrees is a class of its own, as for Omniglot
        validate_every: episodes between two validations, of which the best chooses the model
        validation_episodes: in each validation; 0: there is none, and the last model is taken
        settling_episodes: training episodes, from which the statistics of batch normalization are taken before a
            validation; 0: they are the running ones, gathered while the weights changed
        precision: 32-true, or bf16-mixed: convolutions and linear layers compute in bfloat16 while they are
            trained. Matrices and the loss are float32, and so are validation and test
        device: cpu, cuda or cuda:1
    """

    episodes: int = 5000
    way: int | None = None
    shot: int | None = None
    queries: int = 5
    learning_rate: float = 1e-3
    decay_every: int = 100_000
    decay_factor: float = 0.5
    clip: float = 0.5
    turns: bool = False
    validate_every: int = 1000
    validation_episodes: int = 100
    settling_episodes: int = 50
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    device: str = "cpu"

    def __post_init__(self) -> None:
        counts = {"episodes": self.episodes, "decay_every": self.decay_every, "validate_every": self.validate_every}
        require_at_least(1, "training", queries=self.queries, **counts)
        if self.way is not None:
            require_at_least(2, "training", way=self.way)
        if self.shot is not None:
            require_at_least(1, "training", shot=self.shot)
        none_or_more = {"validation_episodes": self.validation_episodes, "settling_episodes": self.settling_episodes}
        require_at_least(0, "training", **none_or_more)
        require_above(0, "training", learning_rate=self.learning_rate, clip=self.clip)
        if not 0 < self.decay_factor <= 1:
            raise ArgumentError(f"training.decay_factor must be above 0 and at most 1 (got {self.decay_factor}).")
        require_choice(self.precision, ("32-true", "bf16-mixed"), "training.precision")
        require_device_name(self.device)


@dataclass(frozen=True)
class FewShotConfig:
    """Everything that a result depends on.

    Args:
        data: a data set by name, such as glyphs, omniglot or miniimagenet, or a folder or zip of class folders
        data_root: folder with data sets; without it $POWERPOOL_DATA and the cache are searched
        download: whether data that is not on this machine may be fetched from the network
        corrupt: whether a picture that cannot be read is an error, or is skipped and counted
        size: side of the pictures in pixels
        channels: 3 for colours, 1 for grey
        resize: squeeze changes the aspect of a picture, crop cuts the middle square
        invert: whether black becomes white, for dark strokes on bright paper
        problem: of Open MIC: p1->p2 and so on, or the name of an exhibition
        train_classes: share or number of the classes to train on; the usual one of the data set without it
        validation_classes: share or number of the classes that choose the model; the rest is for test
        class_order: whether the first classes are trained on, in the order of the set or else by name, or classes that
            are drawn by the seed
        pretrained: run folder of a model of the same method, from whose weights the training starts
        model: encoder and comparison
        test: the episodes that are tested on
        training: Adam and its episodes
        seed: of initial weights and training episodes, and of drawn classes, where class_order is given. Test episodes
            are the same for every seed, unless their classes are drawn by it
    """

    data: str = "glyphs"
    data_root: str | None = None
    download: bool = False
    corrupt: Corrupt = "error"
    size: int = 84
    channels: int = 3
    resize: Literal["squeeze", "crop"] = "squeeze"
    invert: bool = False
    problem: str | None = None
    train_classes: int | float | None = None
    validation_classes: int | float | None = None
    class_order: Literal["names", "drawn"] | None = None
    pretrained: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    test: EpisodeConfig = field(default_factory=EpisodeConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        # Two convolutions without a margin and two halvings leave one location of 10 pixels.
        require_at_least(10, "", size=self.size)
        if METHODS[self.model.method].kind == "prototype":
            require_at_least(16, "", size=self.size)  # four halvings
        if self.channels not in (1, 3):
            raise ArgumentError(f"channels must be 3 or 1 (got {self.channels}).")
        require_seed(self.seed)
        given = [self.train_classes, self.validation_classes, self.class_order]
        if any(value is not None for value in given) and any(value is None for value in given):
            raise ArgumentError(
                "train_classes, validation_classes and class_order belong together: give all of them, or none (got "
                f"{self.train_classes}, {self.validation_classes}, {self.class_order})."
            )
        _ = self.cut  # a share that cannot be shows here

    @property
    def cut(self) -> ClassCut | None:
        """How the classes are divided; None: as usual."""
        if self.train_classes is None or self.validation_classes is None or self.class_order is None:
            return None
        return ClassCut(self.train_classes, self.validation_classes, self.class_order, self.seed)

    @property
    def protocol(self) -> str:
        """What a table calls the test. One that is transductive is another: it is told more.

        Example:
            >>> FewShotConfig().protocol
            '5-way-1-shot'
            >>> FewShotConfig(test=EpisodeConfig(shot=5, transductive=True)).protocol
            '5-way-5-shot-transductive'
        """
        return f"{self.test.way}-way-{self.test.shot}-shot{'-transductive' if self.test.transductive else ''}"
