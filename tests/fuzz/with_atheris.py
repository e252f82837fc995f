"""``python -m tests.fuzz.with_atheris TARGET [options of libFuzzer]``: fuzz a target with atheris, which is optional.

Install it with ``pip install atheris``. A minute of recipes: ``... with_atheris recipe -max_total_time=60``; of each
target: ``... with_atheris all -max_total_time=60``, which does nothing if atheris is not installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path


def every(options: list[str]) -> int:
    """Run each target in a separate process, since atheris ends the one that it runs in."""
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: nothing was fuzzed. Install it with: pip install atheris")
        return 0
    from tests.fuzz.targets import TARGETS

    module = "tests.fuzz.with_atheris"
    return max(subprocess.run([sys.executable, "-m", module, name, *options], check=False).returncode
               for name in TARGETS)  # fmt: skip


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
