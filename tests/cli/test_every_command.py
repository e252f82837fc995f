"""Every command where stdout is no terminal: what it prints, as JSON, and quietly; and how it fails.

The commands run in this process, on tiny data, one after the other: later ones use the runs of earlier ones.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from powerpool.tasks.fewshot.methods import METHODS

from powerpool.bench import command
from powerpool.bench.command import suite_cases
from powerpool.cli import main as cli
from powerpool.cli.main import COMMANDS, main
from powerpool.report import write
from powerpool.runs import scheduler as runner
from powerpool.tasks.vision import export
from tests.bench import samples
from tests.experiments.threads import Threads
from tests.pipelines.fewshot.samples import write_folder
from tests.pipelines.graph.samples import rings_and_stars, write_own_set
from tests.tasks.vision.samples import use_tiny, write_images

PATIENCE = 600  # seconds: no test is about time, and none waits for ever
POWERPOOL = Path(sys.executable).with_name("powerpool")
FEWSHOT = (
    "size: 16\nchannels: 1\nmodel: {hidden: 4, method: SoSN(x)+SigmE}\ntest: {way: 2, count: 4}\n"
    "train_classes: 6\nvalidation_classes: 3\nclass_order: names\n"
    "training: {episodes: 2, queries: 2, validate_every: 2, validation_episodes: 2, settling_episodes: 1}\n"
)
GRAPH = "--model.hidden 4 --model.layers 2 --training.epochs 2 --folds 3 --model.method GIN0 --download false"
VISION = (
    "--backbone tiny --crops.size 32 --crops.count 1 --crops.resize 32 --accelerator cpu --workers 0 "
    "--pool.method FOP --download false"
)
ELSEWHERE = {"demo", "selfcheck"}
"""Commands that are run by tests of their own."""

COMMAND_LINES = {
    "train graph": f"--data OWN {GRAPH} --out runs/graph --overwrite",
    "evaluate graph": "--run runs/graph",
    "predict graph": "--run runs/graph --data OWN",
    "reproduce graph": "--data OWN --methods GIN0 --protocols validation-only --quick --jobs 1 --out table/graph",
    "train vision": f"--data stripes {VISION} --out runs/vision --overwrite",
    "evaluate vision": "--run runs/vision --workers 0",
    "predict vision": "--run runs/vision --workers 0 stripes/along/00.png",
    "export vision": "--run runs/vision --out model.onnx",
    "reproduce vision": "--data stripes --methods FOP --heads ridge --quick --jobs 1 --workers 0 --out table/vision",
    "sweep vision": "--data stripes --over eta --values 2 --quick --jobs 1 --workers 0 --out table/sweep",
    "train fewshot": "--data bars --config small.yaml --out runs/fewshot --overwrite",
    "evaluate fewshot": "--run runs/fewshot",
    "predict fewshot": "--run runs/fewshot --support bars bars",
    "reproduce fewshot": "--data bars --recipe small.yaml --methods SoSN(x) --jobs 1 --out table/fewshot",
    "report": "--records table/graph",
    "inspect": "--run runs/graph",
    "figures": "curves --dpi 30 --out pictures",
    "explore": "--out explore.html",
    "bench": "curves --quick --repetitions 3 --out bench",
    "bench compare": "bench/old.json bench/new.json",
    "bench publish": "--source bench/whole --out bench/published",
}
KEYS = {
    "train": {"run", "record"},
    "evaluate": {"environment", "written"},
    "reproduce": {"folder", "written", "records", "quick"},
    "report": {"folder", "written", "records"},
    "export": {"written", "method", "difference"},
    "inspect": {"folder", "inspection"},
    "figures": {"folder", "written", "skipped"},
    "explore": {"page", "run", "samples"},
    "bench compare": {"regressions", "changes"},
    "bench publish": {"written"},
}
"""What the JSON of a command has at least, by its name or the first word of it."""
ROWS = {"predict": {"class"}, "sweep": {"picked", "written"}, "bench": {"suite", "cases", "written"}}
"""The same for lists."""
EXIT_CODES = {"bench compare": 1}  # the new record is slower


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A folder to work in, with tiny data of all kinds."""
    folder = tmp_path_factory.mktemp("place")
    write_own_set(folder / "OWN", rings_and_stars(24))
    write_images(folder / "stripes", count=6)
    write_folder(folder / "bars")
    (folder / "small.yaml").write_text(FEWSHOT)
    for name in ("bench", "bench/whole"):
        (folder / name).mkdir()
    samples.pair(auto=3.0).save(folder / "bench" / "old.json")
    samples.pair(auto=4.0).save(folder / "bench" / "new.json")
    samples.record(suite="curves").save(folder / "bench" / "whole" / "curves.json")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.chdir(folder)
        patch.setenv("POWERPOOL_CACHE", str(folder / "cache"))
        patch.setattr(runner, "_make_executor", Threads)
        patch.setattr(write, "draw_plots", lambda group, folder, stem: {})
        patch.setattr(command, "has_threads", lambda threads: True)
        patch.setattr(command, "suite_cases", lambda *asked: suite_cases(*asked)[:1])
        patch.setattr(export, "export_model", lambda model, path, **_: (Path(path).write_bytes(b"12"), 1e-7)[1])
        for name in ("train graph", "train vision", "train fewshot", "reproduce graph"):  # what others begin with
            assert call(*words_of(name))[0] == 0
        yield folder


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def words_of(name: str) -> list[str]:
    more = ["--threads", str(torch.get_num_threads())] if name == "bench" else []
    return [*name.split(), *COMMAND_LINES[name].split(), *more]


