"""Recipes: what is read from YAML, what is refused and in which words, and that what is written is read back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerpool.errors import ArgumentError, PowerPoolError, did_you_mean
from powerpool.runs import config as configs
from powerpool.runs.config import RecipeError, field_types, read_recipe, recipe_names, resolve, to_yaml


@dataclass(frozen=True)
class Inner:
    hidden: int = 64
    rate: float = 0.5
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ArgumentError(f"model.hidden must be at least 1 (got {self.hidden}).")
        if self.rate > self.hidden:
            raise ArgumentError("rate must not be above hidden.")


@dataclass(frozen=True)
class Outer:
    data: str = "MUTAG"
    root: str | None = None
    kind: Literal["auto", "labels", "degree"] = "auto"
    quick: bool = False
    out: Path = Path("runs")
    steps: int | None = None
    factors: list[float] = field(default_factory=list)
    names: list[str] | None = None
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


def message(recipe: str | Path, config_type=Outer, changes=None) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(recipe, config_type, changes)
    # A file of the fixture is called by its name alone.
    return str(caught.value).replace(str(recipe), recipe.name) if isinstance(recipe, Path) else str(caught.value)


def test_every_kind_of_value_is_read_and_the_rest_has_its_default(recipe):
    text = """
    data: NCI1   # a comment
    root: null
    kind: labels
    quick: true
    out: some/folder
    steps: 3
    factors: [1, 2.5, 1e-2]
    names:
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
        names=["a", "7"],
        pair=(3,),
        model=Inner(hidden=32, sizes=[16, 32]),
    )
    assert [type(factor) for factor in config.factors] == [float, float, float]
    assert read_recipe(recipe("{}"), Outer) == Outer()
    assert read_recipe(recipe("\ufeffdata: X"), Outer).data == "X"  # editors on Windows put that mark in front


def test_a_field_of_a_group_leaves_the_other_defaults_of_that_group(recipe):
    config = read_recipe(recipe("other: {rate: 2}"), Outer)
    assert config.other == Inner(hidden=7, rate=2.0)


