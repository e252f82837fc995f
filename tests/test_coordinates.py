"""Spatial coordinates against the formula in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from powerpool.errors import ArgumentError, DTypeError
from powerpool.moments.coordinates import append_coordinates, spatial_coordinates
from tests.tolerances import tolerance


def _reference(height: int, width: int, pivots: int, sigma: float, alpha: float) -> list[list[float]]:
    centres = [-0.2 + 1.4 * z / (pivots - 1) for z in range(pivots)]

    def code(place: int, length: int, centre: float) -> float:
        position = place / (length - 1) if length > 1 else 0.0
        return alpha * math.exp(-((position - centre) ** 2) / sigma**2)

    places = [(row, column) for row in range(height) for column in range(width)]
    x_block = [[code(column, width, centre) for _, column in places] for centre in centres]
    y_block = [[code(row, height, centre) for row, _ in places] for centre in centres]
    return x_block + y_block


class TestSpatialCoordinates:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        "height, width, pivots, sigma, alpha",
        [(7, 7, 5, 0.5, 1.0), (3, 5, 3, 0.2, 0.7), (5, 1, 10, 1.0, 2.0), (1, 4, 2, 0.5, 1.0), (1, 1, 5, 0.5, 0.0)],
    )
    def test_equals_the_formula(
        self, height: int, width: int, pivots: int, sigma: float, alpha: float, dtype: torch.dtype
    ) -> None:
        expected = torch.tensor(_reference(height, width, pivots, sigma, alpha), dtype=dtype)
        coordinates = spatial_coordinates(height, width, pivots, sigma, alpha, dtype=dtype)
        assert_close(coordinates, expected, **tolerance(dtype))
        assert coordinates.is_contiguous()

    def test_locations_are_row_major(self) -> None:
        # The code of x at a pivot left of the map falls from left to right, and is the same in every row.
        left = spatial_coordinates(3, 4, pivots=5)[0].view(3, 4)
        assert (left.diff(dim=1) < 0).all()
        assert_close(left, left[:1].expand(3, 4), rtol=0, atol=0)

    def test_reversed_locations_and_pivots_mirror_the_map(self) -> None:
        coordinates = spatial_coordinates(4, 6, pivots=4, dtype=torch.float64)
        mirrored = coordinates.view(2, 4, 4, 6).flip(1, 2, 3).reshape(8, 24)
        assert_close(mirrored, coordinates, **tolerance(torch.float64))

    def test_defaults(self) -> None:
        coordinates = spatial_coordinates(7, 7)
        assert coordinates.shape == (10, 49)
        assert coordinates.dtype == torch.get_default_dtype()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_lower_precision_is_rounded_once(self, dtype: torch.dtype) -> None:
        exact = spatial_coordinates(5, 6, dtype=torch.float64)
        assert_close(spatial_coordinates(5, 6, dtype=dtype), exact.to(dtype), rtol=0, atol=0)

    def test_device(self) -> None:
        assert spatial_coordinates(2, 3, device="meta").device.type == "meta"

    def test_bad_arguments(self) -> None:
        for name, values in (("height", (0, 2.0)), ("width", (-3, True)), ("pivots", (1, "7"))):
            for value in values:
                with pytest.raises(ArgumentError, match=rf"{name}.*{value!r}"):
                    spatial_coordinates(**{"height": 3, "width": 3, "pivots": 3, name: value})
        for sigma in (0.0, -0.5, float("nan"), float("inf")):
            with pytest.raises(ArgumentError, match=f"sigma.*{sigma}"):
                spatial_coordinates(3, 3, sigma=sigma)
        for alpha in (-0.5, float("nan"), float("inf")):
            with pytest.raises(ArgumentError, match=f"alpha.*{alpha}"):
                spatial_coordinates(3, 3, alpha=alpha)
        with pytest.raises(DTypeError, match="int64"):
            spatial_coordinates(3, 3, dtype=torch.int64)


class TestAppendCoordinates:
    @pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
    def test_follows_the_features(self, lead: tuple[int, ...], dtype: torch.dtype) -> None:
        features = torch.randn(*lead, 5, 6, dtype=dtype)
        coordinates = spatial_coordinates(2, 3, pivots=4, dtype=torch.float64)
        joined = append_coordinates(features, coordinates)
        assert joined.shape == (*lead, 13, 6)
        assert_close(joined[..., :5, :], features, rtol=0, atol=0)
        assert_close(joined[..., 5:, :], coordinates.to(dtype).expand(*lead, 8, 6), rtol=0, atol=0)

    def test_gradient_reaches_both(self) -> None:
        features = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
        coordinates = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(append_coordinates, (features, coordinates))

    def test_compile_vmap_and_export(self) -> None:
        class Join(torch.nn.Module):
            def forward(self, features: torch.Tensor) -> torch.Tensor:
                height, width = features.shape[-2:]
                return append_coordinates(features.flatten(-2), spatial_coordinates(height, width, pivots=3))

        features = torch.randn(2, 5, 3, 4)
        expected = Join()(features)
        assert_close(torch.compile(Join(), backend="aot_eager", fullgraph=True)(features), expected)
        assert_close(torch.vmap(Join())(features), expected)
        assert_close(torch.export.export(Join(), (features,)).module()(features), expected)
