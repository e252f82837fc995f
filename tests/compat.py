"""Run the tests of the core on the oldest and the newest torch, and on every supported Python of this machine.

    python -m tests.compat --out results/compat

Each pair gets an environment of its own, which takes some gigabytes where pip offers torch with CUDA only. Ray is
installed into one more environment, in which a real cluster of two workers loses one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from powerpool.files import read_json, write_json, write_text

ROOT = Path(__file__).parents[1]
PYPROJECT = ROOT / "pyproject.toml"
TOOLS = ("numpy", "pytest>=8.2", "hypothesis", "mpmath", "scipy")
FOR_RAY = ("ray", "joblib", "distributed", "filelock", "rich", "jsonargparse[signatures]", "pyyaml", "lightning")
CORE = (
    *("tests/curves", "tests/solvers", "tests/nn", "tests/test_autodiff.py", "tests/test_coordinates.py"),
    *("tests/test_elementwise.py", "tests/test_functional.py", "tests/test_moments.py", "tests/test_precision.py"),
    *("tests/test_products.py", "tests/test_segments.py", "tests/test_tracing.py", "tests/test_unchecked.py"),
    *("tests/test_synchronising.py", "tests/test_vectorize.py"),
)
RECORD, TABLE = "compat.json", "README.md"
PROBE = "import sys, torch; print(sys.version.split()[0], torch.__version__)"


@dataclass
class Outcome:
    """The tests of one environment."""

    what: str
    python: str
    torch: str
    passed: int
    skipped: int
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


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


def environments() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield name, interpreter, requirement of torch and further packages of every environment."""
    oldest, minors = declared(PYPROJECT.read_text(encoding="utf-8"))
    found = pythons(minors)
    first = next(iter(found))
    yield f"py{first}-oldest", found[first], f"torch=={oldest}.*", ()
    for minor, command in found.items():
        yield f"py{minor}-newest", command, "torch", ()
    yield f"py{first}-ray", found[first], "torch", FOR_RAY


def run(name: str, command: str, torch: str, more: tuple[str, ...], work: Path) -> Outcome:
    """Create the environment unless it exists, and run its tests."""
    folder = work / name
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        subprocess.run([command, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, torch, *TOOLS, *more], check=True)
        (folder / ".installed").touch()
    version, found = subprocess.run([python, "-c", PROBE], check=True, capture_output=True, text=True).stdout.split()
    report, started = folder / "report.xml", time.monotonic()
    tests = ["tests/runs/test_engines.py", "-k", "ray"] if more else CORE
    # Other versions warn of other things; only failures count here.
    options = [
        "-q",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        f"--junitxml={report}",
    ]
    paths = {"PYTHONPATH": str(ROOT / "src"), "PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(Path.home())}
    subprocess.run(
        [python, "-m", "pytest", *options, *tests], cwd=ROOT, env=paths | {"OMP_NUM_THREADS": "1"}, check=False
    )
    return read_report(report, "ray" if more else "core", version, found, time.monotonic() - started)


def read_report(report: Path, what: str, python: str, torch: str, seconds: float) -> Outcome:
    """Count the tests of a report in JUnit's format."""
    cases = list(ET.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = [f"{case.get('classname')}::{case.get('name')}" for case in bad]
    return Outcome(what, python, torch, len(cases) - len(bad) - skipped, skipped, names, round(seconds))


def table(record: dict[str, list[dict[str, object]]]) -> str:
    """Return the record as a page."""
    rows = ["| tests | Python | torch | passed | failed | skipped |", "|---|---|---|--:|--:|--:|"]
    for row in record["outcomes"]:
        failed = row["failed"]
        assert isinstance(failed, list)
        cells = [row["what"], row["python"], row["torch"], row["passed"], len(failed), row["skipped"]]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return f"""# Versions that were tested

{chr(10).join(rows)}

Made by `make compat`; names of failed tests are in [{RECORD}]({RECORD}). Continuous integration runs all tests on the
versions of `constraints.txt`. What is not listed is untested.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all environments and write the record; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results", "compat"))
    parser.add_argument("--work", type=Path, default=Path("build", "compat"), help="folder of the environments")
    parser.add_argument("--only", nargs="*", default=[], help="names of environments, such as py3.10-oldest")
    options = parser.parse_args(argv)
    outcomes = []
    for name, command, torch, more in environments():
        if not options.only or name in options.only:
            outcomes.append(run(name, command, torch, more, options.work.resolve()))
            write_json(options.out / RECORD, {"schema": 1, "outcomes": [asdict(outcome) for outcome in outcomes]})
            write_text(options.out / TABLE, table(read_json(options.out / RECORD)))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
