"""Where sets come from: folders, the cache, grakel, a server; and what is left when a download fails."""

from __future__ import annotations

import errno
import importlib.util
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from powerpool.data import DataError, MissingDataError, load_graphs, tu_sources
from tests.data_sets.tu_sets import TINY, texts, write_folder, write_zip

CONTENT = texts(TINY)


class Server:
    """Answers every request with ``content`` under ``status``; promises ``length`` bytes."""

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
                """Tests are silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/graphs/{{name}}.zip"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data folder, no network."""
    monkeypatch.delenv("POWERPOOL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(tu_sources, "URL", "http://127.0.0.1:1/{name}.zip")  # nobody listens on port 1
    return tmp_path / "cache" / "powerpool" / "graphs"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr(tu_sources, "URL", server.url)
    monkeypatch.setitem(tu_sources.GRAPHS, "PTC_MR", len(TINY))
    yield server
    server.close()


@pytest.fixture
def ptc(tmp_path: Path) -> bytes:
    return write_zip(tmp_path / "made.zip", CONTENT, "PTC_MR").read_bytes()


class TestFolders:
    @pytest.mark.parametrize("place", ["PTC_MR.zip", "PTC_MR", "PTC_MR/raw", "graphs/PTC_MR.zip", "graphs/PTC_MR/raw"])
    @pytest.mark.parametrize("named", ["argument", "text", "variable"])
    def test_layouts_of_a_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, named: str) -> None:
        root = tmp_path / "root"
        (write_zip if place.endswith("zip") else write_folder)(root / place, CONTENT, "PTC_MR")
        if named == "variable":
            monkeypatch.setenv("POWERPOOL_DATA", str(root))
        graphs = load_graphs("PTC_MR", {"argument": root, "text": str(root), "variable": None}[named])
        assert graphs.source == str(root / place)
        assert graphs.name == "PTC_MR"
        assert len(graphs) == 3

    def test_a_set_of_ones_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write_folder(tmp_path / "my graphs", CONTENT, "molecules")
        for name in (folder, str(folder)):
            graphs = load_graphs(name)
            assert (graphs.name, graphs.source) == ("molecules", str(folder))
        monkeypatch.chdir(tmp_path)
        assert load_graphs("my graphs").name == "molecules"
        assert load_graphs("./my graphs").name == "molecules"
        write_folder(tmp_path / "root" / "mine", CONTENT, "mine")
        assert load_graphs("mine", "root").source == str(Path("root/mine"))

    def test_a_name_of_the_table_is_not_a_folder_that_happens_to_be_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_folder(tmp_path / "MUTAG", CONTENT, "MUTAG")
        monkeypatch.chdir(tmp_path)
        assert len(load_graphs("MUTAG")) == 188
        assert len(load_graphs(Path("MUTAG"))) == len(load_graphs("./MUTAG")) == 3

    def test_no_set_or_two_in_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(MissingDataError, match=r"one file NAME_A\.txt, .*\(found none\)"):
            load_graphs(tmp_path)
        write_folder(tmp_path, CONTENT, "one")
        write_folder(tmp_path, CONTENT, "two")
        with pytest.raises(MissingDataError, match=r"\(found several: one, two\)"):
            load_graphs(tmp_path)

    def test_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(MissingDataError, match=r"nowhere does not exist"):
            load_graphs(tmp_path / "nowhere")

    def test_an_unknown_name_lists_the_sets(self) -> None:
        with pytest.raises(
            ValueError, match=r"Unknown set of graphs 'MUTANT': choose one of MUTAG, PTC_MR, .*path of a"
        ):
            load_graphs("MUTANT")

    def test_a_file_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write_folder(tmp_path / "set", CONTENT)
        original = Path.open

        def refuse(path: Path, *arguments: str) -> object:  # not by chmod: tests may run as root
            if path.name == "TINY_A.txt":
                raise PermissionError(errno.EACCES, "Permission denied")
            return original(path, *arguments)

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(DataError, match=r"Cannot read .*TINY_A\.txt: Permission denied"):
            load_graphs(folder)

    def test_damage_in_the_root_is_not_passed_over(self, tmp_path: Path, server: Server, ptc: bytes) -> None:
        server.content = ptc
        (tmp_path / "PTC_MR.zip").write_bytes(ptc[:-30])
        with pytest.raises(DataError, match=r"PTC_MR\.zip is not a whole zip file"):
            load_graphs("PTC_MR", tmp_path)
        write_folder(tmp_path / "PTC_MR", {"A": CONTENT["A"]}, "PTC_MR")
        with pytest.raises(MissingDataError, match=r"PTC_MR_graph_indicator\.txt is missing"):
            load_graphs("PTC_MR", tmp_path)
        assert not server.paths


