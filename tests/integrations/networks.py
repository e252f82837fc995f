"""Small networks that the tests of backbones share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def norms(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]


def shake_norms(module: nn.Module) -> nn.Module:
    """Set statistics and weights as after training: those of a new layer would hide errors of folding."""
    for layer in norms(module):
        with torch.no_grad():
            for tensor in (layer.weight, layer.running_var):
                if tensor is not None:
                    tensor.uniform_(0.5, 2.0)
            for tensor in (layer.bias, layer.running_mean):
                if tensor is not None:
                    tensor.normal_()
    return module


def resnet(**options: Any) -> ResNetForImageClassification:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", **options)
    return shake_norms(ResNetForImageClassification(config)).eval()


class AlexNetLike(nn.Module):
    """A network with ``features``, a pooling to more than one location, and several linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(32, 12), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(12, 10)
        )

    def last_map(self, images: Tensor) -> Tensor:
        return self.features(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.last_map(images)), 1))


class DenseNet(nn.Module):
    """A network whose last ReLU is not a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.classifier = nn.Linear(8, 10)

    def last_map(self, images: Tensor) -> Tensor:
        return self.features(images).relu()

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(nn.functional.adaptive_avg_pool2d(self.last_map(images), 1).flatten(1))


class ResNetLike(nn.Module):
    """A network with ``layer4``, ``avgpool`` and ``fc``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layer1, self.layer4 = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 8, 3)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 10)

    def last_map(self, images: Tensor) -> Tensor:
        return self.layer4(self.layer1(self.relu(self.bn1(self.conv1(images)))))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.last_map(images)), 1))


class Untidy(nn.Module):
    """A network without a pooling layer, whose layers are not in the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 10)
        self.end = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU())
        self.start = nn.Conv2d(3, 4, 3)

    def last_map(self, images: Tensor) -> Tensor:
        return self.end(self.start(images))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.last_map(images).mean((2, 3)))
