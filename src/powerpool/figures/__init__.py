"""``powerpool figures``: the figures of the paper that are computed, from our own functions and records.

A figure is a function that returns data (:mod:`powerpool.figures.data`), which one routine draws and writes as a table
(:mod:`powerpool.figures.drawing`). :mod:`powerpool.figures.registry` lists them by name.
"""
