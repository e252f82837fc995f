"""Interfaces of the pools to other libraries, one module each; optional packages are imported on first use.

Example:
    >>> from powerpool import integrations
    >>> integrations.pyg.SecondOrderAggregation.__name__
    'SecondOrderAggregation'
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["backbones", "pyg", "sklearn"]


def __getattr__(name: str) -> ModuleType:
    # Imported on first use: the module needs the package that it integrates with.
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: choose one of {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
