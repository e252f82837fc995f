"""The options of a command: what was typed after its name, as the dataclass that the command takes.

Every field of the dataclass is an option, ``--model.hidden 32`` for a field of a nested one. Values are checked as
those of a recipe are, and what is typed goes before what the recipe says. Fields without a default may be given by
their place alone: ``compare OLD NEW`` is ``compare --old OLD --new NEW``. jsonargparse describes the options.

Beside them every command has the flags of :data:`FLAGS`, which say how it runs and not what it does.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from powerpool.errors import PowerPoolError, did_you_mean, shorten
from powerpool.runs.config import (
    RecipeError,
    Setting,
    convert,
    convert_word,
    describe,
    field_types,
    list_item,
    make_config,
    read_settings,
    recipe_names,
    resolve,
)

Options = TypeVar("Options")

CONFIG = "config"
PRINT = "print_config"
HELP = ("-h", "--help")
FLAGS = {
    "quiet": "say nothing but errors; files are written all the same",
    "json": "print the result as one JSON document, and nothing else to stdout",
    "offline": "forbid all access to the network, whatever other options and recipes allow",
    "debug": "show where in the code an error comes from",
}
"""What every command can be told, and what it means."""


@dataclass(frozen=True)
class Flags:
    """What every command can be told; see :data:`FLAGS`."""

    quiet: bool = False
    json: bool = False
    offline: bool = False
    debug: bool = False


class OptionError(PowerPoolError, ValueError):
    """An option does not exist, or has the wrong number of values."""


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the options of the command are to be listed."""
    return any(word in HELP for word in arguments)


def asks_for_recipe(arguments: Sequence[str]) -> bool:
    """Whether the options are to be printed as a recipe."""
    return any(name == PRINT for name, _ in _split(arguments))


def flags_last(arguments: Sequence[str], groups: Collection[str]) -> list[str]:
    """The arguments with the flags that stand before or between the words of the command behind everything else.

    Args:
        arguments: what was typed.
        groups: first words of commands of two words.

    Example:
        >>> flags_last(["--quiet", "train", "--json", "graph", "--seed", "3"], ["train"])
        ['train', 'graph', '--seed', '3', '--quiet', '--json']
    """
    rest, flags = list(arguments), list[str]()
    for place in (0, 1):
        while len(rest) > place and _flag_name(rest[place]) is not None:
            flags.append(rest.pop(place))
        if rest[:1] and rest[0] not in groups:
            break
    return [*rest, *flags]


def read_flags(arguments: Sequence[str]) -> Flags:
    """Those of the flags that are given, wherever they stand."""
    given = ((name, words) for name, words in _split(arguments) if name in FLAGS)
    return Flags(**{name: _flag(words)[0] for name, words in given})


def own_options(options_type: type) -> list[str]:
    """The names of the options that a command has of its own, which go before flags of the same name."""
    return list(field_types(options_type))


def parse(options_type: type[Options], arguments: Sequence[str], words_are: str | None = None) -> Options:
    """The options that were typed, over those of the recipe of ``--config``, over the defaults.

    Args:
        options_type: a dataclass.
        arguments: what was typed after the command.
        words_are: the option that words without a name belong to, a list, instead of to those that have to be given.
    """
    hints = field_types(options_type)
    places = [] if words_are else _required(options_type)
    _require_true_or_false(arguments, hints)
    recipe: dict[str, Setting] = {}
    typed: dict[str, Setting] = {}
    unnamed: list[str] = []
    for name, words in _split(arguments):
        if name == "":
            unnamed += words
        elif name == CONFIG:
            recipe |= read_settings(_only(words, name), options_type)
        elif name == PRINT:
            _refuse(words, name)
        elif name in FLAGS and name not in hints:
            unnamed += _flag(words)[1]  # read_flags has read it; the words behind it are of no option
        elif name not in hints:
            raise OptionError(_unknown(name, list(hints)))
        elif list_item(hints[name]) is not None:
            if name in typed:
                raise OptionError(f"--{name} is given twice. Put all its values behind one of the two.")
            typed[name] = Setting(_list(words, hints[name], name))
        else:
            if places or words_are:
                words, behind = words[:1], words[1:]
                unnamed += behind
            typed[name] = Setting(_value(words, hints[name], name))
    if words_are and unnamed:
        given = typed[words_are].value if words_are in typed else []
        typed[words_are] = Setting([*given, *_list(unnamed, hints[words_are], words_are)])
        unnamed = []
    places = [name for name in places if name not in typed]
    if len(unnamed) > len(places):
        stray = shorten(unnamed[len(places)])
        raise OptionError(f"{stray!r} belongs to no option. The name of one comes first: --name value.")
    typed |= {name: Setting(_value([word], hints[name], name)) for name, word in zip(places, unnamed, strict=False)}
    _refuse_empty(recipe | typed)
    return make_config(options_type, recipe | typed)


