"""The demo as a user types it: one table of three pipelines, one report, three commands that run, and all of it again.

The backbone is a tiny one, and workers are threads: what both do has tests of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from powerpool.cli import demo
from powerpool.cli.demo import PARTS, DemoOptions
from powerpool.cli.main import COMMANDS, main
from powerpool.console import output_settings
from powerpool.errors import ArgumentError
from powerpool.report import write
from powerpool.report.groups import BASELINES, group_records
from powerpool.report.write import PAGES, Reproduced
from powerpool.runs import scheduler as runner
from powerpool.runs.config import read_recipe
from powerpool.runs.quick import NOTE, is_quick
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.graph.config import GraphConfig
from powerpool.tasks.vision.config import VisionConfig
from tests.report.samples import graph_run as made_up
from tests.runs.threads import Threads
from tests.tasks.vision.samples import use_tiny

CONFIGS = {"graph": GraphConfig, "vision": VisionConfig, "fewshot": FewShotConfig}
DATA = {"graph": "MUTAG", "vision": "digits", "fewshot": "glyphs"}
METHODS = [(part.pipeline, method) for part in PARTS for method in part.methods]
FOLDER = Path("runs/demo-quick")


@dataclass(frozen=True)
class Played:
    """What a demo said, and when."""

    out: str
    err: str
    began: float

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        lines = (line for line in self.out.splitlines() if line.startswith("│"))
        return [[part.strip() for part in line.strip("│").split("│")] for line in lines]

    @property
    def commands(self) -> list[list[str]]:
        """What to try next, as words."""
        return [shlex.split(line) for line in self.out.splitlines() if line.startswith("  powerpool ")]


def play(*words: str) -> Played:
    began = time.time()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["demo", "--quick", *words])
    assert code == 0, err.getvalue()
    return Played(out.getvalue(), err.getvalue(), began)


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Iterator[Played]:
    """The first demo, in a folder of its own, on a machine that never saw one."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.chdir(folder)
        patch.setenv("POWERPOOL_CACHE", str(folder / "cache"))
        patch.delenv("POWERPOOL_DATA", raising=False)
        patch.setattr(runner, "_make_executor", Threads)
        first = play("--offline")
        patch.setattr(write, "draw_plots", lambda group, folder, stem: {})  # pictures that are there already
        yield first


def record(pipeline: str, method: str) -> RunRecord:
    """The record of a row, from its file."""
    suffix = ".2-way-1-shot" if pipeline == "fewshot" else ""
    return RunRecord.read(FOLDER / DATA[pipeline] / f"{method}{suffix}.json")


