"""The source itself: files are written in one way, and nothing that could run code is ever read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerpool

ROOT = Path(powerpool.__file__).parent
WRITERS = {"write_text", "write_bytes", "save", "savefig", "savetxt", "dump", "to_csv", "imwrite", "copyfile", "copy2"}
NO_FILE = {
    ("bench/command.py", "record.save"): "a method that goes through write_json",
    ("bench/publish.py", "record.save"): "a method that goes through write_json",
    ("pipelines/graph/commands.py", "TrainedModel().save"): "a method that goes through save_state",
    ("pipelines/fewshot/evaluation.py", "training_model().save"): "a method that goes through save_state",
    ("pipelines/vision/commands.py", "model.save"): "a method that goes through save_state",
    ("pipelines/vision/learner.py", "self.save"): "a method that goes through save_state",
    ("pipelines/vision/learner.py", "self.logger.save"): "the log of Lightning, which is written anew on resuming",
    ("runs/config.py", "yaml.dump"): "to a text",
    ("data/synthetic.py", "small.resize().save"): "into a folder that make_once renames",
    ("data/synthetic.py", "draw().save"): "into a folder that make_once renames",
    ("bench/extraction.py", "picture.resize().save"): "pictures of a measurement, in a folder for it alone",
    ("pipelines/vision/export.py", "torch.export.save"): "to the file of atomic, in export_model",
    ("pipelines/vision/export.py", "program.save"): "to the file of atomic, in export_model",
    ("bench/plots.py", "plotting.save"): "a function that goes through atomic",
    ("cli/main.py", "open"): "nowhere: os.devnull",
    ("console.py", "open"): "nowhere: os.devnull",
    ("selfcheck/battery.py", "torch.save"): "into memory",
    ("experiments/engines.py", "given.write_bytes"): "what one process hands to another that it starts",
    ("data/archives.py", "target.open"): "into a folder that is renamed when all of it is there",
    ("data/features.py", "file.open"): "zeros; store.json says which of them are numbers",
}
"""Calls outside of a block of atomic that write no file that is read later, or one that is renamed when it is whole."""


def files() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def dotted(node: ast.AST) -> str:
    """``small.resize().save`` of a call; the arguments do not matter."""
    if isinstance(node, ast.Call):
        return f"{dotted(node.func)}()"
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def writes(call: ast.Call) -> bool:
    """Whether a call may write a file: by its name, or because it opens one to write."""
    name = dotted(call.func).rpartition(".")[2]
    if name == "open":
        texts = [part.value for part in (*call.args, *(word.value for word in call.keywords))
                 if isinstance(part, ast.Constant) and isinstance(part.value, str)]  # fmt: skip
        return any(set(text) <= set("rwxabt+") and set(text) & set("wxa+") for text in texts)
    return name in WRITERS and isinstance(call.func, ast.Attribute)


def outside_of_atomic(tree: ast.AST, inside: bool = False) -> Iterator[ast.Call]:
    for node in ast.iter_child_nodes(tree):
        within = inside
        if isinstance(node, ast.With):
            within |= any(dotted(item.context_expr) == "atomic()" for item in node.items)
        if isinstance(node, ast.Call) and not within and writes(node):
            yield node
        yield from outside_of_atomic(node, within)


def test_every_file_is_written_through_atomic() -> None:
    found = {(name, dotted(call.func)) for name, tree in files() for call in outside_of_atomic(tree)}
    assert found - NO_FILE.keys() == set(), "write it inside of records.atomic, or with write_text or write_json"


@pytest.mark.parametrize(
    "text, is_found",
    [
        ("path.write_text('x')", True),
        ("open(path, 'w')", True),
        ("path.open(mode='ab')", True),
        ("with atomic(path) as temporary:\n    temporary.write_text('x')", False),
        ("with atomic(path) as t, t.open('wb') as file:\n    torch.save(x, file)", False),
        ("with other(path) as t:\n    torch.save(x, t)", True),
        ("path.open('rb')", False),
        ("write_text(path, 'x')", False),
    ],
)
def test_the_search_finds_what_it_should(text: str, is_found: bool) -> None:
    assert bool(list(outside_of_atomic(ast.parse(text)))) is is_found


NEVER = {
    "eval",
    "exec",
    "os.system",
    "pickle.load",
    "pickle.Unpickler",
    "marshal.load",
    "marshal.loads",
    "joblib.load",
    "torch.jit.load",
    "torch.export.load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load_all",
    "yaml.full_load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "torch.hub.load",
}
UNPACKS = (".extractall", ".extract", "unpack_archive")


def could_run_code(call: ast.Call) -> bool:
    """Whether a call may run what is in a file, write where a file says, or hand a text to a shell."""
    called, words = dotted(call.func), {word.arg: word.value for word in call.keywords}

    def is_set(name: str, value: bool) -> bool:
        given = words.get(name)
        return isinstance(given, ast.Constant) and given.value is value

    if called == "torch.load":
        return not is_set("weights_only", True)
    if called.startswith("transformers.") and called.endswith("from_pretrained"):
        return not is_set("trust_remote_code", False)
    return called in NEVER or called.endswith(UNPACKS) or bool({"allow_pickle", "shell"} & words.keys())


def hidden(node: ast.AST) -> list[str]:
    """Functions that could run code and that are imported by another name, under which no call of them is found."""
    if isinstance(node, ast.ImportFrom):
        found = [f"{node.module}.{name.name}" for name in node.names]
        return [name for name in found if name in NEVER | {"torch.load", "pickle.loads"}]
    if isinstance(node, ast.Import):
        modules = {name.rpartition(".")[0] for name in NEVER} | {"torch"}
        return [name.name for name in node.names if name.asname and name.name in modules]
    return []


OWN = {("pipelines/vision/export.py", "torch.export.load"): "the file that it has just written, to try it"}


def test_nothing_that_could_run_code_is_read() -> None:
    nodes = [(name, node) for name, tree in files() for node in ast.walk(tree)]
    calls = ((name, node) for name, node in nodes if isinstance(node, ast.Call))
    assert {(name, dotted(call.func)) for name, call in calls if could_run_code(call)} == OWN.keys()
    assert [(name, hidden(node)) for name, node in nodes if hidden(node)] == []


@pytest.mark.parametrize(
    "text, found",
    [
        ("from torch import load", ["torch.load"]),
        ("from torch import load as read", ["torch.load"]),
        ("from pickle import Unpickler, dumps", ["pickle.Unpickler"]),
        ("from yaml import safe_load", []),
        ("import joblib as j", ["joblib"]),
        ("import torch", []),
        ("from torch import nn", []),
    ],
)
def test_the_search_for_other_names_finds_what_it_should(text: str, found: list[str]) -> None:
    assert hidden(ast.parse(text).body[0]) == found


@pytest.mark.parametrize(
    "text, is_found",
    [
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("numpy.load(path, allow_pickle=True)", True),
        ("yaml.load(text)", True),
        ("yaml.load_all(text)", True),
        ("pickle.Unpickler(file)", True),
        ("joblib.load(path)", True),
        ("torch.jit.load(path)", True),
        ("torch.export.load(path)", True),
        ("marshal.loads(data)", True),
        ("yaml.safe_load(text)", False),
        ("archive.extractall(folder)", True),
        ("subprocess.run(text, shell=True)", True),
        ("transformers.AutoConfig.from_pretrained(name)", True),
        ("transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)", False),
    ],
)
def test_the_search_for_code_finds_what_it_should(text: str, is_found: bool) -> None:
    (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    assert could_run_code(call) is is_found


def test_pickles_come_from_our_own_processes_alone() -> None:
    """``pickle.loads`` is for work that one process hands to another that it started, never for a user's file."""
    found = {name for name, tree in files() for node in ast.walk(tree)
             if isinstance(node, ast.Call) and dotted(node.func) == "pickle.loads"}  # fmt: skip
    assert found <= {"experiments/runner.py", "experiments/engines.py", "pipelines/vision/processes.py"}
