"""Recipes: values read from YAML, refused files, renamed fields, and configurations that are written and read back."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerpool.errors import ArgumentError, did_you_mean
from powerpool.runs import config as configs
from powerpool.runs.config import (
    RecipeError,
    RenamedFieldWarning,
    Setting,
    field_types,
    load_word,
    make_config,
    read_recipe,
    read_settings,
    recipe_names,
    to_yaml,
)


@dataclass(frozen=True)
class Inner:
    RENAMED: ClassVar[dict[str, str]] = {"width": "hidden"}

    hidden: int = 64
    rate: float = 0.5
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ArgumentError(f"model.hidden must be at least 1 (got {self.hidden}).")
        if self.hidden < len(self.sizes):
            raise ArgumentError("There must not be more sizes than channels.")


@dataclass(frozen=True)
class Outer:
    RENAMED: ClassVar[dict[str, str]] = {"old.rate": "model.rate", "values_of": "factors"}

    data: str = "MUTAG"
    root: str | None = None
    kind: Literal["auto", "labels", "degree"] = "auto"
    quick: bool = False
    out: Path = Path("runs")
    steps: int | None = None
    factors: list[float] = field(default_factory=list)
    values: list[str] | None = None  # also a method of the namespaces of jsonargparse
    pair: tuple[int, ...] = (1, 2)
    model: Inner = field(default_factory=Inner)
    other: Inner = field(default_factory=lambda: Inner(hidden=7))


@dataclass(frozen=True)
class Needed:
    name: str
    inner: Inner


@pytest.fixture
def recipe(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "my.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def message(recipe: str | Path, config_type: type = Outer, changes: dict[str, object] | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(recipe, config_type, changes)
    return str(caught.value)


def test_every_kind_of_value_is_read_and_other_fields_have_defaults(recipe):
    text = """
    data: NCI1   # a comment
    root: null
    kind: labels
    quick: yes
    out: some/folder
    steps: 3
    factors: [1, 2.5, 1e-2]
    values:
      - a
      - '7'
    pair: [3]
    model: {hidden: 32, sizes: [16, 32]}
    """
    config = read_recipe(recipe(text), Outer)
    assert config == Outer(
        data="NCI1",
        kind="labels",
        quick=True,
        out=Path("some/folder"),
        steps=3,
        factors=[1.0, 2.5, 0.01],
        values=["a", "7"],
        pair=(3,),
        model=Inner(hidden=32, sizes=[16, 32]),
    )
    assert [type(factor) for factor in config.factors] == [float, float, float]
    assert read_recipe(recipe("{}"), Outer) == Outer()
    assert read_recipe(recipe("\ufeffroot: 'null'"), Outer).root == "null"  # with the byte order mark of Windows
    assert read_recipe(recipe("other: {rate: 2}"), Outer).other == Inner(hidden=7, rate=2.0)


def test_changes_replace_values_of_the_recipe(recipe):
    path = recipe("data: A\nmodel: {hidden: 8, rate: 2}")
    config = read_recipe(path, Outer, {"data": "B", "model.rate": 1, "values": ("x",)})
    assert config == Outer(data="B", model=Inner(hidden=8, rate=1.0), values=["x"])
    for wrong in ({"model.hiden": 3}, {"model.hidden": 3.0}, {"model.rate": 10**400}, {"model.rate": float("nan")}):
        message(path, changes=wrong)
    with pytest.raises(ArgumentError, match="-1"):
        read_recipe(path, Outer, {"model.hidden": -1})


def test_several_recipes_and_direct_values_are_merged(recipe):
    found = read_settings(recipe("data: A\nsteps: 3"), Outer)
    found |= read_settings(recipe("data: B\nmodel: {hidden: 8}"), Outer)
    assert make_config(Outer, found | {"steps": Setting(None)}) == Outer(data="B", model=Inner(hidden=8))


@pytest.mark.parametrize(
    "text, line, expected",
    [
        ("data: X\nmodel:\n  hiden: 3", 3, "Did you mean model.hidden?"),
        ("model:\n\n  hidden: three", 3, "model.hidden must be int (got 'three')"),
        ("model: {hidden: 010}", 1, "model.hidden"),
        ("model:\n  hidden:", 2, "null"),
        ("steps: x", 1, "steps must be int or null (got 'x')"),
        ("model: {rate: true}", 1, "model.rate"),
        ("model: {rate: .nan}", 1, "model.rate must be finite float"),
        ("data: 123", 1, "data must be str (got 123)"),
        (r'root: "\ud800"', 1, "root"),
        ("kind: lables", 1, "one of auto, labels, degree (got 'lables'). Did you mean labels?"),
        ("factors: 3", 1, "list of finite float (got 3)"),
        ("data: a\nquick: true\ndata: a", 3, "data is given twice"),
        ("model: 3", 1, "model does not exist"),
        ("data: &a x\nroot: *a", 1, "anchors"),
        ("data: !!python/name:os.system x", 1, "tags"),
        ("[" * 100_000, 1, "levels"),
        ("model:\n  hidden: 0", 2, "model.hidden must be at least 1 (got 0)."),
    ],
)
def test_errors_name_file_line_and_field(recipe, text, line, expected):
    found = message(path := recipe(text))
    assert found.startswith(f"{path}, line {line}: ")
    assert expected in found


def test_files_that_are_not_recipes_are_refused(recipe):
    texts = [
        "",
        "# only a comment\n",
        "- a",
        "hello",
        "data: x\n---\ndata: y",
        "data: x\n\x00",
        r'data: "\UFFFFFFFF"',
        r'data: "\U00110000"',
    ]
    for text in (*texts, b"data: \xff", "# " + "x" * 1_000_000, f"quick: {'x' * 10_000}", f"{'x' * 900}: 3"):
        found = message(path := recipe(text))
        assert str(path) in found
        assert len(found) < len(str(path)) + 300


def test_strings_of_a_recipe_are_not_parsed_again(recipe, monkeypatch):
    monkeypatch.setattr("yaml.load", lambda *_, **__: pytest.fail("parsed as YAML"))
    bomb = "{a: &a [x, x], b: [*a, *a]}"
    path = recipe(f"data: '{bomb}'\nroot: '{bomb}'\nout: '{bomb}'\nvalues: ['{bomb}']")
    assert read_recipe(path, Outer) == Outer(data=bomb, root=bomb, out=Path(bomb), values=[bomb])
    for name in ("kind", "steps", "quick", "factors", "model.rate"):
        message(path, changes={name: bomb})


def test_a_check_of_several_fields_names_the_file(recipe):
    path = recipe("model: {hidden: 1, sizes: [1, 2]}")
    assert message(path).startswith(f"{path}: There ")
    with pytest.raises(ArgumentError, match="There"):
        read_recipe(path, Outer, {"data": "x"})


def test_required_fields_must_be_given(recipe):
    assert "name" in message(recipe("inner: {hidden: 3}"), Needed)
    assert read_recipe(recipe("name: x"), Needed) == Needed("x", Inner())


def test_renamed_fields_are_accepted_with_a_warning(recipe):
    with pytest.warns(RenamedFieldWarning) as caught:
        config = read_recipe(recipe("old: {rate: 2}\nvalues_of: [1]\nother: {width: 3}"), Outer)
    assert config == Outer(factors=[1.0], model=Inner(rate=2.0), other=Inner(hidden=3))
    assert [str(one.message).split()[:4:3] for one in caught] == [
        ["old.rate", "model.rate;"],
        ["values_of", "factors;"],
        ["other.width", "other.hidden;"],
    ]
    with pytest.warns(RenamedFieldWarning):
        assert "twice" in message(recipe("factors: [1]\nvalues_of: [1]"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not any("old" in name or "width" in name for name in field_types(Outer))
        assert "width" not in to_yaml(Outer())


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    for name in ("folder.yaml", "", "nowhere.yaml", "a\0b", "x" * 5000, "../" * 20 + "etc/nothing"):
        message(name)
    (tmp_path / "locked.yaml").write_text("data: x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("powerpool.files.os.open", refuse)
    assert "locked.yaml: Permission denied" in message("locked.yaml")


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A package that ships two recipes."""
    folder = tmp_path / "package" / "recipes"
    (folder / "graph").mkdir(parents=True)
    (folder / "paper.yaml").write_text("figures: 3")
    (folder / "graph" / "MUTAG.yaml").write_text("data: packaged")
    (folder / "graph" / "NCI1.yaml").write_text("data: 1")
    (folder / "graph" / "notes.txt").write_text("not a recipe")
    monkeypatch.setattr(configs.resources, "files", lambda package: tmp_path / "package")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("packaged")