def test_every_command_is_tried_here_or_elsewhere():
    assert COMMAND_LINES.keys() | ELSEWHERE == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMAND_LINES)
@pytest.mark.usefixtures("place")
def test_plain_text_then_json_then_nothing(name):
    expected = EXIT_CODES.get(name, 0)
    code, out, err = call(*words_of(name))
    assert code == expected, err
    assert out.strip()
    assert not set("\x1b\r") & set(out + err)

    code, out, err = call(*words_of(name), "--json")
    assert code == expected, err
    found = json.loads(out)
    keys = KEYS.get(name) or KEYS.get(name.split()[0])
    if keys is None:
        assert isinstance(found, list)
        assert all(ROWS[name.split()[0]] <= row.keys() for row in found)
    else:
        assert keys <= found.keys()

    assert call(*words_of(name), "--quiet") == (expected, "", "")


def test_the_json_of_a_command_is_what_its_files_hold(place):
    record = json.loads((place / "runs" / "graph" / "record.json").read_text())
    code, out, _ = call(*words_of("reproduce graph"), "--json")
    (row,) = json.loads(out)["records"]
    assert code == 0
    assert (row["data"], row["method"], row["count"]) == ("OWN", "GIN0", 3)
    found = json.loads((place / "table" / "graph" / "OWN" / "GIN0.json").read_text())
    assert all(found[name] == row[name] for name in ("mean", "std", "interval", "metric"))
    _, out, _ = call(*words_of("evaluate graph"), "--json", "--quiet")
    assert json.loads(out)["accuracy"] == pytest.approx(record["mean"])
    _, out, _ = call(*words_of("predict graph"), "--json")
    assert [row["graph"] for row in json.loads(out)] == list(range(24))
    call(*words_of("predict graph"), "--quiet", "--out", "answers.json")
    assert json.loads((place / "answers.json").read_text()) == json.loads(out)
    _, out, _ = call(*words_of("bench compare"), "--json")
    found = json.loads(out)
    worse = [(row["case"], row["contender"]) for row in found["changes"] if row["is_regression"]]
    assert (found["regressions"], worse) == (1, [("first", "powerpool auto")])


