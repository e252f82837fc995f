"""The format of transformers: round trips of every family, Trainer, pipeline, PEFT, and damaged folders."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from huggingface_hub import HfApi, ModelCard, RepoUrl
from huggingface_hub.errors import EntryNotFoundError
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import powerpool as pp
from powerpool.curves.base import EXTRA_STATE
from powerpool.data import Crops
from powerpool.errors import ArgumentError, PowerPoolError, RecordError, ShapeError, StateError
from powerpool.integrations.backbones import Backbone, load_backbone, patches
from powerpool.integrations.hub import PowerPoolConfig, PowerPoolForImageClassification, PowerPoolImageProcessor
from tests.integrations.families import FAMILIES, TOKENS, Family

LABELS = ["cat", "dog", "`[x](y)` | \n<b>"]
BY_NAME = {family.name: family for family in FAMILIES}
VIT, RESNET = BY_NAME["ViT"], BY_NAME["ResNet"]
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    hf.utils.logging.disable_progress_bar()
    yield
    hf.utils.logging.enable_progress_bar()


def make_pool(family: Family, curve: pp.Curve | None = None, **options: Any) -> nn.Module:
    kind = pp.nn.SecondOrderPool2d if family.prefix_tokens is None else pp.nn.SecondOrderPool1d
    return kind(family.channels, curve or pp.MaxExp(eta=5), reduce_to=4, **options)


def make_model(family: Family = VIT, **options: Any) -> PowerPoolForImageClassification:
    torch.manual_seed(3)
    return PowerPoolForImageClassification.from_backbone(family.build(), make_pool(family, **options), LABELS).eval()


def load(folder: Path, **options: Any) -> Any:
    return hf.AutoModelForImageClassification.from_pretrained(folder, **options)


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    make_model().save_pretrained(folder)
    return folder


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    """A folder with a model, which a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "saved"))


# ---- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_logits_are_the_same_bit_for_bit_after_a_round_trip(family: Family, tmp_path: Path) -> None:
    inner = family.build()
    features = family.features(inner, family.images())
    pool = make_pool(family, coordinates=2)
    model = PowerPoolForImageClassification.from_backbone(inner, pool, LABELS).eval()
    images, labels = family.images(), torch.tensor([0, 2])
    output = model(images, labels=labels)
    assert isinstance(output, hf.modeling_outputs.ImageClassifierOutput)
    (linear,) = (layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 3)
    expected = nn.functional.linear(pool(features), linear.weight, linear.bias)
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(output.logits, labels))
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again) is PowerPoolForImageClassification
    assert again.config.id2label == dict(enumerate(LABELS))
    assert again.config.pool == model.config.pool
    assert torch.equal(again(images).logits, output.logits)
    assert again.state_dict().keys() == model.state_dict().keys()


def test_the_loss_is_the_first_output() -> None:
    model, labels = make_model(), torch.tensor([0, 2])
    output = model(VIT.images(), labels=labels, output_hidden_states=True)
    assert list(output) == ["loss", "logits", "hidden_states"]
    loss, logits = model(VIT.images(), labels=labels, return_dict=False)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)


@pytest.mark.parametrize("learnable", [True, False])
def test_a_learnt_parameter_is_a_weight(tmp_path: Path, learnable: bool) -> None:
    gamma = torch.tensor(0.37)
    model = make_model(curve=pp.Gamma(nn.Parameter(gamma) if learnable else gamma))
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(again(VIT.images()).logits, model(VIT.images()).logits)
    assert again.num_parameters() == model.num_parameters()


