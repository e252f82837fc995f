"""The command line as a user types it."""

import contextlib
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerpool.cli import main as cli
from powerpool.cli.main import COMMANDS, main
from powerpool.cli.options import FLAGS, Flags, help_text, parse, read_flags
from powerpool.data.store import DEFAULT_LIMITS, limit_variable
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.config import describe, field_types, to_yaml

POWERPOOL = Path(sys.executable).with_name("powerpool")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([POWERPOOL, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["--quiet"]], ids=["nothing", "help", "h", "a flag"])
def test_help_lists_every_command_and_the_flags_of_all(arguments, capsys):
    assert main(arguments) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    for name, command in COMMANDS.items():
        assert f"  {name}" in text
        assert command.help in text
    for flag, meaning in FLAGS.items():
        assert re.search(rf"  --{flag} +{meaning}", text)


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"powerpool {version('powerpool')}\n"


@pytest.mark.parametrize(
    "word, said",
    [
        ("trian", "there is no command 'trian'. Did you mean train? 'powerpool --help' lists all commands."),
        ("no-such-command", "there is no command 'no-such-command'. 'powerpool --help' lists all commands."),
        ("--verbose", "there is no option '--verbose'. 'powerpool --help' lists all commands."),
        (999 * "x", f"there is no command '{57 * 'x'}...'. 'powerpool --help' lists all commands."),
    ],
)
def test_an_unknown_command_is_a_usage_error(word, said, capsys):
    assert main([word, "graph"]) == 2
    assert capsys.readouterr() == ("", f"powerpool: error: {said}\n")


@pytest.mark.parametrize("first", ["train", "evaluate", "predict", "reproduce"])
def test_a_command_without_its_pipeline_says_which_there_are(first, capsys):
    assert main([first]) == 2
    said = f"powerpool {first}: error: which pipeline? Choose one of: graph, vision, fewshot.\n"
    assert capsys.readouterr().err == said
    assert main([first, "--seed", "3"]) == 2
    assert "which pipeline? Choose one of: graph, vision, fewshot." in capsys.readouterr().err
    assert main([first, "grahp", "--seed", "3"]) == 2
    said = "there is no pipeline 'grahp'. Did you mean graph? Choose one of: graph, vision, fewshot."
    assert said in capsys.readouterr().err
    assert main([first, "--help"]) == 0
    assert f"powerpool {first} graph  {COMMANDS[f'{first} graph'].help}" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_every_option(name, capsys):
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: powerpool {name}")
    assert main([*name.split(), "-h"]) == 0
    assert capsys.readouterr().out == text
    function = cli._load(COMMANDS[name].target)  # fails where the table names what does not exist
    hints = field_types(cli._options_type(function))
    assert not hints.keys() & {"config", "print_config", "help"}  # these the command line has for itself
    for flag, meaning in FLAGS.items():
        assert flag in hints or f"--{flag} {meaning}" in " ".join(text.split())
    for option, hint in hints.items():
        # Every option says what it is for, before what it may be.
        says = re.search(rf"  --{re.escape(option)}\s.*?\((?={re.escape(describe(hint).split()[0])})", text, re.DOTALL)
        assert says, option
        assert len(says[0].split()) > 3, option


def test_the_program_gives_the_exit_code_and_prints_no_more_than_the_error():
    result = run("demo", "--job", "3")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "powerpool demo: error: There is no option --job. Did you mean --jobs?\n"


@pytest.mark.parametrize(
    "missing, arguments", [("jsonargparse", ["--help"]), ("yaml", ["--config=x"]), ("rich", []), ("grakel", [])]
)
def test_demo_without_an_extra_says_how_to_install_it(missing, arguments, tmp_path):
    # A None entry makes `import missing` fail as if the package were not there.
    (tmp_path / "x").write_text("jobs: 1")
    called = f"from powerpool.cli.main import main; sys.exit(main({['demo', *arguments]}))"
    script = [sys.executable, "-c", f"import sys; sys.modules[{missing!r}] = None; {called}"]
    result = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert result.returncode == 1
    assert f"needs the package '{missing}" in result.stderr
    assert f"pip install 'powerpool[{COMMANDS['demo'].extras}]'" in result.stderr
    assert "Traceback" not in result.stderr


