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
from scipy import stats

from powerpool import files as records
from powerpool.errors import RecordError
from powerpool.runs.record import RunRecord

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


def test_the_command_of_a_module_is_called_as_it_is_typed(monkeypatch):
    for program, called in ((Path(records.__file__).with_name("__main__.py"), "powerpool"), ("x/__main__.py", None)):
        monkeypatch.setattr(sys, "argv", [str(program), "bench"])
        assert records.environment()["command"] == f"{called or '__main__.py'} bench"


def test_git_is_asked_once_and_takes_no_lock(monkeypatch, tmp_path):
    asked = []

    def answer(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "abc\n", "")

    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    monkeypatch.setattr(subprocess, "run", answer)
    for _ in range(2):
        assert [records.environment()[name] for name in ("commit", "dirty")] == ["abc", True]
    assert len(asked) == 3
    assert all("--no-optional-locks" in command for command in asked)


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


def make_record(values=(80.0, 84.0, 88.0), **changes):
    folds = tuple({"fold": number, "value": value, "epoch": 10} for number, value in enumerate(values))
    fields = {
        "pipeline": "graph",
        "data": "MUTAG",
        "method": "SOP",
        "protocol": "validation-only",
        "metric": "accuracy in %",
        "folds": folds,
        "config": {"grid": {"eta": (1.0, 20.0)}, "folds": 3},
        "seed": 0,
        "seconds": 12.5,
        "environment": {"torch": "2", "command": "powerpool train graph"},
    }
    return RunRecord(**(fields | changes))


def test_a_run_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "MUTAG" / "SOP.json"
    record = make_record()
    record.write(path)
    assert RunRecord.read(path) == record
    assert record.config["grid"]["eta"] == [1.0, 20.0]  # as JSON has it
    assert (record.values, record.count, record.mean, record.std) == ((80.0, 84.0, 88.0), 3, 84.0, 4.0)
    interval = stats.ttest_1samp(record.values, 0).confidence_interval()
    assert record.interval == pytest.approx((interval.low, interval.high))
    written = json.loads(path.read_text())
    assert (written["schema"], written["count"], written["mean"], written["std"]) == (1, 3, 84.0, 4.0)
    assert written["interval"] == list(record.interval)


def test_a_run_of_one_fold_has_no_spread(tmp_path):
    record = make_record([80.0])
    record.write(tmp_path / "one.json")
    written = json.loads((tmp_path / "one.json").read_text())
    assert (written["mean"], written["std"], written["interval"]) == (80.0, None, None)
    assert RunRecord.read(tmp_path / "one.json") == record


def test_runs_are_paired_by_the_number_of_the_fold():
    first = make_record(folds=({"fold": 2, "value": 3.0}, {"fold": 0, "value": 1.0}, {"fold": 1, "value": 2.0}))
    second = make_record(folds=({"fold": 0, "value": 10.0}, {"fold": 2, "value": 30.0}, {"fold": 7, "value": 70.0}))
    assert first.paired(second) == ([1.0, 3.0], [10.0, 30.0])
    assert second.paired(first) == ([10.0, 30.0], [1.0, 3.0])


def test_a_mean_that_another_machine_rounds_differently_is_read(tmp_path):
    path = tmp_path / "SOP.json"
    make_record([0.1, 0.2, 0.4]).write(path)
    data = json.loads(path.read_text())
    data["mean"] *= 1 + 4e-16
    path.write_text(json.dumps(data))
    assert RunRecord.read(path).mean == pytest.approx(0.7 / 3)


@pytest.mark.parametrize(
    "edit, message",
    [
        ({"mean": 85.0}, r"its mean is 85\.0, that of its folds is 84\.0"),
        ({"std": 3.9}, "its std is 3.9"),
        ({"std": None}, "its std is None"),
        ({"interval": [74.0, 94.0]}, "its interval is"),
        ({"interval": [74.0]}, "its interval is"),
        ({"count": 4}, "its count is 4"),
        ({"count": True}, "its count is True"),
        ({"folds": [{"fold": 0, "value": 80.0}, {"fold": 1, "value": 84.0}]}, "its count is 3, that of its folds is 2"),
        ({"folds": []}, "folds must be a list of folds"),
        ({"folds": [1]}, r"folds\[0\] must be an object"),
        ({"folds": [{"fold": 0, "value": "80"}]}, r"folds\[0\]\.value must be a finite number .got '80'"),
        ({"folds": [{"fold": 0.0, "value": 80.0}]}, r"folds\[0\]\.fold must be the number of the fold"),
        ({"folds": [{"value": 80.0}]}, r"folds\[0\]\.fold must be the number of the fold .got None"),
        ({"folds": [{"fold": 1, "value": 80.0}, {"fold": 1, "value": 90.0}]}, "folds of different numbers"),
        ({"method": ""}, "method must be a text"),
        ({"data": 3}, "data must be a text"),
        ({"seed": "0"}, "seed must be a whole number"),
        ({"seconds": -1.0}, "seconds must be a number >= 0"),
        ({"config": []}, "config must be an object"),
        ({"environment": None}, "environment must be an object"),
        ({"note": "mine"}, "has an unknown field 'note'"),
        ({"schema": 2}, "schema 2, needed is schema 1"),
    ],
)
def test_a_damaged_or_edited_run_is_refused_with_the_name_of_the_file_and_the_field(tmp_path, edit, message):
    path = tmp_path / "edited.json"
    make_record().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(RecordError, match=rf"edited\.json .*{message}"):
        RunRecord.read(path)


@pytest.mark.parametrize("name", ["schema", "folds", "std", "environment"])
def test_a_run_without_a_field_is_refused(tmp_path, name):
    path = tmp_path / "cut.json"
    make_record().write(path)
    data = json.loads(path.read_text())
    del data[name]
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=rf"cut\.json .*{'schema None' if name == 'schema' else name}"):
        RunRecord.read(path)


def test_what_is_no_object_is_no_run(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(RecordError, match=r"list\.json is not a record of a run: it has a list"):
        RunRecord.read(tmp_path / "list.json")


@pytest.mark.parametrize("value", [float("nan"), Path("x")], ids=["nan", "path"])
def test_a_setting_that_json_cannot_hold_is_refused_when_the_run_is_made(value):
    with pytest.raises(RecordError, match="config must hold what JSON can"):
        make_record(config={"rate": value})
