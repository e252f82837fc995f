"""Configurations of networks of transformers inside those of powerpool: what a file may contain."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from powerpool.errors import RecordError, shown

OUTSIDE = ("auto_map", "backbone", "model_args", "attn_implementation", "_attn_implementation")
"""Fields that name code or a network elsewhere, which transformers would ask for or fetch."""
VISION = "vision_model"
"""End of the types of the image encoders of CLIP and other models of images and text."""


def plain_config(config: Any) -> Any:
    """Return a copy of the configuration of a network, without where it comes from and code beside it."""
    found = copy.deepcopy(config)
    found.name_or_path = ""
    if hasattr(found, "auto_map"):
        del found.auto_map
    return found


def classifier_of(config: Any) -> type[nn.Module] | None:
    """Return the class of image classifiers that transformers builds from a configuration."""
    from transformers import AutoModelForImageClassification

    try:
        with torch.device("meta"):
            return type(AutoModelForImageClassification.from_config(config, trust_remote_code=False))
    except (ValueError, AttributeError, KeyError):
        return None


def require_network(spec: Any) -> None:
    """Refuse a configuration before transformers reads it, unless it is that of a network of images, without others."""
    kind = spec.get("model_type") if isinstance(spec, dict) else None
    if not isinstance(kind, str):
        raise RecordError("network_config must be the configuration of a network, with model_type.")
    if not _takes_images(kind):
        raise RecordError(f"network_config.model_type must be a network of images (got {shown(kind)}).")
    _require_inside(spec)


def _takes_images(kind: str) -> bool:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    if kind not in CONFIG_MAPPING or "backbone_config" in CONFIG_MAPPING[kind].sub_configs_defaults:
        return False  # the latter build a second network
    mappings = (
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        auto.MODEL_FOR_IMAGE_MAPPING,
        auto.MODEL_FOR_BACKBONE_MAPPING,
    )
    return kind.endswith(VISION) or any(CONFIG_MAPPING[kind] in mapping for mapping in mappings)


def _require_inside(spec: Any) -> None:
    if isinstance(spec, list):
        for value in spec:
            _require_inside(value)
    if not isinstance(spec, dict):
        return
    for key, value in spec.items():
        is_source = key in OUTSIDE or (key == "backbone_config" and not isinstance(value, dict))
        # timm fetches architectures such as hf-hub:owner/name.
        if (is_source and value) or (key == "architecture" and ":" in str(value)):
            raise RecordError(
                f"Refused network_config: {key} names code or a network outside of the folder (got {shown(value)})."
            )
        _require_inside(value)
