"""The suite ``training``: networks that differ in their pooling alone, and train."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import grakel
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from powerpool.bench import training
from powerpool.bench.case import BenchCase
from powerpool.bench.memory import peak_bytes
from powerpool.bench.runner import Effort, run_case
from powerpool.bench.timing import Stopwatch


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    return training.mutag_batches(128)


@pytest.fixture(scope="module", params=[0, 1], ids=["resnet", "gin"])
def case(request: pytest.FixtureRequest) -> BenchCase:
    return training.cases(quick=True)[request.param]


class TestMutag:
    def test_is_what_the_files_say(self, batches: list[Any]) -> None:
        folder = Path(grakel.__file__).parent / "tests" / "data" / "MUTAG"
        owner = np.loadtxt(folder / "MUTAG_graph_indicator.txt", dtype=np.int64)
        edges = np.loadtxt(folder / "MUTAG_A.txt", dtype=np.int64, delimiter=",")
        labels = np.loadtxt(folder / "MUTAG_node_labels.txt", dtype=np.int64)
        assert [batch.num_graphs for batch in batches] == [128, 60]
        assert sum(batch.num_nodes for batch in batches) == len(owner) == 3371
        assert sum(batch.num_edges for batch in batches) == len(edges) == 7442
        assert sum(int(batch.y.sum()) for batch in batches) == 125
        counts = torch.stack([batch.x.sum(0) for batch in batches]).sum(0)
        assert_close(counts, torch.from_numpy(np.bincount(labels)).float(), rtol=0, atol=0)
        sizes = torch.cat([torch.bincount(batch.batch) for batch in batches])
        assert_close(sizes.sort().values, torch.from_numpy(np.bincount(owner)[1:]).sort().values, rtol=0, atol=0)

    def test_edges_stay_inside_their_graphs_and_go_both_ways(self, batches: list[Any]) -> None:
        for batch in batches:
            start, end = batch.edge_index
            assert (batch.batch[start] == batch.batch[end]).all()
            assert set(zip(start.tolist(), end.tolist(), strict=True)) == set(
                zip(end.tolist(), start.tolist(), strict=True)
            )


class TestNetworks:
    def test_graph_networks_differ_in_the_readout_alone(self) -> None:
        average, second = (training.make_gin(7, second_order).state_dict() for second_order in (False, True))
        shared = [name for name in average if not name.startswith("head")]
        assert shared == [name for name in second if not name.startswith("head")]
        assert len(shared) == 4 * 10  # eps, two linear layers and a batch norm in each of four layers
        for name in shared:
            assert_close(average[name], second[name], rtol=0, atol=0)
        assert second["head.weight"].shape == (2, 64 * 65 // 2)
        assert average["head.weight"].shape == (2, 64)

    def test_resnet_50_has_the_maps_of_a_resnet_50(self) -> None:
        sizes = training.RESNET_50
        with torch.device("meta"):
            maps = training.make_resnet(sizes)(torch.empty(2, 3, sizes.pixels, sizes.pixels)).feature_maps[-1]
        assert maps.shape == (2, 2048, 7, 7)
        assert (sizes.channels, sizes.locations) == (2048, 49)

    def test_resnet_50_has_the_weights_of_a_resnet_50(self) -> None:
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in training.make_resnet(training.RESNET_50).parameters())
        assert weights == 23_508_032  # 25,557,032 less the linear layer for ImageNet

    def test_image_readouts_give_one_logit_per_class(self) -> None:
        maps = torch.rand(2, 16, 3, 3)
        for readout in (training.average_readout(16, 5), training.second_order_readout(16, 5)):
            assert readout(maps).shape == (2, 5)


class TestCases:
    def test_two_contenders_with_a_limit(self) -> None:
        found = training.cases(quick=False)
        assert [case.name for case in found] == list(training.LIMITS)
        assert {case.suite for case in found} == {"training"}
        for case in found:
            assert [contender.origin for contender in case.contenders] == ["floor", "powerpool"]
        assert found[0].sizes == {"batch": 8, "channels": 2048, "locations": 49, "eta": 50}

    def test_a_step_is_timed_forward_and_backward(self, case: BenchCase) -> None:
        for contender in case.contenders:
            watch = Stopwatch()
            answer = contender.step(watch)
            lap = watch.lap()
            assert lap.forward > 0
            assert lap.backward > 0
            assert torch.isfinite(answer.value).all()

    def test_runs_in_the_harness(self, case: BenchCase) -> None:
        record = run_case(case, Effort(repetitions=3, budget=1.0, warm_up=0))
        assert not record.error
        assert [result.name for result in record.results] == [training.AVERAGE, training.OURS]

    def test_an_epoch_of_graphs_learns(self) -> None:
        for contender in training.gin_case().contenders:
            losses = [contender.step(Stopwatch()).value.mean() for _ in range(15)]
            assert losses[-1] < 0.8 * losses[0]

    @pytest.mark.parametrize("package", ["transformers", "torch_geometric", "grakel"])
    def test_what_is_not_installed_is_left_out_and_says_so(self, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
        original = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else original(name))
        images, graphs = training.cases(quick=True)
        missing, other = (images, graphs) if package == "transformers" else (graphs, images)
        assert len(other.contenders) == 2
        assert not missing.contenders
        assert [left.name for left in missing.skipped] == [training.AVERAGE, training.OURS]
        assert all(f"needs {package}" in left.reason and "pip install" in left.reason for left in missing.skipped)
        assert run_case(missing, Effort(repetitions=3, budget=1.0, warm_up=0)).results == []


def test_the_memory_of_a_training_step_does_not_depend_on_the_step_before():
    case = training.resnet_case(training.SMALL_RESNET)
    peaks = {}
    for contender in case.contenders:
        contender.step(Stopwatch())
        first, second = (peak_bytes(lambda step=contender.step: step(Stopwatch())) for _ in range(2))
        assert first == second
        peaks[contender.name] = first
    assert peaks[training.OURS] > peaks[training.AVERAGE]
