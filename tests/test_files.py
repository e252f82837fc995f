"""Files that are complete or absent, and folders for one process at a time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from powerpool import files
from powerpool.errors import LockedError, RecordError
from powerpool.files import csv_text, locked

HOLDER = """
import sys
from powerpool.files import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_locked_until_the_block_ends(tmp_path):
    folder = tmp_path / "new"
    with locked(folder), pytest.raises(LockedError, match="new"), locked(folder):
        pass
    with pytest.raises(KeyError), locked(folder):
        raise KeyError
    with locked(folder):
        pass


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LockedError, match=tmp_path.name), locked(tmp_path):
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
    old = time.time() - 2 * files.PART_SECONDS
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
        with files.atomic(tmp_path / name) as part:
            part.touch()
            os.utime(part, (0, 0))
            with locked(tmp_path):
                assert not part.exists()
            part.touch()


def test_a_file_in_the_place_of_the_folder_is_an_error_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="file"), locked(tmp_path / "file"):
        pass


# A disk so slow that a process is always killed in the middle of a file.
SCRIPT = """
import sys, time
from pathlib import Path
from powerpool.files import write_json

def slowly(path, text, encoding):
    with path.open("w", encoding=encoding) as file:
        for start in range(0, len(text), 500):
            file.write(text[start : start + 500])
            file.flush()
            time.sleep(0.005)

Path.write_text = slowly
number = 0
while True:
    write_json(sys.argv[1], {"number": number, "values": [number] * 5_000})
    number += 1
    print(number, flush=True)
"""


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "record.json"
    data = {"name": "Čau", "values": [1, 2.5, None, True], "nested": {"a": []}}
    files.write_json(path, data)
    assert files.read_json(path) == data
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_text_of_a_table_is_never_a_formula():
    rows = [{"file": "=cmd()", "class": "@rose", "score": -1.5}, {"file": "a-b", "class": "+1", "score": 2}]
    assert csv_text(rows) == "file,class,score\n'=cmd(),'@rose,-1.5\na-b,'+1,2\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()], ids=["nan", "inf", "object"])
def test_what_json_cannot_hold_is_refused_and_the_old_file_stays(tmp_path, value):
    path = tmp_path / "record.json"
    files.write_json(path, {"value": 1.0})
    with pytest.raises(ValueError, match=r"record\.json"):
        files.write_json(path, {"value": value})
    assert files.read_json(path) == {"value": 1.0}
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_kill_9_while_writing_leaves_a_whole_file(tmp_path):
    path = tmp_path / "record.json"
    draw = random.Random(0)
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", SCRIPT, path], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline()  # the first record is there, the next takes a quarter of a second
        time.sleep(draw.uniform(0.05, 0.15))
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        data = files.read_json(path)
        assert data["values"] == [data["number"]] * 5_000


def test_bad_json_names_the_file_and_the_line(tmp_path):
    path = tmp_path / "broken.json"
    for content, message in ((None, ""), (b'{"a": 1,\n "b": }', "line 2"), (b"\xff\xfe", "UTF-8"), (b"", "line 1")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"broken\.json.*{message}"):
            files.read_json(path)
