"""Templates of reports. Text from files is escaped here, so that it cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
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
class Table:
    """Headings and rows of plain text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> Markdown:
        """Return the table in Markdown."""
        lines = [map(escaped, self.headings), ["---"] * len(self.headings), *(map(escaped, row) for row in self.rows)]
        return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; every value is escaped, for HTML or for Markdown.

    The filters ``table`` and ``code`` of Markdown templates return Markdown.
    """
    is_html = ".html." in template
    text = _environment(is_html).get_template(template).render(**values).strip() + "\n"
    return text if is_html else re.sub(r"\n{3,}", "\n\n", text)


def escaped(text: str) -> str:
    """Return ``text`` on one line, with a backslash before each character that Markdown would read as markup."""
    line = re.sub(r"[\\`*\[\]<>|&~$#]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", " ".join(text.split()))
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
    made.filters |= {"table": Table.as_markdown, "code": _write_code}
    return made


def _finalize(value: object) -> str:
    return value if isinstance(value, Markdown) else escaped(str(value))


def _write_code(lines: Iterable[str]) -> Markdown:
    """Indented, and not fenced: no line can close it."""
    parts = (part for line in lines for part in line.splitlines())
    return Markdown("\n".join(f"    {part}" for part in parts))
