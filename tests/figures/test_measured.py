"""Figures of made-up records, with numbers that are easy to check."""

from __future__ import annotations

import json
import re
import shlex
from statistics import fmean

import numpy as np
import pytest
import torch
from scipy import stats

from powerpool.cli.main import COMMANDS
from powerpool.data.banks import FeatureStore
from powerpool.errors import RecordError
from powerpool.figures.data import MissingRecordError, Sources, spectrum
from powerpool.figures.measured import open_mic_command, sweep_command
from powerpool.figures.registry import make_figure
from powerpool.runs.record import EpisodeResult, RunRecord, mark_quick
from powerpool.tasks.vision.options import PAPER, SCHEMA, STUDIES, read_sweep
from tests.bench import samples


def bench_record(folder, **options):
    cases = []
    for number, (channels, eta) in enumerate([(64, 50), (128, 50), (256, 50), (64, 5), (64, 500)]):
        sizes = {"batch": 4, "channels": channels, "locations": 49, "eta": eta}
        rows = [samples.measured("powerpool squaring", 8.0 + number, spread=0.5), samples.measured("other", 1.0)]
        rows += [samples.measured("GSPN (Algorithm 1)", 20.0, "competitor")] if channels == 128 else []
        cases.append(samples.case(str(number), sizes, *rows))
    samples.record(*cases, **options).save(folder / "pools.json")
    return folder


def lines(name, sources):
    data = make_figure(name, sources)
    return data, [{line.name: line for line in panel.lines} for panel in data.panels]


def test_times_are_for_a_thousand_matrices(tmp_path):
    data, (forward, backward) = lines("timing-channels", Sources((bench_record(tmp_path),)))
    # Half of 8, 9 and 10 ms for four matrices, quartiles a half away.
    for found in (forward, backward):
        line = found["MaxExp(F), squaring"]
        assert line.x.tolist() == [64, 128, 256]
        assert line.y.tolist() == pytest.approx([1.0, 1.125, 1.25])
        assert line.interval[0].tolist() == pytest.approx([0.5, 0.5625, 0.625])
        assert line.interval[1].tolist() == pytest.approx([1.5, 1.6875, 1.875])
        assert found["GSPN, Algorithm 1"].x.tolist() == [128]
        assert len(found) == 2
    assert "batch = 4, N = 49, eta = 50" in data.note
    assert data.panels[0].y.text == "time for 1000 matrices (s)"
    _, (forward, _) = lines("timing-eta", Sources((tmp_path / "pools.json",)))
    assert forward["MaxExp(F), squaring"].x.tolist() == [5, 50, 500]
    assert forward["MaxExp(F), squaring"].y.tolist() == pytest.approx([1.375, 1.0, 1.5])


def test_records_are_read_from_results_and_runs_but_not_quick_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingRecordError, match=r"results or runs.*powerpool bench pools"):
        make_figure("timing-eta")
    for quick in ("runs/bench-quick", "runs/bench"):
        folder = tmp_path / quick
        folder.mkdir(parents=True)
        bench_record(folder, quick=quick == "runs/bench")
        with pytest.raises(MissingRecordError):
            make_figure("timing-eta")
        assert make_figure("timing-eta", Sources((folder,))).panels
    published = tmp_path / "results" / "bench"
    published.mkdir(parents=True)
    bench_record(published)
    assert make_figure("timing-eta").panels


def test_records_with_a_quick_mark_are_read_only_from_a_named_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "mine"
    path = sweep_record(folder, "beta", [0.0])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"environment": {"quick": True}}))
    open_mic_records(folder)
    for file in folder.glob("open_mic-*/*.json"):
        mark_quick(RunRecord.read(file)).write(file)
    for name in ("sensitivity-beta", "open-mic-1"):
        with pytest.raises(MissingRecordError):
            make_figure(name)
        assert make_figure(name, Sources((folder,))).panels
    sweep_record(tmp_path / "runs" / "whole", "beta", [0.5])
    open_mic_records(tmp_path / "results")
    assert lines("sensitivity-beta", None)[1][0]["SOP+SC+SpecMaxExpF on flower102"].x.tolist() == [0.5]
    assert make_figure("open-mic-1").panels


def sweep_record(folder, setting, values, data="flower102", method="SOP+SC+SpecMaxExpF"):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{setting: value, "accuracy": 90 - value, "loss": 1.0} for value in values]
    found = {"schema": SCHEMA, "data": data, "method": method, "setting": setting, "values": rows}
    path = folder / f"{data}-{method}-{setting}.json"
    path.write_text(json.dumps(found))
    return path


