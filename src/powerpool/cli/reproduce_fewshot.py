"""``powerpool reproduce fewshot``: methods x data sets x episodes, as in the paper's tables of few-shot learning.

A network is trained once for each method and each number of support pictures, and is then tested in episodes of all
the numbers of classes that are asked for. ``--study pretraining`` trains on one set before another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from powerpool.checks import require_at_least
from powerpool.data import FewShotSet
from powerpool.data.store import MissingDataError
from powerpool.data.synthetic import DIGITS, GLYPHS
from powerpool.errors import ArgumentError, UnknownNameError, require_choice
from powerpool.files import locked
from powerpool.report.report import Reproduced, conclude, tell
from powerpool.runs.config import Setting, make_config, read_settings, recipe_names
from powerpool.runs.engines import EngineOptions
from powerpool.runs.environment import environment
from powerpool.runs.provenance import fingerprint, guarded, origin_of, without_origin
from powerpool.runs.quick import is_quick_recipe
from powerpool.runs.record import RunRecord
from powerpool.runs.scheduler import Unit, run_units
from powerpool.tasks.fewshot.commands import make_record as make_plain_record
from powerpool.tasks.fewshot.commands import read_pictures, with_absolute_paths
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig
from powerpool.tasks.fewshot.evaluation import PLACES, assess_again, train_and_test
from powerpool.tasks.fewshot.methods import METHODS
from powerpool.tasks.fewshot.training import require_episodes

BASELINE = "RelationNet"
ONE_SHOT = (BASELINE, "PrototypicalNet", "SoSN(x)", "SoSN(x)+SigmE", "SoSN(x)+AsinhE", "SoSN(x)+SpecMaxExpF")
MORE_SHOTS = (BASELINE, "SoSN(x)+SigmE", "SoSN(x+L)+SigmE")
PRETRAINING = ("SoSN(x+L)+SigmE", "SoSN(x+L)+SpecMaxExpF")
"""The methods of a table where none are named: with one support picture, with several, and of the study."""
QUICK_STUDY = (GLYPHS, DIGITS)
"""What a quick study trains on first and then, where no sets are named: both are there on every machine."""
RESULT = ("fold", "value", "right_by_episode", "queries", "count", "chosen", "seconds", "origin")
"""What the result of a training has at least."""


@dataclass(frozen=True)
class ReproduceFewShotOptions(EngineOptions):
    """Train and test methods by episodes, and put the table beside the paper's figures.

    Args:
        data: data sets that have a recipe, such as glyphs, omniglot, miniimagenet, flower102, food101 or open_mic, or
            folders or zips of class folders; glyphs, or what the recipe names, without it
        problems: of Open MIC: p1->p2 and so on, or names of exhibitions; that of the recipe without it
        methods: rows of the table; six of them with one support picture and three with more without it. The method of
            a recipe is not looked at
        shots: support pictures of a class, for each of which there is a training; as in the recipe without it
        ways: classes of a test episode, for all of which there is one training; as in the recipe without it
        study: pretraining: each method on one set after a training on another, and without it
        source: the set that the study trains on first; that of the recipe without it
        recipe: settings for all data sets, instead of those of each: a YAML file, or the name of one that ships
        quick: a few small trainings on small pictures, to see that everything runs; the figures mean nothing
        jobs: trainings that run at once, each on one thread; as many as there are cores without it. Figures do not
            depend on it
        seeds: of weights and training episodes, for each of which there is a training; that of the recipe without it
        out: where trainings, records and the report go; runs/reproduce/fewshot (-pretraining, -quick) without it
        data_root: folder with data sets; without it $POWERPOOL_DATA and the cache are searched
        download: whether data that is not on this machine may be fetched from the network
    """

    data: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    shots: list[int] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)
    study: Literal["pretraining"] | None = None
    source: str | None = None
    recipe: str | None = None
    quick: bool = False
    jobs: int | None = None
    seeds: list[int] = field(default_factory=list)
    out: str | None = None
    data_root: str | None = None
    download: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for method in self.methods:
            require_choice(method, tuple(METHODS), "value of methods")
        for name in ("data", "problems", "methods", "shots", "ways", "seeds"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ArgumentError(f"{name} must name each once (got {values}).")
        require_at_least(
            1, "", **{"each of shots": min(self.shots, default=1), "jobs": 1 if self.jobs is None else self.jobs}
        )
        require_at_least(2, "", **{"each of ways": min(self.ways, default=2)})
        if self.recipe and self.quick:
            raise ArgumentError("--recipe and --quick contradict one another: each says which settings to take.")
        if self.study and max(len(self.data), len(self.problems)) > 1:
            raise ArgumentError(
                f"--study {self.study} is about one data set at a time (got {self.data}, {self.problems})."
            )
        if self.source and self.study is None:
            raise ArgumentError(
                "--source belongs to --study pretraining: without it nothing is trained on another set."
            )

    @property
    def data_sets(self) -> list[str | None]:
        """What to read; None for the data set that the recipe names."""
        if self.data:
            return [*self.data]
        if self.study and self.quick:
            return [next(name for name in reversed(QUICK_STUDY) if name != self.source)]
        return [None] if self.recipe or self.study else [GLYPHS]

    @property
    def source_set(self) -> str | None:
        """What the study trains on first; None for the data set that its recipe names."""
        if self.source or not (self.study and self.quick):
            return self.source
        return next(name for name in QUICK_STUDY if name not in self.data)

    @property
    def is_quick(self) -> bool:
        """Whether the figures mean nothing."""
        return self.quick or is_quick_recipe(self.recipe)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        parts = ["fewshot", *([self.study] if self.study else []), *(["quick"] if self.quick else [])]
        return Path(self.out or Path("runs", "reproduce", "-".join(parts)))


@dataclass(frozen=True)
class StudyConfig(FewShotConfig):
    """What the study of pre-training is made of: the recipe of the second set, and two fields for the first.

    Args:
        source: the data set that is trained on first
        source_episodes: steps of that training
    """

    source: str = "miniimagenet100"
    source_episodes: int = 1000

    @property
    def target(self) -> FewShotConfig:
        """The second training."""
        return FewShotConfig(**{entry.name: getattr(self, entry.name) for entry in fields(FewShotConfig)})

    @property
    def first(self) -> FewShotConfig:
        """The training before it: the same but for data and budget."""
        return replace(
            self.target,
            data=self.source,
            problem=None,
            train_classes=None,
            validation_classes=None,
            class_order=None,
            training=replace(self.training, episodes=self.source_episodes),
        )


@dataclass(frozen=True, eq=False)
class Row:
    """One training: a method on a data set, with a number of support pictures and a seed."""

    config: FewShotConfig
    data: FewShotSet
    root: Path
    """The folder of the command."""
    number: int = 0
    """Of the seed among those of a record."""
    source: Row | None = None
    """The training whose weights it starts from."""

    @property
    def name(self) -> str:
        """The data set in tables: with the problem, where there are several."""
        problem = "" if self.config.problem is None else f"-{self.config.problem.replace('->', '-to-')}"
        return f"{self.data.name}{problem}"

    @property
    def method(self) -> str:
        """The method in tables: after a training on another set "+Pretr" is behind the bracket, as in the paper."""
        own = self.config.model.method
        return own if self.source is None else re.sub(r"^(\w+(?:\([^)]*\))?)", r"\1+Pretr", own)

    @property
    def title(self) -> str:
        """What progress and errors call it."""
        return f"{self.name} {self.method} {self.config.protocol} seed {self.config.seed}"

    @property
    def folder(self) -> Path:
        """Where checkpoints, model and results are: for these settings, pictures, versions and this code alone."""
        name = f"{self.method}-{self.config.test.shot}-shot-{fingerprint('fewshot', self.settings)}"
        return self.root / "trainings" / self.name / name

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, with names and contents instead of the places where they lay."""
        own = {name: value for name, value in asdict(self.config).items() if name not in PLACES}
        own |= {"data": self.name, "data_digest": self.data.digest}
        if self.source is not None:
            first = self.source
            own["pretrained"] = f"{first.name} {first.config.protocol}"
            own["pretraining"] = {
                "data": first.name,
                "data_digest": first.data.digest,
                "episodes": first.config.training.episodes,
            }
        return own

    @property
    def trained(self) -> FewShotConfig:
        """The configuration as a worker gets it, with the place of the weights that it starts from."""
        start = None if self.source is None else str(self.source.folder.absolute())
        return replace(self.config, pretrained=start)


