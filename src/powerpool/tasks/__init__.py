"""Whole jobs on one kind of data: configuration, model, training, evaluation. They never import one another."""
