"""The scikit-learn transformer: against the formulas, in all input forms, and as a part of scikit-learn."""

from __future__ import annotations

import importlib.util
import math
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

import powerpool as pp
from powerpool.integrations.sklearn import SecondOrderPooling
from tests import oracles
from tests.tolerances import tolerance

NUMBER, CHANNELS, HEIGHT, WIDTH = 7, 5, 3, 4
LOCATIONS = HEIGHT * WIDTH
EXACT = tolerance(torch.float64)


def _maps(number: int = NUMBER, channels: int = CHANNELS, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(0).random((number, channels, height, width))


MAPS = _maps()
SETS = MAPS.reshape(NUMBER, CHANNELS, LOCATIONS)
ROWS = MAPS.reshape(NUMBER, CHANNELS * LOCATIONS)


# ---- values ----------------------------------------------------------------------------------------------------------


# Parameters of the transformer and of the reference.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "covariance": ({"beta": 1.0}, {"beta": 1.0}),
    "maxexp": ({"curve": "maxexp", "eta": 7}, {"reference": oracles.maxexp(7)}),
    "maxexp-object": ({"curve": pp.MaxExp(7.5)}, {"reference": oracles.maxexp(7.5)}),
    "maxexp-learnt": (
        {"curve": pp.MaxExp(nn.Parameter(torch.tensor(7.5)))},
        {"reference": oracles.maxexp(7.5)},
    ),
    "gamma": ({"curve": "Gamma", "gamma": 0.3, "solver": "eigen"}, {"reference": oracles.gamma(0.3)}),
    "hdp": ({"curve": "hdp", "t": 0.2}, {"reference": oracles.hdp(0.2)}),
    "default-eta": ({"curve": "maxexp"}, {"reference": oracles.maxexp(50)}),
    "elementwise": (
        {"curve": "sigme", "eta": 4.0, "mode": "elementwise", "beta": 0.5},
        {"reference": oracles.sigme(4.0), "mode": "elementwise", "beta": 0.5},
    ),
    "coordinates": (
        {"curve": "maxexp", "eta": 7, "coordinates": 3, "sigma": 0.7, "alpha": 0.4},
        {"reference": oracles.maxexp(7), "codes": oracles.coordinates(HEIGHT, WIDTH, 3, 0.7, 0.4)},
    ),
    "residual": (
        {"curve": "maxexp", "eta": 7, "eps": 1e-2, "trace_power": 0.5, "slope": 0.1},
        {"reference": oracles.maxexp(7), "eps": 1e-2, "trace_power": 0.5, "slope": 0.1},
    ),
}
EVERYWHERE = pytest.mark.parametrize("parameters, expected", CASES.values(), ids=CASES)


