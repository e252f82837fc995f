"""Frozen features compared: pooling x curve x classifier, with parameters chosen by episodes of validation classes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from powerpool.console import print_note
from powerpool.data import EpisodeError, Episodes, ImageSplit
from powerpool.data.episodes import FewShotListing, list_fewshot
from powerpool.errors import ArgumentError
from powerpool.runs.environment import environment
from powerpool.runs.record import Chosen, EpisodeResult, RunRecord, Score, Trial
from powerpool.tasks.base import Watch
from powerpool.tasks.fewshot.classifiers import PENALTIES, Classifier, Kind
from powerpool.tasks.fewshot.config import EpisodeConfig, protocol_name
from powerpool.tasks.fewshot.feature_config import FeatureStudyConfig
from powerpool.tasks.fewshot.features import FrozenBackbone, dot_products, store_maps
from powerpool.tasks.fewshot.frozen import DrawnEpisodes, readable, run_on_products
from powerpool.tasks.fewshot.testing import VALIDATION_SEED
from powerpool.tasks.methods import FEATURE_METHODS

NAMES: dict[Kind, str] = {"ncm": "NCM", "ridge": "Ridge", "logistic": "Logistic"}
"""Classifiers as they follow the pool in the name of a method."""


@dataclass(frozen=True, eq=False)
class Study:
    """What the records of a study are computed from."""

    config: FeatureStudyConfig
    listing: FewShotListing
    backbone: FrozenBackbone
    maps: dict[str, Tensor]
    """By split, shape (n, K, C, h, w)."""
    validation: dict[EpisodeConfig, DrawnEpisodes]
    test: dict[EpisodeConfig, dict[int, DrawnEpisodes]]
    """By form and episode seed."""

    def products(self, split: str, method: str, value: float | None, watch: Watch) -> Tensor:
        """Return the dot products of all images of a split."""
        return dot_products(self.config.with_pool(method, value), self.maps[split], watch)


def study_features(
    config: FeatureStudyConfig,
    methods: Sequence[str],
    forms: Sequence[EpisodeConfig],
    seeds: Sequence[int],
    watch: Watch,
) -> list[RunRecord]:
    """Choose parameters by episodes of validation classes, test in episodes of test classes, and return the records.

    Args:
        config: data, backbone and grid.
        methods: pools.
        forms: ways and shots of the episodes.
        seeds: of test episodes: a result of a record has the episodes of one seed.
        watch: called with the progress.
    """
    listing = list_fewshot(config.data, config.data_root, download=config.download)
    if missing := [name for name in ("validation", "test") if name not in listing.splits]:
        raise ArgumentError(f"{listing.name} has no {' and no '.join(missing)} classes, which --study features needs.")
    images: dict[str, ImageSplit] = {}
    remarks = [*listing.listing.remarks]
    for name in ("validation", "test"):
        images[name], unreadable = readable(listing.splits[name], config.corrupt)
        remarks += unreadable
        for form in forms:
            _require_episodes(images[name].targets, form, f"The {name} classes of {listing.name}")
    for remark in remarks:
        print_note(remark)
    drawn = {form: replace(form, count=config.validation_episodes) for form in forms}
    targets = images["validation"].targets
    validation = {form: DrawnEpisodes.draw(targets, given, VALIDATION_SEED) for form, given in drawn.items()}
    targets = images["test"].targets
    test = {form: {seed: DrawnEpisodes.draw(targets, form, seed) for seed in seeds} for form in forms}
    backbone = FrozenBackbone(config, download=config.download)
    maps = {name: store_maps(backbone, split, listing.digest(), name, watch) for name, split in images.items()}
    study = Study(config, listing, backbone, maps, validation, test)
    records = []
    for number, method in enumerate(methods):
        records += list(_compare(study, method, watch))
        watch("pools", number + 1, len(methods))
    return records


def _require_episodes(targets: Tensor, form: EpisodeConfig, what: str) -> None:
    try:
        Episodes(targets, form.way, form.shot, form.queries)
    except EpisodeError as error:
        raise EpisodeError(f"{what}: {error} Use smaller --ways or --shots.") from error


def _compare(study: Study, method: str, watch: Watch) -> Iterator[RunRecord]:
    """Yield the records of a pool: one for each classifier and form of episodes."""
    start = time.perf_counter()
    parameter = FEATURE_METHODS[method].norm.parameter
    trials: dict[tuple[EpisodeConfig, Kind], list[tuple[float | None, Classifier, Trial]]] = {}
    for value in study.config.grid.values(method):
        products = study.products("validation", method, value, watch)
        for form, drawn in study.validation.items():
            for kind, penalties in PENALTIES.items():
                for classifier in (Classifier(kind, penalty) for penalty in penalties):
                    found = run_on_products(products, drawn, classifier)
                    settings: dict[str, Chosen] = {} if parameter is None or value is None else {parameter: value}
                    settings |= {} if kind == "ncm" else {"penalty": classifier.penalty}
                    trial = Trial(settings, found.accuracy, found.loss)
                    trials.setdefault((form, kind), []).append((value, classifier, trial))
    # The highest accuracy; of equal ones the lowest loss.
    best = {key: max(own, key=lambda one: (one[2].value, -one[2].loss)) for key, own in trials.items()}
    seconds = (time.perf_counter() - start) / len(best)
    for value in dict.fromkeys(value for value, _, _ in best.values()):
        products = study.products("test", method, value, watch)
        for (form, kind), (chosen, classifier, trial) in best.items():
            if chosen == value:
                tried = tuple(one for _, _, one in trials[form, kind])
                yield _make_record(study, f"{method}+{NAMES[kind]}", form, products, classifier, trial, tried, seconds)


def _make_record(
    study: Study,
    name: str,
    form: EpisodeConfig,
    products: Tensor,
    classifier: Classifier,
    best: Trial,
    trials: tuple[Trial, ...],
    seconds: float,
) -> RunRecord:
    results = []
    for number, (seed, drawn) in enumerate(study.test[form].items()):
        start = time.perf_counter()
        found = run_on_products(products, drawn, classifier)
        tested = time.perf_counter() - start
        results.append(
            EpisodeResult(
                number=number,
                seed=seed,
                value=found.accuracy,
                right=found.right,
                queries=found.queries,
                test_loss=found.loss,
                test_seconds=tested,
                chosen=best.settings,
                validation=Score(best.value, best.loss),
                trials=trials if number == 0 else (),
                seconds=tested + (seconds if number == 0 else 0.0),  # the search serves all seeds
                episodes_per_second=0.0,
            )
        )
    config, listing = study.config, study.listing
    settings = {
        "data": listing.name,
        "data_digest": listing.digest(),
        "backbone": config.backbone,
        "backbone_digest": study.backbone.digest,
        "crops": config.layout.config,
        "beta": config.beta,
        "test": asdict(form),
        "validation_episodes": config.validation_episodes,
        "images": {split: len(maps) for split, maps in study.maps.items()},
    }
    return RunRecord(
        task="fewshot",
        data=listing.name,
        method=name,
        protocol=protocol_name(form),
        metric="accuracy in %",
        results=tuple(results),
        config=settings,
        seed=results[0].seed,
        seconds=sum(result.seconds for result in results),
        environment=environment(),
    )
