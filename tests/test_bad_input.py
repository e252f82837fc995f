"""Bad input: what was given, what is needed, what to do; and NaN, never a number, where checks are off."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import powerpool as pp
from powerpool.checks import values_are_checked
from powerpool.errors import PowerPoolError
from tests.tolerances import tolerance

Call = Callable[..., Any]

# Every public way in, by what it takes. A spectral way in names its solver and a curve that the solver takes.
OF_A_MATRIX: dict[str, Call] = {
    "elementwise": lambda m, **k: pp.elementwise(m, "sigme", **k),
    "elementwise-gamma": lambda m, **k: pp.elementwise(m, pp.Gamma(0.5), **k),
    "elementwise-raw-sigme": lambda m, **k: pp.elementwise(m, pp.SigmE(5.0, trace_normalize=False), **k),
    "eigen": lambda m, **k: pp.spectral(m, pp.HDP(0.1), "eigen", **k),
    "eigen-asinhe": lambda m, **k: pp.spectral(m, "asinhe", "eigen", **k),
    "squaring": lambda m, **k: pp.spectral(m, pp.MaxExp(7), "squaring", **k),
    "newton_schulz": lambda m, **k: pp.spectral(m, pp.Gamma(0.5), "newton_schulz", **k),
    "jitter": lambda m, **k: pp.spectral(m, pp.MaxExp(7), "jitter", **k),
    "ElementwisePowerNorm": lambda m, **k: pp.nn.ElementwisePowerNorm("sigme", **k)(m),
    "SpectralPowerNorm": lambda m, **k: pp.nn.SpectralPowerNorm("maxexp", **k)(m),
}
OF_FEATURES: dict[str, Call] = {
    "autocorrelation": pp.autocorrelation,
    "plain": pp.second_order_pool,
    "elementwise": lambda f, **k: pp.second_order_pool(f, "sigme", "elementwise", **k),
    "elementwise-raw-sigme": lambda f, **k: pp.second_order_pool(
        f, pp.SigmE(5.0, trace_normalize=False), "elementwise", **k
    ),
    "eigen": lambda f, **k: pp.second_order_pool(f, pp.HDP(0.1), solver="eigen", **k),
    "squaring": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), solver="squaring", **k),
    "gram": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), solver="gram", **k),
    "gram-eigh": lambda f, **k: pp.second_order_pool(f, pp.SigmE(5.0), solver="gram", **k),
    "newton_schulz": lambda f, **k: pp.second_order_pool(f, pp.Gamma(0.5), solver="newton_schulz", **k),
    "gram_factor": lambda f, **k: pp.gram_factor(f, pp.MaxExp(7), **k).dense(),
    "gram_factor-plain": lambda f, **k: pp.gram_factor(f, **k).dense(),
}
FIRST_ORDER: dict[str, Call] = {
    "mean": pp.first_order_pool,
    "max": lambda f, **k: pp.first_order_pool(f, reduce="max", **k),
    "mean-curve": lambda f, **k: pp.first_order_pool(f, "sigme", **k),
    "max-curve": lambda f, **k: pp.first_order_pool(f, "sigme", reduce="max", **k),
}

of_a_matrix = pytest.mark.parametrize("call", OF_A_MATRIX.values(), ids=list(OF_A_MATRIX))
of_features = pytest.mark.parametrize("call", OF_FEATURES.values(), ids=list(OF_FEATURES))
of_any_features = pytest.mark.parametrize(
    "call", [*OF_FEATURES.values(), *FIRST_ORDER.values()], ids=[*OF_FEATURES, *FIRST_ORDER]
)
only_spectral = pytest.mark.parametrize(
    "call",
    [call for name, call in OF_A_MATRIX.items() if not name.lower().startswith("elementwise")],
    ids=[name for name in OF_A_MATRIX if not name.lower().startswith("elementwise")],
)


def _features(*leading: int) -> Tensor:
    return torch.rand(*leading, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _matrix(*leading: int) -> Tensor:
    return pp.autocorrelation(_features(*leading))


def _refused(call: Callable[[], Any], given: str, advice: str, error: type[Exception] = ValueError) -> None:
    """The call raises an error of ours that says what was given, and what to do."""
    with pytest.raises(error, match=given) as caught:
        call()
    assert isinstance(caught.value, PowerPoolError)
    assert re.search(advice, str(caught.value)), str(caught.value)


# Shapes and dtypes: no values are read, so `check` cannot switch these off.


@of_a_matrix
@pytest.mark.parametrize("shape", [(2, 3), (5, 2, 3), (3,), ()], ids=str)
@pytest.mark.parametrize("check", [None, False])
def test_not_square(call: Call, shape: tuple[int, ...], check: bool | None) -> None:
    given = re.escape(f"got {shape}")
    _refused(lambda: call(torch.rand(shape), check=check), given, r"must be square.*autocorrelation\(features\)")


@of_a_matrix
@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0)], ids=str)
def test_matrix_without_channels(call: Call, shape: tuple[int, ...]) -> None:
    _refused(lambda: call(torch.rand(shape)), re.escape(f"got shape {shape}"), "at least one channel, C >= 1")


@of_any_features
@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (2, 4, 0)], ids=str)
def test_features_without_channels_or_locations(call: Call, shape: tuple[int, ...]) -> None:
    _refused(lambda: call(torch.rand(shape)), re.escape(f"got shape {shape}"), "C >= 1 and N >= 1.*drop it")


@of_any_features
def test_features_without_locations_dimension(call: Call) -> None:
    _refused(lambda: call(torch.rand(4)), r"got \(4,\)", r"shape \(\*, C, N\).*flatten\(-2\)")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize(
    "call",
    [*OF_A_MATRIX.values(), *OF_FEATURES.values(), *FIRST_ORDER.values()],
    ids=[*(f"matrix-{name}" for name in OF_A_MATRIX), *OF_FEATURES, *FIRST_ORDER],
)
def test_dtype_that_is_not_floating(call: Call, dtype: torch.dtype) -> None:
    given = torch.ones(4, 4).to(dtype)
    _refused(lambda: call(given), re.escape(f"got {dtype}"), r"floating-point dtype.*\.float\(\)", TypeError)


@pytest.mark.parametrize(
    "call",
    [*OF_A_MATRIX.values(), *OF_FEATURES.values(), *FIRST_ORDER.values()],
    ids=[*(f"matrix-{name}" for name in OF_A_MATRIX), *OF_FEATURES, *FIRST_ORDER],
)
def test_not_a_tensor(call: Call) -> None:
    _refused(lambda: call([[1.0, 0.0], [0.0, 1.0]]), "got list", r"torch\.as_tensor", TypeError)


# Values of matrices.


@only_spectral
def test_not_symmetric(call: Call) -> None:
    given = _matrix(3)
    given[1, 0, 2] += 0.25
    _refused(lambda: call(given), r"differ from their mirror by 0\.25", r"\(matrix \+ matrix\.mT\) / 2")


@only_spectral
def test_large_matrix_in_the_batch_does_not_hide_an_asymmetric_one(call: Call) -> None:
    given = torch.stack([1e9 * torch.eye(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]])])
    _refused(lambda: call(given), r"mirror by 0\.5, beside a largest entry of 1\)", "Symmetrise it")


@only_spectral
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_asymmetry_of_round_off_is_averaged_away(call: Call, dtype: torch.dtype) -> None:
    features = _features(2).to(dtype)
    given = features @ features.mT
    given[:, 0, 1] *= 1 + 2 * torch.finfo(dtype).eps
    torch.manual_seed(0)
    result = call(given)
    torch.manual_seed(0)  # the jitter of both
    expected = call(((given.double() + given.double().mT) / 2).to(max(dtype, torch.float32, key=_digits)))
    torch.testing.assert_close(result, expected.to(dtype), **tolerance(dtype, slack=10))


def _digits(dtype: torch.dtype) -> float:
    return -torch.finfo(dtype).eps


POSITIVE_ONLY = [pp.Gamma(0.5), pp.Gamma(2), pp.MaxExp(7), pp.MaxExp(2.5), pp.HDP(0.1), pp.FAHDP(0.3), pp.FAHDP(2.3)]


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_spectrum(curve: pp.Curve) -> None:
    vectors = torch.linalg.qr(_features()[:, :4])[0]
    indefinite = (vectors * torch.tensor([4.0, 3.0, 2.0, -1.0], dtype=torch.float64)) @ vectors.mT
    indefinite = (indefinite + indefinite.mT) / 2
    seen = -1 / 8 if curve.trace_normalize else -1  # the trace is 8
    given = rf"{type(curve).__name__} .*got {seen:g}, beside"
    _refused(lambda: pp.spectral(indefinite, curve, "eigen"), given, "AsinhE or SigmE")
    _refused(lambda: pp.spectral(torch.stack([1e9 * torch.eye(4), indefinite]), curve, "eigen"), "got -", "AsinhE")
    shifted = indefinite + torch.eye(4) * (1 - 1e-9)  # below 0 by round-off only
    assert torch.isfinite(pp.spectral(shifted, curve, "eigen")).all()


def test_eigenvalues_above_one_after_division_by_the_trace() -> None:
    given = torch.diag(torch.tensor([3.0, -1.0]))
    for curve in (pp.SignedMaxExp(5), pp.MaxExp(5)):
        _refused(lambda curve=curve: pp.spectral(given, curve, "eigen"), r"got (1\.5|-0\.5)", "AsinhE or SigmE")


@pytest.mark.parametrize("curve", [pp.AsinhE(3.0), pp.SigmE(5.0), pp.SigmE(5.0, trace_normalize=False)], ids=str)
def test_indefinite_matrix_is_fine_for_curves_of_both_signs(curve: pp.Curve) -> None:
    values = torch.tensor([3.0, 1.0, -1.5], dtype=torch.float64)
    scale = 2.5 + 1e-6 if curve.trace_normalize else 1.0
    result = pp.spectral(torch.diag(values), curve)
    torch.testing.assert_close(result, torch.diag(curve.value(values / scale)), **tolerance(torch.float64))


@pytest.mark.parametrize("curve, solver", [(pp.MaxExp(7), "squaring"), (pp.Gamma(0.5), "newton_schulz")])
def test_what_products_can_see_of_a_negative_spectrum(curve: pp.Curve, solver: str) -> None:
    diagonal = torch.diag(torch.tensor([5.0, -1.0, 4.0]))
    _refused(lambda: pp.spectral(diagonal, curve, solver), r"diagonal entry -(0\.125|1)\)", "AsinhE or SigmE")
    entry = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    _refused(lambda: pp.spectral(entry, curve, solver), r"\|M_ij\| larger than sqrt", "AsinhE or SigmE")


@of_a_matrix
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [(1, 1), (0, 2)], ids=["on-the-diagonal", "off-the-diagonal"])
def test_matrix_that_is_not_finite(call: Call, bad: float, place: tuple[int, int]) -> None:
    given = _matrix(3)
    given[1, place[0], place[1]] = given[1, place[1], place[0]] = bad
    count = 1 if place[0] == place[1] else 2
    _refused(lambda: call(given), rf"got {count} NaN or infinite of 48 entries", "check=False to let NaN through")


@of_any_features
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_features_that_are_not_finite(call: Call, bad: float) -> None:
    given = _features(3)
    given[1, 2, 3] = bad
    _refused(lambda: call(given), "features must be finite .got 1 NaN or infinite of 72 entries", "check=False")
    _refused(lambda: call(given, check=True), "got 1 NaN", "check=False")


@of_any_features
def test_what_is_masked_out_need_not_be_finite(call: Call) -> None:
    given = _features(3)
    expected = call(given[..., :5])
    given[..., 5] = torch.nan
    result = call(given, mask=torch.tensor([True] * 5 + [False]))
    torch.testing.assert_close(result, expected, **tolerance(torch.float64))


@pytest.mark.parametrize("call", [call for name, call in OF_FEATURES.items() if name != "autocorrelation"])
def test_coordinates_that_are_not_finite(call: Call) -> None:
    grid = pp.spatial_coordinates(2, 3, pivots=2)
    grid[0, 0] = torch.nan
    _refused(lambda: call(_features(2), coordinates=grid), "coordinates must be finite .got 1 NaN", "check=False")
    assert call(_features(2), coordinates=grid, check=False).isnan().all()


SECOND_ORDER = {name: call for name, call in OF_FEATURES.items() if name != "autocorrelation"}


@pytest.mark.parametrize("call", SECOND_ORDER.values(), ids=list(SECOND_ORDER))
def test_features_whose_moment_overflows(call: Call) -> None:
    given = _features(3).float()
    expected = call(given, check=False)
    given[1] *= 1e25
    message = "overflows torch.float32 .got features up to 9.*e.24"
    _refused(lambda: call(given), message, "Scale them down, or use float64")
    result = call(given, check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], expected[::2], **tolerance(torch.float32))
    assert torch.isfinite(call(given.double())).all()


@pytest.mark.parametrize("name", ["elementwise", "eigen", "squaring"])
def test_matrix_whose_trace_overflows(name: str) -> None:
    given = torch.stack([torch.eye(4), 1.5e38 * torch.eye(4)])
    message = r"trace overflows torch\.float32 .got entries up to 1\.5e.38"
    _refused(lambda: OF_A_MATRIX[name](given), message, "Scale it down, or use float64")
    result = OF_A_MATRIX[name](given, check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[0], OF_A_MATRIX[name](given[0]), **tolerance(torch.float32))


NORMALIZED = [pp.MaxExp(7), pp.SignedMaxExp(7), pp.SigmE(5.0), pp.HDP(0.1), pp.FAHDP(0.3)]


@pytest.mark.parametrize("operator", [pp.elementwise, pp.spectral], ids=["elementwise", "spectral"])
@pytest.mark.parametrize("curve", NORMALIZED, ids=str)
def test_trace_that_is_not_positive(operator: Call, curve: pp.Curve) -> None:
    for last, trace in [(-3.0, "-1"), (-2.0, "0")]:
        given = torch.stack([torch.eye(2), torch.diag(torch.tensor([2.0, last]))])
        message = rf"{type(curve).__name__} divides the matrix by its trace, which must be > 0 .got {trace} "
        _refused(lambda given=given: operator(given, curve), message, "AsinhE, or SigmE with trace_normalize=False")
    zero = operator(torch.zeros(2, 3, 3), curve)
    torch.testing.assert_close(zero, torch.zeros(2, 3, 3), rtol=0, atol=0)


@pytest.mark.parametrize("curve", [pp.AsinhE(3.0), pp.SigmE(5.0, trace_normalize=False)], ids=str)
def test_trace_does_not_matter_to_curves_that_do_not_divide_by_it(curve: pp.Curve) -> None:
    given = torch.diag(torch.tensor([2.0, -3.0]))
    torch.testing.assert_close(pp.elementwise(given, curve), curve.value(given))
    torch.testing.assert_close(pp.spectral(given, curve), curve.value(given))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_entries_element_by_element(curve: pp.Curve) -> None:
    given = torch.tensor([[2.0, -1.0], [-1.0, 2.0]], dtype=torch.float64)
    seen = r"-0\.25 to 0\.5" if curve.trace_normalize else "-1 to 2"
    advice = "SignedMaxExp, SigmE or AsinhE; mode='spectral'"
    _refused(lambda: pp.elementwise(given, curve), rf"{type(curve).__name__} needs .*got {seen}\)", advice)
    # What beta-centring gives, through the pool.
    call = lambda: pp.second_order_pool(_features(2), curve, "elementwise", beta=1.0)  # noqa: E731
    _refused(call, r"got -0\.\d+ to", "Beta-centred features")
    by_round_off = torch.tensor([[2.0, -1e-9], [-1e-9, 2.0]], dtype=torch.float64)
    assert torch.isfinite(pp.elementwise(by_round_off, curve)).all()


def test_large_matrix_in_the_batch_does_not_hide_a_negative_entry() -> None:
    given = torch.stack([1e9 * torch.eye(2), torch.tensor([[2.0, -1.0], [-1.0, 2.0]])])
    _refused(lambda: pp.elementwise(given, pp.Gamma(0.5)), "got -1 to", "SignedMaxExp")


def test_entries_beyond_the_trace_element_by_element() -> None:
    given = torch.tensor([[1.0, 9.0], [9.0, 1.0]])
    for curve in (pp.MaxExp(5), pp.SignedMaxExp(5), pp.FAHDP(0.3)):
        _refused(lambda curve=curve: pp.elementwise(given, curve), r"got 0\.5 to 4\.5\)", "take SigmE or AsinhE")


def test_pooled_features_outside_the_domain() -> None:
    given = torch.tensor([[1.0, 3.0], [-4.0, -2.0]])
    advice = "Take SigmE or AsinhE, or bring the features into the domain"
    _refused(
        lambda: pp.first_order_pool(given, pp.MaxExp(5)), r"pooled over locations in \[0, 1\] .got -3 to 2", advice
    )
    _refused(lambda: pp.first_order_pool(given, pp.Gamma(0.5)), r"in \[0, inf\] .got -3 to 2", "AsinhE")
    torch.testing.assert_close(pp.first_order_pool(given, pp.AsinhE(2.0)), torch.tensor([4.0, -6.0]).asinh())


# Masks and coordinates.


@of_any_features
def test_mask_without_a_true_entry(call: Call) -> None:
    mask = torch.tensor([[True] * 6, [False] * 6, [False] * 6])
    message = r"got 2 set\(s\) without a true entry"
    _refused(lambda: call(_features(3), mask=mask), message, "at least one location of every set.*drop it")
    expected = call(_features(3)[:1])
    result = call(_features(3), mask=mask, check=False)
    assert result[1:].isnan().all()
    torch.testing.assert_close(result[:1], expected, **tolerance(torch.float64))


@of_any_features
def test_mask_of_the_wrong_kind(call: Call) -> None:
    given = _features(3)
    _refused(lambda: call(given, mask=torch.ones(6)), r"got torch\.float32", r"boolean.*mask\.bool\(\)", TypeError)
    _refused(lambda: call(given, mask=[True] * 6), "got list", "boolean", TypeError)
    for shape in [(5,), (2, 6), (3, 1, 6)]:
        message = re.escape(f"got {shape} for features of shape (3, 4, 6)")
        _refused(lambda shape=shape: call(given, mask=torch.ones(shape).bool()), message, r"broadcast to .* = \(3, 6\)")


@pytest.mark.parametrize("call", SECOND_ORDER.values(), ids=list(SECOND_ORDER))
def test_wrong_coordinate_count(call: Call) -> None:
    given = _features(2)
    grid = pp.spatial_coordinates(2, 2)
    _refused(lambda: call(given, coordinates=grid), "wrong coordinate count: .*N = 6.*got 4", "spatial_coordinates")
    for shape in [(6,), (2, 4, 6)]:
        message = re.escape(f"got {shape}")
        _refused(lambda shape=shape: call(given, coordinates=torch.rand(shape)), message, r"\(2 Z, N\)")
    _refused(lambda: call(given, coordinates=torch.ones(2, 6).long()), r"got torch\.int64", "float", TypeError)


# Arguments.


@of_features
@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan"), float("inf")])
def test_beta_outside_its_range(call: Call, beta: float) -> None:
    _refused(lambda: call(_features(2), beta=beta), rf"got {beta}\)", r"\[0, 1\].*0 keeps the mean.*1 removes it")


@pytest.mark.parametrize("build", [pp.nn.SecondOrderPool2d, pp.nn.SecondOrderFactor2d])
def test_beta_outside_its_range_of_a_pool(build: Call) -> None:
    _refused(lambda: build(4, beta=2.0), r"got 2\.0\)", "0 keeps the mean")


@pytest.mark.parametrize(
    "call",
    [
        lambda eps: pp.elementwise(_matrix(), "sigme", eps),
        lambda eps: pp.spectral(_matrix(), "maxexp", "eigen", eps),
        lambda eps: pp.second_order_pool(_features(), "maxexp", eps=eps),
        lambda eps: pp.gram_factor(_features(), "maxexp", eps=eps),
    ],
)
@pytest.mark.parametrize("eps", [-1e-6, float("nan")])
def test_negative_eps(call: Call, eps: float) -> None:
    _refused(lambda: call(eps), rf"got {eps}\)", "eps must be >= 0.*1e-6")


@pytest.mark.parametrize(
    "curve, bad, bound",
    [
        (pp.MaxExp, [0.99, 0, -3, float("nan"), float("inf")], "eta >= 1"),
        (pp.SignedMaxExp, [0.5, float("nan")], "eta >= 1"),
        (pp.Gamma, [0, -0.5, float("nan"), float("inf")], "gamma > 0"),
        (pp.AsinhE, [0.0, -2.0], "gamma > 0"),
        (pp.SigmE, [0.0, -2.0], "eta > 0"),
        (pp.HDP, [0.0, -0.1, float("nan")], "t > 0"),
        (pp.FAHDP, [0.0, -0.1, float("inf")], "t > 0"),
    ],
)
def test_parameter_outside_its_range(curve: Call, bad: list[float], bound: str) -> None:
    for number in bad:
        advice = f"{curve.__name__} needs .*{bound}"
        _refused(lambda number=number: curve(number), rf"\(got {number}\)", advice)
        given = torch.tensor(float(number))
        for tensor in (given, nn.Parameter(given)):
            _refused(lambda tensor=tensor: curve(tensor), re.escape(f"(got {tensor.item()})"), advice)
    _refused(lambda: curve("many"), "got str", "as a number or a tensor")
    _refused(lambda: curve(True), "got bool", "as a number or a tensor")
    _refused(lambda: curve(torch.tensor(2)), r"got torch\.int64", r"\.float\(\)", TypeError)


def _ways_to_name_a_solver(curve: pp.Curve | str, solver: str) -> list[Callable[[], Any]]:
    return [
        lambda: pp.spectral(_matrix(), curve, solver),
        lambda: pp.nn.SpectralPowerNorm(curve, solver),
        lambda: pp.second_order_pool(_features(), curve, solver=solver),
        lambda: pp.nn.SecondOrderPool2d(4, curve, solver=solver),
        lambda: pp.nn.RelationDescriptor(curve, "spectral", solver=solver),
    ]


def test_squaring_without_an_integer_power() -> None:
    for curve in (pp.MaxExp(2.5), pp.Gamma(0.5), pp.SigmE(5.0), pp.FAHDP(0.3, "identity"), pp.SignedMaxExp(5)):
        for call in _ways_to_name_a_solver(curve, "squaring"):
            _refused(call, re.escape(f"'squaring' cannot take {curve}"), "integer eta.*solver='eigen', or 'gram'")


def test_newton_schulz_with_another_curve() -> None:
    for curve in (pp.Gamma(0.3), pp.Gamma(1), pp.MaxExp(5), pp.SigmE(5.0)):
        for call in _ways_to_name_a_solver(curve, "newton_schulz"):
            _refused(
                call, re.escape(f"'newton_schulz' cannot take {curve}"), r"Gamma\(gamma=0\.5\)\. Use solver='eigen'"
            )


def test_gram_without_features() -> None:
    for call in _ways_to_name_a_solver("maxexp", "gram")[:2]:
        _refused(call, "'gram' needs features, not a matrix", "second_order_pool.*'eigen' or 'squaring'")
    _refused(lambda: pp.spectral(_matrix(), "maxexp", pp.solvers.Gram()), "needs features", "second_order_pool")


def test_unknown_solver() -> None:
    calls = [
        *_ways_to_name_a_solver("maxexp", "svd"),
        lambda: pp.second_order_pool(_features(), None, solver="svd"),
        lambda: pp.second_order_pool(_features(), "sigme", "elementwise", solver="svd"),
        lambda: pp.nn.SecondOrderPool2d(4, solver="svd"),
        lambda: pp.nn.SecondOrderPool2d(4, "sigme", "elementwise", solver="svd"),
        lambda: pp.solvers.resolve("svd"),
    ]
    choices = ", ".join(f"'{name}'" for name in ("auto", "eigen", "squaring", "gram", "newton_schulz", "jitter"))
    for call in calls:
        _refused(call, "Unknown solver 'svd'", f"choose one of {choices}")


def test_unknown_curve() -> None:
    choices = ", ".join(f"'{name}'" for name in pp.curves.CURVES)
    calls = [
        *(call for call in _ways_to_name_a_solver("maxepx", "auto")),
        lambda: pp.elementwise(_matrix(), "maxepx"),
        lambda: pp.first_order_pool(_features(), "maxepx"),
        lambda: pp.gram_factor(_features(), "maxepx"),
        lambda: pp.nn.ElementwisePowerNorm("maxepx"),
        lambda: pp.nn.FirstOrderPool2d(4, "maxepx"),
        lambda: pp.nn.SecondOrderFactor2d(4, "maxepx"),
        lambda: pp.curves.resolve("maxepx"),
    ]
    for call in calls:
        _refused(call, "Unknown curve 'maxepx'", f"choose one of {choices}")
    _refused(lambda: pp.elementwise(_matrix(), 3.0), "got float", "a powerpool curve or its name", TypeError)


def test_unknown_mode_reduction_and_rounding() -> None:
    for call in (
        lambda: pp.second_order_pool(_features(), "sigme", "entrywise"),
        lambda: pp.nn.SecondOrderPool2d(4, "sigme", "entrywise"),
        lambda: pp.nn.RelationDescriptor("sigme", "entrywise"),
    ):
        _refused(call, "Unknown mode 'entrywise'", "choose one of 'elementwise', 'spectral'")
    for call in (
        lambda: pp.first_order_pool(_features(), reduce="median"),
        lambda: pp.nn.FirstOrderPool2d(4, reduce="median"),
    ):
        _refused(call, "Unknown reduction 'median'", "choose one of 'mean', 'max'")
    _refused(lambda: pp.FAHDP(0.3, "floor"), "Unknown rounding 'floor'", "'identity', 'round', 'ceil'")


# Checks off: NaN out for exactly the bad ones, and nothing else changes.


def _spoil(batch: Tensor, bad: float, symmetric: bool) -> Tensor:
    """A copy with one bad entry on the diagonal of the second, and one off the diagonal of the fourth."""
    spoiled = batch.clone()
    spoiled[1, 1, 1] = spoiled[3, 0, 2] = bad
    if symmetric:
        spoiled[3, 2, 0] = bad
    return spoiled


@pytest.mark.parametrize(
    "call, given, symmetric",
    [
        *(pytest.param(call, _matrix(5), True, id=f"matrix-{name}") for name, call in OF_A_MATRIX.items()),
        *(pytest.param(call, _features(5), False, id=name) for name, call in OF_FEATURES.items()),
    ],
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_not_finite_gives_nan_for_its_own_matrix_alone(call: Call, given: Tensor, symmetric: bool, bad: float) -> None:
    leaves = [leaf.requires_grad_() for leaf in (given.clone(), _spoil(given, bad, symmetric))]
    results = []
    for leaf in leaves:
        torch.manual_seed(0)  # the noise of jitter
        result = call(leaf, check=False)
        result[::2].square().sum().backward()
        results.append(result.detach())
    assert results[1][1::2].isnan().all()
    torch.testing.assert_close(results[1][::2], results[0][::2], **tolerance(torch.float64))
    torch.testing.assert_close(leaves[1].grad[::2], leaves[0].grad[::2], **tolerance(torch.float64))


@pytest.mark.parametrize("curve", pp.curves.CURVES.values(), ids=list(pp.curves.CURVES))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_every_curve_lets_nan_through(curve: Call, bad: float) -> None:
    given = _spoil(_matrix(5), bad, symmetric=True)
    features = _spoil(_features(5), bad, symmetric=False)
    for result in (
        pp.elementwise(given, curve(), check=False),
        pp.spectral(given, curve(), "eigen", check=False),
        pp.second_order_pool(features, curve(), "elementwise", check=False),
        pp.second_order_pool(features, curve(), solver="eigen", check=False),
        pp.second_order_pool(features, curve(), solver="gram", check=False),
    ):
        assert result[1::2].isnan().all()
        assert torch.isfinite(result[::2]).all()


@pytest.mark.parametrize("call", FIRST_ORDER.values(), ids=list(FIRST_ORDER))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_first_order_gives_nan_for_its_own_channel_alone(call: Call, bad: float) -> None:
    given = _features(2)
    expected = call(given)
    given[0, 1, 2] = given[1, 3, 0] = bad
    result = call(given, check=False)
    assert result.isnan().sum() == 2
    assert result[0, 1].isnan()
    assert result[1, 3].isnan()
    good = ~result.isnan()
    torch.testing.assert_close(result[good], expected[good], **tolerance(torch.float64))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
@pytest.mark.parametrize("values", [(2.0, 3.0, -1.0), (-1.0, -2.0, -3.0)], ids=["indefinite", "negative"])
def test_negative_spectrum_gives_nan_where_checks_are_off(curve: pp.Curve, values: tuple[float, ...]) -> None:
    vectors = torch.linalg.qr(_features()[:3, :3])[0]
    bad = (vectors * torch.tensor(values, dtype=torch.float64)) @ vectors.mT
    given = torch.stack([torch.eye(3, dtype=torch.float64), (bad + bad.mT) / 2])
    result = pp.spectral(given, curve, "eigen", check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[0], pp.spectral(given[0], curve, "eigen"), **tolerance(torch.float64))


@pytest.mark.parametrize("curve", NORMALIZED, ids=str)
def test_negative_trace_gives_nan_where_checks_are_off(curve: pp.Curve) -> None:
    given = torch.stack([torch.eye(2), torch.diag(torch.tensor([2.0, -3.0]))])
    for operator in (pp.elementwise, pp.spectral):
        result = operator(given, curve, check=False)
        assert result[1].isnan().all()
        torch.testing.assert_close(result[0], operator(given[0], curve), **tolerance(torch.float32))


# When values are read.


def test_values_are_read_on_the_cpu_only() -> None:
    cpu, elsewhere = torch.ones(1), torch.ones(1, device="meta")
    assert [values_are_checked(cpu, check) for check in (True, False, None)] == [True, False, True]
    assert [values_are_checked(elsewhere, check) for check in (False, None)] == [False, False]
    with FakeTensorMode():
        fake = torch.ones(1)
        assert [values_are_checked(fake, check) for check in (False, None)] == [False, False]
    for valueless in (elsewhere, fake):
        _refused(lambda tensor=valueless: values_are_checked(tensor, True), "do not exist in meta", "check=None")


@pytest.mark.parametrize("name", [name for name in OF_A_MATRIX if name != "jitter"])  # jitter looks at eigenvalues
def test_matrices_without_values(name: str) -> None:
    call = OF_A_MATRIX[name]
    assert call(torch.empty(2, 4, 4, device="meta")).shape == (2, 4, 4)
    with FakeTensorMode():
        assert call(torch.empty(2, 4, 4)).shape == (2, 4, 4)
    _refused(lambda: call(torch.empty(2, 4, 4, device="meta"), check=True), "do not exist in meta", "check=None")


@of_any_features
def test_features_without_values(call: Call) -> None:
    assert call(torch.empty(2, 4, 6, device="meta")).shape[:2] == (2, 4)
    with FakeTensorMode():
        mask = torch.ones(6, dtype=torch.bool)
        assert call(torch.empty(2, 4, 6), mask=mask).shape[:2] == (2, 4)
    _refused(lambda: call(torch.empty(2, 4, 6, device="meta"), check=True), "do not exist in meta", "check=None")


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
@of_any_features
def test_no_values_are_read_under_a_transform(call: Call, transform: Call) -> None:
    given = _features(2)
    given[1, 0, 0] = torch.nan
    transform(call)(given)  # check=None: no error
    _refused(
        lambda: transform(lambda f: call(f, check=True))(given), "torch.func transform", "check=None .* or check=False"
    )


def test_nan_stays_in_its_own_set_under_vmap() -> None:
    given = _features(3)
    given[1, 0, 0] = torch.nan
    for name, call in OF_FEATURES.items():
        result = torch.func.vmap(call)(given)
        assert result[1].isnan().all(), name
        torch.testing.assert_close(result[::2], call(given[::2]), **tolerance(torch.float64))


# With checks off, what lies outside a domain is NaN, never a number that looks like an answer.


@pytest.mark.parametrize(
    "curve", [pp.MaxExp(50), pp.MaxExp(2.5), pp.Gamma(3), pp.Gamma(0.5), pp.HDP(0.1), pp.FAHDP(0.1)], ids=str
)
def test_elementwise_entries_outside_the_domain_become_nan(curve: pp.Curve) -> None:
    matrix = torch.tensor([[[2.0, -1.0], [-1.0, 2.0]], [[2.0, 1.0], [1.0, 2.0]]])
    result = pp.elementwise(matrix, curve, check=False)
    assert torch.equal(torch.isnan(result[0]), torch.tensor([[False, True], [True, False]]))
    torch.testing.assert_close(result[1], pp.elementwise(matrix[1], curve))


def test_round_off_gives_the_same_number_with_and_without_checks() -> None:
    matrix = torch.tensor([[1.0, -1e-9], [-1e-9, 1.0]])
    for curve in (pp.Gamma(0.5), pp.MaxExp(50), pp.HDP(0.1)):
        checked, unchecked = (pp.elementwise(matrix, curve, eps=0.0, check=check) for check in (True, False))
        assert torch.equal(checked, unchecked)
        assert torch.isfinite(checked).all()


def test_first_order_features_outside_the_domain_become_nan() -> None:
    features = torch.tensor([[-0.5, -0.4], [0.2, 0.3]])
    result = pp.first_order_pool(features, pp.MaxExp(5), check=False)
    assert torch.equal(torch.isnan(result), torch.tensor([True, False]))


@pytest.mark.parametrize("operator", [pp.elementwise, pp.spectral], ids=["elementwise", "spectral"])
def test_a_trace_that_cannot_normalise_gives_nan(operator: Any) -> None:
    matrices = torch.stack([torch.tensor([[0.0, 1.0], [1.0, 0.0]]), -torch.eye(2), torch.zeros(2, 2), torch.eye(2)])
    result = operator(matrices, pp.SigmE(5.0), check=False)
    assert torch.isnan(result[:2]).all()
    assert torch.equal(result[2], torch.zeros(2, 2))
    torch.testing.assert_close(result[3], operator(torch.eye(2), pp.SigmE(5.0)))


def test_an_indefinite_matrix_that_squaring_can_see_only_in_its_result() -> None:
    matrix = torch.full((3, 3), -0.9).fill_diagonal_(1.0)  # |M_ij| < sqrt(M_ii M_jj), and an eigenvalue of -0.8
    with pytest.raises(ValueError, match=r"positive semi-definite.*AsinhE or SigmE"):
        pp.spectral(matrix, pp.MaxExp(50))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("solver", ["eigen", "squaring"])
def test_round_off_of_half_precision_matrices_is_no_error(solver: str, dtype: torch.dtype) -> None:
    """A singular moment rounded to half precision has eigenvalues of -1e-3 of the largest."""
    features = torch.rand(2, 64, 16, generator=torch.Generator().manual_seed(0))
    matrix = pp.autocorrelation(features).to(dtype)
    assert torch.linalg.eigvalsh(matrix.float()).min() < -1e-5 * torch.linalg.eigvalsh(matrix.float()).max()
    exact = pp.spectral(matrix.double().clamp(min=0) + 1e-2 * torch.eye(64), pp.MaxExp(10), "eigen")
    for check in (True, False):
        result = pp.spectral(matrix, pp.MaxExp(10), solver, check=check)
        assert torch.isfinite(result).all()
        assert (result.double() - exact).norm() / exact.norm() < 0.2
    if solver == "eigen":
        for curve in (pp.Gamma(0.5), pp.HDP(0.1), pp.FAHDP(0.1)):
            assert torch.isfinite(pp.spectral(matrix, curve, solver)).all()


@pytest.mark.parametrize("scale", [1e-22, 1e-30])
def test_subnormal_moments_are_finite(scale: float) -> None:
    features = (scale * torch.rand(5, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    for curve in (pp.Gamma(0.5), pp.HDP(0.1), pp.MaxExp(50), pp.AsinhE(10.0)):
        for solver in ("eigen", "gram"):
            result = pp.second_order_pool(features, curve, solver=solver)
            assert torch.isfinite(result).all()
            assert torch.isfinite(torch.autograd.grad(result.sum(), features)[0]).all()


def test_moments_that_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match=r"too large.*overflows torch.float32.*1e\+20.*float64"):
        pp.autocorrelation(torch.full((2, 3), 1e20))
    with pytest.raises(ValueError, match=r"too large.*1e\+20"):
        pp.segment_autocorrelation(torch.full((3, 2), 1e20), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("operator", [pp.elementwise, pp.spectral], ids=["elementwise", "spectral"])
def test_power_of_a_negative_trace_is_refused(operator: Any) -> None:
    with pytest.raises(ValueError, match=r"trace_power.*must be > 0 \(got -0.5"):
        operator(torch.diag(torch.tensor([-1.0, 0.5])), pp.AsinhE(10.0), trace_power=0.5)


@pytest.mark.parametrize("options, message", [
    ({"eps": float("inf")}, "eps must be >= 0 and finite"),
    ({"slope": float("nan")}, "trace_power and slope must be finite"),
    ({"trace_power": float("inf")}, "trace_power and slope must be finite"),
])  # fmt: skip
def test_terms_must_be_finite(options: dict[str, float], message: str) -> None:
    for operator in (pp.elementwise, pp.spectral):
        with pytest.raises(ValueError, match=message):
            operator(torch.eye(2), pp.MaxExp(2), **options)


@pytest.mark.parametrize("mode", ["elementwise", "eigen", "squaring", "gram", "newton_schulz"])
def test_gradient_of_a_set_with_nan_is_nan_and_of_the_others_is_not(mode: str) -> None:
    """Nothing is masked: what came from NaN stays NaN, in the value and in the gradient."""
    features = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0))
    features[0, 1, 2] = torch.nan
    features.requires_grad_()
    options = {"mode": "elementwise"} if mode == "elementwise" else {"solver": mode}
    curves = {
        "newton_schulz": [pp.Gamma(0.5)],
        "squaring": [pp.MaxExp(5), pp.Gamma(2)],
    }.get(mode, [pp.MaxExp(5), pp.Gamma(2), pp.Gamma(0.5), pp.AsinhE(10.0), pp.SigmE(5.0, trace_normalize=False)])
    for curve in curves:
        result = pp.second_order_pool(features, curve, check=False, **options)
        (grad,) = torch.autograd.grad(result.sum(), features)
        assert torch.isnan(result[0]).all()
        assert torch.isnan(grad[0]).all()
        assert torch.isfinite(result[1]).all()
        assert torch.isfinite(grad[1]).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("curve", [pp.MaxExp(5), pp.Gamma(2), pp.Gamma(0.5), pp.AsinhE(10.0)], ids=str)
@pytest.mark.parametrize("operator", [pp.elementwise, pp.spectral], ids=["elementwise", "spectral"])
def test_gradient_of_a_matrix_with_nan_is_nan(operator: Any, curve: pp.Curve, bad: float) -> None:
    matrices = torch.eye(3).repeat(2, 1, 1) + 0.1
    matrices[0, 0, 1] = matrices[0, 1, 0] = bad
    matrices.requires_grad_()
    result = operator(matrices, curve, check=False)
    (grad,) = torch.autograd.grad(result.sum(), matrices)
    assert torch.isnan(result[0]).all()
    assert torch.isnan(grad[0]).all()
    assert torch.isfinite(result[1]).all()
    assert torch.isfinite(grad[1]).all()


def test_plain_pooling_marks_what_overflows() -> None:
    features = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0))
    features[0] *= 1e25
    features.requires_grad_()
    result = pp.second_order_pool(features, check=False)
    (grad,) = torch.autograd.grad(result.sum(), features)
    assert torch.isnan(result[0]).all()
    assert torch.isnan(grad[0]).all()
    assert torch.isfinite(grad[1]).all()


@pytest.mark.parametrize("eta", [50, 200, 1000])
def test_rank_one_matrices_of_bfloat16_are_no_false_alarm(eta: int) -> None:
    for seed in range(40):
        features = torch.rand(4, 1, generator=torch.Generator().manual_seed(seed))
        pp.spectral(pp.autocorrelation(features).bfloat16(), pp.MaxExp(eta))


def test_symmetrising_does_not_overflow() -> None:
    torch.testing.assert_close(pp.spectral(torch.eye(2) * 1.96e38, pp.Gamma(0.5)), torch.eye(2) * 1.4e19)


def test_gram_is_not_for_matrices() -> None:
    for call in (
        lambda: pp.spectral(torch.eye(2), pp.MaxExp(2), "gram"),
        lambda: pp.nn.SpectralPowerNorm(pp.MaxExp(2), "gram"),
        lambda: pp.solvers.Gram().apply(torch.eye(2), pp.MaxExp(2), True, 1e-5),
    ):
        with pytest.raises(ValueError, match=r"needs features, not a matrix.*second_order_pool.*'eigen' or 'squaring'"):
            call()


def test_index_on_another_device() -> None:
    with pytest.raises(ValueError, match=r"device of features, cpu \(got meta\)"):
        pp.segment_autocorrelation(torch.rand(3, 2), torch.zeros(3, dtype=torch.int64, device="meta"))


def test_relation_descriptor_takes_a_solver_that_its_mode_does_not_need() -> None:
    pp.nn.RelationDescriptor("sigme", mode="elementwise", solver="squaring")  # never used, so no contradiction
    with pytest.raises(ValueError, match=r"'squaring' cannot take SigmE"):
        pp.nn.RelationDescriptor("sigme", mode="spectral", solver="squaring")
