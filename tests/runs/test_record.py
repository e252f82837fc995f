"""Records: read as they were written, those of 0.1 converted, edited or damaged ones refused by field."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch
from scipy import stats

from powerpool.errors import RecordError
from powerpool.runs.compare import summarize
from powerpool.runs.environment import Environment
from powerpool.runs.record import (
    Confusion,
    EpisodeResult,
    FoldResult,
    RunRecord,
    Score,
    Spectrum,
    SplitResult,
    Trial,
    pack_bits,
    unpack_bits,
)

RESULTS = Path(__file__).parents[2] / "results"


def make_fold(number: int, value: float, **changes) -> FoldResult:
    fields = {
        "number": number,
        "value": value,
        "test_loss": 0.5,
        "seconds": 1.0,
        "epoch": 10,
        "chosen": {"eta": 20.0},
        "validation": Score(80.0, 0.4),
        "trials": (Trial({"eta": 20.0}, 80.0, 0.4, 10),),
        "curves": {"train_loss": (1.0, None)},
        "confusion": Confusion.of(torch.tensor([[5, 0], [2, 3]]), ["a", "b"]),
        "spectrum": Spectrum(1, 2, (1, 2), (0.9, 0.1), (0.6, 0.4)),
    }
    return FoldResult(**(fields | changes))


def make_record(values=(80.0, 84.0, 88.0), **changes) -> RunRecord:
    fields = {
        "task": "graph",
        "data": "MUTAG",
        "method": "SOP",
        "protocol": "validation-only",
        "metric": "accuracy in %",
        "results": tuple(make_fold(number, value) for number, value in enumerate(values)),
        "config": {"grid": {"eta": (1.0, 20.0)}, "folds": 3},
        "seed": 0,
        "seconds": 12.5,
        "environment": Environment(torch="2", command="powerpool train graph"),
    }
    return RunRecord(**(fields | changes))


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "MUTAG" / "SOP.json"
    record = make_record()
    record.write(path)
    assert RunRecord.read(path) == record
    assert record.config["grid"]["eta"] == [1.0, 20.0]
    interval = stats.ttest_1samp(record.values, 0).confidence_interval()
    written = json.loads(path.read_text())
    assert (written["schema"], written["count"], written["mean"], written["std"]) == (2, 3, 84.0, 4.0)
    assert written["interval"] == pytest.approx([interval.low, interval.high])
    assert record.results[0].confusion.dense() == [[5, 0], [2, 3]]


def test_seeds_of_a_fold_are_no_further_folds(tmp_path):
    values = {(0, 0): 80.0, (1, 0): 90.0, (2, 0): 84.0, (0, 7): 82.0, (1, 7): 88.0, (2, 7): 88.0}
    results = [make_fold(number, value, fold=fold, seed=seed)
               for number, ((fold, seed), value) in enumerate(values.items())]  # fmt: skip
    record = make_record(results=tuple(results))
    means = [81.0, 89.0, 86.0]
    interval = stats.ttest_1samp(means, 0).confidence_interval()
    assert (record.count, record.mean, len(record.values)) == (3, pytest.approx(256 / 3), 6)
    assert record.std == pytest.approx(statistics.stdev(means))
    assert record.interval == pytest.approx((interval.low, interval.high))
    record.write(tmp_path / "record.json")
    assert RunRecord.read(tmp_path / "record.json") == record
    # Files of earlier versions have the numbers of all results.
    written, every = json.loads((tmp_path / "record.json").read_text()), summarize(list(values.values()))
    written |= {"count": 6, "std": every.std, "interval": list(every.interval)}
    (tmp_path / "old.json").write_text(json.dumps(written))
    assert RunRecord.read(tmp_path / "old.json") == record


def test_results_of_other_tasks_are_read_as_they_were_written(tmp_path):
    split = SplitResult(number=0, value=90.0, test_loss=0.3, seconds=2.0, top5=99.0, count=5, right="88", converged=3)
    episodes = EpisodeResult(
        number=0, value=50.0, test_loss=1.0, seconds=3.0, right=(1, 2), queries=3, test_seconds=1.0,
        episodes_per_second=4.0,
    )  # fmt: skip
    for task, result in (("vision", split), ("fewshot", episodes)):
        record = make_record(task=task, results=(result,))
        record.write(tmp_path / "one.json")
        assert RunRecord.read(tmp_path / "one.json") == record
        assert (record.std, record.interval) == (None, None)
    assert episodes.accuracies == pytest.approx([100 / 3, 200 / 3])


@pytest.mark.skipif(not RESULTS.is_dir(), reason="published results are part of a checkout only")
@pytest.mark.parametrize(
    "file, kind",
    [
        ("graph/MUTAG/SOP.json", FoldResult),
        ("vision/flower102/SOP.json", SplitResult),
        ("fewshot/omniglot/RelationNet.5-way-1-shot.json", EpisodeResult),
    ],
)
def test_a_record_of_version_0_1_is_converted(tmp_path, file, kind):
    record, old = RunRecord.read(RESULTS / file), json.loads((RESULTS / file).read_text())
    assert all(type(result) is kind for result in record.results)
    assert (record.task, record.mean) == (old["pipeline"], old["mean"])
    assert [result.value for result in record.results] == [fold["value"] for fold in old["folds"]]
    assert record.environment.commit == old["environment"]["commit"]
    with pytest.warns(DeprecationWarning, match="results"):
        folds = record.folds
    for name in ("fold", "value", "chosen", "validation_loss", "right_by_episode"):
        assert [fold.get(name) for fold in folds] == [fold.get(name) for fold in old["folds"]]
    record.write(tmp_path / "new.json")
    assert RunRecord.read(tmp_path / "new.json") == record


def test_records_are_paired_by_number():
    first = make_record(results=tuple(make_fold(number, number + 1.0) for number in (2, 0, 1)))
    second = make_record(results=tuple(make_fold(number, number * 10.0) for number in (0, 2, 7)))
    assert first.paired(second) == ([1.0, 3.0], [0.0, 20.0])


@pytest.mark.parametrize(
    "edit, field",
    [
        ({"mean": 85.0}, "mean"),
        ({"std": None}, "std"),
        ({"interval": [74.0]}, "interval"),
        ({"count": True}, "count"),
        ({"results": []}, "results"),
        ({"results": [1]}, r"results\[0\]"),
        ({"task": "cooking"}, "task"),
        ({"task": {"a": {"b": {}}}}, "task"),
        ({"method": ""}, "method"),
        ({"data": 3}, "data"),
        ({"seed": "0"}, "seed"),
        ({"seconds": -1.0}, "seconds"),
        ({"config": []}, "config"),
        ({"environment": {"cores": []}}, "environment.cores"),
        ({"note": "mine"}, "note"),
        ({"schema": 3}, "schema"),
    ],
)
def test_an_edited_record_is_refused_by_file_and_field(tmp_path, edit, field):
    path = tmp_path / "edited.json"
    make_record().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(RecordError, match=rf"edited\.json .*{field}"):
        RunRecord.read(path)


@pytest.mark.parametrize(
    "edit, field",
    [
        ({"value": "80"}, r"results\[0\]\.value"),
        ({"value": 1e999}, r"results\[0\]\.value"),
        ({"value": 1e308}, r"results\[0\]\.value.*1e\+308"),
        ({"number": 10**400}, r"results\[0\]\.number"),
        ({"number": 0.5}, r"results\[0\]\.number"),
        ({"number": 1}, "numbers"),
        ({"chosen": {"eta": "x" * 10**6}}, r"results\[0\]\.chosen\.eta"),
        ({"curves": {"train_loss": [True]}}, r"results\[0\]\.curves\.train_loss\[0\]"),
        ({"unknown": 1}, r"results\[0\]\.unknown"),
        ({"spectrum": {"samples": 1, "size": 2, "ranks": [1], "before": [], "after": []}}, "spectrum"),
    ],
)
def test_an_edited_result_is_refused_by_field_with_a_short_message(tmp_path, edit, field):
    path = tmp_path / "edited.json"
    make_record().write(path)
    data = json.loads(path.read_text())
    data["results"][0] |= edit
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=field) as caught:
        RunRecord.read(path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("counts", [("0 0",), ("0 2 1",), ("0 -1 1",), ("0 0 x",)])
def test_a_confusion_matrix_that_does_not_fit_its_classes_is_refused(counts):
    with pytest.raises(RecordError, match="counts"):
        Confusion(("a", "b"), counts).dense()


@pytest.mark.parametrize("value", [float("nan"), Path("x")])
def test_settings_that_json_cannot_hold_are_refused(value):
    with pytest.raises(RecordError, match="config"):
        make_record(config={"rate": value})


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_bits_are_unpacked_as_they_were_packed(count):
    flags = torch.rand(count, generator=torch.Generator().manual_seed(count)) > 0.5
    packed = pack_bits(flags)
    assert len(packed) == 2 * (-(-count // 8))
    assert unpack_bits(packed, count) == flags.tolist()
