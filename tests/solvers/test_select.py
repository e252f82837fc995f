"""The table behind ``solver="auto"``, and that ``auto`` follows it."""

from __future__ import annotations

import pytest
import torch

import powerpool as pp
from powerpool.errors import ArgumentError
from powerpool.solvers import SOLVERS


@pytest.mark.parametrize(
    "curve, channels, locations, expected",
    [
        (pp.MaxExp(50), 512, 49, "gram"),
        (pp.HDP(0.01), 512, 49, "gram"),
        (pp.MaxExp(50), 64, 196, "squaring"),
        (pp.Gamma(2), 64, None, "squaring"),
        (pp.FAHDP(0.1), 64, None, "squaring"),
        (pp.FAHDP(0.1, "identity"), 64, None, "eigen"),
        (pp.MaxExp(2.5), 64, None, "eigen"),
        (pp.MaxExp(torch.nn.Parameter(torch.tensor(50.0))), 64, 196, "eigen"),
        (pp.MaxExp(torch.nn.Parameter(torch.tensor(50.0))), 512, 49, "gram"),
        (pp.SignedMaxExp(50), 64, None, "eigen"),
        (pp.AsinhE(10.0), 64, 60, "gram"),
        (pp.AsinhE(10.0), 64, 64, "eigen"),
        (pp.HDP(0.01), 64, 48, "gram"),
        (pp.HDP(0.01), 64, 63, "eigen"),
        (pp.MaxExp(50), 64, 60, "squaring"),
        (pp.MaxExp(50), 16, 4, "gram"),
        (pp.MaxExp(50), 16, 8, "squaring"),
    ],
)
def test_choices(curve: pp.Curve, channels: int, locations: int | None, expected: str) -> None:
    choice = pp.select_solver(curve, channels, locations)
    assert choice.name == expected
    assert choice.reason
    assert SOLVERS[choice.name].exact


def test_other_devices_use_the_smaller_eigendecomposition() -> None:
    assert pp.select_solver(pp.HDP(0.01), 64, 63, device="cuda").name == "gram"
    assert pp.select_solver(pp.HDP(0.01), 64, 64, device="cuda").name == "eigen"
    assert pp.select_solver(pp.MaxExp(50), 16, 8, device="cuda").name == "gram"
    assert pp.select_solver(pp.MaxExp(50), 64, 196, device="cuda").name == "squaring"


def test_auto_is_the_choice() -> None:
    features = torch.rand(8, 3, dtype=torch.float64)
    curve = pp.HDP(0.1)
    assert pp.select_solver(curve, 8, 3).name == "gram"
    assert torch.equal(pp.second_order_pool(features, curve), pp.second_order_pool(features, curve, solver="gram"))
    matrix = pp.autocorrelation(features)
    assert torch.equal(pp.spectral(matrix, pp.MaxExp(5)), pp.spectral(matrix, pp.MaxExp(5), "squaring"))


def test_bad_arguments() -> None:
    for sizes in ((0, None), (4, 0)):
        with pytest.raises(ArgumentError, match="0"):
            pp.select_solver(pp.MaxExp(50), *sizes)
    with pytest.raises(ArgumentError, match="select_solver"):
        pp.solvers.resolve("auto")
