"""What a command says: lines and tables for people, one JSON document for programs, bars where somebody looks.

Two consoles of rich: :func:`console` is stdout, for results, and :func:`notes` is stderr, for progress and remarks. How
much they say is one setting, which the command line makes with :func:`governed`:

- ``quiet``: both are silent; errors are the only thing that is still told.
- ``as_json``: :func:`console` is silent, and what the command gave to :func:`emit` is written instead.

Into a file or a pipe go plain lines: no colours, no bars, and tables of the same width on every machine. ``NO_COLOR``
takes the colours of a terminal away, ``FORCE_COLOR`` gives them to a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn, TaskID
    from rich.text import Text
    from typing_extensions import Self

WIDTH = 140
"""Characters of a line in a file or a pipe, where no terminal says how wide it is: enough for every table."""
PATIENCE = 10.0
"""Seconds without a word, where there is no bar: what takes less needs no progress."""
_NOTHING, _ELSEWHERE = object(), object()


@dataclass
class Output:
    """How much is said, and what is to be written as JSON."""

    quiet: bool = False
    as_json: bool = False
    debug: bool = False
    _result: Any = _NOTHING
    _consoles: dict[bool, tuple[object, Console]] = field(default_factory=dict)

    @property
    def document(self) -> str:
        """The result as JSON: null where the command gave none, and nothing where it is not asked for."""
        if not self.as_json or self._result is _ELSEWHERE:
            return ""
        result = None if self._result is _NOTHING else self._result
        return json.dumps(result, indent=1, allow_nan=False, default=_plain) + "\n"

    def keep(self, result: Any) -> None:
        """Take the result of the command, of which there is one."""
        if self._result is not _NOTHING:
            raise RuntimeError("A command has one result: emit() was called twice.")
        self._result = result

    def console(self, stderr: bool) -> Console:
        """The console of a stream, the same one as long as the stream is: lines then make room for a bar below them."""
        stream = sys.stderr if stderr else sys.stdout
        stream = getattr(stream, "rich_proxied_file", stream)  # while a bar is shown rich stands in for it
        made_for, made = self._consoles.get(stderr, (None, None))
        if made is None or made_for is not stream:
            made = _make(stream, stderr)
            self._consoles[stderr] = stream, made
        made.quiet = self.quiet or (self.as_json and not stderr)
        return made


_current = Output()


@contextlib.contextmanager
def governed(*, quiet: bool = False, as_json: bool = False, debug: bool = False) -> Iterator[Output]:
    """The setting of everything that is said inside.

    Nothing but the consoles and the document reaches stdout: what other packages print goes to stderr, or nowhere where
    it has to be quiet.

    Example:
        >>> with governed(as_json=True) as output:
        ...     say("test accuracy 90.0 %")
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


def setting() -> dict[str, bool]:
    """What :func:`governed` is given in another process, so that it says as much as this one."""
    return {"quiet": _current.quiet, "as_json": _current.as_json, "debug": _current.debug}


def is_quiet() -> bool:
    """Whether nothing but errors is told."""
    return _current.quiet


def console() -> Console:
    """Stdout, for the result: tables, and lines by :func:`say`."""
    return _current.console(stderr=False)


def notes() -> Console:
    """Stderr, for progress and remarks."""
    return _current.console(stderr=True)


def say(text: str) -> None:
    """One line of the result, as it is: brackets are no markup, and a long line is not broken."""
    write_line(text, console())


def note(text: str) -> None:
    """One line beside the result, as it is."""
    write_line(text, notes())


def complain(text: str) -> None:
    """One line of a failure after which the command goes on: it is told even where all else is quiet."""
    if _current.quiet:
        sys.stderr.write(f"{printable(text)}\n")
    else:
        note(text)