def run(options: ReproduceFewShotOptions) -> None:
    """Run what is not done yet, then write the records and the report, and say where they are."""
    tell(reproduce(options), options.folder)


def reproduce(options: ReproduceFewShotOptions, *, report: bool = True) -> Reproduced:
    """Run what is not done yet, then write the records and, unless it is left to the caller, the report."""
    start = environment()
    # What is missing or does not fit shows before there is a folder.
    make = make_study_rows if options.study else make_rows
    rows = [row for config in read_configs(options) for row in make(options, config)]
    _require_names(rows)
    ways = {row: options.ways or [row.config.test.way] for row in rows}
    for row in rows:
        require_episodes(row.config, row.data, ways[row])
    with locked(options.folder):
        records = _run(rows, ways, options, start)
        return conclude(records, options.folder, quick=options.is_quick, report=report)


# ---- what to run -----------------------------------------------------------------------------------------------------


def read_configs(options: ReproduceFewShotOptions) -> list[FewShotConfig]:
    """The settings of every data set and problem: of its recipe, then of ``--quick``, then the options themselves."""
    problems: list[str | None] = [*options.problems] or [None]
    return [read_config(options, data, problem) for data in options.data_sets for problem in problems]


def read_config(options: ReproduceFewShotOptions, data: str | None, problem: str | None = None) -> FewShotConfig:
    """The settings for a data set; without a name it is that of the recipe. A :class:`StudyConfig` for a study."""
    kind = StudyConfig if options.study else FewShotConfig
    own = "pretraining" if options.study else data if f"fewshot/{data}" in recipe_names() else "default"
    settings = read_settings(options.recipe or f"fewshot/{own}", kind)
    if options.quick:
        settings |= read_settings("fewshot/quick", kind)
        settings |= {"source_episodes": settings["training.episodes"]} if options.study else {}
    typed = {"data": data, "problem": problem, "data_root": options.data_root, "download": options.download}
    typed |= {"source": options.source_set} if options.study else {}
    _require_own_start(settings)
    if options.shots:  # trained with as many as tested
        settings["training.shot"] = Setting(None)
    settings |= {name: Setting(value) for name, value in typed.items() if value is not None}
    # The methods are those of the options. This one fits whatever parameters the recipe has for others.
    return make_config(kind, {**settings, "model.method": Setting(BASELINE)})


