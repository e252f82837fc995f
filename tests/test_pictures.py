"""The image of the README is the one that its script draws, and shows what the README states."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import powerpool as pp

FOLDER = Path(__file__).parents[1] / "docs/pictures"


@pytest.fixture(scope="module")
def overview():
    spec = importlib.util.spec_from_file_location("overview", FOLDER / "overview.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_eigenvalue_dominates_before_and_four_are_alike_after(overview):
    matrix = pp.autocorrelation(overview.features())
    values = torch.linalg.eigvalsh(matrix / matrix.trace()).flip(0)
    assert values[0] > 6 * values[1]
    after = torch.linalg.eigvalsh(pp.spectral(matrix, pp.MaxExp(eta=overview.ETA))).flip(0)
    assert after[overview.PATTERNS - 1] > 0.9 * after[0]
    assert after[overview.PATTERNS] < 0.2 * after[0]


def test_the_stored_image_is_up_to_date(overview, tmp_path):
    overview.main(tmp_path)
    drawn, stored = ((folder / "overview.svg").read_text(encoding="utf-8") for folder in (tmp_path, FOLDER))
    versions = [re.search(r"Matplotlib v([\d.]+)", text).group(1) for text in (drawn, stored)]
    if versions[0] != versions[1]:
        pytest.skip(f"the stored image was drawn by Matplotlib {versions[1]}, not {versions[0]}")
    # Pixels of matrices may differ in their last bit on another processor; the words may not.
    words = [re.sub(r'xlink:href="data:[^"]*"', "", text) for text in (drawn, stored)]
    assert words[0].count("<image") == words[1].count("<image") == 3
    assert re.findall(r"<!-- (.*?) -->", words[0]) == re.findall(r"<!-- (.*?) -->", words[1])
