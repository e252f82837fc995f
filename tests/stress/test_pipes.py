"""Commands whose reader leaves after the first line, as in ``powerpool ... | head -1``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.stress.kills import PATIENCE

LONG = {
    "help": ("reproduce", "fewshot", "--help"),
    "prediction": ("predict", "graph", "--run", "whole", "--data", "MUTAG", "--download", "false"),
    "prediction-json": ("--json", "predict", "graph", "--run", "whole", "--data", "MUTAG", "--download", "false"),
    "training": ("train", "graph", "--data", "MUTAG", "--download", "false", "--training.epochs", "20"),
    "selfcheck": ("selfcheck",),
}


@pytest.mark.stress
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", LONG)
def test_a_reader_that_leaves_after_a_line_is_silent(name, unbuffered, runs, tmp_path):
    whole = runs("graph")
    words = [*LONG[name], *(("--out", str(tmp_path / "run")) if name == "training" else ())]
    command = [sys.executable, "-m", "powerpool", *words]
    variables = whole.variables | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, cwd=whole.folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().strip()
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(timeout=PATIENCE)
    assert code in (0, 1)
    assert "Traceback" not in err
    assert "error" not in err
    if name == "training":  # what was done is kept
        assert os.listdir(tmp_path / "run")
