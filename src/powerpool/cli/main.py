"""The command line: one table of commands, each imported when it is called.

A command is a function of one frozen dataclass, its options; it returns its exit code, or None for 0. The fields of the
dataclass become ``--options``, its docstring their help, and ``--config RECIPE`` reads the same fields from YAML.
Commands print through :mod:`powerpool.console`; :func:`main` turns errors into messages and exit codes.

Exit codes: 0 for success, 1 for a failure, 2 for wrong use, 130 for Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import platform
import select
import signal
import sys
import textwrap
import threading
import traceback
import typing
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from powerpool import __version__
from powerpool.cli.options import FLAGS, PRINT, OptionError, help_text, parse, split_options, take_flags
from powerpool.console import one_line, output_settings
from powerpool.errors import PowerPoolError, UnknownNameError, did_you_mean, shorten
from powerpool.runs.config import RenamedFieldWarning, to_yaml

BASIC = "train,figures"
GRAPH = "train,graph,sweep,figures"
IMAGES = "train,vision,sweep,figures,sklearn"
SAME_COMMAND = "Finished work is kept: run the same command to continue."
OFFLINE = "POWERPOOL_OFFLINE"
"""The environment variable that forbids network access, in this process and its workers."""
WRONG_NAMES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR)
"""Errors of the operating system that another file name would avoid."""
LONGEST = 2000
"""Characters of an error message; the middle of a longer one is left out."""
HELP = ("-h", "--help")


@dataclass(frozen=True)
class Command:
    """Where a command is implemented, which extras it needs, and what it does.

    Args:
        target: module inside powerpool and function, ``report.write:run``
        extras: extras of the package that the command needs
        help: one line for the list of commands
        positional: the option that words without a name belong to
        options: module inside powerpool and dataclass of the options; default: the annotation of the function
        methods: the task whose methods the help lists
        resume: what to do after Ctrl-C, where finished work is kept
    """

    target: str
    extras: str
    help: str
    positional: str | None = None
    options: str | None = None
    methods: str | None = None
    resume: str = ""


def _of_task(verb: str, task: str, text: str, positional: str | None = None) -> Command:
    """A command that is written once for all tasks, with the options of one of them."""
    target = {"reproduce": "cli.reproduce:run", "sweep": "cli.reproduce:sweep"}.get(verb, f"cli.commands:{verb}")
    options = f"tasks.{task}.options:{verb.capitalize()}Options"
    extras = GRAPH if task == "graph" else IMAGES
    if verb in ("evaluate", "predict"):
        return Command(target, extras, text, positional, options)
    return Command(target, extras, text, positional, options, methods=task, resume=SAME_COMMAND)


COMMANDS: dict[str, Command] = {
    "demo": Command("cli.demo:run", "demo", "run all three tasks on small data in a few minutes", resume=SAME_COMMAND),
    "bench": Command(
        "bench.command:run",
        BASIC,
        "measure time and memory of pools, solvers, curves and training, and of competitors",
        positional="suite",
        resume="Finished measurements are kept: run the same command with --resume to continue.",
    ),
    "bench publish": Command(
        "bench.finished:run_publish",
        BASIC,
        "copy finished records of bench, and the tables made from them, into a folder",
    ),
    "bench compare": Command(
        "bench.finished:run_compare",
        BASIC,
        "list what got slower between two records of bench; exit code 1 if powerpool did",
    ),
    "train graph": _of_task("train", "graph", "train a graph classifier on one fold of a data set"),
    "evaluate graph": _of_task("evaluate", "graph", "test a trained graph classifier on graphs it has not seen"),
    "predict graph": _of_task("predict", "graph", "predict the class of every graph of a data set"),
    "reproduce graph": _of_task("reproduce", "graph", "train and test methods on all folds of data sets"),
    "train vision": _of_task("train", "vision", "train an image classifier, on frozen features or end to end"),
    "evaluate vision": _of_task("evaluate", "vision", "top-1 and top-5 accuracy, by class, with the confusion matrix"),
    "predict vision": _of_task("predict", "vision", "predict the classes of images, files or folders", "images"),
    "export vision": Command(
        "tasks.vision.export:export",
        IMAGES,
        "write a trained image classifier as ONNX, or for torch.export or transformers",
    ),
    "reproduce vision": _of_task("reproduce", "vision", "train and test methods on image data sets, as in the paper"),
    "sweep vision": _of_task("sweep", "vision", "validation accuracy against one setting, such as beta or eta"),
    "train fewshot": _of_task("train", "fewshot", "train a network that compares images of unseen classes"),
    "evaluate fewshot": _of_task("evaluate", "fewshot", "test a few-shot network in other episodes or on other images"),
    "predict fewshot": _of_task("predict", "fewshot", "classify images by a few examples of each class", "images"),
    "reproduce fewshot": _of_task("reproduce", "fewshot", "train and test methods in the same episodes"),
    "inspect": Command("analysis.command:inspect", BASIC, "spectra and burstiness of the features that a model pools"),
    "figures": Command("figures.registry:run", BASIC, "figures of the paper, from formulas and from records", "names"),
    "explore": Command("analysis.command:explore", BASIC, "a web page that shows curves and their parameters"),
    "selfcheck": Command("selfcheck.command:run", BASIC, "check every curve, solver and pool on this machine"),
    "report": Command("report.write:run", GRAPH, "tables and plots of finished runs, next to the figures of the paper"),
}
IN_PYTHON = {
    "download=True": "--download true",
    "root=": "--data_root",
    'corrupt="skip"': "--corrupt skip",
    "features='degree'": "--features degree",
    "features='constant'": "--features constant",
    "edges='symmetrise'": "--edges symmetrise",
    "edges='directed'": "--edges directed",
    ", or cut=ClassCut(...)": "",
}
"""Arguments of Python functions that errors recommend, and the same as options."""
OF_TRAINING = ("--features", "--edges")
"""Those of these options that only training commands have."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``powerpool COMMAND [options]`` and return its exit code."""
    _open_closed_streams()
    arguments, flags, name = list(sys.argv[1:] if argv is None else argv), set[str](), ""
    try:
        flags, arguments = take_flags(arguments)
        name, rest = _find_command(arguments)
        with _termination_raised():
            code = _run(name, rest, flags) if name in COMMANDS else _run_without_command(name, rest)
        sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt) as error:
        reader_is_gone = isinstance(error, BrokenPipeError) and _reader_is_gone()
        _discard_unwritten_stdout()
        if reader_is_gone:
            return 1
        code, message = _explain(error, name)
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, too
            if "debug" in flags:
                traceback.print_exception(error, file=sys.stderr)
            called = f"powerpool {name}".rstrip()
            sys.stderr.write(_as_one_line(f"{called}: {message}"))
            sys.stderr.flush()
        return code