def test_sensitivity_has_a_line_for_each_method_and_data_set(tmp_path):
    sweep_record(tmp_path / "a", "beta", [0.5, 0.0, 1.0])
    sweep_record(tmp_path / "b", "beta", [0.0], data="fmd")
    sweep_record(tmp_path / "c", "beta", [0.3])  # the same once more: the first counts
    data, (found,) = lines("sensitivity-beta", Sources((tmp_path,)))
    assert list(found) == ["SOP+SC+SpecMaxExpF on flower102", "SOP+SC+SpecMaxExpF on fmd"]
    line = found["SOP+SC+SpecMaxExpF on flower102"]
    assert (line.x.tolist(), line.y.tolist()) == ([0.0, 0.5, 1.0], [90.0, 89.5, 89.0])
    assert not data.panels[0].x.log
    sweep_record(tmp_path, "eta", [1, 30])
    assert make_figure("sensitivity-eta", Sources((tmp_path,))).panels[0].x.log
    with pytest.raises(MissingRecordError, match="alpha"):
        make_figure("sensitivity-alpha", Sources((tmp_path,)))


def test_sweeps_of_0_1_have_the_old_name_of_the_setting(tmp_path):
    path = sweep_record(tmp_path, "eta_prime", [50, 200], method="SOP+SC+SigmE")
    assert read_sweep(path).setting == "sigme_eta"
    _, (found,) = lines("sensitivity-eta-prime", Sources((tmp_path,)))
    assert found["SOP+SC+SigmE on flower102"].x.tolist() == [50, 200]


@pytest.mark.parametrize(
    "whole, damaged, field",
    [
        ('"accuracy"', '"precision"', "accuracy"),
        ('"values": [', '"others": [', "values"),
        ('"data": "flower102"', '"data": null', "data"),
        ('"beta": 0.0', '"beta": "none"', "value"),
    ],
)
def test_damaged_sweeps_are_refused(whole, damaged, field, tmp_path):
    path = sweep_record(tmp_path, "beta", [0.0])
    text = path.read_text()
    assert whole in text
    path.write_text(text.replace(whole, damaged))
    with pytest.raises(RecordError, match=rf"{re.escape(path.name)}.*{field}"):
        make_figure("sensitivity-beta", Sources((tmp_path,)))


def test_a_sweep_with_the_number_of_images_has_intervals(tmp_path):
    path = sweep_record(tmp_path, "beta", [0.0, 0.5])
    assert lines("sensitivity-beta", Sources((path,)))[1][0]["SOP+SC+SpecMaxExpF on flower102"].interval is None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pictures": 200}))
    data, (found,) = lines("sensitivity-beta", Sources((path,)))
    low, high = found["SOP+SC+SpecMaxExpF on flower102"].interval
    for number, right in enumerate((180, 179)):
        expected = stats.binomtest(right, 200).proportion_ci(method="wilson")
        assert (low[number].item(), high[number].item()) == pytest.approx((100 * expected.low, 100 * expected.high))
    assert "Wilson" in data.note


def test_foreign_files_in_a_folder_are_ignored_but_not_those_that_are_named(tmp_path):
    foreign = {"timing-eta": "pools.json", "sensitivity-beta": "a-beta.json", "open-mic-2": "open_mic-shn/a.json"}
    for content in ('{"schema": "of others"}', "[1]"):
        for name, file in foreign.items():
            path = tmp_path / "aaa" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            with pytest.raises(MissingRecordError):
                make_figure(name, Sources((tmp_path / "aaa",)))
            with pytest.raises(RecordError, match=r"\.json is not a") as caught:
                make_figure(name, Sources((path,)))
            assert not isinstance(caught.value, MissingRecordError)
    (tmp_path / "bbb").mkdir()
    bench_record(tmp_path / "bbb")
    sweep_record(tmp_path / "bbb", "beta", [0.0])
    open_mic_records(tmp_path / "bbb")
    for name in foreign:
        assert make_figure(name, Sources((tmp_path,))).panels


def open_mic_records(folder, ways=(5, 20)):
    """With one support image; and with five, whose value would show in every mean."""
    values = {}
    for number, problem in enumerate(("p1-to-p2", "p2-to-p1", "shn")):
        for method in ("SoSN(x)+SigmE", "RelationNet"):
            for way in ways:
                value = 60.0 + number - way + len(method)
                values.setdefault((problem[0] == "p", method, way), []).append(value)
                _open_mic_record(folder, problem, method, f"{way}-way-1-shot", value)
        _open_mic_record(folder, problem, "SoSN(x)+SigmE", "5-way-5-shot", 99.0)
    return values


def _open_mic_record(folder, problem, method, protocol, value):
    heads = ("fewshot", f"open_mic-{problem}", method, protocol, "accuracy in %")
    episodes = {"right": (1,), "queries": 1, "test_seconds": 1.0, "episodes_per_second": 1.0}
    result = EpisodeResult(number=0, value=value, test_loss=0.0, seconds=1.0, **episodes)
    record = RunRecord(*heads, (result,), {"size": 84}, 0, 1.0)
    record.write(folder / record.data / f"{method}.{protocol}.json")