# ---- what it prints --------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_method_with_the_figures_of_its_record(played):
    assert [(row[0], row[1], row[2]) for row in played.rows] == [(name, DATA[name], method) for name, method in METHODS]
    baseline = {part.pipeline: record(part.pipeline, part.methods[0]) for part in PARTS}
    for (pipeline, method), row in zip(METHODS, played.rows, strict=True):
        found = record(pipeline, method)
        mean, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", row[3]).groups())
        assert mean == pytest.approx(found.mean, abs=0.051)
        assert low <= mean <= high
        assert float(row[5]) == pytest.approx(found.seconds, abs=0.51)
        if method == baseline[pipeline].method:
            assert row[4] == "baseline"
            continue
        difference, low, high = map(float, re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", row[4]).groups())
        assert difference == pytest.approx(found.mean - baseline[pipeline].mean, abs=0.051)
        assert low <= difference <= high


def test_it_ends_with_the_report_and_three_commands_and_says_that_quick_figures_mean_nothing(played):
    assert not set("\x1b\r") & set(played.out + played.err)
    last = played.out.splitlines()[-5:]
    assert last[0] == f"Report: {FOLDER}/report.html"
    assert last[1].endswith("To try next, one after the other:")
    assert len(played.commands) == 3
    caption = " ".join(played.out.split())
    assert "These figures mean nothing: --quick only shows that everything runs." in caption
    assert "3 folds; digits" in caption
    assert "one test split of 1438 pictures" in caption
    assert "20 test episodes with 6 queries each" in caption
    assert "GIN0: a graph network" in caption
    assert "SpecMaxExpF: the curve MaxExp on the spectrum" in caption


def test_the_legend_explains_every_part_of_a_name_once():
    methods = [method for part in PARTS for method in part.methods]
    names = {name for method in methods for name in method.split("+")}
    assert names == demo.LEGEND.keys()
    said = demo.legend(methods)
    for name in names:
        assert said.count(f"{name}: ") == 1
    assert demo.legend(["FOP", "SOP+SpecNew"]) == f"FOP: {demo.LEGEND['FOP']}; SOP: {demo.LEGEND['SOP']}."


def test_it_says_what_it_is_at(played):
    said = [line for line in played.err.splitlines() if re.match(r"\d of \d: ", line)]
    assert [line[:6] for line in said] == ["1 of 3", "2 of 3", "3 of 3"]
    for part, line in zip(PARTS, said, strict=True):
        assert all(method in line for method in part.methods)
    assert "written:" not in played.out + played.err  # the reports of the parts are one


def test_one_report_holds_all_pipelines(played):
    page = (FOLDER / "report.html").read_text(encoding="utf-8")
    assert (FOLDER / "report.html").stat().st_mtime > played.began
    for pipeline, method in METHODS:
        assert DATA[pipeline] in page
        assert method in page
    assert page.count("<h1") == 1


def test_the_report_of_a_quick_demo_begins_with_what_its_figures_are_and_has_no_findings(played):
    for name, bold in zip(PAGES, ("\n\n**{}", "</h1>\n<p><b>{}"), strict=True):
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert bold.format(NOTE) in text
        assert "in the paper's order" not in text.replace("&#x27;", "'")
        assert "below it" not in text
    assert all(is_quick(record(*name)) for name in METHODS)


# ---- what comes next -------------------------------------------------------------------------------------------------


def test_the_three_commands_run_as_they_are_in_their_order_and_again(played, capsys):
    records = write.read_records(FOLDER)
    train, _, explore = played.commands
    for words in [*played.commands, train, explore]:  # inspect writes its files anew, whatever is there
        assert main([*words[1:], "--offline"]) == 0, capsys.readouterr().err
    run = FOLDER / "digits-model"
    assert {"model.pt", "explore.html", "inspect"} <= {file.name for file in run.iterdir()}
    inspection = json.loads((run / "inspect" / "inspection.json").read_text())
    assert inspection
    assert not list(Path().glob("*.html"))  # nothing is left where the command was typed
    assert [path.name for path in Path("runs").iterdir()] == [FOLDER.name]
    assert write.read_records(FOLDER) == records  # the model is none of the report's


def test_the_commands_of_the_whole_demo_differ_in_names_alone():
    quick, whole = (demo.next_commands(DemoOptions(quick=quick)) for quick in (True, False))
    assert [command.replace("-quick", "") for command in quick] == whole
    assert {command.split()[1] for command in whole} == {"train", "inspect", "explore"}


def test_the_commands_have_the_folder_and_the_seed_of_the_demo():
    commands = [shlex.split(line) for line in demo.next_commands(DemoOptions(seed=7, out="my runs/a"))]
    assert all("my runs/a/digits-model" in words for words in commands)
    train = commands[0]
    assert train[train.index("--seed") + 1] == "7"
    assert commands[2][-1] == "my runs/a/digits-model/explore.html"


def test_a_quick_picture_has_several_places():
    size = read_recipe("demo/vision-quick", VisionConfig).crops.size
    assert (size // 32) ** 2 >= 4  # the backbone has one for 32 x 32 pixels; of one place a matrix has rank 1


def test_a_second_demo_trains_nothing_and_says_so(played):
    results = {file: file.stat().st_mtime_ns for name in demo.RESULTS for file in (FOLDER / name).rglob("*")}
    # A record of another command in the same folder is in the report, and not in the table.
    other = replace(record("graph", "GIN0"), protocol="retrain")
    other.write(FOLDER / "MUTAG" / "GIN0.retrain.json")
    page = (FOLDER / "report.html").stat().st_mtime_ns
    again = play()
    assert (FOLDER / "report.html").stat().st_mtime_ns > page
    assert f"Nothing had to be trained: all results were in {FOLDER}." in again.out
    assert "Nothing had to be trained" not in played.out
    assert again.rows == played.rows
    assert {file: file.stat().st_mtime_ns for file in results} == results
    assert again.err.count("resumed") == 4  # folds, points, tests, trainings
    assert "retrain" in (FOLDER / "README.md").read_text(encoding="utf-8")
    pages = {file: file.stat().st_mtime_ns for file in FOLDER.iterdir() if file.is_file() and file.name != ".lock"}
    assert play().rows == played.rows
    assert {file: file.stat().st_mtime_ns for file in pages} == pages  # a report of the very same records stays


def test_as_json_and_quietly(played):
    found = json.loads(play("--json").out)
    assert found.keys() == {"folder", "report", "quick", "seed", "resumed", "seconds", "records", "next"}
    assert (found["folder"], found["quick"], found["seed"], found["resumed"]) == (str(FOLDER), True, 0, True)
    assert [(row["pipeline"], row["method"]) for row in found["records"]] == METHODS
    assert found["next"] == [shlex.join(words) for words in played.commands]
    for row in found["records"]:
        own, first = (record(row["pipeline"], method) for method in (row["method"], row["baseline"]))
        assert row["mean"] == own.mean
        is_baseline = row["method"] == row["baseline"]
        assert row["difference"] == (None if is_baseline else pytest.approx(own.mean - first.mean))
        assert (row["difference_interval"] is None) == (row["p_value"] is None) == is_baseline
    again = play("--quiet")
    assert (again.out, again.err) == ("", "")


def test_a_part_is_what_reproduce_does_with_its_recipe(played, capsys):
    (part,) = (part for part in PARTS if part.pipeline == "graph")
    words = ["--recipe", "demo/graph-quick", "--methods", *part.methods, "--protocols", "validation-only"]
    assert main(["reproduce", "graph", *words, "--out", str(FOLDER)]) == 0
    assert "resumed 6 of 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed, jobs", [({}, None), ({"jobs": 3}, 3), ({"quick": True}, 1), ({"quick": True, "jobs": 2}, 2)]
)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.pipeline)
def test_every_part_gets_the_options(part, typed, jobs, monkeypatch):
    given = []

    def take(options: object, *, report: bool) -> Reproduced:
        assert not report
        given.append(options)
        return Reproduced([], [], quick=False)

    monkeypatch.setattr(getattr(demo, part.pipeline), "reproduce", take)
    assert demo.reproduce(part, DemoOptions(**typed, seed=5, out="there")) == []
    (options,) = given
    assert (options.jobs, options.out, options.download, options.data) == (jobs, "there", False, [])
    assert options.recipe == f"demo/{part.pipeline}{'-quick' if 'quick' in typed else ''}"
    assert tuple(options.methods) == part.methods
    assert (options.seeds if part.pipeline == "fewshot" else [options.seed]) == [5]
    assert getattr(options, "workers", jobs) == jobs
    assert getattr(options, "protocols", ["validation-only"]) == ["validation-only"]
    assert getattr(options, "heads", ["ridge"]) == ["ridge"]


