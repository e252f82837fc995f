"""Analysis of any model: pools are found, their input gives their own output, and the model does not change."""

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
from tests.analysis.samples import make_loader, make_network
from tests.tolerances import tolerance

# ---- the model does not change ---------------------------------------------------------------------------------------


def state(model: nn.Module) -> tuple[list[bool], list[int], list[Tensor], list[Tensor | None]]:
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    weights = [value.clone() for value in model.state_dict().values()]
    return [module.training for module in model.modules()], hooks, weights, [p.grad for p in model.parameters()]


def assert_same_state(one, other) -> None:
    assert one[:2] == other[:2]
    assert all(torch.equal(a, b) for a, b in zip(one[2], other[2], strict=True))
    assert all(a is b for a, b in zip(one[3], other[3], strict=True))


def test_modes_hooks_weights_and_statistics_are_restored():
    model = make_network()
    before = state(model)
    assert before[0] != [module.training for module in make_network().eval().modules()]
    inspect_model(model, make_loader())
    assert_same_state(before, state(model))


def test_model_is_restored_after_an_error():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("broken")

    for model, loader in ((nn.Sequential(make_network(), Broken()), make_loader()), (make_network(), failing())):
        before = state(model)
        with pytest.raises(RuntimeError, match="broken"):
            inspect_model(model, loader)
        assert_same_state(before, state(model))


def failing():
    yield from make_loader(1)
    raise RuntimeError("broken")


def test_no_gradients_and_no_dropout():
    model, grads = make_network(), []
    model[4].register_forward_hook(lambda _, __, output: grads.append(output.requires_grad))
    one, other = inspect_model(model, make_loader()), inspect_model(model, make_loader())
    assert not any(grads)
    assert torch.equal(one.before.spectra, other.before.spectra)


# ---- choice of pool and samples --------------------------------------------------------------------------------------


def test_loader_is_read_only_as_far_as_needed():
    found = inspect_model(make_network(), iter([*make_loader(1), None]), samples=4)
    assert found.samples == 4
    assert inspect_model(make_network(), make_loader(), samples=5).samples == 5
    assert inspect_model(make_network(), make_loader(), samples=100).samples == 12


def test_kinds_of_batches():
    x = make_loader(1)[0][0]
    expected = inspect_model(make_network(), [x]).before.spectra
    for batch in ((x, 1), [x, 1], {"input": x}):
        torch.testing.assert_close(inspect_model(make_network(), [batch]).before.spectra, expected)
    found = inspect_model(make_network(), [{"image": x}], call=lambda model, batch: model(batch["image"]))
    torch.testing.assert_close(found.before.spectra, expected)


def test_other_module_with_a_given_curve():
    model = make_network(nn.AdaptiveAvgPool2d(1))
    found = inspect_model(model, make_loader(), pool="4")
    assert found.after is None
    assert found.normalization.is_first_order
    assert "on the spectrum" in found.advice()
    assert all(after == "-" for _, _, after in found.table())
    given = inspect_model(model, make_loader(), pool=model[4], curve=pp.MaxExp(eta=9))
    assert (given.after.effective_rank > given.before.effective_rank).all()
    torch.testing.assert_close(given.before.spectra, found.before.spectra)


def test_another_curve_keeps_the_other_settings_of_the_pool():
    terms = {"beta": 1.0, "eps": 1e-3, "trace_power": 0.5, "slope": 0.1, "solver": "eigen"}
    pool = pp.nn.SecondOrderPool2d(6, pp.MaxExp(eta=5), **terms)
    found = inspect_model(make_network(pool), make_loader(1), curve=pp.HDP(t=0.1)).normalization
    assert {name: getattr(found, name) for name in terms} == terms
    assert (found.curve.t, found.mode) == (0.1, "spectral")
    model = make_network(pp.nn.SecondOrderPool2d(6, pp.SigmE(eta=5.0), "elementwise"))
    assert inspect_model(model, make_loader(1), curve=pp.SigmE(eta=9.0)).normalization.mode == "elementwise"
    other = inspect_model(model, make_loader(1), curve=pp.MaxExp(eta=9), mode="spectral")
    assert other.normalization.mode == "spectral"


def test_model_with_no_pool_or_two():
    with pytest.raises(ArgumentError, match="pool='avgpool'"):
        inspect_model(nn.Sequential(nn.Conv2d(3, 6, 3)), make_loader())
    pool = pp.nn.SecondOrderPool2d(3)
    both = nn.ModuleDict({"one": pool, "two": pp.nn.FirstOrderPool2d(3)})
    with pytest.raises(ArgumentError, match="2 pools: 'one', 'two'"):
        find_pool(both)
    assert find_pool(both, "one") == ("one", pool)
    assert find_pool(both, pool) == ("one", pool)
    with pytest.raises(ArgumentError, match=r"'three'.* 'one'"):
        find_pool(both, "three")
    with pytest.raises(ArgumentError, match="ReLU"):
        find_pool(both, nn.ReLU())


