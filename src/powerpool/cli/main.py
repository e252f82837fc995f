"""The command line: one table of commands, each imported when it is called.

A command is a function of one typed dataclass, its options; it returns its exit code, or None for 0. The fields of the
dataclass become ``--options``, the docstring becomes their help, and ``--config RECIPE`` reads the same fields from
YAML. What it says goes through :mod:`powerpool.console`, what goes wrong through :func:`main`.

Exit codes: 0 for success, 1 for a failure, 2 for what the user can put right by typing something else, 130 for Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import select
import sys
import textwrap
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from powerpool import __version__
from powerpool.cli.options import (
    FLAGS,
    HELP,
    OptionError,
    asks_for_help,
    asks_for_recipe,
    flags_last,
    help_text,
    own_options,
    parse,
    read_flags,
)
from powerpool.console import governed, one_line
from powerpool.errors import DiskError, PowerPoolError, UnknownNameError, did_you_mean, shorten
from powerpool.runs.config import to_yaml

PIPELINES = "train,graph,sweep,figures"
VISION = "train,vision,sweep,figures,sklearn"
FEWSHOT = "train,vision,sweep,figures,sklearn"
SAME_COMMAND = "What is done is kept: the same command goes on from there"
OFFLINE = "POWERPOOL_OFFLINE"
"""The variable by which the code that reads data, in this process and its workers, knows of ``--offline``."""
MISTYPED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR)
"""What the system says of a name where another one would do."""
LONGEST = 2000
"""Characters of an error; of a longer one, which repeats something long that was given, the middle is left out."""


@dataclass(frozen=True)
class Command:
    """Where a command lives, what it does, and which extras it needs."""

    target: str  # "module:function"
    help: str
    extras: str
    first_word: str | None = None
    """The option that the first word after the command sets, if that is no option itself."""
    words: str | None = None
    """The option, a list, that all words without a name belong to, wherever they stand."""
    methods: str | None = None
    """The task whose methods the help lists."""
    goes_on: str = ""
    """How to go on after Ctrl-C, where what is done is kept."""
    options: str | None = None
    """"module:Class" of the options; default: the type of the parameter of the function."""


COMMANDS: dict[str, Command] = {
    "demo": Command(
        target="powerpool.cli.demo:run",
        help="all three pipelines on small data in a few minutes: one table, one report",
        extras="train,graph,vision,sweep,figures,sklearn",
        goes_on=SAME_COMMAND,
    ),
    "bench": Command(
        target="powerpool.bench.command:run",
        help="time and memory of pools, solvers, curves and training, against competitors in the same run",
        extras="train,figures",
        first_word="suite",
        goes_on="What was measured is kept: the same command with --resume goes on from there",
    ),
    "bench publish": Command(
        target="powerpool.bench.publish:run",
        help="put finished records of bench, and the tables made from them, into a folder",
        extras="train,figures",
    ),
    "bench compare": Command(
        target="powerpool.bench.compare:run",
        help="what got slower between two records of bench; exit code 1 if anything of powerpool did",
        extras="train,figures",
    ),
    "train graph": Command(
        target="powerpool.cli.commands:train",
        options="powerpool.tasks.graph.options:TrainOptions",
        help="train a graph classifier on one fold of a data set, and keep the model",
        extras=PIPELINES,
        methods="graph",
        goes_on=SAME_COMMAND,
    ),
    "evaluate graph": Command(
        target="powerpool.cli.commands:evaluate",
        options="powerpool.tasks.graph.options:EvaluateOptions",
        help="the accuracy of a trained graph classifier on the graphs that it has not seen",
        extras=PIPELINES,
    ),
    "predict graph": Command(
        target="powerpool.cli.commands:predict",
        options="powerpool.tasks.graph.options:PredictOptions",
        help="the class that a trained graph classifier gives to every graph of a data set",
        extras=PIPELINES,
    ),
    "reproduce graph": Command(
        target="powerpool.cli.reproduce:run",
        options="powerpool.tasks.graph.options:ReproduceOptions",
        help="all folds of data sets and methods, several at a time; goes on where it was stopped",
        extras=PIPELINES,
        methods="graph",
        goes_on=SAME_COMMAND,
    ),
    "train vision": Command(
        target="powerpool.cli.commands:train",
        options="powerpool.tasks.vision.options:TrainOptions",
        help="train an image classifier, on frozen features or end to end, and keep the model",
        extras=VISION,
        methods="vision",
        goes_on=SAME_COMMAND,
    ),
    "evaluate vision": Command(
        target="powerpool.cli.commands:evaluate",
        options="powerpool.tasks.vision.options:EvaluateOptions",
        help="top-1 and top-5 accuracy of a trained image classifier, by class, with the confusion matrix",
        extras=VISION,
    ),
    "predict vision": Command(
        target="powerpool.cli.commands:predict",
        options="powerpool.tasks.vision.options:PredictOptions",
        help="predict the classes of images, files or folders, by a trained image classifier",
        extras=VISION,
        words="pictures",
    ),
    "export vision": Command(
        target="powerpool.tasks.vision.export:export",
        help="write a trained image classifier as ONNX or as a program of torch.export",
        extras=VISION,
    ),
    "reproduce vision": Command(
        target="powerpool.cli.reproduce:run",
        options="powerpool.tasks.vision.options:ReproduceOptions",
        help="train and test every method on the same features of data sets, as in the paper's tables",
        extras=VISION,
        methods="vision",
        goes_on=SAME_COMMAND,
    ),
    "sweep vision": Command(
        target="powerpool.cli.sweep:run",
        options="powerpool.tasks.vision.options:SweepOptions",
        help="validation accuracy as a function of one setting, such as beta, alpha or eta",
        extras=VISION,
        methods="vision",
        goes_on=SAME_COMMAND,
    ),
    "train fewshot": Command(
        target="powerpool.cli.commands:train",
        options="powerpool.tasks.fewshot.options:TrainOptions",
        help="train a network that compares images of classes it has never seen, and keep it",
        extras=FEWSHOT,
        methods="fewshot",
        goes_on=SAME_COMMAND,
    ),
    "evaluate fewshot": Command(
        target="powerpool.cli.commands:evaluate",
        options="powerpool.tasks.fewshot.options:EvaluateOptions",
        help="test a trained few-shot network again, in other episodes or on other images",
        extras=FEWSHOT,
    ),
    "predict fewshot": Command(
        target="powerpool.cli.commands:predict",
        options="powerpool.tasks.fewshot.options:PredictOptions",
        help="classify images by a few examples of each class, without any training",
        extras=FEWSHOT,
        words="pictures",
    ),
    "reproduce fewshot": Command(
        target="powerpool.cli.reproduce:run",
        options="powerpool.tasks.fewshot.options:ReproduceOptions",
        help="train and test methods in the same episodes, as in the paper's tables of few-shot learning",
        extras=FEWSHOT,
        methods="fewshot",
        goes_on=SAME_COMMAND,
    ),
    "inspect": Command(
        target="powerpool.analysis.command:run",
        help="spectra and burstiness of the features that a trained model pools, and a parameter to try",
        extras="train,figures",
    ),
    "figures": Command(
        target="powerpool.figures.command:run",
        help="the figures of the paper: curves and bounds from formulas, measurements from records",
        extras="train,figures",
        words="names",
    ),
    "explore": Command(
        target="powerpool.analysis.explorer.command:run",
        help="a page for the browser: move the parameters of curves and see what they do",
        extras="train,figures",
    ),
    "selfcheck": Command(
        target="powerpool.selfcheck.command:run",
        help="every curve, solver and pool against the right answers, on this machine; what a bug report needs",
        extras="train,figures",
    ),
    "report": Command(
        target="powerpool.report.write:run",
        help="the tables and plots of finished runs, beside the figures of the paper",
        extras=PIPELINES,
    ),
}

ARGUMENTS = {
    "download=True": "--download true",
    "root=": "--data_root",
    'corrupt="skip"': "--corrupt skip",
    ", or cut=ClassCut(...)": "",
}
"""Arguments of functions that errors advise, and the options that are the same."""
RECIPES = {"fewshot/pretraining": "reproduce fewshot --study pretraining"}
"""Recipes of one command that look as if they were for others of their pipeline."""
GROUPS = {name.split()[0] for name in COMMANDS if " " in name}
"""First words of commands of two words."""
PIPELINE_COMMANDS = {name.split()[0] for name in COMMANDS} - COMMANDS.keys()
"""First words that are no command without a second one, the pipeline."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``powerpool COMMAND [options]`` and return its exit code."""
    _open_closed_streams()
    arguments = flags_last(sys.argv[1:] if argv is None else argv, GROUPS)
    with contextlib.suppress(AttributeError, ValueError):  # a name of a file that is no text can be printed, too
        typing.cast("Any", sys.stdout).reconfigure(errors="backslashreplace")
    first, second = ([*arguments, "", ""])[:2]
    name = f"{first} {second}" if f"{first} {second}" in COMMANDS else first
    try:
        rest = arguments[len(name.split()) :]
        code = _run(name, rest) if name in COMMANDS else _top_level(first, second)
        sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt) as error:
        code, said = _explain(error, name)
        with contextlib.suppress(OSError, ValueError):  # nobody reads stderr either
            if said and _asks_for_debug(arguments):
                traceback.print_exception(error, file=sys.stderr)
            sys.stderr.write(_as_one_line(said))
            sys.stderr.flush()
        _leave_stdout()
        return code


