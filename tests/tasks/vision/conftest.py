"""Images and a tiny network that the tests of this folder share."""

from __future__ import annotations

import pytest

from powerpool.runs import scheduler
from tests.runs.threads import Threads
from tests.tasks.vision.samples import use_tiny, write_images


@pytest.fixture(scope="session")
def textures(tmp_path_factory):
    """A folder of three classes of ten images; no test changes it."""
    return write_images(tmp_path_factory.mktemp("textures") / "stripes")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Every name of a backbone stands for a tiny one, and features are stored in a separate cache."""
    use_tiny(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """The tiny network, and one cache for all tests of a file: features are computed once."""
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("POWERPOOL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def thread_cache(shared_cache):
    """As above, with threads instead of processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_make_executor", Threads)
        yield shared_cache
