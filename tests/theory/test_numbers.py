"""Arguments and results of the scalar functions: kinds, range, gradients, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from powerpool import theory
from powerpool.errors import ArgumentError
from tests.theory.grids import F64

RANGES = {
    **dict.fromkeys(["t_of_eta", "eta_prime_of_eta", "y_of_eta", "alpha_of_eta", "eps1", "eps2"], (1.0, 1e6)),
    **dict.fromkeys(["t_of_eta_bar", "t_tilde_of_eta_bar"], (1.0, 1e6)),
    **dict.fromkeys(["eta_of_t", "eta_slope", "gamma_of_t", "t_of_gamma", "eta_tilde_of_t"], (1e-8, 1e3)),
    **dict.fromkeys(["eta_bar_of_t", "eps3", "eps4"], (1e-8, 0.999999)),
    **dict.fromkeys(["eta_of_eta_prime", "alignment_point", "error_point"], (1.32, 1e6)),
    **dict.fromkeys(["sigme_eta_of_sigma", "kappa_prime", "auxiliary_line"], (1.0, 100.0)),
}
every_function = pytest.mark.parametrize("name", RANGES)


@every_function
def test_numbers_arrays_and_tensors_agree_and_are_finite(name):
    function, (low, high) = getattr(theory, name), RANGES[name]
    points = np.geomspace(low, high, 12).clip(low, high).reshape(2, 6)
    numbers = [function(float(x)) for x in points.ravel()]
    assert all(type(number) is float and math.isfinite(number) for number in numbers)
    array = function(points)
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float64
    np.testing.assert_allclose(array.ravel(), numbers, rtol=1e-14)
    for dtype, rtol in ((np.float64, 1e-14), (np.float32, 1e-4)):
        found = function(torch.from_numpy(points.astype(dtype).clip(low, high)))
        assert found.dtype == F64
        torch.testing.assert_close(found, torch.from_numpy(array), rtol=rtol, atol=0)


@pytest.mark.parametrize("name", [name for name in RANGES if name != "eps4"])  # Lambert's W has no gradient
def test_gradients_flow(name):
    function, (low, high) = getattr(theory, name), RANGES[name]
    points = torch.tensor([1.3 * low, 0.7 * high], dtype=F64, requires_grad=True)
    (found,) = torch.autograd.grad(function(points).sum(), points)
    step = 1e-6 * points.detach()
    expected = (function(points.detach() + step) - function(points.detach() - step)) / (2 * step)
    size = (function(points.detach()) / points.detach()).abs()
    assert ((found - expected).abs() <= 1e-5 * expected.abs() + 1e-8 * size).all()


@pytest.mark.parametrize("value", [True, "1", None, [1.0], 1j, torch.tensor(True), torch.tensor(1j), np.array(["a"])])
def test_arguments_that_are_not_numbers_are_refused(value):
    for name in RANGES:
        with pytest.raises(ArgumentError):
            getattr(theory, name)(value)


@every_function
def test_arguments_out_of_range_are_refused(name):
    if name != "auxiliary_line":  # defined everywhere
        for value in (0.0, -1.0, math.nan, math.inf, torch.tensor([0.5, -2.0])):
            with pytest.raises(ArgumentError, match="finite"):
                getattr(theory, name)(value)


def test_a_tensor_among_the_arguments_gives_a_tensor_and_an_array_an_array():
    assert isinstance(theory.kappa(np.array([1, 2]), 3), np.ndarray)
    assert isinstance(theory.kappa(np.array([1, 2]), torch.tensor(3)), torch.Tensor)
    assert theory.kappa(np.int64(1), np.float32(4.0)) == 3.0


def test_results_share_no_memory_with_arguments():
    points = np.full(3, 0.5)
    points.setflags(write=False)
    assert not np.shares_memory(theory.touching_points(points).y0, points)
