"""The environment of a run, and the key that its units are stored under."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import powerpool
from powerpool.runs import environment as environments
from powerpool.runs.environment import Environment, environment, merge_environments, resume_key
from powerpool.runs.typed import from_json, to_json


def test_the_environment_names_machine_versions_and_command(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/powerpool", "bench", "a b"])
    found = environment()
    assert found.torch == torch.__version__
    assert found.threads == torch.get_num_threads()
    assert found.variables["OMP_WAIT_POLICY"] == "PASSIVE"
    assert found.command == "powerpool bench 'a b'"
    assert found.processor
    assert found.cores == os.cpu_count()
    assert from_json(Environment, to_json(found)) == found


def test_the_command_of_a_module_is_recorded_as_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(Path(powerpool.__file__).with_name("__main__.py")), "bench"])
    assert environment().command == "powerpool bench"


def test_an_installed_copy_inside_another_repository_has_no_commit(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "__init__.py").touch()
    assert environments._checkout(tmp_path) == (None, None)


def test_units_of_several_machines_and_commits_are_merged():
    one = Environment(torch="2.1", commit="b", dirty=False, time="2026-01-02", packages={"numpy": "1"}, cores=2)
    two = Environment(
        torch="2.2", commit="a", dirty=True, time="2026-01-01", packages={"numpy": "1", "x": "3"}, cores=4
    )
    found = merge_environments([one, two], "powerpool reproduce graph")
    assert (found.torch, found.commit, found.dirty, found.time) == ("2.1, 2.2", "a, b", True, "2026-01-01")
    assert (found.packages, found.cores) == ({"numpy": "1", "x": "3"}, "2, 4")
    assert found.command == "powerpool reproduce graph"
    assert merge_environments([one], None).cores == 2


def test_the_resume_key_depends_on_settings_version_and_packages_only(monkeypatch):
    settings = {"model": {"hidden": 8}, "data_digest": "abc"}
    key = resume_key("graph", 1, settings, ["pillow"])
    assert key == resume_key("graph", 1, {"data_digest": "abc", "model": {"hidden": 8}}, ["pillow"])
    others = {
        resume_key("vision", 1, settings, ["pillow"]),
        resume_key("graph", 2, settings, ["pillow"]),
        resume_key("graph", 1, {**settings, "data_digest": "abd"}, ["pillow"]),
        resume_key("graph", 1, settings, []),
    }
    monkeypatch.setattr(environments, "_version", lambda name: "9.9")
    others.add(resume_key("graph", 1, settings, ["pillow"]))
    assert len(others | {key}) == 6
