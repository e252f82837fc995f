"""What the documents say works: every python block runs, every command runs in a quick form, every name exists.

The pages on graphs, images, few-shot learning and scaling run as they are typed, in tests of their own. The commands of
all other pages run here, each of them, one after the other in one folder with tiny data: ``quick_form`` says what a
line becomes. Left out are only lines that one of these pages has word by word. A line that it has no rule for fails.
"""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import pytest
import torch

import powerpool as pp
from powerpool.bench import command
from powerpool.bench.command import SUITES, suite_cases
from powerpool.cli.main import COMMANDS, main
from powerpool.report import write
from powerpool.runs import scheduler as runner
from powerpool.runs.config import recipe_names
from powerpool.selfcheck.battery import Battery
from powerpool.tasks.vision import export
from tests.bench import samples
from tests.runs.threads import Threads
from tests.tasks.fewshot.samples import write_folder
from tests.tasks.vision.samples import use_tiny, write_images

ROOT = Path(__file__).parents[1]
PAGES = tuple(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *PAGES)
IN_ORDER = ("docs/tutorial.md",)
"""Pages whose python blocks go on from one another; the blocks of all others run each on its own."""
AS_TYPED = ("docs/graphs.md", "docs/images.md", "docs/fewshot.md", "docs/scaling.md")
"""Pages whose commands run as they are typed, below and in ``tests/test_docs.py``."""
PIPELINES = ("graph", "vision", "fewshot")
GUESTS = ("timm", "torchvision")
"""Packages that blocks may need and no extra brings."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks_of(document: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language, each with its first line."""
    text = text_of(document)
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def code_of(document: str) -> str:
    """Fenced blocks and inline code: the parts of a document that a reader may type."""
    text = text_of(document)
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(fenced + inline_of(document))


def inline_of(document: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text_of(document))


# ---- names -----------------------------------------------------------------------------------------------------------


def test_every_path_in_the_documents_exists():
    reports = [str(page.relative_to(ROOT)) for page in (ROOT / "results").glob("*/README.md")]
    for document in (*DOCUMENTS, *reports):
        text = text_of(document)
        # In code a path starts at the root of the project, in a link at the folder of the document.
        named = [ROOT / path for path in re.findall(r"`((?:tests|src|docs|results)/[\w./-]+)`", text)]
        linked = [(ROOT / document).parent / path for path in re.findall(r"\]\((?!http)([\w./-]+)(?:#[\w-]+)?\)", text)]
        missing = [str(path) for path in named + linked if not path.exists()]
        assert not missing, f"{document} names {missing}"


def test_first_screen_of_the_readme_shows_the_pool_and_the_two_commands():
    screen = "\n".join(text_of("README.md").splitlines()[:30])
    for shown in ("SecondOrderPool2d", "out_features", "make demo", "make test"):
        assert shown in screen


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_exists(document):
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", code_of(document))) <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_extra_exists(document):
    provided = set(metadata("powerpool").get_all("Provides-Extra"))
    named = {
        extra for group in re.findall(r"(?:powerpool|\.)\[([\w,]+)\]", code_of(document)) for extra in group.split(",")
    }
    assert named <= provided


def inline_commands() -> list[str]:
    """Commands inside of sentences and tables that are whole: what stands for something is in capitals, or dots."""
    named = {line for document in DOCUMENTS for line in inline_of(document) if re.match(r"powerpool [a-z]", line)}
    return sorted(line for line in named if "..." not in line and not re.search(r"\b[A-Z]{2,}$", line))