def test_the_configuration_is_readable_and_names_no_path(tmp_path: Path) -> None:
    VIT.build().save_pretrained(tmp_path / "secret")
    inner = hf.ViTForImageClassification.from_pretrained(tmp_path / "secret")
    pool = make_pool(VIT)
    PowerPoolForImageClassification.from_backbone(inner, pool, 7).save_pretrained(tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["pool"] == {
        "class": "SecondOrderPool1d",
        "channels": 32,
        "curve": {"name": "maxexp", "eta": 5},
        "reduce_to": 4,
        "prefix_tokens": 1,
    }
    assert len(config["id2label"]) == len(config["label2id"]) == 7
    assert "id2label" not in config["network_config"]
    assert config["network_config"]["model_type"] == "vit"
    assert not any("secret" in file.read_text() for file in (tmp_path / "out").glob("*.[jm]*[nd]"))
    assert hf.AutoConfig.from_pretrained(tmp_path / "out").num_labels == 7


def test_a_model_from_a_configuration_is_random_and_can_be_trained() -> None:
    config = make_model().config
    torch.manual_seed(0)
    model = PowerPoolForImageClassification(copy.deepcopy(config)).train()
    model(VIT.images(), labels=torch.tensor([0, 1])).loss.backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "pooler" not in name)
    assert 0 < float(model.model.classifier.weight.std().detach()) < 0.1


def test_wrapping_keeps_the_weights_of_the_backbone() -> None:
    inner = VIT.build()
    before = {name: value.clone() for name, value in inner.state_dict().items() if not name.startswith("classifier")}
    wrapped = PowerPoolForImageClassification.from_backbone(inner, make_pool(VIT), 3)
    state = wrapped.state_dict()
    assert all(torch.equal(state[f"model.{name}"], value) for name, value in before.items())


def test_other_classes_take_a_new_classifier(saved: Path) -> None:
    with pytest.raises(RecordError, match="ignore_mismatched_sizes"):
        load(saved, num_labels=9)
    model = load(saved, num_labels=9, ignore_mismatched_sizes=True)
    assert model(VIT.images()).logits.shape == (2, 9)
    assert bool(model(VIT.images()).logits.isfinite().all())


def test_what_cannot_be_stored_is_refused_before_anything_is_changed() -> None:
    inner = VIT.build()
    with pytest.raises(ArgumentError, match="Identity"):
        PowerPoolForImageClassification.from_backbone(inner, nn.Identity(), 3)
    with pytest.raises(ArgumentError, match="different"):
        PowerPoolForImageClassification.from_backbone(inner, make_pool(VIT), ["a", "a"])
    for labels in ("cat", True):
        with pytest.raises(ArgumentError, match=str(labels)):
            PowerPoolForImageClassification.from_backbone(inner, make_pool(VIT), labels)
    with pytest.raises(RecordError, match="num_labels"):
        PowerPoolForImageClassification.from_backbone(inner, make_pool(VIT), [])
    assert inner(VIT.images()).logits.shape == (2, 2)
    other = hf.DeiTForImageClassificationWithTeacher(BY_NAME["DeiT"].config())
    for model in (nn.Linear(3, 3), hf.ViTModel(VIT.config()), other):
        with pytest.raises((ArgumentError, PowerPoolError), match=type(model).__name__):
            PowerPoolForImageClassification.from_backbone(model, make_pool(VIT), 3)


# ---- crops, as runs of powerpool have them ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["efficientnet-lite0", "hf:"])
@pytest.mark.parametrize("method", ["second", "head"])
def test_a_backbone_with_crops_needs_nothing_but_its_folder(kind: str, method: str, tmp_path: Path) -> None:
    if kind == "hf:":
        source = tmp_path / "secret"
        RESNET.build().resnet.save_pretrained(source)
        kind = f"hf:{source}"
    backbone = load_backbone(kind)
    pool = pp.nn.SecondOrderPool2d(backbone.channels, pp.MaxExp(eta=5), crops=True, reduce_to=4, unit_norm=True)
    width = pool.out_features if method == "second" else backbone.head_channels
    classifier = nn.Linear(width, 3)
    given = pool if method == "second" else None
    model = PowerPoolForImageClassification.from_parts(backbone, given, classifier, LABELS, unit_norm=True)
    crops = torch.rand(2, 3, 3, 32, 32)
    maps = backbone(crops.flatten(0, 1)).unflatten(0, (2, 3))
    if method == "second":
        vector = pool(maps)
    else:
        vector = nn.functional.normalize(backbone.head(maps.flatten(0, 1)).unflatten(0, (2, 3)).mean(1), dim=-1)
    torch.testing.assert_close(model(crops).logits, classifier(vector))
    model.save_pretrained(tmp_path / "out")
    if "secret" in kind:
        source.rename(tmp_path / "moved")
    again = load(tmp_path / "out")
    torch.testing.assert_close(again(crops).logits, model(crops).logits)
    assert "secret" not in (tmp_path / "out/config.json").read_text()
    single = crops[:, 0]
    assert torch.equal(again(single).logits, again(single[:, None]).logits)
    flags = again(single, output_hidden_states=True, output_attentions=True)
    assert list(flags) == ["logits"]
    with pytest.raises(ShapeError, match="pixel_values"):
        again(single[0])


