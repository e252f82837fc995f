"""Any model and loader: pools are found, their own matrices are met, and the model is left as it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import powerpool as pp
from powerpool.analysis import inspect_model, result
from powerpool.analysis.models import find_pool, sets_of
from powerpool.errors import ArgumentError, ShapeError
from powerpool.integrations.pyg import SecondOrderAggregation
from powerpool.tasks.pooling import normalization_of
from tests.tolerances import tolerance


def network(pool: nn.Module | None = None) -> nn.Sequential:
    """Parts with all that can go wrong: batch normalization, dropout, and one that is frozen in evaluation mode."""
    pool = pp.nn.SecondOrderPool2d(6, pp.MaxExp(eta=5), coordinates=3) if pool is None else pool
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), pool)
    model[1].eval()
    return model


def pictures(batches: int = 3, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(size, 3, 9, 8, generator=generator), torch.zeros(size)) for _ in range(batches)]


# ---- the model is left as it was found -------------------------------------------------------------------------------


def state(model: nn.Module) -> tuple[list[bool], list[int], list[Tensor], list[Tensor | None]]:
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    weights = [value.clone() for value in model.state_dict().values()]
    return [module.training for module in model.modules()], hooks, weights, [p.grad for p in model.parameters()]


def assert_same_state(one, other) -> None:
    assert one[:2] == other[:2]
    assert all(torch.equal(a, b) for a, b in zip(one[2], other[2], strict=True))
    assert all(a is b for a, b in zip(one[3], other[3], strict=True))


def test_modes_hooks_weights_and_statistics_stay():
    model = network()
    before = state(model)
    assert before[0] != [module.training for module in network().eval().modules()]
    inspect_model(model, pictures())
    assert_same_state(before, state(model))


def test_also_where_the_model_or_the_loader_fails():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("broken")

    for model, loader in ((nn.Sequential(network(), Broken()), pictures()), (network(), failing())):
        before = state(model)
        with pytest.raises(RuntimeError, match="broken"):
            inspect_model(model, loader)
        assert_same_state(before, state(model))


def failing():
    yield from pictures(1)
    raise RuntimeError("broken")


def test_nothing_has_a_gradient_and_dropout_is_off():
    model, grads = network(), []
    model[4].register_forward_hook(lambda _, __, output: grads.append(output.requires_grad))
    one, other = inspect_model(model, pictures()), inspect_model(model, pictures())
    assert not any(grads)
    assert torch.equal(one.before.spectra, other.before.spectra)


# ---- which pool, which samples ---------------------------------------------------------------------------------------


def test_the_loader_is_read_only_as_far_as_needed():
    found = inspect_model(network(), iter([*pictures(1), None]), samples=4)
    assert found.samples == 4
    assert inspect_model(network(), pictures(), samples=5).samples == 5
    assert inspect_model(network(), pictures(), samples=100).samples == 12


def test_batches_of_all_kinds_reach_the_model():
    x = pictures(1)[0][0]
    expected = inspect_model(network(), [x]).before.spectra
    for batch in ((x, 1), [x, 1], {"input": x}):
        torch.testing.assert_close(inspect_model(network(), [batch]).before.spectra, expected)
    found = inspect_model(network(), [{"picture": x}], call=lambda model, batch: model(batch["picture"]))
    torch.testing.assert_close(found.before.spectra, expected)


def test_a_plain_pooling_can_be_named_and_given_a_curve():
    model = network(nn.AdaptiveAvgPool2d(1))
    found = inspect_model(model, pictures(), pool="4")
    assert found.after is None
    assert found.normalization.is_first_order
    assert "on the spectrum" in found.advice()
    assert all(after == "-" for _, _, after in found.table())
    given = inspect_model(model, pictures(), pool=model[4], curve=pp.MaxExp(eta=9))
    assert (given.after.effective_rank > given.before.effective_rank).all()
    torch.testing.assert_close(given.before.spectra, found.before.spectra)


def test_a_mode_alone_is_refused():
    with pytest.raises(ArgumentError, match=r"mode needs a curve .*\(got mode='elementwise' alone\): give curve="):
        inspect_model(network(), pictures(), mode="elementwise")


def test_with_another_curve_all_else_of_the_pool_stays():
    terms = {"beta": 1.0, "eps": 1e-3, "trace_power": 0.5, "slope": 0.1, "solver": "eigen"}
    pool = pp.nn.SecondOrderPool2d(6, pp.MaxExp(eta=5), **terms)
    found = inspect_model(network(pool), pictures(1), curve=pp.HDP(t=0.1)).normalization
    assert {name: getattr(found, name) for name in terms} == terms
    assert (found.curve.t, found.mode) == (0.1, "spectral")
    entries = pp.nn.SecondOrderPool2d(6, pp.SigmE(eta=5.0), "elementwise")
    assert inspect_model(network(entries), pictures(1), curve=pp.SigmE(eta=9.0)).normalization.mode == "elementwise"
    given = inspect_model(network(entries), pictures(1), curve=pp.MaxExp(eta=9), mode="spectral")
    assert given.normalization.mode == "spectral"


def test_a_model_without_a_pool_or_with_two_asks_for_a_name():
    with pytest.raises(ArgumentError, match=r"no pool of powerpool .*pool='avgpool'"):
        inspect_model(nn.Sequential(nn.Conv2d(3, 6, 3)), pictures())
    pool = pp.nn.SecondOrderPool2d(3)
    both = nn.ModuleDict({"one": pool, "two": pp.nn.FirstOrderPool2d(3)})
    with pytest.raises(ArgumentError, match=r"has 2 pools: 'one', 'two'\. Name one"):
        find_pool(both)
    assert find_pool(both, "one") == ("one", pool)
    assert find_pool(both, pool) == ("one", pool)
    with pytest.raises(ArgumentError, match=r"no module 'three'\. Its first ones are: 'one'"):
        find_pool(both, "three")
    with pytest.raises(ArgumentError, match="no part of the model"):
        find_pool(both, nn.ReLU())


def test_a_pool_that_is_never_called_is_said_to_be():
    with pytest.raises(ArgumentError, match="'4' was never called"):
        inspect_model(network(), [])


def test_what_is_no_set_of_features_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(216, 2))
    with pytest.raises(ShapeError, match=r"Linear was given torch\.float32 of shape \(4, 216\)"):
        inspect_model(model, pictures(), pool="1")


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(result, "draw_pictures", lambda found, folder: [])  # which takes most of the time
    exec(example, {})
    assert capsys.readouterr().out.startswith("Suggestion: ")
    assert (tmp_path / "what-it-sees" / "inspection.json").exists()


# ---- every pool: what is looked at gives what the pool itself gives --------------------------------------------------


def own_matrices(module: nn.Module, *arguments: object) -> Tensor:
    pool = normalization_of("pool", module)
    return torch.stack([pool.matrix(*one) for one in sets_of(module, arguments, {})])


@pytest.mark.parametrize("mode", ["spectral", "elementwise"])
def test_sets_of_a_map_pool_give_its_vectors(mode):
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=7), mode, coordinates=3, reduce_to=5, trace_power=0.5, slope=0.1)
    maps = torch.rand(4, 8, 5, 6)
    with torch.no_grad():
        expected = pool(maps)
        found = pp.to_vector(own_matrices(pool, maps))
    torch.testing.assert_close(found.float(), expected, **tolerance(torch.float32, slack=10))


@pytest.mark.parametrize("leading", [(), (1,), (2, 3)])
def test_maps_with_any_leading_sizes_are_read_as_the_pool_reads_them(leading):
    maps = torch.rand(*leading, 8, 5, 6)
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=7), coordinates=3, reduce_to=5)
    with torch.no_grad():
        found, expected = pp.to_vector(own_matrices(pool, maps)).float(), pool(maps).reshape(-1, pool.out_features)
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, slack=10))
    means = torch.stack([one.features.mean(-1) for one in sets_of(pp.nn.FirstOrderPool2d(8), (maps,), {})])
    torch.testing.assert_close(means, pp.nn.FirstOrderPool2d(8)(maps).reshape(-1, 8))
    descriptor = pp.nn.RelationDescriptor(pp.SigmE(eta=9.0), variant="outer+P")
    support, query = torch.rand(*leading, 3, 5, 7), torch.rand(*leading, 5, 7)
    found, expected = own_matrices(descriptor, support, query).float(), descriptor(support, query)
    torch.testing.assert_close(found, torch.cat([expected.reshape(-1, 2, 5, 5)[:, place] for place in (1, 0)]))


def test_a_model_may_pool_one_map():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), pp.nn.FirstOrderPool2d(6))
    found = inspect_model(model, [torch.rand(3, 9, 8)])
    assert (found.samples, found.channels, found.locations) == (1, 6, (42,))
    with pytest.raises(ShapeError, match=r"\(6, 8\)"):
        list(sets_of(model[1], (torch.rand(6, 8),), {}))


def test_sets_of_factors_give_their_product():
    pool, maps = pp.nn.SecondOrderFactor2d(12, pp.HDP(t=0.1), beta=0.5), torch.rand(3, 12, 2, 3)
    found = own_matrices(pool, maps).float()
    torch.testing.assert_close(found, pool(maps).dense(), **tolerance(torch.float32, slack=10))


def test_sets_of_graphs_give_the_vectors_of_an_aggregation():
    pool = SecondOrderAggregation(6, pp.MaxExp(eta=4), beta=1.0)
    x, index = torch.randn(9, 6), torch.tensor([0, 2, 0, 1, 2, 2, 0, 1, 0])
    expected = pool(x, index)
    found = pp.to_vector(own_matrices(pool, x, index)).float()
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, slack=100))  # two solvers
    ptr = torch.tensor([0, 4, 9])
    found = pp.to_vector(own_matrices(pool, x, None, ptr)).float()
    torch.testing.assert_close(found, pool(x, ptr=ptr), **tolerance(torch.float32, slack=100))


def test_an_aggregation_in_a_model_is_found():
    class Graphs(nn.Module):
        def __init__(self):
            super().__init__()
            self.readout = SecondOrderAggregation(4, pp.MaxExp(eta=4))

        def forward(self, x, index):
            return self.readout(x, index)

    batches = [{"x": torch.rand(6, 4), "index": torch.tensor([0, 0, 0, 1, 1, 2])}]
    found = inspect_model(Graphs(), batches)
    assert found.locations == (3, 2, 1)


@pytest.mark.parametrize("variant", ["outer", "outer+L", "outer+P"])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_sets_of_a_relation_descriptor_give_its_matrices(variant, beta):
    pool = pp.nn.RelationDescriptor(pp.SigmE(eta=9.0), variant=variant, beta=beta)
    support, query = torch.rand(2, 3, 5, 7), torch.rand(2, 5, 7)
    grid = torch.rand(4, 7)
    found, expected = own_matrices(pool, support, query, grid).float(), pool(support, query, grid)
    torch.testing.assert_close(found[:2], expected[:, 1])
    rest = found[2:].unflatten(0, (2, 3)).mean(1) if variant == "outer+L" else found[2:]
    torch.testing.assert_close(rest, expected[:, 0])
    assert len(list(sets_of(pool, (support, query), {}))) == (8 if variant == "outer+L" else 4)
