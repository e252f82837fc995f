"""Curves by name."""

from __future__ import annotations

import pytest
import torch

import powerpool as pp
from powerpool import curves
from powerpool.checks import ArgumentError, DTypeError, UnknownNameError

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


def test_a_curve_is_returned_as_it_is():
    curve = pp.HDP(0.3)
    assert curves.resolve(curve) is curve
    with pytest.raises(
        ArgumentError, match=r"Options \['t'\] need a curve's name; got the finished curve HDP\(t=0.3\)"
    ):
        curves.resolve(curve, t=0.5)


def test_an_unknown_name_lists_the_choices():
    choices = ", ".join(f"'{name}'" for name in EXPECTED)
    with pytest.raises(UnknownNameError, match=f"Unknown curve 'maxepx': choose one of {choices}"):
        curves.resolve("maxepx")


@pytest.mark.parametrize("thing", [None, 3, pp.Gamma])
def test_neither_name_nor_curve(thing):
    with pytest.raises(DTypeError, match=rf"A curve is a powerpool curve or its name \(got {type(thing).__name__}\)"):
        curves.resolve(thing)


def test_a_wrong_option_lists_the_right_ones():
    with pytest.raises(ArgumentError, match=r"MaxExp does not take the options \['gamma'\]: its options are \['eta'\]"):
        curves.resolve("maxexp", gamma=0.5)
    with pytest.raises(ArgumentError, match=r"\['gama'\]: its options are \['t', 'rounding'\]"):
        curves.resolve("fahdp", t=0.5, gama=0.5)


def test_a_wrong_value_keeps_the_error_of_the_curve():
    with pytest.raises(ArgumentError, match="eta >= 1"):
        curves.resolve("maxexp", eta=0.5)
    with pytest.raises(DTypeError, match="eta must have a floating-point dtype"):
        curves.resolve("maxexp", eta=torch.tensor(3))
