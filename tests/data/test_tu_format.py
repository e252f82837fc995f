"""TU files: damaged ones are errors that name the file and the line; names are found in folders, caches and online."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from powerpool.data import DataError, Limits, MissingDataError, load_graphs, tu_format
from powerpool.errors import UnknownNameError
from tests.data.tu_sets import TINY, texts, write_folder, write_zip

CONTENT = texts(TINY)

# ---- damaged files ---------------------------------------------------------------------------------------------------


def changed(kind: str, line: int, text: str | None) -> dict[str, str]:
    """Return the data set with one line replaced, removed (None), or added at the end (line 0)."""
    lines = CONTENT[kind].splitlines()
    if line == 0:
        lines.append(text or "")
    else:
        lines[line - 1 : line] = [] if text is None else [text]
    return {**CONTENT, kind: "".join(f"{each}\n" for each in lines)}


DAMAGE = {
    "word": ("A", 3, "2, x", "line 3: .*'2, x'"),
    "one number": ("A", 1, "2", "line 1: .*'2'"),
    "three numbers": ("A", 2, "1, 2, 3", "line 2: .*'1, 2, 3'"),
    "binary": ("node_labels", 2, "\x00\x01", "line 2: "),
    "too long": ("A", 2, "1, 99999999999999999999999", "line 2: .*'1, 9+'"),
    "long line": ("node_labels", 2, "y" * 5000, r"line 2: .*'y+\.\.\.'\)\.$"),
    "node zero": ("A", 5, "0, 4", "line 5: .*node 0 to node 4 .*1 to 9"),
    "node too high": ("A", 5, "5, 10", r"line 5: .*node 10 .*TINY_graph_indicator\.txt"),
    "between graphs": ("A", 5, "5, 3", "line 5: .*node 5 to node 3 .*graph 2 with graph 1"),
    "one way": ("A", 5, None, "line 5: .*node 4 to node 5 .*symmetrise"),
    "indicator from 0": ("graph_indicator", 1, "0", "line 1: graph 0 "),
    "unsorted": ("graph_indicator", 8, "1", "line 8: graph 1 follows graph 3"),
    "gap": ("graph_indicator", 0, "5", "line 10: graph 5 follows graph 3"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_line_is_named(tmp_path: Path, case: str) -> None:
    kind, line, text, message = DAMAGE[case]
    for where in (
        write_folder(tmp_path / "tiny", changed(kind, line, text)),
        write_zip(tmp_path / "tiny.zip", changed(kind, line, text)),
    ):
        with pytest.raises(DataError, match=rf"TINY_{kind}\.txt, {message}") as caught:
            load_graphs(where)
        assert str(where) in str(caught.value)


def test_files_of_different_lengths(tmp_path: Path) -> None:
    for kind, line, text, message in (
        ("graph_labels", 3, None, "2 lines, expected 3"),
        ("node_labels", 0, "1", "10 lines, expected 9"),
    ):
        with pytest.raises(DataError, match=rf"TINY_{kind}\.txt has {message}"):
            load_graphs(write_folder(tmp_path, changed(kind, line, text)))


@pytest.mark.parametrize("kind", CONTENT)
def test_empty_and_missing_files(tmp_path: Path, kind: str) -> None:
    for text in ("", "\r\n\n"):
        with pytest.raises(DataError, match=rf"TINY_{kind}\.txt is empty"):
            load_graphs(write_folder(tmp_path / "empty", {**CONTENT, kind: text}))
    if kind == "node_labels":
        return
    content = {other: text for other, text in CONTENT.items() if other != kind}
    write_zip(tmp_path / "zip" / "TINY.zip", content)
    write_folder(tmp_path / "folder" / "TINY", content)
    for root in ("zip", "folder"):
        with pytest.raises(MissingDataError, match=rf"TINY_{kind}\.txt is missing"):
            load_graphs("TINY", tmp_path / root)


def test_truncated_text_is_noticed_wherever_it_ends(tmp_path: Path) -> None:
    """In one connected graph of less than ten nodes, every byte counts except the last line break."""
    content = texts(TINY[2:])
    for kind, text in content.items():
        for end in range(len(text) - 1):
            with pytest.raises(DataError, match=r"TINY_\w+\.txt"):
                load_graphs(write_folder(tmp_path, {**content, kind: text[:end]}))


def test_truncated_and_changed_zips_are_noticed(tmp_path: Path) -> None:
    whole = write_zip(tmp_path / "TINY.zip", CONTENT).read_bytes()
    damaged = tmp_path / "damaged.zip"
    for end in range(0, len(whole), 7):
        damaged.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"damaged\.zip is damaged"):
            load_graphs(damaged)
    start = whole.index(b"TINY_A.txt") + 10
    for place in range(start, start + 20):  # compressed bytes: the checksum is wrong, if not the format
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x20]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"damaged\.zip"):
            load_graphs(damaged)


# ---- names and folders -----------------------------------------------------------------------------------------------


class Server:
    """Answers every request with ``content`` and ``status``, and announces ``length`` bytes."""

    def __init__(self) -> None:
        self.content, self.status, self.length, self.paths = b"", 200, None, list[str]()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.paths.append(self.path)
                self.send_response(owner.status)
                self.send_header("Content-Length", str(owner.length or len(owner.content)))
                self.end_headers()
                self.wfile.write(owner.content)

            def log_message(self, *arguments: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(autouse=True)
def graph_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache of graphs, without a network."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(tu_format, "URL", "http://127.0.0.1:1/{name}.zip")  # nobody listens on port 1
    return cache / "graphs"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr(tu_format, "URL", f"http://127.0.0.1:{server.server.server_port}/graphs/{{name}}.zip")
    monkeypatch.setitem(tu_format.GRAPHS, "PTC_MR", len(TINY))
    yield server
    server.close()


@pytest.fixture
def ptc(tmp_path: Path) -> bytes:
    return write_zip(tmp_path / "made.zip", CONTENT, "PTC_MR").read_bytes()


@pytest.mark.parametrize("place", ["PTC_MR.zip", "PTC_MR", "PTC_MR/raw", "graphs/PTC_MR.zip", "graphs/PTC_MR/raw"])
def test_layouts_of_a_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    root = tmp_path / "root"
    (write_zip if place.endswith("zip") else write_folder)(root / place, CONTENT, "PTC_MR")
    monkeypatch.setenv("POWERPOOL_DATA", str(root))
    for given_root in (root, str(root), None):
        graphs = load_graphs("PTC_MR", given_root)
        assert (graphs.name, graphs.source, len(graphs)) == ("PTC_MR", str(root / place), 3)


def test_custom_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "my graphs", CONTENT, "molecules")
    monkeypatch.chdir(tmp_path)
    for name in (folder, str(folder), "my graphs", "./my graphs"):
        assert load_graphs(name).name == "molecules"
    write_folder(tmp_path / "root" / "mine", CONTENT, "mine")
    assert load_graphs("mine", "root").source == str(Path("root/mine"))


def test_mutag_comes_with_grakel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in (None, tmp_path):
        graphs = load_graphs("MUTAG", root)
        assert "grakel" in graphs.source
        assert (len(graphs), graphs.num_nodes, graphs.num_edges) == (188, 3371, 7442)
    write_folder(tmp_path / "MUTAG", CONTENT, "MUTAG")
    assert len(load_graphs("MUTAG", tmp_path)) == 3
    monkeypatch.chdir(tmp_path)  # a folder of that name in the working directory is used only if given as a path
    assert len(load_graphs("MUTAG")) == 188
    assert len(load_graphs(Path("MUTAG"))) == len(load_graphs("./MUTAG")) == 3
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grakel" else original(name))
    with pytest.raises(MissingDataError, match="MUTAG was not found"):
        load_graphs("MUTAG")


def test_wrong_folders_and_names(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="found none"):
        load_graphs(tmp_path)
    write_folder(tmp_path, CONTENT, "one")
    write_folder(tmp_path, CONTENT, "two")
    with pytest.raises(MissingDataError, match="found one, two"):
        load_graphs(tmp_path)
    with pytest.raises(MissingDataError, match="nowhere"):
        load_graphs(tmp_path / "nowhere")
    with pytest.raises(UnknownNameError, match=r"'MUTANT'.*Did you mean MUTAG\?.*PTC_MR"):
        load_graphs("MUTANT")


def test_damage_in_a_data_folder_is_not_skipped(tmp_path: Path, server: Server, ptc: bytes) -> None:
    server.content = ptc
    (tmp_path / "PTC_MR.zip").write_bytes(ptc[:-30])
    with pytest.raises(DataError, match=r"PTC_MR\.zip is damaged"):
        load_graphs("PTC_MR", tmp_path, download=True)
    write_folder(tmp_path / "PTC_MR", {"A": CONTENT["A"]}, "PTC_MR")
    with pytest.raises(MissingDataError, match=r"PTC_MR_graph_indicator\.txt is missing"):
        load_graphs("PTC_MR", tmp_path, download=True)
    assert not server.paths


# ---- downloads -------------------------------------------------------------------------------------------------------


def test_a_download_is_kept(server: Server, ptc: bytes, graph_cache: Path, tmp_path: Path) -> None:
    server.content = ptc
    with pytest.raises(MissingDataError, match=r"PTC_MR was not found .*download=True"):
        load_graphs("PTC_MR")
    assert not server.paths
    for _ in range(2):
        graphs = load_graphs("PTC_MR", tmp_path / "empty", download=True)
        assert len(graphs) == 3
        assert graphs.source == str(graph_cache / "PTC_MR.zip")
    assert server.paths == ["/graphs/PTC_MR.zip"]
    assert [file.name for file in graph_cache.iterdir()] == ["PTC_MR.zip"]


def test_no_network(graph_cache: Path) -> None:
    with pytest.raises(MissingDataError, match=r"PTC_MR could not be downloaded .*refused"):
        load_graphs("PTC_MR", download=True)
    assert not graph_cache.exists()


def test_servers_that_do_not_send_the_file(server: Server, ptc: bytes, graph_cache: Path) -> None:
    server.status = 404
    with pytest.raises(MissingDataError, match="Not Found"):
        load_graphs("PTC_MR", download=True)
    server.status, server.content, server.length = 200, ptc[:100], len(ptc)
    with pytest.raises(MissingDataError, match=r"IncompleteRead\(100 bytes read"):
        load_graphs("PTC_MR", download=True)
    server.content, server.length = ptc, None
    with pytest.raises(DataError, match=r"50.*POWERPOOL_MAX_TEXT"):
        load_graphs("PTC_MR", download=True, limits=Limits(text=50))
    assert not graph_cache.exists()


def test_wrong_downloads_are_not_kept(server: Server, ptc: bytes, graph_cache: Path, tmp_path: Path) -> None:
    made = tmp_path / "other.zip"
    for content in (
        ptc[: len(ptc) // 2],
        b"<html>moved</html>",
        write_zip(made, CONTENT, "MUTAG").read_bytes(),
        write_zip(made, texts(TINY[:2]), "PTC_MR").read_bytes(),
    ):
        server.content = content
        with pytest.raises(DataError, match=r"PTC_MR\.zip is not PTC_MR and was not kept"):
            load_graphs("PTC_MR", download=True)
        assert list(graph_cache.iterdir()) == []
    server.content = ptc
    assert len(load_graphs("PTC_MR", download=True)) == 3


def test_a_cache_that_cannot_be_written(server: Server, ptc: bytes, cache: Path) -> None:
    server.content = ptc
    cache.write_text("a file instead of a folder")
    with pytest.raises(DataError, match=r"PTC_MR\.zip.*POWERPOOL_CACHE"):
        load_graphs("PTC_MR", download=True)
