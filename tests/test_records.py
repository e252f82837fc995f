"""JSON that is whole or not there, and the facts about a machine."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from powerpool import records

# A disk so slow that a process is always killed in the middle of a file.
SCRIPT = """
import sys, time
from pathlib import Path
from powerpool.records import write_json

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
    records.write_json(path, data)
    assert records.read_json(path) == data
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()], ids=["nan", "inf", "object"])
def test_what_json_cannot_hold_is_refused_and_the_old_file_stays(tmp_path, value):
    path = tmp_path / "record.json"
    records.write_json(path, {"value": 1.0})
    with pytest.raises(ValueError, match=r"Cannot write .*record\.json as JSON"):
        records.write_json(path, {"value": value})
    assert records.read_json(path) == {"value": 1.0}
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "plot.svg"
    path.write_text("old")

    def fail() -> None:
        with records.atomic(path) as temporary:
            assert temporary.suffix == ".svg"
            assert temporary.parent == tmp_path
            temporary.write_text("half of it")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["plot.svg"]


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
        data = records.read_json(path)
        assert data["values"] == [data["number"]] * 5_000


@pytest.mark.parametrize(
    "content, message",
    [
        (b'{"a": 1,\n "b": }', r"broken\.json is not JSON: Expecting value in line 2, column 7"),
        (b"\xff\xfe", r"broken\.json is not JSON: it is not text in UTF-8"),
        (b"", r"broken\.json is not JSON: Expecting value in line 1"),
    ],
)
def test_bad_json_names_the_file_and_the_line(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        records.read_json(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"Cannot read .*none\.json: No such file"):
        records.read_json(tmp_path / "none.json")


def test_environment_says_where_a_number_comes_from(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/powerpool", "bench", "a b"])
    found = records.environment()
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["variables"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert found["command"] == "powerpool bench 'a b'"
    assert found["processor"]
    assert found["cores"] == os.cpu_count()
    assert found["time"].endswith("+00:00")
    json.dumps(found, allow_nan=False)


def test_commit_is_that_of_the_checkout_and_none_outside(monkeypatch, tmp_path):
    root = Path(records.__file__).parent
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    found = records.environment()
    if head.returncode == 0:
        assert found["commit"] == head.stdout.strip()
        assert isinstance(found["dirty"], bool)
    # An installed copy inside another repository: files that git does not track there.
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    found = records.environment()
    assert found["commit"] is None
    assert found["dirty"] is None
