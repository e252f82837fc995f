"""The formulas of the page, run as JavaScript, against the Python functions."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import powerpool as pp
from powerpool import theory
from powerpool.analysis.measures import effective_rank
from powerpool.tasks.pooling import shares

RELATIVE = 1e-9
Script = Callable[[str], Any]
GENERATOR = np.random.default_rng(0)


def logarithmic(low: float, high: float, count: int = 12) -> list[float]:
    """Both ends, and random numbers between them, uniform in the logarithm."""
    drawn = np.exp(GENERATOR.uniform(math.log(low), math.log(high), count))
    return [low, high, *drawn.tolist()]


POINTS = [0.0, 1e-12, 1e-6, 1e-4, 1 / math.e, 1 - 1e-9, 1.0, *GENERATOR.uniform(0, 1, 40).tolist()]
SIGNED = [*POINTS, *(-p for p in POINTS)]
ETAS = [1.0, 1.5, 50.0, *logarithmic(1, 1e6)]
TIMES = [0.01, 0.5, 1.0, *logarithmic(1e-8, 1e3)]
STEEPNESSES = [50.0, *logarithmic(1e-3, 1e6)]

CASES = {
    "gamma": ("gamma", {}, pp.Gamma, [0.5, 1.0, 2.0, *logarithmic(1e-8, 3e3)], POINTS),
    "maxexp": ("maxexp", {}, pp.MaxExp, ETAS, POINTS),
    "signed maxexp": ("maxexp", {"signed": True}, pp.SignedMaxExp, ETAS, SIGNED),
    "sigme": ("sigme", {}, pp.SigmE, STEEPNESSES, SIGNED),
    "asinhe": ("asinhe", {}, pp.AsinhE, STEEPNESSES, SIGNED),
    "hdp": ("hdp", {}, pp.HDP, TIMES, POINTS),
    **{
        f"fahdp {rounding}": (
            *("fahdp", {"rounding": rounding}),
            *(lambda t, rounding=rounding: pp.FAHDP(t, rounding=rounding), TIMES, POINTS),
        )
        for rounding in ("identity", "round", "ceil")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_curves_and_slopes_match_python(javascript: Script, case: str) -> None:
    name, options, make, parameters, points = CASES[case]
    found = javascript(
        f"(() => {{ const curve = Formulas.curve({json.dumps(name)}, {json.dumps(options)});"
        f"const at = (formula) => {json.dumps(parameters)}.map((theta) => {json.dumps(points)}.map((p) => {{"
        "const y = formula(p, theta); return Number.isFinite(y) ? y : String(y); }));"
        "return [at(curve.value), at(curve.slope)]; })()"
    )
    p = torch.tensor(points, dtype=torch.float64)
    for method, rows in zip(("value", "derivative"), found, strict=True):
        for parameter, row in zip(parameters, rows, strict=True):
            expected = getattr(make(parameter), method)(p)
            ours = torch.tensor([float(one) for one in row], dtype=torch.float64)  # also "Infinity"
            place = f"{method} at {parameter}:\n"
            torch.testing.assert_close(ours, expected, rtol=RELATIVE, atol=1e-290, msg=lambda text, at=place: at + text)


LINKS = {
    "tOfEta": (theory.t_of_eta, ETAS),
    "etaOfT": (theory.eta_of_t, TIMES),
    "gammaOfT": (theory.gamma_of_t, TIMES),
    "tOfGamma": (theory.t_of_gamma, TIMES),
    "etaTildeOfT": (theory.eta_tilde_of_t, TIMES),
    "etaPrimeOfEta": (theory.eta_prime_of_eta, ETAS),
    "etaOfEtaPrime": (theory.eta_of_eta_prime, [1.4, 50.0, *logarithmic(1.318, 2e6)]),
}


@pytest.mark.parametrize("name", LINKS)
def test_links_match_python(javascript: Script, name: str) -> None:
    function, values = LINKS[name]
    found = javascript(f"{json.dumps(values)}.map(Formulas.{name})")
    np.testing.assert_allclose(found, [function(value) for value in values], rtol=RELATIVE)


def linked(javascript: Script, name: str, value: float) -> tuple[dict[str, float | None], dict[str, str]]:
    found = javascript(f"Formulas.linked({json.dumps(name)}, {value!r})")
    return found["values"], found["notes"]


@pytest.mark.parametrize(
    "name, value, eta, t",
    [
        ("eta", 1.0, 1.0, theory.t_of_eta(1.0)),
        ("eta", 1e6, 1e6, theory.t_of_eta(1e6)),
        ("t", 1e-8, theory.eta_of_t(1e-8), 1e-8),
        ("t", 0.41, theory.eta_of_t(0.41), 0.41),
        ("gamma", theory.gamma_of_t(0.01), theory.eta_of_t(0.01), 0.01),
        ("etaPrime", 50.0, theory.eta_of_eta_prime(50.0), theory.t_of_eta(theory.eta_of_eta_prime(50.0))),
    ],
)
def test_linked_parameters_follow(javascript: Script, name: str, value: float, eta: float, t: float) -> None:
    values, notes = linked(javascript, name, value)
    expected = {"t": t, "eta": eta, "gamma": theory.gamma_of_t(t), "etaPrime": theory.eta_prime_of_eta(eta)}
    assert values == pytest.approx(expected, rel=RELATIVE)
    assert notes == {}


@pytest.mark.parametrize(
    "name, value, lost",
    [
        ("t", 0.42, {"eta", "etaPrime"}),  # eta(t) < 1
        ("gamma", 3.0, {"eta", "etaPrime"}),
        ("etaPrime", 2.0, {"t", "eta", "gamma"}),  # eta < 1
        ("etaPrime", 1.317, {"t", "eta", "gamma"}),  # no eta
    ],
)
def test_no_value_where_a_theorem_does_not_apply(javascript: Script, name: str, value: float, lost: set[str]) -> None:
    values, notes = linked(javascript, name, value)
    assert {key for key, found in values.items() if found is None} == lost == set(notes)
    assert all("η ≥ 1" in note or "1.317" in note for note in notes.values())
    assert values[name] == value


@pytest.mark.parametrize("a, b", [(2.0, 10.0), (0.1, 5.0), (20.0, 0.2), (100.0, 100.0)])
def test_quantiles_of_beta_spectra(javascript: Script, a: float, b: float) -> None:
    found = javascript(f"Array.from(Formulas.betaQuantiles({a}, {b}, 200))")
    np.testing.assert_allclose(found, stats.beta.ppf((np.arange(200) + 0.5) / 200, a, b), rtol=RELATIVE)


def test_effective_rank_matches_python(javascript: Script) -> None:
    values = [0.5, -0.3, 0.1, 0.0, 1e-9]
    found = javascript(f"[Formulas.effectiveRank({values}), Formulas.effectiveRank([0, 0])]")
    assert found[0] == pytest.approx(
        effective_rank(shares(torch.tensor(values, dtype=torch.float64))).item(), rel=1e-12
    )
    assert found[1] == 0  # not NaN: a curve may map all to 0


def test_histograms_count_all_values(javascript: Script) -> None:
    values, edges = GENERATOR.uniform(0, 1, 300).tolist(), np.linspace(0, 1, 11).tolist()
    values += [0.0, 1.0, edges[3]]
    found = javascript(f"Array.from(Formulas.histogram({values}, {edges}))")
    expected = 100 * np.histogram(values, edges)[0] / len(values)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    beyond = javascript(f"Array.from(Formulas.histogram([-1, 2], {edges}))")
    assert (beyond[0], beyond[-1]) == (50, 50)
