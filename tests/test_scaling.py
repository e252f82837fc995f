"""The commands of the page on many processes and machines run, in their order."""

import re
import subprocess
import sys
from typing import get_args

import pytest

from powerpool.cli.main import main
from powerpool.runs.engines import INHERITED, EngineName
from powerpool.runs.folder import MODEL, RECORD
from tests.test_readme import ROOT, commands_of

LAUNCHERS = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"]}


@pytest.mark.stress
def test_the_commands_of_the_page_on_scaling_run_in_their_order(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the page on scaling is not tested: pip install distributed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    commands = commands_of("docs/scaling.md")
    assert [words[0] for words in commands] == ["powerpool", "python", "powerpool", "torchrun"]
    for words in commands:
        if words[0] == "powerpool":
            assert main(words[1:]) == 0, words
        else:
            subprocess.run([*LAUNCHERS[words[0]], *words[1:]], check=True)
    assert (tmp_path / "runs/reproduce/graph-quick/report.html").exists()
    for run in ("devices", "torchrun"):
        assert (tmp_path / "runs" / run / MODEL).exists()
        assert (tmp_path / "runs" / run / RECORD).exists()


def test_every_engine_of_the_page_can_be_asked_for():
    text = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| `--engine`.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE) == list(get_args(EngineName))


def test_the_page_names_the_variables_that_units_do_not_inherit():
    text = " ".join((ROOT / "docs/scaling.md").read_text(encoding="utf-8").split())
    sentence = re.search(r"variables that begin with (.*?) are copied from the command", text)[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(INHERITED)
