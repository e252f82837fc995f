"""What a step computes, counted: matrix products and decompositions do not depend on the machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::baddbmm_": 1}
"""Products of matrices, and the position of the left factor among their arguments."""
DECOMPOSITIONS = ("aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig", "aten::linalg_qr")


@dataclass
class Counts:
    """Matrix products, the floating-point operations in them, and decompositions."""

    products: int = 0
    product_flops: int = 0
    decompositions: int = 0


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The schema's name, without the overload: out= variants count too.
        name = func._schema.name
        if name in PRODUCTS:
            left: Tensor = args[PRODUCTS[name]]
            right: Tensor = args[PRODUCTS[name] + 1]
            self.counts.products += 1
            self.counts.product_flops += 2 * math.prod(left.shape) * right.shape[-1]
        elif name in DECOMPOSITIONS:
            self.counts.decompositions += 1
        return func(*args, **(kwargs or {}))


def count(step: Callable[[], object]) -> Counts:
    """What ``step`` calls, backward passes included; a product of a whole batch is one."""
    counter = _Counter()
    with counter:
        step()
    return counter.counts
