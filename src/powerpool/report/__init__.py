"""A table of the paper: a grid of recipes, runs that resume, and a table beside the paper's figures."""
