"""The state of curves: a state loads only into the curve that it was saved from."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch

import powerpool as pp
from powerpool.curves import Curve
from powerpool.errors import StateError

CURVES: list[Curve] = [
    pp.MaxExp(2),
    pp.SignedMaxExp(2),
    pp.SigmE(2),
    pp.SigmE(2, trace_normalize=False),
    pp.Gamma(2),
    pp.AsinhE(2),
    pp.HDP(2),
    pp.FAHDP(2, "identity"),
    pp.FAHDP(2, "ceil"),
]


@pytest.mark.parametrize("saved, other", list(itertools.permutations(CURVES, 2)))
def test_a_state_is_refused_by_every_other_curve(saved: Curve, other: Curve) -> None:
    with pytest.raises(StateError, match=type(saved).__name__) as raised:
        other.load_state_dict(saved.state_dict())
    assert type(other).__name__ in str(raised.value)
    other.load_state_dict({})  # as the message suggests


@pytest.mark.parametrize("curve", CURVES)
def test_equal_curves_load(curve: Curve) -> None:
    state = curve.state_dict()
    copy.deepcopy(curve).load_state_dict(pickle.loads(pickle.dumps(state)))
    pickle.loads(pickle.dumps(curve)).load_state_dict({name: value.bfloat16() for name, value in state.items()})


def test_a_whole_number_may_be_given_as_float() -> None:
    pp.MaxExp(50.0).load_state_dict(pp.MaxExp(50).state_dict())
    with pytest.raises(StateError, match=r"50\.0.*51\.0"):
        pp.MaxExp(51).load_state_dict(pp.MaxExp(50).state_dict())


def test_learnable_curves_of_two_classes_do_not_share_a_state() -> None:
    learnt = [kind(torch.nn.Parameter(torch.tensor(50.0))) for kind in (pp.MaxExp, pp.SigmE)]
    with pytest.raises(StateError, match=r"MaxExp.*SigmE"):
        learnt[1].load_state_dict(learnt[0].state_dict())


def test_a_description_that_is_none_is_shown_in_short() -> None:
    with pytest.raises(StateError) as raised:
        pp.MaxExp(50).load_state_dict({"_extra_state": torch.full((10_000,), 255, dtype=torch.uint8)})
    assert len(str(raised.value)) < 500