@EVERYWHERE
def test_equals_the_formula(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    result = SecondOrderPooling(**parameters).fit_transform(MAPS)
    reference = np.stack([oracles.second_order(features, **expected) for features in SETS])
    assert result.shape == reference.shape
    # Steep curves amplify round-off.
    assert_allclose(result, reference, **tolerance(torch.float64, slack=100))


@EVERYWHERE
def test_all_forms_agree(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    maps = SecondOrderPooling(**parameters).fit_transform(MAPS)
    sizes = [{"height": HEIGHT}, {"width": WIDTH}, {"height": HEIGHT, "width": WIDTH}]
    for size in sizes if "coordinates" in parameters else [*sizes, {}]:
        assert_allclose(SecondOrderPooling(**parameters, **size).fit_transform(SETS), maps, **EXACT)
        rows = SecondOrderPooling(**parameters, **size, channels=CHANNELS).fit_transform(ROWS)
        assert_allclose(rows, maps, **EXACT)


FORMS = {"maps": MAPS, "sets": SETS, "rows": ROWS}


@pytest.mark.parametrize("seen", FORMS)
@pytest.mark.parametrize("coordinates", [0, 2])
def test_fit_and_transform_accept_different_forms(seen: str, coordinates: int) -> None:
    # Sets and rows do not define the height, and rows not the channels.
    told = {} if seen == "maps" else {"channels": CHANNELS, "height": HEIGHT}
    pool = SecondOrderPooling("maxexp", coordinates=coordinates, **told).fit(FORMS[seen])
    assert (pool.n_features_in_, pool.channels_, pool.grid_) == (CHANNELS * LOCATIONS, CHANNELS, (HEIGHT, WIDTH))
    expected = SecondOrderPooling("maxexp", coordinates=coordinates).fit_transform(MAPS)
    for later in FORMS.values():
        assert_allclose(pool.transform(later), expected, **EXACT)


def test_maps_of_another_size_give_vectors_of_the_same_length() -> None:
    pool = SecondOrderPooling("maxexp", coordinates=2).fit(MAPS)
    other = _maps(height=6, width=2)
    assert_allclose(pool.transform(other), SecondOrderPooling("maxexp", coordinates=2).fit_transform(other), **EXACT)
    plain = SecondOrderPooling("maxexp").fit(SETS)
    assert plain.grid_ is None
    assert plain.transform(SETS[..., :-1]).shape == (NUMBER, 15)


@given(
    number=st.integers(1, 6),
    channels=st.integers(1, 5),
    locations=st.integers(1, 6),
    batch_size=st.none() | st.integers(1, 7),
    flat=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "uint8", ">f8"]),
)
@settings(max_examples=25)
def test_any_shape_in_any_batches(
    number: int, channels: int, locations: int, batch_size: int | None, flat: bool, dtype: str
) -> None:
    sets = (_maps(number, channels, 1, locations)[:, :, 0] * 9).astype(dtype)
    given_form = sets.reshape(number, -1) if flat else sets
    pool = SecondOrderPooling("gamma", channels=channels, batch_size=batch_size)
    one_by_one = [oracles.second_order(features.astype(float), oracles.gamma(0.5)) for features in sets]
    # The square root of the smallest eigenvalues has half the digits.
    assert_allclose(pool.fit_transform(given_form), one_by_one, rtol=2e-3, atol=4e-3 if dtype == "float32" else 1e-6)


def test_length_one() -> None:
    maps = MAPS.copy()
    maps[2] = 0.0
    maps[3] *= 1e-100  # a plain norm would underflow to 0
    plain = SecondOrderPooling("asinhe", mode="elementwise").fit_transform(maps)
    unit = SecondOrderPooling("asinhe", mode="elementwise", l2_normalize=True).fit_transform(maps)
    lengths = np.ones(NUMBER)
    lengths[2] = 0.0
    assert_allclose(np.linalg.norm(unit, axis=1), lengths, **EXACT)
    for i in (0, 3):
        assert_allclose(unit[i], plain[i] / plain[i].max() / np.linalg.norm(plain[i] / plain[i].max()), **EXACT)


# ---- input and output --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_dtype, result",
    [
        ("float16", "float32"),
        (">f4", "float32"),
        ("uint8", "float64"),
        ("object", "float64"),
        ("longdouble", "float64"),
    ],
)
def test_dtypes(given_dtype: str, result: str) -> None:
    maps = np.round(MAPS * 4).astype(given_dtype)
    vectors = SecondOrderPooling("maxexp", eta=3).fit_transform(maps)
    assert vectors.dtype == np.dtype(result)
    expected = SecondOrderPooling("maxexp", eta=3).fit_transform(maps.astype("float64"))
    assert_allclose(vectors, expected, **tolerance(getattr(torch, result), slack=10))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_tensors(dtype: torch.dtype) -> None:
    maps = torch.from_numpy(MAPS * 4).to(dtype)
    result = SecondOrderPooling().fit_transform(maps.requires_grad_() if dtype.is_floating_point else maps)
    assert isinstance(result, np.ndarray)
    assert result.dtype == (np.float64 if dtype in (torch.float64, torch.int32) else np.float32)
    expected = SecondOrderPooling().fit_transform(maps.detach().double().numpy())
    assert_allclose(result, expected, **tolerance(torch.float32, slack=10))


@pytest.mark.parametrize("mode", ["r", "c"])
def test_memory_maps_and_layouts(tmp_path: Path, mode: str) -> None:
    np.save(tmp_path / "maps.npy", MAPS)
    mapped = np.load(tmp_path / "maps.npy", mmap_mode=mode)
    transposed = MAPS.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)
    expected = SecondOrderPooling("maxexp").fit_transform(MAPS)
    for other in (mapped, MAPS.tolist(), np.asfortranarray(MAPS), MAPS[::-1].copy()[::-1], transposed):
        result = SecondOrderPooling("maxexp", batch_size=2).fit_transform(other)
        assert_allclose(result, expected, **EXACT)
        assert not np.shares_memory(result, MAPS)
    assert_array_equal(np.load(tmp_path / "maps.npy"), MAPS)


