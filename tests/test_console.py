"""Output on a terminal, in a file, with --quiet, and as JSON."""

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
    console,
    delegate_result,
    emit,
    output_settings,
    print_failure,
    print_line,
    print_note,
    print_text,
    show_status,
)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@contextlib.contextmanager
def streams(out: io.StringIO | None = None, err: io.StringIO | None = None):
    """Replace both streams of the process."""
    out, err = out or io.StringIO(), err or io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def table():
    from rich.table import Table

    found = Table("a" * 60, "b" * 60, title="[bold]wide[/]")
    found.add_row("1", "2", style="red")
    return found


def use_all() -> None:
    """Print everything that a command can print."""
    print_line("result [of] :smile: " + "x" * 200)
    console().print(table())
    print_note("remark")
    print_text("a,b\n")
    sys.stdout.write("of another package\n")
    with Bars() as bars, show_status("busy"):
        bar = bars.add("things", 4)
        for _ in range(4):
            bars.advance(bar)
    emit({"file": Path("a/b"), "value": 1.5})


def test_files_get_plain_lines_that_are_not_wrapped():
    with output_settings() as output, streams() as (out, err):
        use_all()
    assert "\x1b" not in out.getvalue() + err.getvalue()
    assert out.getvalue().startswith("result [of] :smile: " + "x" * 200 + "\n")
    assert "a" * 60 in out.getvalue()  # no column is truncated
    assert err.getvalue() == "remark\n"  # no bar, and no line for fast work
    assert output.document == ""


def test_json_is_the_only_output_on_stdout():
    with streams() as (out, err):
        with output_settings(as_json=True) as output:
            use_all()
        sys.stdout.write(output.document)
    assert json.loads(out.getvalue()) == {"file": "a/b", "value": 1.5}
    assert err.getvalue() == "remark\nof another package\n"


def test_quiet_prints_failures_and_json_only():
    with streams() as (out, err), warnings.catch_warnings(record=True) as warned:
        with output_settings(quiet=True, as_json=True) as output:
            use_all()
            warnings.warn("of another package", stacklevel=1)
        assert (out.getvalue(), err.getvalue(), warned) == ("", "", [])
        with output_settings(quiet=True):
            print_failure("this \x1b[31mfailed")
        assert err.getvalue() == "this \\x1b[31mfailed\n"
    assert json.loads(output.document)["value"] == 1.5


def test_a_terminal_has_colours_and_transient_bars():
    with output_settings(), streams(Terminal(), Terminal()) as (out, err):
        use_all()
    assert "\x1b[31m" in out.getvalue()
    assert "4/4" in err.getvalue()
    assert "things" not in out.getvalue()
    assert "of another package\n" in out.getvalue()


def test_lines_beside_a_bar_go_to_their_own_stream():
    with output_settings(), streams(err=Terminal()) as (out, err), Bars() as bars:
        bars.add("things", 4)
        sys.stdout.write("1,2\n")
        print_note("remark")
    assert out.getvalue() == "1,2\n"
    assert "1,2" not in err.getvalue()
    assert "remark" in err.getvalue()


def test_control_characters_are_printed_as_escapes():
    from rich.console import Console

    file = io.StringIO()
    print_line("[red]:smile: 12 a\tb\x1b[2J" + "x" * 200, Console(file=file, width=40, force_terminal=True))
    assert file.getvalue() == "[red]:smile: 12 a       b\\x1b[2J" + "x" * 200 + "\n"
    with output_settings(), streams() as (out, err):
        print_text("graph,class\n0,a\x1b[2J\r\x07\u202eb\n")
        print_note("\x9b31m")
        console().print(consoles.cell("c\x1b]0;\nd"))
    assert out.getvalue() == "graph,class\n0,a\\x1b[2J\\r\\x07\\u202eb\nc\\x1b]0;\\nd\n"
    assert err.getvalue() == "\\x9b31m\n"


def test_no_color_and_force_color(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with output_settings(), streams() as (out, err):
        use_all()
    assert "\x1b[31m" in out.getvalue()
    assert err.getvalue() == "remark\n"  # a pipe with colours still has no bars
    monkeypatch.setenv("NO_COLOR", "1")
    for stream in (Terminal(), io.StringIO()):
        with output_settings(), streams(stream) as (out, _):
            console().print(table())
        assert "\x1b[31m" not in out.getvalue()


def test_without_bars_slow_work_prints_a_line_at_each_quarter(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(consoles.time, "monotonic", lambda: now[0])
    with output_settings(), streams() as (_, err), Bars() as bars:
        bar = bars.add("[things]", 100)
        for _ in range(100):
            now[0] += 0.3
            bars.advance(bar)
    lines = ["[things]: 34 of 100", "[things]: 50 of 100", "[things]: 75 of 100", "[things]: 100 of 100"]
    assert err.getvalue().splitlines() == lines  # the first quarter took less than ten seconds
    with output_settings(), streams() as (_, err), Bars() as bars:
        bar = bars.add("things", 100)
        for total in (100, 101, 102):  # such as the pooling of three grid points
            for done in range(total):
                now[0] += 0.2
                bars.update(bar, done, total=total)
    rounds = [line.split()[-1] for line in err.getvalue().splitlines()]
    assert rounds == sorted(rounds)
    assert [rounds.count(total) for total in ("100", "101", "102")] == [3, 2, 2]
    with output_settings(), streams() as (_, err), Bars(lines=False) as bars:
        bar = bars.add("things", 2)
        now[0] += 99
        bars.update(bar, 2)
    assert err.getvalue() == ""


def test_the_innermost_settings_apply_and_end_with_an_error():
    with contextlib.suppress(ValueError), output_settings(quiet=True), output_settings(as_json=True):
        assert not consoles.is_quiet()
        raise ValueError
    with streams() as (out, _):
        print_line("again")
    assert out.getvalue() == "again\n"


def test_a_result_is_given_once_and_holds_values_of_json():
    with output_settings(as_json=True) as output:
        assert output.document == "null\n"
        emit([1])
        with pytest.raises(RuntimeError, match="twice"):
            emit([2])
    for wrong, error in (({"value": object()}, TypeError), (float("nan"), ValueError)):
        with output_settings(as_json=True) as output:
            emit(wrong)
        with pytest.raises(error):
            _ = output.document


def test_another_process_gets_the_settings_and_prints_the_result():
    with output_settings(quiet=True, as_json=True, debug=True) as output:
        assert delegate_result() == ["--quiet", "--json", "--debug"]
        assert output.document == ""
    with output_settings():
        assert delegate_result() == []