def test_recipes_of_the_package_are_found_by_name(tmp_path):
    assert recipe_names() == ["graph/MUTAG", "graph/NCI1"]
    assert read_recipe("graph/MUTAG.yaml", Outer).data == "packaged"
    assert message("graph/NCI1").startswith("recipe graph/NCI1, line 1: data ")
    assert "Did you mean graph/MUTAG?" in message("graph/MUTG")
    assert "Did you mean graph/MUTAG?" in message("mutag")
    message("paper")
    (tmp_path / "graph" / "MUTAG").mkdir(parents=True)  # a folder with data, say
    assert read_recipe("graph/MUTAG", Outer).data == "packaged"
    (tmp_path / "graph" / "MUTAG").rmdir()
    (tmp_path / "graph" / "MUTAG").write_text("data: mine")
    assert read_recipe("graph/MUTAG", Outer).data == "mine"


def test_suggestions():
    names = ["model.hidden", "grid.hidden", "training.epochs", "training.eta"]
    words = ("hidden", "modle.hidden", "grid.hiden", "Epochs", "training.zzz", "")  # the same group is not enough
    found = [did_you_mean(word, names).removeprefix(" Did you mean ") for word in words]
    assert found == ["model.hidden?", "model.hidden?", "grid.hidden?", "training.epochs?", "", ""]


