"""Image classifiers with a pool of powerpool in the format of transformers.

``save_pretrained``, ``from_pretrained``, ``Trainer`` and ``pipeline("image-classification")`` work as for other models.
Importing this module registers its classes with ``AutoConfig``, ``AutoModelForImageClassification`` and
``AutoImageProcessor``.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.curves.base import EXTRA_STATE
from powerpool.data.decoding import Crops
from powerpool.errors import ArgumentError, PowerPoolError, RecordError, shown
from powerpool.integrations.backbones import Backbone, load_backbone
from powerpool.integrations.backbones.sites import Site
from powerpool.integrations.backbones.surgery import apply_site, find_and_replace, report_size
from powerpool.integrations.cards import write_card
from powerpool.integrations.crops import CropClassifier, HeadPool
from powerpool.integrations.networks import classifier_of, plain_config, require_network
from powerpool.integrations.specs import (
    Spec,
    build_fields,
    build_pool,
    describe_fields,
    describe_pool,
    require_labels,
)

try:
    # At module level because the classes below are subclasses; only this module needs the package.
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModel,
        AutoModelForImageClassification,
        BaseImageProcessor,
        BatchFeature,
        PretrainedConfig,
        PreTrainedModel,
    )
    from transformers.configuration_utils import SubConfigSpec
    from transformers.image_transforms import to_pil_image
    from transformers.image_utils import make_flat_list_of_images
    from transformers.modeling_outputs import ImageClassifierOutput
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "powerpool.integrations.hub needs transformers, which is not installed: pip install 'powerpool[vision]'.",
        name=error.name,
    ) from error

__all__ = ["PowerPoolConfig", "PowerPoolForImageClassification", "PowerPoolImageProcessor"]

MOST_WEIGHTS = 2_000_000_000
"""Of a backbone of transformers in a run, which is built in memory before its weights are compared with the file."""
HEADS = tuple({"class": "head", "unit_norm": unit_norm} for unit_norm in (False, True))
"""The pools of classifiers that use the layers of the network itself."""


class PowerPoolConfig(PretrainedConfig):
    """The configuration of :class:`PowerPoolForImageClassification`: backbone, pool with its curve, and labels.

    Example:
        >>> from powerpool.integrations.hub import PowerPoolConfig
        >>> curve = {"name": "maxexp", "eta": 20}
        >>> pool = {"class": "SecondOrderPool2d", "channels": 320, "curve": curve, "reduce_to": 64, "crops": True}
        >>> config = PowerPoolConfig(backbone="efficientnet-lite0", pool=pool, id2label={0: "cat", 1: "dog"})
        >>> config.num_labels, config.pool["curve"]["eta"]
        (2, 20)
    """

    model_type = "powerpool"
    sub_configs_defaults = {"network_config": SubConfigSpec(AutoConfig, model_type="vit", optional=True)}  # noqa: RUF012

    network_config: PretrainedConfig | dict[str, Any] | None = None
    """Of the image classifier whose pooling is replaced; without ``site``, of a backbone of transformers."""
    site: dict[str, Any] | None = None
    """Where the classifier pools, as :func:`powerpool.integrations.replace_pooling` found it."""
    backbone: str | None = None
    """Without ``site``, the name of the backbone; ``"hf"`` for that of ``network_config``."""
    pool: dict[str, Any] | None = None
    """Class and arguments of the pool, with the name and the parameter of its curve."""

    def __post_init__(self, **kwargs: Any) -> None:
        require_labels(self.id2label, kwargs.get("num_labels"))
        nested = self.network_config
        if nested is not None or self.site is not None or self.backbone == "hf":
            require_network(nested.to_dict() if isinstance(nested, PretrainedConfig) else nested)
        try:
            super().__post_init__(**kwargs)
        except PowerPoolError:
            raise
        except Exception as error:  # transformers and huggingface_hub raise errors of many kinds
            raise RecordError(f"The configuration is damaged: {shown(str(error))}.") from error
        if self.pool is None and nested is None and self.backbone is None:
            return  # transformers builds configurations without arguments
        self.label2id = {str(name): int(number) for number, name in (self.id2label or {}).items()}
        self.make_site()
        with torch.device("meta"):
            self.make_pool()
        if self.site is None and not isinstance(self.backbone, str):
            raise RecordError(f"backbone must be a name where there is no site (got {shown(self.backbone)}).")

    def make_site(self) -> Site | None:
        """Return where the classifier pools."""
        return None if self.site is None else build_fields(Site, self.site, "site")

    def make_pool(self) -> nn.Module | None:
        """Return a new pool; None for the layers of the network itself."""
        return None if self.site is None and self.pool in HEADS else build_pool(self.pool)


class PowerPoolForImageClassification(PreTrainedModel):
    """An image classifier with a pool of powerpool, in the format of transformers.

    ``model`` is the network: a classifier of transformers whose pooling is replaced, or, from a run of powerpool, a
    backbone, a pool and a linear layer. ``pixel_values`` are images (B, 3, H, W), for the latter also crops
    (B, K, 3, H, W), as its image processor makes them. ``save_pretrained`` also writes a model card, ``README.md``.

    Example:
        >>> import tempfile, torch, powerpool as pp
        >>> from powerpool.integrations.hub import PowerPoolForImageClassification
        >>> from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification
        >>> config = ViTConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
        ... )
        >>> pool = pp.nn.SecondOrderPool1d(32, pp.MaxExp(eta=20), reduce_to=8)
        >>> model = PowerPoolForImageClassification.from_backbone(
        ...     ViTForImageClassification(config), pool, labels=["cat", "dog"]
        ... ).eval()
        >>> images = torch.rand(2, 3, 32, 32)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     again = AutoModelForImageClassification.from_pretrained(folder)
        >>> torch.equal(again(images).logits, model(images).logits), again.config.id2label
        (True, {0: 'cat', 1: 'dog'})
    """

    config_class = PowerPoolConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    # The network inside decides what it supports.
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    accepts_loss_kwargs = False  # the loss is a mean, which Trainer divides by the steps of gradient accumulation

    def __init__(self, config: PowerPoolConfig, model: nn.Module | None = None) -> None:
        super().__init__(config)
        self.model = self._make_model(config) if model is None else model
        self.supports_gradient_checkpointing = getattr(self.model, "supports_gradient_checkpointing", False)
        self.post_init()

    @staticmethod
    def _make_model(config: PowerPoolConfig) -> nn.Module:
        site, pool, labels = config.make_site(), config.make_pool(), config.num_labels or 0
        try:
            if site is None:
                backbone = _make_backbone(config)
                return CropClassifier(backbone, pool or HeadPool(backbone, config.pool == HEADS[True]), labels)
            assert pool is not None
            model = AutoModelForImageClassification.from_config(config.network_config, trust_remote_code=False)
            apply_site(model, site, pool, labels)
            return model
        except PowerPoolError:
            raise
        except Exception as error:  # sizes that no tensor can have, modules that it lacks
            raise RecordError(f"No network can be built from the stored settings: {shown(str(error))}.") from error

    @classmethod
    def from_backbone(
        cls, model: PreTrainedModel, pool: nn.Module, labels: int | Sequence[str], where: str | None = None
    ) -> PowerPoolForImageClassification:
        """Replace the pooling of an image classifier of transformers, and wrap it.

        The classifier is changed in place, by :func:`powerpool.integrations.replace_pooling`.

        Args:
            model: for instance ``ViTForImageClassification.from_pretrained(...)``.
            pool: :class:`powerpool.nn.SecondOrderPool1d` for tokens, :class:`powerpool.nn.SecondOrderPool2d` for maps,
                or their first-order forms.
            labels: the names of the classes, or their number.
            where: the module whose output is pooled; None to find it.
        """
        describe_pool(pool)  # before the model is changed
        if isinstance(labels, str | bool):
            raise ArgumentError(f"labels must be a list of names, or their number (got {shown(labels)}).")
        names = [f"LABEL_{number}" for number in range(labels)] if isinstance(labels, int) else list(labels)
        require_labels(dict(enumerate(names)), len(names))
        if len(set(names)) != len(names):
            raise ArgumentError(f"labels must be different names (got {shown(names)}).")
        plain: Any = getattr(model, "config", None)
        if isinstance(plain, PretrainedConfig):
            plain = plain_config(plain)
            plain.architectures = [type(model).__name__]  # some configurations have several classifiers
        if classifier_of(plain) is not type(model):
            raise ArgumentError(
                "model must be an image classifier that AutoModelForImageClassification builds from its configuration "
                f"(got {type(model).__name__}). Use powerpool.integrations.replace_pooling for other networks."
            )
        plain.num_labels = 2  # the labels are those of the new configuration
        site = find_and_replace(model, pool, len(names), where)
        report_size(model, site, pool)
        config = PowerPoolConfig(
            network_config=plain,
            site=describe_fields(site),
            pool=describe_pool(pool),
            id2label=dict(enumerate(names)),
        )
        return cls._wrap(config, model)

    @classmethod
    def _wrap(cls, config: PowerPoolConfig, model: nn.Module) -> PowerPoolForImageClassification:
        for layer in model.modules():
            layer._is_hf_initialized = True  # type: ignore[assignment]  # post_init would initialise it once more
        return cls(config, model).train(model.training)

    @classmethod
    def from_parts(
        cls,
        backbone: Backbone,
        pool: nn.Module | None,
        classifier: nn.Linear,
        labels: Sequence[str],
        *,
        unit_norm: bool = False,
    ) -> PowerPoolForImageClassification:
        """Wrap the parts of a trained classifier of crops, as ``powerpool train vision`` makes them; they are copied.

        Args:
            backbone: loaded by a name.
            pool: of crops; None for the layers of the network itself, averaged over crops.
            classifier: the linear layer.
            labels: the names of its classes.
            unit_norm: whether the vector of the network's own layers is divided by its norm.
        """
        nested, name = None, backbone.name
        if name.startswith("hf:"):  # what follows may be a path of this machine
            own = next(layer for layer in backbone.modules() if isinstance(layer, PreTrainedModel))
            nested, name = plain_config(own.config), "hf"
        config = PowerPoolConfig(
            backbone=name,
            network_config=nested,
            pool=HEADS[unit_norm] if pool is None else describe_pool(pool),
            id2label=dict(enumerate(labels)),
        )
        copied = copy.deepcopy(backbone)
        network = CropClassifier(copied, copy.deepcopy(pool) or HeadPool(copied, unit_norm), len(labels))
        network.classifier = copy.deepcopy(classifier)
        return cls._wrap(config, network).eval()

    def forward(
        self,
        pixel_values: Tensor,  # shape: (B, 3, H, W) or (B, crops, 3, H, W)
        labels: Tensor | None = None,  # shape: (B,)
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput | tuple[Any, ...]:
        """Return the logits, and the loss if there are labels; other arguments go to the network.

        A network of a run has no hidden states and attentions: it ignores ``output_hidden_states`` and
        ``output_attentions``.
        """
        found = self.model(pixel_values, **kwargs)
        logits = getattr(found, "logits", found)
        output = ImageClassifierOutput(
            loss=None if labels is None else self.loss_function(labels, logits, self.config),
            logits=logits,
            hidden_states=getattr(found, "hidden_states", None),
            attentions=getattr(found, "attentions", None),
        )
        by_name = self.config.return_dict if return_dict is None else return_dict
        return output if by_name else output.to_tuple()

    def save_pretrained(
        self, save_directory: Any, *args: Any, metrics: Mapping[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Save as other models of transformers, with a model card; a card that was changed is kept.

        Args:
            save_directory: the folder.
            args, kwargs: see ``PreTrainedModel.save_pretrained``.
            metrics: measured numbers for the card, by name.
        """
        # By their names in the model: Trainer resumes without the renaming that from_pretrained does for old files.
        kwargs.setdefault("save_original_format", False)
        self._metrics = dict(metrics or {})
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", args[0] if args else True):
            write_card(save_directory, self.config, self._metrics)

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        # transformers has just written a card without content, unless the repository has one.
        write_card(working_dir, self.config, self._metrics)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    @staticmethod
    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        # Weights that are missing or have other shapes are refused before transformers allocates memory for them.
        # Descriptions of curves may be missing: the configuration has them, too.
        missing = {key for key in loading_info.missing_keys if not key.endswith(EXTRA_STATE)}
        loading_info.missing_keys.intersection_update(missing)
        wrong = sorted({*missing, *(key for key, *_ in loading_info.mismatched_keys)})
        if wrong and not load_config.ignore_mismatched_sizes:
            raise RecordError(
                f"{load_config.pretrained_model_name_or_path}: {len(wrong)} weights are missing or do not fit the "
                f"configuration ({', '.join(wrong[:3])}). To train a new classifier, pass ignore_mismatched_sizes=True."
            )
        # transformers allocates buffers that are in no file once more, and leaves those of a backbone without values.
        kept = {name: buffer for name, buffer in model.named_non_persistent_buffers() if not buffer.is_meta}
        found = PreTrainedModel._finalize_model_loading(model, load_config, loading_info)
        for name, buffer in kept.items():
            model.get_buffer(name).copy_(buffer)
        return found


