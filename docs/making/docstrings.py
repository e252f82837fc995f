"""An extension of Griffe: the reStructuredText of docstrings as the Markdown that the site is made of."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

UNSAID = ("extra_repr",)
"""Methods that torch calls, and nobody else."""
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
SHARED = re.compile(r"^( +)(\w+(?:, \w+)+):((?: .*|)\n(?:\1 +\S.*\n?)*)", re.MULTILINE)
ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([^`]+)`")
INLINE = re.compile(r":math:`([^`]+)`", re.DOTALL)
BLOCK = re.compile(
    r"^(?P<pad> *)\.\. math::(?P<first>.*)\n(?P<rest>(?:(?P=pad) +\S.*\n?|[ ]*\n(?=(?P=pad) +\S))*)", re.MULTILINE
)
TABLE = re.compile(r"^ *=+(?: +=+)+\n.*?\n *=+(?: +=+)+$(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


class Markdown(griffe.Extension):
    """Rewrites every docstring before its sections are read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.name in UNSAID:
            obj.docstring = None
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, obj)


def as_markdown(text: str, obj: griffe.Object) -> str:
    """Formulas, roles, tables and the title of examples."""
    text = TABLE.sub(table, f"{text}\n")
    before, title, after = text.partition("Args:\n")
    text = before + title + SHARED.sub(one_by_one, after)
    text = BLOCK.sub(formula, text)
    text = INLINE.sub(lambda found: rf"\({' '.join(found[1].split())}\)", text)
    text = ROLE.sub(lambda found: reference(found[1], obj), text)
    return EXAMPLE.sub(r"\1Examples:", text)


def one_by_one(found: re.Match[str]) -> str:
    """Arguments that share a line, each with that line: the parser knows one name at a time."""
    pad, names, text = found.groups()
    return "".join(f"{pad}{name}:{text.rstrip()}\n" for name in names.split(", "))


def formula(found: re.Match[str]) -> str:
    r"""``.. math::`` and the lines that are indented below it, as ``\[ ... \]``."""
    latex = " ".join((found["first"] + "\n" + found["rest"]).split())
    return f"\n{found['pad']}\\[{latex}\\]\n\n"


def reference(name: str, obj: griffe.Object) -> str:
    """A link to where the name is documented, and its mere name where that is nowhere."""
    short = name.rpartition(".")[2] if name.startswith("powerpool") else name
    return f'<autoref optional identifier="{meant(name, obj)}">`{short}`</autoref>'


def meant(name: str, obj: griffe.Object) -> str:
    """The whole path of a name: that of a thing in the object, or else in what the object is part of."""
    if name.startswith("powerpool"):
        return name
    parts = obj.path.split(".")
    places = (".".join([*parts[:number], name]) for number in range(len(parts), 0, -1))
    return next((path for path in (where(place, obj) for place in places) if path), name)


def where(path: str, obj: griffe.Object) -> str | None:
    """Where the thing of that path is written, which may be elsewhere: pages know it by that. None where it is not."""
    try:
        found = obj.modules_collection[path]
        return str(found.target_path if found.is_alias else found.path)
    except (KeyError, AttributeError, griffe.GriffeError):
        return None


def table(found: re.Match[str]) -> str:
    """A table of lines of ``=``: columns where the lines have gaps; cells that go on stand below an empty one."""
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
