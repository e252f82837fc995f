"""Count the long trials from the reports that pytest and atheris wrote, for the record of the project.

    python -m tests.stress.trials build/stress.xml build/fuzz.xml build/atheris.json --out results/stress

The page of the kills lists them, too: it is written again if ``--out`` has a record of kills.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from powerpool.files import read_json, write_json, write_text
from powerpool.runs.environment import environment

RECORD = "trials.json"


def count(report: Path, times: int) -> dict[str, Any]:
    """Return tests, failures, seconds and, for damaged files, examples of a report in JUnit's format."""
    from tests.trust.test_fuzz import EXAMPLES, FEW

    cases = list(ET.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = [(case.get("name") or "").partition("[") for case in cases]
    fuzzed = [name[2].rstrip("]") for name in names if name[0] == "test_only_errors_of_powerpool_are_raised"]
    return {
        "name": report.stem,
        "tests": len(cases) - skipped,
        "skipped": skipped,
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in bad],
        "examples": sum(times * EXAMPLES.get(target, FEW) for target in fuzzed),
        "seconds": round(sum(float(case.get("time") or 0) for case in cases)),
    }


def count_atheris(report: Path) -> dict[str, Any]:
    """Return the same of the fuzzing with atheris: a test is a target, an example an input."""
    targets = read_json(report)
    return {
        "name": "fuzz, atheris",
        "tests": len(targets),
        "skipped": 0,
        "failed": [one["target"] for one in targets if one["failed"]],
        "examples": sum(one["inputs"] for one in targets),
        "seconds": sum(one["seconds"] for one in targets),
    }


def section(record: dict[str, Any]) -> str:
    """Return the record as a part of a page."""
    rows = ["| trial | tests | skipped | examples | failures | seconds |", "|---|--:|--:|--:|--:|--:|"]
    for one in record["trials"]:
        numbers = [one["tests"], one["skipped"], one["examples"] or "", len(one["failed"]), one["seconds"]]
        command, *part = one["name"].split(", ")
        rows.append(f"| {', '.join([f'`make {command}`', *part])} | {' | '.join(map(str, numbers))} |")
    return f"""
## The other trials

{chr(10).join(rows)}

`make stress` also kills runs between two checkpoints, fills the disk, closes the pipe that output goes to, and trains
for thousands of steps at constant memory. `make fuzz` reads damaged files of every kind, here with
{record["times"]} times the examples of `make test`, and then gives atheris, which is guided by coverage, a minute for
each reader. Seconds are the sum over tests on a busy machine; commit {(record["commit"] or "?")[:7]}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the record; 1 if a test failed."""
    from tests.stress import kills

    parser = argparse.ArgumentParser(prog="python -m tests.stress.trials", description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs", "stress"))
    options = parser.parse_args(argv)
    times = int(os.environ.get("POWERPOOL_FUZZ", "1"))
    trials = [count_atheris(one) if one.suffix == ".json" else count(one, times) for one in options.reports]
    found = environment()
    record = {"schema": 1, "times": times, "trials": trials, "commit": found.commit, "dirty": found.dirty}
    write_json(options.out / RECORD, record)
    if (options.out / kills.RECORD).exists():
        page = kills.table(read_json(options.out / kills.RECORD)) + section(record)
        write_text(options.out / kills.TABLE, page)
    return 1 if any(one["failed"] for one in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
