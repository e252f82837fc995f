"""Norms as layers: the functional call, its arguments, copies and state."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import powerpool as pp
from powerpool.errors import NotFiniteError
from tests.tolerances import tolerance


def _matrices(*leading: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return pp.autocorrelation(torch.rand(*leading, 4, 9, generator=generator, dtype=dtype))


OPTIONS = [{}, {"eps": 0.01}, {"trace_power": 0.5, "slope": 0.1}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("curve", [pp.Gamma(0.5), pp.MaxExp(7), pp.SigmE(5.0), pp.AsinhE(3.0)], ids=str)
def test_elementwise_layer_is_the_function(curve: pp.Curve, options: dict[str, float]) -> None:
    layer = pp.nn.ElementwisePowerNorm(curve, **options)
    for leading in ((), (2,), (2, 3)):
        given = _matrices(*leading)
        torch.testing.assert_close(layer(given), pp.elementwise(given, curve, **options), rtol=0, atol=0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "curve, solver",
    [(pp.Gamma(0.5), "newton_schulz"), (pp.MaxExp(7), "squaring"), (pp.MaxExp(7), "auto"), (pp.HDP(0.1), "eigen")],
    ids=str,
)
def test_spectral_layer_is_the_function(curve: pp.Curve, solver: str, options: dict[str, float]) -> None:
    layer = pp.nn.SpectralPowerNorm(curve, solver, **options)
    for leading in ((), (2,), (2, 3)):
        given = _matrices(*leading)
        torch.testing.assert_close(layer(given), pp.spectral(given, curve, solver, **options), rtol=0, atol=0)


def test_layers_accept_a_name() -> None:
    given = _matrices(2)
    for name, make in pp.curves.CURVES.items():
        assert torch.equal(pp.nn.ElementwisePowerNorm(name)(given), pp.elementwise(given, make()))
        assert torch.equal(pp.nn.SpectralPowerNorm(name)(given), pp.spectral(given, make()))


def test_layers_accept_a_configured_solver() -> None:
    given = _matrices(2)
    coarse = pp.nn.SpectralPowerNorm(pp.Gamma(0.5), pp.solvers.NewtonSchulz(iterations=2))
    fine = pp.nn.SpectralPowerNorm(pp.Gamma(0.5), "newton_schulz")
    exact = pp.spectral(given, pp.Gamma(0.5), "eigen")
    errors = [float((layer(given) - exact).norm() / exact.norm()) for layer in (coarse, fine)]
    assert errors[0] > 0.01 > 1e-6 > errors[1]
    assert "NewtonSchulz(iterations=2)" in repr(coarse)


@pytest.mark.parametrize(
    "layer",
    [pp.nn.ElementwisePowerNorm("sigme", 1e-5), pp.nn.SpectralPowerNorm(pp.MaxExp(7), "squaring", 1e-5)],
    ids=["elementwise", "spectral"],
)
def test_copies_and_repr(layer: nn.Module) -> None:
    given = _matrices(2)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(copied(given), layer(given), rtol=0, atol=0)
        assert repr(copied) == repr(layer)
    assert "eps=1e-05" in repr(layer)
    assert f"(curve): {layer.curve}" in repr(layer)


def test_tensor_parameter_is_saved_and_restored() -> None:
    for make in (pp.nn.ElementwisePowerNorm, pp.nn.SpectralPowerNorm):
        layer = make(pp.MaxExp(nn.Parameter(torch.tensor(9.5))))
        other = make(pp.MaxExp(nn.Parameter(torch.tensor(2.0))))
        assert list(layer.state_dict()) == ["curve.eta", "curve._extra_state"]
        other.load_state_dict(layer.state_dict())
        given = _matrices(2, dtype=torch.float32)
        torch.testing.assert_close(other(given), layer(given), rtol=0, atol=0)


def test_check_is_passed_on() -> None:
    given = _matrices(2)
    given[1, 0, 0] = torch.nan
    for make in (pp.nn.ElementwisePowerNorm, pp.nn.SpectralPowerNorm):
        with pytest.raises(NotFiniteError, match="1 NaN"):
            make("maxexp")(given)
        result = make("maxexp", check=False)(given)
        assert result[1].isnan().all()
        torch.testing.assert_close(result[0], make("maxexp")(given[0]), **tolerance(torch.float64))
