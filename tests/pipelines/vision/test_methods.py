"""The table of methods: names say what is built."""

from __future__ import annotations

import pytest
from powerpool.tasks.vision.methods import METHODS

from powerpool.curves import HDP, AsinhE, Gamma, MaxExp, SigmE
from powerpool.errors import ArgumentError
from powerpool.solvers import NewtonSchulz
from powerpool.tasks.vision.config import PoolConfig, grid_names

CONFIG = PoolConfig("SOP", eta=3, eta_prime=4, gamma=0.6, gamma_prime=7, t=0.2, iterations=2)
CURVES = {
    "AsinhE": AsinhE(7),
    "SigmE": SigmE(4),
    "SpecGamma": Gamma(0.6),
    "SpecHDP": HDP(0.2),
    "SpecMaxExp": MaxExp(3),
    "SpecMaxExpF": MaxExp(3),
    "NewtonSchulz": Gamma(0.5),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_name_says_what_is_built(name):
    method, (order, *parts) = METHODS[name], name.split("+")
    assert method.order == {"Baseline": "head", "FOP": "first", "SOP": "second"}[order]
    assert method.coordinates == ("SC" in parts)
    curve = next((part for part in parts if part != "SC"), None)
    assert repr(method.make_curve(CONFIG)) == repr(None if curve is None else CURVES[curve])
    if order == "SOP" and curve is not None:
        assert method.mode == ("elementwise" if curve in ("AsinhE", "SigmE") else "spectral")
        assert method.is_spectral == (method.mode == "spectral")
    solver = method.make_solver(CONFIG)
    if curve == "NewtonSchulz":
        assert repr(solver) == repr(NewtonSchulz(2))
    else:
        assert solver == ("eigen" if curve == "SpecMaxExp" else "auto")


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_depends_on_is_what_it_reads(name):
    """Every other setting of a pool can have any value."""
    method, read = METHODS[name], set()

    class Watched:
        def __getattr__(self, field: str) -> float:
            read.add(field)
            return {"eta": 3, "iterations": 2}.get(field, 0.5)

    method.make_curve(Watched())
    method.make_solver(Watched())
    expected = read | ({"beta"} if method.order == "second" else set())
    expected |= {"pivots", "sigma", "alpha"} if method.coordinates else set()
    assert set(method.parameters) == expected == set(grid_names(name))


def test_the_fast_form_needs_a_whole_eta():
    with pytest.raises(ArgumentError, match=r"pool.eta=2.5.*whole eta"):
        PoolConfig("SOP+SC+SpecMaxExpF", eta=2.5)
    assert PoolConfig("SOP+SC+SpecMaxExp", eta=2.5).eta == 2.5
