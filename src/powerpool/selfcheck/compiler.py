"""Whether ``torch.compile`` can work on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch


@contextmanager
def fresh_dynamo() -> Iterator[None]:
    """Reset the compiler before and after the ``with`` block, so that everything inside is compiled."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def find_obstacle(device: str) -> str:
    """What Inductor lacks on this machine, or "": it generates C++ for the CPU and Triton for other devices."""
    if torch.device(device).type != "cpu":
        return "" if find_spec("triton") else "the package triton is not installed"
    found = any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)
    return "" if found else "no C++ compiler on this machine (g++ or clang++)"


def find_fault(device: str) -> str | None:
    """Why Inductor cannot even compile x + 1; None if it can, so that a failure is the library's."""
    try:
        torch.compile(lambda x: x + 1, backend="inductor")(torch.zeros(2, device=device))
    except Exception as error:  # a tool chain may raise anything
        lines = str(error).strip().splitlines() or [""]
        return f"Inductor does not work on this machine, not even for x + 1: {type(error).__name__}: {lines[0][:100]}"
    return None
