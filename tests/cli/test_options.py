"""Options as they are typed, options that are refused, and the help of a command."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerpool.cli.options import help_text, parse, take_flags
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.config import RenamedFieldWarning, to_yaml


@dataclass(frozen=True)
class Model:
    """The model.

    Args:
        hidden: channels
        asinhe_gamma: a parameter
        sizes: to choose from
    """

    RENAMED: ClassVar[dict[str, str]] = {"gamma_prime": "asinhe_gamma"}

    hidden: int = 64
    asinhe_gamma: float = 0.5
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ArgumentError(f"model.hidden must be at least 1 (got {self.hidden}).")


@dataclass(frozen=True)
class Options:
    """Try it.

    Args:
        data: names of data
        data_root: where it is, 100 % of it
        kind: which kind
        quick: whether
        seeds: of trials
        rate: of learning
        out: folder
        model: the model
    """

    data: list[str] = field(default_factory=lambda: ["MUTAG"])
    data_root: str | None = None
    kind: Literal["auto", "labels"] = "auto"
    quick: bool = False
    seeds: list[int] | None = None
    rate: float = 0.1
    out: Path = Path("runs")
    model: Model = field(default_factory=Model)


@dataclass(frozen=True)
class Placed:
    """Compare.

    Args:
        old: before
        new: after
        names: of both
        rate: of both
        quick: whether
    """

    old: Path
    new: int
    names: list[str] = field(default_factory=list)
    rate: float = 1.0
    quick: bool = False


@pytest.fixture(autouse=True)
def recipes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("data: [NCI1]\nrate: 1e-2\nmodel:\n  hidden: 8\n")
    (tmp_path / "bad.yaml").write_text("model:\n  hiden: 3")
    (tmp_path / "low.yaml").write_text("model: {hidden: 0}")
    (tmp_path / "empty.yaml").write_text("data_root: ''")


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("", Options()),
        ("--data MUTAG PTC_MR --quick --seeds 1 -2", Options(["MUTAG", "PTC_MR"], quick=True, seeds=[1, -2])),
        ("--data=MUTAG NCI1", Options(["MUTAG", "NCI1"])),
        ("--data 1 null 1e-2 a--b", Options(["1", "null", "1e-2", "a--b"])),
        ("--data []", Options([])),
        ("--seeds [1,2]", Options(seeds=[1, 2])),
        ("--seeds null", Options()),
        ("--data ['a','b']", Options(["a", "b"])),
        ("--data-root=--a-b=c", Options(data_root="--a-b=c")),
        ("--data-root ~", Options(data_root="~")),
        ("--data-root null", Options()),
        ("--quick false --quick=true", Options(quick=True)),
        ("--rate -1e-3", Options(rate=-1e-3)),
        ("--kind labels", Options(kind="labels")),
        ("--model.hidden 8 --model.asinhe-gamma 2", Options(model=Model(8, 2.0))),
        ("--model.sizes 16 32 --rate 1", Options(model=Model(sizes=[16, 32]), rate=1.0)),
        ("--config my.yaml", Options(["NCI1"], rate=0.01, model=Model(8))),
        ("--model.hidden 4 --config=my.yaml --data A B", Options(["A", "B"], rate=0.01, model=Model(4))),
    ],
)
def test_options_as_they_are_typed(typed, expected):
    assert parse(Options, typed.split()) == expected


def test_flags_are_found_anywhere():
    for typed in ("--quiet train graph --seed 3", "train --quiet graph --seed 3", "train graph --quiet true --seed=3"):
        flags, rest = take_flags(typed.split())
        assert flags == {"quiet"}
        assert " ".join(rest).replace("=", " ") == "train graph --seed 3"
    flags, rest = take_flags(["--rate", "3", "--quiet", "--quiet", "false", "--offline=true", "--data=--json"])
    assert (flags, rest) == ({"offline"}, ["--rate", "3", "--data=--json"])
    with pytest.raises(PowerPoolError, match=r"--json .*a\.json"):
        take_flags(["--json=a.json"])


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("--quit", "Did you mean --quiet?"),
        ("--data", "--data"),
        ("--seeds 1 two", "--seeds must be list of int or null (got ['1', 'two'])"),
        ("--data A --data B", "--data is given twice"),
        ("--rate", "--rate needs a value"),
        ("--rate 1 2", "'2'"),
        ("--rate much", "--rate must be finite float (got 'much')"),
        ("--rate inf", "--rate"),
        (f"--rate {400 * '9'}", "--rate"),
        ("--rate 1:30", "--rate"),
        ("--quick maybe", "--quick must be true or false (got 'maybe')"),
        ("--kind lables", "Did you mean labels?"),
        ("--out=", "--out is empty"),
        ("--config empty.yaml", "empty.yaml, line 1: data_root is empty"),
        ("--model.hidden three", "--model.hidden must be int (got 'three')"),
        ("--model.hidden 0", "model.hidden must be at least 1 (got 0)."),
        ("--model.hiden 3", "Did you mean --model.hidden?"),
        ("--model x", "--model does not exist"),
        ("MUTAG", "'MUTAG'"),
        ("-- x", "'--'"),
        ("--config", "--config needs a value"),
        ("--config bad.yaml", "bad.yaml, line 2: model.hiden does not exist. Did you mean model.hidden?"),
        ("--config low.yaml --quick", "low.yaml, line 1: model.hidden must be at least 1 (got 0)."),
    ],
)
def test_errors_name_the_option_and_the_value(typed, expected):
    with pytest.raises(PowerPoolError, match=re.escape(expected)):
        parse(Options, typed.split())


def test_words_without_a_name_belong_to_required_or_positional_options():
    expected = Placed(Path("a"), 3, rate=2.0)
    for typed in ("a 3 --rate 2", "--rate 2 a 3", "--rate=2 a 3", "3 --old a --rate 2"):
        assert parse(Placed, typed.split()) == expected
    assert parse(Placed, ["a", "3", "--names", "x", "y"]) == Placed(Path("a"), 3, ["x", "y"])
    assert parse(Placed, ["--quick", "a", "3"]) == Placed(Path("a"), 3, quick=True)
    for typed in ("a", "a b", "a 3 c"):
        with pytest.raises(PowerPoolError):
            parse(Placed, typed.split())
    for typed in ("A B --rate 1", "--rate 1 A B", "--data A --rate 1 B"):
        assert parse(Options, typed.split(), "data") == Options(["A", "B"], rate=1.0)
    assert parse(Options, ["labels", "--quick"], "kind") == Options(kind="labels", quick=True)


def test_a_renamed_option_is_accepted_with_a_warning_and_not_in_the_help():
    with pytest.warns(RenamedFieldWarning, match=r"model\.asinhe_gamma"):
        assert parse(Options, ["--model.gamma-prime", "2"]) == Options(model=Model(asinhe_gamma=2.0))
    assert "gamma_prime" not in help_text(Options, "try it") + to_yaml(Options())


def test_help_lists_description_type_and_default_of_every_option():
    text = " ".join(help_text(Options, "try it").split())
    for expected in (
        "usage: powerpool try it [options] Try it.",
        "--data DATA ... names of data (list of str; default: MUTAG)",
        "--data_root DATA_ROOT where it is, 100 % of it (str or null; default: null)",
        "--kind KIND which kind (one of auto, labels; default: auto)",
        "--quick [true|false] whether (true or false; default: false)",
        "--seeds SEEDS ... of trials (list of int or null; default: null)",
        "--model.sizes SIZES ... to choose from (list of int; default: [])",
        "--config RECIPE",
        "--print_config",
        "--json",
    ):
        assert expected in text
    assert "--model CONFIG" not in text
    assert "+" not in text
    text = help_text(Placed, "compare")
    assert text.startswith("usage: powerpool compare OLD NEW [options]\n")
    assert "before (path; required)" in text
    assert help_text(Options, "predict", "data").startswith("usage: powerpool predict [DATA] [options]\n")


def test_help_names_the_recipes_of_the_package_that_fit(monkeypatch, tmp_path):
    folder = tmp_path / "recipes" / "graph"
    folder.mkdir(parents=True)
    (folder / "fits.yaml").write_text("rate: 3")
    (folder / "other.yaml").write_text("epochs: 3")
    monkeypatch.setattr("powerpool.runs.config.resources.files", lambda package: tmp_path)
    text = help_text(Options, "train graph")
    assert "graph/fits" in text
    assert "graph/other" not in text
    assert "graph/fits" not in help_text(Options, "report")
    assert parse(Options, ["--config", "graph/fits", "--quick"]) == Options(rate=3.0, quick=True)


words = st.sampled_from(["--data", "--seeds", "--quick", "--rate", "--model.hidden", "--model", "--", "-1", "null",
                         "true", "3", "[", "]", "[]", "=", "--rate=", "--zzz=3"])  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(words=st.lists(words | st.text()))
def test_any_words_are_options_or_refused_with_an_error_of_powerpool(words):
    with contextlib.suppress(PowerPoolError):
        assert isinstance(parse(Options, words), Options)
