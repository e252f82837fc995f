"""Feature stores: what was written is read, whatever stopped the writing process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerpool.data.banks import MAPS, STORE, FeatureStore, store_key
from powerpool.errors import DiskError, DTypeError, NotFiniteError, RecordError, ShapeError

FACTS = {"net": "a", "crops": {"size": 8}}
SHAPE = (2, 3)
ITEMS = torch.randn(11, *SHAPE, generator=torch.Generator().manual_seed(0))


def store(folder: Path, facts: dict[str, object] = FACTS, **changes) -> FeatureStore:
    return FeatureStore(folder, facts, **({"count": len(ITEMS), "shape": SHAPE, "dtype": "float32"} | changes))


def fill(folder: Path, facts: dict[str, object] = FACTS) -> None:
    filled = store(folder, facts)
    filled.append(ITEMS)
    filled.flush()


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, len(ITEMS)), max_size=3), dtype=st.sampled_from(["float16", "float32"]))
def test_pieces_give_the_whole(tmp_path_factory, cuts, dtype):
    folder, edges = tmp_path_factory.mktemp("store"), [0, *sorted(cuts), len(ITEMS)]
    for start, end in itertools.pairwise(edges):
        one = store(folder, dtype=dtype)
        assert one.done == start
        one.append(ITEMS[start:end])
        assert store(folder, dtype=dtype).done == start  # not flushed yet
        one.flush()
    found = store(folder, dtype=dtype)
    assert found.is_complete
    expected = ITEMS.half() if dtype == "float16" else ITEMS
    assert torch.equal(found.maps, expected)
    assert (folder / MAPS).read_bytes() == expected.numpy().tobytes()
    assert found.bytes == (folder / MAPS).stat().st_size


WRITER = """
import sys, time, torch
from powerpool.data.banks import FeatureStore
items = torch.randn(11, 2, 3, generator=torch.Generator().manual_seed(0))
store = FeatureStore(sys.argv[1], {"net": "a", "crops": {"size": 8}}, count=11, shape=(2, 3), dtype="float32")
for number in range(store.done, 11):
    store.append(items[number : number + 1])
    if number % 3 == 2:
        store.flush()
    if number == 7:
        print("eight", flush=True)
        time.sleep(600)
"""


def test_a_killed_writer_loses_what_was_not_flushed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "a")], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().strip() == b"eight"
        writer.send_signal(signal.SIGKILL)
    again = store(tmp_path / "a")
    assert again.done == 6
    assert torch.equal(again.maps[:6], ITEMS[:6])
    again.append(ITEMS[6:])
    again.flush()
    fill(tmp_path / "b")
    for name in (MAPS, STORE):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    "changes",
    [{"facts": {"net": "b"}}, {"count": 12}, {"shape": (3, 2)}, {"dtype": "float16"}],
    ids=["facts", "count", "shape", "dtype"],
)
def test_a_store_of_other_features_is_refused(tmp_path, changes):
    fill(tmp_path)
    with pytest.raises(RecordError, match=str(tmp_path)):
        store(tmp_path, **changes)
    assert store(tmp_path).is_complete


@pytest.mark.parametrize("damage", ["missing", "short", "long"])
def test_lost_values_are_computed_again(tmp_path, damage):
    fill(tmp_path)
    if damage == "missing":
        (tmp_path / MAPS).unlink()
    else:
        os.truncate(tmp_path / MAPS, 30 if damage == "short" else 3000)
    again = store(tmp_path)
    assert again.done == 0
    # If this process is killed before it flushes, its zeros must not be taken for features.
    again.append(ITEMS[:2])
    assert store(tmp_path).done == 0
    again.append(ITEMS[2:])
    again.flush()
    assert torch.equal(store(tmp_path).maps, ITEMS)


def test_an_impossible_count(tmp_path):
    fill(tmp_path)
    head = json.loads((tmp_path / STORE).read_text())
    for done in (-1, 12, "all", None):
        (tmp_path / STORE).write_text(json.dumps({**head, "done": done}))
        with pytest.raises(RecordError, match="damaged"):
            store(tmp_path)


def test_items_that_do_not_fit(tmp_path):
    one = store(tmp_path, dtype="float16")
    with pytest.raises(ShapeError, match=r"\(2, 3\).*3, 2\)"):
        one.append(ITEMS.transpose(1, 2))
    with pytest.raises(NotFiniteError, match="float16"):
        one.append(torch.full((1, *SHAPE), 1e6))
    with pytest.raises(NotFiniteError, match="finite"):
        one.append(torch.full((1, *SHAPE), torch.nan))
    one.append(ITEMS[:9])
    with pytest.raises(ShapeError, match=r"9 of 11 .*\(3, 2, 3\)"):
        one.append(ITEMS[:3])
    assert one.done == 9


def test_pixels_are_stored_unchanged(tmp_path):
    pixels = torch.arange(256, dtype=torch.uint8).view(4, 8, 8)
    one = FeatureStore(tmp_path, {}, count=4, shape=(8, 8), dtype="uint8")
    with pytest.raises(DTypeError, match=r"torch\.float32"):
        one.append(pixels.float())
    one.append(pixels)
    one.flush()
    assert (tmp_path / MAPS).read_bytes() == bytes(range(256))
    private = one.open_maps(shared=False)
    private.zero_()
    assert torch.equal(FeatureStore(tmp_path, {}, count=4, shape=(8, 8), dtype="uint8").maps, pixels)


def test_a_full_disk_is_noticed_at_once(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskError, match="POWERPOOL_CACHE"):
        store(tmp_path).append(ITEMS[:1])
    assert not (tmp_path / MAPS).exists()


def test_a_key_depends_on_all_facts_and_not_on_their_order():
    facts = {"net": "a", "crops": {"size": 8, "count": 2}}
    assert store_key(facts) == store_key({"crops": {"count": 2, "size": 8}, "net": "a"})
    others = [{**facts, "net": "b"}, {**facts, "crops": {"size": 8, "count": 5}}, {**facts, "new": None}]
    assert len({store_key(one) for one in [facts, *others]}) == 4