def write_line(text: str, to: Console) -> None:
    """One line as it is, on a console."""
    to.print(printable(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


def write_text(text: str) -> None:
    """A result that is a text itself, such as CSV, as it is to the last character."""
    if not (_current.quiet or _current.as_json):
        sys.stdout.write(text)


def printable(text: str) -> str:
    r"""A text whose characters show themselves and command no terminal: names of files may hold anything.

    Example:
        >>> printable("a\x1b[31mb.png")
        'a\\x1b[31mb.png'
    """
    return "".join(one if one in "\n\t" else one_line(one) for one in text)


def one_line(text: str) -> str:
    r"""A text that is printable and one line: a name cannot begin another, which would look like one of ours.

    Example:
        >>> one_line("a\nb\x1b.png")
        'a\\nb\\x1b.png'
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def cell(text: str) -> Text:
    """A text that others wrote, as it is, for a table or its title: brackets are no markup, and it is one line."""
    from rich.text import Text

    return Text(one_line(text))


def emit(result: Any) -> None:
    """The result of the command for a program: texts, finite numbers, paths, lists and objects. Once in a command."""
    if _current.as_json:
        _current.keep(result)


def delegate() -> list[str]:
    """Leave the result to another process, to which the setting is given as it is typed."""
    given = {"--quiet": _current.quiet, "--json": _current.as_json, "--debug": _current.debug}
    emit(_ELSEWHERE)
    return [flag for flag, is_given in given.items() if is_given]


@contextlib.contextmanager
def working(text: str, on: Console | None = None) -> Iterator[None]:
    """A sign of life on a terminal while something takes its time; nothing elsewhere."""
    on = notes() if on is None else on
    if on.is_interactive and not on.quiet:
        with on.status(text):
            yield
    else:
        yield


class Bars:
    """Bars on a terminal; elsewhere a line at each quarter of what takes longer, so that a log stays short.

    Args:
        on: the console.
        left: whether the bars tell how much time is left.
        lines: whether there are lines where there are no bars.
        stay: whether the bars are still there when all is done.
    """

    def __init__(self, on: Console | None = None, *, left: bool = True, lines: bool = True, stay: bool = False) -> None:
        from rich.progress import Progress

        self.console = notes() if on is None else on
        shown = self.console.is_interactive and not self.console.quiet
        self._bars = Progress(
            *columns(left=left), console=self.console, transient=not stay, disable=not shown, redirect_stdout=False
        )
        self._lines = lines and not shown
        self._start = time.monotonic()
        self._said: dict[TaskID, int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Show them from now on."""
        self._bars.start()

    def stop(self) -> None:
        """Show them no more."""
        self._bars.stop()

    def add(self, text: str, total: int) -> TaskID:
        """Another bar."""
        return self._bars.add_task(text, total=total)

    def update(
        self, bar: TaskID, done: int | None = None, *, total: int | None = None, text: str | None = None
    ) -> None:
        """Show that so many of so many are done, and under which text."""
        self._bars.update(bar, completed=done, total=total, description=text)
        if self._lines:
            self._say(bar)

    def advance(self, bar: TaskID) -> None:
        """One more is done."""
        self.update(bar, int(self._bars.tasks[self._bars.task_ids.index(bar)].completed) + 1)

    def _say(self, bar: TaskID) -> None:
        task = self._bars.tasks[self._bars.task_ids.index(bar)]
        quarter = int(4 * task.completed // task.total) if task.total else 0
        if quarter > self._said.get(bar, 0) and time.monotonic() - self._start > PATIENCE:
            self._said[bar] = quarter
            write_line(f"{task.description}: {int(task.completed)} of {int(task.total or 0)}", self.console)


def columns(*, left: bool = False) -> tuple[ProgressColumn, ...]:
    """What a bar consists of: the text, the bar, how many of how many, the time it took, and the time that is left."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    # Texts may contain brackets, which are no markup.
    first = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return (*first, TextColumn("left"), TimeRemainingColumn()) if left else first


def _make(stream: TextIO | None, stderr: bool) -> Console:
    from rich.console import Console

    is_terminal = stream is not None and stream.isatty()
    plain = not is_terminal and bool(os.environ.get("NO_COLOR"))
    width = None if is_terminal or os.environ.get("COLUMNS", "").isdigit() else WIDTH
    # Bars move the cursor: a pipe that is given colours is still no place for them.
    interactive = is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return Console(
        emoji=False, stderr=stderr, width=width, force_interactive=interactive, force_terminal=False if plain else None
    )


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"A result holds texts, numbers, lists, objects and paths (got {type(value).__name__}).")