@dataclass(frozen=True)
class Model:
    """The model.

    Args:
        hidden: channels
        asinhe_gamma: a parameter
        sizes: to choose from
    """

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


def test_the_page_names_every_variable_and_the_usual_limits():
    folder = Path(__file__).parents[1]
    page = (folder / "docs" / "cli.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (folder / "src").rglob("*.py"))
    found = {name for name in re.findall(r"POWERPOOL_[A-Z_]*[A-Z]", sources) if name != "POWERPOOL_MAX"}
    for name in {*found, *map(limit_variable, DEFAULT_LIMITS)}:
        assert f"| `{name}` |" in page
    sizes = {"pixels": "50 million", "files": "2 million", "unpacked": "50 GiB", "ratio": "200", "text": "2 GiB"}
    units = {"million": 10**6, "GiB": 2**30}
    for name, size in sizes.items():
        number, _, unit = size.partition(" ")
        assert int(number) * units.get(unit, 1) == DEFAULT_LIMITS[name]
        assert re.search(rf"`{limit_variable(name)}` .* \| {size} \|\n", page)


@dataclass(frozen=True)
class Placed:
    """Compare.

    Args:
        old: before
        new: after
        names: of both
        rate: of both
    """

    old: Path
    new: int
    names: list[str] = field(default_factory=list)
    rate: float = 1.0


def try_it(options: Options) -> None:
    sys.stdout.write(to_yaml(options))


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """The command ``powerpool try it``, in a folder with a recipe."""
    monkeypatch.setitem(COMMANDS, "try it", cli.Command("trial:try_it", "try it", "train"))
    monkeypatch.setattr(cli, "_load", lambda target: try_it)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("data: [NCI1]\nrate: 1e-2\nmodel:\n  hidden: 8\n")
    return lambda *arguments: main(["try", "it", *arguments])


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("", Options()),
        ("--data MUTAG PTC_MR --quick --seeds 1 -2", Options(["MUTAG", "PTC_MR"], quick=True, seeds=[1, -2])),
        ("--data=MUTAG", Options(["MUTAG"])),
        ("--data=MUTAG NCI1", Options(["MUTAG", "NCI1"])),
        ("--data 1 null 1e-2 a--b", Options(["1", "null", "1e-2", "a--b"])),
        ("--data []", Options([])),
        ("--seeds [1, 2]", Options(seeds=[1, 2])),
        ("--seeds [1,2]", Options(seeds=[1, 2])),
        ("--seeds null", Options()),
        ("--data ['a','b']", Options(["a", "b"])),
        ("--data-root my-data", Options(data_root="my-data")),
        ("--data_root=my-data", Options(data_root="my-data")),
        ("--data-root=--a-b=c", Options(data_root="--a-b=c")),
        ("--data-root 123", Options(data_root="123")),
        ("--data-root null", Options()),
        ("--quick false --quick=true", Options(quick=True)),
        ("--quick no", Options()),
        ("--rate -1e-3", Options(rate=-1e-3)),
        ("--rate 3", Options(rate=3.0)),
        ("--out 123", Options(out=Path("123"))),
        ("--kind labels", Options(kind="labels")),
        ("--model.hidden 8 --model.asinhe-gamma 2", Options(model=Model(8, 2.0))),
        ("--model.sizes 16 32 --rate 1", Options(model=Model(sizes=[16, 32]), rate=1.0)),
        ("--config my.yaml", Options(["NCI1"], rate=0.01, model=Model(8))),
        ("--model.hidden 4 --config=my.yaml --data A B", Options(["A", "B"], rate=0.01, model=Model(4))),
    ],
)
@pytest.mark.usefixtures("trial")
def test_options_as_they_are_typed(typed, expected):
    assert parse(Options, typed.split()) == expected