DINOV3 = Family("DINOv3", "DINOv3ViTModel", lambda: hf.DINOv3ViTConfig(**TOKENS), "", 32, 1)


@pytest.mark.parametrize("family", [*FAMILIES, DINOV3], ids=str)
@torch.no_grad()
def test_backbones_of_all_families_are_the_same_after_a_round_trip(family: Family, tmp_path: Path) -> None:
    family.build().save_pretrained(tmp_path / "network")
    backbone = load_backbone(f"hf:{tmp_path / 'network'}").eval()
    crops = family.images()[:, None]
    maps = backbone(crops[:, 0])
    vectors = backbone.head(maps), patches(maps, backbone.prefix_tokens).mean((2, 3))
    for vector, pool in zip(vectors, (None, pp.nn.FirstOrderPool2d(backbone.channels, crops=True)), strict=True):
        classifier = nn.Linear(vector.shape[1], 3)
        model = PowerPoolForImageClassification.from_parts(backbone, pool, classifier, LABELS)
        torch.testing.assert_close(model(crops).logits, classifier(vector))
        model.save_pretrained(tmp_path / "out")
        again = load(tmp_path / "out")
        assert torch.equal(again(crops).logits, model(crops).logits)
        buffers = dict(model.named_buffers())
        assert all(torch.equal(value, buffers[name]) for name, value in again.named_buffers())
    assert torch.equal(backbone.head(backbone(crops[:, 0])), vectors[0])  # the parts themselves are not changed


def test_a_backbone_without_a_name_cannot_be_loaded(tmp_path: Path) -> None:
    backbone = Backbone("mine", nn.Conv2d(3, 8, 3), 8)
    model = PowerPoolForImageClassification.from_parts(backbone, None, nn.Linear(8, 3), LABELS)
    model.save_pretrained(tmp_path)
    with pytest.raises(PowerPoolError, match="mine"):
        load(tmp_path)