def test_flags_may_stand_before_and_between_the_words_of_the_command(place):
    expected = call(*words_of("predict graph"), "--json")
    rest = COMMAND_LINES["predict graph"].split()
    assert call("--json", "predict", "graph", *rest) == expected
    assert call("predict", "--json", "graph", *rest) == expected
    pictures = ["--run", "runs/vision", "--workers", "0"]
    _, out, _ = call("predict", "vision", "--json", "stripes/along/00.png", *pictures)
    assert [row["picture"] for row in json.loads(out)] == ["stripes/along/00.png"]
    _, out, _ = call("predict", "vision", *pictures, "--json", "stripes/along/00.png")
    assert len(json.loads(out)) == 1


# ---- how a command fails ---------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    """A way to make ``powerpool report`` raise an error, as whatever it calls could."""

    def arrange(error: BaseException) -> None:
        def work(options: write.ReportOptions) -> None:
            raise error

        monkeypatch.setattr(write, "run", work)

    return arrange


@pytest.mark.parametrize(
    "error, code, said",
    [
        (
            TypeError("a bug\nin two lines"),
            1,
            "unexpected error: TypeError: a bug. Run again with --debug and report what it says.",
        ),
        (KeyError(), 1, "unexpected error: KeyError. Run again with --debug and report what it says."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: No space left on device."),
        (PermissionError(errno.EACCES, "Permission denied", "a.json"), 2, "error: Permission denied: 'a.json'."),
        (OSError(errno.EROFS, "Read-only file system", "a"), 2, "error: Read-only file system: 'a'."),
        (OSError(errno.EIO, "Input/output error", "a"), 1, "error: Input/output error: 'a'."),
        (write.RecordError("a\npowerpool: all is well\r\n"), 2, r"error: a\npowerpool: all is well\r"),
        (ConnectionError("no route"), 1, "error: ConnectionError: no route."),
        (MemoryError(), 1, "error: memory ran out. Take smaller batches or fewer --jobs and --workers, or close other"),
        (write.RecordError("a.json is no record."), 2, "error: a.json is no record."),
        (runner.UnitError("fold 0: its process died."), 1, "error: fold 0: its process died."),
        (KeyboardInterrupt(), 130, "interrupted."),
        (KeyboardInterrupt("2 of 3 are kept."), 130, "interrupted. 2 of 3 are kept."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_goes_wrong_is_one_line_and_with_debug_the_place_in_the_code(failing, tmp_path, error, code, said):
    failing(error)
    words = ["report", "--records", str(tmp_path)]
    for more in ([], ["--quiet"], ["--json"]):
        found, out, err = call(*words, *more)
        assert (found, out) == (code, "")
        assert err.startswith(f"powerpool report: {said}")
        assert err.count("\n") == 1
    found, out, err = call(*words, "--debug")
    assert (found, out) == (code, "")
    assert "Traceback (most recent call last)" in err
    assert "in work\n" in err
    assert err.splitlines()[-1].startswith(f"powerpool report: {said}")


def test_of_a_very_long_error_the_middle_is_left_out(failing, tmp_path):
    failing(write.RecordError(f"There is no file {100_000 * 'x'}: choose another."))
    _, _, err = call("report", "--records", str(tmp_path))
    assert len(err) < 2100
    assert err.startswith("powerpool report: error: There is no file xxx")
    assert err.endswith("xxx: choose another.\n")


def test_streams_that_are_closed_take_nothing_and_change_no_exit_code(tmp_path):
    def code(words: str) -> tuple[int, str]:
        script = f"{shlex.quote(str(POWERPOOL))} {words}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.returncode, done.stdout + done.stderr

    assert code("--version >&-") == (0, "")
    missing = shlex.quote(str(tmp_path / "missing"))
    assert code(f"evaluate graph --run {missing} 2>&-") == (2, "")
    assert code(f"evaluate graph --run {missing} >&- 2>&-") == (2, "")


def test_an_interrupt_says_how_to_go_on(monkeypatch, place):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("powerpool.tasks.graph.commands.choose", stop)
    code, _, err = call(*words_of("train graph"))
    assert code == 130
    assert err.endswith("interrupted. What is done is kept: the same command goes on from there.\n")


@pytest.mark.parametrize("name", ["train graph", "evaluate graph", "reproduce graph", "report"])
def test_a_full_disk_is_one_line_and_loses_nothing(name, place, monkeypatch):
    call(*words_of("train graph"))
    before = {path: path.read_bytes() for path in (place / "runs" / "graph").glob("*.json")}
    written = os.fsync

    def full(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith((".json", ".md")):
            raise OSError(errno.ENOSPC, "No space left on device")
        written(handle)

    monkeypatch.setattr(os, "fsync", full)
    words = [word for word in words_of(name) if word != "--overwrite"]
    words = [word.replace("runs/graph", "runs/other") if name == "train graph" else word for word in words]
    code, out, err = call(*words)
    assert code == 1, err
    assert bool(out) == (name == "evaluate graph")  # what was computed is told before it is written
    assert "No space left on device" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in before} == before


def test_a_reader_that_leaves_is_no_error_and_a_full_disk_behind_stdout_is():
    read, write = os.pipe()
    os.close(read)  # as `| head` does when it has enough
    with open(write, "wb") as pipe:
        done = subprocess.run([POWERPOOL], stdout=pipe, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([POWERPOOL], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (1, b"powerpool: error: No space left on device.\n")


def test_a_broken_pipe_of_something_else_is_told(failing, tmp_path, monkeypatch):
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    monkeypatch.setattr(cli, "_reader_is_gone", lambda: False)
    assert call("report", "--records", str(tmp_path)) == (1, "", "powerpool report: error: Broken pipe.\n")
    monkeypatch.setattr(cli, "_reader_is_gone", lambda: True)
    assert call("report", "--records", str(tmp_path)) == (1, "", "")


def test_offline_is_known_to_the_command_and_to_nobody_after_it(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(cli, "_load", lambda target: seen.append(os.environ.get("POWERPOOL_OFFLINE")) or look)

    def look(options: write.ReportOptions) -> None:
        seen.append(os.environ.get("POWERPOOL_OFFLINE"))

    monkeypatch.delenv("POWERPOOL_OFFLINE", raising=False)
    assert call("report", "--offline", "--records", str(tmp_path))[0] == 0
    assert seen == ["1", "1"]
    assert "POWERPOOL_OFFLINE" not in os.environ
    assert call("report", "--records", str(tmp_path))[0] == 0
    assert seen[2:] == [None, None]
    monkeypatch.setenv("POWERPOOL_OFFLINE", "yes")
    assert call("report", "--offline", "--records", str(tmp_path))[0] == 0
    assert os.environ["POWERPOOL_OFFLINE"] == "yes"


# ---- what the user can put right -------------------------------------------------------------------------------------


def test_one_of_many_names_is_answered_with_the_nearest_and_where_all_are(tmp_path):
    code, _, err = call("train", "fewshot", "--model.method", "SoSN(x)+SigmeE")
    assert code == 2
    assert "Unknown model.method 'SoSN(x)+SigmeE': the nearest of 65 names are 'SoSN(x)+SigmE', " in err
    assert err.endswith("'powerpool train fewshot --help' lists all.\n")
    assert len(err) < 250
    (tmp_path / "mine.yaml").write_text("model: {method: SoSM}")
    code, _, err = call("train", "fewshot", "--config", str(tmp_path / "mine.yaml"))
    assert code == 2
    assert err.endswith("'powerpool train fewshot --help' lists all.\n")
    code, _, err = call("reproduce", "fewshot", "--methods", "relationnet")
    assert code == 2
    assert "'RelationNet'" in err
    _, out, _ = call("train", "fewshot", "--help")
    listed = out.partition("\nmethods:\n")[2].replace("\n", " ")
    assert [name.strip() for name in listed.split(",")] == list(METHODS)


@pytest.mark.parametrize("words", ["train fewshot --config", "reproduce fewshot --recipe"])
def test_the_recipe_of_a_study_says_whose_it_is(words):
    code, _, err = call(*words.split(), "fewshot/pretraining")
    assert code == 2
    assert err == (
        f"powerpool {words.rpartition(' ')[0]}: error: The recipe fewshot/pretraining belongs to another command: "
        "powerpool reproduce fewshot --study pretraining.\n"
    )
