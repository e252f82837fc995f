"""Small image classifiers of transformers, one for each family that replace_pooling is tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

TOKENS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 9,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 1]}
WINDOWS: dict[str, Any] = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "patch_size": 2}


@dataclass(frozen=True)
class Family:
    """A family: its classifier, the module with its features, their channels, and their prefix tokens if any."""

    name: str
    model: str
    config: Callable[[], Any]
    base: str
    channels: int
    prefix_tokens: int | None = None
    """None for maps."""
    size: int = 32

    def __str__(self) -> str:
        return self.name

    def build(self) -> nn.Module:
        """Return a random model."""
        torch.manual_seed(0)
        model: nn.Module = getattr(hf, self.model)(self.config())
        return model.eval()

    def images(self, number: int = 2) -> Tensor:
        """Return random images of the size in the configuration."""
        return torch.rand(number, 3, self.size, self.size, generator=torch.Generator().manual_seed(1))

    def features(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return what the model itself calls its last hidden state."""
        found: Tensor = model.get_submodule(self.base)(images).last_hidden_state
        return found


def _segformer() -> Any:
    return hf.SegformerConfig(
        **STAGES,
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[2, 1],
        strides=[4, 2],
        patch_sizes=[7, 3],
        mlp_ratios=[2, 2],
        image_size=32,
    )


def _efficientnet() -> Any:
    return hf.EfficientNetConfig(image_size=64, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320)


FAMILIES = [
    Family(
        "ResNet",
        "ResNetForImageClassification",
        lambda: hf.ResNetConfig(**STAGES, embedding_size=8, layer_type="basic"),
        "resnet",
        16,
    ),
    Family(
        "RegNet",
        "RegNetForImageClassification",
        lambda: hf.RegNetConfig(**STAGES, embedding_size=8, groups_width=8),
        "regnet",
        16,
    ),
    Family(
        "MobileNetV1",
        "MobileNetV1ForImageClassification",
        lambda: hf.MobileNetV1Config(image_size=64, depth_multiplier=0.25),
        "mobilenet_v1",
        256,
        size=64,
    ),
    Family(
        "MobileNetV2",
        "MobileNetV2ForImageClassification",
        lambda: hf.MobileNetV2Config(image_size=64, depth_multiplier=0.35),
        "mobilenet_v2",
        1280,
        size=64,
    ),
    Family("EfficientNet", "EfficientNetForImageClassification", _efficientnet, "efficientnet", 320, size=64),
    Family(
        "ConvNeXt",
        "ConvNextForImageClassification",
        lambda: hf.ConvNextConfig(**STAGES, num_stages=2, image_size=32),
        "convnext",
        16,
    ),
    Family(
        "ConvNeXtV2",
        "ConvNextV2ForImageClassification",
        lambda: hf.ConvNextV2Config(**STAGES, num_stages=2, image_size=32),
        "convnextv2",
        16,
    ),
    Family("SegFormer", "SegformerForImageClassification", _segformer, "segformer", 16),
    Family("ViT", "ViTForImageClassification", lambda: hf.ViTConfig(**TOKENS), "vit", 32, 1),
    Family("DeiT", "DeiTForImageClassification", lambda: hf.DeiTConfig(**TOKENS), "deit", 32, 2),
    Family("BEiT", "BeitForImageClassification", lambda: hf.BeitConfig(**TOKENS), "beit", 32, 1),
    Family("Swin", "SwinForImageClassification", lambda: hf.SwinConfig(**WINDOWS, image_size=32), "swin", 16, 0),
    Family(
        "SwinV2", "Swinv2ForImageClassification", lambda: hf.Swinv2Config(**WINDOWS, image_size=32), "swinv2", 16, 0
    ),
    Family("DINOv2", "Dinov2ForImageClassification", lambda: hf.Dinov2Config(**TOKENS), "dinov2", 32, 1),
    Family(
        "DINOv2 with registers",
        "Dinov2WithRegistersForImageClassification",
        lambda: hf.Dinov2WithRegistersConfig(**TOKENS, num_register_tokens=3),
        "dinov2_with_registers",
        32,
        4,
    ),
    Family(
        "CLIP",
        "CLIPForImageClassification",
        lambda: hf.CLIPConfig(vision_config=TOKENS, text_config=TEXT),
        "vision_model",
        32,
        1,
    ),
    Family(
        "SigLIP",
        "SiglipForImageClassification",
        lambda: hf.SiglipConfig(vision_config=TOKENS, text_config=TEXT),
        "vision_model",
        32,
        0,
    ),
]
