"""Options and values at the edges of a dtype, for aggregations for PyTorch Geometric."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.testing import assert_close

import powerpool as pp
from powerpool.errors import NotFiniteError
from powerpool.integrations.pyg import SecondOrderAggregation


@pytest.mark.parametrize("nodes", [3, 9])  # padded, and by segment
@pytest.mark.parametrize("option, value", [("eps", 1.0), ("trace_power", 0.5), ("slope", 0.1)])
def test_options_can_be_set_later(option: str, value: float, nodes: int) -> None:
    x, index = torch.rand(nodes, 6), torch.zeros(nodes, dtype=torch.int64)
    changed = SecondOrderAggregation(6, pp.MaxExp(7))
    before = changed(x, index)
    setattr(changed, option, value)
    assert_close(changed(x, index), SecondOrderAggregation(6, pp.MaxExp(7), **{option: value})(x, index))
    assert not torch.equal(changed(x, index), before)
    assert_close(pickle.loads(pickle.dumps(changed))(x, index), changed(x, index))


def test_the_mean_and_the_matrix_of_huge_features_have_unit_norm() -> None:
    vector = SecondOrderAggregation(16, mean="concat", slope=50.0)(torch.full((4, 16), 2e18), torch.zeros(4).long())
    parts = torch.stack([part.norm() for part in vector.double().split([136, 16], dim=-1)])
    assert_close(parts, torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("channels", [4, 16])  # by segment, and padded
def test_a_vector_that_overflows_half_precision_is_refused(channels: int) -> None:
    x, index = torch.ones(8, channels, dtype=torch.float16), torch.zeros(8, dtype=torch.int64)
    pool = SecondOrderAggregation(channels, check=True)
    assert pool(200 * x, index).isfinite().all()
    for value in (220, 250):  # 220^2 is representable, its product with sqrt 2 is not
        with pytest.raises(NotFiniteError, match=f"{value}.*float16"):
            pool(value * x, index)