# ---- whether it is fair ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.pipeline)
def test_the_recipes_are_for_data_that_is_on_every_machine(part, quick):
    config = read_recipe(DemoOptions(quick=quick).recipe(part), CONFIGS[part.pipeline])
    assert (config.data, config.data_root, config.download, config.seed) == (DATA[part.pipeline], None, False, 0)
    assert part.methods[0] == BASELINES[part.pipeline]  # that of the reports


def test_all_methods_of_a_pipeline_have_the_same_budget():
    parts = {part.pipeline: part for part in PARTS}
    config = read_recipe("demo/graph", GraphConfig)
    assert config.folds == 10
    for method in parts["graph"].methods:
        beta = 0.0 if method == "GIN0" else config.model.beta
        points = list(replace(config, model=replace(config.model, method=method, beta=beta)).points())
        assert len(points) == 2
    config = read_recipe("demo/vision", VisionConfig)
    assert config.test_share == 0.5
    for method in parts["vision"].methods:
        assert len(list(replace(config, pool=replace(config.pool, method=method)).points())) == 1
    config = read_recipe("demo/fewshot", FewShotConfig)
    assert (config.protocol, config.size, config.channels) == ("5-way-1-shot", 28, 1)
    assert config.test.count >= 200
    assert config.training.validation_episodes > 0  # validation classes choose the model, never those of the test


