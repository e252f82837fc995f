"""replace_pooling: layers that pool, pooling in the forward, named modules, and what happens to the model around it.

timm and torchvision are replaced by small networks with the structure of theirs, because they need not be installed.
"""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.testing import assert_close

import powerpool as pp
from powerpool.errors import ArgumentError, PowerPoolError, StateError, UnknownNameError
from powerpool.integrations import replace_pooling
from powerpool.integrations.backbones import BackboneError
from powerpool.integrations.backbones.sites import Probe, find_site
from powerpool.integrations.backbones.surgery import apply_site
from tests.integrations.families import FAMILIES
from tests.integrations.networks import AlexNetLike, DenseNet, ResNetLike, Untidy, resnet
from tests.tolerances import tolerance


class HandWritten(nn.Module):
    """A network for images of one channel, with dropout, whose layers are not in the order of use."""

    def __init__(self, pooling: nn.Module | None = None, between: nn.Module | None = None) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 10, bias=False)
        self.drop = nn.Dropout(0.25)
        self.global_pool = pooling or nn.AdaptiveAvgPool2d(1)
        self.between = between or nn.Identity()
        self.trunk = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.num_classes = 10

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.drop(self.between(self.global_pool(self.trunk(images)).flatten(1))))


class FlatPool(nn.Module):
    """Pools to vectors, as timm's SelectAdaptivePool2d with flatten=True."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


class StrictlyFlat(HandWritten):
    """A network whose forward does not flatten."""

    def __init__(self) -> None:
        super().__init__(FlatPool())

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.drop(self.global_pool(self.trunk(images))))


class Squeezed(nn.Module):
    """A network with squeeze and excitation, which has a pooling of its own, before the last pooling."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8), nn.Sigmoid())
        self.avgpool = None if functional else nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.convolution(images)
        maps = maps * self.squeeze(maps)[:, :, None, None]
        return self.fc(maps.mean((2, 3)) if self.avgpool is None else self.avgpool(maps).flatten(1))


