"""A folder for one process at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from powerpool import files as records
from powerpool.errors import LockedError, RecordError
from powerpool.files import locked

HOLDER = """
import sys
from powerpool.files import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_locked_until_the_block_ends(tmp_path):
    folder = tmp_path / "new"
    with (
        locked(folder),
        pytest.raises(LockedError, match=f"process {os.getpid()} on .*Wait until it has ended"),
        locked(folder),
    ):
        pass
    with locked(folder):
        pass


def test_an_error_inside_the_block_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LockedError, match=rf"Another process \(process {holder.pid} on "), locked(tmp_path):
            pass
        holder.kill()
        holder.wait(60)
    with locked(tmp_path):
        pass


FORKING = """
import os, sys, time
from powerpool.errors import LockedError
from powerpool.files import locked
with locked(sys.argv[1]):
    child = os.fork()
    if child == 0:
        time.sleep(600)
    try:
        with locked(sys.argv[1]):
            print("lost", flush=True)
    except LockedError:
        print(child, flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_is_free_though_what_it_forked_lives(tmp_path):
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        child = int(holder.stdout.readline())  # the fork has not released the lock of the one that holds it
        try:
            holder.kill()
            holder.wait(60)
            os.kill(child, 0)  # it is there
            with locked(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_copy_that_leaves_the_block_closes_no_file_of_another(tmp_path):
    reading, writing = os.pipe()
    with contextlib.suppress(ZeroDivisionError), locked(tmp_path):
        child = os.fork()
        if child == 0:
            own = os.open(os.devnull, os.O_RDONLY)  # the number of the file that was closed
            1 / 0  # noqa: B018
    if child == 0:
        try:
            os.fstat(own)
            os.write(writing, b"open")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 10) == b"open"
    os.close(reading)


def test_what_killed_writes_left_is_removed_unless_it_is_new(tmp_path):
    deep = tmp_path / "folds" / "MUTAG"
    deep.mkdir(parents=True)
    old = time.time() - 2 * records.PART_SECONDS
    names = {".part-abcd_123.json": False, ".part-abcdefgh": False, ".part-00000-ab.crc": True, "part-abcdefgh": True}
    for name in names:
        (deep / name).touch()
        os.utime(deep / name, (old, old))
    (deep / ".part-newnewne.json").touch()
    with locked(tmp_path):
        assert {name: (deep / name).exists() for name in names} == names
        assert (deep / ".part-newnewne.json").exists()


def test_the_names_of_parts_are_those_that_are_removed(tmp_path):
    for name in ("result.json", "model", "weights.safetensors"):
        with records.atomic(tmp_path / name) as part:
            part.touch()
            os.utime(part, (0, 0))
            with locked(tmp_path):
                assert not part.exists()
            part.touch()


def test_a_lock_that_cannot_be_made_is_an_error_of_its_folder(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RecordError, match=r"Cannot write .*\.lock: Is a directory"), locked(tmp_path):
        pass


def test_a_file_in_the_place_of_the_folder_is_an_error_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"Cannot make the folder .*file"), locked(tmp_path / "file"):
        pass