@pytest.mark.parametrize(
    "typed, flags, expected",
    [
        ("--quiet", Flags(quiet=True), Options()),
        ("--json --rate 3 --debug", Flags(json=True, debug=True), Options(rate=3.0)),
        ("--rate 3 --quiet false --offline=true", Flags(offline=True), Options(rate=3.0)),
        ("--data A --quiet", Flags(quiet=True), Options(["A"])),
        ("--data=--quiet", Flags(), Options(["--quiet"])),
    ],
)
def test_flags_stand_anywhere_and_are_no_options(typed, flags, expected):
    assert read_flags(typed.split()) == flags
    assert parse(Options, typed.split()) == expected


def test_words_behind_a_flag_are_not_values_of_the_option_before_it():
    assert parse(Placed, ["--rate", "2", "--json", "a", "--quiet", "3"]) == Placed(Path("a"), 3, rate=2.0)
    with pytest.raises(PowerPoolError, match="'B' belongs to no option"):
        parse(Options, ["--data", "A", "--json", "B"])
    assert parse(Options, ["--rate", "1", "--json", "B"], "data") == Options(["B"], rate=1.0)


@dataclass(frozen=True)
class OwnJson:
    """Check.

    Args:
        json: true or a file
    """

    json: str | None = None


def test_an_option_of_a_command_goes_before_the_flag_of_its_name():
    assert parse(OwnJson, ["--json"]) == OwnJson("true")
    assert parse(OwnJson, ["--json=out.json", "--quiet"]) == OwnJson("out.json")
    text = help_text(OwnJson, "check")
    assert text.count("--json") == 1
    assert "--quiet" in text


@pytest.mark.parametrize(
    "typed, message",
    [
        ("--json=a.json", "--json is given alone, or with true or false (got 'a.json')."),
        ("--quit", "There is no option --quit. Did you mean --quiet?"),
        ("--data", "--data needs at least one value ([] stands for an empty list)."),
        ("--data=", "--data needs at least one value"),
        ("--data --quick", "--data needs at least one value"),
        ("--seeds 1 two", "--seeds must be a whole number (got 'two')."),
        ("--seeds 1.0", "--seeds must be a whole number (got '1.0')."),
        ("--data A --data B", "--data is given twice. Put all its values behind one of the two."),
        ("--rate", "--rate needs one value (got none)."),
        ("--rate 1 2", "--rate needs one value (got 2: 1 2)."),
        ("--rate much", "--rate must be a finite number (got 'much')."),
        ("--seeds ~", "--seeds must be a whole number (got '~')."),
        ("--rate inf", "--rate must be a finite number (got 'inf')."),
        ("--kind lables", "--kind must be one of auto, labels (got 'lables'). Did you mean labels?"),
        ("--out=", "--out must be a path (got '')."),
        ("--data-root=", "--data_root must not be an empty text. Was a variable of the shell meant that is not set?"),
        ("--data=['',a]", "--data must not be an empty text."),
        ("--config empty.yaml", "empty.yaml, line 1: data_root must not be an empty text."),
        (f"--data-root {9000 * 'x'} y", "--data_root needs one value (got 2: xxx"),
        ("--model.hidden three", "--model.hidden must be a whole number (got 'three')."),
        ("--model.hidden 0", "model.hidden must be at least 1 (got 0)."),
        ("--model.hiden 3", "There is no option --model.hiden. Did you mean --model.hidden?"),
        ("--hidden 3", "There is no option --hidden. Did you mean --model.hidden?"),
        ("--data-rot x", "There is no option --data_rot. Did you mean --data_root?"),
        ("--model x", "--model is a group of options: give one of them, such as --model.hidden."),
        ("MUTAG", "'MUTAG' belongs to no option. The name of one comes first: --name value."),
        ("-- x", "There is no option '--'."),
        ("--print-config=yes", "--print_config takes no value (got yes)."),
        ("--config", "--config needs one value (got none)."),
        ("--config nowhere.yaml", "There is no recipe 'nowhere.yaml'"),
        ("--config bad.yaml", "bad.yaml, line 2: unknown field model.hiden. Did you mean model.hidden?"),
        ("--config low.yaml --quick", "low.yaml, line 1: model.hidden must be at least 1 (got 0)."),
        ("--config my.yaml --model.hidden 0", "model.hidden must be at least 1 (got 0)."),
    ],
)
def test_a_bad_option_is_told_in_one_line(trial, typed, message, capsys):
    Path("bad.yaml").write_text("model:\n  hiden: 3")
    Path("low.yaml").write_text("model: {hidden: 0}")
    Path("empty.yaml").write_text("data_root: ''")
    assert trial(*typed.split()) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"powerpool try it: error: {message}")
    assert errors.count("\n") == 1


