"""The rows of the tables of few-shot learning: a method with its settings, seeds and initial weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from powerpool.data import FewShotSet
from powerpool.errors import ArgumentError
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import CONFIG, read_identity
from powerpool.tasks.base import Row
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.fewshot.fitting import require_episodes
from powerpool.tasks.fewshot.inference import read_pretrained
from powerpool.tasks.fewshot.options import ReproduceOptions
from powerpool.tasks.methods import FEWSHOT_METHODS

FewShotRow = Row[FewShotConfig, FewShotSet]


def with_method(config: FewShotConfig, method: str, shot: int) -> FewShotConfig:
    """Return the settings of a recipe for a method and a number of support images."""
    # A recipe serves all methods: its beta is for those that have one.
    beta = config.model.beta if "beta" in FEWSHOT_METHODS[method].parameters else 0.0
    return replace(
        config,
        model=replace(config.model, method=method, beta=beta),
        test=replace(config.test, shot=shot),
        # The number of training classes does not depend on the protocol.
        training=replace(config.training, way=config.training.way or config.test.way),
    )


def make_row(options: ReproduceOptions, config: FewShotConfig, data: FewShotSet) -> FewShotRow:
    """Return the row of a method; episodes that the data cannot fill are refused."""
    seeds, ways = options.seeds or [config.seed], options.ways or [config.test.way]
    if config.class_order == "drawn" and seeds != [config.seed]:
        raise ArgumentError(
            f"--seeds must be {config.seed}, that of the recipe, where class_order is drawn (got {seeds}): another "
            "seed draws other test classes. Change the seed of the recipe, and use another --out for each."
        )
    require_episodes(config, data, ways)
    statistics = [config.test.transductive]
    if options.transductive and not config.test.transductive:
        statistics.append(True)
    problem = "" if config.problem is None else f"-{config.problem.replace('->', '-to-')}"
    name = f"{data.name}{problem}"
    row = Row(
        configs=tuple(replace(config, seed=seed) for seed in seeds),
        data=data,
        protocols=tuple(config.with_test(way, transductive).protocol for transductive in statistics for way in ways),
        method=config.model.method,
        data_name=name,
        settings={"data": name},
    )
    return with_encoders(row, options.pretrained) if options.pretrained else row


def with_encoders(row: FewShotRow, runs: Sequence[str]) -> FewShotRow:
    """Return a row whose trainings start from encoders of run folders, one for each seed; its method gets "+Enc"."""
    if len(runs) not in (1, len(row.configs)):
        raise ArgumentError(
            f"--pretrained takes one run, or one for each of {len(row.configs)} seeds (got {len(runs)})."
        )
    folders = [str(Path(run).expanduser().absolute()) for run in runs]
    folders *= len(row.configs) // len(folders)
    configs = tuple(
        replace(config, pretrained=folder, pretrained_part="encoder")
        for config, folder in zip(row.configs, folders, strict=True)
    )
    for config in configs:  # before anything is trained
        read_pretrained(config, row.data)
    trained = [read_recipe(Path(folder, CONFIG), FewShotConfig) for folder in folders]
    first, identity = trained[0], read_identity(folders[0])
    for folder, other in zip(folders, trained, strict=True):
        if other.pretrained is not None:
            raise ArgumentError(
                f"--pretrained {folder} started from the weights of another run itself, so that its own costs do not "
                "cover all of its training. Use runs that started from random weights."
            )
        same = (other.model, other.training.episodes) == (first.model, first.training.episodes)
        if not same or read_identity(folder) != identity:
            raise ArgumentError(
                "--pretrained runs must have one data set, one method with equal settings of model, and one number of "
                f"training episodes: {folder} differs from {folders[0]}."
            )
    is_same_data = identity is not None and identity.digest == row.data.digest
    known = {
        "data": row.data_name if is_same_data else identity and identity.name,
        "method": first.model.method,
        "part": "encoder",
        "episodes": first.training.episodes,
    }
    return replace(
        row,
        configs=configs,
        method=_insert_after_name(row.method, "+Enc"),
        facts={
            **row.facts,
            "pretrained": f"encoder of {first.model.method}, seeds {', '.join(str(one.seed) for one in trained)}",
            "pretraining": known,
        },
    )


def _insert_after_name(method: str, word: str) -> str:
    """Insert a word before the curve of a method.

    Example:
        >>> _insert_after_name("SoSN(x)+SigmE", "+Pretr")
        'SoSN(x)+Pretr+SigmE'
    """
    return re.sub(r"^(\w+(?:\([^)]*\))?)", rf"\1{word}", method)


def start_from(config: FewShotConfig, result: Path) -> FewShotConfig:
    """Return the settings of a training that starts from the model beside a result."""
    return replace(config, pretrained=str(result.parent.absolute()))


def with_pretraining(row: FewShotRow, source: FewShotRow) -> FewShotRow:
    """Return a row whose trainings start from the models of another row; its method gets "+Pretr" as in the paper."""
    first = source.configs[0]
    return replace(
        row,
        method=_insert_after_name(row.method, "+Pretr"),
        source=source,
        start_from=start_from,
        settings={
            **row.settings,
            "pretrained": f"{source.data_name} {first.protocol}",
            "pretraining": {
                "data": source.data_name,
                "data_digest": source.data.digest,
                "episodes": first.training.episodes,
            },
        },
    )