@pytest.mark.parametrize("line", inline_commands())
def test_every_command_inside_of_a_sentence_is_one(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").symlink_to(ROOT / "results")
    (_, settings), *_ = blocks_of("docs/graphs.md", "yaml")
    Path("my.yaml").write_text(settings)  # what pages call a recipe of one's own
    words = ["cpu" if word == "cuda" else word for word in shlex.split(line)[1:]]
    if hasattr(pp, words[0]):  # a contender of the benchmarks is called after a function
        return
    assert {words[0], " ".join(words[:2])} & {*COMMANDS, *(name.split()[0] for name in COMMANDS)}
    if any(word.startswith("--") for word in words):  # options are read and checked, and nothing is done
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
            assert main([*words, "--print_config"]) == 0, err.getvalue()


# ---- python ----------------------------------------------------------------------------------------------------------


def python_blocks() -> list:
    """What runs together: a block with its line, or all blocks of a page that goes on from one to the next."""
    found = []
    for document in DOCUMENTS:
        blocks = blocks_of(document, "python")
        if document in IN_ORDER:
            found.append(pytest.param(document, blocks, id=document))
        else:
            found += [pytest.param(document, [block], id=f"{document}:{block[0]}") for block in blocks]
    return found


# Lightning and the exporter of ONNX ask torch in ways that it has come to warn of.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("document, blocks", python_blocks())
def test_python_runs(document, blocks, tmp_path, monkeypatch):
    missing = [name for name in GUESTS if not importlib.util.find_spec(name)]
    if named := [name for name in missing for _, code in blocks if re.search(rf"^import {name}\b", code, re.MULTILINE)]:
        pytest.skip(f"NOT TESTED: {document}, line {blocks[0][0]}, needs {named[0]}: pip install {named[0]}")
    monkeypatch.chdir(tmp_path)  # where a block may write
    names = {"__name__": "__readme__"}
    for line, code in blocks:
        # Blank lines in front make the line numbers of a traceback those of the document.
        exec(compile("\n" * (line - 1) + code, document, "exec"), names)


def test_documents_have_python_blocks():
    assert len(python_blocks()) >= 20
    assert all(document in DOCUMENTS for document in (*IN_ORDER, *AS_TYPED))


# ---- commands, in a quick form ---------------------------------------------------------------------------------------


def commands_of(document: str) -> list[list[str]]:
    """The commands of all bash blocks, as words; a backslash continues a line, and lines without words are left out."""
    lines = [line for _, block in blocks_of(document, "bash") for line in block.replace("\\\n", "").splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


FEWSHOT = (
    "size: 16\nchannels: 1\nmodel: {hidden: 4, method: SoSN(x)+SigmE}\ntest: {way: 2, count: 4}\n"
    "train_classes: 6\nvalidation_classes: 3\nclass_order: names\n"
    "training: {episodes: 2, queries: 2, validate_every: 2, validation_episodes: 2, settling_episodes: 1}\n"
)
TINY = "--crops.size 32 --crops.count 1 --crops.resize 32 --accelerator cpu --workers 0"
GRAPH_RUN = "runs/train/graph/MUTAG/SOP+SpecMaxExpF"
STANDS_FOR = {
    "path/to/FOLDER": {"vision": "stripes", "fewshot": "bars"},
    "path/to/EXAMPLES": {"fewshot": "bars"},
    "photo.jpg": {"vision": "stripes/along/00.png", "fewshot": "bars/bar00/0.png"},
    "album/": {"vision": "stripes/across"},
    "RUN": {"graph": GRAPH_RUN, "vision": "runs/vision", "fewshot": "runs/fewshot", "": GRAPH_RUN},
    "flower102": {"vision": "stripes", "fewshot": "bars"},
    "omniglot": {"fewshot": "bars"},
    "miniimagenet": {"fewshot": "bars"},
    "miniimagenet100": {"fewshot": "bars"},
    "fewshot/miniimagenet100-5-shot": {"fewshot": "small.yaml"},
    "PTC_MR": {"graph": "MUTAG"},
    "PROTEINS": {"graph": "MUTAG"},
    "NCI1": {"graph": "MUTAG"},
}
"""What is typed and stands for something, or is a set that a fresh clone does not have: what is there instead."""
FASTER = {
    "train graph": "--config graph/quick --download false --overwrite",
    "train vision": f"--config vision/quick {TINY} --out runs/vision --overwrite --pool.method SOP",
    "train fewshot": "--config small.yaml --out runs/fewshot",
    "reproduce graph": "--methods GIN0 --protocols validation-only --quick --jobs 1",
    "reproduce vision": "--methods FOP --heads ridge --quick --jobs 1 --workers 0",
    "reproduce fewshot": "--methods SoSN(x) --recipe small.yaml --jobs 1",
    "reproduce fewshot --study": "--source bars --data lines --methods SoSN(x) --recipe study.yaml --jobs 1",
    "sweep vision": "--values 2 --quick --jobs 1 --workers 0",
    "evaluate vision": "--workers 0",
    "evaluate fewshot": "--count 4",
    "predict vision": "--workers 0",
    "inspect": "--samples 3",
    "figures": "--dpi 30",
    "selfcheck": "--quick",
    "bench": f"--quick --repetitions 3 --threads {torch.get_num_threads()} --out bench",
}
"""What makes a command quick, where the line does not say it itself."""
CHECKED_ELSEWHERE = {
    "make": "targets are checked above",
    "pip": "extras are checked above, the wheel in tests/distribution",
    "python docs/making/tables.py": "tests/test_docs.py",
    "powerpool reproduce vision --recipe vision/digits": "tests/tasks/vision/test_tokens.py",
}


def command_of(words: list[str]) -> str:
    """The name of the command in the table of commands."""
    return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


def quick_form(words: list[str]) -> list[str]:
    """The words after ``powerpool`` as they run here: with tiny data, few steps, and all options that were typed."""
    name = command_of(words)
    assert name in COMMANDS, words
    pipeline = next((kind for kind in PIPELINES if kind in name), "")
    for word in words:
        if word in STANDS_FOR:
            assert pipeline in STANDS_FOR[word], f"{word!r} stands for nothing in {name!r}"
    typed = [STANDS_FOR[word][pipeline] if word in STANDS_FOR else word for word in words]
    typed = [word for before, word in zip(["", *typed], typed, strict=False) if word != before]  # MUTAG once
    if name in ("evaluate fewshot", "reproduce fewshot"):  # the bars have three classes to test on
        typed = [{"5": "2", "20": "3"}.get(word, word) for word in typed]
    if name == "reproduce graph" and "--recipe" in typed:  # --quick chooses the settings
        place = typed.index("--recipe")
        del typed[place : place + 2]
    if name == "selfcheck" and not torch.cuda.is_available():
        typed = ["cpu" if word == "cuda" else word for word in typed]
    if name == "figures" and len(typed) == 1 + 2 * ("--out" in typed):
        typed.append("curves")  # all of them are drawn in tests/figures
    if name == "bench" and not (typed[1:] and typed[1] in SUITES):
        typed.insert(1, "curves")  # one suite stands for all of them
    kind = f"{name} --study" if "--study" in typed else name
    return typed + missing_options(typed, FASTER.get(kind, ""))


def runs_as_typed(words: list[str]) -> bool:
    """Whether a page whose commands run as they are typed has the very same words."""
    return any(["powerpool", *words] in commands_of(document) for document in AS_TYPED)


def missing_options(typed: list[str], more: str) -> list[str]:
    """Of further options those whose names were not typed."""
    parts = re.findall(r"(--[\w.]+)((?: [^-]\S*)*)", more)
    return [word for option, values in parts if option not in typed for word in (option, *values.split())]


@pytest.fixture
def place(tmp_path) -> Iterator[Path]:
    """A folder to work in, with tiny data and records. Patches hold for one test: others need the real things."""
    folder = tmp_path
    write_images(folder / "stripes", count=6)
    for name in ("bars", "lines"):
        write_folder(folder / name)
    (folder / "small.yaml").write_text(FEWSHOT)
    (folder / "study.yaml").write_text(f"{FEWSHOT}source_episodes: 2\n")
    for name in ("runs/bench", "results/bench"):
        (folder / name).mkdir(parents=True)
        samples.pair(auto=3.0).save(folder / name / "pools.json")
    every_check = Battery.checks
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.chdir(folder)
        patch.delenv("POWERPOOL_DATA", raising=False)
        patch.setenv("POWERPOOL_CACHE", str(folder / "cache"))
        patch.setattr(runner, "_make_executor", Threads)
        patch.setattr(write, "draw_plots", lambda group, folder, stem: {})
        patch.setattr(command, "has_threads", lambda threads: True)
        # Of each suite and of the battery one part, the first: all of them run in tests of their own.
        patch.setattr(command, "suite_cases", lambda *asked: suite_cases(*asked)[:1])
        patch.setattr(Battery, "checks", lambda self, quick=False: list(every_check(self, quick))[:1])
        patch.setattr(export, "export_model", lambda model, path, **_: (Path(path).write_bytes(b"12"), 1e-7)[1])
        yield folder


def piped(words: list[str]) -> list[list[str]]:
    """The programs of a line."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("|", "&&"):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def run_line(words: list[str], done: set[tuple[str, ...]]) -> None:
    """Run what can be run, once, and hand on what it prints."""
    printed = ""
    for program in piped(words):
        if any(" ".join(program).startswith(known) for known in (*CHECKED_ELSEWHERE, "cd ")):
            continue
        if program[0] == "python":
            asked = [sys.executable, *program[1:]]
            found = subprocess.run(asked, input=printed, text=True, capture_output=True, check=False)
            assert found.returncode == 0, found.stderr
            continue
        assert program[0] == "powerpool", f"{program[0]!r} is run by no test: say in this file how it is"
        quick = program[1:] if program[1] == "--help" else quick_form(program[1:])
        if tuple(quick) in done or runs_as_typed(program[1:]):
            continue
        done.add(tuple(quick))
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(quick)
        assert code == 0, f"powerpool {shlex.join(quick)}: {err.getvalue()}"
        printed = out.getvalue()


@pytest.mark.usefixtures("place")
def test_every_command_of_the_other_pages_runs():
    done: set[tuple[str, ...]] = set()
    assert main(quick_form(shlex.split("train graph --data MUTAG --model.method SOP+SpecMaxExpF --quiet"))) == 0
    for document in DOCUMENTS:
        if document not in AS_TYPED:
            for words in commands_of(document):
                run_line(words, done)
    kinds = {f"{name} {pipeline}" for name in ("train", "evaluate", "predict", "reproduce") for pipeline in PIPELINES}
    alone = {"export vision", "sweep vision", "inspect", "figures", "explore", "selfcheck", "bench"}
    every = (program for document in DOCUMENTS for words in commands_of(document) for program in piped(words))
    assert {command_of(program[1:]) for program in every if program[0] == "powerpool"} >= kinds | alone


@pytest.mark.parametrize("line", ["powerpool fly", "curl http://example.org", "powerpool predict graph photo.jpg"])
def test_a_line_without_a_rule_fails(line):
    with pytest.raises(AssertionError):
        run_line(shlex.split(line), set())


def test_only_the_very_same_words_run_elsewhere():
    assert runs_as_typed(shlex.split("evaluate vision --run runs/digits"))
    for line in ("evaluate vision --run RUN", "evaluate vision", "sweep vision --data digits --over eta --quick"):
        assert not runs_as_typed(shlex.split(line))


def test_names_of_data_that_stand_for_others_have_a_recipe():
    named = set(recipe_names())
    for data in ("flower102", "omniglot", "PTC_MR", "PROTEINS", "NCI1"):
        for pipeline in STANDS_FOR[data]:
            assert f"{pipeline}/{data}" in named


# ---- commands, as they are typed -------------------------------------------------------------------------------------


def use_threads(patch: pytest.MonkeyPatch) -> None:
    """Run units in threads and draw no plots: both have tests of their own, and take most of the time."""
    patch.setattr(runner, "_make_executor", Threads)
    patch.setattr(write, "draw_plots", lambda group, folder, stem: {})


def test_the_commands_of_the_page_on_images_run_in_their_order(tmp_path, monkeypatch):
    use_threads(monkeypatch)
    use_tiny(monkeypatch)  # the real backbone has tests of its own
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))  # as on a machine that never saw the project
    for words in commands_of("docs/images.md"):
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
        else:
            assert main(words[1:]) == 0, words
    assert (tmp_path / "digits.onnx").exists()
    assert (tmp_path / "runs/reproduce/vision-quick/report.html").exists()
    assert (tmp_path / "runs/digits/confusion.png").exists()


def test_the_commands_of_the_page_on_few_shot_learning_run_in_their_order(tmp_path, monkeypatch):
    use_threads(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    for words in commands_of("docs/fewshot.md"):
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
        else:
            assert main(words[1:]) == 0, words
    assert (tmp_path / "runs/reproduce/fewshot-quick/report.html").exists()
    assert (tmp_path / "runs/reproduce/fewshot-pretraining-quick/report.html").exists()


def test_the_commands_of_the_page_on_graphs_run_in_their_order(tmp_path, monkeypatch):
    use_threads(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)  # a fresh clone has MUTAG from a wheel, and nothing else
    commands = commands_of("docs/graphs.md")
    assert [words[1] for words in commands] == ["train", "evaluate", "predict", "reproduce", "report"]
    for words in commands:
        assert main(words[1:]) == 0
    assert len((tmp_path / "classes.csv").read_text().splitlines()) == 1 + 188
    assert (tmp_path / "report/README.md").exists()