class TorchvisionConvNeXt(nn.Module):
    """``features``, ``avgpool`` and a classifier that begins with a normalization of maps of one location."""

    class LayerNorm2d(nn.LayerNorm):
        def forward(self, maps: Tensor) -> Tensor:
            return super().forward(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.features, self.avgpool = nn.Conv2d(3, 8, 4, stride=4), nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(self.LayerNorm2d(8), nn.Flatten(1), nn.Linear(8, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(images)))


class TimmConvNeXt(nn.Module):
    """``stem``, ``stages`` and a ``head`` with ``global_pool``, ``norm``, ``flatten``, ``drop`` and ``fc``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stages = nn.Conv2d(3, 4, 4, stride=4), nn.Sequential(nn.Conv2d(4, 8, 2, stride=2), nn.GELU())
        self.head = nn.Sequential(
            OrderedDict(
                global_pool=nn.AdaptiveAvgPool2d(1),
                norm=TorchvisionConvNeXt.LayerNorm2d(8),
                flatten=nn.Flatten(1),
                drop=nn.Dropout(0.1),
                fc=nn.Linear(8, 10),
            )
        )
        self.num_classes = 10

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)))


class TimmSwin(nn.Module):
    """Maps (B, h, w, C), a ``head`` with a ``global_pool`` of the second and third dimension, and ``fc``."""

    class ClassifierHead(nn.Module):
        class SelectAdaptivePool2d(nn.Module):
            def forward(self, maps: Tensor) -> Tensor:
                return maps.mean((1, 2))

        def __init__(self) -> None:
            super().__init__()
            self.global_pool, self.fc = self.SelectAdaptivePool2d(), nn.Linear(8, 10)

        def forward(self, maps: Tensor) -> Tensor:
            return self.fc(self.global_pool(maps))

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.head = self.ClassifierHead()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.patch_embed(images).permute(0, 2, 3, 1)))


class Encoder(nn.Module):
    """Tokens of patches of 8 x 8 pixels, after prefix tokens."""

    def __init__(self, prefix_tokens: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, 12, 8, stride=8)
        self.tokens = nn.Parameter(torch.randn(1, prefix_tokens, 12))
        self.positions = nn.Parameter(torch.randn(1, prefix_tokens + 16, 12))
        self.block = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.proj(images).flatten(2).mT
        tokens = torch.cat([self.tokens.expand(len(images), -1, -1), patches], dim=1)
        return self.block(tokens + self.positions)


class TimmViT(nn.Module):
    """``norm``, pooling in the forward by ``global_pool``, ``fc_norm``, ``head_drop`` and ``head``."""

    def __init__(self, global_pool: str, prefix_tokens: int) -> None:
        super().__init__()
        self.global_pool, self.num_prefix_tokens, self.num_classes = global_pool, prefix_tokens, 10
        self.pretrained_cfg = {"input_size": (3, 32, 32)}
        self.blocks = Encoder(prefix_tokens)
        average = global_pool == "avg"
        self.norm = nn.Identity() if average else nn.LayerNorm(12)
        self.fc_norm = nn.LayerNorm(12) if average else nn.Identity()
        self.head_drop, self.head = nn.Dropout(0.1), nn.Linear(12, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.blocks(images))
        pooled = tokens[:, 0] if self.global_pool == "token" else tokens[:, self.num_prefix_tokens :].mean(1)
        return self.head(self.head_drop(self.fc_norm(pooled)))


class TorchvisionViT(nn.Module):
    """``image_size``, ``encoder``, and the class token into ``heads``."""

    def __init__(self) -> None:
        super().__init__()
        self.image_size, self.encoder = 32, Encoder(1)
        self.heads = nn.Sequential(OrderedDict(pre_logits=nn.Linear(12, 6), act=nn.Tanh(), head=nn.Linear(6, 10)))

    def forward(self, images: Tensor) -> Tensor:
        torch._assert(images.shape[-1] == self.image_size, "Wrong image size")
        return self.heads(self.encoder(images)[:, 0])


def sequential() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
            pool=nn.AdaptiveMaxPool2d((1, 1)),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(0.5),
            fc=nn.Linear(8, 10),
        )
    )


def fixed_window() -> nn.Module:
    """Return a network for images of one size."""
    return nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.AvgPool2d(28), nn.Flatten(), nn.Linear(8, 10))


def lite0() -> nn.Module:
    return EfficientNet.from_name("efficientnet-lite0", num_classes=10)


MODELS: dict[str, tuple[Any, int, int]] = {  # a model, its channels, the channels of its images
    "hand-written": (HandWritten, 8, 1),
    "flat": (StrictlyFlat, 8, 1),
    "squeezed": (Squeezed, 8, 3),
    "sequential": (sequential, 8, 3),
    "fixed window": (fixed_window, 8, 3),
    "torchvision resnet": (ResNetLike, 8, 3),
    "torchvision alexnet": (AlexNetLike, 8, 3),
    "torchvision convnext": (TorchvisionConvNeXt, 8, 3),
    "timm convnext": (TimmConvNeXt, 8, 3),
    "timm swin": (TimmSwin, 8, 3),
    "normalized": (lambda: HandWritten(between=nn.LayerNorm(8)), 8, 1),
    "pooled in the forward": (Untidy, 8, 3),
    "transformers": (resnet, 16, 3),
    "efficientnet-lite": (lite0, 1280, 3),
}


def scores(output: Any) -> Tensor:
    return getattr(output, "logits", output)


@pytest.mark.parametrize("kind", MODELS)
def test_a_replaced_pooling_can_be_trained(kind: str) -> None:
    torch.manual_seed(0)
    build, channels, colours = MODELS[kind]
    model = build().train()
    reduced = 4 if channels > 100 else None
    pool = pp.nn.SecondOrderPool2d(channels, pp.MaxExp(eta=5), reduce_to=reduced)
    size = 224 if kind == "fixed window" else 64
    state = torch.random.get_rng_state()
    expected_names = {name for name, _ in model.named_modules()}
    assert replace_pooling(model, pool, 5) is model
    assert expected_names <= {name for name, _ in model.named_modules()}
    assert all(layer.training for layer in model.modules())
    images = torch.rand(3, colours, size, size)
    got = scores(model(images))
    assert got.shape == (3, 5)
    nn.functional.cross_entropy(got, torch.tensor([0, 1, 4])).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert any(layer is pool for layer in model.modules())
    assert not torch.equal(state, torch.random.get_rng_state())  # the new classifier is random


@torch.no_grad()
def test_the_scores_are_linear_in_the_pooled_vectors() -> None:
    model = HandWritten().eval()
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=5))
    replace_pooling(model, pool, 5)
    images = torch.rand(2, 1, 12, 12)
    vectors = pool(model.trunk(images))
    assert model.classifier.weight.shape == (5, 36)
    assert model.classifier.bias is None
    assert_close(model(images), vectors @ model.classifier.weight.T, **tolerance(torch.float32))
    assert (model.drop.p, model.num_classes) == (0.25, 5)
    assert not any(layer.training for layer in model.modules())


@torch.no_grad()
def test_replacing_average_pooling_by_itself_changes_nothing() -> None:
    model = resnet(num_labels=10)
    images = torch.rand(2, 3, 32, 32)
    weight, expected = copy.deepcopy(model.classifier.state_dict()), model(images).logits
    replace_pooling(model, pp.nn.FirstOrderPool2d(16), 10)
    model.classifier.load_state_dict(weight)
    assert_close(model(images).logits, expected, **tolerance(torch.float32))


def test_a_transformers_model_keeps_its_outputs_loss_and_labels() -> None:
    model = replace_pooling(resnet(num_labels=3), pp.nn.SecondOrderPool2d(16), 5)
    output = model(torch.rand(2, 3, 32, 32), labels=torch.tensor([0, 4]), output_hidden_states=True)
    assert output.logits.shape == (2, 5)
    assert len(output.hidden_states) == 3
    assert_close(output.loss, nn.functional.cross_entropy(output.logits, torch.tensor([0, 4])))
    assert (model.num_labels, model.config.num_labels) == (5, 5)
    assert list(model.config.id2label) == list(model.config.label2id.values()) == [0, 1, 2, 3, 4]


def test_a_pooling_can_be_replaced_again() -> None:
    model = replace_pooling(sequential(), pp.nn.SecondOrderPool2d(8, reduce_to=4), 5)
    replace_pooling(model, pp.nn.FirstOrderPool2d(8), 3)
    assert model(torch.rand(2, 3, 9, 9)).shape == (2, 3)
    assert not any(isinstance(layer, pp.nn.SecondOrderPool2d) for layer in model.modules())


def test_new_layers_have_the_dtype_of_the_model() -> None:
    model = replace_pooling(sequential().double(), pp.nn.SecondOrderPool2d(8, reduce_to=4), 5)
    assert {weight.dtype for weight in model.parameters()} == {torch.float64}
    assert model(torch.rand(2, 3, 9, 9).double()).dtype == torch.float64


def test_statistics_and_modes_do_not_change() -> None:
    model = HandWritten()
    model.trunk[1].eval()
    before = copy.deepcopy(model.trunk.state_dict())
    replace_pooling(model, pp.nn.SecondOrderPool2d(8), 5)
    assert_close(model.trunk.state_dict(), before)
    assert (model.training, model.trunk[1].training, model.trunk[0].training) == (True, False, True)


class Twisted(nn.Module):
    """A layer with weights for vectors of one length."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors @ self.weight


class Locked(nn.Identity):
    """A layer that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Wrong(nn.Module):
    """A pool with the wrong output."""

    def __init__(self, out_features: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features, self.shape = out_features, shape

    def forward(self, maps: Tensor) -> Tensor:
        return maps.new_zeros(len(maps), *self.shape)


@pytest.mark.parametrize(
    "build, pool, error, message",
    [
        (sequential, pp.nn.SecondOrderPool2d(16), ArgumentError, "8 channels.* 16"),
        (sequential, nn.AdaptiveAvgPool2d(1), ArgumentError, "got AdaptiveAvgPool2d"),
        (sequential, Wrong(4, (5,)), BackboneError, "unchanged"),
        (StrictlyFlat, Wrong(4, (2, 4)), BackboneError, r"\[\(2, 2, 5\)\] instead of \(2, 5\)"),
        (DenseNet, pp.nn.SecondOrderPool2d(8), BackboneError, "no global pooling"),
        (lambda: Squeezed(True), pp.nn.SecondOrderPool2d(8), BackboneError, r"model\.squeeze\.0"),
        (lambda: HandWritten(between=Twisted()), pp.nn.SecondOrderPool2d(8), BackboneError, r"model\.between"),
        (lambda: HandWritten(between=nn.PReLU()), pp.nn.SecondOrderPool2d(8), BackboneError, r"model\.between"),
        (lambda: HandWritten(between=Locked()), pp.nn.SecondOrderPool2d(8), BackboneError, "copied"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            pp.nn.SecondOrderPool2d(8),
            BackboneError,
            r"Linear after its pooling, model\.1",
        ),
        (lambda: nn.Linear(3, 2), pp.nn.SecondOrderPool2d(8), BackboneError, "no Conv2d"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(9, 2)),
            pp.nn.SecondOrderPool2d(8),
            BackboneError,
            r"\(2, 3, 64, 64\)",
        ),
    ],
)
def test_a_model_is_unchanged_on_failure(build: Any, pool: Any, error: type[PowerPoolError], message: str) -> None:
    model = build()
    layers = dict(model.named_modules())
    with pytest.raises(error, match=message):
        replace_pooling(model, pool, 5)
    assert dict(model.named_modules()) == layers
    assert not any(layer._forward_hooks for layer in model.modules())


def test_the_number_of_classes_is_checked() -> None:
    with pytest.raises(ArgumentError, match="got 0"):
        replace_pooling(sequential(), pp.nn.SecondOrderPool2d(8), 0)


def test_the_old_name_still_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"powerpool\.integrations\.replace_pooling"):
        from powerpool.integrations.backbones import replace_pooling as old
    assert old is replace_pooling
    assert "replace_pooling" in dir(pp.integrations)


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build, prefix, removed",
    [
        (lambda: TimmViT("token", 1), 1, ()),
        (lambda: TimmViT("avg", 5), 5, ("fc_norm",)),
        (lambda: TimmViT("avg", 0), 0, ("fc_norm",)),
        (TorchvisionViT, 1, ()),
    ],
    ids=["timm token", "timm avg with registers", "timm avg", "torchvision"],
)
def test_vision_transformers_of_timm_and_torchvision(build: Any, prefix: int, removed: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    site = find_site(Probe(model), None, None)
    assert (site.layout, site.channels, site.prefix_tokens, site.removed) == ("BNC", 12, prefix, removed)
    pool = pp.nn.SecondOrderPool1d(12, pp.MaxExp(eta=5), reduce_to=4)
    replace_pooling(model, pool, 5)
    images = torch.rand(3, 3, 32, 32)
    assert model(images).shape == (3, 5)
    assert pool.prefix_tokens == prefix
    model.train()(images).sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert getattr(model, "num_classes", 5) == 5


def vit() -> nn.Module:
    return next(family for family in FAMILIES if family.name == "ViT").build()


def pool_of_tokens(**options: Any) -> nn.Module:
    return pp.nn.SecondOrderPool1d(32, pp.MaxExp(eta=5), reduce_to=4, **options)


IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_module_can_be_named() -> None:
    model = vit()
    tokens = model.vit(IMAGES, output_hidden_states=True).hidden_states[1]  # after the first of two layers
    pool = pool_of_tokens(cls="concat")
    replace_pooling(model, pool, 5, where="vit.layers.0")
    assert pool.prefix_tokens == 1
    expected = nn.functional.linear(pool(tokens), model.classifier.weight, model.classifier.bias)
    assert_close(model(IMAGES).logits, expected, **tolerance(torch.float32, slack=10))
    again = vit()
    replace_pooling(again, pool_of_tokens(), 5, where="layers.0")
    assert len(again.vit.layers[0]._forward_hooks) == 1
    dense = replace_pooling(DenseNet(), pp.nn.SecondOrderPool2d(8, reduce_to=4), 5, where="features")
    assert dense(torch.rand(2, 3, 9, 9)).shape == (2, 5)


@pytest.mark.parametrize(
    "where, error, key",
    [
        ("vit.layer.1", UnknownNameError, r"Did you mean vit\.layers\.1\?"),
        ("vit.layers", ArgumentError, "does not run"),
        ("classifier", ArgumentError, r"\(2, 2\)"),
        ("vit.layers.0.mlp.fc1", ArgumentError, "64 .* 32"),
    ],
)
def test_names_that_cannot_be_used(where: str, error: type[Exception], key: str) -> None:
    with pytest.raises(error, match=key):
        replace_pooling(vit(), pool_of_tokens(), 5, where=where)


def test_prefix_tokens_come_from_the_model() -> None:
    for given, key in ((pool_of_tokens(prefix_tokens=3), "has 1 prefix tokens.* 3"),):
        with pytest.raises(ArgumentError, match=key):
            replace_pooling(vit(), given, 5)
        assert given.prefix_tokens == 3
    siglip = next(family for family in FAMILIES if family.name == "SigLIP").build()
    with pytest.raises(ArgumentError, match="no class token"):
        replace_pooling(siglip, pool_of_tokens(cls="concat"), 5)
    model = replace_pooling(vit(), pool_of_tokens(cls="concat", prefix_tokens=1), 5)
    assert model.classifier.in_features == 10 + 32


def test_the_size_of_a_large_head_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Wide(nn.Module):
        out_features = 295_296

        def forward(self, tokens: Tensor) -> Tensor:
            return tokens.new_zeros(len(tokens), self.out_features)

    with pytest.warns(UserWarning, match=r"295,296 .* 590,594 weights.*reduce_to"):
        replace_pooling(vit(), Wide(), 2)
    with warnings.catch_warnings(), caplog.at_level("INFO", logger="powerpool"):
        warnings.simplefilter("error")
        replace_pooling(vit(), pool_of_tokens(), 5)
    assert "vectors of 10 entries" in caplog.text


def test_a_site_is_applied_without_running_the_model() -> None:
    first = replace_pooling(vit(), pool_of_tokens(), 5)
    site = find_site(Probe(vit()), None, None)
    with torch.device("meta"):
        other = vit()
        apply_site(other, site, pool_of_tokens(prefix_tokens=site.prefix_tokens), 5)
    assert all(value.is_meta for value in other.parameters())
    other = other.to_empty(device="cpu")
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.eval()(IMAGES).logits, first(IMAGES).logits)


# ---- the head, which reads the features of another layer -------------------------------------------------------------


def test_copies_of_the_model_and_of_its_head_work() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    expected = model(IMAGES).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(IMAGES).logits, expected)
        nn.init.zeros_(other.classifier.weight)
        assert not torch.equal(other(IMAGES).logits, expected)
        assert torch.equal(model(IMAGES).logits, expected)
    model.classifier = copy.deepcopy(model.classifier)  # as PEFT does for modules_to_save
    assert torch.equal(model(IMAGES).logits, expected)


def test_threads_that_share_a_model_do_not_mix_their_features() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    with torch.no_grad():
        expected = [model(IMAGES[i : i + 1]).logits for i in range(4)]
    wrong = []

    def run(i: int) -> None:
        with torch.no_grad():
            wrong.extend(i for _ in range(20) if not torch.equal(model(IMAGES[i : i + 1]).logits, expected[i]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_head_alone_is_refused() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    model(IMAGES)
    with pytest.raises(StateError, match="whole model"):
        model.classifier(torch.rand(4, 32))


def test_features_of_another_batch_are_refused() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    model.vit(torch.rand(7, *IMAGES.shape[1:]))
    with pytest.raises(StateError, match=r"batch of 2.* batch of 7"):
        model.classifier(torch.zeros(2, 32))
    assert model.classifier.tap.take() is None  # an error does not keep activations alive
    assert model(IMAGES).logits.shape == (4, 5)


def test_copies_of_the_model_keep_their_own_features() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    for other in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))):
        other.vit(IMAGES)
        with pytest.raises(StateError, match="whole model"):
            model.classifier(torch.zeros(4, 32))
        assert other.classifier(torch.zeros(4, 32)).shape == (4, 5)


@pytest.mark.parametrize("size, grid", [((16, 64), (2, 8)), ((32, 32), None)])
def test_coordinates_get_a_grid_of_patches_that_is_not_square(size: tuple[int, int], grid: tuple | None) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(
        ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=size, patch_size=8)
    )
    pool = pp.nn.SecondOrderPool1d(32, reduce_to=4, coordinates=2)
    replace_pooling(model, pool, 5)
    assert pool.grid == grid
    assert model(torch.rand(2, 3, *size)).logits.shape == (2, 5)


def test_an_unknown_grid_of_images_that_are_not_square_is_refused() -> None:
    class Merged(nn.Module):
        image_size = (16, 64)

        def __init__(self) -> None:
            super().__init__()
            self.patches, self.embed, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            merged = nn.functional.avg_pool2d(self.patches(images), 2)  # 2 x 8, which no convolution returns
            return self.head(self.embed(merged.flatten(2).mT).mean(1))

    with pytest.raises(ArgumentError, match=r"16 x 64.*grid"):
        replace_pooling(Merged(), pp.nn.SecondOrderPool1d(8, coordinates=2), 5)
    pool = pp.nn.SecondOrderPool1d(8, coordinates=2, grid=(2, 8))
    assert replace_pooling(Merged(), pool, 5)(torch.rand(2, 3, 16, 64)).shape == (2, 5)


def test_a_pooling_in_the_forward_can_be_replaced_again() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    replace_pooling(model, pp.nn.FirstOrderPool1d(32), 3)
    assert model(IMAGES).logits.shape == (4, 3)
    assert len(model.vit._forward_hooks) == 1
    assert not any(isinstance(layer, pp.nn.SecondOrderPool1d) for layer in model.modules())


@pytest.mark.parametrize("name", ["ViT", "CLIP", "DINOv2", "BEiT"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(name: str, reentrant: bool) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    kind = pp.nn.SecondOrderPool2d if family.prefix_tokens is None else pp.nn.SecondOrderPool1d
    model = replace_pooling(family.build(), kind(family.channels, pp.MaxExp(eta=5), reduce_to=4), 5)
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
            for layer in model.modules():
                if "Drop" in type(layer).__name__:
                    layer.eval()
        model(IMAGES.requires_grad_()).logits.square().sum().backward()
        gradients.append({key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None})
    assert_close(gradients[0], gradients[1], **tolerance(torch.float32, slack=10))


def test_features_without_a_gradient_are_refused() -> None:
    model = replace_pooling(vit(), pool_of_tokens(), 5, where="vit.layers.1.mlp")
    model.train().gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(StateError, match="use_reentrant"):
        model(IMAGES.requires_grad_())
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(IMAGES).logits.sum().backward()
    assert model.vit.layers[0].mlp.fc1.weight.grad.any()


@torch.no_grad()
def test_compiled_and_exported_models_are_equal() -> None:
    images = IMAGES.detach()  # other tests ask for its gradient
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    expected = model(images).logits
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        assert_close(compiled(images).logits, expected, **tolerance(torch.float32))
    batch = torch.export.Dim("batch", max=64)
    exported = torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()
    assert_close(exported(images).logits, expected, **tolerance(torch.float32))
    assert_close(exported(images[:3]).logits, expected[:3], **tolerance(torch.float32))


def test_a_model_with_lora_trains_its_new_head() -> None:
    peft = pytest.importorskip("peft", reason="LORA IS NOT TESTED: pip install peft")
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    wrapped = peft.get_peft_model(model, config)
    wrapped(pixel_values=IMAGES, labels=torch.tensor([0, 1, 2, 4])).loss.backward()
    trained = {name for name, weight in wrapped.named_parameters() if weight.grad is not None}
    assert any("lora" in name for name in trained)
    assert any("reduction" in name for name in trained)


def test_a_model_prepared_by_accelerate_trains() -> None:
    accelerate = pytest.importorskip("accelerate", reason="ACCELERATE IS NOT TESTED: pip install accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = replace_pooling(vit(), pool_of_tokens(), 5)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.classifier.weight.detach().clone()
    accelerator.backward(model(pixel_values=IMAGES, labels=torch.tensor([0, 1, 2, 4])).loss)
    optimizer.step()
    assert not torch.equal(model.classifier.weight, before)
