"""The command line: one table of commands, each imported when it is called.

A command is a function of one typed dataclass, its options; it returns its exit code, or None for 0. The fields of the
dataclass become ``--options``, the docstring becomes their help, and ``--config FILE`` reads the same fields from YAML.
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


@dataclass(frozen=True)
class Command:
    """Where a command lives, what it does, and which extras it needs."""

    target: str  # "module:function"
    help: str
    extras: str
    first_word: str | None = None
    """The option that the first word after the command sets, if that is no option itself."""


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
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``powerpool COMMAND [options]`` and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # One or two words choose the command; everything after them, --help included, belongs to that command.
    first = " ".join(arguments[:2]) if " ".join(arguments[:2]) in COMMANDS else "".join(arguments[:1])
    name = _top_level_parser().parse_args([first] if arguments else []).command
    command = COMMANDS[name]
    rest = arguments[1 if arguments[0] == name else len(name.split()) :]
    if command.first_word is not None and rest and not rest[0].startswith("-"):
        rest = [f"--{command.first_word}={rest[0]}", *rest[1:]]
    try:
        function = _load(command.target)
        options = _parse_options(_options_type(function), name, rest)
        return function(options) or 0
    except PowerPoolError as error:  # a value of the right type that is refused, or a file that is
        sys.stderr.write(f"powerpool {name}: error: {error}\n")
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "powerpool":
            raise
        sys.stderr.write(
            f"powerpool {name} needs the package {error.name!r}, which is not installed. "
            f"Install it with: pip install 'powerpool[{command.extras}]'\n"
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"powerpool {name}: interrupted\n")
        return 130


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


def _load(target: str) -> Callable[[Any], int | None]:
    module, _, function = target.partition(":")
    loaded: Callable[[Any], int | None] = getattr(importlib.import_module(module), function)
    return loaded


def _options_type(function: Callable[[Any], int | None]) -> type:
    options_type: type = typing.get_type_hints(function)["options"]
    return options_type


def _parse_options(options_type: type, name: str, arguments: list[str]) -> Any:
    import jsonargparse

    class Parser(jsonargparse.ArgumentParser):
        def add_argument(self, *args: Any, **kwargs: Any) -> Any:
            action = super().add_argument(*args, **kwargs)
            if kwargs.get("type") is bool:  # `--quick` alone means `--quick true`
                action.nargs, action.const = "?", True
            return action

    return jsonargparse.auto_cli(
        options_type,
        args=arguments,
        return_instance=True,
        parser_class=Parser,
        prog=f"powerpool {name}",
        allow_abbrev=False,
    )
