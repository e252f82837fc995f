"""Recipes: YAML files with the fields of a typed configuration.

A configuration is a frozen dataclass whose fields are strings, numbers, paths, choices, lists of these, or nested
configurations. A nested field has a dotted name, ``model.hidden``. jsonargparse checks types, merges values with
defaults and builds the dataclass. PyYAML reads files with a restricted loader, because recipes and run folders may come
from untrusted sources.

A dataclass with ``RENAMED: ClassVar[dict[str, str]] = {"pool.eta_prime": "pool.sigme_eta"}`` still accepts the old name
of a field, with a :class:`RenamedFieldWarning`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import re
import sys
import types
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from powerpool.errors import PowerPoolError, RecordError, did_you_mean, shorten, shown
from powerpool.files import read_bytes

Config = TypeVar("Config")

LARGEST = 1_000_000
"""Bytes of a recipe. A hundred lines have about 3,000."""
DEEPEST = 20
"""Levels of nesting of a recipe. A configuration has two or three."""
TAG = "tag:yaml.org,2002:"
SCALARS = {
    "bool": re.compile(r"(?i:true|yes|on|false|no|off)\Z"),
    "null": re.compile(r"(?i:null|~|)\Z"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]{0,99})\Z"),
    "float": re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\Z"),
}
"""What a word without quotes is. Unlike in YAML 1.1, 010 is not 8, 1:30 is not 90, and 1e-2 is a number."""
NOT_TEXT = re.compile("[\0\ud800-\udfff]")
BLAMED_FIELD = re.compile(r'Parser key "([^"]+)"')


class RecipeError(PowerPoolError, ValueError):
    """A recipe cannot be read, or a value is not what its field needs."""


class RenamedFieldWarning(DeprecationWarning):
    """A recipe or a command uses the old name of a field."""


@dataclass(frozen=True)
class Setting:
    """A value for a field, and where it was found: ``my.yaml, line 3``, or "" where it was given directly."""

    value: Any
    place: str = ""

    def label(self, name: str, prefix: str = "") -> str:
        """Return what errors call the field: with its place, or with a prefix such as ``--``."""
        return f"{self.place}: {name}" if self.place else f"{prefix}{name}"


def read_recipe(recipe: str | Path, config_type: type[Config], changes: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration that a recipe describes; fields that it does not name have their defaults.

    Args:
        recipe: a YAML file, or the name of a recipe that ships with the package, such as ``graph/MUTAG``.
        config_type: the dataclass of the configuration.
        changes: values that replace those of the recipe, by dotted name: ``{"training.epochs": 3}``.
    """
    changed = {name: Setting(value) for name, value in (changes or {}).items()}
    return make_config(config_type, read_settings(recipe, config_type) | changed)


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship with the package, such as ``graph/MUTAG``."""
    folders = (folder for folder in (resources.files("powerpool") / "recipes").iterdir() if folder.is_dir())
    files = ((folder.name, file.name) for folder in folders for file in folder.iterdir())
    return sorted(f"{folder}/{file.removesuffix('.yaml')}" for folder, file in files if file.endswith(".yaml"))


def is_quick_recipe(name: str | None) -> bool:
    """Whether a recipe that ships with powerpool is one of quick runs, by its name.

    Example:
        >>> is_quick_recipe("demo/graph-quick"), is_quick_recipe("demo/graph"), is_quick_recipe("my-quick.yaml")
        (True, False, False)
    """
    return name is not None and name.endswith("quick") and name in recipe_names()


def read_settings(recipe: str | Path, config_type: type) -> dict[str, Setting]:
    """Return the values that a recipe gives, by dotted name. :func:`make_config` checks names and types."""
    import yaml

    text, source = _read(recipe)
    try:
        _require_plain(text)
        loader = _yaml_classes()[0](text)
        found = list(_flatten(loader, loader.get_single_node()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}, line {mark.line + 1}" if mark else source
        raise RecipeError(f"{place}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # characters that no text has
        raise RecipeError(f"{source} is not a recipe: {str(error).splitlines()[0]}.") from error
    settings: dict[str, Setting] = {}
    for key, value, line in found:
        name, place = current_name(key, config_type), f"{source}, line {line}"
        if name in settings:
            raise RecipeError(f"{place}: {name} is given twice. Remove one of the two.")
        settings[name] = Setting(value, place)
    return settings


def make_config(config_type: type[Config], settings: Mapping[str, Setting], prefix: str = "") -> Config:
    """Return a configuration with these values, and defaults elsewhere.

    A configuration with a class method ``derive`` has defaults that depend on other values.

    Args:
        config_type: the dataclass of the configuration.
        settings: values by dotted name. Words such as "3" and "true" may stand for numbers and booleans.
        prefix: what errors put before the name of a field that was given directly, such as ``--``.
    """
    hints, parser, values = field_types(config_type), _parser(typing.cast("type", config_type)), dict[str, Any]()
    for name, setting in settings.items():
        if name not in hints:
            raise unknown_field(setting.label(name), name, hints)
        values[name] = _load(setting.value, hints[name])
        if not _is_allowed(values[name], hints[name]):
            raise _misfit(setting.label(name, prefix), setting.value, hints[name])
    derive = getattr(config_type, "derive", None)
    if derive is not None:
        values = {**derive(values), **values}
    try:
        found = parser.parse_object(dict(values))
    except argparse.ArgumentError as error:
        match = BLAMED_FIELD.match(str(error))
        if match is None:  # a required field is missing
            raise RecipeError(f"{str(error).splitlines()[0]}.") from error
        setting = settings[match[1]]
        raise _misfit(setting.label(match[1], prefix), setting.value, hints[match[1]]) from error
    for name, value in values.items():
        if value == "null" and _accepts_text(value, hints[name]):  # in quotes, which jsonargparse does not know
            found[name] = Path(value) if Path in _members(hints[name]) else value
    try:
        return config_type(**parser.instantiate(found).as_dict())
    except PowerPoolError as error:  # a check of the configuration, whose message starts with the field
        blamed = settings.get(str(error).partition(" ")[0])
        files = {setting.place.rpartition(", line ")[0] for setting in settings.values()}
        place = blamed.place if blamed is not None else files.pop() if len(files) == 1 else ""
        if not place:
            raise
        raise RecipeError(f"{place}: {error}") from error


def to_yaml(config: Any) -> str:
    """Return the text of a recipe that is read back as an equal configuration."""
    import yaml

    dumper = _yaml_classes()[1]
    text: str = yaml.dump(_as_plain(config, ""), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


# ---- fields ----------------------------------------------------------------------------------------------------------


def field_types(config_type: type) -> dict[str, Any]:
    """Return the type of every field, by dotted name, in the order of the fields."""
    return {name: hint for name, hint in _fields(config_type) if not dataclasses.is_dataclass(hint)}


def renamed_fields(config_type: type) -> dict[str, str]:
    """Return the new dotted name of every renamed field by its old one."""
    renamed = dict(getattr(config_type, "RENAMED", {}))
    for group, hint in _fields(config_type):
        renamed |= {f"{group}.{old}": f"{group}.{new}" for old, new in getattr(hint, "RENAMED", {}).items()}
    return renamed


def current_name(name: str, config_type: type) -> str:
    """Return the name of a field, with a warning where the given one is its old name."""
    new = renamed_fields(config_type).get(name)
    if new is not None:
        text = f"{name} is now {new}; the old name will be removed in the next release."
        warnings.warn(text, RenamedFieldWarning, stacklevel=3)
    return new or name


def describe(hint: Any) -> str:
    """Return a type in words: "int or null", "list of str"."""
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, tuple):
        return f"list of {describe(typing.get_args(hint)[0])}"
    if len(_members(hint)) > 1:
        return " or ".join(map(describe, _members(hint)))
    return {bool: "true or false", type(None): "null"}.get(hint) or hint.__name__.lower()


def unknown_field(label: str, name: str, names: Iterable[str], prefix: str = "") -> RecipeError:
    """Return the error for a name that is not one of a field."""
    names = list(names)
    listed = " --help lists all options." if prefix else f" Choose one of {', '.join(names)}."
    return RecipeError(f"{shorten(label, 200)} does not exist.{did_you_mean(name, names, prefix) or listed}")


def list_item(hint: Any) -> Any:
    """Return the type of the items of a list, or None if a field of this type does not hold a list."""
    items = (typing.get_args(member)[0] for member in _members(hint) if typing.get_origin(member) in (list, tuple))
    return next(items, None)


def allows_null(hint: Any) -> bool:
    """Return whether a field of this type may be null."""
    return type(None) in _members(hint)


def load_word(text: str) -> bool | int | float | str:
    """Return the boolean or number that a word stands for, or else the word itself."""
    if SCALARS["bool"].match(text):
        return text.lower() in ("true", "yes", "on")
    if SCALARS["int"].match(text):
        return int(text)
    return float(text) if SCALARS["float"].match(text) else text


def new_parser(config_type: type, **settings: Any) -> Any:
    """Return a jsonargparse parser with an option for every field.

    Args:
        config_type: the dataclass of the configuration.
        settings: arguments of ``jsonargparse.ArgumentParser``.
    """
    import jsonargparse

    # The YAML loader of jsonargparse would expand anchors in the strings of a recipe.
    jsonargparse.set_loader("powerpool", lambda text: text)
    parser = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode="powerpool", **settings)
    parser.add_class_arguments(config_type, as_group=False)
    return parser


@functools.cache
def _parser(config_type: type) -> Any:
    return new_parser(config_type)


@functools.cache
def _fields(config_type: type) -> tuple[tuple[str, Any], ...]:
    """Dotted names and types of the fields, of nested configurations, and of their fields."""
    hints, found = typing.get_type_hints(config_type), list[tuple[str, Any]]()
    for name in (field.name for field in dataclasses.fields(config_type) if field.init):
        found.append((name, hints[name]))
        if dataclasses.is_dataclass(hints[name]):
            found += [(f"{name}.{inner}", hint) for inner, hint in _fields(hints[name])]
    return tuple(found)


def _accepts_text(text: str, hint: Any) -> bool:
    members = _members(hint)
    return str in members or Path in members or text in (choice for one in members for choice in typing.get_args(one))


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


# ---- values ----------------------------------------------------------------------------------------------------------


def _load(value: Any, hint: Any) -> Any:
    """Replace words by the numbers and booleans that they stand for, in a field that does not hold text."""
    if isinstance(value, list | tuple):
        return [_load(item, list_item(hint)) for item in value]
    return load_word(value) if isinstance(value, str) and not _accepts_text(value, hint) else value


def _is_allowed(value: Any, hint: Any) -> bool:
    """Whether to pass a value on to jsonargparse, which would accept null and NaN in any field, and 0x10 as 16."""
    if isinstance(value, list | tuple):
        return all(_is_allowed(item, list_item(hint)) for item in value)
    if isinstance(value, str):
        return _accepts_text(value, hint) and NOT_TEXT.search(value) is None
    if isinstance(value, int | float):
        return abs(value) <= sys.float_info.max
    return value is not None or allows_null(hint)


def _misfit(label: str, value: Any, hint: Any) -> RecipeError:
    choices = [choice for member in _members(hint) for choice in typing.get_args(member) if isinstance(choice, str)]
    needed = describe(hint).replace("float", "finite float")
    return RecipeError(f"{label} must be {needed} (got {shown(value)}).{did_you_mean(str(value), choices)}")


def _as_plain(value: Any, name: str) -> Any:
    """A configuration as YAML has it; what could not be read back is refused."""
    if dataclasses.is_dataclass(value):
        inside = (field.name for field in dataclasses.fields(value) if field.init)
        return {inner: _as_plain(getattr(value, inner), f"{name}.{inner}") for inner in inside}
    if isinstance(value, list | tuple):
        return [_as_plain(item, name) for item in value]
    value = str(value) if isinstance(value, Path) else value
    if not _is_allowed(value, type(value)):
        raise RecipeError(f"{name[1:]} cannot be written to a recipe (got {shown(value)}).")
    return value


# ---- files -----------------------------------------------------------------------------------------------------------


def _read(recipe: str | Path) -> tuple[str, str]:
    """The text of a recipe, and what errors call it."""
    name, packaged = str(recipe).removesuffix(".yaml"), recipe_names()
    try:
        if os.path.isfile(recipe):
            return read_bytes(recipe, LARGEST).decode(), str(recipe)
        if name in packaged:
            file = resources.files("powerpool").joinpath("recipes", *f"{name}.yaml".split("/"))
            return file.read_text(encoding="utf-8"), f"recipe {name}"
    except RecordError as error:
        raise RecipeError(str(error)) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{recipe} is not UTF-8 text. Save the file as UTF-8.") from error
    problem = "is not a file" if os.path.exists(recipe) else "does not exist"
    listed = f"Name a YAML file, or one of {', '.join(packaged)}."
    raise RecipeError(f"Recipe {shown(str(recipe))} {problem}. {listed}{did_you_mean(name, packaged)}")


def _flatten(loader: Any, node: Any, prefix: str = "") -> Iterator[tuple[str, Any, int]]:
    """The fields of a YAML mapping and of those inside it: dotted name, value, line."""
    if node is None or node.id != "mapping":
        raise ValueError("it does not consist of fields and values, such as 'seed: 3'")
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if value.id == "mapping" and value.value:
            yield from _flatten(loader, value, f"{name}.")
        else:
            yield name, loader.construct_object(value, deep=True), key.start_mark.line + 1


def _require_plain(text: str) -> None:
    """Refuse YAML that could become large or odd, before anything is built from it."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        problem = f"more than {DEEPEST} levels of nesting" if depth > DEEPEST else ""
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            problem = "anchors (&), aliases (*) and tags (!) are not allowed; put such text in quotes"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


@functools.cache
def _yaml_classes() -> tuple[Any, Any]:
    """The loader and the dumper, for which words without quotes are what SCALARS says."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: typing.ClassVar[dict[Any, Any]] = {}

    class Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def represent_text(dumper: Dumper, text: str) -> Any:
        # Only double quotes keep all the line breaks of Unicode.
        return dumper.represent_scalar(f"{TAG}str", text, style=None if text.isprintable() else '"')

    for name, pattern in SCALARS.items():
        Loader.add_implicit_resolver(f"{TAG}{name}", pattern, None)
    Dumper.add_representer(str, represent_text)
    Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence(f"{TAG}seq", items, flow_style=True))
    return Loader, Dumper
