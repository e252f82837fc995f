"""Errors in the printed paper (docs/errata.md): every test computes both versions, and the printed one fails."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from scipy import integrate, stats

import powerpool as pp
from powerpool import theory
from tests.theory.grids import F64, E, covariance, symmetric


def test_the_slope_of_maxexp_in_y_has_no_minus():
    """Eq. syst1: d/dy (1 - (1 - a/(eta y))^eta) is + a eta (1 - a/(eta y))^eta / (y (a - eta y)), a negative number."""
    eta, alpha, y = mpf(5), mpf("0.5"), mpf("0.6")
    slope = float(mpmath.diff(lambda v: 1 - (1 - alpha / (eta * v)) ** eta, y))
    printed = float(-alpha * eta * (1 - alpha / (eta * y)) ** eta / (y * (alpha - eta * y)))
    assert slope == pytest.approx(-printed)
    assert slope < 0 < printed
    # With the right sign the printed solution y(eta), alpha(eta) solves the system; with the printed one it does not.
    touch, tied = theory.y_of_eta(5.0), theory.alpha_of_eta(5.0)
    right = tied * 5 * (1 - tied / (5 * touch)) ** 5 / (touch * (tied - 5 * touch))
    assert right == pytest.approx(1 / E - 1)
    assert -right != pytest.approx(1 / E - 1)


@pytest.mark.parametrize("eta", [1.5, 5.0, 50.0])
def test_at_y0_the_scaled_maxexp_crosses_the_line_and_does_not_touch_it(eta):
    """App. P says that y0 = t fulfils both equations of touch_maxexp_scaled2; it fulfils the first."""
    t = theory.t_of_eta_bar(eta)
    scale = 1 - (1 - 1 / E) * t
    assert scale == pytest.approx(theory.auxiliary_line(t))  # the values at y0, where MaxExp is 1
    just_after = t * (1 + 1e-9)
    slope = -scale * eta * (1 - t / just_after) ** (eta - 1) * t / just_after**2
    assert abs(slope) < 0.01
    assert slope != pytest.approx(1 / E - 1, rel=0.5)


@pytest.mark.parametrize("t", [0.1, 0.3, 0.5, 0.9])
def test_the_line_of_app_p_is_not_below_fahdp(t):
    """App. P: a y + b through y1 = t eta-bar is "by design" below FAHDP; it is a chord, and FAHDP dips below it."""
    dips = {}
    for touch in ("eta_bar", "eta_tilde"):
        a, b = theory.fahdp_line(t, touch)
        y = torch.linspace(t, 3, 20001, dtype=F64)
        dips[touch] = (pp.FAHDP(t, "identity").value(t / y) - (a * y + b)).min().item()
    assert -1e-3 < dips["eta_bar"] < -1e-6
    assert dips["eta_tilde"] > -1e-15  # the tangent, at y1 = t eta~


def test_the_gap_of_stirlings_formula_grows():
    """App. P: eta^eta <= eta! e^eta / sqrt(2 pi eta), with a gap that falls; the gap grows, its ratio falls to 1."""
    with mpmath.workdps(40):
        powers = [mpf(n) ** n for n in range(1, 40)]
        upper = [mpmath.factorial(n) * mpmath.e**n / mpmath.sqrt(2 * mpmath.pi * n) for n in range(1, 40)]
    gaps = [high - low for high, low in zip(upper, powers, strict=True)]
    ratios = [high / low for high, low in zip(upper, powers, strict=True)]
    assert all(gap > 0 for gap in gaps)
    assert all(a < b for a, b in itertools.pairwise(gaps))
    assert all(a > b > 1 for a, b in itertools.pairwise(ratios))


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_what_makes_the_factors_normal_densities(sigma):
    """App. L normalises G_{sigma/sqrt 2} by (2/(pi sigma^2))^(1/4): that gives unit energy. (pi sigma^2)^(-1/2) gives
    a density; its variance is sigma^2/2, not sigma/sqrt 2, and that of the sum of two is sigma^2, not sigma."""

    def moment(function, power):
        return integrate.quad(lambda x: x**power * function(x), -12 * sigma, 12 * sigma, points=[0.0])[0]

    def factor(x):
        return math.exp(-(x**2) / sigma**2)

    printed = (2 / (math.pi * sigma**2)) ** 0.25
    right = (math.pi * sigma**2) ** -0.5
    assert right * moment(factor, 0) == pytest.approx(1)
    assert printed * moment(factor, 0) != pytest.approx(1, abs=0.1)
    assert printed**2 * moment(lambda x: factor(x) ** 2, 0) == pytest.approx(1)
    variance = right * moment(factor, 2)
    assert variance == pytest.approx(sigma**2 / 2)
    assert variance != pytest.approx(sigma / math.sqrt(2), rel=0.2)
    assert 2 * variance == pytest.approx(sigma**2)


@pytest.mark.parametrize("sigma", [0.25, 1.0, 3.0])
def test_the_variance_of_the_mixture_is_free(sigma):
    """Theorem sigmoids names N(-1, 2) and N(1, 2): that would fix eta' at 1. It is N(-1, sigma^2), N(1, sigma^2)."""
    x = 0.4
    densities = [stats.norm(mean, sigma).pdf(x) for mean in (-1, 1)]
    difference = (densities[1] - densities[0]) / sum(densities)
    printed = [stats.norm(mean, math.sqrt(2)).pdf(x) for mean in (-1, 1)]
    eta = theory.sigme_eta_of_sigma(sigma)
    assert math.tanh(eta * x / 2) == pytest.approx(difference)
    assert math.tanh(eta * x / 2) != pytest.approx((printed[1] - printed[0]) / sum(printed))


