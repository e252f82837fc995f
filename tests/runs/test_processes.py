"""How many processes at a time, and that none outlives the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerpool.runs import processes

PATIENCE = 60  # seconds: no test is about time, and none waits for ever


@pytest.fixture
def groups(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(processes, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "limit, cores", [("150000 100000", 2), ("20000 100000", 1), ("max 100000", 8), ("9900000 100000", 8), ("what", 8)]
)
def test_the_limit_of_a_container_counts(groups, limit, cores):
    (groups / "cpu.max").write_text(f"{limit}\n")
    assert processes.usable_cores() == cores


@pytest.mark.parametrize("quota, cores", [(300_000, 3), (-1, 8)])
def test_so_does_that_of_an_old_one(groups, quota, cores):
    (groups / "cpu").mkdir()
    (groups / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert processes.usable_cores() == cores


def test_without_a_limit_it_is_what_the_process_may_use(groups, monkeypatch):
    assert processes.usable_cores() == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processes.usable_cores() == 1


def test_a_child_does_not_look_for_modules_in_the_working_folder(tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('not this one')")
    command = processes.python_command("import random; print(random.__file__, *sys.argv[1:])", "a b")
    given = os.environ | processes.module_path()
    said = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=True).stdout
    assert said.endswith("random.py a b\n")
    assert str(tmp_path) not in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread looks out for the parent, every half second")
def test_a_child_ends_with_the_one_that_started_it(tmp_path):
    code = (
        "import subprocess, sys\n"
        "from powerpool.runs.processes import python_command\n"
        "child = subprocess.Popen(python_command('print(1, flush=True); sys.stdin.read()'), stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait(PATIENCE)
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < end:
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
