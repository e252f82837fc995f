"""Options of a command: the words after its name become the dataclass that the command takes.

Every field of the dataclass is an option, ``--model.hidden 32`` for a nested one. ``--config RECIPE`` reads the same
fields from YAML; an option on the command line takes precedence. jsonargparse checks the values and writes the help.
This module splits the words first, because argparse does not accept ``--eta -1e-3``, ``--quick`` beside
``--quick false``, or positional words between options.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from powerpool.errors import PowerPoolError, shorten
from powerpool.runs.config import (
    RecipeError,
    Setting,
    allows_null,
    current_name,
    describe,
    field_types,
    list_item,
    load_word,
    make_config,
    new_parser,
    read_recipe,
    read_settings,
    recipe_names,
    unknown_field,
)

Options = TypeVar("Options")

CONFIG, PRINT = "config", "print_config"
FLAGS = {
    "quiet": "print nothing but errors; files are still written",
    "json": "print the result as one JSON document, and nothing else to stdout",
    "offline": "forbid network access, whatever other options and recipes allow",
    "debug": "print the traceback of an error",
}
"""Options of every command that set how it runs, not what it computes."""


class OptionError(PowerPoolError, ValueError):
    """An option does not exist, or has the wrong number of values."""


def split_options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield every option with the words up to the next one; words before all options have the name "".

    Dashes in a name become underscores: ``--data-root`` is ``--data_root``.

    Example:
        >>> list(split_options(["MUTAG", "--data-root=a", "--quick"]))
        [('', ['MUTAG']), ('data_root', ['a']), ('quick', [])]
    """
    name, words = "", list[str]()
    for argument in arguments:
        if argument.startswith("--"):
            yield name, words
            option, equals, value = argument[2:].partition("=")
            name, words = option.replace("-", "_"), [value] if equals else []
            if not name:
                raise OptionError(f"{argument!r} is not an option: the name is missing.")
        else:
            words.append(argument)
    yield name, words


