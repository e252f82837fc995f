"""Spatial coordinates against the formula, number by number in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from powerpool.errors import ArgumentError, DTypeError, ShapeError
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

    def test_locations_lie_as_flatten_lays_them_out(self) -> None:
        # The code of x at a pivot left of the map falls from left to right, and does not change from row to row.
        left = spatial_coordinates(3, 4, pivots=5)[0].view(3, 4)
        assert (left.diff(dim=1) < 0).all()
        assert_close(left, left[:1].expand(3, 4), rtol=0, atol=0)

    def test_the_map_is_mirrored_by_reversing_locations_and_pivots(self) -> None:
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

    @pytest.mark.parametrize("name, least", [("height", 1), ("width", 1), ("pivots", 2)])
    @pytest.mark.parametrize("value", [0, -3, 2.0, True, "7"])
    def test_counts_that_are_no_counts(self, name: str, least: int, value: object) -> None:
        arguments = {"height": 3, "width": 3, "pivots": 3, name: value}
        with pytest.raises(ArgumentError, match=rf"{name} must be an integer >= {least} \(got {value!r}\)"):
            spatial_coordinates(**arguments)  # type: ignore[arg-type]

    def test_one_pivot_is_no_code(self) -> None:
        with pytest.raises(ArgumentError, match=r"pivots must be an integer >= 2 \(got 1\)"):
            spatial_coordinates(3, 3, pivots=1)

    @pytest.mark.parametrize("sigma", [0.0, -0.5, float("nan"), float("inf")])
    def test_sigma_out_of_range(self, sigma: float) -> None:
        with pytest.raises(ArgumentError, match=r"sigma must be > 0 and finite"):
            spatial_coordinates(3, 3, sigma=sigma)

    @pytest.mark.parametrize("alpha", [-0.5, float("nan"), float("inf")])
    def test_alpha_out_of_range(self, alpha: float) -> None:
        with pytest.raises(ArgumentError, match=r"alpha must be >= 0 and finite"):
            spatial_coordinates(3, 3, alpha=alpha)

    def test_integer_dtype(self) -> None:
        with pytest.raises(DTypeError, match=r"floating-point dtype \(got torch.int64\)"):
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

    @pytest.mark.parametrize("locations", [1, 5, 12])
    def test_wrong_coordinate_count(self, locations: int) -> None:
        with pytest.raises(ShapeError, match=rf"wrong coordinate count.*N = 6.*got {locations} in \(4, {locations}\)"):
            append_coordinates(torch.randn(2, 3, 6), torch.randn(4, locations))

    @pytest.mark.parametrize("shape", [(6,), (2, 4, 6)])
    def test_one_set_of_coordinates_for_all(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"coordinates must have shape \(2 Z, N\)"):
            append_coordinates(torch.randn(2, 3, 6), torch.randn(shape))

    def test_integer_coordinates(self) -> None:
        with pytest.raises(DTypeError, match=r"coordinates must have a floating-point dtype"):
            append_coordinates(torch.randn(2, 3, 6), torch.ones(4, 6, dtype=torch.int64))
