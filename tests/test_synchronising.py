"""With ``check=None`` no operator reads a value on a GPU, forward or backward: each read would synchronise the device.

Left out are ``jitter``, which compares eigenvalues until they differ, and what ``torch.linalg.eigh`` itself waits for.

There is no GPU here. Tensors of the CPU claim to be on a CUDA device, so that operators choose what they would choose
there, and whatever reads a value is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import powerpool as pp
from powerpool.moments.segments import segment_mean
from tests.entry_points import ANY_FEATURES, OF_A_MATRIX, make_features, make_matrix

CUDA = torch.device("cuda")
aten = torch.ops.aten
READING_OPERATORS = {
    aten._local_scalar_dense,  # item, bool, int, float
    aten.nonzero,
    aten.equal,
    aten.masked_select,
    aten._unique2,
}
READING_METHODS = ("tolist", "numpy", "cpu", "__array__")  # on the CPU they run no operator


class _Claim(TorchFunctionMode):
    """Every tensor is on a CUDA device; new ones are created on the CPU instead."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return CUDA
        if getattr(function, "__name__", "") in READING_METHODS:
            self.reads.append(function.__name__)
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return function(*map(_on_cpu, args), **kwargs)


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


class _Count(TorchDispatchMode):
    """Note every operator that reads a value, an index by a mask included."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = operator.overloadpacket
        by_mask = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if packet in READING_OPERATORS or by_mask:
            self.reads.append(str(packet))
        return operator(*args, **(kwargs or {}))


def _reads(call: Callable[[Tensor], Any], given: Tensor) -> list[str]:
    reads: list[str] = []
    leaf = given.clone().requires_grad_(given.is_floating_point())
    with _Claim(reads), _Count(reads):
        result = call(leaf)
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()
    return reads


LEARNABLE = pp.MaxExp(nn.Parameter(torch.tensor(5.0, dtype=torch.float64)))  # which is checked when it is built
MATRIX_CALLS = {name: call for name, call in OF_A_MATRIX.items() if name != "jitter"}
FEATURE_CALLS = {
    **ANY_FEATURES,
    "masked": lambda f: pp.second_order_pool(f, "maxexp", beta=0.5, mask=torch.arange(f.shape[-1]) < 2),
    "residual": lambda f: pp.second_order_pool(f, "gamma", trace_power=0.5, slope=0.1),
    "learnable": lambda f: pp.second_order_pool(f, LEARNABLE),
    "vector": lambda f: pp.to_vector(pp.second_order_pool(f, "maxexp")),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "SecondOrderPool2d": lambda: pp.nn.SecondOrderPool2d(4, "maxexp", coordinates=2, unit_scale=True, unit_norm=True),
    "SecondOrderPool2d-elementwise": lambda: pp.nn.SecondOrderPool2d(4, "sigme", "elementwise"),
    "FirstOrderPool2d": lambda: pp.nn.FirstOrderPool2d(4, "sigme"),
    "FactoredHead": lambda: nn.Sequential(pp.nn.SecondOrderFactor2d(4, "maxexp"), pp.nn.FactoredHead(4, classes=3)),
}


@pytest.mark.parametrize("call", MATRIX_CALLS.values(), ids=list(MATRIX_CALLS))
def test_operators_of_a_matrix(call: Callable[..., Tensor]) -> None:
    assert _reads(call, make_matrix(3)) == []


@pytest.mark.parametrize("call", FEATURE_CALLS.values(), ids=list(FEATURE_CALLS))
def test_operators_of_features(call: Callable[..., Tensor]) -> None:
    assert _reads(call, make_features(3)) == []
    assert _reads(call, make_features(3)[..., :3]) == []


@pytest.mark.parametrize("make", MODULES.values(), ids=list(MODULES))
def test_modules(make: Callable[[], nn.Module]) -> None:
    module = make().double()
    assert _reads(module, make_features(3).unflatten(-1, (2, 3))) == []


def test_tokens_and_segments() -> None:
    tokens, index = make_features(3).mT.contiguous(), torch.tensor([0, 2, 2, 0, 1, 2])
    pool = pp.nn.SecondOrderPool1d(4, "maxexp", prefix_tokens=1, cls="concat").double()
    assert _reads(pool, tokens) == []
    assert _reads(lambda x: pp.segment_autocorrelation(x, index, 3, beta=0.5), tokens[0]) == []
    assert _reads(lambda x: segment_mean(x, index, 3), tokens[0]) == []


def test_aggregations_of_graphs() -> None:
    pyg = pytest.importorskip("powerpool.integrations.pyg", reason="needs torch_geometric")
    nodes, index = make_features(), torch.tensor([0, 0, 2, 2])
    for options in ({"mode": "elementwise"}, {"mode": "spectral"}, {"solver": "eigen"}):
        pool = pyg.SecondOrderAggregation(6, pp.MaxExp(7), **options).double()
        assert _reads(lambda x, pool=pool: pool(x, index, dim_size=3), nodes) == []


def test_relation_descriptor() -> None:
    descriptor, features = pp.nn.RelationDescriptor(pp.SigmE(5.0)), make_features(2)
    assert _reads(lambda f: descriptor(f, features), make_features(2)) == []


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.detach().sum()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.detach().numpy(),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x),
    "mask": lambda x: x[x > 0.5],
    "assignment": lambda x: x.detach().clone().index_put_((x[:, 0, 0] > -1,), x.detach()),
    "unique": lambda x: x.detach().unique(),
    "check=True": lambda x: pp.autocorrelation(x, check=True),
}


@pytest.mark.parametrize("call", READS.values(), ids=list(READS))
def test_every_read_is_counted(call: Callable[[Tensor], Any]) -> None:
    assert _reads(call, make_features(2)) != []


def test_a_read_in_backward_is_counted() -> None:
    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad if grad.sum() > 0 else -grad

    assert _reads(Reading.apply, make_features()) != []