def take_flags(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the flags that are set and the other words; flags may stand anywhere, even before the command.

    ``--quiet``, ``--quiet true`` and ``--quiet=true`` set a flag, ``--quiet false`` does not.

    Example:
        >>> take_flags(["--quiet", "train", "graph", "--json", "false"])
        ({'quiet'}, ['train', 'graph'])
    """
    flags, rest, words = set[str](), list[str](), list(arguments)
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        name = option.removeprefix("--")
        if option == name or name not in FLAGS:
            rest.append(word)
            continue
        if not equals:
            value = words.pop(0) if words and _is_boolean(words[0]) else "true"
        if not _is_boolean(value):
            raise OptionError(f"{option} is a flag: write {option}, or {option}=false (got {shorten(value)!r}).")
        flags.discard(name)
        flags |= {name} if load_word(value) else set()
    return flags, rest


def parse(options_type: type[Options], arguments: Sequence[str], positional: str | None = None) -> Options:
    """Return the options: from the command line, else from the recipe of ``--config``, else the defaults.

    Args:
        options_type: a dataclass.
        arguments: the words after the name of the command, without flags.
        positional: the option that words without a name belong to; without it, they belong to the required options.
    """
    hints = field_types(options_type)
    places = [positional] if positional else required_options(options_type)
    recipe, typed, unnamed = dict[str, Setting](), dict[str, Any](), list[str]()
    for given, words in split_options(arguments):
        name = current_name(given, options_type)
        if name == CONFIG:
            recipe |= read_settings(_take_word(name, words), options_type)
        elif name in hints and list_item(hints[name]) is not None:
            if name in typed:
                raise OptionError(f"--{name} is given twice. Put all values after one of the two.")
            typed[name], words = _as_list(name, words, hints[name]), []
        elif name in hints and hints[name] is bool and (not words or (places and not _is_boolean(words[0]))):
            typed[name] = True
        elif name in hints:
            typed[name] = _as_value(_take_word(name, words), hints[name])
        elif name not in ("", PRINT):
            raise unknown_field(f"--{name}", name, [*hints, CONFIG, PRINT, *FLAGS], "--")
        unnamed += words
    for name in places:
        if unnamed and list_item(hints[name]) is not None:
            typed[name], unnamed = [*(typed.get(name) or []), *_as_list(name, unnamed, hints[name])], []
        elif unnamed and name not in typed:
            typed[name] = unnamed.pop(0)
    if unnamed:
        raise OptionError(f"{shorten(unnamed[0])!r} does not belong to an option. Write --name value.")
    settings = recipe | {name: Setting(value) for name, value in typed.items()}
    for name, setting in settings.items():
        if "" in (setting.value if isinstance(setting.value, list) else [setting.value]):
            label = setting.label(name, "--")
            raise OptionError(f"{label} is empty. Did you mean to use a shell variable that is not set?")
    return make_config(options_type, settings, prefix="--")


def required_options(options_type: type) -> list[str]:
    """Return the fields without a default, which may be given without their names."""
    missing, fields = dataclasses.MISSING, dataclasses.fields(typing.cast("Any", options_type))
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


def help_text(options_type: type, command: str, positional: str | None = None) -> str:
    """Return the help of a command: every option with its description, type and default."""
    hints = field_types(options_type)
    words = [f"[{positional.upper()}]"] if positional else map(str.upper, required_options(options_type))
    parser = new_parser(
        options_type,
        prog=f"powerpool {command}",
        usage=" ".join(["powerpool", command, *words, "[options]"]),
        description=(options_type.__doc__ or "").partition("\n")[0],
        formatter_class=argparse.HelpFormatter,
    )
    for action in parser._actions:
        hint = hints.get(action.dest)
        if hint is not None:
            name = action.dest.rpartition(".")[2].upper()
            action.metavar = "[true|false]" if hint is bool else f"{name} ..." if list_item(hint) else name
            action.option_strings = [f"--{action.dest}"]  # without the `--data+` of jsonargparse
            otherwise = "required" if action.required else f"default: {_as_typed(action.default)}"
            action.help = f"{action.help or ''} ({describe(hint)}; {otherwise})".replace("%", "%%").lstrip()
        elif any(name.startswith(f"{action.dest}.") for name in hints):
            action.help = argparse.SUPPRESS  # `--model FILE` of jsonargparse
    shipped = [name for name in recipe_names() if name.split("/")[0] in command.split() and _fits(name, options_type)]
    listed = f", or one that ships with powerpool: {', '.join(shipped)}" if shipped else ""
    common = parser.add_argument_group("options of every command")
    common.add_argument(f"--{CONFIG}", metavar="RECIPE", help=f"a YAML file of the options above{listed}")
    common.add_argument(f"--{PRINT}", action="store_true", help="print all options as a recipe, and do nothing else")
    for flag, meaning in FLAGS.items():
        common.add_argument(f"--{flag}", action="store_true", help=meaning)
    text: str = parser.format_help()
    return text


def _fits(recipe: str, options_type: type) -> bool:
    """Whether a command accepts a recipe: two commands of a task need not have the same options."""
    try:
        read_recipe(recipe, options_type)
    except RecipeError:
        return False
    return True


def _as_typed(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_as_typed, value)) or "[]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _is_boolean(word: str) -> bool:
    return isinstance(load_word(word), bool)


def _take_word(name: str, words: list[str]) -> str:
    if not words:
        raise OptionError(f"--{name} needs a value.")
    return words.pop(0)


def _as_value(word: str, hint: Any) -> str | None:
    return None if word == "null" and allows_null(hint) else word


def _as_list(name: str, words: list[str], hint: Any) -> Any:
    if not words:
        raise OptionError(f"--{name} needs at least one value ([] is an empty list).")
    if words == ["null"] and allows_null(hint):
        return None
    if words[0].startswith("[") and words[-1].endswith("]"):  # [16, 32], as in a recipe
        inside = " ".join(words)[1:-1].strip()
        return [word.strip().strip("'\"") for word in inside.split(",")] if inside else []
    return words
