"""Mirror images and shifts of training images."""

from __future__ import annotations

import torch

from powerpool.tasks.fewshot.augmentation import Augmentation

IMAGES = torch.rand(40, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def test_no_augmentation_is_false():
    assert not Augmentation()
    assert Augmentation(flips=True)
    assert Augmentation(shift=2)


def test_flips_mirror_about_half_of_the_images():
    found = Augmentation(flips=True).apply(IMAGES, 0)
    kept = [torch.equal(one, other) for one, other in zip(found, IMAGES, strict=True)]
    mirrored = [torch.equal(one, other.flip(-1)) for one, other in zip(found, IMAGES, strict=True)]
    assert all(one != other for one, other in zip(kept, mirrored, strict=True))
    assert 10 < sum(mirrored) < 30


def test_a_shift_is_a_crop_of_the_reflected_image():
    found = Augmentation(shift=2).apply(IMAGES, 0)
    padded = torch.nn.functional.pad(IMAGES, [2] * 4, mode="reflect")
    places = set()
    for one, large in zip(found, padded, strict=True):
        fits = [(y, x) for y in range(5) for x in range(5) if torch.equal(one, large[:, y : y + 9, x : x + 9])]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) > 10


def test_it_depends_on_seed_and_number_alone():
    augmentation = Augmentation(flips=True, shift=2, seed=1)
    assert torch.equal(augmentation.apply(IMAGES, 3), augmentation.apply(IMAGES, 3))
    assert not torch.equal(augmentation.apply(IMAGES, 3), augmentation.apply(IMAGES, 4))
    assert not torch.equal(augmentation.apply(IMAGES, 3), Augmentation(True, 2, seed=2).apply(IMAGES, 3))
