r"""A scikit-learn transformer: one power-normalized vector per feature map.

It can be used wherever scikit-learn accepts a transformer: in a ``Pipeline`` before a linear classifier, in
``GridSearchCV``, in a ``FeatureUnion``.
"""

from __future__ import annotations

import copy
import numbers
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerpool import curves
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError
from powerpool.functional import Mode
from powerpool.linalg.trace import make_terms
from powerpool.nn import SecondOrderPool2d
from powerpool.solvers import Solver

try:
    # At module level because the class below is a subclass; only this module needs the package.
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils import assert_all_finite, check_array
    from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "powerpool.integrations.sklearn needs scikit-learn, which is not installed: pip install 'powerpool[sklearn]'.",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    import numpy as np

CURVE_PARAMETERS = ("eta", "gamma", "t")
"""Parameters of the curves, exposed by name for a parameter search."""

BATCH_ENTRIES = 2**20
"""Entries per batch, of the maps or of the matrices, whichever are more, if no ``batch_size`` is given.

On one core in float32 a quarter of it takes 1.2 to 1.6 times as long, and more gains at most a quarter."""


class SecondOrderPooling(TransformerMixin, BaseEstimator):
    r"""Power-normalized second-order pooling as a transformer.

    .. math:: (n, C, N) \to \operatorname{vec}\, g(M_s) \in \mathbb{R}^{n \times C'(C'+1)/2}, \qquad
              M_s = \frac1N \bar\Phi_s \bar\Phi_s^T, \qquad C' = C + 2Z

    for each set s: :func:`powerpool.second_order_pool`, as the upper triangle with off-diagonal entries times sqrt 2,
    so that dot products of vectors are those of matrices. ``fit`` learns shapes, not values.

    Arrays have one of three equivalent forms: maps (n, C, H, W), sets (n, C, N), and rows (n, C*N) with ``channels=C``.
    Lists, data frames, memory maps and tensors are accepted. The result is float32 if the input is float32 or half
    precision, and float64 otherwise. ``transform`` works in batches without gradients, so its memory beside the result
    does not grow with n. It accepts another N than ``fit``, with the same number of channels.

    Args:
        curve: a curve, its name, or None for plain second-order pooling.
        mode: ``"spectral"`` or ``"elementwise"``.
        channels: C, required for the (n, C*N) form; None reads it from the array.
        beta: the share of the mean that is removed, 0 (autocorrelation) to 1 (covariance).
        coordinates: pivots Z of the spatial coordinates, 0 for none; they add 2Z channels, and need H and W.
        solver: see :mod:`powerpool.functional`; also ``"gram"``.
        eta, gamma, t: the parameter of a curve that is given by name, for a parameter search; None is its default. The
            parameters of other curves are ignored, so that one grid can search curves and parameters together. For
            other options pass a curve.
        height, width: H and W for arrays (n, C, N) and (n, C*N); one of them is enough.
        sigma, alpha: width and weight of the coordinates.
        eps, trace_power, slope: see :mod:`powerpool.functional`.
        l2_normalize: whether each vector is divided by its Euclidean norm; a vector of zeros is unchanged.
        batch_size: maps per batch; None chooses batches of about ten megabytes.

    Attributes:
        channels_: C.
        grid_: (H, W), or None if unknown.
        n_features_in_: C*N.
        feature_names_in_: names of the columns, if ``fit`` was called with a data frame.
        pool_: the fitted :class:`powerpool.nn.SecondOrderPool2d`.

    Example:
        >>> import numpy as np
        >>> from powerpool.integrations.sklearn import SecondOrderPooling
        >>> maps = np.random.default_rng(0).random((40, 3, 5, 5))
        >>> pool = SecondOrderPooling("maxexp", eta=20)
        >>> pool.fit_transform(maps).shape
        (40, 6)
        >>> pool.get_feature_names_out().tolist()
        ['c0_c0', 'c0_c1', 'c0_c2', 'c1_c1', 'c1_c2', 'c2_c2']

        Rows, and a search for the best curve and eta:

        >>> from sklearn.model_selection import GridSearchCV
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.svm import LinearSVC
        >>> rows, labels = maps.reshape(40, -1), np.arange(40) % 2
        >>> rows[labels == 1, :25] *= 2
        >>> pipeline = make_pipeline(SecondOrderPooling("maxexp", channels=3), LinearSVC())
        >>> grid = {"secondorderpooling__curve": ["maxexp", "gamma"], "secondorderpooling__eta": [5, 20]}
        >>> search = GridSearchCV(pipeline, grid).fit(rows, labels)
        >>> float(search.best_score_)
        1.0
    """

    def __init__(
        self,
        curve: Curve | str | None = None,
        mode: Mode = "spectral",
        channels: int | None = None,
        beta: float = 0.0,
        coordinates: int = 0,
        solver: str | Solver = "auto",
        *,
        eta: float | None = None,
        gamma: float | None = None,
        t: float | None = None,
        height: int | None = None,
        width: int | None = None,
        sigma: float = 0.5,
        alpha: float = 1.0,
        eps: float = 1e-6,
        trace_power: float = 0.0,
        slope: float = 0.0,
        l2_normalize: bool = False,
        batch_size: int | None = None,
    ) -> None:
        # Unchanged: scikit-learn clones an estimator by its parameters, and expects errors from fit.
        self.curve = curve
        self.mode = mode
        self.channels = channels
        self.beta = beta
        self.coordinates = coordinates
        self.solver = solver
        self.eta = eta
        self.gamma = gamma
        self.t = t
        self.height = height
        self.width = width
        self.sigma = sigma
        self.alpha = alpha
        self.eps = eps
        self.trace_power = trace_power
        self.slope = slope
        self.l2_normalize = l2_normalize
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any = None) -> SecondOrderPooling:
        """Check the parameters, the shape of X, and that X is finite; y is ignored."""
        array = self._array(X, reset=True)
        assert_all_finite(array, estimator_name=type(self).__name__, input_name="X")
        channels, locations = _sets(array.shape, _optional_count("channels", self.channels))
        grid = self._grid(array.shape, locations)
        pool = self._pool(channels)
        if pool.coordinates and grid is None:
            raise ArgumentError(
                f"coordinates={self.coordinates} needs the height and width of the maps, which an array of shape "
                f"{tuple(array.shape)} does not define. Pass maps of shape (n, C, H, W), or height= or width=."
            )
        # Refuse bad values here, not in the first batch.
        self._batch(pool, locations)
        make_terms(self.eps, self.trace_power, self.slope, torch.float32)
        self.pool_ = pool
        self.channels_ = channels
        self.grid_ = grid
        self.n_features_in_ = channels * locations
        return self

    def transform(self, X: Any) -> np.ndarray:  # shape: (n, C, H, W), (n, C, N) or (n, C*N) -> (n, C'(C'+1)/2)
        """Return the vectors of :func:`powerpool.second_order_pool`."""
        import numpy as np

        check_is_fitted(self, "pool_")
        array = self._array(X, reset=False)
        channels, locations = _sets(array.shape, self.channels_)
        height, width = self._fitted_grid(array.shape, locations)
        dtype = np.float32 if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else np.float64
        result = np.empty((len(array), self.pool_.out_features), dtype)
        step = self._batch(self.pool_, locations)
        for start in range(0, len(array), step):
            # Writeable, as torch requires: a read-only memory map is copied batch by batch.
            batch = np.require(array[start : start + step], dtype, ["C", "A", "W"])
            assert_all_finite(batch, estimator_name=type(self).__name__, input_name="X")
            # Flat, because a dimension of size 1 may have a negative stride, which torch refuses.
            maps = torch.from_numpy(batch.reshape(-1)).view(-1, channels, height, width)
            result[start : start + step] = self._vectors(maps).numpy()
        return result

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the two channels of each entry, as ``c0_c1``; coordinates are ``x0``, ``y0`` and so on.

        ``input_features`` is only compared with the input of ``fit``: an entry belongs to all columns of its channels.
        """
        import numpy as np

        check_is_fitted(self, "pool_")
        _check_feature_names_in(self, input_features, generate_names=False)
        pivots = range(self.pool_.coordinates)
        names = [f"c{i}" for i in range(self.channels_)] + [f"x{i}" for i in pivots] + [f"y{i}" for i in pivots]
        pairs = [f"{first}_{second}" for i, first in enumerate(names) for second in names[i:]]
        return np.array(pairs, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _array(self, X: Any, *, reset: bool) -> np.ndarray:
        """Convert X to an array, without a copy if it is one; compare names and number of columns with ``fit``."""
        if isinstance(X, Tensor):
            # NumPy has no bfloat16.
            X = (X.float() if X.dtype == torch.bfloat16 else X).numpy(force=True)
        # Finite values are checked later: transform reads them once, batch by batch.
        array = check_array(X, allow_nd=True, ensure_all_finite=False, estimator=self, input_name="X")
        if array.ndim > 4:
            raise ShapeError(
                f"X must have shape (n, C, H, W), (n, C, N), or (n, C*N) with channels=C (got {tuple(array.shape)}). "
                "Flatten other dimensions into the locations."
            )
        # Only the (n, C*N) form has a fixed number of columns: sets may have more locations.
        validate_data(self, X, reset=reset, skip_check_array=True, ensure_2d=array.ndim == 2)
        return array

    def _pool(self, channels: int) -> SecondOrderPool2d:
        return SecondOrderPool2d(
            channels,
            self._curve(),
            self.mode,
            self.beta,
            _count("coordinates", self.coordinates, least=0),
            solver=self.solver,
            sigma=self.sigma,
            alpha=self.alpha,
            eps=self.eps,
            trace_power=self.trace_power,
            slope=self.slope,
        )

    def _curve(self) -> Curve | None:
        given = {name: getattr(self, name) for name in CURVE_PARAMETERS if getattr(self, name) is not None}
        if self.curve is None:
            return None
        if isinstance(self.curve, str):
            own = curves.resolve(self.curve)
            return curves.resolve(self.curve, **{name: value for name, value in given.items() if hasattr(own, name)})
        if given:
            shown = ", ".join(f"{name}={value}" for name, value in given.items())
            raise ArgumentError(
                f"{shown} needs a curve that is given by name (got curve={self.curve}). "
                "Pass curve='maxexp' or another name, or set the parameter in the curve."
            )
        # A copy, so that training the curve later does not change the fitted pool.
        return curves.resolve(copy.deepcopy(self.curve))

    def _grid(self, shape: tuple[int, ...], locations: int) -> tuple[int, int] | None:
        """Return H and W from the shape of the array and the parameters; None if they are unknown."""
        height, width = _optional_count("height", self.height), _optional_count("width", self.width)
        if len(shape) == 4:
            known = shape[2:]
        elif height is None and width is None:
            return None
        else:
            # If one is missing, it follows from N; a remainder is refused below.
            known = (height or locations // (width or 1), width or locations // (height or 1))
        if known[0] * known[1] != locations or height not in (None, known[0]) or width not in (None, known[1]):
            raise ShapeError(
                f"height={self.height} and width={self.width} do not fit X of shape {tuple(shape)}, which has "
                f"{locations} locations. Leave them out with maps of shape (n, C, H, W), else let H*W = N."
            )
        return known[0], known[1]

    def _fitted_grid(self, shape: tuple[int, ...], locations: int) -> tuple[int, int]:
        """Return H and W of the maps to transform; they are arbitrary without coordinates."""
        if len(shape) == 4:
            return shape[2], shape[3]
        if not self.pool_.coordinates:
            return 1, locations
        assert self.grid_ is not None  # by fit
        height, width = self.grid_
        if height * width != locations:
            raise ShapeError(
                f"coordinates={self.pool_.coordinates} needs the height and width of the maps: fit used {height} x "
                f"{width}, and X of shape {tuple(shape)} has {locations} locations. "
                "Pass maps of shape (n, C, H, W)."
            )
        return height, width

    def _batch(self, pool: SecondOrderPool2d, locations: int) -> int:
        given = _optional_count("batch_size", self.batch_size)
        return given or max(1, BATCH_ENTRIES // (pool.size * max(pool.size, locations)))

    @torch.no_grad()
    def _vectors(self, maps: Tensor) -> Tensor:  # shape: (b, C, H, W) -> (b, C'(C'+1)/2)
        vectors: Tensor = self.pool_(maps)
        if not self.l2_normalize:
            return vectors
        # Divided by the largest entry first: squares of small entries underflow.
        vectors = vectors / _or_one(vectors.abs().amax(-1, keepdim=True))
        return vectors / _or_one(torch.linalg.vector_norm(vectors, dim=-1, keepdim=True))


def _sets(shape: tuple[int, ...], channels: int | None) -> tuple[int, int]:
    """Return C and N of an array; C must equal ``channels`` unless that is None."""
    if len(shape) > 2:
        if channels not in (None, shape[1]):
            raise ShapeError(
                f"X must have {channels} channels, in shape (n, {channels}, N) or (n, {channels}, H, W) "
                f"(got {tuple(shape)}). Channels come before locations; fit again for another number of channels."
            )
        locations = shape[2] * (shape[3] if len(shape) == 4 else 1)
        if shape[1] == 0 or locations == 0:
            raise ShapeError(f"X must have at least one channel and one location (got shape {tuple(shape)}).")
        return shape[1], locations
    if channels is None:
        raise ArgumentError(
            f"X of shape {tuple(shape)} does not define its channels. Pass channels=C for rows of C*N features, or "
            "an array of shape (n, C, N) or (n, C, H, W)."
        )
    if shape[1] % channels:
        raise ShapeError(
            f"channels={channels} does not divide the {shape[1]} features of X (got shape {tuple(shape)}). A row has "
            "C*N features: all N locations of the first channel, then those of the second."
        )
    return channels, shape[1] // channels


def _count(name: str, value: Any, least: int) -> int:
    # numbers.Integral includes NumPy scalars, which a parameter search may draw.
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ArgumentError(f"{name} must be an integer >= {least} (got {value!r}).")
    return int(value)


def _optional_count(name: str, value: Any) -> int | None:
    return None if value is None else _count(name, value, least=1)


def _or_one(length: Tensor) -> Tensor:
    return torch.where(length > 0, length, 1.0)
