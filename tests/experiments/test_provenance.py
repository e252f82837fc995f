"""Where results come from: fingerprints tell settings and code apart, and records say whose code made them."""

from __future__ import annotations

import pytest
from powerpool.runs.provenance import code_digest, fingerprint, guarded, origin_of, with_origin, without_origin

import powerpool
from powerpool.errors import RecordError
from powerpool.runs import provenance
from powerpool.runs.environment import environment

START = {**environment(), "commit": "now", "dirty": False, "time": "2026-03-01", "threads": 8, "variables": {}}


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A package whose code can be changed."""
    for name in ("curves/a.py", "pipelines/methods.py", "pipelines/graph/b.py", "pipelines/vision/c.py", "cli.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(powerpool, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(provenance, "code_digest", code_digest.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    "file, graph, vision",
    [
        ("curves/a.py", True, True),
        ("pipelines/methods.py", True, True),
        ("pipelines/graph/b.py", True, False),
        ("pipelines/vision/c.py", False, True),
        ("pipelines/vision/new.py", False, True),
        ("cli.py", False, False),
        ("experiments/d.py", False, False),
        ("curves/notes.txt", False, False),
    ],
)
def test_code_that_a_result_depends_on_counts(copy, file, graph, vision):
    before = [fingerprint(pipeline, {"a": 1}) for pipeline in ("graph", "vision")]
    (copy / file).write_text("changed = True\n")
    after = [fingerprint(pipeline, {"a": 1}) for pipeline in ("graph", "vision")]
    assert [one != other for one, other in zip(before, after, strict=True)] == [graph, vision]


def test_a_name_that_changes_counts(copy):
    before = fingerprint("vision", {})
    (copy / "curves" / "a.py").rename(copy / "curves" / "z.py")
    assert fingerprint("vision", {}) != before


def test_settings_and_versions_count_and_their_order_does_not(copy, monkeypatch):
    first = fingerprint("vision", {"a": 1, "b": 2})
    assert fingerprint("vision", {"b": 2, "a": 1}) == first
    assert fingerprint("vision", {"a": 1, "b": 2}, "more") != first
    assert fingerprint("vision", {"a": 1, "b": 2.5}) != first
    for owner, name, value in (
        (provenance.torch, "__version__", "9.9"),
        (provenance.platform, "python_version", lambda: "3.99"),
        (provenance, "pillow", lambda: None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert fingerprint("vision", {"a": 1, "b": 2}) != first
    assert fingerprint("vision", {"a": 1, "b": 2}) == first


def test_pillow_counts_where_it_is_installed(monkeypatch):
    pillow = pytest.importorskip("PIL")
    assert provenance.pillow() == pillow.__version__
    monkeypatch.setattr(provenance, "find_spec", lambda name: None)
    assert provenance.pillow() is None


def test_a_worker_with_other_code_than_the_command_is_refused(copy):
    work = {pipeline: guarded(pipeline, lambda: {"value": 1}) for pipeline in ("graph", "vision")}
    (copy / "pipelines" / "graph" / "b.py").write_text("changed = True\n")
    with pytest.raises(RecordError, match=r"code of powerpool has changed since the command started.*command again"):
        work["graph"]()
    assert without_origin(work["vision"]()) == {"value": 1}


def test_a_result_keeps_where_it_came_from(monkeypatch):
    monkeypatch.setattr(provenance, "environment", lambda: {**START, "commit": "then", "time": "2026-01-01"})
    found = with_origin(lambda: {"value": 1})
    assert found["value"] == 1
    assert {"commit": "then", "dirty": False, "time": "2026-01-01"}.items() <= found["origin"].items()
    assert found["origin"]["processor"] == START["processor"]
    assert not {"command", "threads", "variables"} & found["origin"].keys()
    assert without_origin(found) == {"value": 1}


@pytest.mark.parametrize(
    "origins, commit, dirty",
    [
        ([("a", False)], "a", False),
        ([("b", False), ("a", True), ("b", False)], "a, b", True),
        ([(None, None)], None, None),
        ([(None, None), ("a", False)], "a", False),
    ],
)
def test_a_record_names_the_code_of_all_its_results(origins, commit, dirty):
    results = [
        {"origin": {**START, "commit": name, "dirty": changed, "time": f"2026-02-0{9 - number}"}}
        for number, (name, changed) in enumerate(origins)
    ]
    found = origin_of(results, START)
    assert (found["commit"], found["dirty"]) == (commit, dirty)
    assert found["time"] == f"2026-02-0{10 - len(origins)}"  # the first of them
    assert (found["threads"], found["processor"]) == (1, START["processor"])


def test_a_record_names_the_machines_of_its_results_and_not_that_of_who_went_on(monkeypatch):
    older = {**START, "processor": "old", "cores": 2, "python": "3.10", "packages": {"numpy": "1", "pillow": "9"}}
    newer = {**older, "processor": "new", "cores": 4, "packages": {"numpy": "2", "pillow": "9", "scipy": "1"}}
    found = origin_of([{"origin": older}, {"origin": newer}, {"origin": older}], START)
    assert (found["processor"], found["cores"], found["python"]) == ("new, old", "2, 4", "3.10")
    assert found["packages"] == {"numpy": "1, 2", "pillow": "9", "scipy": "1"}
    assert found["command"] == START["command"]
    alone = origin_of([{"origin": older}], START)
    assert {name: alone[name] for name in ("processor", "cores", "packages")} == {
        name: older[name] for name in ("processor", "cores", "packages")
    }
