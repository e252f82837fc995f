"""What trainings share: the precision that a device has instructions for, and the memory of a process."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from powerpool.errors import ArgumentError
from powerpool.tasks.training import announce_precision, choose_precision, has_native_bfloat16


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="reads flags of x86 in /proc"
)
def test_native_bfloat16_of_a_cpu_is_what_linux_lists():
    if not hasattr(torch.cpu, "get_capabilities"):
        pytest.skip("this torch does not list the instructions of a CPU")
    flags = set(re.findall(r"[a-z0-9_]+", Path("/proc/cpuinfo").read_text().lower()))
    assert has_native_bfloat16("cpu") == bool(flags & {"avx512_bf16", "amx_bf16"})


@pytest.mark.parametrize(
    "found, wanted",
    [
        ({"avx512_f": True, "avx512_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": True}, "bf16-mixed"),
        ({"avx512_f": True, "avx512_bf16": False, "amx_tile": True}, "32-true"),
        ({"bf16": True}, "32-true"),  # ARM
        ({}, "32-true"),
    ],
)
def test_auto_follows_the_instructions_of_the_cpu(monkeypatch, found, wanted):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert choose_precision("cpu") == wanted
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert choose_precision("cpu") == "32-true"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_auto_refuses_a_device_that_is_not_there():
    with pytest.raises(ArgumentError, match="cuda"):
        choose_precision("cuda")


@pytest.mark.parametrize("native, wanted", [(True, "bf16-mixed"), (False, "32-true")])
def test_auto_says_what_it_is(native, wanted, monkeypatch, capsys):
    monkeypatch.setattr("powerpool.tasks.training.has_native_bfloat16", lambda device: native)
    assert announce_precision("cpu") == wanted
    (line,) = capsys.readouterr().err.splitlines()
    assert wanted in line


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or any(name.startswith(("MALLOC_", "LD_PRELOAD")) for name in os.environ),
    reason="measures glibc with its default settings",
)
@pytest.mark.parametrize("call, is_kept", [("keep_freed_memory()", True), ("", False)])
def test_freed_memory_is_used_again(call, is_kept):
    code = f"""
import resource, torch
from powerpool.tasks.training import keep_freed_memory
{call}
for _ in range(4):  # the first ones may leave gaps that are too small
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    pages = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    # 128 MB are 64 pages of 2 MB, or 32768 of 4 kB.
    assert (pages < 32) == is_kept