def _require_own_start(settings: dict[str, Setting]) -> None:
    start = settings.get("pretrained")
    if start is not None and start.value is not None:
        raise ArgumentError(
            f"A recipe for reproduce must not name a run to start from (got pretrained {start.value}). That is for "
            "'powerpool train fewshot'; --study pretraining compares methods with a training before and without."
        )


def make_rows(options: ReproduceFewShotOptions, recipe: FewShotConfig) -> list[Row]:
    """The trainings of a data set, once its pictures are there."""
    recipe = with_absolute_paths(recipe)
    data = read_pictures(recipe)
    rows = []
    for shot in options.shots or [recipe.test.shot]:
        for method in options.methods or (ONE_SHOT if shot == 1 else MORE_SHOTS):
            rows += _seeds(options, with_method(recipe, method, shot), data)
    return rows


def make_study_rows(options: ReproduceFewShotOptions, recipe: FewShotConfig) -> list[Row]:
    """Of each method a training on the source, one that goes on from there, and one without it."""
    assert isinstance(recipe, StudyConfig)
    first, source = _read_of_study(recipe.first, "--source")
    second, target = _read_of_study(recipe.target, "--data")
    if source.name == target.name:
        raise ArgumentError(
            f"--source and --data must be two data sets (got {source.name} for both): a study of pre-training trains "
            "on one before the other."
        )
    rows = []
    for shot in options.shots or [second.test.shot]:
        for method in options.methods or PRETRAINING:
            before = _seeds(options, with_method(first, method, shot), source)
            without = _seeds(options, with_method(second, method, shot), target)
            rows += [*before, *without]
            rows += [replace(row, source=other) for row, other in zip(without, before, strict=True)]
    return rows


def _read_of_study(config: FewShotConfig, option: str) -> tuple[FewShotConfig, FewShotSet]:
    """One of the two sets; where it is not there, the error says which it is and how to take another."""
    try:
        found = with_absolute_paths(config)
        return found, read_pictures(found)
    except (MissingDataError, UnknownNameError) as error:
        raise MissingDataError(
            f"The study of pre-training finds no {config.data}, its {option}: {error} Other sets are named with "
            f"--source and --data: {' and '.join(QUICK_STUDY)} need no data on the machine."
        ) from error