def test_the_image_processor_cuts_the_crops_of_a_run(tmp_path: Path) -> None:
    image = Image.effect_noise((50, 40), 90).convert("RGB")
    processor = PowerPoolImageProcessor({"size": 16, "count": 12, "resize": 20}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    processor.save_pretrained(tmp_path)
    again = hf.AutoImageProcessor.from_pretrained(tmp_path)
    assert type(again) is PowerPoolImageProcessor
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    expected = (Crops(size=16, count=12, resize=20)(image) / 255 - mean) / std
    for given in (image, [image], torch.tensor(list(image.tobytes()), dtype=torch.uint8).view(40, 50, 3).numpy()):
        found = again(given, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(found, expected[None])
    for wrong in (
        {},
        {"crops": {"size": 0}},
        {"crops": {"sizes": 3}},
        {"crops": {}, "image_std": (0, 1, 1)},
        {"crops": {}, "image_mean": (1, 2)},
    ):
        with pytest.raises(RecordError):
            PowerPoolImageProcessor(**wrong)


# ---- Trainer, pipeline, PEFT -----------------------------------------------------------------------------------------


class Images(torch.utils.data.Dataset[dict[str, Any]]):
    """Eight images of three classes."""

    pixels = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.pixels[index], "labels": index % 3}


def make_trainer(model: nn.Module, folder: Path, **options: Any) -> hf.Trainer:
    arguments = hf.TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_strategy="epoch",
        eval_strategy="epoch",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    processor = hf.ViTImageProcessorPil(size={"height": 32, "width": 32})
    return hf.Trainer(model, arguments, train_dataset=Images(), eval_dataset=Images(), processing_class=processor)


def test_trainer_resumes_bit_for_bit_and_its_checkpoints_are_pipelines(tmp_path: Path) -> None:
    trainer = make_trainer(make_model(), tmp_path / "runs", gradient_checkpointing=True)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    resumed = make_trainer(make_model(), tmp_path / "runs")
    resumed.train(resume_from_checkpoint=str(tmp_path / "runs/checkpoint-2"))
    state = trainer.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, state[name]), name
    image = Image.effect_noise((50, 40), 90).convert("RGB")
    image.save(tmp_path / "image.png")
    classifier = hf.pipeline("image-classification", model=str(tmp_path / "runs/checkpoint-4"))
    found = classifier(str(tmp_path / "image.png"))
    pixels = trainer.processing_class(image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        scores = trainer.model.eval()(pixels).logits.softmax(-1)[0]
    assert {one["label"]: one["score"] for one in found} == pytest.approx(
        dict(zip(LABELS, scores.tolist(), strict=True))
    )


def test_the_pipeline_of_crops_uses_the_image_processor_beside_the_model(tmp_path: Path) -> None:
    backbone = load_backbone("efficientnet-lite0")
    pool = pp.nn.FirstOrderPool2d(320, crops=True)
    model = PowerPoolForImageClassification.from_parts(backbone, pool, nn.Linear(320, 3), LABELS)
    processor = PowerPoolImageProcessor({"size": 32, "count": 2})
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    images = [Image.effect_noise((50, 40), 90).convert("RGB") for _ in range(3)]
    classifier = hf.pipeline("image-classification", model=str(tmp_path))
    found = classifier(images, batch_size=2)
    scores = model(processor(images, return_tensors="pt")["pixel_values"]).logits.softmax(-1)
    for one, row in zip(found, scores.tolist(), strict=True):
        expected = dict(zip(LABELS, row, strict=True))
        assert {part["label"]: part["score"] for part in one} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", [VIT, RESNET], ids=str)
def test_peft_trains_adapters_and_the_new_layers_and_merges_into_the_format(family: Family, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not tested: pip install peft")
    base = make_model(family)
    base.save_pretrained(tmp_path / "base")
    targets = ["q_proj", "v_proj"] if family is VIT else ["convolution"]
    kept = ["classifier"] if family is VIT else ["classifier", "pooler"]
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=targets, modules_to_save=kept)).train()
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert any("reduction" in name for name in trained)
    assert any("classifier" in name and name.endswith("weight") for name in trained)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    images, labels = family.images(4), torch.tensor([0, 1, 2, 0])
    for _ in range(2):
        optimizer.zero_grad()
        model(pixel_values=images, labels=labels).loss.backward()
        optimizer.step()
    model.eval()
    expected = model(pixel_values=images).logits
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "adapter").eval()
    if family is VIT:  # batch normalization has statistics of the training, which adapters do not contain
        assert torch.equal(again(pixel_values=images).logits, expected)
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(load(tmp_path / "merged")(images).logits, expected, rtol=1e-4, atol=1e-5)