def test_the_options_can_be_printed_as_a_recipe(trial, capsys):
    assert trial("--config", "my.yaml", "--data", "1", "--print_config") == 0
    printed = capsys.readouterr().out
    Path("printed.yaml").write_text(printed)
    assert parse(Options, ["--config", "printed.yaml"]) == Options(["1"], rate=0.01, model=Model(8))
    assert "data: ['1']\n" in printed


def test_help_says_what_an_option_may_be_and_what_it_is(trial, capsys):
    assert trial("--data", "x", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for expected in (
        "usage: powerpool try it [options] Try it.",
        "--config RECIPE a YAML file of these options. An option that is typed goes before it",
        "--data DATA ... names of data (a list of texts; default: MUTAG)",
        "--data_root DATA_ROOT where it is, 100 % of it (a text or null; default: null)",
        "--kind KIND which kind (one of auto, labels; default: auto)",
        "--quick [true|false] whether (true or false; default: false)",
        "--seeds SEEDS ... of trials (a list of whole numbers or null; default: null)",
        "--model.sizes SIZES ... to choose from (a list of whole numbers; default: [])",
    ):
        assert expected in text
    assert "--model CONFIG" not in text
    assert "+" not in text


def test_options_without_a_default_are_given_by_their_place_or_name():
    expected = Placed(Path("a"), 3, rate=2.0)
    for typed in ("a 3 --rate 2", "--rate 2 a 3", "--rate=2 a 3", "3 --old a --rate 2", "--new 3 a --rate 2"):
        assert parse(Placed, typed.split()) == expected
    assert parse(Placed, ["a", "3", "--names", "x", "y"]) == Placed(Path("a"), 3, ["x", "y"])
    for typed, message in (
        ("a", "new is missing: it must be a whole number."),
        ("a b", "--new must be a whole number (got 'b')."),
        ("a 3 c", "'c' belongs to no option."),
    ):
        with pytest.raises(PowerPoolError, match=re.escape(message)):
            parse(Placed, typed.split())
    assert help_text(Placed, "compare").startswith("usage: powerpool compare OLD NEW [options]\n")
    assert "before (a path; required)" in help_text(Placed, "compare")


def test_help_names_the_recipes_of_the_package_that_fit(monkeypatch, tmp_path):
    folder = tmp_path / "recipes" / "graph"
    folder.mkdir(parents=True)
    (folder / "fits.yaml").write_text("rate: 3")
    (folder / "other.yaml").write_text("epochs: 3")
    monkeypatch.setattr("powerpool.runs.config.resources.files", lambda package: tmp_path)
    assert "ships with powerpool: graph/fits. An" in " ".join(help_text(Options, "train graph").split())
    assert "ships" not in help_text(Options, "report")
    assert parse(Options, ["--config", "graph/fits", "--quick"]) == Options(rate=3.0, quick=True)


@settings(max_examples=200, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(
            [
                "--data",
                "--seeds",
                "--quick",
                "--rate",
                "--model.hidden",
                "--model",
                "--",
                "-1",
                "null",
                "true",
                "3",
                "[",
                "]",
                "[]",
                "=",
                "--rate=",
                "--zzz=3",
            ]
        )
        | st.text()
    )
)
def test_any_words_are_options_or_refused_in_words(words):
    with contextlib.suppress(PowerPoolError):
        assert isinstance(parse(Options, words), Options)
