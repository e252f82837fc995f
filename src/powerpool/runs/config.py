"""Recipes: YAML files of the fields of a typed configuration, checked field by field.

A configuration is a frozen dataclass whose fields are texts, numbers, paths, choices, lists of them, or configurations
in turn. A field inside another has a dotted name, ``model.hidden``. Everything that a file can get wrong is a
:class:`RecipeError` that names the file, the line and the field; checks of the configuration itself run last.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from powerpool.errors import PowerPoolError, RecordError, did_you_mean, shorten, shown
from powerpool.files import read_bytes

Config = TypeVar("Config")

LARGEST = 1_000_000
"""Characters of a recipe. A hundred lines have about 3,000; what is larger was not meant."""
DEEPEST = 20
"""Levels of nesting of a recipe. A configuration has two or three."""

WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})")
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~", ""), None),
}
BEFORE_LAST_PART = re.compile(r".*[./]", re.DOTALL)
_MISFIT = object()


class RecipeError(PowerPoolError, ValueError):
    """A recipe cannot be read, or a value in it is not what its field needs."""


@dataclass(frozen=True)
class Setting:
    """A value for a field, and where it was found: ``my.yaml, line 3``, or nothing where it was given directly."""

    value: Any
    place: str = ""


def read_recipe(recipe: str | Path, config_type: type[Config], changes: Mapping[str, Any] | None = None) -> Config:
    """The configuration that a recipe describes; fields that it does not name have their defaults.

    Args:
        recipe: a YAML file, or the name of a recipe that ships with the package, such as ``graph/MUTAG``.
        config_type: the dataclass of the configuration.
        changes: values that take the place of those in the recipe, by dotted name: ``{"training.epochs": 3}``.
    """
    settings = read_settings(recipe, config_type)
    hints = field_types(config_type)
    for name, value in (changes or {}).items():
        if name not in hints:
            near = did_you_mean(name, hints) or f" The fields are {', '.join(hints)}."
            raise RecipeError(f"unknown field {name}.{near}")
        settings[name] = Setting(convert(value, hints[name], name))
    return make_config(config_type, settings)


def recipe_names() -> list[str]:
    """The recipes that ship with the package. Each lies in the folder of its pipeline."""
    folders = (folder for folder in (resources.files("powerpool") / "recipes").iterdir() if folder.is_dir())
    files = ((folder.name, file.name) for folder in folders for file in folder.iterdir())
    return sorted(f"{folder}/{file.removesuffix('.yaml')}" for folder, file in files if file.endswith(".yaml"))


def to_yaml(config: Any) -> str:
    """The text of a recipe that is read back as an equal configuration."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        # PyYAML quotes what it would take for a number itself. It does not take 1e-2 for one, and here that is one.
        style = None if resolve(text) == text else "'"
        # Only in double quotes does it write all of the line breaks of Unicode as it reads them.
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style if text.isprintable() else '"')

    def represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)

    Dumper.add_representer(str, represent_text)
    Dumper.add_representer(list, represent_list)
    text: str = yaml.dump(_plain(config, ""), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def field_types(config_type: type) -> dict[str, Any]:
    """The type of every field, by dotted name, in the order of the fields."""
    found: dict[str, Any] = {}
    for name, hint in _own_fields(config_type).items():
        if dataclasses.is_dataclass(hint):
            found |= {f"{name}.{inner}": of_inner for inner, of_inner in field_types(typing.cast("type", hint)).items()}
        else:
            found[name] = hint
    return found


def read_settings(recipe: str | Path, config_type: type) -> dict[str, Setting]:
    """The values that a recipe gives, by dotted name: each is of the type of its field."""
    text, source = _read(recipe)
    node = _compose(text, source)
    if node is None:
        raise RecipeError(f"{source} is empty. {_example(config_type)}")
    return dict(_settings(node, config_type, "", source, _line(node)))


def make_config(config_type: type[Config], settings: Mapping[str, Setting]) -> Config:
    """A configuration with these values, and defaults elsewhere.

    What its own checks refuse is told with the place in the recipe, unless the recipe would pass by itself.
    """
    try:
        return typing.cast("Config", _build(config_type, settings, ""))
    except PowerPoolError as error:
        blamed, from_recipe = error, {name: setting for name, setting in settings.items() if setting.place}
        if not from_recipe:
            raise
        if len(from_recipe) < len(settings):
            try:
                _build(config_type, from_recipe, "")
            except PowerPoolError as alone:
                blamed = alone
            else:
                raise
        field = str(blamed).partition(" ")[0]
        if field in from_recipe:
            place = from_recipe[field].place
        else:  # several fields together: the file without a line
            place = next(iter(from_recipe.values())).place.rpartition(", line ")[0]
        raise RecipeError(f"{place}: {blamed}") from blamed


def convert(value: Any, hint: Any, name: str, given: str = "") -> Any:
    """The value as a field of this type holds it: a whole number may stand for a number, a text for a path.

    Args:
        value: what was given.
        hint: the type of the field.
        name: what to call the field in an error.
        given: what to call the value in an error, if not by its ``repr``.
    """
    members = _members(hint)
    for member in members:
        kind = typing.get_origin(member)
        if kind not in (list, tuple):
            found = _as_member(value, member)
            if found is not _MISFIT:
                return found
        elif isinstance(value, list | tuple):
            item = typing.get_args(member)[0]
            return kind(convert(part, item, f"{name}[{position}]") for position, part in enumerate(value))
    choices = [
        choice for member in members if typing.get_origin(member) is Literal for choice in typing.get_args(member)
    ]
    near = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
    raise RecipeError(f"{name} must be {describe(hint)} (got {given or shown(value)}).{near}")


def convert_word(word: str, hint: Any, name: str) -> Any:
    """A word that was typed as a field of this type holds it: ``3`` is a number, and a text where one is needed."""
    value = word if word in ("", "~") else resolve(word)  # an unset variable of the shell, its home: no null
    return convert(value if _fits(value, hint) else word, hint, name)


def resolve(text: str) -> Any:
    """What a word without quotes means: nothing, true or false, a number, or else itself.

    This is what people mean, and less than YAML 1.1 allows: there ``010`` is 8 and ``1:30`` is 90, but ``1e-2`` a text.
    """
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if WHOLE.fullmatch(text):
        return int(text)
    if NUMBER.fullmatch(text):
        return float(text)
    return text


def describe(hint: Any) -> str:
    """A type in words: "a whole number or null"."""
    return " or ".join(_describe_member(member) for member in _members(hint))


def list_item(hint: Any) -> Any:
    """The type of the items of a list, or None if a field of this type holds none."""
    items = (typing.get_args(member)[0] for member in _members(hint) if typing.get_origin(member) in (list, tuple))
    return next(items, None)


def _own_fields(config_type: type) -> dict[str, Any]:
    hints = typing.get_type_hints(config_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_type) if field.init}


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, with None as the last of them."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    return tuple(sorted(typing.get_args(hint), key=lambda member: member is type(None)))


