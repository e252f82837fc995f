"""Random crops and batches of end-to-end training."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from powerpool.data import Crops, ImageSplit
from powerpool.tasks.vision.augmentation import RandomCrops, draw_batches, jitter, random_box
from tests.tasks.vision.fine_tuning_samples import images, small_config, with_training

CONFIG = small_config(jitter=0.2)
share = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0.05, 1), st.tuples(share, share, share, share))
def test_a_random_box_lies_in_the_image_and_has_its_share_of_it(width, height, smallest, draws):
    left, top, right, bottom = random_box(width, height, smallest, *draws)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    area = (right - left) * (bottom - top) / (width * height)
    assert smallest - 1e-9 <= area <= 1 + 1e-9
    aspect = (right - left) / (bottom - top)
    possible = area * height * width
    low, high = possible / height**2, width**2 / possible
    assert min(max(0.75, low), high) - 1e-6 <= aspect * (1 + 1e-6)
    assert aspect <= (max(min(4 / 3, high), low) + 1e-6) * (1 + 1e-6)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000))
def test_batches_contain_every_image_once_and_every_process_has_some(count, size, world, seed):
    size = max(size, world)
    batches = draw_batches(count, size, seed, world)
    assert torch.cat(batches).sort().values.tolist() == list(range(count))
    assert all(len(batch) == size for batch in batches[:-2])
    if count >= world:
        assert all(len(batch) >= world for batch in batches)
    assert all(len(batch) < size + world for batch in batches)


def test_crops_depend_on_seed_epoch_and_image_only(tmp_path):
    split = images(tmp_path / "images", 3)
    data = RandomCrops(split, CONFIG, epoch=1)
    item = data[2]
    assert item["images"].shape == (2, 16, 16, 3)
    assert item["factors"].shape == (2, 3)
    torch.manual_seed(5)
    data[0]
    for name, value in data[2].items():
        assert torch.equal(value, item[name])
    others = RandomCrops(split, CONFIG, 2)[2], RandomCrops(split, small_config(seed=1, jitter=0.2), 1)[2], data[1]
    for other in others:
        assert not torch.equal(other["images"], item["images"])
        assert not torch.equal(other["factors"], item["factors"])
    assert not torch.equal(item["images"][0], item["images"][1])


def test_crops_are_resized_and_half_of_them_mirrored(tmp_path):
    from PIL import Image

    gradient = torch.linspace(0, 255, 64).to(torch.uint8)[None, :, None].expand(64, 64, 3)
    Image.fromarray(gradient.contiguous().numpy()).save(tmp_path / "one.png")
    split = ImageSplit(("one",), torch.tensor([0]), (str(tmp_path / "one.png"),))
    config = with_training(small_config(crops=Crops(size=32, count=1), smallest_crop=1.0, jitter=0.0), crops=40)
    item = RandomCrops(split, config, 0)[0]
    assert torch.equal(item["factors"], torch.ones(40, 3))
    rising = (item["images"][:, 16, -1, 0].int() > item["images"][:, 16, 0, 0].int()).tolist()
    assert 8 < sum(rising) < 32
    expected = torch.from_numpy(np.asarray(Image.open(tmp_path / "one.png").resize((32, 32), 2)).copy())
    assert torch.equal(item["images"][rising.index(True)], expected)  # the whole image, as the smallest share is 1
    assert torch.equal(item["images"][rising.index(False)].flip(1), expected)
    still = RandomCrops(split, with_training(config, flip=False), 0)[0]["images"]
    assert all(torch.equal(crop, expected) for crop in still[:3])


def test_jitter_changes_brightness_contrast_and_saturation():
    given = torch.rand(3, 3, 5, 4) * 0.5 + 0.2
    torch.testing.assert_close(jitter(given, torch.ones(3, 3)), given)
    gray = (given * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    torch.testing.assert_close(jitter(given, torch.tensor([[0.5, 1, 1]] * 3)), given * 0.5)
    mean = gray.mean((2, 3), keepdim=True)
    torch.testing.assert_close(jitter(given, torch.tensor([[1, 0.5, 1]] * 3)), (given + mean) / 2)
    torch.testing.assert_close(jitter(given, torch.tensor([[1, 1, 0.0]] * 3)), gray.expand_as(given))
