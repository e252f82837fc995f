"""Pictures for a machine without a network: the handwritten digits that come with scikit-learn, as files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from powerpool.data.places import cache_folder, without_cache
from powerpool.records import RecordError, make_folder

DIGITS = "digits"
SIDE = 64
"""Pixels that the 8 x 8 pictures are enlarged to: a backbone sees nothing in fewer."""


def digits_folder() -> Path:
    """A folder of ten class folders with 1797 pictures in all. It is made once, and is whole or not there."""
    import sklearn

    # Another version may have other pictures, and a folder must not change under a run.
    target = cache_folder("images") / f"sklearn-{sklearn.__version__}" / DIGITS
    if target.is_dir():
        return target
    try:
        make_folder(target.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".digits-", dir=target.parent))
        try:
            _write(temporary)
            os.rename(temporary, target)
        except OSError:
            if not target.is_dir():  # another process was faster
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, RecordError) as error:
        raise RecordError(without_cache(target, error)) from error
    return target


def _write(folder: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    folder.chmod(0o755)  # mkdtemp makes folders for their owner alone
    for number, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        place = folder / str(label)
        place.mkdir(exist_ok=True)
        small = Image.fromarray((pixels * (255 / 16)).astype("uint8"))
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place / f"{number:04d}.png")
