"""Modules: pools, power normalizations, heads and relation descriptors."""

from powerpool.nn.heads import DenseHead, FactoredHead
from powerpool.nn.norms import ElementwisePowerNorm, SpectralPowerNorm
from powerpool.nn.pools import FirstOrderPool2d, SecondOrderFactor2d, SecondOrderPool2d
from powerpool.nn.relation import RelationDescriptor

__all__ = [
    "DenseHead",
    "ElementwisePowerNorm",
    "FactoredHead",
    "FirstOrderPool2d",
    "RelationDescriptor",
    "SecondOrderFactor2d",
    "SecondOrderPool2d",
    "SpectralPowerNorm",
]
