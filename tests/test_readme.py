"""What the documents say works: every python block runs, every command, target and extra they name exists."""

import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from powerpool.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "docs/graphs.md", "docs/images.md", "docs/fewshot.md"),
    *("docs/figures.md", "docs/inspect.md", "docs/selfcheck.md", "docs/cli.md", "docs/scaling.md", "docs/explore.md"),
)


def test_every_path_in_the_documents_exists():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*/README.md")]
    for document in {*DOCUMENTS, *(str(page.relative_to(ROOT)) for page in pages)}:
        text = (ROOT / document).read_text(encoding="utf-8")
        # In code a path starts at the root of the project, in a link at the folder of the document.
        named = [ROOT / path for path in re.findall(r"`((?:tests|src|docs|results)/[\w./-]+)`", text)]
        linked = [(ROOT / document).parent / path for path in re.findall(r"\]\((?!http)([\w./-]+)\)", text)]
        missing = [str(path) for path in named + linked if not path.exists()]
        assert not missing, f"{document} names {missing}"


def python_blocks() -> list:
    blocks = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start(1)) + 1
            blocks.append(pytest.param(document, line, match.group(1), id=f"{document}:{line}"))
    return blocks


def code_of(document: str) -> str:
    """Fenced blocks and inline code: the parts of a document that a reader may type."""
    text = (ROOT / document).read_text(encoding="utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", text)
    return "\n".join(fenced + inline)


@pytest.mark.parametrize("document, line, code", python_blocks())
def test_python_block_runs_on_its_own(document, line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a block may write
    # Blank lines in front make the line numbers of a traceback those of the document.
    exec(compile("\n" * (line - 1) + code, document, "exec"), {"__name__": "__readme__"})


def test_readme_has_python_blocks():
    assert len(python_blocks()) >= 5


def test_first_screen_of_the_readme_shows_the_pool_and_the_two_commands():
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30])
    for shown in ("SecondOrderPool2d", "out_features", "make demo", "make test"):
        assert shown in screen


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_exists(document):
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", code_of(document)))
    assert named or document.startswith("docs/")
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_powerpool_command_exists(document):
    typed = re.findall(r"^(?:\$ )?powerpool ([a-z]+)(?: ([a-z]+))?", code_of(document), flags=re.MULTILINE)
    assert all(first in COMMANDS or f"{first} {second}" in COMMANDS for first, second in typed)


def commands_of(document: str) -> list[list[str]]:
    """The lines of all bash blocks, as words."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_the_commands_of_the_page_on_images_run_in_their_order(tmp_path, monkeypatch):
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)  # a fresh clone has MUTAG from a wheel, and nothing else
    commands = commands_of("docs/graphs.md")
    assert [words[1] for words in commands] == ["train", "evaluate", "predict", "reproduce", "report"]
    for words in commands:
        assert main(words[1:]) == 0
    assert len((tmp_path / "classes.csv").read_text().splitlines()) == 1 + 188
    assert (tmp_path / "report/README.md").exists()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_extra_exists(document):
    provided = set(metadata("powerpool").get_all("Provides-Extra"))
    named = {
        extra for group in re.findall(r"(?:powerpool|\.)\[([\w,]+)\]", code_of(document)) for extra in group.split(",")
    }
    assert named <= provided
