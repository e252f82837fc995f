"""Markdown pages, and the templates of reports. Text from files is escaped here, so that it cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

SHORT = 24
"""Cells of at most this many characters are not broken into lines."""


class Bold(str):
    """A text in bold."""

    __slots__ = ()


class Markdown(str):
    """A text that is Markdown already, and is not escaped again."""

    __slots__ = ()


@dataclass(frozen=True)
class Heading:
    text: str
    level: int


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Items:
    texts: Sequence[str]


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """An image file in the folder of the page."""

    title: str
    path: Path


Block = Heading | Text | Items | Table | Picture


def markdown(blocks: Iterable[Block]) -> str:
    """Return a page as Markdown."""
    return "\n\n".join(map(_write_block, blocks)) + "\n"


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; every value is escaped, as HTML or as Markdown by the name of the template.

    Filters of Markdown templates, which return Markdown, are ``table``, ``code`` and ``image``.
    """
    is_html = ".html." in template
    text = _environment(is_html).get_template(template).render(**values).strip() + "\n"
    return text if is_html else re.sub(r"\n{3,}", "\n\n", text)


def escaped(text: str) -> str:
    """Return ``text`` on one line, with a backslash before each character that Markdown would read as markup."""
    line = re.sub(r"[\\`*\[\]<>|&~$#]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
    return f"**{line}**" if isinstance(text, Bold) else line


@cache
def _environment(is_html: bool) -> Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("powerpool.report"),
        autoescape=is_html,
        finalize=None if is_html else _finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["bold"] = lambda value: isinstance(value, Bold)
    made.tests["short"] = lambda value: len(value) <= SHORT
    made.filters |= {"table": _write_block, "image": _write_block, "code": _write_code}
    return made


def _finalize(value: Any) -> str:
    return value if isinstance(value, Markdown) else _escape_line(value if isinstance(value, str) else str(value))


def _write_block(block: Block) -> Markdown:
    match block:
        case Heading(text, level):
            return Markdown(f"{'#' * level} {_escape_line(text)}")
        case Text(text):
            return Markdown(_escape_line(text))
        case Items(texts):
            return Markdown("\n".join(f"- {_escape_line(text)}" for text in texts))
        case Table(headings, rows):
            lines = [map(escaped, headings), ["---"] * len(headings), *(map(escaped, row) for row in rows)]
            return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))
        case Picture(title, path):
            return Markdown(f"![{escaped(title)}]({path.name})")


def _write_code(lines: Iterable[str]) -> Markdown:
    """Indented, and not fenced: no line can close it."""
    parts = (part for line in lines for part in line.splitlines())
    return Markdown("\n".join(f"    {part}" for part in parts))


def _escape_line(text: str) -> str:
    """Escape a text at the beginning of a line, where some characters start a list or a rule."""
    return re.sub(r"^(\d*)(?=[.)+-](?:[ -]|$))", r"\1\\", escaped(text))