def _find_command(arguments: list[str]) -> tuple[str, list[str]]:
    """The name of the command, or what there is of it, and the other arguments."""
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if name and any(f"{known} ".startswith(f"{name} ") for known in COMMANDS):
            return name, arguments[length:]
    return "", arguments


def _run(name: str, arguments: list[str], flags: set[str]) -> int:
    """Run a command with the arguments after its name."""
    command = COMMANDS[name]
    with _network_forbidden("offline" in flags), _renamed_fields_shown("quiet" not in flags):
        function = _load(command.target)
        options_type = options_of(command)
        if any(word in HELP for word in arguments):
            sys.stdout.write(help_text(options_type, name, command.positional) + _list_methods(command))
            return 0
        options = parse(options_type, arguments, command.positional)
        if any(option == PRINT for option, _ in split_options(arguments)):
            sys.stdout.write(to_yaml(options))
            return 0
        with output_settings(quiet="quiet" in flags, as_json="json" in flags, debug="debug" in flags) as output:
            code = function(options) or 0
        sys.stdout.write(output.document)
        return code


def _run_without_command(name: str, rest: Sequence[str]) -> int:
    """Print help or the version, or raise an error that says what is missing."""
    word = rest[0] if rest else ""
    if not name and word in ("", *HELP):
        sys.stdout.write(_help())
    elif name and word in HELP:
        tasks = [command for command in COMMANDS if command.startswith(f"{name} ")]
        sys.stdout.write(f"usage: powerpool {name} TASK [options]\n\n{_list_commands(tasks)}\n")
    elif not name and word == "--version":
        sys.stdout.write(f"powerpool {__version__}\n{_versions()}\n")
    elif name:
        tasks = [command.split()[1] for command in COMMANDS if command.startswith(f"{name} ")]
        problem = "The task is missing." if word[:1] in ("", "-") else f"There is no task {shorten(word)!r}."
        raise OptionError(f"{problem}{did_you_mean(word, tasks)} Choose one of: {', '.join(tasks)}.")
    else:
        kind = "option" if word.startswith("-") else "command"
        near = did_you_mean(word, [known.split()[0] for known in COMMANDS])
        raise OptionError(f"There is no {kind} {shorten(word)!r}.{near} 'powerpool --help' lists all commands.")
    return 0


