"""Image classifiers of crops: a backbone, a pool of all crops of an image, and a linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from powerpool.errors import ShapeError
from powerpool.integrations.backbones import Backbone
from powerpool.integrations.backbones.base import patches
from powerpool.nn.base import SMALLEST


class HeadPool(nn.Module):
    """The layers of a network between its features and its classifier, averaged over the crops of an image."""

    def __init__(self, backbone: Backbone, unit_norm: bool) -> None:
        super().__init__()
        self.head, self.out_features, self.unit_norm = backbone.head, backbone.head_channels, unit_norm

    def forward(self, features: Tensor) -> Tensor:  # shape: (B, K, C, h, w) -> (B, out_features)
        """Return the vectors."""
        vectors = self.head(features.flatten(0, 1)).unflatten(0, features.shape[:2]).mean(1)
        return nn.functional.normalize(vectors, dim=-1, eps=SMALLEST) if self.unit_norm else vectors


class CropClassifier(nn.Module):
    """A backbone, a pool of all crops of an image and a linear classifier, as in runs of ``powerpool train vision``."""

    def __init__(self, backbone: Backbone, pool: nn.Module, labels: int) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        if isinstance(pool, HeadPool):
            # Not activations, which a body and its head may share.
            _remove_layers(backbone.body, {layer for layer in pool.head.modules() if list(layer.parameters())})
        backbone.head = nn.Identity()  # a part of the pool, or not used
        self.classifier = nn.Linear(int(pool.out_features), labels)  # type: ignore[arg-type]

    def forward(
        self,
        images: Tensor,  # shape: (B, K, 3, H, W) or (B, 3, H, W)
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> Tensor:  # shape: (B, labels)
        """Return the logits; the other arguments, which transformers passes, have no effect."""
        if images.ndim not in (4, 5):
            raise ShapeError(
                f"pixel_values must have shape (B, crops, 3, H, W) or (B, 3, H, W) (got {tuple(images.shape)})."
            )
        crops = images if images.ndim == 5 else images.unsqueeze(1)
        features = self.backbone(crops.flatten(0, 1)).unflatten(0, crops.shape[:2])
        if not isinstance(self.pool, HeadPool):
            features = patches(features, self.backbone.prefix_tokens)
        return self.classifier(self.pool(features).to(self.classifier.weight.dtype))


def _remove_layers(body: nn.Module, layers: set[nn.Module]) -> None:
    """Remove layers of a head from the body, as the last norm of CLIP: files have no weights with two names.

    The body computed with them what transformers calls the pooled output, which is not used.
    """
    for parent in list(body.modules()):
        if parent not in layers:
            for name, layer in list(parent.named_children()):
                if layer in layers:
                    setattr(parent, name, nn.Identity())
