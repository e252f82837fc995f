"""Runs: typed records, run folders, the environment of a result, comparisons, and the scheduler."""