def test_words_mean_what_people_mean():
    words = ("True", "off", "-3", "1e-2", "1e5", "3.", ".5", "010", "0x10", "1:30", "2020-01-01", ".inf", "1_0")
    expected = (True, False, -3, 0.01, 1e5, 3.0, 0.5, 10.0, "0x10", "1:30", "2020-01-01", ".inf", "1_0")
    assert tuple(map(load_word, words)) == expected


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
tricky = st.sampled_from(["1e-2", "1e5", "no", "null", "~", "", "1:30", "0x1", "- a", "a: b", "#", "*a", "&a", "!", "%",
                          "'", '"', "\n", "\x85", "a\u2028 b ", " a", "\ufeff", "é" * 200, "a " * 100])  # fmt: skip
whole, numbers = st.integers(-(10**99), 10**99), st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, hidden=st.integers(1000, 2**40), rate=numbers, sizes=st.lists(whole))
outers = st.builds(
    Outer,
    data=texts | tricky,
    root=st.none() | texts | tricky,
    kind=st.sampled_from(["auto", "labels", "degree"]),
    quick=st.booleans(),
    out=(texts | tricky).map(Path),
    steps=st.none() | whole,
    factors=st.lists(numbers),
    values=st.none() | st.lists(texts | tricky),
    pair=st.lists(whole).map(tuple),
    model=inners,
    other=inners,
)
quickly = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@quickly
@given(config=outers)
def test_configurations_are_written_and_read_back(config, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(to_yaml(config).encode())
    assert read_recipe(path, Outer) == config


def test_values_that_could_not_be_read_back_are_not_written():
    for wrong in ({"factors": [float("inf")]}, {"data": "\ud800"}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            to_yaml(dataclasses.replace(Outer(), **wrong))
