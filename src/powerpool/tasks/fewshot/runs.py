"""A trained network of few-shot learning in a file, with all that is needed to show it other pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from powerpool.data import FewShotSet, ImageBank, ImageSplit, Splits, load_images
from powerpool.data.banks import read_bank
from powerpool.data.images import Corrupt
from powerpool.errors import PowerPoolError, RecordError
from powerpool.files import read_json
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.runs.folder import DATA, MODEL, is_of, missing_model
from powerpool.tasks.fewshot.config import FewShotConfig, ModelConfig
from powerpool.tasks.fewshot.model import EpisodeNetwork, make_network

FORMAT = 1


@dataclass(frozen=True)
class Pictures:
    """How pictures are read for a network; see :class:`powerpool.tasks.fewshot.config.FewShotConfig`."""

    size: int
    channels: int
    resize: Literal["squeeze", "crop"]
    invert: bool
    centred: bool = False
    """Whether the mean picture of a set is subtracted from its pictures, as for Open MIC."""

    @classmethod
    def of(cls, config: FewShotConfig) -> Pictures:
        """Those of a configuration."""
        return cls(config.size, config.channels, config.resize, config.invert, config.problem is not None)

    def read(self, split: ImageSplit, classes: tuple[str, ...], corrupt: Corrupt = "error") -> ImageBank:
        """Pictures as the network wants them, in memory; not centred."""
        settings = {name: value for name, value in asdict(self).items() if name != "centred"}
        return read_bank(split, classes, **settings, corrupt=corrupt)

    def read_all(
        self, data: str, root: str | None = None, *, download: bool = False, corrupt: Corrupt = "error"
    ) -> tuple[ImageBank, str]:
        """All pictures of a set, and its name. Classes may lie in folders of classes."""
        images = load_images(data, root, download=download, splits=Splits(validation=0.0, test=0.0), nested=True)
        first, *others = images.splits.values()
        bank = self.read(sum(others, start=first), images.classes, corrupt)
        return bank.centred() if self.centred else bank, images.name


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A network, and how pictures are to be read for it.

    Example:
        >>> import torch
        >>> network = make_network(ModelConfig("SoSN(x)+SigmE", hidden=8), channels=1, size=28)
        >>> model = TrainedModel(network.eval(), Pictures(28, 1, "squeeze", False))
        >>> support = [torch.rand(3, 1, 28, 28), torch.rand(1, 1, 28, 28)]  # two classes, three and one shown
        >>> model.scores(support, torch.rand(4, 1, 28, 28)).shape
        torch.Size([4, 2])
    """

    network: EpisodeNetwork
    pictures: Pictures

    @torch.no_grad()
    def scores(
        self,
        support: Sequence[Tensor],  # shape: (J_c, C, H, W) for each class c
        query: Tensor,  # shape: (n, C, H, W)
        batch_size: int = 64,
    ) -> Tensor:  # shape: (n, L)
        """How alike each query is to each class, the higher the more. Classes may have other numbers of pictures."""
        network = self.network.eval()
        classes = torch.cat([network.represent(network.encode(shown)[None]) for shown in support])
        return torch.cat([network.match_in_parts(classes, network.encode(part)) for part in query.split(batch_size)])

    def save(self, path: str | Path) -> None:
        """Write the model atomically."""
        state = {
            "format": FORMAT,
            "pipeline": "fewshot",
            "config": asdict(self.network.config),
            "pictures": asdict(self.pictures),
            "weights": self.network.state_dict(),
        }
        save_state(path, state)

    @classmethod
    def load(cls, path: str | Path) -> TrainedModel:
        """Read a model that :meth:`save` wrote."""
        state = load_state(path)
        if (state.get("pipeline"), state.get("format")) != ("fewshot", FORMAT):
            found = f"pipeline {state.get('pipeline')!r}, format {state.get('format')!r}"
            raise RecordError(f"{path} is no model of few-shot learning: it has {found}, needed is format {FORMAT}.")
        try:
            config, pictures = ModelConfig(**state["config"]), Pictures(**state["pictures"])
            network = make_network(config, pictures.channels, pictures.size)
            network.load_state_dict(state["weights"])
        except (KeyError, IndexError, TypeError, RuntimeError, PowerPoolError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise RecordError(f"{path} is a damaged model: {type(error).__name__}: {first}") from error
        return cls(network.eval(), pictures)


def load_run(folder: str | Path) -> TrainedModel:
    """The model of a run folder."""
    file = Path(folder) / MODEL
    if file.is_file():
        return TrainedModel.load(file)
    raise missing_model(Path(folder), "fewshot", "few-shot learning")


def pretrained_weights(config: FewShotConfig, data: FewShotSet) -> dict[str, Tensor] | None:
    """The weights that a training on ``data`` starts from, if the configuration names a run; they must fit its network.

    Another division of the classes of a set of the same name is refused: some of those that are tested on may have been
    trained on.
    """
    if config.pretrained is None:
        return None
    if (Path(config.pretrained) / DATA).exists() and not is_of(config.pretrained, data.digest):
        name = read_json(Path(config.pretrained) / DATA)["name"]
        if name == data.name:
            raise RecordError(
                f"pretrained {config.pretrained} was trained on {name} with other pictures or another division of its "
                "classes: classes that are tested on now may have been trained on there."
            )
    model = load_run(config.pretrained)
    ours, theirs = config.model, model.network.config
    for name in ("method", "hidden"):
        if getattr(ours, name) != getattr(theirs, name):
            raise RecordError(
                f"pretrained {config.pretrained} was trained with model.{name} {getattr(theirs, name)}, and this run "
                f"has {getattr(ours, name)}: weights of one do not fit the other."
            )
    weights = model.network.state_dict()
    fitting = make_network(ours, config.channels, config.size).state_dict()
    for name, value in fitting.items():
        if weights[name].shape != value.shape:
            raise RecordError(
                f"pretrained {config.pretrained} was trained for pictures of {model.pictures.size} pixels and "
                f"{model.pictures.channels} channels with {theirs.pivots} pivots, which does not fit {config.size}, "
                f"{config.channels} and {ours.pivots}: {name} has the shape {tuple(weights[name].shape)}, needed is "
                f"{tuple(value.shape)}."
            )
    return weights