def help_text(options_type: type, command: str) -> str:
    """What ``--help`` prints: every option in the words of the docstrings, with what it may be and what it is."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(
        prog=f"powerpool {command}",
        usage=" ".join(["powerpool", command, *map(str.upper, _required(options_type)), "[options]"]),
        description=(options_type.__doc__ or "").partition("\n")[0],
        formatter_class=argparse.HelpFormatter,
    )
    ours = (name for name in recipe_names() if name.split("/")[0] in command.split())
    shipped = [name for name in ours if _is_recipe_of(options_type, name)]
    named = f", or the name of one that ships with powerpool: {', '.join(shipped)}" if shipped else ""
    recipe = f"a YAML file of these options{named}. An option that is typed goes before it"
    parser.add_argument(f"--{CONFIG}", metavar="RECIPE", help=recipe)
    parser.add_argument(f"--{PRINT}", action="store_true", help="print all options as such a file, and do nothing else")
    parser.add_class_arguments(options_type, as_group=False)
    hints = field_types(options_type)
    everywhere = parser.add_argument_group("flags of every command")
    for flag, meaning in FLAGS.items():
        if flag not in hints:
            everywhere.add_argument(f"--{flag}", action="store_true", help=meaning)
    for action in parser._actions:
        hint = hints.get(action.dest)
        if hint is not None:
            several = " ..." if list_item(hint) is not None else ""
            value = f"{action.dest.rpartition('.')[2].upper()}{several}"
            action.metavar = "[true|false]" if hint is bool else value
            action.option_strings = [f"--{action.dest}"]  # jsonargparse adds `--data+`, which here would do nothing
            otherwise = "required" if action.required else f"default: {_as_typed(action.default)}"
            action.help = f"{action.help or ''} ({describe(hint)}; {otherwise})".replace("%", "%%").lstrip()
        elif any(name.startswith(f"{action.dest}.") for name in hints):
            action.help = argparse.SUPPRESS  # `--model FILE`, of which --config does all
    text: str = parser.format_help()
    return text


def _is_recipe_of(options_type: type, name: str) -> bool:
    """Whether a command takes a recipe: two commands of a pipeline need not have the same fields."""
    try:
        read_settings(name, options_type)
    except RecipeError:
        return False
    return True


def _as_typed(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_as_typed, value)) or "[]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _required(options_type: type) -> list[str]:
    """The fields without a default, which may be given without their names."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(typing.cast("Any", options_type))
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


def _split(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Every option with the words behind it, up to the next option; words before all options have the name "".

    Dashes in a name are underscores: ``--data-root`` is ``--data_root``.
    """
    name, words = "", list[str]()
    for argument in arguments:
        if argument.startswith("--"):
            yield name, words
            option, equals, value = argument[2:].partition("=")
            name, words = option.replace("-", "_"), [value] if equals else []
            if not name:
                raise OptionError(f"There is no option {argument!r}. The name of one follows the two dashes.")
        else:
            words.append(argument)
    yield name, words


def _flag_name(argument: str) -> str | None:
    """The flag that a word gives, or None if it is something else."""
    name = argument[2:].partition("=")[0]
    return name if argument.startswith("--") and name in FLAGS else None


def _flag(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Whether a flag is set, and the words behind it that are none of its own: it needs no value, but may have one."""
    if words and isinstance(resolve(words[0]), bool):
        return bool(resolve(words[0])), words[1:]
    return True, words


def _require_true_or_false(arguments: Sequence[str], hints: dict[str, Any]) -> None:
    """Refuse a flag with another value, such as ``--json=file``."""
    for argument in arguments:
        name, (_, equals, value) = _flag_name(argument), argument.partition("=")
        if name is not None and name not in hints and equals and not isinstance(resolve(value), bool):
            raise OptionError(f"--{name} is given alone, or with true or false (got {shorten(value)!r}).")


def _only(words: Sequence[str], name: str) -> str:
    if len(words) != 1:
        got = f"got {len(words)}: {shorten(' '.join(words))}" if words else "got none"
        raise OptionError(f"--{name} needs one value ({got}).")
    return words[0]


def _refuse(words: Sequence[str], name: str) -> None:
    if words:
        raise OptionError(f"--{name} takes no value (got {shorten(' '.join(words))}).")


def _refuse_empty(settings: dict[str, Setting]) -> None:
    """Refuse an empty text, which as the name of a folder would be the one where the command runs."""
    for name, setting in settings.items():
        if setting.value == "" or (isinstance(setting.value, list | tuple) and "" in setting.value):
            where = f"{setting.place}: {name}" if setting.place else f"--{name}"
            raise OptionError(f"{where} must not be an empty text. Was a variable of the shell meant that is not set?")


def _unknown(name: str, names: list[str]) -> str:
    inside = [known for known in names if known.startswith(f"{name}.")]
    if inside:
        return f"--{name} is a group of options: give one of them, such as --{inside[0]}."
    near = did_you_mean(name, [*names, CONFIG, PRINT, *FLAGS], prefix="--")
    return f"There is no option --{shorten(name)}.{near or ' --help lists all options.'}"


def _value(words: list[str], hint: Any, name: str) -> Any:
    if hint is bool and not words:  # `--quick` alone
        return True
    if name in FLAGS and not words:  # an option of the command that can be given as the flag of the same name is
        words = ["true"]
    return convert_word(_only(words, name), hint, f"--{name}")


def _list(words: list[str], hint: Any, name: str) -> Any:
    if words in ([], [""]):
        raise OptionError(f"--{name} needs at least one value ([] stands for an empty list).")
    if words == ["null"] and type(None) in typing.get_args(hint):
        return None
    if words[0].startswith("[") and words[-1].endswith("]"):  # as a recipe has it: [16, 32]
        inside = " ".join(words)[1:-1].strip()
        words = [word.strip().strip("'\"") for word in inside.split(",")] if inside else []
    return convert([convert_word(word, list_item(hint), f"--{name}") for word in words], hint, f"--{name}")
