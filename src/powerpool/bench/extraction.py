"""The suite ``extraction``: features from picture files, beside the backbone alone on crops that are ready in memory.

What decoding, cropping and worker processes cost a user who stores features, in terms of the network itself.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from powerpool.bench.case import Answer, BenchCase, Contender
from powerpool.bench.timing import Stopwatch
from powerpool.data import Crops, ImageDataset, ImageSplit, list_images
from powerpool.integrations.backbones import fold_batch_norm, load_backbone
from powerpool.tasks.vision.extraction import Frozen, stream_maps

NETWORK = "efficientnet-lite0"
BARE, FOLDED, OURS = "backbone alone, as it was loaded", "backbone alone, folded", "features from picture files"
LIMITS = {"12 crops a picture": 1.1, "1 crop a picture": 1.1}
"""Most time that features from files may take, in times of the backbone alone as it was loaded."""


def cases(quick: bool) -> list[BenchCase]:
    """Sets of twelve crops of 224 px, and single crops; ``quick`` takes a few small ones."""
    if quick:
        return [_case("12 crops a picture", Crops(size=64, count=12, resize=80), pictures=2)]
    many, one = Crops(size=224, count=12, resize=320), Crops(size=224, count=1, resize=256)
    return [_case("12 crops a picture", many, pictures=24), _case("1 crop a picture", one, pictures=192)]


def _case(name: str, crops: Crops, pictures: int) -> BenchCase:
    @cache
    def dataset() -> ImageDataset:
        return ImageDataset(make_pictures(pictures), crops)

    @cache
    def ready() -> Tensor:
        data = dataset()
        return torch.stack([data[number]["images"] for number in range(len(data))]).flatten(0, 1)

    @cache
    def network(folded: bool) -> Frozen:
        backbone = load_backbone(NETWORK).eval()
        example = torch.rand(1, 3, crops.size, crops.size)
        return Frozen(fold_batch_norm(backbone, example) if folded else backbone, torch.device("cpu"))

    def alone(folded: bool) -> Contender:
        def step(watch: Stopwatch) -> Answer:
            with watch.forward:
                maps = network(folded)(ready())
            return Answer(maps)

        return Contender(FOLDED if folded else BARE, "floor", "maps", step)

    def from_files(watch: Stopwatch) -> Answer:
        with watch.forward:
            maps = torch.cat(list(stream_maps(dataset(), network(True), torch.get_num_threads())))
        return Answer(maps.flatten(0, 1))

    contenders = [alone(False), alone(True), Contender(OURS, "powerpool", "maps", from_files)]
    sizes = {"pictures": pictures, "crops": crops.count, "pixels": crops.size}
    return BenchCase("extraction", name, sizes, contenders, labels={"network": NETWORK})


@cache
def make_pictures(count: int) -> ImageSplit:
    """JPEG files of 500 x 375 pixels, the size of many photographs on the web: soft noise, which decodes as they do."""
    from PIL import Image

    folder = Path(tempfile.mkdtemp(prefix="powerpool-bench-"))
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        coarse = torch.randint(256, (47, 63, 3), generator=generator, dtype=torch.uint8)
        picture = Image.frombytes("RGB", (63, 47), bytes(coarse.flatten().tolist()))
        picture.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.jpg", quality=90)
    return list_images([folder])