def _open_closed_streams() -> None:
    """Let what is said go nowhere where a stream was closed before the start, as by ``>&-``: Python then has None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # as long as the process lives


def _run(name: str, arguments: list[str]) -> int:
    """Run a command with what was typed after its name."""
    command, flags = COMMANDS[name], read_flags(arguments)
    if command.first_word is not None and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{command.first_word}={arguments[0]}", *arguments[1:]]
    with _network_forbidden(flags.offline):
        function = _load(command.target)
        options_type: Any = _load(command.options) if command.options else _options_type(function)
        if asks_for_help(arguments):
            sys.stdout.write(help_text(options_type, name) + _methods(command))
            return 0
        options: Any = parse(options_type, arguments, command.words)
        if asks_for_recipe(arguments):
            sys.stdout.write(to_yaml(options))
            return 0
        own = own_options(options_type)  # an option of the command itself is no flag
        quiet, as_json = flags.quiet and "quiet" not in own, flags.json and "json" not in own
        with governed(quiet=quiet, as_json=as_json, debug=flags.debug) as output:
            code = function(options) or 0
        sys.stdout.write(output.document)
        return code


@contextlib.contextmanager
def _network_forbidden(forbidden: bool) -> Iterator[None]:
    """Whether the variable of ``--offline`` is set inside, for this process and those that it starts."""
    before = os.environ.get(OFFLINE)
    if forbidden:
        os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if forbidden and before is None:
            del os.environ[OFFLINE]
        elif forbidden and before is not None:
            os.environ[OFFLINE] = before


# ---- what went wrong -------------------------------------------------------------------------------------------------


def _explain(error: BaseException, name: str) -> tuple[int, str]:
    """The exit code for an error, and what is said of it."""
    command, called = COMMANDS.get(name), f"powerpool {name}".rstrip()
    if isinstance(error, KeyboardInterrupt):  # what can be gone on with says so
        how = str(error) or ("" if command is None else command.goes_on)
        return 130, f"{called}: interrupted. {how}".rstrip(". ") + ".\n"
    if isinstance(error, PowerPoolError):  # a value of the right type that is refused, or a file that is
        code = 1 if isinstance(error, DiskError) else getattr(error, "exit_code", 2)
        return code, f"{called}: error: {_advice(error, name)}\n"
    if isinstance(error, ModuleNotFoundError) and command is not None and _is_foreign(error):
        return 1, (
            f"{called} needs the package {error.name!r}, which is not installed. "
            f"Install it with: pip install 'powerpool[{command.extras}]'\n"
        )
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        return 1, ""
    if isinstance(error, OSError):
        return 2 if error.errno in MISTYPED else 1, f"{called}: error: {_said_by_system(error)}\n"
    if isinstance(error, MemoryError):
        remedy = "Take smaller batches or fewer --jobs and --workers, or close other programs."
        return 1, f"{called}: error: memory ran out. {remedy}\n"
    said = f"{type(error).__name__}: {_first_line(error)}".rstrip(".: ")
    return 1, f"{called}: unexpected error: {said}. Run again with --debug and report what it says.\n"


def _advice(error: PowerPoolError, name: str) -> str:
    """What an error says, in the words of the command line."""
    message = as_typed(str(error))
    for recipe, owner in RECIPES.items():
        if message.startswith(f"recipe {recipe}, ") and ": unknown field " in message:
            return f"The recipe {recipe} belongs to another command: powerpool {owner}."
    unknown = next((one for one in (error, error.__cause__) if isinstance(one, UnknownNameError)), None)
    if unknown is not None and unknown.is_cut and name in COMMANDS and COMMANDS[name].methods:
        return f"{message} 'powerpool {name} --help' lists all."
    return message


def _asks_for_debug(arguments: Sequence[str]) -> bool:
    with contextlib.suppress(OptionError):  # what was typed may be the error
        return read_flags(arguments).debug
    return False


def _is_foreign(error: ModuleNotFoundError) -> bool:
    return error.name is not None and error.name.split(".")[0] != "powerpool"


def _said_by_system(error: OSError) -> str:
    """``No space left on device: 'runs/a'.``"""
    if not error.strerror:
        return f"{type(error).__name__}: {_first_line(error)}".rstrip(".: ") + "."
    files = " to ".join(repr(os.fspath(file)) for file in (error.filename, error.filename2) if isinstance(file, str))
    return f"{error.strerror}{': ' if files else ''}{files}."


def _as_one_line(said: str) -> str:
    """What is said of an error, as one line: a name that it repeats may hold line breaks, and be of any length."""
    line = one_line(said.rstrip("\n"))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    return f"{line}\n" if line else ""


def _first_line(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return textwrap.shorten(next((line for line in lines if line), ""), 300, placeholder=" ...")


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more: ``powerpool ... | head``."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no such call on this system, no such stream
        return True


def _leave_stdout() -> None:
    """Give up what stdout does not take: the interpreter would try once more at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except (AttributeError, ValueError):  # there is none
        pass


