"""Backbones of transformers: features, class tokens and preprocessing, compared with the models themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.testing import assert_close

from powerpool.errors import ArgumentError
from powerpool.integrations.backbones import BackboneError, load_backbone, patches, read_preprocessing
from tests.integrations.families import FAMILIES, TOKENS, Family

BY_NAME = {family.name: family for family in FAMILIES}
SHOWN = [BY_NAME[name] for name in ("ConvNeXt", "SegFormer", "ViT", "DeiT", "BEiT", "Swin", "SwinV2", "DINOv2")]
SHOWN += [BY_NAME[name] for name in ("DINOv2 with registers", "CLIP", "SigLIP", "RegNet")]


def save(family: Family, folder: Path) -> torch.nn.Module:
    """Write a model whose norms matter, as after training."""
    model = family.build()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.LayerNorm):
                layer.weight.uniform_(0.5, 2.0)
                layer.bias.normal_()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", SHOWN, ids=str)
@torch.no_grad()
def test_features_are_the_last_hidden_state(family: Family, tmp_path: Path) -> None:
    model = save(family, tmp_path)
    backbone, images = load_backbone(f"hf:{tmp_path}"), family.images()
    hidden, features = family.features(model, images), backbone(images)
    assert (backbone.channels, backbone.prefix_tokens) == (family.channels, family.prefix_tokens or 0)
    found = patches(features, backbone.prefix_tokens)
    assert found.shape[2] == found.shape[3] > 1
    expected = hidden if hidden.ndim == 4 else hidden[:, backbone.prefix_tokens :].mT
    assert_close(found.flatten(2), expected.flatten(2))


@pytest.mark.parametrize("family", SHOWN, ids=str)
@torch.no_grad()
def test_the_head_is_the_class_token_or_what_the_model_pools(family: Family, tmp_path: Path) -> None:
    model = save(family, tmp_path)
    backbone, images = load_backbone(f"hf:{tmp_path}"), family.images()
    vector = backbone.head(backbone(images))
    assert vector.shape == (2, backbone.head_channels)
    base = model.get_submodule(family.base)
    if family.name in ("ViT", "DeiT", "BEiT"):
        assert_close(vector, family.features(model, images)[:, 0])
    elif family.name == "SegFormer":  # it has no pooling of its own
        assert_close(vector, family.features(model, images).mean((2, 3)))
    else:
        assert_close(vector, base(images).pooler_output.flatten(1))


@torch.no_grad()
def test_images_of_another_size(tmp_path: Path) -> None:
    BY_NAME["ViT"].build().save_pretrained(tmp_path)
    assert load_backbone(f"hf:{tmp_path}")(torch.rand(1, 3, 64, 64)).shape == (1, 32, 1 + 64, 1)


def test_random_weights_are_those_of_the_seed(tmp_path: Path) -> None:
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path)
    digests = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        digests.append(load_backbone(f"hf:{tmp_path}", pretrained=False).digest())
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(BackboneError, match=r"model.safetensors"):
        load_backbone(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    "config, named",
    [
        (transformers.BertConfig(), "BertConfig"),
        (transformers.ViTConfig(**TOKENS, num_channels=1), "ViTModel"),
        (transformers.VideoMAEConfig(**TOKENS, num_frames=2), "VideoMAEModel"),
    ],
    ids=["text", "one channel", "video"],
)
def test_models_that_do_not_take_colour_images_are_refused(config: Any, named: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=named):
        load_backbone(f"hf:{tmp_path}", pretrained=False)


# ---- preprocessing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "processor, expected",
    [
        ({"size": {"height": 48, "width": 48}, "resample": 3}, (48, 48, "bicubic")),
        ({"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}, (32, 40, "bilinear")),
        ({"size": {"shortest_edge": 40}, "crop_size": {"height": 32}, "do_center_crop": False}, (40, 40, "bilinear")),
        ({"size": {"shortest_edge": 28}, "crop_pct": 0.875}, (28, 32, "bilinear")),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, (384, 384, "bilinear")),
        ({"image_processor_type": "CLIPFeatureExtractor"}, (224, 224, "bicubic")),
        ({"size": 24, "resample": 2}, (24, 24, "bilinear")),
        (None, (32, 32, "bilinear")),
    ],
    ids=["square", "crop", "no crop", "share", "no share", "class", "number", "configuration"],
)
def test_sizes_come_from_the_processor(processor: Any, expected: tuple[int, int, str], tmp_path: Path) -> None:
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path)
    if processor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    found = read_preprocessing(f"hf:{tmp_path}")
    assert found is not None
    assert (found.size, found.resize, found.interpolation) == expected


def test_a_processor_that_does_not_normalize(tmp_path: Path) -> None:
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False, "image_mean": [0.5] * 3}))
    found = read_preprocessing(f"hf:{tmp_path}")
    assert found is not None
    assert (found.mean, found.std) == ((0.0,) * 3, (1.0,) * 3)


def test_backbones_without_a_processor(tmp_path: Path) -> None:
    assert read_preprocessing("efficientnet-lite0") is None
    assert read_preprocessing(f"hf:{tmp_path}/missing") is None


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"image_mean": 0.5}, "image_mean"),
        ({"image_mean": "abc"}, "image_mean"),
        ({"image_mean": [0.5, 0.5]}, "image_mean"),
        ({"image_mean": [0.5, 0.5, float("nan")]}, "image_mean"),
        ({"image_mean": [0.5, 0.5, 10**400]}, "image_mean"),
        ({"image_std": 0}, "image_std"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std"),
        ({"size": 10**9}, "size"),
        ({"size": {"width": "abc"}}, "size"),
        ({"crop_size": -1}, "crop_size"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"image_processor_type": "MobileViTImageProcessor"}, "do_flip_channel_order"),
        ([], "settings"),
        (None, "preprocessor_config"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_damaged_processor_is_refused_by_name(settings: Any, named: str, tmp_path: Path) -> None:
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{" if settings is None else json.dumps(settings))
    with pytest.raises(BackboneError, match=r"preprocessor_config\.json") as caught:
        read_preprocessing(f"hf:{tmp_path}")
    assert named in str(caught.value)


@pytest.mark.parametrize("kind", ["ViTImageProcessor", "ViTImageProcessorFast", "CLIPImageProcessor"])
def test_what_a_processor_leaves_out_is_that_of_its_class(kind: str, tmp_path: Path) -> None:
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": kind}))
    found, own = read_preprocessing(f"hf:{tmp_path}"), transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert found is not None
    assert (found.mean, found.std) == (tuple(own.image_mean), tuple(own.image_std))
