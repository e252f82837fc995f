"""A disk that fills up during training: the last checkpoint remains, and the run resumes from it."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stress.kills import POLL, Place, are_equal, finish, start

SIZE = 4 * 2**20
LIMIT = 1000
"""Limit of a file in bytes, below the size of a checkpoint."""


class OnDisk(Place):
    """A run whose folder is on the small disk; ledger, messages and cache are not."""

    @property
    def ledger(self) -> Path:
        return self.folder.parent / "run.ledger"

    @property
    def cache(self) -> Path:
        return self.folder.parent / "cache"


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "powerpool-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"SKIPPED: no small disk can be mounted here ({mounted.stderr.strip()}); it takes root.")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Use all free space, to the last page."""
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def train_until_it_fails(place: Place, spoil: Callable[[int], object]) -> tuple[int, str]:
    """Return exit code and messages of a training; ``spoil`` is called repeatedly after two saved epochs."""
    running = start(place)
    try:
        running.wait_until_held()
        spoil(running.pid)
        running.signal(signal.SIGCONT)
        while running.poll() is None:  # replacing a checkpoint frees space
            with contextlib.suppress(ProcessLookupError):
                spoil(running.pid)
            time.sleep(POLL)
    finally:
        running.signal(signal.SIGKILL)
    assert running.out.read_text() == ""
    return running.wait(), running.err.read_text()


def assert_clean_failure(place: Place, code: int, err: str, reason: str) -> None:
    assert code == 1, err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("powerpool train graph: error: ")
    assert reason in last
    computed, saved = place.stamps, place.saved
    assert len(saved) >= 2  # reading them also checks that all checkpoints are complete
    assert len(computed) - len(saved) <= 1
    assert [file for file in place.run.rglob(".*") if file.name != ".lock"] == []  # no temporary file
    assert not (place.run / "record.json").exists()


def test_a_training_on_a_full_disk_fails_and_resumes_when_there_is_room(runs, disk):
    whole = runs("graph")
    place = OnDisk(whole.case, disk, "run", hold=3)
    ballast = disk / "ballast"
    code, err = train_until_it_fails(place, lambda pid: fill(ballast))
    assert_clean_failure(place, code, err, "No space left on device")
    saved = place.saved
    ballast.unlink()
    before = place.stamps
    finish(place)
    assert not {unit for unit in saved if place.stamps[unit] != before[unit]}
    assert are_equal(place, whole)


def test_a_limit_on_the_size_of_files_is_reported_in_the_same_way(runs):
    whole = runs("graph")
    place = Place(whole.case, whole.folder, "limited", hold=3)
    code, err = train_until_it_fails(
        place, lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
    )
    assert_clean_failure(place, code, err, "File too large")
    finish(place)
    assert are_equal(place, whole)
