"""Matrix products, division by the trace, and the precision they are computed in."""