def test_changes_go_before_the_recipe(recipe):
    path = recipe("data: A\nmodel: {hidden: 8, rate: 2}")
    config = read_recipe(path, Outer, {"data": "B", "model.rate": 1, "names": ("x",)})
    assert config == Outer(data="B", model=Inner(hidden=8, rate=1.0), names=["x"])
    assert message(path, changes={"model.hiden": 3}) == "unknown field model.hiden. Did you mean model.hidden?"
    assert message(path, changes={"model.hidden": 3.0}) == "model.hidden must be a whole number (got 3.0)."
    assert "model.rate must be a finite number (got 1000" in message(path, changes={"model.rate": 10**400})
    assert "unknown field zzz. The fields are data, root," in message(path, changes={"zzz": 3})


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "data: X\nmodel:\n  hiden: 3",
            "line 3: unknown field model.hiden. Did you mean model.hidden? The fields of model are hidden, rate,",
        ),
        ("hidden: 3", "my.yaml, line 1: unknown field hidden. Did you mean model.hidden? The fields are data,"),
        ("model: {zzz: 3}", "my.yaml, line 1: unknown field model.zzz. The fields of model are"),
        ("model.hidden: 3", "model.hidden takes two lines: 'model:', and indented below it 'hidden: ...'."),
        ("3: x", "unknown field 3."),
        ("? [a]\n: b", "the name of a field is a word (got a list)."),
        ("model:\n\n  hidden: three", "my.yaml, line 3: model.hidden must be a whole number (got 'three')."),
        ("model: {hidden: 3.0}", "model.hidden must be a whole number (got 3.0)."),
        ("model: {hidden: 1e2}", "model.hidden must be a whole number (got 1e2)."),
        ("model: {hidden: 010}", "model.hidden must be a whole number (got 010)."),
        ("model: {hidden: yes}", "model.hidden must be a whole number (got yes)."),
        ("model: {hidden: '3'}", "model.hidden must be a whole number (got the text '3')."),
        ("model:\n  hidden:", "my.yaml, line 2: model.hidden must be a whole number (got nothing)."),
        ("steps: x", "steps must be a whole number or null (got 'x')."),
        ("model: {rate: true}", "model.rate must be a finite number (got true)."),
        ("model: {rate: .nan}", "model.rate must be a finite number (got '.nan')."),
        ("model: {rate: 1e999}", "model.rate must be a finite number (got 1e999)."),
        (f"model: {{rate: 1{'0' * 400}}}", "model.rate must be a finite number (got 1000"),
        ("quick: 1", "quick must be true or false (got 1)."),
        ("data: 123", "data must be a text (got 123). Put it in quotes: '123'."),
        ("data: no", "data must be a text (got no). Put it in quotes: 'no'."),
        ("data: null", "data must be a text (got null)."),
        ("data: [a]", "data must be a text (got a list)."),
        ("data: {a: b}", "data must be a text (got a group of fields)."),
        (r'data: "\0"', "data must be a text"),
        (r'data: "\ud800"', "data must be a text"),
        ("out: ''", "out must be a path (got the text '')."),
        ("kind: lables", "kind must be one of auto, labels, degree (got 'lables'). Did you mean labels?"),
        ("factors: 3", "factors must be a list of finite numbers (got 3)."),
        ("factors:\n- 1\n- two", "my.yaml, line 3: factors[1] must be a finite number (got 'two')."),
        ("factors: [[1]]", "factors[0] must be a finite number (got a list)."),
        ("names: a", "names must be a list of texts or null (got 'a')."),
        ("data: a\nquick: true\ndata: a", "my.yaml, line 3: data is given twice."),
        ("model: {rate: 1, rate: 2}", "model.rate is given twice."),
        ("model: 3", "model must be a group of fields, indented below it (got 3)."),
        ("model: [3]", "model must be a group of fields, indented below it (got a list)."),
        ("model:", "model must be a group of fields, indented below it (got nothing)."),
        ("- a", "my.yaml, line 1: A recipe names fields and their values, such as 'data: ...' (got a list)."),
        ("hello", "such as 'data: ...' (got 'hello')."),
        ("", "my.yaml is empty."),
        ("# only a comment\n", "my.yaml is empty."),
        ("data: x\nquick: a: b", "my.yaml, line 2: this is not YAML: mapping values are not allowed here."),
        ("\tdata: x", "my.yaml, line 1: this is not YAML:"),
        ("data: [a", "this is not YAML:"),
        ("data: x\n\x00", "my.yaml, line 2: this is not YAML: there is a character that no text has."),
        (r'data: "\UFFFFFFFF"', "my.yaml is not YAML:"),
        (b"quick: true\ndata: \xff", "my.yaml, line 2: this is not text in UTF-8."),
        ("data: &a x\nroot: *a", "my.yaml, line 1: a recipe has no anchors (&) and aliases (*)."),
        ("data: x\nroot: *a", "my.yaml, line 2: a recipe has no anchors (&) and aliases (*)."),
        ("data: !!python/name:os.system x", "a recipe has no tags (!)."),
        ("data: x\n---\ndata: y", "my.yaml, line 2: a recipe is one document."),
        ("[" * 100_000, "nested too deep"),
        ("data: " + "{a: " * 5_000, "nested too deep"),
        ("# " + "x" * 1_000_000, "is no recipe: it has 1,000,002 bytes"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_field(recipe, text, expected):
    assert expected in message(recipe(text))


def test_long_values_do_not_fill_the_screen(recipe):
    assert len(message(recipe(f"quick: {'x' * 10_000}"))) < 200
    assert len(message(recipe(f"{'x' * 900}: 3"))) < 300


def test_checks_of_the_configuration_name_the_line_or_at_least_the_file(recipe):
    assert message(recipe("model:\n  hidden: 0")) == "my.yaml, line 2: model.hidden must be at least 1 (got 0)."
    assert message(recipe("model: {hidden: 1, rate: 2}")) == "my.yaml: rate must not be above hidden."


def test_the_recipe_is_blamed_for_what_is_wrong_without_the_changes(recipe):
    good, bad = "data: x", "model: {hidden: 0}"
    with pytest.raises(ArgumentError, match=r"^model\.hidden must be at least 1 \(got -1\)\.$"):
        read_recipe(recipe(good), Outer, {"model.hidden": -1})
    assert message(recipe(bad), changes={"data": "y"}) == "my.yaml, line 1: model.hidden must be at least 1 (got 0)."
    assert read_recipe(recipe(bad), Outer, {"model.hidden": 1}).model.hidden == 1


def test_fields_without_a_default_are_asked_for(recipe):
    assert message(recipe("inner: {hidden: 3}"), Needed) == "my.yaml: name is missing: it must be a text."
    assert read_recipe(recipe("name: x"), Needed) == Needed("x", Inner())


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    assert "folder.yaml is not a file" in message("folder.yaml")
    for name in ("", "nowhere.yaml", "a\0b", "x" * 5000, "../" * 20 + "etc/nothing"):
        assert "There is no recipe" in message(name) or "is not a file" in message(name)
    locked = tmp_path / "locked.yaml"
    locked.write_text("data: x")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("powerpool.records.os.open", refuse)
        said = message("locked.yaml")
    assert "Cannot read locked.yaml: Permission denied." in said


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A package that ships two recipes, and a file that is none."""
    folder = tmp_path / "package" / "recipes"
    (folder / "graph").mkdir(parents=True)
    (folder / "paper.yaml").write_text("figures: 3")
    (folder / "graph" / "MUTAG.yaml").write_text("data: packaged")
    (folder / "graph" / "NCI1.yaml").write_text("data: 1")
    (folder / "graph" / "notes.txt").write_text("no recipe")
    monkeypatch.setattr(configs.resources, "files", lambda package: tmp_path / "package")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("packaged")
def test_recipes_of_the_package_have_names():
    assert recipe_names() == ["graph/MUTAG", "graph/NCI1"]
    assert read_recipe("graph/MUTAG", Outer).data == "packaged"
    assert read_recipe("graph/MUTAG.yaml", Outer).data == "packaged"
    assert message("graph/NCI1").startswith("recipe graph/NCI1, line 1: data must be a text")
    expected = "those that ship with powerpool are graph/MUTAG, graph/NCI1. Did you mean graph/MUTAG?"
    assert expected in message("graph/MUTG")
    assert expected in message("mutag")
    assert "There is no recipe 'paper'" in message("paper")


@pytest.mark.usefixtures("packaged")
def test_a_file_goes_before_a_name_and_a_folder_does_not(tmp_path):
    (tmp_path / "graph" / "MUTAG").mkdir(parents=True)  # a folder of data, say
    assert read_recipe("graph/MUTAG", Outer).data == "packaged"
    (tmp_path / "graph" / "MUTAG").rmdir()
    (tmp_path / "graph" / "MUTAG").write_text("data: mine")
    assert read_recipe("graph/MUTAG", Outer).data == "mine"


def test_every_recipe_that_ships_can_be_read():
    from powerpool.tasks.graph.config import GraphConfig

    names = [name for name in recipe_names() if name.startswith("graph/")]
    assert names
    for name in names:
        assert isinstance(read_recipe(name, GraphConfig), GraphConfig)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("hidden", " Did you mean model.hidden?"),
        ("modle.hidden", " Did you mean model.hidden?"),
        ("grid.hiden", " Did you mean grid.hidden?"),
        ("Epochs", " Did you mean training.epochs?"),
        ("training.zzz", ""),  # the same group is not enough
        ("", ""),
    ],
)
def test_suggestions(name, expected):
    assert did_you_mean(name, ["model.hidden", "grid.hidden", "training.epochs", "training.eta"]) == expected


def test_words_mean_what_people_mean():
    words = ("null", "True", "off", "-3", "1e-2", "1e5", "3.", ".5", "010", "0x10", "1:30", "2020-01-01", ".inf", "1_0")
    expected = (None, True, False, -3, 0.01, 1e5, 3.0, 0.5, 10.0, "0x10", "1:30", "2020-01-01", ".inf", "1_0")
    assert tuple(map(resolve, words)) == expected


def test_a_type_that_no_recipe_can_hold_is_the_error_of_the_programmer(recipe):
    @dataclass(frozen=True)
    class Odd:
        value: complex = 0j

    Odd.__annotations__["value"] = complex
    with pytest.raises(TypeError, match="cannot have a field of the type"):
        read_recipe(recipe("value: 3"), Odd)


def test_field_types_are_those_of_all_groups():
    assert list(field_types(Outer))[-6:] == [
        f"{group}.{name}" for group in ("model", "other") for name in ("hidden", "rate", "sizes")
    ]


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
tricky = st.sampled_from(["1e-2", "1e5", "no", "null", "~", "", "1:30", "0x1", "- a", "a: b", "#", "*a", "&a", "!", "%",
                          "'", '"', "\n", "\x85", "a\u2028 b ", " a", "\ufeff", "é" * 200, "a " * 100])  # fmt: skip
whole, numbers = st.integers(), st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(
    Inner, hidden=st.integers(1, 2**40), rate=st.floats(-1e300, 1.0, allow_nan=False), sizes=st.lists(whole)
)
outers = st.builds(
    Outer,
    data=texts | tricky,
    root=st.none() | texts | tricky,
    kind=st.sampled_from(["auto", "labels", "degree"]),
    quick=st.booleans(),
    out=(texts | tricky).filter(bool).map(Path),
    steps=st.none() | whole,
    factors=st.lists(numbers),
    names=st.none() | st.lists(texts | tricky),
    pair=st.lists(whole).map(tuple),
    model=inners,
    other=inners,
)
quickly = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@quickly
@given(config=outers)
def test_what_is_written_is_read_back(config, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(to_yaml(config).encode())
    assert read_recipe(path, Outer) == config


def test_the_graph_configuration_is_read_back(tmp_path):
    from powerpool.tasks.graph.config import GraphConfig, GridConfig

    config = GraphConfig(data="1e-2", data_root="~", grid=GridConfig(hidden=[16, 32], eta=[1e5]))
    (tmp_path / "graph.yaml").write_text(to_yaml(config))
    assert read_recipe(tmp_path / "graph.yaml", GraphConfig) == config
    assert "  hidden: [16, 32]\n" in to_yaml(config)


@pytest.mark.parametrize("wrong", [{"factors": [float("inf")]}, {"data": "\ud800"}, {"out": Path("\ud800")}])
def test_what_could_not_be_read_back_is_not_written(wrong):
    with pytest.raises(RecipeError, match=f"{next(iter(wrong))}.* must be"):
        to_yaml(dataclasses.replace(Outer(), **wrong))


def refusal(text: bytes, path: Path) -> str | None:
    """What is said of a file that is refused. Nothing but the errors of powerpool may come out."""
    path.write_bytes(text)
    try:
        read_recipe(path, Outer)
    except PowerPoolError as error:
        return str(error)
    return None


pieces = st.sampled_from(["data", "model", "hidden", "rate", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ", ", "'", '"',
                          "&a", "*a", "!!int", "!", "|", ">", "%", "@", "`", "#", "?", "---", "...", "\\", "\\U", "\t",
                          "<<", "0", "1e9", "null", "true", "~", "\x85", "\u2028", "\ufeff", "é"])  # fmt: skip


@quickly
@given(
    text=st.binary()
    | st.text().map(lambda text: text.encode("utf-8", "replace"))
    | st.lists(pieces, max_size=30).map(lambda parts: "".join(parts).encode())
)
def test_any_file_is_read_or_refused_in_words(text, tmp_path_factory):
    said = refusal(text, tmp_path_factory.getbasetemp() / "any.yaml")
    assert said is None or "any.yaml" in said


@quickly
@given(config=outers, data=st.data())
def test_any_damaged_recipe_is_read_or_refused_in_words(config, data, tmp_path_factory):
    text = to_yaml(config)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 10)))
        text = text[:start] + data.draw(pieces | st.text(max_size=3)) + text[end:]
    said = refusal(text.encode("utf-8", "replace"), tmp_path_factory.getbasetemp() / "damaged.yaml")
    assert said is None or "damaged.yaml" in said
