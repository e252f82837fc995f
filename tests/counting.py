"""Counting what is computed: unlike seconds, the same on every machine."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class ProductCounter(TorchDispatchMode):
    """Counts products of two C x C matrices."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = {"bmm": 0, "mm": 0, "baddbmm": 1, "baddbmm_": 1, "addmm": 1}.get(func.overloadpacket.__name__)
        if operands is not None:
            left, right = args[operands], args[operands + 1]
            self.count += left.shape[-2:] == right.shape[-2:] == (self.size, self.size)
        return func(*args, **(kwargs or {}))