def test_the_caption_says_what_the_figures_are():
    groups = group_records([made_up("GIN0", [80.0, 84.0]), made_up("SOP", [81.0, 82.0])], "GIN0", ("GIN0", "SOP"))
    said = demo.caption(groups, DemoOptions(seed=3))
    legend, figures = said.split("\n")
    assert legend == demo.legend(["GIN0", "SOP"])
    assert figures.startswith("MUTAG, validation-only: 2 folds. ")
    for part in (
        "95 % intervals",
        "this is seed 3 alone",
        "Budgets are small, and the same",
        "Nothing was chosen on test",
    ):
        assert part in said
    assert "mean nothing" not in said


def test_a_loss_is_shown_as_it_is():
    records = [made_up("GIN0", [80.0, 84.0, 86.0]), made_up("SOP", [75.0, 80.0, 80.0])]
    groups = group_records(records, "GIN0", ("GIN0", "SOP"))
    baseline, row = demo.make_rows(groups)
    assert (baseline.difference, baseline.difference_interval, baseline.p_value) == (None, None, None)
    assert row.difference == pytest.approx(-5.0)
    assert row.interval == pytest.approx((78.3333 - 7.1711, 78.3333 + 7.1711), abs=1e-3)  # t(2) = 4.3027, s = 2.8868
    assert row.p_value > 0.0131  # over folds that overlap: more than the plain one
    table = demo.make_table([baseline, row], groups, DemoOptions())
    assert [str(cell) for cell in table.columns[4].cells] == ["baseline", "-5.0 (-7.5 to -2.5)"]


# ---- signs of life ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quiet", [False, True])
def test_where_there_is_no_bar_a_line_comes_now_and_then(monkeypatch, capsys, quiet):
    monkeypatch.setattr(demo, "PULSE", 0.01)
    with output_settings(quiet=quiet), demo.pulse("glyphs"):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert bool(lines) != quiet
    assert all(line == "glyphs: at work for 0 s" for line in lines)
    time.sleep(0.05)
    assert capsys.readouterr().err == ""  # it ends with the work


def test_the_pulse_stops_where_the_work_fails(monkeypatch, capsys):
    monkeypatch.setattr(demo, "PULSE", 0.01)
    with pytest.raises(ArgumentError), demo.pulse("glyphs"):
        raise ArgumentError("no")
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_commands_are_typed_as_this_one_was(monkeypatch, tmp_path):
    program = tmp_path / "bin" / "powerpool"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.as_called() == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert demo.as_called() == "powerpool"
    monkeypatch.setattr(sys, "argv", [".venv/my bin/powerpool"])
    assert demo.as_called() == "'.venv/my bin/powerpool'"
    monkeypatch.setattr(sys, "argv", ["src/powerpool/__main__.py"])
    assert demo.as_called() == f"{shlex.quote(sys.executable)} -m powerpool"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert demo.as_called() == "powerpool"


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--jobs", "0"), "jobs must be at least 1 (got 0)."),
        (("--jobs", "many"), "--jobs must be int"),
        (("--seed", "-1"), "seed must be at least 0 and below 2**31 (got -1)."),
        (("--quick", "perhaps"), "--quick must be true or false (got 'perhaps')."),
        (("--epochs", "3"), "--epochs"),
        (("5",), "'5'"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(arguments, message, capsys):
    assert main(["demo", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"powerpool demo: error: {message}")
    assert errors.count("\n") == 1


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("mine")
    assert main(["demo", "--out", "taken"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "powerpool demo: error: Cannot make the folder taken: File exists. Choose another one."
    assert Path("taken").read_text() == "mine"


@pytest.mark.parametrize("missing", demo.PACKAGES)
def test_a_package_that_is_missing_is_said_before_anything_is_done(missing, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not there
    if missing in ("rich", "yaml"):  # without which nothing can be said, and no recipe read
        with pytest.raises(ModuleNotFoundError, match=missing):
            demo.require_packages()
        return
    assert main(["demo", "--quick"]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"powerpool demo needs the package '{missing}', which is not installed. ")
    assert f"pip install 'powerpool[{COMMANDS['demo'].extras}]'" in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_make_demo_forbids_the_network_and_passes_options_on():
    makefile = Path(__file__).parents[1] / "Makefile"
    words = ["make", "--dry-run", "-f", makefile, "demo", "ARGS=--quick"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=makefile.parent)
    assert ".venv/bin/powerpool demo --offline --quick" in done.stdout
