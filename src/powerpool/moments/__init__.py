"""Moments: features become a symmetric matrix."""

from powerpool.moments.coordinates import spatial_coordinates
from powerpool.moments.dense import autocorrelation
from powerpool.moments.segments import segment_autocorrelation

__all__ = ["autocorrelation", "segment_autocorrelation", "spatial_coordinates"]