def _as_member(value: Any, member: Any) -> Any:
    """The value as one of this type, or ``_MISFIT``."""
    fits: bool = type(value) is member
    if typing.get_origin(member) is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in typing.get_args(member))
    elif member is str:
        fits = isinstance(value, str) and _is_text(value)
    elif member is Path:
        fits = isinstance(value, str | Path) and str(value) != "" and "\0" not in str(value)
        value = Path(value) if fits else value
    elif member is float and type(value) in (int, float):
        try:
            value = float(value)
        except OverflowError:  # a whole number beyond 1e308, which no file but a caller can give
            return _MISFIT
        fits = math.isfinite(value)
    elif member not in (bool, int, float, type(None)):
        raise TypeError(f"A configuration cannot have a field of the type {member}.")
    return value if fits else _MISFIT


def _fits(value: Any, hint: Any) -> bool:
    try:
        convert(value, hint, "")
    except RecipeError:
        return False
    return True


def _is_text(value: str) -> bool:
    """Whether files and terminals can hold it: no half of a surrogate pair, no NUL."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _describe_member(member: Any) -> str:
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", Path: "a path"}
    if typing.get_origin(member) is Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(member))
    if typing.get_origin(member) in (list, tuple):
        several = {int: "whole numbers", float: "finite numbers", str: "texts", Path: "paths"}
        item = typing.get_args(member)[0]
        return f"a list of {several.get(item) or 'values, each ' + describe(item)}"
    return "null" if member is type(None) else words[member]


def _example(config_type: type) -> str:
    return f"A recipe names fields and their values, such as '{next(iter(_own_fields(config_type)), 'name')}: ...'."


def _read(recipe: str | Path) -> tuple[str, str]:
    """The text of a recipe, and what to call it."""
    name = str(recipe).removesuffix(".yaml")
    packaged = recipe_names()
    try:
        # The functions of os.path, unlike the methods of Path, are calm about names that no file can have.
        if os.path.isfile(recipe):
            source = str(recipe)
            _require_short(source, os.path.getsize(recipe))
            raw = read_bytes(recipe, LARGEST)
        elif name in packaged:
            source = f"recipe {name}"
            raw = (resources.files("powerpool") / "recipes").joinpath(*f"{name}.yaml".split("/")).read_bytes()
        elif os.path.exists(recipe):
            raise RecipeError(f"{recipe} is not a file, but a recipe is a YAML file.")
        else:
            listed = f"those that ship with powerpool are {', '.join(packaged)}" if packaged else "powerpool ships none"
            raise RecipeError(
                f"There is no recipe {shown(str(recipe))}: no such file, and {listed}.{did_you_mean(name, packaged)}"
            )
    except OSError as error:
        raise RecipeError(f"Cannot read {recipe}: {error.strerror or error}.") from error
    except RecordError as error:
        raise RecipeError(str(error)) from error
    try:
        return raw.decode("utf-8"), source
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{source}, line {line}: this is not text in UTF-8. Save the file as UTF-8.") from error


def _require_short(source: str, size: int) -> None:
    if size > LARGEST:
        raise RecipeError(f"{source} is no recipe: it has {size:,} bytes, and a recipe at most {LARGEST:,}.")


def _compose(text: str, source: str) -> Any:
    """The tree of a YAML text, or None for an empty one. Whatever could make it large or odd is refused before."""
    import yaml

    try:
        _require_simple(yaml.parse(text, Loader=yaml.SafeLoader), source)
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecipeError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        raise RecipeError(f"{source}{line}: this is not YAML: {error.problem or error.context}.") from error
    except yaml.reader.ReaderError as error:
        line = f", line {text.count(chr(10), 0, error.position) + 1}"
        raise RecipeError(f"{source}{line}: this is not YAML: there is a character that no text has.") from error
    except (ValueError, OverflowError) as error:  # the scanner passes escapes like "\UFFFFFFFF" on to chr
        raise RecipeError(f"{source} is not YAML: {error}.") from error


def _require_simple(events: Iterator[Any], source: str) -> None:
    import yaml

    depth = documents = 0
    for event in events:
        place = f"{source}, line {event.start_mark.line + 1}"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if getattr(event, "anchor", None) is not None:
            raise RecipeError(
                f"{place}: a recipe has no anchors (&) and aliases (*). Write the value out, or put a text in quotes."
            )
        if getattr(event, "tag", None) is not None:
            raise RecipeError(f"{place}: a recipe has no tags (!). Leave it out, or put a text in quotes.")
        if depth > DEEPEST:
            raise RecipeError(f"{place}: this is nested too deep for a recipe: more than {DEEPEST} levels.")
        if documents > 1:
            raise RecipeError(f"{place}: a recipe is one document. Remove what follows, or make it a file of its own.")


def _settings(node: Any, config_type: type, prefix: str, source: str, line: int) -> Iterator[tuple[str, Setting]]:
    """The values of a mapping and of those inside it."""
    if node.id != "mapping":
        wanted = f"{prefix[:-1]} must be a group of fields, indented below it" if prefix else _example(config_type)[:-1]
        raise RecipeError(f"{source}, line {line}: {wanted} (got {_given(node)}).")
    hints = _own_fields(config_type)
    seen: set[str] = set()
    for key, value in node.value:
        place = f"{source}, line {_line(key)}"
        if key.id != "scalar":
            raise RecipeError(f"{place}: the name of a field is a word (got {_given(key)}).")
        name = f"{prefix}{key.value}"
        if key.value not in hints:
            raise RecipeError(f"{place}: {_unknown(key.value, config_type, prefix)}")
        if key.value in seen:
            raise RecipeError(f"{place}: {name} is given twice. Remove one of the two.")
        seen.add(key.value)
        hint = hints[key.value]
        if dataclasses.is_dataclass(hint):
            yield from _settings(value, typing.cast("type", hint), f"{name}.", source, _line(key))
        else:
            yield name, Setting(_value(value, hint, name, source, _line(key)), place)


def _unknown(key: str, config_type: type, prefix: str) -> str:
    fields, below = list(_own_fields(config_type)), list(field_types(config_type))
    if key in below:  # model.hidden as one key
        group, _, inner = key.rpartition(".")
        return f"{prefix}{key} takes two lines: '{group}:', and indented below it '{inner}: ...'."
    near = did_you_mean(key, fields, prefix) or did_you_mean(key, below, prefix)
    of_group = f" of {prefix[:-1]}" if prefix else ""
    return f"unknown field {prefix}{shorten(key)}.{near} The fields{of_group} are {', '.join(fields)}."


def _value(node: Any, hint: Any, name: str, source: str, line: int) -> Any:
    item = list_item(hint)
    if node.id == "sequence" and item is not None:
        parts = enumerate(node.value)
        found = [_value(part, item, f"{name}[{position}]", source, _line(part)) for position, part in parts]
        return convert(found, hint, name)
    name = f"{source}, line {line}: {name}"
    if node.id != "scalar":
        raise RecipeError(f"{name} must be {describe(hint)} (got {_given(node)}).")
    value = node.value if node.style else resolve(node.value)
    try:
        return convert(value, hint, name, _given(node))
    except RecipeError as error:
        if value is None or isinstance(value, str) or not _fits(node.value, hint):
            raise
        raise RecipeError(f"{error} Put it in quotes: '{shorten(node.value)}'.") from None


def _given(node: Any) -> str:
    """A node of YAML as a message shows it."""
    if node.id != "scalar":
        return "a list" if node.id == "sequence" else "a group of fields"
    if node.style:
        return f"the text {shown(node.value)}"
    return shown(node.value) if isinstance(resolve(node.value), str) else shorten(node.value) or "nothing"


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _build(config_type: type, settings: Mapping[str, Setting], prefix: str, base: Any = None) -> Any:
    """A configuration of these settings; the other fields are those of ``base``, or else have their defaults."""
    values: dict[str, Any] = {}
    fields = {field.name: field for field in dataclasses.fields(config_type)}
    for name, hint in _own_fields(config_type).items():
        start = _default(fields[name]) if base is None else getattr(base, name)
        missing = start is dataclasses.MISSING
        full = f"{prefix}{name}"
        if full in settings:
            values[name] = settings[full].value
        elif dataclasses.is_dataclass(hint):
            if missing or any(key.startswith(f"{full}.") for key in settings):
                values[name] = _build(typing.cast("type", hint), settings, f"{full}.", None if missing else start)
        elif missing:
            raise RecipeError(f"{full} is missing: it must be {describe(hint)}.")
    return config_type(**values) if base is None else dataclasses.replace(base, **values)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain(config: Any, prefix: str) -> dict[str, Any]:
    """The fields of a configuration as YAML has them; what could not be read back is refused."""
    found: dict[str, Any] = {}
    for name, hint in _own_fields(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(hint):
            found[name] = _plain(value, f"{prefix}{name}.")
        else:
            found[name] = _plain_value(convert(value, hint, f"{prefix}{name}"), f"{prefix}{name}")
    return found


def _plain_value(value: Any, name: str) -> Any:
    if isinstance(value, list | tuple):
        return [_plain_value(part, name) for part in value]
    return convert(str(value), str, name) if isinstance(value, Path) else value
