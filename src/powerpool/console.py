"""Output of commands: lines and tables for people, one JSON document for programs, progress bars on terminals.

There are two rich consoles: :func:`console` is stdout, for results, and :func:`notes` is stderr, for progress and
remarks. The command line sets how much they print with :func:`output_settings`:

- ``quiet``: both are silent; only errors are printed.
- ``as_json``: :func:`console` is silent, and the result given to :func:`emit` is printed instead.

Files and pipes get plain lines without colours and bars, and tables of the same width on every machine. ``NO_COLOR``
removes the colours of a terminal, ``FORCE_COLOR`` adds them to a pipe.

Text that others wrote, such as class names and paths, goes through :func:`printable` or :func:`cell`, which show
control characters instead of sending them to the terminal. All functions of this module that print do so.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn, TaskID
    from rich.text import Text
    from typing_extensions import Self

WIDTH = 140
"""Characters of a line in a file or a pipe: enough for every table."""
PATIENCE = 10.0
"""Seconds before progress is printed where there is no bar."""
_NOTHING, _ELSEWHERE = object(), object()


@dataclass
class Output:
    """How much is printed, and the result that is printed as JSON."""

    quiet: bool = False
    as_json: bool = False
    debug: bool = False
    _result: Any = _NOTHING
    _consoles: dict[bool, tuple[object, Console]] = field(default_factory=dict)

    @property
    def document(self) -> str:
        """The result as JSON: null if the command has none, and "" if JSON was not requested."""
        if not self.as_json or self._result is _ELSEWHERE:
            return ""
        result = None if self._result is _NOTHING else self._result
        return json.dumps(result, indent=1, allow_nan=False, default=_as_plain) + "\n"

    def keep(self, result: Any) -> None:
        """Store the result of the command."""
        if self._result is not _NOTHING:
            raise RuntimeError("A command has one result: emit() was called twice.")
        self._result = result

    def console(self, stderr: bool) -> Console:
        """Return the console of a stream: one per stream, so that lines are printed above its bars."""
        stream = sys.stderr if stderr else sys.stdout
        stream = getattr(stream, "rich_proxied_file", stream)  # rich replaces the stream while it shows a bar
        made_for, made = self._consoles.get(stderr, (None, None))
        if made is None or made_for is not stream:
            made = _make_console(stream, stderr)
            self._consoles[stderr] = stream, made
        made.quiet = self.quiet or (self.as_json and not stderr)
        return made


_current = Output()


@contextlib.contextmanager
def output_settings(*, quiet: bool = False, as_json: bool = False, debug: bool = False) -> Iterator[Output]:
    """Set what is printed inside the context.

    With ``as_json`` only the document reaches stdout: what other packages print goes to stderr. With ``quiet`` it is
    discarded.

    Example:
        >>> with output_settings(as_json=True) as output:
        ...     print_line("test accuracy 90.0 %")
        ...     emit({"accuracy": 90.0, "run": Path("runs/one")})
        >>> print(output.document, end="")
        {
         "accuracy": 90.0,
         "run": "runs/one"
        }
    """
    global _current  # noqa: PLW0603  # one setting for the process, as its two streams are
    before, _current = _current, Output(quiet, as_json, debug)
    try:
        with contextlib.ExitStack() as stack:
            if quiet or as_json:
                sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8")) if quiet else sys.stderr
                stack.enter_context(contextlib.redirect_stdout(sink))
            if quiet:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            yield _current
    finally:
        _current = before


def current_settings() -> dict[str, bool]:
    """Return the arguments with which :func:`output_settings` makes another process print as much as this one."""
    return {"quiet": _current.quiet, "as_json": _current.as_json, "debug": _current.debug}


def is_quiet() -> bool:
    """Return whether only errors are printed."""
    return _current.quiet


def console() -> Console:
    """Return the console of stdout, for the result."""
    return _current.console(stderr=False)


def notes() -> Console:
    """Return the console of stderr, for progress and remarks."""
    return _current.console(stderr=True)


def print_line(text: str, on: Console | None = None) -> None:
    """Print one line of the result, or one line on another console: without markup, and never wrapped."""
    on = console() if on is None else on
    on.print(printable(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print one line to stderr, beside the result."""
    print_line(text, notes())


def print_failure(text: str) -> None:
    """Print one line about a failure after which the command continues, even with ``quiet``."""
    if _current.quiet:
        sys.stderr.write(f"{printable(text)}\n")
    else:
        print_note(text)


def print_text(text: str) -> None:
    """Print a result that is a text itself, such as CSV."""
    if not (_current.quiet or _current.as_json):
        sys.stdout.write(printable(text))


def printable(text: str) -> str:
    r"""Return a text without control characters, which could change the terminal: they are written as escapes.

    Example:
        >>> printable("a\x1b[31mb.png")
        'a\\x1b[31mb.png'
    """
    return "".join(one if one in "\n\t" else one_line(one) for one in text)


