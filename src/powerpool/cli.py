"""The command line: one table of commands, each imported when it is called.

A command is a function of one typed dataclass, its options; it returns its exit code, or None for 0. The fields of the
dataclass become ``--options``, the docstring becomes their help, and ``--config RECIPE`` reads the same fields from
YAML. Exit codes: 0 for success, 1 for a failure, 2 for what the user can put right by typing something else.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from powerpool import __version__
from powerpool.checks import PowerPoolError
from powerpool.configs import did_you_mean, to_yaml
from powerpool.options import asks_for_help, asks_for_recipe, help_text, parse

PIPELINES = "train,graph,sweep,figures"
VISION = "train,vision,sweep,figures,sklearn"
FEWSHOT = "train,vision,sweep,figures,sklearn"


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


COMMANDS: dict[str, Command] = {
    "demo": Command(
        target="powerpool.demo:run",
        help="train a small CNN on digits with four poolings and print one table",
        extras="train,sklearn",
    ),
    "bench": Command(
        target="powerpool.bench.command:run",
        help="time and memory of pools, solvers, curves and training, against competitors in the same run",
        extras="train,figures",
        first_word="suite",
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
        target="powerpool.pipelines.graph.commands:train",
        help="train a graph classifier on one fold of a data set, and keep the model",
        extras=PIPELINES,
    ),
    "evaluate graph": Command(
        target="powerpool.pipelines.graph.commands:evaluate",
        help="the accuracy of a trained graph classifier on the graphs that it has not seen",
        extras=PIPELINES,
    ),
    "predict graph": Command(
        target="powerpool.pipelines.graph.commands:predict",
        help="the class that a trained graph classifier gives to every graph of a data set",
        extras=PIPELINES,
    ),
    "reproduce graph": Command(
        target="powerpool.experiments.graph:run",
        help="all folds of data sets and methods, several at a time; goes on where it was stopped",
        extras=PIPELINES,
    ),
    "train vision": Command(
        target="powerpool.pipelines.vision.commands:train",
        help="train an image classifier, on frozen features or end to end, and keep the model",
        extras=VISION,
    ),
    "evaluate vision": Command(
        target="powerpool.pipelines.vision.commands:evaluate",
        help="top-1 and top-5 accuracy of a trained image classifier, by class, and its confusions as a picture",
        extras=VISION,
    ),
    "predict vision": Command(
        target="powerpool.pipelines.vision.commands:predict",
        help="the classes that a trained image classifier gives to pictures: files and folders",
        extras=VISION,
        words="pictures",
    ),
    "export vision": Command(
        target="powerpool.pipelines.vision.export:export",
        help="a trained image classifier as ONNX or as a program of torch.export",
        extras=VISION,
    ),
    "reproduce vision": Command(
        target="powerpool.experiments.vision:run",
        help="every method on the same frozen features of data sets, as in the paper's tables of images",
        extras=VISION,
    ),
    "sweep vision": Command(
        target="powerpool.experiments.sweep:run",
        help="validation accuracy against one setting, such as beta, alpha or eta: the paper's sensitivity plots",
        extras=VISION,
    ),
    "train fewshot": Command(
        target="powerpool.pipelines.fewshot.commands:train",
        help="train a network that compares pictures of classes it has never seen, and keep it",
        extras=FEWSHOT,
    ),
    "evaluate fewshot": Command(
        target="powerpool.pipelines.fewshot.commands:evaluate",
        help="the accuracy of a trained few-shot network in other episodes, or on other pictures",
        extras=FEWSHOT,
    ),
    "predict fewshot": Command(
        target="powerpool.pipelines.fewshot.commands:predict",
        help="names for pictures, from a few examples of each class and without any training",
        extras=FEWSHOT,
        words="pictures",
    ),
    "reproduce fewshot": Command(
        target="powerpool.experiments.fewshot:run",
        help="every method in the same test episodes, as in the paper's tables of few-shot learning",
        extras=FEWSHOT,
    ),
    "report": Command(
        target="powerpool.experiments.report:run",
        help="the tables and plots of finished runs, beside the figures of the paper",
        extras=PIPELINES,
    ),
}

ARGUMENTS = {
    "download=True": "--download true",
    "root=": "--data_root",
    'corrupt="skip"': "--corrupt skip",
    "another cut, ClassCut(train=..., validation=...)": "--train_classes, --validation_classes and --class_order",
    "cut=": "--train_classes, --validation_classes and --class_order",
}
"""Arguments of functions that errors advise, and the options that are the same."""
PIPELINE_COMMANDS = {name.split()[0] for name in COMMANDS} - COMMANDS.keys()
"""First words that are no command without a second one, the pipeline."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``powerpool COMMAND [options]`` and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in PIPELINE_COMMANDS and " ".join(arguments[:2]) not in COMMANDS:
        return _ask_for_pipeline(arguments[0], "".join(arguments[1:2]))
    # One or two words choose the command; everything after them, --help included, belongs to that command.
    first = " ".join(arguments[:2]) if " ".join(arguments[:2]) in COMMANDS else "".join(arguments[:1])
    name = _top_level_parser().parse_args([first] if arguments else []).command
    command = COMMANDS[name]
    rest = arguments[1 if arguments[0] == name else len(name.split()) :]
    if command.first_word is not None and rest and not rest[0].startswith("-"):
        rest = [f"--{command.first_word}={rest[0]}", *rest[1:]]
    try:
        function = _load(command.target)
        options_type = _options_type(function)
        if asks_for_help(rest):
            sys.stdout.write(help_text(options_type, name))
            return 0
        options: Any = parse(options_type, rest, command.words)
        if asks_for_recipe(rest):
            sys.stdout.write(to_yaml(options))
            return 0
        return function(options) or 0
    except PowerPoolError as error:  # a value of the right type that is refused, or a file that is
        sys.stderr.write(f"powerpool {name}: error: {as_typed(str(error))}\n")
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "powerpool":
            raise
        sys.stderr.write(
            f"powerpool {name} needs the package {error.name!r}, which is not installed. "
            f"Install it with: pip install 'powerpool[{command.extras}]'\n"
        )
        return 1
    except KeyboardInterrupt as stopped:  # what can be gone on with says so
        sys.stderr.write(f"powerpool {name}: interrupted. {stopped}".rstrip(". ") + ".\n")
        return 130


def as_typed(message: str) -> str:
    """A message that names arguments of Python functions, in the words of the command line.

    Example:
        >>> as_typed("It is not on this machine: allow download=True.")
        'It is not on this machine: allow --download true.'
    """
    for argument, option in ARGUMENTS.items():
        message = message.replace(argument, option)
    return message


def _top_level_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="powerpool",
        usage="powerpool [--help] [--version] COMMAND [options]",
        description="Power-normalized second-order pooling for PyTorch.",
        epilog=f"commands:\n{listed}\n\n'powerpool COMMAND --help' lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"powerpool {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=tuple(COMMANDS), help="one of the commands below")
    return parser


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
        problem = f"there is no pipeline {second!r}.{did_you_mean(second, pipelines)}"
    sys.stderr.write(f"powerpool {first}: error: {problem} Choose one of: {', '.join(pipelines)}.\n")
    return 2


def _load(target: str) -> Callable[[Any], int | None]:
    module, _, function = target.partition(":")
    loaded: Callable[[Any], int | None] = getattr(importlib.import_module(module), function)
    return loaded


def _options_type(function: Callable[[Any], int | None]) -> type:
    options_type: type = typing.get_type_hints(function)["options"]
    return options_type
