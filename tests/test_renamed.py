"""Modules under the names of version 0.1."""

from __future__ import annotations

import importlib
import sys

import pytest

import powerpool.theory
from powerpool._renamed import RENAMED


@pytest.mark.parametrize("name", RENAMED)
def test_an_old_module_imports_with_a_warning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=name):
        old = importlib.import_module(name)
    for new in RENAMED[name].split():
        public = {key for key in vars(importlib.import_module(new)) if not key.startswith("_")}
        assert public <= vars(old).keys()


def test_a_merged_module_has_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "powerpool.theory.kernels", raising=False)
    with pytest.warns(DeprecationWarning, match="matrices"):
        old = importlib.import_module("powerpool.theory.kernels")
    assert old.rbf_kernel is powerpool.theory.rbf_kernel
