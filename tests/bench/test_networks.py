"""The suites of whole jobs: contenders that differ in one part alone, and run."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from powerpool.bench import networks
from powerpool.bench.cases import Effort, run_case
from powerpool.bench.measure import Stopwatch, peak_bytes
from powerpool.bench.record import LIMITS
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.model import make_network

QUICK = Effort(repetitions=1, budget=0.1, warm_up=0)


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    return networks.mutag_batches(128)


def test_mutag_batches_have_all_graphs(batches: list[Any]) -> None:
    assert [batch.num_graphs for batch in batches] == [128, 60]
    assert sum(batch.num_nodes for batch in batches) == 3371
    assert sum(batch.num_edges for batch in batches) == 7442
    assert sum(int(batch.y.sum()) for batch in batches) == 125
    for batch in batches:
        start, end = batch.edge_index
        assert (batch.batch[start] == batch.batch[end]).all()


def test_graph_networks_differ_in_the_readout_alone() -> None:
    average, second = (networks.make_gin(7, second_order).state_dict() for second_order in (False, True))
    shared = [name for name in average if not name.startswith(("head", "readout"))]
    assert shared == [name for name in second if not name.startswith(("head", "readout"))]
    assert len(shared) == 4 * 10  # eps, two linear layers and a batch norm in each of four layers
    for name in shared:
        assert_close(average[name], second[name], rtol=0, atol=0)
    assert second["head.weight"].shape == (2, 64 * 65 // 2)
    assert average["head.weight"].shape == (2, 64)


def test_resnet_50_is_a_resnet_50() -> None:
    sizes = networks.RESNET_50
    with torch.device("meta"):
        network = networks.make_resnet(sizes)
        maps = network(torch.empty(2, 3, sizes.pixels, sizes.pixels)).feature_maps[-1]
    assert maps.shape == (2, 2048, 7, 7)
    assert (sizes.channels, sizes.locations) == (2048, 49)
    # 25,557,032 less the linear layer for ImageNet.
    assert sum(weight.numel() for weight in network.parameters()) == 23_508_032


def test_every_job_has_a_floor_and_a_limit() -> None:
    jobs = {networks.training: 2, networks.extraction: 2, networks.episodes: 1}
    cases = [case for make, count in jobs.items() for case in make(quick=False)[:count]]
    assert {case.name for case in cases} == LIMITS.keys()
    for case in cases:
        origins = [contender.origin for contender in case.contenders]
        assert (origins[0], origins[-1], origins.count("powerpool")) == ("floor", "powerpool", 1)


@pytest.mark.parametrize("number", [0, 1], ids=["resnet", "gin"])
def test_training_cases_run(number: int) -> None:
    case = networks.training(quick=True)[number]
    for contender in case.contenders:
        watch = Stopwatch()
        answer = contender.step(watch)
        lap = watch.lap()
        assert lap.forward > 0
        assert lap.backward > 0
        assert torch.isfinite(answer.value).all()
    record = run_case(case, QUICK)
    assert [result.name for result in record.results] == [networks.AVERAGE, networks.SECOND_ORDER]


@pytest.mark.parametrize("package", ["transformers", "torch_geometric", "grakel"])
def test_a_case_without_its_package_is_left_out_with_a_reason(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else original(name))
    images, graphs = networks.training(quick=True)
    missing, other = (images, graphs) if package == "transformers" else (graphs, images)
    assert len(other.contenders) == 2
    assert not missing.contenders
    assert all(package in left.reason and "pip install" in left.reason for left in missing.skipped)
    assert run_case(missing, QUICK).results == []


def test_the_memory_of_a_training_step_does_not_depend_on_the_step_before() -> None:
    case = networks.resnet_case(networks.SMALL_RESNET)
    peaks = {}
    for contender in case.contenders:
        contender.step(Stopwatch())
        first, second = (peak_bytes(lambda step=contender.step: step(Stopwatch())) for _ in range(2))
        assert first == second
        peaks[contender.name] = first
    assert peaks[networks.SECOND_ORDER] > peaks[networks.AVERAGE]


def test_an_episode_has_two_forms_of_both_networks() -> None:
    (case,) = networks.episodes(quick=True)
    record = run_case(case, QUICK)  # compares the losses of both forms
    assert not record.error
    assert record.floor is not None
    assert record.floor.name == networks.RELATION_NET
    assert {result.name for result in record.results} == {
        networks.RELATION_NET,
        networks.STACKED_RELATION,
        networks.STACKED,
        networks.SOSN,
    }


@pytest.mark.parametrize(
    "method, stacked", [("SoSN(x)+SigmE", networks.stacked_sosn), ("RelationNet", networks.stacked_relation)]
)
@pytest.mark.parametrize("size", [28, 60])
def test_both_forms_are_one_network(method: str, stacked, size: int) -> None:
    support, query = torch.rand(3, 2, 1, size, size), torch.rand(4, 1, size, size)
    found = []
    for make in (make_network, stacked):
        torch.manual_seed(0)
        network = make(ModelConfig(method, hidden=8), 1, size).double()
        network(support.double(), query.double()).sum().backward()
        found.append([parameter.grad for parameter in network.encoder.parameters()])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_maps_from_files_are_those_of_the_backbone() -> None:
    (case,) = networks.extraction(quick=True)
    bare, folded, files = (contender.step(Stopwatch()).value for contender in case.contenders)
    assert files.shape == (2 * 12, 320, 2, 2)
    assert_close(folded, bare, rtol=1e-3, atol=1e-4)
    assert_close(files, folded, rtol=1e-3, atol=1e-4)