def test_batches_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = pp.nn.SecondOrderPool2d.forward

    def watched(self: pp.nn.SecondOrderPool2d, maps: Tensor) -> Tensor:
        seen.append(len(maps))
        assert not torch.is_grad_enabled()
        return forward(self, maps)

    monkeypatch.setattr(pp.nn.SecondOrderPool2d, "forward", watched)
    SecondOrderPooling(batch_size=3).fit_transform(MAPS)
    assert seen == [3, 3, 1]
    seen.clear()
    # Without a size: a million entries, of the maps (64 x 1024) or, if they are more, of the matrices (512 x 512).
    SecondOrderPooling().fit_transform(np.zeros((20, 64, 32, 32), dtype="float32"))
    SecondOrderPooling().fit_transform(np.ones((5, 512, 1), dtype="float32"))
    assert seen == [16, 4, 4, 1]
    seen.clear()
    SecondOrderPooling().fit_transform(np.ones((2, 1, 2**21), dtype="float32"))
    assert seen == [1, 1]


def test_parameters_of_other_curves_are_ignored() -> None:
    pools = {
        curve: SecondOrderPooling(curve, eta=5.0, gamma=0.3, t=0.1).fit(np.ones((2, 3, 4))).pool_.curve
        for curve in ("maxexp", "gamma", "hdp", None)
    }
    assert repr(pools) == "{'maxexp': MaxExp(eta=5.0), 'gamma': Gamma(gamma=0.3), 'hdp': HDP(t=0.1), None: None}"


def test_fit_copies_a_learnable_curve() -> None:
    curve = pp.MaxExp(nn.Parameter(torch.tensor(5.0)))
    pool = SecondOrderPooling(curve).fit(MAPS)
    before = pool.transform(MAPS)
    with torch.no_grad():
        curve.eta.fill_(50.0)  # type: ignore[union-attr]
    assert_array_equal(pool.transform(MAPS), before)
    assert pool.curve is curve
    assert np.abs(pool.fit_transform(MAPS) - before).max() > 0.1


def test_names() -> None:
    pool = SecondOrderPooling(coordinates=2).fit(MAPS[:, :1])
    assert pool.get_feature_names_out().tolist() == [
        "c0_c0", "c0_x0", "c0_x1", "c0_y0", "c0_y1",
        "x0_x0", "x0_x1", "x0_y0", "x0_y1",
        "x1_x1", "x1_y0", "x1_y1", "y0_y0", "y0_y1", "y1_y1",
    ]  # fmt: skip
    # Entries are in the order of their names.
    pool = SecondOrderPooling().fit(MAPS)
    vector = dict(zip(pool.get_feature_names_out(), pool.transform(MAPS)[0], strict=True))
    assert_allclose(vector["c1_c1"], np.mean(SETS[0, 1] ** 2), **EXACT)
    assert_allclose(vector["c1_c3"], math.sqrt(2) * np.mean(SETS[0, 1] * SETS[0, 3]), **EXACT)
    with pytest.raises(ValueError, match=r"60.*1"):
        pool.get_feature_names_out(["a"])


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, index=range(10, 10 + NUMBER), columns=[f"p{i}" for i in range(ROWS.shape[1])])
    pool = SecondOrderPooling("maxexp", channels=CHANNELS).set_output(transform="pandas").fit(frame)
    assert pool.feature_names_in_.tolist() == frame.columns.tolist()
    result = pool.transform(frame)
    assert result.index.tolist() == frame.index.tolist()
    assert result.columns.tolist() == pool.get_feature_names_out(frame.columns).tolist()
    assert_allclose(result.to_numpy(), SecondOrderPooling("maxexp").fit_transform(MAPS), **EXACT)
    with pytest.raises(ValueError, match="feature_names_in_"):
        pool.get_feature_names_out([f"q{i}" for i in range(ROWS.shape[1])])
    with pytest.raises(ValueError, match="feature names should match"):
        pool.transform(frame.rename(columns={"p0": "q0"}))
    pool.fit(ROWS)
    assert not hasattr(pool, "feature_names_in_")