def as_typed(message: str) -> str:
    """A message that names arguments of Python functions, in the words of the command line.

    Example:
        >>> as_typed("It is not on this machine: allow download=True.")
        'It is not on this machine: allow --download true.'
    """
    for argument, option in ARGUMENTS.items():
        message = message.replace(argument, option)
    return message


# ---- help ------------------------------------------------------------------------------------------------------------


def _top_level(first: str, second: str) -> int:
    """Answer where no command is named: with help, or with what is missing."""
    if first in ("", *HELP, *(f"--{flag}" for flag in FLAGS)):
        sys.stdout.write(_help())
        return 0
    if first == "--version":
        sys.stdout.write(f"powerpool {__version__}\n")
        return 0
    if first in PIPELINE_COMMANDS:
        return _ask_for_pipeline(first, second)
    what = "option" if first.startswith("-") else "command"
    near = did_you_mean(first, [*dict.fromkeys(name.split()[0] for name in COMMANDS)])
    problem = f"there is no {what} {shorten(first)!r}.{near}"
    sys.stderr.write(f"powerpool: error: {problem} 'powerpool --help' lists all commands.\n")
    return 2


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    flags = "\n".join(f"  --{name:<{width - 2}}  {meaning}" for name, meaning in FLAGS.items())
    return (
        "usage: powerpool [--help] [--version] COMMAND [options]\n\n"
        "Power-normalized second-order pooling for PyTorch.\n\n"
        f"commands:\n{commands}\n\nflags of every command:\n{flags}\n\n"
        "'powerpool COMMAND --help' lists the options of a command.\n"
    )


