"""Modules that moved after version 0.1: their old names import the new modules for one release, with a warning."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

RENAMED = {
    "powerpool.checkpoints": "powerpool.runs.folder",
    "powerpool.configs": "powerpool.runs.config",
    "powerpool.coordinates": "powerpool.moments.coordinates",
    "powerpool.data.errors": "powerpool.data.store",
    "powerpool.data.features": "powerpool.data.banks",
    "powerpool.data.fewshot": "powerpool.data.episodes",
    "powerpool.data.limits": "powerpool.data.store",
    "powerpool.explore": "powerpool.analysis.explorer",
    "powerpool.inspect": "powerpool.analysis",
    "powerpool.integrations.backbones.hub": "powerpool.integrations.backbones.zoos",
    "powerpool.integrations.backbones.lite": "powerpool.integrations.backbones.loading",
    "powerpool.locks": "powerpool.files",
    "powerpool.records": "powerpool.runs.record powerpool.runs.environment powerpool.files",
    "powerpool.segments": "powerpool.moments.segments",
    "powerpool.statistics": "powerpool.runs.compare",
    "powerpool.theory.derivatives": "powerpool.theory.matrices",
    "powerpool.theory.kernels": "powerpool.theory.matrices",
    "powerpool.theory.sigme": "powerpool.theory.links",
    "powerpool.theory.spectrum": "powerpool.theory.matrices",
}


def _new_names(name: str) -> list[str]:
    """Return the modules that a name stands for now; those of a renamed package keep their own names in it."""
    if name in RENAMED:
        return RENAMED[name].split()
    package, _, module = name.rpartition(".")
    return [f"{RENAMED[package]}.{module}"] if package in RENAMED else []


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if _new_names(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        new = _new_names(spec.name)
        text = f"{spec.name} is now {' and '.join(new)}; the old name will be removed."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        module = ModuleType(spec.name)
        for name in new:
            module.__dict__.update(vars(importlib.import_module(name)))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do: the names are there already."""


def install() -> None:
    """Let the old names be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # before the search in folders, which would load a submodule twice