def test_open_mic_is_the_mean_over_problems_beside_the_paper(tmp_path):
    values = open_mic_records(tmp_path)
    data, (found,) = lines("open-mic-1", Sources((tmp_path,)))
    for method in ("SoSN(x)+SigmE", "RelationNet"):
        line = found[f"{method} 84 px"]
        assert line.x.tolist() == [5, 20]
        assert line.y.tolist() == pytest.approx([fmean(values[True, method, way]) for way in (5, 20)])
        for number, way in enumerate((5, 20)):
            found_ends = [ends[number].item() for ends in line.interval]
            sample = values[True, method, way]
            assert found_ends == pytest.approx(stats.t.interval(0.95, 1, fmean(sample), stats.sem(sample)))
    assert found["SoSN(x)+SigmE 84 px, paper"].y.tolist() == [69.06, 46.53]
    assert found["RelationNet 84 px, paper"].y.tolist() == [55.45, 31.58]
    assert "2 of 12 pairs" in data.note
    data, (found,) = lines("open-mic-2", Sources((tmp_path,)))
    assert found["RelationNet 84 px"].interval is None
    assert "1 of 10 exhibitions" in data.note
    assert list(found) == ["RelationNet 84 px", "SoSN(x)+SigmE 84 px"]  # the paper prints no number of protocol II
    assert found["RelationNet 84 px"].y.tolist() == values[False, "RelationNet", 5] + values[False, "RelationNet", 20]
    (tmp_path / "open_mic-p2-to-p1" / "RelationNet.20-way-1-shot.json").unlink()
    data, (found,) = lines("open-mic-1", Sources((tmp_path,)))
    assert "1 to 2 of 12 pairs" in data.note
    assert "not the same" in data.note
    assert [ends.isnan().tolist() for ends in found["RelationNet 84 px"].interval] == [[False, True]] * 2


def test_the_commands_that_make_records_exist():
    for setting in PAPER:
        assert setting in STUDIES
        assert sweep_command(setting).endswith(f"--over {setting}")
    for command in (sweep_command("beta"), open_mic_command(("p1->p2", "shn"))):
        first, second, *_ = shlex.split(command)[1:]
        assert f"{first} {second}" in COMMANDS


def stored_features(folder, count=3):
    """Two crops of five channels and 2 x 3 locations for each image."""
    facts = {"data": "stripes", "backbone": "tiny", "stored": "float32"}
    splits = {name: {"names": [str(n) for n in range(count)], "targets": [0] * count} for name in ("train", "test")}
    shape, draw = (2, 5, 2, 3), torch.Generator().manual_seed(0)
    maps = torch.rand(count, *shape, generator=draw)
    folder.mkdir(parents=True)
    for name in splits:
        store = FeatureStore(folder / name, facts, count=count, shape=shape, dtype="float32")
        store.append(maps)
        store.flush()
    found = {"facts": facts, "classes": ["a"], "splits": splits, "shape": shape}
    (folder / "items.json").write_text(json.dumps(found))
    return maps.numpy().astype(float)


def test_the_variance_of_stored_features(tmp_path, monkeypatch):
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path))
    maps = stored_features(tmp_path / "features" / "stripes-0123")
    expected = []
    for image in maps:
        features = np.concatenate([crop.reshape(5, 6) for crop in image], axis=1)
        moment = features @ features.T / features.shape[1]
        leading = np.linalg.eigvalsh(moment)[::-1] / np.trace(moment)
        expected.append(np.var(1 - (1 - leading) ** 1.0))
    for named in ("stripes", str(tmp_path / "features" / "stripes-0123")):
        data, (found,) = lines("variance", Sources(features=named))
        assert list(found) == ["5 eigenvalues"]  # there are no more
        assert found["5 eigenvalues"].y[0].item() == pytest.approx(np.mean(expected), rel=1e-6)
        assert data.panels[0].title == "features of stripes, tiny, C = 5"
        assert "3 of 3" in data.note
    with pytest.raises(RecordError, match=r"strips.*stripes"):
        make_figure("variance", Sources(features="strips"))


@pytest.mark.parametrize("channels", [3, 40])
def test_a_spectrum_from_either_of_two_matrices(channels):
    maps = torch.rand(2, channels, 2, 3, generator=torch.Generator().manual_seed(1))
    features = np.concatenate([crop.reshape(channels, 6) for crop in maps.numpy().astype(float)], axis=1)
    singular = np.linalg.svd(features, compute_uv=False) ** 2
    np.testing.assert_allclose(np.sort(spectrum(maps).numpy()), np.sort(singular / singular.sum()), atol=1e-12)
