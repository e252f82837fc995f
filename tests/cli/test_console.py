"""What is said where: on a terminal, in a file, quietly, and as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path

import pytest

from powerpool import console as consoles
from powerpool.console import (
    Bars,
    complain,
    console,
    delegate,
    emit,
    governed,
    note,
    notes,
    say,
    working,
    write_line,
    write_text,
)


class Terminal(io.StringIO):
    """A text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@contextlib.contextmanager
def streams(out: io.StringIO | None = None, err: io.StringIO | None = None):
    """Both streams in the place of those of the process."""
    out, err = out or io.StringIO(), err or io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def table():
    from rich.table import Table

    found = Table("a" * 60, "b" * 60, title="[bold]wide[/]")
    found.add_row("1", "2", style="red")
    return found


def use_all() -> None:
    """Everything that a command can say."""
    say("result [of] :smile: " + "x" * 200)
    console().print(table())
    note("remark")
    write_text("a,b\r\n")
    sys.stdout.write("of another package\n")
    with Bars() as bars, working("busy"):
        bar = bars.add("things", 4)
        for _ in range(4):
            bars.advance(bar)
    emit({"file": Path("a/b"), "value": 1.5})


def test_into_a_file_go_plain_lines_that_are_not_broken():
    with governed() as output, streams() as (out, err):
        use_all()
    assert "\x1b" not in out.getvalue() + err.getvalue()
    assert out.getvalue().startswith("result [of] :smile: " + "x" * 200 + "\n")
    assert "a" * 60 in out.getvalue()  # no column was cut to the width of some terminal
    assert err.getvalue() == "remark\n"  # no bar, and no line for what takes no time
    assert output.document == ""


def test_json_is_the_only_thing_on_stdout():
    with streams() as (out, err):
        with governed(as_json=True) as output:
            use_all()
        sys.stdout.write(output.document)
    assert json.loads(out.getvalue()) == {"file": "a/b", "value": 1.5}
    assert err.getvalue() == "remark\nof another package\n"


def test_quiet_is_silent_and_still_gives_json():
    with streams() as (out, err), warnings.catch_warnings(record=True) as warned:
        with governed(quiet=True, as_json=True) as output:
            use_all()
            warnings.warn("of another package", stacklevel=1)
        assert (out.getvalue(), err.getvalue(), warned) == ("", "", [])
        with governed(quiet=True):
            complain("this \x1b[31mfailed")
        assert err.getvalue() == "this \\x1b[31mfailed\n"
    assert json.loads(output.document)["value"] == 1.5


def test_a_terminal_has_colours_and_bars_and_what_went_by_is_wiped_away():
    with governed(), streams(Terminal(), Terminal()) as (out, err):
        use_all()
    assert "\x1b[31m" in out.getvalue()
    assert "things" in err.getvalue()
    assert "4/4" in err.getvalue()
    assert "things" not in out.getvalue()
    assert "of another package\n" in out.getvalue()


def test_what_is_printed_beside_a_bar_goes_where_it_belongs():
    with governed(), streams(err=Terminal()) as (out, err), Bars() as bars:
        bars.add("things", 4)
        sys.stdout.write("1,2\n")
        note("remark")
    assert out.getvalue() == "1,2\n"
    assert "1,2" not in err.getvalue()
    assert "remark" in err.getvalue()


def test_a_line_is_shown_as_it_is_on_any_console():
    from rich.console import Console

    file = io.StringIO()
    write_line("[red]:smile: 12 a\tb\x1b[2J" + "x" * 200, Console(file=file, width=40, force_terminal=True))
    assert file.getvalue() == "[red]:smile: 12 a       b\\x1b[2J" + "x" * 200 + "\n"


def test_no_color_takes_the_colours_away(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with governed(), streams(Terminal()) as (out, _):
        console().print(table())
    assert "\x1b[31m" not in out.getvalue()
    with governed(), streams() as (out, _):
        console().print(table())
    assert "\x1b" not in out.getvalue()


def test_a_pipe_with_colours_has_no_bars(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with governed(), streams() as (out, err):
        use_all()
    assert "\x1b[31m" in out.getvalue()
    assert err.getvalue() == "remark\n"


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_has_no_bars(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    with governed(), streams(Terminal(), Terminal()) as (_, err):
        use_all()
    assert "\x1b" not in err.getvalue()
    assert "things" not in err.getvalue()


def test_without_bars_there_is_a_line_at_each_quarter_of_what_takes_long(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(consoles.time, "monotonic", lambda: now[0])
    with governed(), streams() as (_, err), Bars() as bars:
        bar = bars.add("[things]", 100)
        for _ in range(100):
            now[0] += 0.3
            bars.advance(bar)
    lines = ["[things]: 34 of 100", "[things]: 50 of 100", "[things]: 75 of 100", "[things]: 100 of 100"]
    assert err.getvalue().splitlines() == lines  # the first quarter was over before ten seconds were
    with governed(), streams() as (_, err), Bars(lines=False) as bars:
        bar = bars.add("things", 2)
        now[0] += 99
        bars.update(bar, 2)
    assert err.getvalue() == ""


def test_the_setting_is_that_of_the_innermost_and_ends_even_with_an_error():
    with contextlib.suppress(ValueError), governed(quiet=True), governed(as_json=True):
        assert not consoles.is_quiet()
        raise ValueError
    with streams() as (out, _):
        say("again")
    assert out.getvalue() == "again\n"


def test_one_console_for_a_stream_as_long_as_it_is_the_same():
    with governed(), streams():
        first = notes()
        assert notes() is first
        assert console() is not first
        with streams():
            assert notes() is not first


def test_a_result_is_given_once_and_holds_what_json_can():
    with governed(as_json=True) as output:
        assert output.document == "null\n"
        emit([1])
        with pytest.raises(RuntimeError, match="twice"):
            emit([2])
    with governed(as_json=True) as output:
        emit({"value": object()})
    with pytest.raises(TypeError, match="got object"):
        _ = output.document
    with governed(as_json=True) as output:
        emit(float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = output.document
    with governed():
        emit([1])
        emit([2])  # nobody asked


def test_another_process_is_given_the_setting_and_writes_the_result():
    with governed(quiet=True, as_json=True, debug=True) as output:
        assert delegate() == ["--quiet", "--json", "--debug"]
        assert output.document == ""
    with governed():
        assert delegate() == []
