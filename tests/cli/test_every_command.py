"""Every command on tiny data: its output as text, as JSON, and with --quiet; and a full disk.

The commands run in this process, one after the other: later ones use the runs of earlier ones.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from powerpool.bench import command
from powerpool.bench.command import suite_cases
from powerpool.cli.main import COMMANDS, main
from powerpool.report import write as report
from powerpool.runs import scheduler as runner
from powerpool.tasks.methods import METHODS
from powerpool.tasks.vision import export
from tests.bench import samples
from tests.runs.threads import Threads
from tests.tasks.fewshot.samples import write_folder
from tests.tasks.graph.samples import rings_and_stars, write_own_set
from tests.tasks.vision.samples import use_tiny, write_images

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
"""Commands with tests of their own."""

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
"""Keys of the JSON document of a command, by its name or first word."""
ROWS = {"predict": {"class"}, "sweep": {"picked", "written"}, "bench": {"suite", "cases", "written"}}
"""Keys of the items of a JSON list."""
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
        patch.setattr(report, "draw_plots", lambda group, folder, stem: {})
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


def test_every_command_is_run_here_or_elsewhere():
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
    assert bool(out) == (name == "evaluate graph")  # results are printed before they are written
    assert "No space left on device" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in before} == before


def test_an_unknown_method_is_answered_with_the_nearest_and_where_all_are_listed(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {method: SoSN(x)+SigmeE}")
    for words in (["--model.method", "SoSN(x)+SigmeE"], ["--config", str(tmp_path / "mine.yaml")]):
        code, _, err = call("train", "fewshot", *words)
        assert code == 2
        assert "'SoSN(x)+SigmE'" in err
        assert "powerpool train fewshot --help" in err
    code, _, err = call("reproduce", "fewshot", "--methods", "relationnet")
    assert code == 2
    assert "'RelationNet'" in err
    _, out, _ = call("train", "fewshot", "--help")
    listed = out.partition("\nmethods:\n")[2].replace("\n", " ")
    assert [name.strip() for name in listed.split(",")] == list(METHODS["fewshot"])


def test_a_recipe_of_another_command_is_refused():
    for words in ("train fewshot --config", "reproduce fewshot --recipe"):
        code, _, err = call(*words.split(), "fewshot/pretraining")
        assert code == 2
        assert "fewshot/pretraining" in err
