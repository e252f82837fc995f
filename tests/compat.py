"""Run the tests of the core on the oldest and the newest torch, and on every supported Python of this machine.

    python -m tests.compat --out results/compat

Each pair gets an environment of its own, which takes some gigabytes where pip offers torch with CUDA only. One more
has the lowest declared versions of other libraries, and the tests of what uses them; one more has ray, and a cluster
of two workers that loses one. With ``--only`` the record keeps what it has of other environments.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

from packaging.requirements import Requirement

from powerpool.files import read_json, write_json, write_text
from powerpool.runs.environment import environment

ROOT = Path(__file__).parents[1]
PYPROJECT = ROOT / "pyproject.toml"
TOOLS = ("numpy", "pytest>=8.2", "hypothesis", "mpmath", "scipy")
FOR_RAY = ("ray", "joblib", "distributed", "filelock", "rich", "jsonargparse[signatures]", "pyyaml", "lightning")
CORE = (
    *("tests/curves", "tests/solvers", "tests/nn", "tests/test_autodiff.py", "tests/test_coordinates.py"),
    *("tests/test_elementwise.py", "tests/test_functional.py", "tests/test_moments.py", "tests/test_precision.py"),
    *("tests/test_products.py", "tests/test_segments.py", "tests/test_unchecked.py", "tests/test_synchronising.py"),
    *("tests/test_vectorize.py", "--ignore=tests/solvers/test_noise.py"),
)
"""Every curve, solver, pool and function; without comparisons of round-off with 50 digits, which take long."""
COMPILED = (*CORE, "tests/test_tracing.py")
"""With torch.compile and torch.export: most of the time, so on the oldest and the newest torch only."""
EXTRAS = ("graph", "vision", "train", "sweep", "figures", "sklearn")
WITH_EXTRAS = (
    *("tests/integrations", "tests/tasks/vision/test_finetuning.py", "tests/tasks/vision/test_augmentation.py"),
    *("tests/cli/test_options.py", "tests/runs/test_config.py"),
)
RAY = ("tests/runs/test_engines.py", "-k", "ray")
RECORD, TABLE = "compat.json", "README.md"
PROBE = (
    "import sys, torch; from importlib.metadata import version; "
    "print(sys.version.split()[0], torch.__version__, *map(version, sys.argv[1:]))"
)


@dataclass(frozen=True)
class Environment:
    """An environment of its own, and what runs in it."""

    name: str
    command: str
    """The interpreter."""
    torch: str
    what: str = "core"
    tests: tuple[str, ...] = CORE
    more: tuple[str, ...] = ()
    """Further packages."""


@dataclass
class Outcome:
    """The tests of one environment."""

    name: str
    what: str
    python: str
    torch: str
    commit: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    """Packages of the extras that have a lower bound, where these are tested."""
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: int = 0


def pythons(minors: Sequence[str]) -> dict[str, str]:
    """Return the interpreters that run, by version such as "3.12"."""
    found = {}
    for minor in minors:
        own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{minor}.*/bin/python"))
        for command in (*map(str, own), f"python{minor}"):
            try:
                subprocess.run([command, "-c", ""], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                continue
            found[minor] = command
            break
    return found


def declared(text: str) -> tuple[str, list[str]]:
    """Return the oldest torch and the Python versions that ``pyproject.toml`` declares."""
    oldest = re.search(r'dependencies = \["torch>=([\d.]+)"\]', text)
    assert oldest is not None
    return oldest[1], re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def lowest() -> list[str]:
    """Return the packages of the extras, at the lowest version where one is declared."""
    found = [Requirement(text) for text in metadata.requires("powerpool") or ()]
    wanted = [one for one in found if one.marker and any(one.marker.evaluate({"extra": extra}) for extra in EXTRAS)]
    pinned = [re.sub(r">=([\d.]+)", r"==\1", f"{one.name}{_extras(one)}{one.specifier}") for one in wanted]
    return sorted(set(pinned))


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(requirement.extras)}]" if requirement.extras else ""


def environments() -> Iterator[Environment]:
    """Yield all environments that this machine has a Python for."""
    oldest, minors = declared(PYPROJECT.read_text(encoding="utf-8"))
    found = pythons(minors)
    *_, last = found
    yield Environment("oldest", sys.executable, f"torch=={oldest}", "core, compiled", COMPILED)
    for minor, command in found.items():
        what, tests = ("core, compiled", COMPILED) if minor == last else ("core", CORE)
        yield Environment(f"py{minor}-newest", command, "torch", what, tests)
    pinned = metadata.version("torch")
    more = (*lowest(), "peft", "pytest-xdist")
    yield Environment("lowest", sys.executable, f"torch=={pinned}", "lowest versions", WITH_EXTRAS, more)
    yield Environment("ray", sys.executable, f"torch=={pinned}", "ray", RAY, FOR_RAY)


def run(place: Environment, work: Path) -> Outcome:
    """Create the environment unless it exists, and run its tests."""
    folder = work / place.name
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        subprocess.run([place.command, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*install, place.torch, *TOOLS, *place.more], check=True)
        (folder / ".installed").touch()
    bounded = [Requirement(text).name for text in place.more if "==" in text]
    printed = subprocess.run([python, "-c", PROBE, *bounded], check=True, capture_output=True, text=True).stdout
    version, found, *versions = printed.split()
    here = environment()
    commit = f"{(here.commit or '')[:7]}{', changed' if here.dirty else ''}"
    outcome = Outcome(place.name, place.what, version, found, commit, dict(zip(bounded, versions, strict=True)))
    report, started = folder / "report.xml", time.monotonic()
    # Other versions warn of other things; only failures count here.
    options = ("-q", "-W", "default", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
    paths = {"PYTHONPATH": str(ROOT / "src"), "PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(Path.home())}
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(
        [python, "-m", "pytest", *options, "-m", "not stress", f"--junitxml={report}", *place.tests],
        cwd=ROOT,
        env=paths | threads,
        check=False,
    )
    outcome.seconds = round(time.monotonic() - started)
    return read_report(report, outcome)


def read_report(report: Path, outcome: Outcome) -> Outcome:
    """Count the tests of a report in JUnit's format."""
    cases = list(ET.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    outcome.skipped = sum(case.find("skipped") is not None for case in cases)
    outcome.passed = len(cases) - len(bad) - outcome.skipped
    outcome.failed = [f"{case.get('classname')}::{case.get('name')}" for case in bad]
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a page."""
    rows = [
        "| tests | Python | torch | passed | failed | skipped | seconds | commit |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for one in outcomes:
        cells = [one.what, one.python, one.torch, one.passed, len(one.failed), one.skipped, one.seconds, one.commit]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    versions = next((one.packages for one in outcomes if one.packages), {})
    lowest = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"""# Versions that were tested

{chr(10).join(rows)}

The lowest versions: {lowest or "not run"}.

Made by `make compat`; names of failed tests are in [{RECORD}]({RECORD}). Continuous integration runs all tests on the
versions of `constraints.txt`. What is not listed is untested.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all environments and write the record; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results", "compat"))
    parser.add_argument("--work", type=Path, default=Path("build", "compat"), help="folder of the environments")
    parser.add_argument("--only", nargs="*", default=[], help="names of environments, such as py3.10-newest")
    options = parser.parse_args(argv)
    record = options.out / RECORD
    known = {row["name"]: Outcome(**row) for row in read_json(record)["outcomes"]} if record.exists() else {}
    places = [place for place in environments() if not options.only or place.name in options.only]
    for place in places:
        known[place.name] = run(place, options.work.resolve())
        outcomes = sorted(known.values(), key=lambda one: (one.what, one.name))
        write_json(record, {"schema": 1, "outcomes": [asdict(outcome) for outcome in outcomes]})
        write_text(options.out / TABLE, table(outcomes))
    return 1 if any(known[place.name].failed for place in places) else 0


if __name__ == "__main__":
    sys.exit(main())
