"""An extension of Griffe that converts the reStructuredText of docstrings into Markdown."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

HIDDEN = ("extra_repr",)
"""Methods that only torch calls."""
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
SHARED = re.compile(r"^( +)(\w+(?:, \w+)+):((?: .*|)\n(?:\1 +\S.*\n?)*)", re.MULTILINE)
ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([^`]+)`")
INLINE = re.compile(r":math:`([^`]+)`", re.DOTALL)
BLOCK = re.compile(
    r"^(?P<pad> *)\.\. math::(?P<first>.*)\n(?P<rest>(?:(?P=pad) +\S.*\n?|[ ]*\n(?=(?P=pad) +\S))*)", re.MULTILINE
)
TABLE = re.compile(r"^ *=+(?: +=+)+\n.*?\n *=+(?: +=+)+$(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


class Markdown(griffe.Extension):
    """Rewrite every docstring before its sections are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.name in HIDDEN:
            obj.docstring = None
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, obj)


def as_markdown(text: str, obj: griffe.Object) -> str:
    """Convert formulas, roles, tables and the title of examples."""
    text = TABLE.sub(convert_table, f"{text}\n")
    before, title, after = text.partition("Args:\n")
    text = before + title + SHARED.sub(split_arguments, after)
    text = BLOCK.sub(convert_formula, text)
    text = INLINE.sub(lambda found: rf"\({' '.join(found[1].split())}\)", text)
    text = ROLE.sub(lambda found: make_link(found[1], obj), text)
    return EXAMPLE.sub(r"\1Examples:", text)


def split_arguments(found: re.Match[str]) -> str:
    """Split arguments that share a line: the parser reads one name at a time."""
    pad, names, text = found.groups()
    return "".join(f"{pad}{name}:{text.rstrip()}\n" for name in names.split(", "))


def convert_formula(found: re.Match[str]) -> str:
    r"""Convert ``.. math::`` and the indented lines below it to ``\[ ... \]``."""
    latex = " ".join((found["first"] + "\n" + found["rest"]).split())
    return f"\n{found['pad']}\\[{latex}\\]\n\n"


def make_link(name: str, obj: griffe.Object) -> str:
    """Return a link to the documentation of a name, or the name if it is not documented."""
    short = name.rpartition(".")[2] if name.startswith("powerpool") else name
    return f'<autoref optional identifier="{resolve_name(name, obj)}">`{short}`</autoref>'


def resolve_name(name: str, obj: griffe.Object) -> str:
    """Return the full path of a name, looked up in the object and in what contains it."""
    if name.startswith("powerpool"):
        return name
    parts = obj.path.split(".")
    places = (".".join([*parts[:number], name]) for number in range(len(parts), 0, -1))
    return next((path for path in (find_definition(place, obj) for place in places) if path), name)


def find_definition(path: str, obj: griffe.Object) -> str | None:
    """Return the path under which an object is defined, which pages use; None if there is none."""
    try:
        found = obj.modules_collection[path]
        return str(found.target_path if found.is_alias else found.path)
    except (KeyError, AttributeError, griffe.GriffeError):
        return None


def convert_table(found: re.Match[str]) -> str:
    """Convert a table between lines of ``=``; a row whose first cell is empty continues the one above."""
    lines = textwrap.dedent(found[0]).splitlines()
    starts = [rule.start() for rule in re.finditer("=+", lines[0])]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    rows: list[list[str]] = []
    head = 0
    for line in lines[1:-1]:
        if set(line) <= {"=", " "} and line.strip():
            head = len(rows)
            continue
        cells = [line[start:end].strip() for start, end in spans]
        if rows and not cells[0] and len(rows) > head:
            rows[-1] = [f"{above} {cell}".strip() for above, cell in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    titles = rows[:head] or [[""] * len(spans)]
    marked = [*titles, ["---"] * len(spans), *rows[head:]]
    return "\n" + "\n".join(f"| {' | '.join(row)} |" for row in marked) + "\n"
