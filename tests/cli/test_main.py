"""The program: how commands are found, what it prints, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import typing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import powerpool
from powerpool.cli.main import COMMANDS, Command, main
from powerpool.cli.options import FLAGS
from powerpool.console import emit, print_line
from powerpool.data.store import DEFAULT_LIMITS, limit_variable
from powerpool.errors import DiskError, RecordError
from powerpool.runs.config import describe, field_types
from powerpool.runs.scheduler import UnitError

cli = importlib.import_module("powerpool.cli.main")  # the name in the package is that of the function
POWERPOOL = Path(sys.executable).with_name("powerpool")
PATIENCE = 600  # seconds


def test_help_and_version(capsys):
    for arguments in ([], ["--help"], ["-h"], ["--quiet"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert all(re.search(rf"  {name} +{re.escape(command.help)}\n", text) for name, command in COMMANDS.items())
        assert all(re.search(rf"  --{flag} +{meaning}", text) for flag, meaning in FLAGS.items())
    assert main(["train", "--help"]) == 0
    assert re.search(r"train graph .*train vision .*train fewshot ", capsys.readouterr().out, re.DOTALL)
    assert main(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"powerpool {version('powerpool')}"
    assert second.startswith(f"torch {torch.__version__}, Python {platform.python_version()}, ")


@pytest.mark.parametrize(
    "words, expected",
    [
        (["trian", "graph"], "Did you mean train?"),
        (["no-such-command"], "'no-such-command'"),
        (["--verbose"], "'--verbose'"),
        ([999 * "x"], f"'{57 * 'x'}...'"),
        (["train"], "graph, vision, fewshot"),
        (["predict", "--seed", "3"], "graph, vision, fewshot"),
        (["reproduce", "grahp", "--seed", "3"], "Did you mean graph?"),
    ],
)
def test_an_unknown_command_is_wrong_use(words, expected, capsys):
    assert main(words) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("powerpool")
    assert expected in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_every_option(name, capsys):
    assert main([*name.split(), "-h"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: powerpool {name}")
    hints = field_types(cli.options_of(COMMANDS[name]))
    assert not hints.keys() & {"config", "print_config", "help", *FLAGS}
    for option, hint in hints.items():
        # Every option has a description before its type.
        found = re.search(rf"  --{re.escape(option)}\s.*?\((?={re.escape(describe(hint).split()[0])})", text, re.DOTALL)
        assert found, option
        assert len(found[0].split()) > 3, option


def test_without_jsonargparse_the_command_that_installs_it_is_named():
    # A None entry makes `import jsonargparse` fail as if the package were not installed.
    called = "sys.modules['jsonargparse'] = None; from powerpool.cli.main import main; sys.exit(main(['selfcheck']))"
    script = [sys.executable, "-c", f"import sys; {called}"]
    result = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 1
    assert re.fullmatch(r".*'jsonargparse.*pip install 'powerpool\[train,figures\]'\n", result.stderr)


@dataclass(frozen=True)
class Options:
    """Try it.

    Args:
        rate: of learning
    """

    RENAMED: ClassVar[dict[str, str]] = {"speed": "rate"}

    rate: float = 0.1


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """Replace the body of the command ``powerpool try it``, and call it."""
    body = [lambda options: None]

    def run(options: Options) -> int | None:
        return body[0](options)

    monkeypatch.setitem(COMMANDS, "try it", Command("trial:run", "train", "try it", resume="Try again."))
    monkeypatch.setattr(cli, "_load", lambda target: run)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, does: typing.Callable[[Options], int | None] | None = None) -> int:
        body[0] = does or body[0]
        return main(["try", "it", *arguments])

    return call


def test_the_command_gets_its_options_and_returns_its_exit_code(trial, capsys):
    def work(options: Options) -> int:
        print_line("a line")
        emit({"rate": options.rate})
        return 3

    assert trial("--rate", "2", does=work) == 3
    assert capsys.readouterr() == ("a line\n", "")
    assert trial("--json", "--rate=2") == 3
    assert capsys.readouterr() == ('{\n "rate": 2.0\n}\n', "")
    assert trial("--rate", "2", "--quiet") == 3
    assert capsys.readouterr() == ("", "")


def test_a_renamed_option_prints_one_line(trial, capsys):
    Path("old.yaml").write_text("speed: 2\n")
    for words in (["--speed", "2"], ["--config", "old.yaml"]):
        assert trial(*words, "--print_config") == 0
        out, err = capsys.readouterr()
        assert out == "rate: 2.0\n"
        assert re.fullmatch(r"powerpool: warning: speed .*rate.*\n", err)
        assert trial(*words, "--quiet") == 0
        assert capsys.readouterr() == ("", "")


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, code, expected",
    [
        (TypeError("a bug\nin two lines"), 1, "unexpected error: TypeError: a bug."),
        (KeyError(), 1, "unexpected error: KeyError."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: No space left on device."),
        (PermissionError(errno.EACCES, "Permission denied", "a.json"), 2, "error: Permission denied: 'a.json'."),
        (OSError(errno.EROFS, "Read-only file system", "a"), 2, "error: Read-only file system: 'a'."),
        (OSError(errno.EIO, "Input/output error", "a"), 1, "error: Input/output error: 'a'."),
        (ConnectionError("no route"), 1, "error: ConnectionError: no route."),
        (MemoryError(), 1, "error: "),
        (ModuleNotFoundError("No module named 'grakel'", name="grakel"), 1, "error: needs the package 'grakel'"),
        (
            ModuleNotFoundError("X needs ogb. Run: pip install ogb.", name="ogb"),
            1,
            "error: X needs ogb. Run: pip install",
        ),
        (ModuleNotFoundError("No module named 'powerpool.x'", name="powerpool.x"), 1, "unexpected error: "),
        (RecordError("a\npowerpool: all is well\r\n"), 2, r"error: a\npowerpool: all is well\r"),
        (RecordError("no data: allow download=True."), 2, "error: no data: allow --download true."),
        (RecordError("NaN: use features='degree'."), 2, "error: NaN: use --features degree."),
        (DiskError("full"), 1, "error: full"),
        (UnitError("fold 0: its process died."), 1, "error: fold 0: its process died."),
        (KeyboardInterrupt(), 130, "interrupted. Try again."),
        (KeyboardInterrupt("2 of 3 are kept."), 130, "interrupted. 2 of 3 are kept."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_one_line_and_with_debug_a_traceback(trial, capsys, error, code, expected):
    def work(options: Options) -> None:
        raise error

    for more in ([], ["--quiet"], ["--json"], ["--debug"]):
        assert trial(*more, does=work) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.splitlines()[-1].startswith(f"powerpool try it: {expected}")
        assert (err.count("\n") > 1 and "in work\n" in err) == ("--debug" in more)


def test_a_termination_is_said_in_one_line(trial, capsys):
    def work(options: Options) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as stopped:  # as the scheduler does
            raise KeyboardInterrupt("2 of 3 are kept.") from stopped

    before = signal.getsignal(signal.SIGTERM)
    assert trial(does=work) == 143
    assert capsys.readouterr().err == "powerpool try it: terminated. 2 of 3 are kept.\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_middle_of_a_very_long_error_is_left_out(trial, capsys):
    def work(options: Options) -> None:
        raise RecordError(f"There is no file {100_000 * 'x'}: choose another.")

    trial(does=work)
    err = capsys.readouterr().err
    assert len(err) < 2100
    assert err.startswith("powerpool try it: error: There is no file xxx")
    assert err.endswith("xxx: choose another.\n")


def test_closed_streams_do_not_change_the_exit_code(tmp_path):
    def run(words: str) -> tuple[int, str]:
        script = f"{shlex.quote(str(POWERPOOL))} {words}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("--version >&-") == (0, "")
    assert run(f"evaluate graph --run {shlex.quote(str(tmp_path / 'missing'))} >&- 2>&-") == (2, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_silent(unbuffered):
    read, write = os.pipe()
    os.close(read)  # as `| head` does when it has enough
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open(write, "wb") as stdout:
        done = subprocess.run(
            [POWERPOOL], stdout=stdout, stderr=subprocess.PIPE, env=environment, timeout=PATIENCE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_full_disk_behind_stdout_is_an_error():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([POWERPOOL], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (1, b"powerpool: error: No space left on device.\n")


def test_a_broken_pipe_of_something_else_is_an_error(trial, capsys, monkeypatch):
    def work(options: Options) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(cli, "_reader_is_gone", lambda: False)
    assert trial(does=work) == 1
    assert "Broken pipe" in capsys.readouterr().err


def test_offline_sets_the_variable_for_the_command_only(trial, monkeypatch):
    seen = []
    monkeypatch.delenv("POWERPOOL_OFFLINE", raising=False)
    assert trial("--offline", does=lambda options: seen.append(os.environ.get("POWERPOOL_OFFLINE"))) == 0
    assert "POWERPOOL_OFFLINE" not in os.environ
    assert trial() == 0
    assert seen == ["1", None]
    monkeypatch.setenv("POWERPOOL_OFFLINE", "yes")
    assert trial("--offline") == 0
    assert os.environ["POWERPOOL_OFFLINE"] == "yes"


def test_the_documentation_names_every_variable_and_the_default_limits():
    folder = Path(__file__).parents[2]
    page = (folder / "docs" / "cli.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (folder / "src").rglob("*.py"))
    found = {name for name in re.findall(r"POWERPOOL_[A-Z_]*[A-Z]", sources) if name != "POWERPOOL_MAX"}
    for name in {*found, *map(limit_variable, DEFAULT_LIMITS)}:
        assert f"| `{name}` |" in page
    sizes = {"pixels": "50 million", "files": "2 million", "unpacked": "50 GiB", "ratio": "200", "text": "2 GiB"}
    units = {"million": 10**6, "GiB": 2**30}
    for name, size in sizes.items():
        number, _, unit = size.partition(" ")
        assert int(number) * units.get(unit, 1) == DEFAULT_LIMITS[name]
        assert re.search(rf"`{limit_variable(name)}` .* \| {size} \|\n", page)


# Sends SIGINT as soon as a module is being imported.
INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def test_ctrl_c_during_the_import_is_one_line():
    script = INTERRUPT.format(module="powerpool.cli") + "import _powerpool_main\nsys.exit(_powerpool_main.main())\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "powerpool: interrupted.\n")


@pytest.mark.parametrize("module", ["torch", "powerpool.cli"])
def test_ctrl_c_during_the_import_of_a_module_that_runs_is_one_line(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    paths = os.pathsep.join([str(tmp_path), str(Path(powerpool.__file__).parents[1])])
    command = [sys.executable, "-m", "powerpool", "--version"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, env={**os.environ, "PYTHONPATH": paths}
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "powerpool: interrupted.\n")
