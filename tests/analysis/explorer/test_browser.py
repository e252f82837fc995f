"""The page in a real browser: it loads without errors, and its plots follow its controls."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import powerpool as pp
from browser import Browser, Page
from powerpool import theory
from powerpool.analysis import Inspection
from powerpool.analysis.explorer import RunSpectra
from powerpool.analysis.measures import effective_rank
from powerpool.tasks.pooling import shares


def traces(page: Page, plot: str) -> list[dict[str, Any]]:
    """Name, x and y of every line of a plot."""
    return page.evaluate(
        f"document.getElementById('{plot}').data"
        ".map(({name, x, y}) => ({name, x: Array.from(x), y: Array.from(y)}))"
    )


def choose(page: Page, name: str, value: str) -> None:
    """Click a radio button or a checkbox."""
    page.evaluate(f"document.querySelector('[name={name}][value={value}]').click()")
    page.settle()


def type_number(page: Page, name: str, text: str) -> None:
    """Type a number into a field, and press Enter."""
    page.evaluate(
        f"(() => {{ const field = document.getElementById('{name}-number'); field.focus(); field.select(); }})()"
    )
    page.send("Input.insertText", text=text)
    page.press("Enter", text="\r")


def number(page: Page, name: str) -> float | None:
    text = page.evaluate(f"document.getElementById('{name}-number').value")
    return float(text) if text else None


def text(page: Page, name: str) -> str:
    return page.evaluate(f"document.getElementById('{name}').textContent")


def is_hidden(page: Page, name: str) -> bool:
    return page.evaluate(f"document.getElementById('{name}').hidden")


def beta_points(a: float, b: float) -> torch.Tensor:
    return torch.from_numpy(stats.beta.ppf((np.arange(500) + 0.5) / 500, a, b))


def screenshot(page: Page) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))


def assert_draws(page: Page, curve: pp.curves.Curve) -> None:
    """The last line of both plots is the curve."""
    for plot, method in (("profile", "value"), ("slope", "derivative")):
        line = traces(page, plot)[-1]
        x, y = line["x"], line["y"]
        known = [place for place, height in enumerate(y) if height is not None]
        expected = getattr(curve, method)(torch.tensor([x[place] for place in known], dtype=torch.float64))
        found = torch.tensor([y[place] for place in known], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-290)
        assert len(known) > 150


@pytest.mark.parametrize("width, dark", [(1400, False), (390, True)])
def test_loads_without_errors_and_is_not_blank(browser: Browser, explorer: Path, width: int, dark: bool) -> None:
    with browser.open(explorer, width, 900, dark=dark) as page:
        page.settle()
        assert page.complaints() == []
        assert page.requests() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # no horizontal scrolling
        pixels = screenshot(page)
        assert (pixels.mean() < 100) == dark
        line = np.array([0x56, 0xB4, 0xE9] if dark else [0x00, 0x72, 0xB2])  # the colour of MaxExp
        assert (np.abs(pixels.astype(int) - line).max(-1) < 8).sum() > 500
        for plot in ("profile", "slope", "spectrum", "sorted"):
            assert page.evaluate(f"document.querySelectorAll('#{plot} .scatterlayer path.js-line').length") >= 2


@pytest.mark.parametrize(
    "name, parameter, value, curve",
    [
        ("maxexp", "eta", "7", pp.MaxExp(7)),
        ("gamma", "gamma", "0.3", pp.Gamma(0.3)),
        ("sigme", "etaPrime", "12.5", pp.SigmE(12.5)),
        ("asinhe", "gammaPrime", "40", pp.AsinhE(40.0)),
        ("hdp", "t", "0.02", pp.HDP(0.02)),
        ("fahdp", "t", "1.7", pp.FAHDP(1.7)),
    ],
)
def test_every_curve_is_drawn_as_in_python(
    used_page: Page, name: str, parameter: str, value: str, curve: pp.curves.Curve
) -> None:
    page = used_page
    choose(page, "curve", name)
    choose(page, "signed", "no")
    type_number(page, parameter, value)
    assert_draws(page, curve)


@pytest.mark.parametrize(
    "name, parameter, curve",
    [
        ("maxexp", "eta", pp.SignedMaxExp(9)),
        ("sigme", "etaPrime", pp.SigmE(9.0)),
        ("asinhe", "gammaPrime", pp.AsinhE(9.0)),
    ],
)
def test_entries_of_both_signs(used_page: Page, name: str, parameter: str, curve: pp.curves.Curve) -> None:
    page = used_page
    choose(page, "curve", name)
    choose(page, "signed", "yes")
    type_number(page, parameter, "9")
    assert_draws(page, curve)
    assert min(traces(page, "profile")[-1]["x"]) == -1
    for other in ("gamma", "hdp"):  # defined for p >= 0 only
        choose(page, "curve", other)
        assert page.evaluate("document.querySelector('[name=signed]:checked').value") == "no"
        assert page.evaluate("document.querySelector('[name=signed][value=yes]').disabled")


def test_keys_move_a_slider_and_the_plots_follow(page: Page) -> None:
    before, first = screenshot(page), traces(page, "spectrum")[-1]["y"]
    page.evaluate("document.getElementById('eta-range').focus()")
    page.press("ArrowLeft", times=12)
    eta = number(page, "eta")
    assert eta is not None
    assert 40 < eta < 49
    assert_draws(page, pp.MaxExp(eta))
    assert traces(page, "spectrum")[-1]["y"] != first
    t = theory.t_of_eta(eta)
    expected = {"t": t, "gamma": theory.gamma_of_t(t), "etaPrime": theory.eta_prime_of_eta(eta)}
    assert {name: number(page, name) for name in expected} == pytest.approx(expected, rel=1e-4)
    assert float(text(page, "time").removeprefix("t = ")) == pytest.approx(t, rel=1e-3)
    after = screenshot(page)
    assert before.shape != after.shape or (before != after).any(-1).sum() > 100
    page.press("Home")
    assert number(page, "eta") == 1  # the identity
    assert_draws(page, pp.MaxExp(1))


def test_linked_curves_can_be_switched_off(page: Page) -> None:
    t = theory.t_of_eta(50.0)
    expected = {
        "Gamma": pp.Gamma(theory.gamma_of_t(t)),
        "SigmE": pp.SigmE(theory.eta_prime_of_eta(50.0)),
        "HDP": pp.HDP(t),
    }
    found = {trace["name"].split(",")[0]: trace for trace in traces(page, "profile")}
    for name, curve in expected.items():
        x, y = (torch.tensor(found[name][axis], dtype=torch.float64) for axis in "xy")
        torch.testing.assert_close(y, curve.value(x), rtol=1e-9, atol=1e-290)
    page.evaluate("document.querySelector('[name=companions]').click()")
    page.settle()
    assert [trace["name"].split(",")[0] for trace in traces(page, "slope")] == ["MaxExp"]


def test_limits_of_the_theorems_are_shown(page: Page) -> None:
    choose(page, "curve", "hdp")
    type_number(page, "t", "2")
    assert number(page, "gamma") == pytest.approx(theory.gamma_of_t(2.0), rel=1e-4)
    assert (number(page, "eta"), number(page, "etaPrime")) == (None, None)
    assert "MaxExp needs η ≥ 1" in text(page, "eta-hint")
    assert_draws(page, pp.HDP(2.0))
    choose(page, "curve", "maxexp")  # starts at the end of its range
    assert number(page, "eta") == 1
    assert "stays at η = 1" in text(page, "message")
    assert number(page, "t") == pytest.approx(theory.t_of_eta(1.0), rel=1e-4)
    type_number(page, "eta", "3")
    assert text(page, "message") == ""
    type_number(page, "t", "2")  # not a value of MaxExp
    assert "stays at η = 1" in text(page, "message")
    assert (number(page, "eta"), number(page, "t")) == (1, pytest.approx(theory.t_of_eta(1.0), rel=1e-4))
    assert_draws(page, pp.MaxExp(1))
    choose(page, "curve", "asinhe")
    assert text(page, "time") == "\N{EN DASH}"
    assert "no theorem" in text(page, "time-note")
    assert is_hidden(page, "links")


@pytest.mark.parametrize("wrong", ["0.5", "", "1e99"])
def test_number_out_of_range(used_page: Page, wrong: str) -> None:
    page = used_page
    choose(page, "curve", "maxexp")
    type_number(page, "eta", "50")
    page.evaluate(
        "(() => { const field = document.getElementById('eta-number'); field.value = "
        f"{json.dumps(wrong)}; field.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    )
    page.settle()
    assert "from 1 to 1·10⁸" in text(page, "message")
    assert number(page, "eta") == 50
    type_number(page, "eta", "8")
    assert text(page, "message") == ""


def test_spectrum_after_the_curve(used_page: Page) -> None:
    page = used_page
    for name, value in (("curve", "maxexp"), ("signed", "no"), ("axis", "linear")):
        choose(page, name, value)
    for name, value in (("a", "0.7"), ("b", "4"), ("eta", "5")):
        type_number(page, name, value)
    points = beta_points(0.7, 4.0)
    after = pp.MaxExp(5).value(points)
    for trace, values in zip(traces(page, "spectrum"), (points, after), strict=True):
        edges = np.array([*trace["x"][::2], trace["x"][-1]])
        np.testing.assert_allclose(edges, np.linspace(0, 1, 41), atol=1e-12)
        np.testing.assert_allclose(trace["y"][::2], np.histogram(values, edges)[0] / 5, atol=1e-9)
    for trace, values in zip(traces(page, "sorted"), (points, after), strict=True):
        np.testing.assert_allclose(trace["y"], values.flip(0) / values.max(), rtol=1e-9)
    ranks = [effective_rank(shares(values)).item() for values in (points, after)]
    found = [float(part) for part in text(page, "rank").split(" → ")]
    assert found == pytest.approx(ranks, rel=5e-3)
    choose(page, "axis", "log")
    edges = traces(page, "spectrum")[0]["x"]
    assert (edges[0], edges[-1]) == (pytest.approx(1e-6), pytest.approx(1))


def test_all_controls_have_names_and_can_be_reached_by_keys(page: Page) -> None:
    names = page.evaluate(
        "[...document.querySelectorAll('input, select, button')].filter((one) => one.offsetParent && !one.disabled)"
        ".map((one) => one.ariaLabel || one.labels?.[0]?.textContent.trim() || one.textContent)"
    )
    assert len(names) > 15
    assert all(names)
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        page.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
    expected = {
        f"{name}-{kind}" for name in ("t", "eta", "gamma", "etaPrime", "a", "b") for kind in ("number", "range")
    }
    assert expected | {"curve", "signed", "companions", "axis"} <= set(reached)


def test_page_of_a_run(browser: Browser, run_explorer: Path, run_spectra: RunSpectra, inspection: Inspection) -> None:
    assert inspection.after is not None
    with browser.open(run_explorer) as page:
        assert run_spectra.title in text(page, "run-box")
        assert page.evaluate("document.title").endswith(run_spectra.title)
        assert page.evaluate("window.hacked") is None
        assert number(page, "eta") == 20
        found = [float(part) for part in text(page, "rank").split(" → ")]
        ranks = [side.effective_rank.mean().item() for side in (inspection.before, inspection.after)]
        assert found == pytest.approx(ranks, rel=5e-3)
        page.evaluate("document.getElementById('use-suggestion').click()")
        page.settle()
        assert number(page, "eta") == inspection.suggestions["spectral"].eta
        choose(page, "curve", "gamma")
        page.evaluate("document.getElementById('use-suggestion').click()")
        page.settle()
        assert number(page, "gamma") == pytest.approx(inspection.suggestions["spectral"].gamma, rel=1e-4)
        page.evaluate("document.getElementById('use-own').click()")
        page.settle()
        assert_draws(page, pp.MaxExp(20))
        choose(page, "source", "beta")
        assert not is_hidden(page, "beta-box")
        assert page.complaints() == []
        assert page.requests() == []
