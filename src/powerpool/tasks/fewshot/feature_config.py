"""Settings of few-shot learning on the features of a frozen backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from powerpool.checks import require_above
from powerpool.data import Crops
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, require_choice
from powerpool.nn import FirstOrderPool2d, SecondOrderPool2d
from powerpool.tasks.fewshot.classifiers import DEFAULTS, Classifier
from powerpool.tasks.fewshot.config import EpisodeConfig
from powerpool.tasks.methods import FEATURE_METHODS


@dataclass(frozen=True)
class FeatureConfig:
    """A frozen backbone, a pool, and a classifier on the pooled vectors.

    Args:
        backbone: frozen network: efficientnet-lite0, hf:NAME, hf:FOLDER, timm:NAME or torchvision:NAME
        size: width and height of a crop in pixels
        crops: crops of an image, which are pooled as one set: 1 (centre), 2 (with its mirror image), 5, 6, 10 or 12
        method: pool, by its name in the tables: FOP, SOP, or SOP with a curve
        eta: parameter of MaxExp
        sigme_eta: parameter of SigmE
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE
        t: parameter of HDP
        beta: strength of centering, from 0 (autocorrelation) to 1 (covariance)
        classifier: nearest class mean, ridge or logistic regression; auto takes the one with the highest leave-one-out
            accuracy on the examples, and ridge regression where a class has one example
        penalty: of ridge and logistic regression, relative to the mean squared length of the centred examples; default:
            the best by leave-one-out for auto, otherwise 0.1 (ridge) and 0.03 (logistic)
    """

    backbone: str = "efficientnet-lite0"
    size: int = 224
    crops: int = 2
    method: str = "SOP+SpecGamma"
    eta: float = 20.0
    sigme_eta: float = 500.0
    gamma: float = 0.5
    asinhe_gamma: float = 1000.0
    t: float = 0.01
    beta: float = 0.0
    classifier: Literal["auto", "ncm", "ridge", "logistic"] = "auto"
    penalty: float | None = None

    def __post_init__(self) -> None:
        require_choice(self.method, tuple(FEATURE_METHODS), "method")
        require_choice(self.classifier, ("auto", *DEFAULTS), "classifier")
        if self.penalty is not None:
            require_above(0, "", penalty=self.penalty)
            if self.classifier not in ("ridge", "logistic"):
                raise ArgumentError(
                    f"penalty is for --classifier ridge or logistic (got {self.penalty} with {self.classifier})."
                )
        FEATURE_METHODS[self.method].require_settings(self.method, self, "")
        _ = self.layout  # a bad number of crops fails here

    @property
    def layout(self) -> Crops:
        """The crops of an image."""
        return Crops(size=self.size, count=self.crops)

    @property
    def fixed_classifier(self) -> Classifier | None:
        """The classifier; None if the examples choose it."""
        if self.classifier == "auto":
            return None
        default = DEFAULTS[self.classifier]
        return default if self.penalty is None else Classifier(default.kind, self.penalty)

    def make_pool(self, channels: int) -> FirstOrderPool2d | SecondOrderPool2d:
        """Build the pool: vectors of length 1 from features that are scaled to a mean square of 1."""
        method = FEATURE_METHODS[self.method]
        options: dict[str, Any] = {"crops": True, "unit_scale": True, "unit_norm": True}
        curve = method.make_curve(self)
        if method.order == "first":
            return FirstOrderPool2d(channels, curve, **options)
        solver = method.make_solver(self)
        return SecondOrderPool2d(channels, curve, method.mode, self.beta, solver=solver, **options)

    def with_pool(self, method: str, value: float | None) -> FeatureConfig:
        """Return the settings with another pool, and a value of the parameter of its curve."""
        parameter = FEATURE_METHODS[method].norm.parameter
        changes: dict[str, Any] = {} if parameter is None or value is None else {parameter: value}
        return replace(self, method=method, **changes)


@dataclass(frozen=True)
class FeatureGrid:
    """Values of the parameters of curves, the best of which on validation classes is tested.

    Args:
        eta: parameter of MaxExp
        sigme_eta: parameter of SigmE
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE
        t: parameter of HDP
    """

    eta: list[float] = field(default_factory=lambda: [5.0, 10.0, 20.0, 40.0])
    sigme_eta: list[float] = field(default_factory=lambda: [100.0, 300.0, 1000.0])
    gamma: list[float] = field(default_factory=lambda: [0.2, 0.3, 0.5, 0.7])
    asinhe_gamma: list[float] = field(default_factory=lambda: [100.0, 1000.0, 10_000.0])
    t: list[float] = field(default_factory=lambda: [0.003, 0.01, 0.03])

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values:
                raise ArgumentError(f"grid.{name} must have at least one value (got none).")

    def values(self, method: str) -> Sequence[float | None]:
        """Return the values of the parameter of a method; None for one without a parameter."""
        parameter = FEATURE_METHODS[method].norm.parameter
        return [None] if parameter is None else getattr(self, parameter)


@dataclass(frozen=True)
class FeatureStudyConfig(FeatureConfig):
    """Settings of the study of frozen features; method, curve, classifier and penalty are what is compared.

    Args:
        data: a data set with validation and test classes
        data_root: folder with data sets; default: $POWERPOOL_DATA, then the cache
        download: allow downloads of data and weights that are not on this machine
        corrupt: whether an unreadable image is an error, or is skipped and counted
        test: episodes of the test, of every episode seed
        validation_episodes: number of episodes that choose parameters and penalties
        grid: parameters to choose from
    """

    data: str = "flower102"
    data_root: str | None = None
    download: bool = False
    corrupt: Corrupt = "error"
    test: EpisodeConfig = field(default_factory=lambda: EpisodeConfig(queries=15, count=1000))
    validation_episodes: int = 1000
    grid: FeatureGrid = field(default_factory=FeatureGrid)