class TestGrakel:
    def test_mutag_needs_nothing_else(self, tmp_path: Path) -> None:
        for root in (None, tmp_path):
            graphs = load_graphs("MUTAG", root)
            assert "grakel" in graphs.source
            assert (len(graphs), graphs.num_nodes, graphs.num_edges) == (188, 3371, 7442)

    def test_the_root_comes_first(self, tmp_path: Path) -> None:
        write_zip(tmp_path / "MUTAG.zip", CONTENT, "MUTAG")
        assert len(load_graphs("MUTAG", tmp_path)) == 3

    def test_without_grakel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grakel" else original(name))
        with pytest.raises(MissingDataError, match=r"MUTAG is not on this machine"):
            load_graphs("MUTAG")


class TestDownload:
    def test_once(self, server: Server, ptc: bytes, cache: Path, tmp_path: Path) -> None:
        server.content = ptc
        for _ in range(2):
            graphs = load_graphs("PTC_MR", tmp_path / "empty", download=True)
            assert len(graphs) == 3
            assert graphs.source == str(cache / "PTC_MR.zip")
        assert server.paths == ["/graphs/PTC_MR.zip"]
        assert [file.name for file in cache.iterdir()] == ["PTC_MR.zip"]

    def test_not_when_told_to_stay_off_the_network(self, server: Server) -> None:
        with pytest.raises(
            MissingDataError, match=r"PTC_MR is not on this machine \(looked in .*download=True, or pass"
        ):
            load_graphs("PTC_MR")
        assert not server.paths

    def test_no_network(self, cache: Path) -> None:
        with pytest.raises(MissingDataError, match=r"PTC_MR is not .*did not send it \(.*refused\).*folder that holds"):
            load_graphs("PTC_MR", download=True)
        assert not cache.exists()

    def test_not_found(self, server: Server, cache: Path) -> None:
        server.status = 404
        with pytest.raises(MissingDataError, match=r"did not send it \(Not Found\)"):
            load_graphs("PTC_MR", download=True)
        assert not cache.exists()

    def test_a_connection_that_breaks(self, server: Server, ptc: bytes, cache: Path) -> None:
        server.content, server.length = ptc[:100], len(ptc)
        with pytest.raises(MissingDataError, match=r"did not send it \(IncompleteRead\(100 bytes read"):
            load_graphs("PTC_MR", download=True)
        assert not cache.exists()

    @pytest.mark.parametrize("case", ["half", "page", "other set", "too few graphs", "damaged text"])
    def test_what_is_not_the_set_is_not_kept(
        self, server: Server, ptc: bytes, cache: Path, tmp_path: Path, case: str
    ) -> None:
        made = tmp_path / "other.zip"
        server.content = {
            "half": lambda: ptc[: len(ptc) // 2],
            "page": lambda: b"<html>moved</html>",
            "other set": lambda: write_zip(made, CONTENT, "MUTAG").read_bytes(),
            "too few graphs": lambda: write_zip(made, texts(TINY[:2]), "PTC_MR").read_bytes(),
            "damaged text": lambda: write_zip(made, {**CONTENT, "A": "x"}, "PTC_MR").read_bytes(),
        }[case]()
        with pytest.raises(DataError, match=r"What http.*PTC_MR\.zip sent is not PTC_MR, and was not kept: ") as caught:
            load_graphs("PTC_MR", download=True)
        if case == "too few graphs":
            assert "has 2 graphs, expected 3" in str(caught.value)
        assert list(cache.iterdir()) == []
        server.content = ptc
        assert len(load_graphs("PTC_MR", download=True)) == 3

    def test_what_a_killed_process_left_is_not_used(self, server: Server, ptc: bytes, cache: Path) -> None:
        cache.mkdir(parents=True)
        (cache / ".PTC_MR-k1ll3d.zip").write_bytes(ptc[:50])
        server.content = ptc
        assert len(load_graphs("PTC_MR", download=True)) == 3

    def test_a_cache_that_cannot_be_written(self, server: Server, ptc: bytes, tmp_path: Path) -> None:
        server.content = ptc
        (tmp_path / "cache").write_text("a file where the folder should be")
        with pytest.raises(DataError, match=r"Cannot write .*PTC_MR\.zip: .*Set XDG_CACHE_HOME"):
            load_graphs("PTC_MR", download=True)