# ---- as a part of scikit-learn -----------------------------------------------------------------------------------

# One channel accepts rows of any number of features, as in the checks of scikit-learn.
ESTIMATORS = [
    SecondOrderPooling("maxexp", channels=1, eta=5, beta=0.5, l2_normalize=True),
    SecondOrderPooling(pp.Gamma(0.5), channels=1, batch_size=3, coordinates=3, height=1),
]


@parametrize_with_checks(ESTIMATORS)
def test_the_checks_of_scikit_learn(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


# Further checks for transformers of scikit-learn itself.
OWN_CHECKS = [
    "check_dataframe_column_names_consistency",
    "check_global_output_transform_pandas",
    "check_parameters_default_constructible",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("name", OWN_CHECKS)
def test_the_checks_for_transformers_of_scikit_learn(estimator: BaseEstimator, name: str) -> None:
    check = getattr(estimator_checks, name, None)
    if check is None:
        pytest.skip(f"this scikit-learn has no {name}")
    with warnings.catch_warnings():
        # The checks mix arrays with and without names on purpose.
        warnings.filterwarnings("ignore", message="X (has|does not have valid) feature names", category=UserWarning)
        check(type(estimator).__name__, estimator)


@EVERYWHERE
def test_clones_and_pickles(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    pool = SecondOrderPooling(**parameters)
    result = pool.fit_transform(MAPS)
    assert_array_equal(clone(pool).fit_transform(MAPS), result)
    assert_array_equal(pickle.loads(pickle.dumps(pool)).transform(MAPS), result)
    assert "SecondOrderPooling" in pool._repr_html_()
    assert not hasattr(clone(pool), "pool_")


def test_it_beats_the_mean_on_digits() -> None:
    """On responses of images of digits to twelve random filters, in a pipeline with a parameter search."""
    images, labels = load_digits(return_X_y=True)
    filters = np.random.default_rng(0).normal(size=(12, 3, 3))
    filters -= filters.mean((1, 2), keepdims=True)
    patches = np.lib.stride_tricks.sliding_window_view(images.reshape(-1, 8, 8) / 16, (3, 3), axis=(1, 2))
    maps = np.maximum(np.einsum("nhwij,cij->nchw", patches, filters), 0.0)
    train, test, train_labels, test_labels = train_test_split(maps, labels, random_state=0, stratify=labels)
    mean = make_pipeline(StandardScaler(), LinearSVC(random_state=0))
    first_order = mean.fit(train.mean((2, 3)), train_labels).score(test.mean((2, 3)), test_labels)
    pipeline = make_pipeline(SecondOrderPooling("maxexp"), LinearSVC(C=10, random_state=0))
    # With eta = 1e6 all matrices become nearly the identity.
    search = GridSearchCV(pipeline, {"secondorderpooling__eta": [1e6, 5]}, cv=2).fit(train, train_labels)
    assert search.best_estimator_[0].pool_.curve.eta == 5
    assert first_order < 0.85 < 0.93 < search.score(test, test_labels)


def test_one_grid_searches_curves_and_their_parameters() -> None:
    maps, labels = _maps(24), np.arange(24) % 2
    maps[labels == 1, 0] += 0.05
    pipeline = Pipeline([("pool", SecondOrderPooling()), ("classifier", RidgeClassifier(0.01))])
    grid = {"pool__curve": ["maxexp", "gamma", None], "pool__eta": [2, 50], "pool__gamma": [0.3, 0.9]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(maps, labels)
    curves = {"maxexp": lambda eta, _: pp.MaxExp(eta), "gamma": lambda _, gamma: pp.Gamma(gamma), None: lambda *_: None}
    for found, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        own = curves[found["pool__curve"]](found["pool__eta"], found["pool__gamma"])
        alone = clone(pipeline).set_params(pool__curve=own)
        assert score == cross_val_score(alone, maps, labels, cv=2).mean(), found
    assert len(set(search.cv_results_["mean_test_score"])) > 2


# ---- imports ---------------------------------------------------------------------------------------------------------


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "sklearn":
                raise ModuleNotFoundError(name=name)

    for name in ("sklearn", "sklearn.base"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    spec = importlib.util.spec_from_file_location("a_fresh_copy", pp.integrations.sklearn.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'powerpool\[sklearn\]'") as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert caught.value.name == "sklearn"
