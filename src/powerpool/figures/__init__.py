"""``powerpool figures``: the figures of the paper that are computed, from our own functions and records.

A figure is a function that returns data (:mod:`powerpool.figures.data`); one routine makes pictures and a table of any
such data (:mod:`powerpool.figures.drawing`). Their names are in :mod:`powerpool.figures.registry`.
"""
