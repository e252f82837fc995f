"""Records sorted into groups, and what is told of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerpool.errors import RecordError
from powerpool.report.groups import Group, describe_test, group_records, list_seeds
from powerpool.runs.record import RunRecord
from tests.report.samples import draw_flags, draw_right, episode_run, episodes, graph_run, image_run

FLAGS, RIGHT = draw_flags(0.8, 1), draw_right(0.5, 1)


def only(*records: RunRecord) -> Group:
    (group,) = group_records(records)
    return group


def test_one_group_for_each_data_set_protocol_and_backbone() -> None:
    records = [
        graph_run("SOP", [80.0, 84.0], data=data, protocol=protocol)
        for data in ("PTC_MR", "MUTAG")
        for protocol in ("retrain", "validation-only")
    ]
    records += [image_run("SOP", FLAGS, config={"backbone": name}) for name in ("timm:b", "timm:a")]
    records.append(image_run("SOP", FLAGS, protocol="end-to-end"))
    records += [episode_run("SoSN(x)", RIGHT, protocol=name) for name in ("20-way-1-shot", "5-way-5-shot")]
    assert [group.title for group in group_records(records)] == [
        "miniimagenet100, 5-way-5-shot",
        "miniimagenet100, 20-way-1-shot",
        "MUTAG, validation-only",
        "MUTAG, retrain",
        "PTC_MR, validation-only",
        "PTC_MR, retrain",
        "flower102, frozen timm:a",
        "flower102, frozen timm:b",
        "flower102, end-to-end efficientnet-lite0",
    ]


def test_readouts_on_another_backbone_are_compared_with_its_mean() -> None:
    def on_gcn(method: str, *values: float) -> RunRecord:
        return graph_run(method, values, config={"model": {"method": "x", "backbone": "GCN"}})

    records = [on_gcn("GCN+SOP", 80.0, 84.0), on_gcn("GCN+Sum", 70.0, 71.0), on_gcn("GCN", 78.0, 80.0)]
    plain, other = group_records([graph_run("GIN0", [90.0, 91.0]), *records])
    assert (plain.title, plain.baseline) == ("MUTAG, validation-only", "GIN0")
    assert (other.title, other.baseline) == ("MUTAG, validation-only GCN", "GCN")
    assert [record.method for record in other.records] == ["GCN", "GCN+Sum", "GCN+SOP"]
    row = other.find("GCN+SOP")
    assert row is not None
    assert row.to_baseline == pytest.approx(3.0)


def test_another_first_order_network_is_the_baseline_where_relation_net_is_missing() -> None:
    names = ("NCM(x+L)", "RelationNet+Enc", "PrototypicalNet", "RelationNet")
    records = [episode_run(method, RIGHT) for method in names]
    for count, baseline in ((4, "RelationNet"), (3, "PrototypicalNet"), (2, "RelationNet+Enc"), (1, "RelationNet")):
        assert only(*records[:count]).baseline == baseline


def test_second_record_of_a_row_is_refused() -> None:
    with pytest.raises(RecordError, match=r"second file .* SOP on flower102, protocol frozen, backbone efficient"):
        group_records([image_run("SOP", FLAGS), image_run("SOP", FLAGS)])


def test_a_table_does_not_mix_accuracies_and_errors() -> None:
    wrong = replace(graph_run("GIN0", [20.0, 16.0]), metric="error in %")
    with pytest.raises(RecordError, match=r"accuracy in %' of SOP and 'error in %' of GIN0 \(MUTAG"):
        group_records([graph_run("SOP", [80.0, 84.0]), wrong])
    assert len(group_records([graph_run("SOP", [80.0, 84.0], data="PTC_MR"), wrong])) == 2


def test_what_is_tested() -> None:
    assert describe_test(only(graph_run("SOP", [80.0]))) == "1 fold"
    assert describe_test(only(graph_run("SOP", [80.0]), graph_run("GIN0", [80.0, 81.0]))) == "1 to 2 folds"
    assert describe_test(only(image_run("SOP", FLAGS))) == "203 images"
    assert describe_test(only(image_run("SOP", FLAGS, FLAGS), image_run("FOP", FLAGS))) == (
        "203 images, 1 to 2 runs per method"
    )
    assert describe_test(only(episode_run("SoSN(x)", RIGHT))) == (
        "60 episodes with 15 queries each, 1 training seed per method"
    )
    frozen = {"backbone": "timm:a"}
    for rights, seeds in (((RIGHT,), "1 seed of"), ((RIGHT, RIGHT), "2 seeds of")):
        text = describe_test(only(episode_run("FOP+NCM", *rights, config=frozen)))
        assert text == f"60 episodes with 15 queries each, {seeds} test episodes per method"


def test_seeds_of_all_runs() -> None:
    results = tuple(episodes(RIGHT, number, seed=seed) for number, seed in enumerate((3, 11)))
    group = only(episode_run("SoSN(x)", results=results, seed=3), episode_run("RelationNet", RIGHT))
    assert list_seeds(group) == [0, 3, 11]
    assert list_seeds(only(graph_run("SOP", [80.0], seed=7))) == [7]


@pytest.mark.parametrize(
    "backbone, protocol, setup",
    [
        ("efficientnet-lite0", "frozen", "a fine-tuned ResNet-50"),
        ("efficientnet-lite0", "end-to-end", "a fine-tuned ResNet-50"),
        ("hf:microsoft/resnet-50", "end-to-end", None),
        ("torchvision:alexnet", "end-to-end", None),
        ("torchvision:alexnet", "frozen", "an AlexNet whose last two convolutional layers are fine-tuned"),
    ],
)
def test_another_network_than_the_papers_is_named(backbone: str | None, protocol: str, setup: str | None) -> None:
    record = image_run("SOP", FLAGS, protocol=protocol, config={"backbone": backbone})
    assert only(record).paper_setup == setup


@pytest.mark.parametrize(
    "data, config, setup",
    [
        ("miniimagenet100", {}, "all 600 images of a class, 200000 training episodes"),
        ("miniimagenet", {"training": {"episodes": 200_000}}, None),
        ("flower102", {}, "SoSN on images of 224 px, 40000 training episodes"),
        ("open_mic-p1-to-p2", {}, "the mean over twelve pairs of parts (protocol I), 15000 training episodes"),
    ],
)
def test_another_training_than_the_papers_is_named(data: str, config: dict[str, object], setup: str | None) -> None:
    for protocol, more in (("5-way-1-shot", ["transductive tests"]), ("5-way-1-shot-transductive", [])):
        group = only(episode_run("SoSN(x)+SigmE", RIGHT, data=data, protocol=protocol, config=config))
        assert group.paper_setup == (", ".join([*([setup] if setup else []), *more]) or None)


@pytest.mark.parametrize(
    "source, data, named",
    [
        ("glyphs", "flower102", "pre-training on miniImageNet"),
        ("miniimagenet", "miniimagenet", "pre-training on Food-101"),
        ("miniimagenet100", "flower102", None),
    ],
)
def test_pretraining_on_another_set_than_the_papers_is_named(source: str | None, data: str, named: str | None) -> None:
    config = {"size": 224} | ({} if source is None else {"pretraining": {"data": source}})
    setup = only(episode_run("SoSN(x+L)+Pretr+SC+SigmE", RIGHT, data=data, config=config)).paper_setup
    assert ("pre-training" in str(setup)) is (named is not None)
    assert named is None or named in str(setup)


def test_no_setup_without_a_figure_of_the_paper() -> None:
    assert only(image_run("SOP", FLAGS, data="my-images")).paper_setup is None
    assert only(graph_run("SOP", [80.0])).paper_setup is None