def test_bad_input():
    with pytest.raises(ArgumentError, match="curve="):
        inspect_model(make_network(), make_loader(), mode="elementwise")
    with pytest.raises(ArgumentError, match="'4'"):  # never called
        inspect_model(make_network(), [])
    model = nn.Sequential(nn.Flatten(), nn.Linear(216, 2), pp.nn.FirstOrderPool2d(2))
    with pytest.raises(ShapeError, match=r"Linear .*float32.*\(4, 216\)"):
        inspect_model(model, make_loader(), pool="1")
    with pytest.raises(ShapeError, match=r"\(4, 2\)"):
        inspect_model(model, make_loader())


def test_example_of_the_docs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(result, "draw_plots", lambda found, folder: [])  # which takes most of the time
    exec(example, {})
    assert capsys.readouterr().out.startswith("Suggestion: ")
    assert (tmp_path / "inspection" / "inspection.json").exists()


# ---- every pool: the feature sets give the output of the pool --------------------------------------------------------


def pool_matrices(module: nn.Module, *arguments: object) -> Tensor:
    pool = normalization_of("pool", module)
    return torch.stack([pool.matrix(*one) for one in sets_of(module, arguments, {})])


@pytest.mark.parametrize("leading, mode", [((), "spectral"), ((4,), "elementwise"), ((2, 3), "spectral")])
def test_maps_with_leading_dimensions(leading, mode):
    maps = torch.rand(*leading, 8, 5, 6)
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=7), mode, coordinates=3, reduce_to=5, trace_power=0.5, slope=0.1)
    with torch.no_grad():
        found, expected = pp.to_vector(pool_matrices(pool, maps)).float(), pool(maps).reshape(-1, pool.out_features)
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, slack=10))
    means = torch.stack([one.features.mean(-1) for one in sets_of(pp.nn.FirstOrderPool2d(8), (maps,), {})])
    torch.testing.assert_close(means, pp.nn.FirstOrderPool2d(8)(maps).reshape(-1, 8))
    descriptor = pp.nn.RelationDescriptor(pp.SigmE(eta=9.0), variant="outer+P")
    support, query = torch.rand(*leading, 3, 5, 7), torch.rand(*leading, 5, 7)
    found, expected = pool_matrices(descriptor, support, query).float(), descriptor(support, query)
    torch.testing.assert_close(found, torch.cat([expected.reshape(-1, 2, 5, 5)[:, place] for place in (1, 0)]))


def test_factors():
    pool, maps = pp.nn.SecondOrderFactor2d(12, pp.HDP(t=0.1), beta=0.5), torch.rand(3, 12, 2, 3)
    found = pool_matrices(pool, maps).float()
    torch.testing.assert_close(found, pool(maps).dense(), **tolerance(torch.float32, slack=10))


def test_pools_of_tokens_are_those_of_maps():
    maps = torch.rand(3, 12, 2, 2)
    tokens = torch.cat([torch.rand(3, 1, 12), maps.flatten(2).mT], dim=1)
    for name, options in (("Pool", {"coordinates": 2}), ("Factor", {})):
        flat = getattr(pp.nn, f"SecondOrder{name}1d")(12, pp.MaxExp(eta=5), prefix_tokens=1, **options)
        deep = getattr(pp.nn, f"SecondOrder{name}2d")(12, pp.MaxExp(eta=5), **options)
        torch.testing.assert_close(pool_matrices(flat, tokens), pool_matrices(deep, maps))
    with pytest.raises(ArgumentError, match="mask"):
        pool_matrices(flat, tokens, torch.ones(3, 5, dtype=torch.bool))


def test_graph_aggregation():
    pool = SecondOrderAggregation(6, pp.MaxExp(eta=4), beta=1.0)
    x, index = torch.randn(9, 6), torch.tensor([0, 2, 0, 1, 2, 2, 0, 1, 0])
    expected = pool(x, index)
    found = pp.to_vector(pool_matrices(pool, x, index)).float()
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, slack=100))  # another solver
    ptr = torch.tensor([0, 4, 9])
    found = pp.to_vector(pool_matrices(pool, x, None, ptr)).float()
    torch.testing.assert_close(found, pool(x, ptr=ptr), **tolerance(torch.float32, slack=100))
    assert inspect_model(nn.Sequential(pool), [x], call=lambda model, x: model[0](x, index)).locations == (4, 2, 3)


@pytest.mark.parametrize("variant", ["outer", "outer+L", "outer+P"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_relation_descriptor(variant, beta):
    pool = pp.nn.RelationDescriptor(pp.SigmE(eta=9.0), variant=variant, beta=beta)
    support, query = torch.rand(2, 3, 5, 7), torch.rand(2, 5, 7)
    grid = torch.rand(4, 7)
    found, expected = pool_matrices(pool, support, query, grid).float(), pool(support, query, grid)
    torch.testing.assert_close(found[:2], expected[:, 1])
    rest = found[2:].unflatten(0, (2, 3)).mean(1) if variant == "outer+L" else found[2:]
    torch.testing.assert_close(rest, expected[:, 0])
    assert len(list(sets_of(pool, (support, query), {}))) == (8 if variant == "outer+L" else 4)
