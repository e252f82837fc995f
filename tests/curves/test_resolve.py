"""Curves by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import powerpool as pp
from powerpool import curves
from powerpool.errors import ArgumentError, DTypeError

EXPECTED = {
    "gamma": pp.Gamma,
    "maxexp": pp.MaxExp,
    "signed_maxexp": pp.SignedMaxExp,
    "asinhe": pp.AsinhE,
    "sigme": pp.SigmE,
    "hdp": pp.HDP,
    "fahdp": pp.FAHDP,
}


def test_every_curve_has_a_name():
    assert curves.CURVES == EXPECTED


@pytest.mark.parametrize("name, curve", EXPECTED.items())
def test_case_and_separators_do_not_matter(name, curve):
    for spelled in (name, name.upper(), name.title(), name.replace("_", "-"), name.replace("_", ""), curve.__name__):
        assert type(curves.resolve(spelled)) is curve


def test_options_reach_the_curve():
    eta = torch.nn.Parameter(torch.tensor(3.0))
    assert curves.resolve("Signed-MaxExp", eta=eta).eta is eta
    assert curves.resolve("sigme", eta=7, trace_normalize=False).trace_normalize is False
    assert curves.resolve("fahdp", t=0.5, rounding="round").rounding == "round"


def test_a_curve_is_returned_unchanged():
    curve = pp.HDP(0.3)
    assert curves.resolve(curve) is curve
    with pytest.raises(ArgumentError, match=r"'t'.*HDP\(t=0.3\)"):
        curves.resolve(curve, t=0.5)


@pytest.mark.parametrize("thing", [None, 3, pp.Gamma])
def test_neither_name_nor_curve(thing):
    with pytest.raises(DTypeError, match=type(thing).__name__):
        curves.resolve(thing)


def test_a_wrong_option_lists_the_right_ones():
    with pytest.raises(ArgumentError, match=r"MaxExp.*'gamma'.*'eta'"):
        curves.resolve("maxexp", gamma=0.5)
    with pytest.raises(ArgumentError, match=r"'gama'.*'t', 'rounding'"):
        curves.resolve("fahdp", t=0.5, gama=0.5)


def test_a_wrong_value_keeps_the_error_of_the_curve():
    with pytest.raises(ArgumentError, match=r"0\.5"):
        curves.resolve("maxexp", eta=0.5)
    with pytest.raises(DTypeError, match="eta"):
        curves.resolve("maxexp", eta=torch.tensor(3))


@pytest.mark.parametrize("number", [np.int64(50), np.float32(50.0), np.float64(50.0), 50, 50.0])
def test_numpy_scalars_become_python_numbers(number: float) -> None:
    curve = pp.MaxExp(number)
    assert type(curve.eta) in (int, float)
    assert curve.integer_power() == pp.curves.IntegerPower(50, complement=True)


@pytest.mark.parametrize("make", [lambda: pp.MaxExp(1e300), lambda: pp.MaxExp(10**400), lambda: pp.FAHDP(1e-200)])
def test_absurd_numbers_are_refused(make: Callable[[], pp.Curve]) -> None:
    with pytest.raises(ArgumentError):
        make()


def test_exponents_too_large_for_a_chain_use_eigenvalues() -> None:
    assert pp.MaxExp(2**20).integer_power() is not None
    assert pp.MaxExp(2**20 + 1).integer_power() is None
    assert pp.select_solver(pp.FAHDP(1e-12), 8).name == "eigen"
    assert torch.isfinite(pp.spectral(torch.eye(3), pp.FAHDP(1e-12))).all()
