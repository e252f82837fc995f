"""The command line: one table of commands, each imported when it is called.

A command is a function of one typed dataclass, its options. The fields of the dataclass become ``--options``, the
docstring becomes their help, and ``--config FILE`` reads the same fields from YAML.
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


COMMANDS: dict[str, Command] = {
    "demo": Command(
        target="powerpool.demo:run",
        help="train a small CNN on digits with four poolings and print one table",
        extras="train,sklearn",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``powerpool COMMAND [options]`` and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The first word chooses the command; everything after it, --help included, belongs to that command.
    name = _top_level_parser().parse_args(arguments[:1]).command
    command = COMMANDS[name]
    try:
        function = _load(command.target)
        try:
            options = _parse_options(_options_type(function), name, arguments[1:])
        except PowerPoolError as error:  # the dataclass refused a value that has the right type
            sys.stderr.write(f"powerpool {name}: error: {error}\n")
            return 2
        function(options)
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
    return 0


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


def _load(target: str) -> Callable[[Any], None]:
    module, _, function = target.partition(":")
    loaded: Callable[[Any], None] = getattr(importlib.import_module(module), function)
    return loaded


def _options_type(function: Callable[[Any], None]) -> type:
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
