"""Pictures and a tiny network that the tests of this folder share."""

from __future__ import annotations

import pytest

from tests.pipelines.vision.samples import use_tiny, write_pictures


@pytest.fixture(scope="session")
def textures(tmp_path_factory):
    """A folder of three classes of ten pictures; nobody changes it."""
    return write_pictures(tmp_path_factory.mktemp("textures") / "stripes")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Names of backbones stand for a tiny one, and stores go into a cache of their own."""
    use_tiny(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