def _make_backbone(config: PowerPoolConfig) -> Backbone:
    if config.backbone != "hf":
        with torch.device("cpu"):  # its buffers that are in no file have values
            return load_backbone(str(config.backbone), pretrained=False)
    assert isinstance(config.network_config, PretrainedConfig)
    with torch.device("meta"):
        network = AutoModel.from_config(config.network_config, trust_remote_code=False)
    weights = sum(weight.numel() for weight in network.parameters())
    if weights > MOST_WEIGHTS:
        raise RecordError(f"The backbone has {weights:,} weights, more than the limit of {MOST_WEIGHTS:,}.")
    # In memory, because it may have to run once to find its features.
    with tempfile.TemporaryDirectory() as folder, torch.device("cpu"):
        config.network_config.save_pretrained(folder)
        return load_backbone(f"hf:{folder}", pretrained=False)


class PowerPoolImageProcessor(BaseImageProcessor):
    """Cut images into crops and normalize them, as ``powerpool train vision`` does.

    Args:
        crops: the settings of :class:`powerpool.data.Crops`.
        image_mean, image_std: of red, green and blue.

    Example:
        >>> from PIL import Image
        >>> from powerpool.integrations.hub import PowerPoolImageProcessor
        >>> processor = PowerPoolImageProcessor(crops={"size": 32, "count": 2})
        >>> processor(Image.new("RGB", (64, 48)), return_tensors="pt")["pixel_values"].shape
        torch.Size([1, 2, 3, 32, 32])
    """

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        crops: Spec | None = None,
        image_mean: Sequence[float] = (0.485, 0.456, 0.406),
        image_std: Sequence[float] = (0.229, 0.224, 0.225),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        try:
            self.crops = dataclasses.asdict(Crops(**crops))  # type: ignore[arg-type]  # None, where a file lacks them
            mean, std = ([float(value) for value in values] for values in (image_mean, image_std))
        except (TypeError, ValueError) as error:
            raise RecordError(f"No image processor can be built from the stored settings: {error}") from error
        if len(mean) != 3 or len(std) != 3 or not all(value > 0 for value in std):
            raise RecordError(f"image_mean and image_std must be three numbers each, std > 0 (got {mean} and {std}).")
        self.image_mean, self.image_std = mean, std

    def preprocess(self, images: Any, return_tensors: Any = None, **kwargs: Any) -> BatchFeature:
        """Return ``pixel_values`` (B, crops, 3, size, size) of an image or a list of images."""
        crops = Crops(**self.crops)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.image_mean, self.image_std))
        found, listed = [], list[Any](make_flat_list_of_images(images))  # type: ignore[arg-type]
        for image in listed:
            picture = image if hasattr(image, "convert") else to_pil_image(image)
            found.append(((crops(picture.convert("RGB")).float() / 255 - mean) / std).numpy())
        return BatchFeature({"pixel_values": found}, tensor_type=return_tensors)


AutoConfig.register(PowerPoolConfig.model_type, PowerPoolConfig, exist_ok=True)
AutoModelForImageClassification.register(PowerPoolConfig, PowerPoolForImageClassification, exist_ok=True)
AutoImageProcessor.register(
    PowerPoolConfig,
    image_processor_classes=dict.fromkeys(("pil", "torchvision"), PowerPoolImageProcessor),
    exist_ok=True,
)
