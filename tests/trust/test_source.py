"""The source code: files are written atomically, and nothing that could run code is read."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerpool

ROOT = Path(powerpool.__file__).parent
WRITERS = {"write_text", "write_bytes", "save", "savefig", "savetxt", "dump", "to_csv", "imwrite", "copyfile", "copy2"}
EXCEPTIONS = {
    ("bench/command.py", "record.save"): "a method that calls write_json",
    ("bench/finished.py", "record.save"): "a method that calls write_json",
    ("bench/report.py", "drawing.save"): "a function that uses atomic",
    ("bench/networks.py", "image.resize().save"): "images of a measurement, in a temporary folder",
    ("cli/commands.py", "task.save"): "a method that calls save_model",
    ("cli/reproduce.py", "task.save"): "a method that calls save_model",
    ("cli/main.py", "open"): "os.devnull",
    ("console.py", "open"): "os.devnull",
    ("data/archives.py", "target.open"): "into a folder that is renamed when it is complete",
    ("data/banks.py", "file.open"): "zeros; store.json states which of them are numbers",
    ("data/synthetic.py", "draw().save"): "into a folder that make_once renames",
    ("data/synthetic.py", "small.resize().save"): "into a folder that make_once renames",
    ("runs/config.py", "yaml.dump"): "to a text",
    ("runs/engines.py", "given.write_bytes"): "in a temporary folder, for a process that it starts",
    ("tasks/vision/export.py", "program.save"): "to the file of atomic, in export_model",
    ("tasks/vision/export.py", "torch.export.save"): "to the file of atomic, in export_model",
    ("tasks/vision/loop.py", "self.fabric.logger.save"): "the log of Lightning, which is written again on resuming",
    ("tasks/vision/loop.py", "self.save"): "a method that calls save_state",
    ("tasks/vision/task.py", "model.trained.save"): "a method that calls save_model",
}
"""Calls outside of an atomic block that write no file, or one that is complete before anything reads it."""


@functools.cache
def files() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(ROOT.rglob("*.py"))
    ]


def dotted(node: ast.AST) -> str:
    """Return the name of what is called, such as ``small.resize().save``, without arguments."""
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
    return name == "save_file" or (name in WRITERS and isinstance(call.func, ast.Attribute))


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
    assert found - EXCEPTIONS.keys() == set(), "use powerpool.files: atomic, write_text or write_json"


@pytest.mark.parametrize(
    "text, is_found",
    [
        ("path.write_text('x')", True),
        ("path.open(mode='ab')", True),
        ("save_file(tensors, path)", True),
        ("with other(path) as t:\n    torch.save(x, t)", True),
        ("with atomic(path) as t, t.open('wb') as file:\n    torch.save(x, file)", False),
        ("write_text(path, 'x')", False),
    ],
)
def test_calls_that_write_are_found(text: str, is_found: bool) -> None:
    assert bool(list(outside_of_atomic(ast.parse(text)))) is is_found


NEVER = {
    "eval",
    "exec",
    "os.system",
    "pickle.load",
    "pickle.Unpickler",
    "ArrayUnpickler",
    "marshal.load",
    "marshal.loads",
    "joblib.load",
    "torch.jit.load",
    "torch.export.load",
    "torch.hub.load",
    *(f"yaml.{name}" for name in ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all")),
}
UNPACKS = (".extractall", ".extract", "unpack_archive")
WORKERS = {"runs/engines.py", "runs/scheduler.py", "tasks/vision/finetuning.py"}
"""Modules in which a process unpickles the work that another one of the same command gives it."""
ALLOWED = {
    ("integrations/backbones/alexnet.py", "ArrayUnpickler"): "refuses every name, and builds stand-ins of arrays only",
    ("tasks/vision/export.py", "torch.export.load"): "checks the file that it has just written",
    **{(name, "pickle.loads"): "work of the same command" for name in WORKERS},
}


def could_run_code(call: ast.Call) -> bool:
    """Whether a call may run code from a file, write where an archive says, or use a shell."""
    called, words = dotted(call.func), {word.arg: word.value for word in call.keywords}

    def is_set(name: str, value: bool) -> bool:
        given = words.get(name)
        return isinstance(given, ast.Constant) and given.value is value

    if called == "torch.load":
        return not is_set("weights_only", True)
    if called.startswith("transformers.") and called.endswith("from_pretrained"):
        return not is_set("trust_remote_code", False)
    never = called in NEVER | {"pickle.loads"}
    return never or called.endswith(UNPACKS) or bool({"allow_pickle", "shell"} & words.keys())


def aliases(node: ast.AST) -> list[str]:
    """Return what could run code and is imported by another name, under which its calls would not be found."""
    if isinstance(node, ast.ImportFrom):
        found = [f"{node.module}.{name.name}" for name in node.names]
        return [name for name in found if name in NEVER | {"torch.load", "pickle.loads"}]
    if isinstance(node, ast.Import):
        modules = {name.rpartition(".")[0] for name in NEVER} | {"torch"}
        return [name.name for name in node.names if name.asname and name.name in modules]
    return []


def test_nothing_that_could_run_code_is_read() -> None:
    nodes = [(name, node) for name, tree in files() for node in ast.walk(tree)]
    calls = ((name, node) for name, node in nodes if isinstance(node, ast.Call))
    assert {(name, dotted(call.func)) for name, call in calls if could_run_code(call)} <= ALLOWED.keys()
    assert [(name, aliases(node)) for name, node in nodes if aliases(node)] == []


@pytest.mark.parametrize(
    "text, is_found",
    [
        ("from torch import load as read", True),
        ("from yaml import safe_load", False),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=True)", False),
        ("numpy.load(path, allow_pickle=True)", True),
        ("yaml.load(text)", True),
        ("archive.extractall(folder)", True),
        ("subprocess.run(text, shell=True)", True),
        ("transformers.AutoConfig.from_pretrained(name)", True),
        ("transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)", False),
    ],
)
def test_code_that_could_run_is_found(text: str, is_found: bool) -> None:
    nodes = list(ast.walk(ast.parse(text)))
    found = any(aliases(node) or (isinstance(node, ast.Call) and could_run_code(node)) for node in nodes)
    assert found is is_found
