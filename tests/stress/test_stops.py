"""Ctrl-C, and a second command in the same run folder."""

from __future__ import annotations

import signal

import pytest

from tests.stress.kills import Place, are_equal, finish, give_here, start


# tests/tasks/fewshot also interrupts a training.
@pytest.mark.parametrize("name", ["graph", "vision", pytest.param("few-shot", marks=pytest.mark.stress)])
def test_a_second_command_is_refused_and_an_interrupted_run_resumes(name, runs, capsys):
    whole = runs(name)
    place = Place(whole.case, whole.folder, "interrupted", hold=3)
    running = start(place)
    try:
        running.wait_until_held()
        before = place.stamps
        capsys.readouterr()
        assert give_here(place) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = [line for line in err.splitlines() if "error" in line]
        assert place.name in line
        assert place.stamps == before
        running.signal(signal.SIGINT)
        running.signal(signal.SIGCONT)
        code = running.wait()
    finally:
        running.signal(signal.SIGKILL)
    err = running.err.read_text()
    assert code == 130, err
    assert running.out.read_text() == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith(f"powerpool {' '.join(place.words[:2])}: interrupted. ")
    assert not (place.run / "record.json").exists()
    computed, saved = place.stamps, place.saved
    assert saved
    finish(place)
    assert not {unit for unit in saved if place.stamps[unit] != computed[unit]}
    assert are_equal(place, whole)
