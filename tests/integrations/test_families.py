"""replace_pooling of every family of image classifiers of transformers.

The table in docs/transformers.md is what these models show; ``python -m tests.integrations.test_families`` rewrites it.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import powerpool as pp
from powerpool.errors import ArgumentError
from powerpool.integrations import replace_pooling
from powerpool.integrations.backbones import BackboneError
from powerpool.integrations.backbones.sites import Probe, find_site
from tests.integrations.families import FAMILIES, Family
from tests.tolerances import tolerance

PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
HEADER = (
    "| Family | Model | Features | Prefix tokens | Pooling that is replaced |\n"
    "|:-------|:------|:---------|--------------:|:-------------------------|\n"
)
each_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def make_pool(family: Family, **options: Any) -> nn.Module:
    """Return a pool of the right kind for a family."""
    kind = pp.nn.SecondOrderPool2d if family.prefix_tokens is None else pp.nn.SecondOrderPool1d
    return kind(family.channels, pp.MaxExp(eta=5), reduce_to=4, **options)


def replaced(family: Family, num_classes: int = 5) -> nn.Module:
    return replace_pooling(family.build(), make_pool(family), num_classes).eval()


def unused(model: nn.Module, images: Tensor) -> set[str]:
    """Return the parameters without a gradient."""
    model.zero_grad()
    model(images).logits.square().sum().backward()
    return {name for name, weight in model.named_parameters() if weight.grad is None}


@each_family
def test_the_scores_are_linear_in_the_pooled_features_of_the_model(family: Family) -> None:
    model, images = family.build(), family.images()
    features = family.features(model, images)
    pool = make_pool(family)
    assert replace_pooling(model, pool, 5) is model
    if family.prefix_tokens is not None:
        assert pool.prefix_tokens == family.prefix_tokens
        assert features.shape[1] > family.prefix_tokens
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 5]
    assert len(linear) == 1
    expected = nn.functional.linear(pool(features), linear[0].weight, linear[0].bias)
    torch.testing.assert_close(model(images).logits, expected, **tolerance(torch.float32, slack=10))


@each_family
def test_training_loss_labels_and_states(family: Family) -> None:
    model, images, labels = replaced(family), family.images(4), torch.tensor([0, 1, 4, 2])
    assert (model.config.num_labels, model.num_labels) == (5, 5)
    assert list(model.config.id2label) == [0, 1, 2, 3, 4]
    output = model.train()(images, labels=labels, output_hidden_states=True)
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(output.logits, labels))
    assert output.hidden_states
    assert unused(model, images) <= unused(family.build().train(), images)
    model.eval()
    other = replaced(family)
    for weight in other.parameters():
        nn.init.constant_(weight, 0.5)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images).logits, model(images).logits)
    tuples = model(images, return_dict=False)
    assert torch.equal(tuples[0], model(images).logits)


class Failing(nn.Module):
    """A pool that fails, or that changes what it can reach."""

    def __init__(self, features: int, fails: bool) -> None:
        super().__init__()
        self.out_features, self.fails = features, fails

    def forward(self, features: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("no")
        return features.new_zeros(len(features), 1 + self.out_features)


@each_family
def test_after_any_error_the_model_is_as_it_was(family: Family) -> None:
    model = family.build().train()
    next(model.parameters()).requires_grad_(False)
    next(layer for layer in model.modules() if not list(layer.children())).eval()
    untouched = copy.deepcopy(model)
    wrong_kind = pp.nn.SecondOrderPool1d if family.prefix_tokens is None else pp.nn.SecondOrderPool2d
    right = make_pool(family)
    right_kind = type(right)
    random_state = torch.random.get_rng_state()
    for pool, error, key in (
        (wrong_kind(family.channels), ArgumentError, right_kind.__name__),
        (right_kind(family.channels + 1), ArgumentError, f" {family.channels} .* {family.channels + 1}"),
        (Failing(6, fails=True), BackboneError, "no"),
        (Failing(6, fails=False), BackboneError, "unchanged"),
    ):
        with pytest.raises(error, match=key):
            replace_pooling(model, pool, 5)
    with pytest.raises(ValueError, match="nowhere"):
        replace_pooling(model, right, 5, where="nowhere")
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert model.config.to_dict() == untouched.config.to_dict()
    for one, other in zip(model.modules(), untouched.modules(), strict=True):
        assert type(one) is type(other)
        assert one.training == other.training
        assert not one._forward_hooks
        assert not one._forward_pre_hooks
        # Swin, for instance, stores the sizes of its windows when it runs.
        plain = {name: value for name, value in vars(one).items() if isinstance(value, (int, float, str, tuple))}
        assert plain == {name: vars(other)[name] for name in plain}
    for (name, one), (again, other) in zip(model.named_parameters(), untouched.named_parameters(), strict=True):
        assert name == again
        assert one.requires_grad == other.requires_grad
        assert torch.equal(one, other)
        assert one.grad is None
    states = model.state_dict()
    assert all(torch.equal(states[name], value) for name, value in untouched.state_dict().items())
    images = family.images()
    with torch.no_grad():
        assert torch.equal(model.eval()(images).logits, untouched.eval()(images).logits)


def test_a_model_with_two_classifiers_is_refused() -> None:
    family = next(family for family in FAMILIES if family.name == "DeiT")
    model = hf.DeiTForImageClassificationWithTeacher(family.config())
    with pytest.raises(BackboneError, match="where="):
        replace_pooling(model, make_pool(family), 5)
    assert model(family.images()).logits.shape == (2, 2)


@each_family
def test_the_table_of_the_documentation_is_true(family: Family) -> None:
    assert row(family) in PAGE.read_text(encoding="utf-8")


def row(family: Family) -> str:
    """Return the line of a family in the table, from what is found in its model."""
    site = find_site(Probe(family.build()), None, None)
    assert (site.has_tokens, site.channels) == (family.prefix_tokens is not None, family.channels)
    features = "tokens, `SecondOrderPool1d`" if site.has_tokens else "maps, `SecondOrderPool2d`"
    prefix = str(site.prefix_tokens) if site.has_tokens else ""
    if family.name == "DINOv2 with registers":
        prefix = "1 + registers"
    where = f"the layer `{site.pooling}`" if site.pooling else f"in the forward, after `{site.source}`"
    if site.removed:
        where += f"; `{site.removed[0]}` is removed"
    return f"| {family.name} | `{family.model}` | {features} | {prefix} | {where} |\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(HEADER)
    end = text.index("\n\n", start)
    PAGE.write_text(text[:start] + HEADER + "".join(map(row, FAMILIES)).rstrip("\n") + text[end:], encoding="utf-8")
