"""Measure whether the eta that ``powerpool inspect`` suggests is near the one that validation prefers.

``python docs/making/suggestions.py`` trains what it needs in ``runs/suggestions`` and writes
``results/inspect/suggestions.json``, which the table in ``docs/inspect.md`` is made from. Features come from networks
that were trained with average pooling, so that no curve has shaped their spectrum. It takes half an hour on one core,
resumes, and needs ``POWERPOOL_DATA``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from powerpool.analysis import Suggestion, inspect_features, inspect_run
from powerpool.cli.main import main as run_command
from powerpool.files import read_json, write_json, write_text
from powerpool.report.write import read_records
from powerpool.runs.config import read_recipe, to_yaml
from powerpool.runs.environment import environment
from powerpool.runs.folder import RECORD
from powerpool.runs.typed import to_json
from powerpool.tasks.graph.config import GraphConfig, GridConfig
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.task import TASK

RESULT = Path(__file__).parents[2] / "results" / "inspect" / "suggestions.json"
FOLDER = Path("runs", "suggestions")
METHOD = "SOP+SpecMaxExpF"
ETAS = (1, 2, 5, 10, 20, 50)
"""Values to try beside the suggestion; 1 is no curve."""
SAMPLES = 200
IMAGES = {"Flower102, frozen CNN": "vision/flower102-central", "digits, frozen CNN": "vision/digits-few"}
GRAPHS = ("MUTAG", "PTC_MR", "PROTEINS")
FOLDS = ("0", "1", "2", "3", "4")
SEEDS = ("0", "1")


@dataclass(frozen=True)
class Case:
    """A data set: what is suggested, and the validation accuracy in % for every eta."""

    title: str
    samples: str
    """What a validation accuracy is of."""
    suggested: float
    low: float
    high: float
    accuracy: dict[str, float]


def call(*words: object) -> None:
    """Run a command of powerpool."""
    assert run_command([str(word) for word in words]) == 0, words


def train(out: Path, *words: object) -> Path:
    """Train a run, unless it is finished, and return its folder."""
    if not (out / RECORD).exists():
        call("train", *words, "--out", out)
    return out


def etas(suggestion: Suggestion) -> list[float]:
    """Return the values to try."""
    return sorted({*map(float, ETAS), suggestion.eta})


def make_case(title: str, samples: str, suggestion: Suggestion, accuracy: Mapping[float, float]) -> Case:
    """Return a case of a suggestion for the spectrum."""
    found = {f"{eta:g}": accuracy[eta] for eta in sorted(accuracy)}
    return Case(title, samples, suggestion.eta, suggestion.low, suggestion.high, found)


def measure_images(title: str, recipe: str) -> Case:
    """Sweep eta on frozen features."""
    config = replace(read_recipe(recipe, VisionConfig), mode="frozen")
    features = TASK.load_selection(config)
    maps = features.maps("train")  # (n, K, C, h, w)
    chosen = torch.linspace(0, len(maps) - 1, min(SAMPLES, len(maps))).round().long()
    found = inspect_features(maps[chosen].float().movedim(1, 2).flatten(2)).suggestions["spectral"]
    out = FOLDER / recipe
    values = (f"{eta:g}" for eta in etas(found))
    call("sweep", "vision", "--recipe", recipe, "--over", "eta", "--method", METHOD, "--out", out, "--values", *values)
    (file,) = out.glob("*-eta.json")
    record = read_json(file)
    accuracy = {row["eta"]: row["accuracy"] for row in record["values"]}
    return make_case(title, f"{record['images']} images", found, accuracy)


def measure_graphs(data: str) -> Case:
    """Train a readout with every eta on five folds; the spectrum is that of a network with the mean as readout."""
    out = FOLDER / data
    run = train(FOLDER / f"{data}-GIN0", "graph", "--config", f"graph/{data}", "--model.method", "GIN0")
    found = inspect_run(run).suggestions["spectral"]
    recipe = FOLDER / f"{data}.yaml"
    shipped = read_recipe(f"graph/{data}", GraphConfig)
    write_text(recipe, to_yaml(replace(shipped, grid=GridConfig(eta=etas(found)))))
    words = ("--protocols", "validation-only", "--fold_subset", *FOLDS, "--methods", METHOD)
    call("reproduce", "graph", "--data", data, "--recipe", recipe, "--out", out, *words)
    (record,) = read_records(out)
    values: dict[float, list[float]] = defaultdict(list)
    for result in record.results:
        for trial in result.trials:
            values[float(trial.settings["eta"])].append(trial.value)
    return make_case(f"{data}, GIN0", f"{len(FOLDS)} folds", found, {eta: fmean(own) for eta, own in values.items()})


def measure_tokens() -> Case:
    """Train a small ViT with every eta; the spectrum is that of one with the mean of its tokens."""
    from transformers import ViTConfig

    folder = FOLDER / "vit-digits"
    size = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    ViTConfig(image_size=16, patch_size=4, **size).save_pretrained(folder)
    backbone = ("--backbone", f"hf:{folder}")
    rate = ("--training.learning_rates", "0.001")
    shared = ("vision", "--config", "vision/digits-vit", *backbone, *rate)
    run = train(FOLDER / "vit-FOP", *shared, "--pool.method", "FOP")
    found = inspect_run(run).suggestions["spectral"]
    shipped = read_recipe("vision/digits-vit", VisionConfig)
    accuracy = {}
    for eta in etas(found):
        scores = []
        for seed in SEEDS:
            words = ("--pool.method", METHOD, "--pool.eta", f"{eta:g}", "--seed", seed, "--split_seed", shipped.seed)
            run = train(FOLDER / f"vit-{eta:g}-{seed}", *shared, *words)
            scores.append(read_json(run / RECORD)["results"][0]["validation"]["value"])
        accuracy[eta] = fmean(scores)
    return make_case("digits, small ViT", f"{len(SEEDS)} seeds", found, accuracy)


def main() -> None:
    """Measure all cases and write the record."""
    cases = [measure_images(*item) for item in IMAGES.items()]
    cases += [measure_graphs(data) for data in GRAPHS]
    cases.append(measure_tokens())
    write_json(RESULT, {"schema": 1, "cases": to_json(cases), "environment": to_json(environment())})


if __name__ == "__main__":
    main()