def _methods(command: Command) -> str:
    """What a help says of methods, where they are named by an option."""
    if command.methods is None:
        return ""
    from powerpool.tasks.methods import METHODS

    names = ", ".join(METHODS[command.methods])
    # A name is not broken: its parts would be names, too.
    listed = textwrap.fill(names, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"\nmethods:\n{listed}\n"


def _ask_for_pipeline(first: str, second: str) -> int:
    """Say which pipelines follow a first word, and return the exit code."""
    pipelines = [name.split()[1] for name in COMMANDS if name.startswith(f"{first} ")]
    if asks_for_help([second]):
        listed = "\n".join(f"  powerpool {first} {name}  {COMMANDS[f'{first} {name}'].help}" for name in pipelines)
        sys.stdout.write(f"usage: powerpool {first} PIPELINE [options]\n\n{listed}\n")
        return 0
    if second.startswith("-") or not second:
        problem = "which pipeline?"
    else:
        problem = f"there is no pipeline {shorten(second)!r}.{did_you_mean(second, pipelines)}"
    sys.stderr.write(f"powerpool {first}: error: {problem} Choose one of: {', '.join(pipelines)}.\n")
    return 2


def _load(target: str) -> Callable[[Any], int | None]:
    module, _, function = target.partition(":")
    loaded: Callable[[Any], int | None] = getattr(importlib.import_module(module), function)
    return loaded


def _options_type(function: Callable[[Any], int | None]) -> type:
    options_type: type = typing.get_type_hints(function)["options"]
    return options_type
