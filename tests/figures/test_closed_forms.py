"""The CSV of every computed figure against formulas in NumPy and SciPy; links are tested in tests/theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from powerpool.figures import drawing
from powerpool.figures.registry import make_figure
from powerpool.theory import eta_bar_of_t as eta_bar
from powerpool.theory import eta_of_t, t_of_eta, t_of_eta_bar
from powerpool.theory import eta_tilde_of_t as eta_tilde
from tests.figures import tables

E = math.e


def maxexp(p, eta):
    return 1 - (1 - p) ** eta


def hdp(p, t):
    with np.errstate(divide="ignore"):
        return np.exp(-t / np.asarray(p))


def fahdp(p, t):
    return math.exp(-t) * (maxexp(p, eta_tilde(t)) if t < 1 else p**t)


def meets_hdp_again(t):
    """Where the line through FAHDP's points at t and t eta-bar meets HDP for the second time."""
    y1 = t * eta_bar(t)
    slope = (fahdp(t / y1, t) - math.exp(-t)) / (y1 - t)
    return optimize.brentq(lambda y: math.exp(-t) + slope * (y - t) - math.exp(-y), y1, 5)


def line_above(y):
    return 1 - (E - 1) / E * y


CLOSED = {
    "curves": {
        ("Gamma and AsinhE", "Gamma, gamma = 0.5"): np.sqrt,
        ("Gamma and AsinhE", "AsinhE, gamma' = 10"): lambda p: np.log(10 * p + np.sqrt(1 + 100 * p**2)),
        ("MaxExp and SigmE", "MaxExp, eta = 10"): lambda p: maxexp(p, 10),
        ("MaxExp and SigmE", "MaxExp(+-), eta = 10"): lambda p: np.sign(p) * maxexp(abs(p), 10),
        ("MaxExp and SigmE", "SigmE, eta' = 10"): lambda p: 2 / (1 + np.exp(-10 * p)) - 1,
    },
    "derivatives": {
        ("", "Gamma, gamma = 0.5"): lambda p: 0.5 / np.sqrt(p),
        ("", "AsinhE, gamma' = 10"): lambda p: 10 / np.sqrt(1 + 100 * p**2),
        ("", "MaxExp, eta = 10"): lambda p: 10 * (1 - p) ** 9,
        ("", "SigmE, eta' = 10"): lambda p: 20 * np.exp(-10 * p) / (1 + np.exp(-10 * p)) ** 2,
    },
    "gammas": {
        **{("", f"Gamma, gamma = {g:g}"): lambda p, g=g: p**g for g in (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)},
        ("", "MaxExp, eta = 10"): lambda p: maxexp(p, 10),
    },
    "hdp": {("", f"HDP, t = {t:g}"): lambda p, t=t: hdp(p, t) for t in (0.01, 0.05, 0.1, 0.3, 1.0)},
    "hdp-bounds": {
        key: value
        for t in (0.02, 0.1)
        for key, value in {
            (f"t = {t}", f"Gamma, gamma = e t = {E * t:.3g}"): lambda p, t=t: p ** (E * t),
            (f"t = {t}", f"MaxExp, eta(t) = {eta_of_t(t):.3g}"): lambda p, t=t: maxexp(p, eta_of_t(t)),
            (f"t = {t}", f"HDP, t = {t}"): lambda p, t=t: hdp(p, t),
        }.items()
    },
    "kappa": {
        **{
            ("J = 0 is classification", f"N = {n}"): lambda j, n=n: ((j + 1) * n + 1) / (j + 2)
            for n in (25, 100, 361, 2916)
        },
        **{
            ("N grows with the size of images", f"J = {j}"): lambda n, j=j: n - (n - 1) / (j + 2) for j in (0, 1, 5, 20)
        },
    },
    "y-of-eta": {("", "y(eta)"): lambda eta: E / (E - 1) * (eta / (eta + 1)) ** eta},
    "bounds": {
        ("reparametrised", "HDP, exp(-y)"): lambda y: np.exp(-y),
        ("reparametrised", "line, (1/e - 1)y + 1"): line_above,
        ("reparametrised", "MaxExp, eta = 3, t = t(eta)"): lambda y: maxexp(t_of_eta(3) / y, 3),
        ("reparametrised", "MaxExp, eta = 3, t = 1.5 t(eta)"): lambda y: maxexp(1.5 * t_of_eta(3) / y, 3),
    },
    "bounds-zoom": {
        ("zoom, in lambda", "HDP, t = t(eta)"): lambda p: hdp(p, t_of_eta(3)),
        ("zoom, in lambda", "line, (1/e - 1)t/lambda + 1"): lambda p: line_above(t_of_eta(3) / p),
        ("zoom, in lambda", "MaxExp, eta = 3, t = t(eta)"): lambda p: maxexp(p, 3),
        ("zoom, in lambda", "MaxExp(1.5 lambda), eta = 3"): lambda p: maxexp(1.5 * p, 3),
    },
    "fahdp-scaled": {
        ("t = 0.4", "HDP, exp(-y)"): lambda y: np.exp(-y),
        ("t = 0.4", "line, (1/e - 1)y + 1"): line_above,
        ("t = 0.4", f"scaled MaxExp, eta-bar(t) = {eta_bar(0.4):.3g}"): lambda y: (
            line_above(0.4) * maxexp(0.4 / y, eta_bar(0.4))
        ),
        ("t = 0.4", "scaled MaxExp, 2 eta-bar(t)"): lambda y: line_above(0.4) * maxexp(0.4 / y, 2 * eta_bar(0.4)),
    },
    "fahdp-line": {
        ("t = 0.4", "scaled MaxExp"): lambda y: line_above(0.4) * maxexp(0.4 / y, eta_tilde(0.4)),
        ("t = 0.4", "FAHDP, rounding identity"): lambda y: fahdp(0.4 / y, 0.4),
        # Through FAHDP's points at y0 = t and y1 = t eta-bar, whatever the formulas of a and b.
        ("t = 0.4", "line, a y + b"): lambda y: (
            math.exp(-0.4) + (fahdp(1 / eta_bar(0.4), 0.4) - math.exp(-0.4)) / (0.4 * eta_bar(0.4) - 0.4) * (y - 0.4)
        ),
        ("t = 0.4", "HDP, exp(-y)"): lambda y: np.exp(-y),
    },
    "y-of-eta-bar": {("", "y1(eta-bar) = eta-bar t(eta-bar)"): lambda eta: eta * t_of_eta_bar(eta)},
    "fahdp": {
        key: value
        for t in (0.05, 0.2, 0.5, 1.0, 1.5, 3.0)
        for panel in ["t < 1: a scaled MaxExp" if t < 1 else "t >= 1: a scaled Gamma"]
        for key, value in {
            (panel, f"HDP, t = {t:g}"): lambda p, t=t: hdp(p, t),
            (panel, f"FAHDP, t = {t:g}, identity"): lambda p, t=t: fahdp(p, t),
        }.items()
    },
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a figure once, without images, and return the path of its CSV."""
    folder, done = tmp_path_factory.mktemp("figures"), {}

    def write(name):
        if name not in done:
            done[name] = drawing.write_figure(make_figure(name), folder / name)[2]
        return done[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "save", lambda *_, **__: None)
        yield write


@pytest.mark.parametrize("name", CLOSED)
def test_every_line_follows_its_formula(name, written):
    found = tables.lines(written(name))
    assert found.keys() == CLOSED[name].keys()
    for key, expected in CLOSED[name].items():
        x, y = found[key]
        assert len(x) >= 20
        assert (np.diff(x) > 0).all()
        np.testing.assert_allclose(y, expected(x), rtol=1e-9, atol=1e-12, err_msg=str(key))


def test_marks_are_at_the_gaps(written):
    t = t_of_eta(3)
    expected = {
        "bounds": {"y(eta), gap eps2": 4 * t, "1, gap eps1": 1.0},
        "bounds-zoom": {"1/(eta + 1), gap eps2": 0.25, "t(eta), gap eps1": t},
        "y-of-eta": {"1/(e - 1)": 1 / (E - 1), "1": 1.0},
        "y-of-eta-bar": {"1/(e - 1)": 1 / (E - 1), "e/(2(e - 1))": E / (2 * (E - 1))},
        "fahdp-scaled": {
            "y0 = t": 0.4,
            "y1 = t eta-bar(t)": 0.4 * eta_bar(0.4),
            "least y1": 1 / (E - 1),
            "largest y1": E / (2 * (E - 1)),
        },
        "fahdp-line": {"y0 = y2 = t": 0.4, "y1": 0.4 * eta_bar(0.4), "y3": meets_hdp_again(0.4)},
    }
    assert expected.keys() == {name for name in CLOSED if any(panel.marks for panel in make_figure(name).panels)}
    for name, places in expected.items():
        assert tables.marks(written(name)) == pytest.approx(places)


def test_points_of_the_line_by_a_root_finder(written):
    """Instead of Lambert's W."""
    found = tables.lines(written("fahdp-points"))
    times, last = found["", "y3, on HDP"]
    np.testing.assert_allclose(found["", "y2 = y0 = t"][1], times, rtol=1e-6)
    np.testing.assert_allclose(found["", "y1, on FAHDP"][1], times * eta_bar(times), rtol=1e-9)
    for t, y3 in list(zip(times, last, strict=True))[::40]:
        assert y3 == pytest.approx(meets_hdp_again(t), rel=1e-6)


def test_push_forward_of_the_beta_spectrum(written):
    """Densities after a curve from the inverse of the curve and a numerical derivative; their mass is 1."""
    found = tables.lines(written("push-forward"))
    x, before = found["before", "Beta(2, 10)"]
    np.testing.assert_allclose(before, stats.beta.pdf(x, 2, 10), rtol=1e-9)
    t = t_of_eta(20)
    inverses = {
        "MaxExp, eta = 20": lambda y: 1 - (1 - y) ** (1 / 20),
        f"Gamma, gamma = e t = {E * t:.3g}": lambda y: y ** (1 / (E * t)),
        f"HDP, t(eta) = {t:.3g}": lambda y: -t / np.log(y),
    }
    after = {name: line for (panel, name), line in found.items() if panel == "after"}
    assert after.keys() == inverses.keys()
    for name, inverse in inverses.items():
        y, density = after[name]
        inner = (y > 0.3) & (y < 0.95)
        step = 1e-6
        cumulated = [stats.beta.cdf(inverse(y[inner] + side), 2, 10) for side in (-step, step)]
        np.testing.assert_allclose(density[inner], (cumulated[1] - cumulated[0]) / (2 * step), rtol=1e-5)
        if not name.startswith("MaxExp"):  # whose density is infinite at 1
            assert integrate.trapezoid(density, y) == pytest.approx(1, abs=1e-2)


def test_the_variance_of_leading_eigenvalues_rises_and_then_falls(written):
    found = tables.lines(written("variance"))
    ((panel, _), *_) = found
    assert "synthetic spectrum" in panel
    eigenvalues = 1 / np.arange(1, 513)
    eigenvalues /= eigenvalues.sum()
    assert [name for _, name in found] == [f"{count} eigenvalues" for count in (5, 7, 9, 11, 13, 15)]
    for (_, name), (etas, values) in found.items():
        leading = eigenvalues[: int(name.split()[0])]
        np.testing.assert_allclose(values, np.var(maxexp(leading, etas[:, None]), axis=1), rtol=1e-8, atol=1e-15)
        peak = values.argmax()
        assert 0 < peak < len(values) - 1
        assert (np.diff(values[:peak]) > 0).all()
        assert (np.diff(values[peak:]) <= 0).all()
        assert values[-1] < 1e-6 * values[peak]
