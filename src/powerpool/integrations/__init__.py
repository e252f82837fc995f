"""Interfaces of the pools to other libraries; optional packages are imported on first use.

``replace_pooling`` replaces the pooling and the classifier of an existing network. The modules are one for each
library.

Example:
    >>> from powerpool import integrations
    >>> integrations.pyg.SecondOrderAggregation.__name__
    'SecondOrderAggregation'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerpool.integrations.backbones.surgery import replace_pooling as replace_pooling

MODULES = ("backbones", "hub", "pyg", "sklearn")
__all__ = ["backbones", "hub", "pyg", "replace_pooling", "sklearn"]


def __getattr__(name: str) -> Any:
    # Imported on first use: a module needs the package that it integrates with.
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "replace_pooling":
        return importlib.import_module(f"{__name__}.backbones.surgery").replace_pooling
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: choose one of {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
