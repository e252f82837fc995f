"""Matrix products, division by the trace, and the precision in which they are computed."""
