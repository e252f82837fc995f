"""The command line as a user types it, in a subprocess, and the parts of the demo that make its table fair."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from powerpool import demo
from powerpool.cli import COMMANDS

POWERPOOL = Path(sys.executable).with_name("powerpool")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([POWERPOOL, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_help_lists_every_command():
    result = run("--help")
    assert result.returncode == 0
    for name, command in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert command.help in result.stdout


def test_version_is_that_of_the_package():
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.strip() == f"powerpool {version('powerpool')}"


@pytest.mark.parametrize("arguments", [(), ("no-such-command",)], ids=["none", "unknown"])
def test_a_missing_or_unknown_command_is_a_usage_error(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert "usage: powerpool" in result.stderr
    if arguments:
        assert "invalid choice: 'no-such-command'" in result.stderr
        assert all(name in result.stderr for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_every_option(name):
    result = run(name, "--help")
    assert result.returncode == 0
    assert f"usage: powerpool {name}" in result.stdout
    assert "--config" in result.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--epochs", "many"), "Got value: many"),
        (("--epochs", "0"), "epochs must be >= 1 (got 0)"),
        (("--seed", "-1"), "seed must be >= 0"),
        (("--quick", "perhaps"), "Got value: perhaps"),
        (("--epoch", "3"), "unrecognized arguments: --epoch"),
    ],
)
def test_demo_refuses_a_bad_option_without_a_traceback(arguments, message):
    result = run("demo", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("missing", ["jsonargparse", "rich", "sklearn"])
def test_demo_without_an_extra_says_how_to_install_it(missing):
    # A None entry makes `import missing` fail as if the package were not there.
    script = f"import sys; sys.modules[{missing!r}] = None; from powerpool.cli import main; sys.exit(main(['demo']))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert f"needs the package '{missing}" in result.stderr
    assert "pip install 'powerpool[train,sklearn]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_demo_quick_prints_one_table_with_a_row_for_every_method():
    result = run("demo", "--quick")
    assert result.returncode == 0, result.stderr
    rows = re.findall(r"│ (.+?) +│ +([\d.]+) │ +([\d,]+) │ +([\d.]+) │", result.stdout)
    assert [row[0] for row in rows] == list(demo.METHODS)
    assert all(0 <= float(accuracy) <= 100 for _, accuracy, _, _ in rows)
    # Three 3x3 convolutions, their batch norms, and a linear layer from 32 or from 32 * 33 / 2 features to ten classes.
    trunk = 9 * (1 * 32 + 32 * 32 + 32 * 32) + 3 * 2 * 32
    first, second = trunk + 32 * 10 + 10, trunk + 528 * 10 + 10
    assert [int(parameters.replace(",", "")) for _, _, parameters, _ in rows] == [first, second, second, second]


def test_demo_methods_start_from_the_same_trunk():
    trunk = demo.make_trunk()
    for make_pool in demo.METHODS.values():
        model = demo.make_model(trunk, make_pool())
        for name, tensor in trunk.state_dict().items():
            torch.testing.assert_close(model.state_dict()[f"0.{name}"], tensor, rtol=0, atol=0)


def test_demo_split_is_stratified_and_does_not_overlap():
    split = demo.load_digits()
    assert len(split.train_labels) + len(split.test_labels) == 1797
    train, test = split.train_labels.bincount(), split.test_labels.bincount()
    assert int((train - test).abs().max()) <= 1
    # No two of the 1,797 digits are the same image, so a shared image would be a shared index.
    shared = torch.cdist(split.train_images.flatten(1), split.test_images.flatten(1)).min()
    assert shared > 0


@pytest.mark.parametrize("method", demo.METHODS)
def test_demo_training_is_reproducible_and_learns(method):
    split = demo.load_digits()
    accuracies = []
    for _ in range(2):
        torch.manual_seed(0)
        model = demo.make_model(demo.make_trunk(), demo.METHODS[method]())
        assert list(demo.train(model, split, epochs=4, seed=0)) == [0, 1, 2, 3]
        accuracies.append(demo.accuracy(model, split.test_images, split.test_labels))
    assert accuracies[0] == accuracies[1]
    assert accuracies[0] > 0.5  # chance is 0.1
