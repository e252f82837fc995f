"""Records survive the file, and a damaged file is refused."""

import dataclasses
import json

import pytest

from powerpool.bench import record
from powerpool.bench.findings import find_outcomes
from powerpool.bench.record import Fit, Selection, Skipped
from powerpool.errors import RecordError
from powerpool.files import write_json
from tests.bench import samples


def full_record() -> record.BenchRecord:
    made = samples.pair(auto=3.0)
    made.cases[0].skipped.append(Skipped("svd autograd", "too slow"))
    made.targets = find_outcomes(made.cases)
    made.fits = [Fit("form M", "channels", {"batch": 8}, [[64, 0.1]], 1.5, None)]
    made.selection = [Selection("HDP", 8, 64, None, {"eigen": 1.0}, {"eigen": 9}, {"eigen": 1}, "eigen", "eigen", 1.0)]
    return made


def test_a_record_survives_the_file(tmp_path):
    made = full_record()
    made.save(tmp_path / "pools.json")
    loaded = record.load(tmp_path / "pools.json")
    assert loaded == made
    assert dataclasses.asdict(loaded) == dataclasses.asdict(made)
    assert loaded.cases[0].floor == made.cases[0].results[0]


@pytest.mark.parametrize("data", [{"schema": "other/1"}, [1, 2], {}])
def test_a_foreign_file_is_refused(tmp_path, data):
    path = tmp_path / "foreign.json"
    write_json(path, data)
    with pytest.raises(RecordError, match=r"foreign\.json is not a record"):
        record.load(path)


@pytest.mark.parametrize(
    "whole, damaged",
    [
        ('"suite": "pools"', '"suite": 3'),
        ('"median": 0.003', '"median": "long"'),
        ('"peak_bytes": 1048576', '"peak_bytes": 0.5'),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, whole, damaged):
    text = json.dumps(dataclasses.asdict(samples.pair(auto=3.0)))
    assert whole in text
    path = tmp_path / "pools.json"
    path.write_text(text.replace(whole, damaged))
    with pytest.raises(RecordError, match=r"pools\.json is a damaged record"):
        record.load(path)