def _versions() -> str:
    """What a bug report names beside the version: torch, Python and the system."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"


def options_of(command: Command) -> Any:
    """Return the dataclass of the options of a command."""
    return _load(command.options) if command.options else typing.get_type_hints(_load(command.target))["options"]


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(f"powerpool.{module}"), name)


@contextlib.contextmanager
def _network_forbidden(forbidden: bool) -> Iterator[None]:
    """Set the variable of ``--offline`` for this process and those that it starts."""
    before = os.environ.get(OFFLINE)
    if forbidden:
        os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if forbidden:
            os.environ.pop(OFFLINE)
            os.environ.update({} if before is None else {OFFLINE: before})


@contextlib.contextmanager
def _renamed_fields_shown(shown: bool) -> Iterator[None]:
    """Print warnings about renamed options and recipe fields as one line each."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, RenamedFieldWarning):
            sys.stderr.write(f"powerpool: warning: {one_line(str(message))}\n")
        else:
            before(message, category, *where, **more)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.showwarning = show
        warnings.simplefilter("always" if shown else "ignore", RenamedFieldWarning)
        yield


# ---- errors ----------------------------------------------------------------------------------------------------------


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as from a batch system: everything that handles Ctrl-C handles it."""


@contextlib.contextmanager
def _termination_raised() -> Iterator[None]:
    """Raise an exception on SIGTERM, in this process only."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    own = os.getpid()

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() == own:
            raise _Terminated
        signal.signal(number, before)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _was_terminated(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, _Terminated) or _was_terminated(error.__cause__))


def _explain(error: BaseException, name: str) -> tuple[int, str]:
    """The exit code and the message for an error."""
    command = COMMANDS.get(name)
    if isinstance(error, KeyboardInterrupt):
        code, what = (143, "terminated") if _was_terminated(error) else (130, "interrupted")
        return code, f"{what}. {str(error) or (command.resume if command else '')}".rstrip()
    if isinstance(error, PowerPoolError):
        return error.exit_code, f"error: {_in_options(error, name)}"
    if isinstance(error, ModuleNotFoundError) and command and str(error.name).partition(".")[0] != "powerpool":
        if "pip install" in str(error):  # it names the package for the data or the setting
            return 1, f"error: {error}"
        install = f"pip install 'powerpool[{command.extras}]'"
        return 1, f"error: needs the package {error.name!r}, which is not installed. Install it with: {install}"
    if isinstance(error, OSError) and error.strerror:
        files = " to ".join(repr(file) for file in (error.filename, error.filename2) if file is not None)
        return 2 if error.errno in WRONG_NAMES else 1, f"error: {error.strerror}{': ' if files else ''}{files}."
    if isinstance(error, MemoryError):
        return 1, "error: memory ran out. Use smaller batches, or fewer --jobs and --workers."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(".: ")
    if isinstance(error, OSError):
        return 1, f"error: {message}."
    return 1, f"unexpected error: {message}. Run the command again with --debug and report the output."


def _in_options(error: PowerPoolError, name: str) -> str:
    """The message of an error in terms of the command line."""
    message = str(error)
    is_chosen = name.startswith(("evaluate", "predict", "inspect"))  # a model reads data as those of its training
    for argument, option in IN_PYTHON.items():
        where = " in training" if is_chosen and option.startswith(OF_TRAINING) else ""
        message = message.replace(argument, option + where)
    unknown = next((one for one in (error, error.__cause__) if isinstance(one, UnknownNameError)), None)
    if unknown is not None and unknown.is_cut and name in COMMANDS and COMMANDS[name].methods:
        message += f" 'powerpool {name} --help' lists all."
    return message


def _as_one_line(message: str) -> str:
    line = one_line(message)
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    return f"{line}\n"


def _open_closed_streams() -> None:
    """Discard output where a stream was closed before the start, as by ``>&-``, and print undecodable file names."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # as long as the process lives
    with contextlib.suppress(AttributeError, ValueError):
        typing.cast("Any", sys.stdout).reconfigure(errors="backslashreplace")


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more: ``powerpool ... | head``."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # Windows, or a closed stream
        return True


def _discard_unwritten_stdout() -> None:
    """Redirect a stdout that cannot be written: the interpreter would try again at exit, and print an error."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except ValueError:  # closed
        pass


# ---- help ------------------------------------------------------------------------------------------------------------


def _help() -> str:
    flags = "\n".join(f"  --{name:<{_width() - 2}}  {meaning}" for name, meaning in FLAGS.items())
    return (
        "usage: powerpool [--help] [--version] COMMAND [options]\n\n"
        "Power-normalized second-order pooling for PyTorch.\n\n"
        f"commands:\n{_list_commands(COMMANDS)}\n\nflags of every command:\n{flags}\n\n"
        "'powerpool COMMAND --help' lists the options of a command.\n"
    )


def _width() -> int:
    return max(map(len, COMMANDS))


def _list_commands(names: Iterable[str]) -> str:
    return "\n".join(f"  {name:<{_width()}}  {COMMANDS[name].help}" for name in names)


def _list_methods(command: Command) -> str:
    if command.methods is None:
        return ""
    from powerpool.tasks.methods import METHODS

    names = ", ".join(METHODS[command.methods])
    listed = textwrap.fill(names, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"\nmethods:\n{listed}\n"
