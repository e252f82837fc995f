"""Pictures for a machine without a network: the handwritten digits that come with scikit-learn, as files."""

from __future__ import annotations

from pathlib import Path

from powerpool.data.places import cache_folder, made_once

DIGITS = "digits"
SIDE = 64
"""Pixels that the 8 x 8 pictures are enlarged to: a backbone sees nothing in fewer."""


def digits_folder() -> Path:
    """A folder of ten class folders with 1797 pictures in all. It is made once, and is whole or not there."""
    import sklearn

    # Another version may have other pictures, and a folder must not change under a run.
    target = cache_folder("images") / f"sklearn-{sklearn.__version__}" / DIGITS
    return made_once(target, _write)


def _write(folder: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        place = folder / str(label)
        place.mkdir(exist_ok=True)
        small = Image.fromarray((pixels * (255 / 16)).astype("uint8"))
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place / f"{number:04d}.png")
