"""A folder for one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from powerpool.locks import LockedError, locked
from powerpool.records import RecordError

HOLDER = """
import sys
from powerpool.locks import locked
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


def test_a_lock_that_cannot_be_made_is_an_error_of_its_folder(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RecordError, match=r"Cannot write .*\.lock: Is a directory"), locked(tmp_path):
        pass


def test_a_file_in_the_place_of_the_folder_is_an_error_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"Cannot make the folder .*file"), locked(tmp_path / "file"):
        pass
