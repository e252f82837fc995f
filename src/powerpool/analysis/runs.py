"""The features that the model of a run folder pools, for every task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from powerpool.analysis.gather import Gathering
from powerpool.analysis.result import Inspection
from powerpool.errors import RecordError
from powerpool.runs.folder import CONFIG, is_data_of, read_task
from powerpool.tasks.base import TASKS, get_task
from powerpool.tasks.pooling import FeatureSource, Samples

DEFAULT = Samples()


def inspect_run(
    folder: str | Path, which: Samples = DEFAULT, watch: Callable[[int], None] = lambda done: None
) -> Inspection:
    """Analyse the features that the model of a run pools, before and after its normalization.

    Args:
        folder: the run folder of ``powerpool train``, of any task.
        which: the samples to use.
        watch: called with the number of samples that are done.
    """
    return inspect_source(folder, open_source(folder, which), watch)


def open_source(folder: str | Path, which: Samples = DEFAULT) -> FeatureSource:
    """Load the model of a run and draw the samples; features are computed later."""
    task = read_task(folder, TASKS)
    if which.data is None and not Path(folder, CONFIG).is_file():
        raise RecordError(f"{folder} contains no {CONFIG}, which names the data of the run. Name data with --data.")
    return get_task(task).feature_source(Path(folder), which)


def inspect_source(folder: str | Path, source: FeatureSource, watch: Callable[[int], None]) -> Inspection:
    """Compute and analyse the features of a source."""
    gathering = Gathering(source.normalization, max(1, source.count))
    with torch.no_grad():
        for one in source.sets:
            gathering.add(one)
            watch(gathering.seen)
    notes = []
    if source.data is not None and not is_data_of(folder, source.data.digest):
        notes.append(
            f"{source.data.name} has changed since the run was trained, so the splits may contain other samples."
        )
    return gathering.result(source.name, notes)