def test_accelerate_splits_and_offloads_the_model(saved: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    expected = load(saved)(VIT.images()).logits
    model = accelerate.Accelerator(cpu=True).prepare(load(saved))
    assert torch.equal(model(VIT.images()).logits, expected)
    offloaded = accelerate.cpu_offload(load(saved), torch.device("cpu"))
    assert torch.equal(offloaded(VIT.images()).logits, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    model, images, labels = make_model(), VIT.images(), torch.tensor([0, 1])
    model.train()(images, labels=labels).loss.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        images = images.requires_grad_()
    model(images, labels=labels).loss.backward()
    for name, weight in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(weight.grad, expected[name])
    with pytest.raises(ValueError, match="gradient checkpointing"):
        make_model(RESNET).gradient_checkpointing_enable()


# ---- the card --------------------------------------------------------------------------------------------------------


def test_the_card_shows_labels_and_metrics_and_is_not_overwritten(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path, metrics={"top-1 | accuracy": 91.25})
    card = (tmp_path / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert "`cat`, `dog`, `'[x](y)' / <b>`" in card
    assert "| `top-1 / accuracy` | 91.25 |" in card
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_metrics_of_a_card_are_renewed_unless_the_card_was_changed(tmp_path: Path) -> None:
    model, card = make_model(), tmp_path / "README.md"
    model.save_pretrained(tmp_path)
    for value in (50, 60):
        model.save_pretrained(tmp_path, metrics={"accuracy": value})
        assert f"| `accuracy` | {value} |" in card.read_text()
    model.save_pretrained(tmp_path)
    assert "| `accuracy` | 60 |" in card.read_text()
    mine = card.read_text() + "\nMeasured by me.\n"
    card.write_text(mine)
    model.save_pretrained(tmp_path, metrics={"accuracy": 70})
    assert card.read_text() == mine


@pytest.mark.parametrize("is_saved", [True, False])
def test_the_card_is_uploaded_with_the_model(is_saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is replaced at the border of huggingface_hub."""
    uploads: list[str] = []

    def commit(self: Any, repo_id: str, operations: Any, **options: Any) -> None:
        uploads.extend(Path(one.path_or_fileobj).read_text() for one in operations if one.path_in_repo == "README.md")

    def no_card(*arguments: Any, **options: Any) -> None:
        raise EntryNotFoundError("none")

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **options: RepoUrl("https://huggingface.co/me/net"))
    monkeypatch.setattr(HfApi, "create_commit", commit)
    monkeypatch.setattr(ModelCard, "load", no_card)
    if is_saved:
        make_model().save_pretrained(tmp_path / "net", push_to_hub=True, metrics={"accuracy": 50})
    else:
        make_model().push_to_hub("me/net")
    (card,) = uploads
    assert "`cat`, `dog`" in card
    assert ("| `accuracy` | 50 |" in card) is is_saved


# ---- damaged and hostile folders -------------------------------------------------------------------------------------


def test_the_state_of_another_curve_is_refused_by_both_values(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["pool"]["curve"]["eta"] = 20
    change_config(saved, pool=config["pool"])
    with pytest.raises(StateError, match=r"eta=5\.0.*eta=20\.0"):
        load(saved)


def test_a_file_without_the_descriptions_of_curves_is_read(saved: Path) -> None:
    expected = load(saved)(VIT.images()).logits
    state = load_file(saved / WEIGHTS)
    kept = {name: value for name, value in state.items() if not name.endswith(EXTRA_STATE)}
    assert len(kept) == len(state) - 1
    save_file(kept, saved / WEIGHTS, {"format": "pt"})
    assert torch.equal(load(saved)(VIT.images()).logits, expected)


def test_missing_weights_are_refused(saved: Path) -> None:
    state = load_file(saved / WEIGHTS)
    lost = next(name for name in state if "reduction" in name)
    save_file({name: value for name, value in state.items() if name != lost}, saved / WEIGHTS, {"format": "pt"})
    with pytest.raises(RecordError, match="reduction"):
        load(saved)


@pytest.mark.parametrize(
    "field, changes",
    [
        ("pool", {"class": "Unknown"}),
        ("pool", {"channels": 33}),
        ("pool", {"channels": 10**15}),
        ("pool", {"reduce_to": 900_000}),  # 4e11 entries of a vector
        ("pool", {"curve": {"name": "maxep", "eta": 5}}),
        ("pool", {"curve": {"name": "maxexp", "eta": None}}),
        ("pool", {"coordinates": 900_000}),
        ("site", {"first": "nowhere"}),
        ("site", {"first": "vit"}),
        ("site", {"layout": "CB"}),
        ("site", {"source": ["vit"]}),
        ("site", {"more": 1}),
        ("network_config", {"model_type": "no_such_network"}),
        ("network_config", {"hidden_size": 10**15}),
        ("network_config", {"hidden_size": 33_554_432}),
        ("network_config", {"hidden_size": "32"}),
        ("network_config", {"model_type": "bert"}),
    ],
)
def test_damaged_settings_are_refused_without_memory_for_them(saved: Path, field: str, changes: dict[str, Any]) -> None:
    spec = json.loads((saved / "config.json").read_text())[field]
    change_config(saved, **{field: {**spec, **changes}})
    with pytest.raises(PowerPoolError):
        load(saved)


@pytest.mark.parametrize(
    "nested",
    [
        {"model_type": "upernet", "backbone": "attacker/net"},
        {"model_type": "detr", "backbone": "attacker/net"},
        {"model_type": "bert"},
        {"model_type": "timm_backbone", "backbone": "hf-hub:attacker/net"},
        {"model_type": "timm_wrapper", "architecture": "hf-hub:attacker/net"},
        {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "net.pth"}},
        {"model_type": "vit", "backbone": "attacker/net"},
        {"model_type": "vit", "attn_implementation": "attacker/kernel"},
        {"model_type": "vit", "auto_map": {"AutoModel": "attacker/net--evil.Evil"}},
        {"model_type": "clip", "vision_config": {"auto_map": {"AutoModel": "evil.Evil"}}},
        {"model_type": "swin", "parts": [{"backbone_config": "attacker/net"}]},
    ],
    ids=str,
)
def test_networks_elsewhere_are_refused_before_transformers_reads_them(
    nested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf.PretrainedConfig, "__post_init__", lambda *_, **__: pytest.fail("transformers read it"))
    with pytest.raises(RecordError, match="network_config"):
        PowerPoolConfig(backbone="hf", network_config=nested, pool={"class": "head", "unit_norm": False})


def test_code_beside_a_known_network_is_not_named_in_the_folder(tmp_path: Path) -> None:
    inner = VIT.build()
    inner.config.auto_map = {"AutoConfig": "code.Config", "AutoModelForImageClassification": "code.Model"}
    PowerPoolForImageClassification.from_backbone(inner, make_pool(VIT), LABELS).save_pretrained(tmp_path)
    assert "auto_map" not in (tmp_path / "config.json").read_text()
    assert "auto_map" in inner.config.to_dict()
    load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": None},
        {"pool": []},
        {"site": {}},
        {"site": None},
        {"network_config": None},
        {"network_config": {}},
        {"backbone": "no_such", "site": None},
        {"backbone": 5, "site": None},
        {"backbone": "hf", "site": None},
        {"id2label": {"0": "a", "2": "b"}},
        {"id2label": {"0": 5}},
        {"id2label": {}},
        {"id2label": None, "num_labels": 10**12},
        {"id2label": None, "num_labels": -1},
        {"id2label": ["a"]},
    ],
    ids=str,
)
def test_missing_and_wrong_fields_are_refused(saved: Path, changes: dict[str, Any]) -> None:
    change_config(saved, **changes)
    with pytest.raises(PowerPoolError):
        load(saved)


def test_a_configuration_is_checked_where_it_is_made() -> None:
    pool = {"class": "SecondOrderPool2d", "channels": 3, "curve": {"name": "maxep"}}
    with pytest.raises(RecordError, match="maxep"):
        PowerPoolConfig(backbone="efficientnet-lite0", pool=pool)
    assert PowerPoolConfig().model_type == "powerpool"