def test_the_coefficient_of_the_signed_sum_has_two_counts():
    """Eq. my_maxexppr22 prints N - n - n' - n'' in its coefficient; there is no n'', and it must be 0."""
    trials, p, q = 4, 0.3, 0.2

    def total(extra: int) -> float:
        result = 0.0
        for n in range(1, trials + 1):
            for m in range(trials - n + 1):
                rest = trials - n - m - extra
                if rest < 0:
                    continue
                ways = math.factorial(trials) / (math.factorial(n) * math.factorial(m) * math.factorial(rest))
                result += ways * (p**n * q**m - p**m * q**n) * (1 - p - q) ** (trials - n - m)
        return result

    assert total(0) == pytest.approx(theory.signed_difference(p, q, trials))
    assert total(1) != pytest.approx(theory.signed_difference(p, q, trials), rel=0.05)


def test_events_are_products_of_two_vectors():
    """MaxExp(+-) sets phi* = phi . phi, which is never negative; it is phi . phi'."""
    first, second = np.array([1, -1, 0, 1]), np.array([-1, -1, 1, -1])
    assert set(first * first) == {0, 1}
    assert (first * second).mean() < 0


def test_heat_starts_from_its_own_state():
    """Eq. heat_maxexp has 1 - v(t) for a vector of nodes; that holds for v_0 = 1 only. It is v_0 - v(t)."""
    matrix, t, step = covariance(3), 0.3, 1e-5
    start = torch.tensor([1.0, 0.5, -0.25], dtype=F64)
    measured = (theory.maxexp_flow(matrix, t + step) - theory.maxexp_flow(matrix, t - step)) @ start / (2 * step)
    state = theory.maxexp_flow(matrix, t) @ start
    values, vectors = torch.linalg.eigh(matrix)
    log = (vectors * torch.log1p(-values)) @ vectors.mT
    torch.testing.assert_close(-theory.eta_slope(t) * log @ (start - state), measured, rtol=1e-6, atol=1e-7)
    assert (-theory.eta_slope(t) * log @ (1 - state) - measured).abs().max() > 0.05
    ones = torch.ones(3, dtype=F64)  # the one start for which it is as printed
    found = theory.maxexp_flow_rate(theory.maxexp_flow(matrix, t), matrix, t) @ ones
    torch.testing.assert_close(found, -theory.eta_slope(t) * log @ (1 - theory.maxexp_flow(matrix, t) @ ones))


def test_limits_are_not_the_identity_on_the_null_space():
    """Sec. 4.3: MaxExp for eta -> inf and M^gamma for gamma -> 0 tend to I; on the null space of M they are 0."""
    matrix = covariance(4, 2)
    null = torch.linalg.eigh(matrix).eigenvectors[:, :2]
    for flow in (theory.maxexp_flow(matrix, 1e-9), theory.gamma_flow(matrix, 1e-9)):
        torch.testing.assert_close(flow @ null, torch.zeros(4, 2, dtype=F64), rtol=0, atol=1e-6)
        assert (flow - torch.eye(4, dtype=F64)).abs().max() > 0.1


def test_a_loopy_laplacian_may_be_singular():
    """Below Theorem heatdiff: "symmetric positive definite due to self-loops"; with fewer locations than channels the
    precision matrix is as singular as M."""
    for rank, zeros in ((None, 0), (2, 2)):
        values = torch.linalg.eigvalsh(theory.loopy_graph(covariance(4, rank)).laplacian)
        assert int((values < 1e-9).sum()) == zeros


