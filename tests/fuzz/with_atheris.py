"""``python -m tests.fuzz.with_atheris TARGET [options of libFuzzer]``: fuzz a target with atheris, which is optional.

Install it with ``pip install atheris``. A minute of recipes: ``... with_atheris recipe -max_total_time=60``; of each
target: ``... with_atheris all -max_total_time=60``, which does nothing if atheris is not installed. Inputs and
failures are counted in ``build/atheris.json``.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

RECORD = Path("build", "atheris.json")


def count(target: str, lines: Iterable[str], code: int) -> dict[str, Any]:
    """Return inputs and seconds that libFuzzer's last line states, and whether the target failed."""
    found = [done for line in lines if (done := re.match(r"Done (\d+) runs in (\d+) second", line))]
    inputs, seconds = map(int, found[-1].groups()) if found else (0, 0)
    return {"target": target, "inputs": inputs, "seconds": seconds, "failed": code != 0 or not found}


def every(options: list[str]) -> int:
    """Run each target in a separate process, since atheris ends the one that it runs in; 1 if one fails."""
    RECORD.unlink(missing_ok=True)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: nothing was fuzzed. Install it with: pip install atheris")
        return 0
    from powerpool.files import write_json  # not at the top: atheris instruments what is imported after it
    from tests.fuzz.targets import TARGETS

    counts = []
    for name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz.with_atheris", name, *options]
        lines = []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stderr or ():
                sys.stderr.write(line)
                lines.append(line)
        counts.append(count(name, lines, process.returncode))
    write_json(RECORD, counts)
    return int(any(one["failed"] for one in counts))


def main() -> None:
    """Fuzz one target, or each in turn, until stopped or until a target fails."""
    if sys.argv[1:2] == ["all"]:
        sys.exit(every(sys.argv[2:]))
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["powerpool", "yaml"]):
        from tests.fuzz.targets import TARGETS, seeds, survive
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz.with_atheris TARGET ...; a TARGET is one of {', '.join(TARGETS)}")
    target = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds(target)):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], partial(survive, target))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
