"""Stores of features: what was put in comes out, whatever stopped the process that wrote it."""

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
from hypothesis import given
from hypothesis import strategies as st

from powerpool.data.features import MAPS, STORE, FeatureStore, store_key
from powerpool.errors import DTypeError, RecordError, ShapeError

FACTS = {"net": "a", "crops": {"size": 8}}
SHAPE = (2, 3)
ITEMS = torch.randn(11, *SHAPE, generator=torch.Generator().manual_seed(0))


def store(folder: Path, facts: dict[str, object] = FACTS, **changes) -> FeatureStore:
    return FeatureStore(folder, facts, **({"count": len(ITEMS), "shape": SHAPE, "dtype": "float32"} | changes))


@given(cuts=st.lists(st.integers(0, len(ITEMS)), max_size=4), dtype=st.sampled_from(["float16", "float32"]))
def test_pieces_are_the_whole(tmp_path_factory, cuts, dtype):
    folder, edges = tmp_path_factory.mktemp("store"), [0, *sorted(cuts), len(ITEMS)]
    for start, end in itertools.pairwise(edges):
        one = store(folder, dtype=dtype)  # another process, as far as a store can tell
        assert one.done == start
        one.append(ITEMS[start:end])
        one.flush()
    found = store(folder, dtype=dtype)
    assert found.is_complete
    expected = ITEMS.half() if dtype == "float16" else ITEMS
    assert torch.equal(found.maps, expected)
    assert (folder / MAPS).read_bytes() == expected.numpy().tobytes()
    assert found.bytes == (folder / MAPS).stat().st_size


def test_what_is_not_flushed_is_not_there(tmp_path):
    first = store(tmp_path)
    first.append(ITEMS[:4])
    first.flush()
    first.append(ITEMS[4:7])
    assert store(tmp_path).done == 4
    assert store(tmp_path / "other").done == 0


WRITER = """
import sys, time, torch
from powerpool.data.features import FeatureStore
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


def test_a_killed_writer_costs_what_was_not_flushed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "a")], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().strip() == b"eight"
        writer.send_signal(signal.SIGKILL)
    again = store(tmp_path / "a")
    assert again.done == 6
    assert torch.equal(again.maps[:6], ITEMS[:6])
    again.append(ITEMS[6:])
    again.flush()
    whole = store(tmp_path / "b")
    whole.append(ITEMS)
    whole.flush()
    for name in (MAPS, STORE):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    "changes",
    [{"facts": {"net": "b"}}, {"count": 12}, {"shape": (3, 2)}, {"dtype": "float16"}],
    ids=["facts", "count", "shape", "dtype"],
)
def test_features_of_another_kind_are_refused(tmp_path, changes):
    first = store(tmp_path)
    first.append(ITEMS)
    first.flush()
    with pytest.raises(RecordError, match=r"holds other features than those asked for\. Delete it"):
        store(tmp_path, **changes)
    assert store(tmp_path).is_complete


def test_facts_may_hold_tuples(tmp_path):
    first = store(tmp_path, {"mean": (1, 2)})
    first.append(ITEMS)
    first.flush()
    assert store(tmp_path, {"mean": [1, 2]}).is_complete


@pytest.mark.parametrize("damage", ["gone", "short", "long"])
def test_numbers_that_are_gone_are_computed_again(tmp_path, damage):
    first = store(tmp_path)
    first.append(ITEMS)
    first.flush()
    del first
    if damage == "gone":
        (tmp_path / MAPS).unlink()
    else:
        os.truncate(tmp_path / MAPS, 30 if damage == "short" else 3000)
    again = store(tmp_path)
    assert again.done == 0
    # A process that begins anew and is killed before it flushes has left zeros: nobody must take them for features.
    again.append(ITEMS[:2])
    assert store(tmp_path).done == 0
    again.append(ITEMS[2:])
    again.flush()
    assert torch.equal(store(tmp_path).maps, ITEMS)


@pytest.mark.parametrize("done", [-1, 12, "all", None, 2.5])
def test_a_count_that_cannot_be_is_told(tmp_path, done):
    first = store(tmp_path)
    first.append(ITEMS)
    first.flush()
    head = json.loads((tmp_path / STORE).read_text())
    (tmp_path / STORE).write_text(json.dumps({**head, "done": done}))
    with pytest.raises(RecordError, match="is damaged: done is"):
        store(tmp_path)


def test_a_damaged_head_is_told(tmp_path):
    (tmp_path / STORE).write_text('{"facts": ')
    with pytest.raises(RecordError, match="is not JSON"):
        store(tmp_path)


def test_items_of_another_shape_or_too_many_are_refused(tmp_path):
    one = store(tmp_path)
    with pytest.raises(ShapeError, match=r"items of shape \(2, 3\) got items of shape \(3, 2\)"):
        one.append(ITEMS.transpose(1, 2))
    one.append(ITEMS[:9])
    with pytest.raises(ShapeError, match="A store of 11 items has 9 and got 3 more"):
        one.append(ITEMS[:3])
    assert one.done == 9


def test_halves_are_rounded_to_the_nearest(tmp_path):
    one = FeatureStore(tmp_path, {}, count=3, shape=())
    one.append(torch.tensor([1 + 2**-11 + 2**-20, 1.0, 1e-9]))
    assert one.maps.tolist() == [1 + 2**-10, 1.0, 0.0]


def test_pixels_are_stored_as_they_are(tmp_path):
    pixels = torch.arange(256, dtype=torch.uint8).view(4, 8, 8)
    one = FeatureStore(tmp_path, {}, count=4, shape=(8, 8), dtype="uint8")
    one.append(pixels)
    one.flush()
    assert (tmp_path / MAPS).read_bytes() == bytes(range(256))
    assert torch.equal(FeatureStore(tmp_path, {}, count=4, shape=(8, 8), dtype="uint8").maps, pixels)
    another = FeatureStore(tmp_path / "other", {}, count=4, shape=(8, 8), dtype="uint8")
    with pytest.raises(DTypeError, match=r"A store of uint8 got items of torch.float32"):
        another.append(pixels.float())


def test_a_disk_that_is_too_small_shows_at_once(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RecordError, match=r"Cannot make .*maps.bin of 0.0 GB: No space left.*POWERPOOL_CACHE"):
        store(tmp_path).append(ITEMS[:1])
    assert not (tmp_path / MAPS).exists()


def test_a_key_depends_on_all_facts_and_not_on_their_order():
    facts = {"net": "a", "crops": {"size": 8, "count": 2}}
    assert store_key(facts) == store_key({"crops": {"count": 2, "size": 8}, "net": "a"})
    others = [{**facts, "net": "b"}, {**facts, "crops": {"size": 8, "count": 5}}, {**facts, "new": None}]
    assert len({store_key(one) for one in [facts, *others]}) == 4
