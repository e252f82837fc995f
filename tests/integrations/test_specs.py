"""Pools as plain values: what is built from a description is the pool that was described, and nothing else is built."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import powerpool as pp
from powerpool.errors import ArgumentError, RecordError
from powerpool.integrations.specs import POOLS, build_pool, describe_pool
from powerpool.solvers import NewtonSchulz

MAPS = torch.rand(2, 8, 4, 4, generator=torch.Generator().manual_seed(0))
CURVES: list[pp.Curve | None] = [
    None,
    pp.Gamma(0.3),
    pp.MaxExp(7),
    pp.MaxExp(2.5),
    pp.SignedMaxExp(9),
    pp.AsinhE(3.0),
    pp.SigmE(20.0, trace_normalize=False),
    pp.HDP(0.1),
    pp.FAHDP(0.5, rounding="round"),
]


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_the_pool_of_a_description_computes_the_same(curve: pp.Curve | None) -> None:
    pool = pp.nn.SecondOrderPool2d(8, curve, beta=0.5, coordinates=2, reduce_to=4, unit_norm=True)
    again = build_pool(json.loads(json.dumps(describe_pool(pool))))
    again.load_state_dict(pool.state_dict())
    assert repr(again) == repr(pool)
    assert torch.equal(again(MAPS), pool(MAPS))


@pytest.mark.parametrize(
    "pool",
    [
        pp.nn.FirstOrderPool1d(8, pp.AsinhE(3.0), prefix_tokens=2, cls="concat", reduce="max"),
        pp.nn.FirstOrderPool2d(8, check=False, crops=True, unit_scale=True),
        pp.nn.SecondOrderPool1d(8, "maxexp", coordinates=2, grid=(2, 3), sigma=0.7, alpha=0.2, trace_power=0.5),
        pp.nn.SecondOrderPool2d(8, pp.Gamma(0.5), solver=NewtonSchulz(4)),
        pp.nn.SecondOrderPool2d(8, pp.SigmE(3.0), mode="elementwise", eps=1e-4),
    ],
    ids=lambda pool: type(pool).__name__,
)
def test_every_option_is_described(pool: nn.Module) -> None:
    spec = describe_pool(pool)
    again = build_pool(json.loads(json.dumps(spec)))
    assert repr(again) == repr(pool)
    assert describe_pool(again) == spec
    plain = (int, float, str, tuple, bool, type(None))
    options = {name: value for name, value in vars(pool).items() if isinstance(value, plain)}
    assert {name: vars(again)[name] for name in options} == options


@pytest.mark.parametrize("learnable", [True, False])
def test_a_tensor_parameter_is_a_shape_and_its_values_are_weights(learnable: bool) -> None:
    eta = torch.tensor([[3.0]])
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(nn.Parameter(eta) if learnable else eta))
    spec = describe_pool(pool)
    assert spec["curve"] == {"name": "maxexp", "eta": {"shape": [1, 1], "learnable": learnable}}
    with torch.device("meta"):  # as from_pretrained builds it
        build_pool(spec)
    again = build_pool(spec)
    assert len(list(again.parameters())) == learnable
    again.load_state_dict(pool.state_dict())
    assert torch.equal(again(MAPS), pool(MAPS))


class Mine(nn.Module):
    out_features = 3


class MyCurve(pp.MaxExp):
    pass


def test_classes_of_others_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Mine"):
        describe_pool(Mine())
    with pytest.raises(ArgumentError, match="MyCurve"):
        describe_pool(pp.nn.SecondOrderPool2d(8, MyCurve(3)))
    with pytest.raises(ArgumentError, match="SecondOrderFactor1d"):
        describe_pool(pp.nn.SecondOrderFactor1d(8))


GOOD: dict[str, Any] = {"class": "SecondOrderPool2d", "channels": 8, "curve": {"name": "maxexp", "eta": 5}}
SOLVER = {"name": "newton_schulz", "iterations": 3}


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"class": "SecondOrderPool3d"}, "SecondOrderPool3d"),
        ({"class": ["SecondOrderPool2d"]}, "class"),
        ({"class": None}, "class"),
        ({"channels": 0}, "channels"),
        ({"channels": "8"}, "channels"),
        ({"channels": True}, "channels"),
        ({"channels": 10**12}, "channels"),
        ({"coordinates": 2_000_000}, "coordinates"),
        ({"reduce_to": -1}, "reduce_to"),
        ({"mode": "spectrall"}, "mode"),
        ({"beta": math.nan}, "beta"),
        ({"beta": 2.0}, "beta"),
        ({"solver": "fast"}, "fast"),
        ({"solver": {**SOLVER, "iterations": 10**9}}, "iterations"),
        ({"solver": {**SOLVER, "steps": 3}}, "steps"),
        ({"solver": {"name": "slow"}}, "slow"),
        ({"reduce_too": 3}, "reduce_to"),
        ({"curve": {"name": "maxep", "eta": 5}}, "maxep"),
        ({"curve": {"name": "maxexp"}}, r"eta.*missing"),
        ({"curve": {"name": "maxexp", "eta": -1}}, "-1"),
        ({"curve": {"name": "maxexp", "eta": "5"}}, "eta"),
        ({"curve": {"name": "maxexp", "eta": 5, "gamma": 1}}, "gamma"),
        ({"curve": {"name": "maxexp", "eta": {"shape": [10**9], "learnable": True}}}, "shape"),
        ({"curve": {"name": "maxexp", "eta": {"shape": [-1], "learnable": True}}}, "shape"),
        ({"curve": {"name": "maxexp", "eta": {"shape": [1]}}}, "learnable"),
        ({"curve": 5}, "curve"),
        ({"curve": {}}, "curve"),
    ],
)
def test_damaged_descriptions_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(RecordError, match=key):
        build_pool({**GOOD, **changes})


@pytest.mark.parametrize("spec", [None, [], "SecondOrderPool2d", {}, {"class": next(iter(POOLS))}])
def test_what_is_no_description_is_refused(spec: Any) -> None:
    with pytest.raises(RecordError, match="pool"):
        build_pool(spec)
