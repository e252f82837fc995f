"""Tables, progress bars and files of predictions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from powerpool.console import Bars, cell, console, print_note, print_text
from powerpool.files import write_json, write_text
from powerpool.tasks.base import TextTable, Watch


@contextmanager
def show_progress() -> Iterator[Watch]:
    """Show a bar for each kind of work that is reported."""
    with Bars() as bars:
        found: dict[str, Any] = {}

        def watch(what: str, done: int, total: int, remark: str = "") -> None:
            if what not in found:
                found[what] = bars.add(what, total)
            bars.update(found[what], done, total=total)
            if remark:
                print_note(remark)

        yield watch


def print_table(table: TextTable) -> None:
    """Print a table; texts may come from files."""
    from rich.table import Table

    shown = Table(title=cell(table.title) if table.title else None, caption=table.caption or None)
    for name in table.columns:
        shown.add_column(cell(name), justify="left" if name in table.text_columns else "right")
    for row in table.rows:
        shown.add_row(*map(cell, row))
    console().print(shown)


def write_answers(rows: Sequence[dict[str, Any]], out: str | Path | None) -> None:
    """Write one row per answer: to a .csv or .json file, or to stdout as CSV."""
    if out is not None and Path(out).suffix == ".json":
        write_json(out, list(rows))
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        print_text(text.getvalue())
    else:
        write_text(out, text.getvalue())
