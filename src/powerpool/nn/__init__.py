"""Modules: pools, power normalizations, heads and relation descriptors."""

from powerpool.nn.heads import DenseHead, FactoredHead
from powerpool.nn.norms import ElementwisePowerNorm, SpectralPowerNorm
from powerpool.nn.pools import FirstOrderPool2d, SecondOrderFactor2d, SecondOrderPool2d
from powerpool.nn.relation import RelationDescriptor
from powerpool.nn.tokens import FirstOrderPool1d, SecondOrderFactor1d, SecondOrderPool1d

__all__ = [
    "DenseHead",
    "ElementwisePowerNorm",
    "FactoredHead",
    "FirstOrderPool1d",
    "FirstOrderPool2d",
    "RelationDescriptor",
    "SecondOrderFactor1d",
    "SecondOrderFactor2d",
    "SecondOrderPool1d",
    "SecondOrderPool2d",
    "SpectralPowerNorm",
]