def with_method(recipe: FewShotConfig, method: str, shot: int) -> FewShotConfig:
    """The recipe for a method and a number of support pictures; the number of training classes is settled."""
    # A recipe is for all methods: its beta is for those that have one.
    beta = recipe.model.beta if "beta" in METHODS[method].parameters else 0.0
    return replace(
        recipe,
        model=replace(recipe.model, method=method, beta=beta),
        test=replace(recipe.test, shot=shot),
        training=replace(recipe.training, way=recipe.training.way or recipe.test.way),
    )


def _seeds(options: ReproduceFewShotOptions, config: FewShotConfig, data: FewShotSet) -> list[Row]:
    """A row for each seed. Their test classes must be the same: a record has the same episodes for all of them."""
    seeds = options.seeds or [config.seed]
    if config.class_order == "drawn" and seeds != [config.seed]:
        raise ArgumentError(
            f"--seeds must be that of the recipe, {config.seed}, where class_order is drawn (got {seeds}): another "
            "seed draws other classes to test on. Change the seed of the recipe, and give each an --out of its own."
        )
    return [Row(replace(config, seed=seed), data, options.folder, number) for number, seed in enumerate(seeds)]


def _require_names(rows: Sequence[Row]) -> None:
    """Refuse two data sets of one name, whose records would take each other's place."""
    sets: dict[str, FewShotSet] = {}
    for row in rows:
        if sets.setdefault(row.name, row.data) is not row.data:
            raise ArgumentError(
                f"data names two data sets that are called {row.name}. Rename a folder, or give each a command and an "
                "--out of its own."
            )


# ---- running it ------------------------------------------------------------------------------------------------------


def _run(
    rows: Sequence[Row], ways: dict[Row, list[int]], options: ReproduceFewShotOptions, start: dict[str, Any]
) -> list[RunRecord]:
    """The records of all rows and ways. What starts from the weights of another training comes behind it."""
    run_all = partial(run_units, jobs=options.jobs, engine=options.runs_on)
    results: dict[Row, dict[str, Any]] = {}
    for part in ([row for row in rows if row.source is None], [row for row in rows if row.source is not None]):
        units = [
            Unit(
                row.folder / "result.json",
                row.title,
                guarded("fewshot", partial(train_and_test, row.trained, row.folder.absolute(), row.data.digest)),
                RESULT,
            )
            for row in part
        ]
        if units:
            results |= dict(zip(part, run_all(units, description="trainings"), strict=True))
    asked = [(row, replace(row.config.test, way=way)) for row in rows for way in ways[row]]
    others = [(row, test) for row, test in asked if test != row.config.test]
    units = [_test_unit(row, test, results[row]) for row, test in others]
    found = dict(zip(others, run_all(units, description="tests") if units else [], strict=True))
    folds: dict[tuple[str, str, EpisodeConfig], list[tuple[Row, dict[str, Any]]]] = {}
    for row, test in asked:
        folds.setdefault((row.name, row.method, test), []).append((row, found.get((row, test), results[row])))
    return [make_record(test, members, start) for (_, _, test), members in folds.items()]


def _test_unit(row: Row, test: EpisodeConfig, result: dict[str, Any]) -> Unit:
    config = replace(row.config, test=test)
    work = partial(assess_again, row.trained, row.folder.absolute(), row.data.digest, without_origin(result), test)
    return Unit(
        row.folder / f"{config.protocol}.json",
        f"{row.name} {row.method} {config.protocol}",
        guarded("fewshot", work),
        RESULT,
    )


def make_record(test: EpisodeConfig, members: Sequence[tuple[Row, dict[str, Any]]], start: dict[str, Any]) -> RunRecord:
    """The record of a method in some episodes, from the results of its seeds."""
    first, results = members[0][0], [result for _, result in members]
    folds = [{**without_origin(result), "fold": row.number, "seed": row.config.seed} for row, result in members]
    plain = make_plain_record(replace(first.config, test=test), first.data, folds, origin_of(results, start))
    config = {**plain.config, **first.settings, "test": asdict(test)}
    return replace(plain, data=first.name, method=first.method, config=config)
