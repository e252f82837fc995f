"""Power-normalized second-order pooling for PyTorch.

Features become a moment matrix, a curve is applied to its entries or its spectrum, and a head reads the vector:

>>> import torch, powerpool as pp
>>> pool = pp.nn.SecondOrderPool2d(64, pp.MaxExp(eta=50))
>>> pool(torch.rand(8, 64, 7, 7)).shape == (8, pool.out_features)
True
"""

from powerpool import _interrupt as _interrupt
from powerpool import _renamed, curves, integrations, nn, solvers
from powerpool.curves import FAHDP, HDP, AsinhE, Curve, Gamma, MaxExp, SigmE, SignedMaxExp
from powerpool.functional import elementwise, first_order_pool, gram_factor, second_order_pool, spectral
from powerpool.moments import autocorrelation, segment_autocorrelation, spatial_coordinates
from powerpool.solvers import GramFactor, SolverChoice, select_solver
from powerpool.vectorize import from_vector, to_vector

__version__ = "0.2.0"

_renamed.install()

__all__ = [
    "FAHDP",
    "HDP",
    "AsinhE",
    "Curve",
    "Gamma",
    "GramFactor",
    "MaxExp",
    "SigmE",
    "SignedMaxExp",
    "SolverChoice",
    "autocorrelation",
    "curves",
    "elementwise",
    "first_order_pool",
    "from_vector",
    "gram_factor",
    "integrations",
    "nn",
    "second_order_pool",
    "segment_autocorrelation",
    "select_solver",
    "solvers",
    "spatial_coordinates",
    "spectral",
    "to_vector",
]