def test_equal_in_law_is_not_equal():
    """Few-shot and App. M take X = Y as random variables for the support 2N + 1 and the variance 2 var(X). If X = Y the
    sum is 2X, with N + 1 values and 4 var(X); independence gives what is printed."""
    trials = 5
    counts = np.arange(trials + 1)
    assert len({x + y for x in counts for y in counts}) == 2 * trials + 1
    assert len({2 * x for x in counts}) == trials + 1
    assert np.var(2 * counts) == pytest.approx(4 * np.var(counts))
    assert np.var([x + y for x in counts for y in counts]) == pytest.approx(2 * np.var(counts))


@pytest.mark.parametrize("p", [1e-4, 0.01, 0.2])
def test_a_detection_is_likelier_than_one_co_occurrence(p):
    """App. M gives a detection the probability p; by Theorem cooc it has 1 - (1-p)^N, and the ratio is not 1/N."""
    trials = 100
    detected = stats.bernoulli(1 - (1 - p) ** trials).var() / stats.binom(trials, p).var()
    assert theory.detection_variance_ratio(p, trials) == pytest.approx(detected)
    assert detected != pytest.approx(theory.kappa_prime(trials), rel=0.5)
    assert theory.detection_variance_ratio(1e-9, trials) == pytest.approx(1, abs=1e-6)  # rare events: nothing is gained


def test_the_ratio_of_variances_does_not_depend_on_shots():
    """Few-shot, conclusion (i): App. M, too, shows that MaxExp helps more for J >= 1; its ratio has no J."""
    p, trials = 0.1, 30
    ratios = [
        (shots + 1) * stats.bernoulli(p).var() / ((shots + 1) * stats.binom(trials, p).var()) for shots in (0, 1, 5, 50)
    ]
    assert ratios == pytest.approx([theory.kappa_prime(trials)] * 4)
    assert theory.kappa(5, trials) > 1.5 * theory.kappa(0, trials)  # that of supports has


def test_the_trace_does_not_bound_every_confidence():
    """Eq. adj1 needs kappa >= max_n phi_kn phi_ln; the trace of M is a mean over n, and bounds max M_kl alone."""
    features = torch.tensor([[3.0, 0.0, 0.0]], dtype=F64)
    kappa = pp.autocorrelation(features).trace()
    confidences = features[0] ** 2 / kappa
    assert confidences.max() == 3
    assert pp.autocorrelation(features).max() / kappa <= 1
    assert 1 - torch.prod(1 - confidences) > 1  # no likelihood
    with pytest.raises(ValueError, match="confidences"):
        theory.likelihood_of_any(confidences)


def test_the_derivative_of_an_eigenvector_is_an_outer_product():
    """Eq. eig_der prints d u_ij / dM = u_ij (lambda_j I - M)^+; it is row i of that matrix times u_j."""
    matrix = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]], dtype=F64)
    values, vectors = torch.linalg.eigh(matrix)
    i, j, step = 0, 1, 1e-6
    direction = symmetric(3, seed=3)

    def entry(moved: torch.Tensor) -> float:
        vector = torch.linalg.eigh(moved).eigenvectors[:, j]
        return float(vector[i] * torch.sign(vector @ vectors[:, j]))

    measured = (entry(matrix + step * direction) - entry(matrix - step * direction)) / (2 * step)
    resolvent = torch.linalg.pinv(values[j] * torch.eye(3, dtype=F64) - matrix, rtol=1e-9)
    right = torch.outer(resolvent[i], vectors[:, j])
    assert float((right * direction).sum()) == pytest.approx(measured, rel=1e-5)
    assert float((vectors[i, j] * resolvent * direction).sum()) != pytest.approx(measured, rel=0.1)


def test_the_half_sum_needs_a_symmetric_gradient():
    """App. N: der_maxexp0 "simplifies" to der_maxexp only if the gradient is symmetric; we take its symmetric part."""
    matrix, eta = covariance(3), 3
    base = torch.eye(3, dtype=F64) - matrix
    grad = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=F64)

    def both(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        full = sum(
            torch.linalg.matrix_power(base, n) @ given @ torch.linalg.matrix_power(base, eta - 1 - n)
            for n in range(eta)
        )
        first = given @ base @ base
        return full, first + first.mT + base @ given @ base

    full, half = both((grad + grad.mT) / 2)
    torch.testing.assert_close(full, half)
    torch.testing.assert_close(theory.maxexp_gradient(matrix, grad, eta), half)
    full, half = both(grad)
    assert (full - half).abs().max() > 0.1


def test_leading_variance_may_rise_first():
    """Fig. var1: "as eta increases the variance of the leading eigenvalues decreases"; only after a peak."""
    spectrum = 1.0 / torch.arange(1, 101, dtype=F64) ** 1.5
    spectrum = spectrum / spectrum.sum()
    found = [theory.leading_variance(spectrum, pp.MaxExp(eta), 5).item() for eta in (1, 3, 10, 100, 1000)]
    assert found[0] < found[1]
    assert found[-1] < found[-2] < max(found)
