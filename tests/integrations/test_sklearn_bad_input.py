"""The scikit-learn transformer with bad parameters, shapes and values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import NotFittedError

import powerpool as pp
from powerpool.errors import ArgumentError, DomainError, DTypeError, ShapeError, UnknownNameError
from powerpool.integrations.sklearn import SecondOrderPooling
from tests.integrations.test_sklearn import CHANNELS, MAPS, ROWS, SETS


def _refuse(error: type[Exception], key: str, X: Any = MAPS, **parameters: Any) -> None:
    with pytest.raises(error, match=key):
        SecondOrderPooling(**parameters).fit(X)


def test_bad_parameters() -> None:
    for error, key, parameters in (
        (ArgumentError, "eta=5.*MaxExp", {"curve": pp.MaxExp(5), "eta": 5}),
        (UnknownNameError, "'maxepx'", {"curve": "maxepx"}),
        (DTypeError, "int", {"curve": 3}),
        (UnknownNameError, "'spectrum'", {"mode": "spectrum"}),
        (ArgumentError, "'squaring'.*HDP", {"curve": "hdp", "solver": "squaring"}),
        (ArgumentError, "beta.*2.0", {"beta": 2.0}),
        (ArgumentError, "slope.*inf", {"slope": math.inf}),
        (ArgumentError, "channels.*True", {"channels": True}),
        (ArgumentError, "coordinates.*-1", {"coordinates": -1}),
        (ArgumentError, "sigma.*0.0", {"coordinates": 2, "sigma": 0.0}),
        (ArgumentError, "batch_size.*2.0", {"batch_size": 2.0}),
        (ShapeError, "height=5.*12", {"height": 5}),
        (ArgumentError, "height.*3.0", {"height": 3.0}),
        (ShapeError, r"4 channels.*\(7, 5, 3, 4\)", {"channels": 4}),
    ):
        SecondOrderPooling(**parameters)  # errors come from fit, as scikit-learn expects
        _refuse(error, key, **parameters)


def test_bad_shapes() -> None:
    _refuse(ValueError, "Reshape your data", ROWS[0], channels=CHANNELS)
    _refuse(ValueError, "Reshape your data", torch.tensor(1.0), channels=CHANNELS)
    _refuse(ShapeError, r"\(1, 7, 5, 3, 4\)", MAPS[None])
    _refuse(ArgumentError, r"\(7, 60\).*channels=C", ROWS)
    _refuse(ShapeError, "channels=7.*60", ROWS, channels=7)
    _refuse(ShapeError, r"\(7, 5, 3, 0\)", MAPS[..., :0])
    _refuse(ShapeError, r"\(7, 0, 12\)", SETS[:, :0])
    _refuse(ValueError, "0 sample", MAPS[:0])
    _refuse(ValueError, "0 feature", ROWS[:, :0], channels=1)


def test_coordinates_need_height_and_width() -> None:
    _refuse(ArgumentError, r"height.*\(7, 5, 12\)", SETS, coordinates=3)
    _refuse(ArgumentError, "height", ROWS, coordinates=3, channels=CHANNELS)
    for size in ({"height": 5}, {"width": 5}, {"height": 24}, {"height": 3, "width": 3}):
        _refuse(ShapeError, "12 locations", SETS, coordinates=3, **size)
    _refuse(ShapeError, "12 locations", SETS, height=5)  # also if nothing needs it
    pool = SecondOrderPooling(coordinates=3).fit(MAPS)
    with pytest.raises(ShapeError, match="3 x 4"):
        pool.transform(SETS[..., :-1])


def test_not_finite() -> None:
    for bad, dtype in ((np.nan, "float16"), (np.inf, "float64"), (-np.inf, "object")):
        maps = MAPS.astype(dtype)
        pool = SecondOrderPooling("maxexp", batch_size=2).fit(maps)
        maps[-1, -1, -1, -1] = bad
        for call in (pool.transform, pool.fit):
            with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
                call(maps)
        pool.transform(MAPS)  # the fitted state is kept


def test_not_an_array_of_numbers() -> None:
    _refuse(TypeError, "[Ss]parse", sparse.csr_array(ROWS), channels=CHANNELS)
    _refuse(ValueError, "Complex data not supported", MAPS + 1j)
    _refuse(ValueError, "[Cc]onvert", [["a", "b"]], channels=1)


def test_other_features_than_in_fit() -> None:
    pool = SecondOrderPooling("maxexp", channels=CHANNELS).fit(ROWS)
    with pytest.raises(ValueError, match="X has 55 features, but SecondOrderPooling is expecting 60 features as input"):
        pool.transform(ROWS[:, :-CHANNELS])
    with pytest.raises(ShapeError, match="5 channels"):
        pool.transform(SETS[:, :-1])
    with pytest.raises(ShapeError, match="5 channels"):
        SecondOrderPooling().fit(MAPS).transform(MAPS.transpose(0, 2, 1, 3))
    with pytest.raises(ValueError, match="X has 55 features, but SecondOrderPooling is expecting 60 features as input"):
        SecondOrderPooling().fit(MAPS).transform(ROWS[:, :-CHANNELS])


def test_values_outside_the_domain_of_the_curve() -> None:
    pool = SecondOrderPooling("maxexp", mode="elementwise").fit(MAPS - 0.5)
    with pytest.raises(DomainError, match="SigmE"):
        pool.transform(MAPS - 0.5)


def test_before_fit() -> None:
    pool = SecondOrderPooling()
    with pytest.raises(NotFittedError):
        pool.transform(MAPS)
    with pytest.raises(NotFittedError):
        pool.get_feature_names_out()
    with pytest.raises(ArgumentError):
        pool.fit(ROWS)
    with pytest.raises(NotFittedError):  # also after a fit that failed
        pool.transform(MAPS)
