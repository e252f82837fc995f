"""Damaged files: every one is an error that names the file, the line, and what was expected; none is half read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from powerpool.data import DataError, MissingDataError, load_graphs
from powerpool.data.tu_format import TuFiles, read_tables
from powerpool.errors import PowerPoolError
from tests.data_sets.tu_sets import TINY, texts, write_folder, write_zip

CONTENT = texts(TINY)
COLUMNS = ("columns", "node_ptr", "edge_index", "edge_ptr", "targets")


def changed(kind: str, line: int, text: str | None) -> dict[str, str]:
    """The set with one line replaced, taken out, or added at the end (line 0)."""
    lines = CONTENT[kind].splitlines()
    if line == 0:
        lines.append(text or "")
    else:
        lines[line - 1 : line] = [] if text is None else [text]
    return {**CONTENT, kind: "".join(f"{each}\n" for each in lines)}


DAMAGE = {
    "word": ("A", 3, "2, x", r"line 3: expected 2 whole numbers .*\(got '2, x'\)"),
    "fraction": ("A", 3, "2, 1.5", r"line 3: expected 2 whole numbers .*\(got '2, 1\.5'\)"),
    "exponent": ("graph_labels", 2, "1e2", r"line 2: expected one whole number \(got '1e2'\)"),
    "one number": ("A", 1, "2", r"line 1: expected 2 whole numbers .*\(got '2'\)"),
    "no number": ("A", 2, ", 3", r"line 2: .*\(got ', 3'\)"),
    "three numbers": ("A", 2, "1, 2, 3", r"line 2: .*\(got '1, 2, 3'\)"),
    "no comma": ("A", 2, "1 2", r"line 2: .*\(got '1 2'\)"),
    "space inside": ("A", 2, "1 1, 2", r"line 2: .*\(got '1 1, 2'\)"),
    "minus inside": ("A", 2, "1-1, 2", r"line 2: .*\(got '1-1, 2'\)"),
    "two minus": ("graph_labels", 3, "--1", r"line 3: .*\(got '--1'\)"),
    "plus": ("graph_labels", 3, "+1", r"line 3: .*\(got '\+1'\)"),
    "empty line": ("graph_indicator", 4, "", r"line 4: expected one whole number \(got ''\)"),
    "empty first line": ("graph_indicator", 1, "", r"line 1: expected one whole number \(got ''\)"),
    "binary": ("node_labels", 2, "\x00\x01", r"line 2: expected one whole number"),
    "not ascii": ("node_labels", 2, "\u0663", r"line 2: expected one whole number"),
    "too long": ("A", 2, "1, 99999999999999999999999", r"line 2: expected 2 whole numbers .*\(got '1, 9+'\)"),
    "too negative": ("graph_labels", 2, "-99999999999999999999999", r"line 2: .*\(got '-9+'\)"),
    "long line": ("node_labels", 2, "y" * 5000, r"line 2: .*\(got 'y{40}'\.\.\.\)\.$"),
    "node zero": ("A", 5, "0, 4", r"line 5: an edge from node 0 to node 4, expected nodes from 1 to 9"),
    "negative node": ("A", 5, "4, -4", r"line 5: an edge from node 4 to node -4, expected nodes from 1 to 9"),
    "node too high": ("A", 5, "5, 10", r"line 5: .*node 10, expected nodes from 1 to 9.*TINY_graph_indicator\.txt"),
    "between graphs": (
        "A",
        5,
        "5, 3",
        r"line 5: an edge from node 5 of graph 2 to node 3 of graph 1, expected both in",
    ),
    "one way": ("A", 5, None, r"line 5: an edge from node 4 to node 5, expected a line for the way back too: 5, 4"),
    "indicator from 0": ("graph_indicator", 1, "0", r"line 1: node 1 is in graph 0, expected 1\."),
    "indicator from 2": ("graph_indicator", 1, "2", r"line 1: node 1 is in graph 2, expected 1\."),
    "unsorted": ("graph_indicator", 8, "1", r"line 8: node 8 is in graph 1, expected 3 or 4\."),
    "gap": ("graph_indicator", 0, "5", r"line 10: node 10 is in graph 5, expected 3 or 4\."),
    "few graph labels": ("graph_labels", 3, None, r"line 3: the file ends after 2, expected 3 labels, .*not whole"),
    "many graph labels": ("graph_labels", 0, "1", r"line 4: there is a label for graph 4, expected 3 labels"),
    "few node labels": ("node_labels", 9, None, r"line 9: the file ends after 8, expected 9 labels"),
    "many node labels": ("node_labels", 0, "1", r"line 10: there is a label for node 10, expected 9 labels"),
}


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_line_is_named(tmp_path: Path, case: str, form: str) -> None:
    kind, line, text, message = DAMAGE[case]
    where = (write_zip if form == "zip" else write_folder)(tmp_path / "tiny.zip", changed(kind, line, text))
    with pytest.raises(DataError, match=rf"TINY_{kind}\.txt, {message}") as caught:
        load_graphs(where)
    assert str(where) in str(caught.value)
    assert isinstance(caught.value, PowerPoolError)
    assert isinstance(caught.value, ValueError)


def test_the_line_is_counted_through_all_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in (1, 9, 10, 40):
        monkeypatch.setattr("powerpool.data.tu_format.CHUNK", chunk)
        with pytest.raises(DataError, match=r"TINY_A\.txt, line 11: .*\(got 'x'\)"):
            load_graphs(write_folder(tmp_path, changed("A", 11, "x")))
        with pytest.raises(DataError, match=r"TINY_graph_indicator\.txt, line 6: .*\(got ''\)"):
            load_graphs(write_folder(tmp_path, {**changed("graph_indicator", 6, "\n\n"), "A": CONTENT["A"]}))


@pytest.mark.parametrize("kind", CONTENT)
@pytest.mark.parametrize("text", ["", "\n", " \r\n\n"])
def test_empty_files(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(DataError, match=rf"TINY_{kind}\.txt is empty: expected .* whole number.* from line 1 on"):
        load_graphs(write_folder(tmp_path, {**CONTENT, kind: text}))


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("kind", ["graph_indicator", "graph_labels", "A"])
def test_missing_files(tmp_path: Path, kind: str, form: str) -> None:
    content = {other: text for other, text in CONTENT.items() if other != kind}
    (write_zip if form == "zip" else write_folder)(tmp_path / ("TINY.zip" if form == "zip" else "TINY"), content)
    with pytest.raises(MissingDataError, match=rf"TINY_{kind}\.txt is missing: .*found TINY_.*download the set again"):
        load_graphs("TINY", tmp_path)


def test_cut_text_is_noticed_wherever_it_ends(tmp_path: Path) -> None:
    """A set of one connected graph of less than ten nodes: every byte of every file counts, but the last line break."""
    content = texts(TINY[2:])
    for kind, text in content.items():
        for end in range(len(text) - 1):
            where = write_folder(tmp_path, {**content, kind: text[:end]})
            with pytest.raises(DataError, match=r"TINY_\w+\.txt"):
                load_graphs(where)


class TestZip:
    def test_cut_anywhere(self, tmp_path: Path) -> None:
        whole = write_zip(tmp_path / "TINY.zip", CONTENT).read_bytes()
        cut = tmp_path / "cut.zip"
        for end in range(len(whole)):
            cut.write_bytes(whole[:end])
            with pytest.raises(DataError, match=r"cut\.zip is not a whole zip file: .*download it again"):
                load_graphs(cut)

    @pytest.mark.parametrize("flip", [0x01, 0x20, 0xFF])
    def test_any_changed_byte_is_noticed_or_harmless(self, tmp_path: Path, flip: int) -> None:
        whole = write_zip(tmp_path / "TINY.zip", CONTENT)
        expected, content = load_graphs(whole), whole.read_bytes()
        damaged = tmp_path / "damaged.zip"
        noticed = 0
        for place in range(len(content)):
            damaged.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            try:
                found = load_graphs(damaged)
            except DataError:
                noticed += 1
                continue
            assert found.features == expected.features
            for name in COLUMNS:
                assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0)
        assert noticed > len(content) // 2

    def test_not_a_zip(self, tmp_path: Path) -> None:
        (tmp_path / "page.zip").write_text("<html>not found</html>")
        with pytest.raises(DataError, match=r"page\.zip is not a whole zip file"):
            load_graphs(tmp_path / "page.zip")


def test_damage_does_not_outlive_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        load_graphs(write_folder(tmp_path, changed("A", 3, "x")))
    before = sorted(tmp_path.iterdir())
    graphs = load_graphs(write_folder(tmp_path, CONTENT))
    assert len(graphs) == 3
    assert sorted(tmp_path.iterdir()) == before


@given(st.sampled_from(sorted(CONTENT)), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_the_name_of_a_file(tmp_path_factory, kind: str, text: bytes) -> None:
    folder = write_folder(tmp_path_factory.mktemp("set"), CONTENT)
    (folder / f"TINY_{kind}.txt").write_bytes(text)
    message = "TINY_ and nothing wrong"
    try:
        with TuFiles.open(folder) as files:
            tables = read_tables(files)
    except DataError as error:
        message = str(error)
    else:
        assert len(tables.node_ptr) == 4
    assert "TINY_" in message
