"""Checkpoints: what is saved is loaded bit for bit; what is damaged or holds code is refused, and no code runs."""

from __future__ import annotations

import os
import pickle
import resource

import pytest
import torch

from powerpool.errors import RecordError
from powerpool.runs.checkpoint import load_state, save_state


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path):
    state = {
        "weights": {"a": torch.randn(3, 2), "half": torch.randn(2).half(), "odd": torch.tensor([-0.0, torch.inf])},
        "random": [torch.get_rng_state()],
        "curves": {"loss": [0.1 + 0.2, 1e-300], "none": None},
        "epoch": 3,
        "names": ["x", "y"],
    }
    save_state(tmp_path / "new" / "state.pt", state)
    loaded = load_state(tmp_path / "new" / "state.pt")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["state.pt"]
    for name, value in state["weights"].items():
        assert loaded["weights"][name].dtype == value.dtype
        assert torch.equal(loaded["weights"][name], value)
    assert torch.equal(loaded["random"][0], state["random"][0])
    assert (loaded["curves"], loaded["epoch"], loaded["names"]) == (state["curves"], 3, ["x", "y"])


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    save_state(tmp_path / "state.pt", {"epoch": 1})
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save_state(tmp_path / "state.pt", {"epoch": lambda: 2})
    assert load_state(tmp_path / "state.pt") == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]


class Code:
    """What a hostile file holds: a command that runs when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("write", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state))])
def test_a_file_with_code_is_refused_and_the_code_does_not_run(tmp_path, write):
    path, witness = tmp_path / "state.pt", tmp_path / "ran"
    write({"pipeline": "graph", "weights": Code(f"touch {witness}")}, path)
    with pytest.raises(RecordError, match=r"state\.pt"):
        load_state(path)
    assert not witness.exists()
    with path.open("rb") as file:  # the file is as dangerous as the test means it to be
        torch.load(file, weights_only=False) if write is torch.save else pickle.load(file)
    assert witness.exists()


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_refused_in_words(tmp_path, kept):
    path = tmp_path / "state.pt"
    save_state(path, {"weights": torch.randn(100)})
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(RecordError, match=r"state\.pt"):
        load_state(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"hello", b"PK\x03\x04", b"\x80\x02.", b"model: 3\n", b"{}"])
def test_a_file_of_another_kind_is_refused_in_words(tmp_path, content):
    path = tmp_path / "state.pt"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"state\.pt"):
        load_state(path)


def test_a_large_file_of_another_kind_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "state.pt"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # a sparse file
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordError, match=r"state\.pt"):
        load_state(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_file_that_cannot_be_read_or_holds_no_dictionary_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"nowhere\.pt"):
        load_state(tmp_path / "nowhere.pt")
    with pytest.raises(RecordError, match=tmp_path.name):
        load_state(tmp_path)
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(RecordError, match=r"tensor\.pt.*Tensor"):
        load_state(tmp_path / "tensor.pt")