def one_line(text: str) -> str:
    r"""Return a text as one printable line, so that it cannot add lines that look like ours.

    Example:
        >>> one_line("a\nb\x1b.png")
        'a\\nb\\x1b.png'
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class Bold(str):
    """A text that tables emphasize: in bold in a report; on a terminal its row is red."""

    __slots__ = ()


@dataclass(frozen=True)
class TextTable:
    """A table for the terminal."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: Sequence[str] = ()
    """Columns that are aligned to the left; all others hold numbers."""
    caption: str = ""


def print_table(table: TextTable) -> None:
    """Print a table; texts may come from files."""
    from rich.table import Table

    shown = Table(title=cell(table.title) if table.title else None, caption=table.caption or None)
    for name in table.columns:
        shown.add_column(cell(name), justify="left" if name in table.text_columns else "right")
    for row in table.rows:
        shown.add_row(*map(cell, row), style="red" if any(isinstance(text, Bold) for text in row) else None)
    console().print(shown)


def cell(text: str) -> Text:
    """Return a text that others wrote for a table or its title: one printable line without markup."""
    from rich.text import Text

    return Text(one_line(text))


def emit(result: Any) -> None:
    """Set the result for ``--json``: text, finite numbers, paths, lists and dicts. At most once per command."""
    if _current.as_json:
        _current.keep(result)


def delegate_result() -> list[str]:
    """Leave the result to another process, and return the flags to start it with."""
    given = {"--quiet": _current.quiet, "--json": _current.as_json, "--debug": _current.debug}
    emit(_ELSEWHERE)
    return [flag for flag, is_given in given.items() if is_given]


@contextlib.contextmanager
def show_status(text: str, on: Console | None = None) -> Iterator[None]:
    """Show a spinner on a terminal while the context lasts; nothing elsewhere."""
    on = notes() if on is None else on
    if on.is_interactive and not on.quiet:
        with on.status(text):
            yield
    else:
        yield


class Bars:
    """Progress bars on a terminal; elsewhere one line at each quarter of a task that takes longer.

    Work that starts anew under the same bar, such as the pooling of the next grid point, prints at most one line every
    ten seconds.

    Args:
        on: the console; stderr by default.
        left: whether to show the remaining time.
        lines: whether to print lines where there are no bars.
        stay: whether the bars remain on the screen at the end.
    """

    def __init__(self, on: Console | None = None, *, left: bool = True, lines: bool = True, stay: bool = False) -> None:
        from rich.progress import Progress

        self.console = notes() if on is None else on
        shown = self.console.is_interactive and not self.console.quiet
        self._bars = Progress(
            *progress_columns(left=left),
            console=self.console,
            transient=not stay,
            disable=not shown,
            redirect_stdout=False,
        )
        self._lines = lines and not shown
        self._start = self._printed = time.monotonic()
        self._quarters: dict[TaskID, int] = {}
        self._repeated: set[TaskID] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the display."""
        self._bars.start()

    def stop(self) -> None:
        """Stop the display."""
        self._bars.stop()

    def add(self, text: str, total: int) -> TaskID:
        """Add a bar."""
        return self._bars.add_task(text, total=total)

    def update(
        self, bar: TaskID, done: int | None = None, *, total: int | None = None, text: str | None = None
    ) -> None:
        """Set how many of how many are done, and the text."""
        self._bars.update(bar, completed=done, total=total, description=text)
        if self._lines:
            self._print_quarter(bar)

    def advance(self, bar: TaskID) -> None:
        """Add one to what is done."""
        self.update(bar, int(self._bars.tasks[self._bars.task_ids.index(bar)].completed) + 1)

    def _print_quarter(self, bar: TaskID) -> None:
        task = self._bars.tasks[self._bars.task_ids.index(bar)]
        quarter = int(4 * task.completed // task.total) if task.total else 0
        if quarter < self._quarters.get(bar, 0):
            self._repeated.add(bar)
            self._quarters[bar] = quarter
        now = time.monotonic()
        since = self._printed if bar in self._repeated else self._start
        if quarter > self._quarters.get(bar, 0) and now - since > PATIENCE:
            self._quarters[bar], self._printed = quarter, now
            print_line(f"{task.description}: {int(task.completed)} of {int(task.total or 0)}", self.console)


def progress_columns(*, left: bool = False) -> tuple[ProgressColumn, ...]:
    """Return the columns of a bar: text, bar, count, elapsed time, and with ``left`` the remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    # Text may contain brackets, which are not markup.
    first = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return (*first, TextColumn("left"), TimeRemainingColumn()) if left else first


def _make_console(stream: TextIO | None, stderr: bool) -> Console:
    from rich.console import Console

    is_terminal = stream is not None and stream.isatty()
    plain = not is_terminal and bool(os.environ.get("NO_COLOR"))
    width = None if is_terminal or os.environ.get("COLUMNS", "").isdigit() else WIDTH
    # Bars move the cursor, which a pipe with forced colours cannot do.
    interactive = is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return Console(
        emoji=False, stderr=stderr, width=width, force_interactive=interactive, force_terminal=False if plain else None
    )


def _as_plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"A result may hold text, numbers, lists, dicts and paths (got {type(value).__name__}).")
