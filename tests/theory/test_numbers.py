"""What the scalar functions take and give back, and that nothing overflows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from powerpool import theory
from powerpool.errors import ArgumentError
from powerpool.theory._numbers import evaluate
from tests.theory.grids import F64

OF_ETA = [
    "t_of_eta",
    "eta_prime_of_eta",
    "y_of_eta",
    "alpha_of_eta",
    "eps1",
    "eps2",
    "t_of_eta_bar",
    "t_tilde_of_eta_bar",
]
OF_TIME = ["eta_of_t", "eta_slope", "gamma_of_t", "t_of_gamma", "eta_tilde_of_t"]
OF_SHORT_TIME = ["eta_bar_of_t", "eps3", "eps4"]
OF_SLOPE = ["eta_of_eta_prime", "alignment_point", "error_point"]
OTHERS = ["sigme_eta_of_sigma", "kappa_prime", "auxiliary_line"]
RANGES = {
    **dict.fromkeys(OF_ETA, (1.0, 1e6)),
    **dict.fromkeys(OF_TIME, (1e-8, 1e3)),
    **dict.fromkeys(OF_SHORT_TIME, (1e-8, 0.999999)),
    **dict.fromkeys(OF_SLOPE, (1.32, 1e6)),
    **dict.fromkeys(OTHERS, (1.0, 100.0)),
}
every_function = pytest.mark.parametrize("name", RANGES)


@every_function
def test_numbers_arrays_and_tensors_agree(name):
    function, (low, high) = getattr(theory, name), RANGES[name]
    points = np.geomspace(low, high, 6).clip(low, high).reshape(2, 3)
    numbers = [function(float(x)) for x in points.ravel()]
    assert all(type(number) is float for number in numbers)
    array = function(points)
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float64
    np.testing.assert_allclose(array.ravel(), numbers, rtol=1e-14)
    for tensor in (torch.from_numpy(points), torch.from_numpy(points.astype(np.float32))):
        found = function(tensor)
        assert found.dtype == F64
        torch.testing.assert_close(found, torch.from_numpy(array), rtol=1e-4 if tensor.dtype != F64 else 1e-14, atol=0)


@every_function
def test_nothing_overflows_on_the_promised_range(name):
    low, high = RANGES[name]
    points = torch.logspace(math.log10(low), math.log10(high), 200, dtype=F64).clamp(low, high)
    assert torch.isfinite(getattr(theory, name)(points)).all()


@pytest.mark.parametrize("name", [name for name in RANGES if name != "eps4"])  # Lambert's W has no gradient
def test_gradients_flow(name):
    function, (low, high) = getattr(theory, name), RANGES[name]
    points = torch.tensor([1.3 * low, 0.7 * high], dtype=F64, requires_grad=True)
    (found,) = torch.autograd.grad(function(points).sum(), points)
    step = 1e-6 * points.detach()
    expected = (function(points.detach() + step) - function(points.detach() - step)) / (2 * step)
    size = (function(points.detach()) / points.detach()).abs()
    assert ((found - expected).abs() <= 1e-5 * expected.abs() + 1e-8 * size).all()


@every_function
@pytest.mark.parametrize("value", [True, "1", None, [1.0], 1j, torch.tensor(True), torch.tensor(1j), np.array(["a"])])
def test_what_is_no_number_is_refused(name, value):
    with pytest.raises(ArgumentError, match="must be"):
        getattr(theory, name)(value)


@pytest.mark.parametrize("name", OF_ETA + OF_TIME + OF_SHORT_TIME + OF_SLOPE + OTHERS[:2])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, torch.tensor([0.5, -2.0])])
def test_what_is_out_of_range_is_refused(name, value):
    with pytest.raises(ArgumentError, match="must be finite and"):
        getattr(theory, name)(value)


def test_mixed_kinds_become_the_richest():
    assert isinstance(theory.kappa(np.array([1, 2]), 3), np.ndarray)
    assert isinstance(theory.kappa(np.array([1, 2]), torch.tensor(3)), torch.Tensor)
    assert theory.kappa(np.int64(1), np.float32(4.0)) == 3.0


def test_results_share_no_memory_with_arguments():
    points = np.ones(3)
    points.setflags(write=False)
    assert evaluate(lambda x: x, x=points) is not points


def test_everything_public_has_an_example():
    for name in theory.__all__:
        thing = getattr(theory, name)
        assert thing.__doc__
        assert isinstance(thing, type) or ">>>" in thing.__doc__, name
