"""The curve explorer: one HTML file with sliders for the parameters of curves, and plots that follow them.

The file loads nothing. It may have the spectra of a run.

Example:
    >>> from powerpool.analysis.explorer import make_page
    >>> make_page()[:15]
    '<!doctype html>'
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from powerpool import __version__
from powerpool.analysis.result import Inspection
from powerpool.curves import FAHDP, HDP, AsinhE, Curve, Gamma, MaxExp, SigmE
from powerpool.files import write_text

__all__ = ["RunSpectra", "make_page", "spectra_of", "write_page"]

TITLE = "Curve explorer"
NAMES: dict[type[Curve], str] = {
    MaxExp: "maxexp",  # and SignedMaxExp, its subclass
    Gamma: "gamma",
    SigmE: "sigme",
    AsinhE: "asinhe",
    HDP: "hdp",
    FAHDP: "fahdp",
}
"""Names of curves in the page."""
LARGEST = 20_000
"""Limit on the eigenvalues of all samples together; the page recomputes all of them while a slider moves."""
DIGITS = 7


@dataclass(frozen=True)
class RunSpectra:
    """The part of the page that depends on a run.

    Args:
        title: a description of the model and the samples.
        notes: remarks for the reader.
        spectra: eigenvalues of each sample as shares of the trace, the largest first.
        start: the name of a curve in the page, and its initial parameter.
        suggestion: the suggested parameter of every curve, by its name in the page.
        rounding: of FAHDP.
    """

    title: str
    notes: tuple[str, ...]
    spectra: tuple[tuple[float, ...], ...]
    start: tuple[str, float]
    suggestion: dict[str, float]
    rounding: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON that the scripts of the page read."""
        curve, value = self.start
        return {
            "spectra": self.spectra,
            "start": {"curve": curve, "value": value, "rounding": self.rounding},
            "suggestion": self.suggestion,
        }


def spectra_of(found: Inspection, largest: int = LARGEST) -> RunSpectra:
    """Return the spectra before the curve, of as many samples as have at most ``largest`` eigenvalues together.

    Example:
        >>> import torch, powerpool as pp
        >>> from powerpool.analysis import inspect_features
        >>> spectra = spectra_of(inspect_features(torch.eye(4).expand(3, 4, 4), pp.MaxExp(eta=20)))
        >>> spectra.start, spectra.spectra[0]
        (('maxexp', 20.0), (0.25, 0.25, 0.25, 0.25))
    """
    own, suggested, notes = found.normalization, found.suggestions["spectral"], list(found.notes)
    kept = max(1, min(found.samples, largest // found.channels))
    if kept < found.samples:
        notes.append(f"The page shows the first {kept} of {found.samples} samples.")
    suggestion = {name: float(suggested.of(kind(1.0))) for kind, name in NAMES.items()}  # type: ignore[call-arg]
    suggestion["asinhe"] = suggested.eta  # the spectra are shares, so there is no trace to divide by
    name = None if own.is_first_order else next((NAMES[kind] for kind in NAMES if isinstance(own.curve, kind)), None)
    start = (name or "maxexp", suggestion[name or "maxexp"])
    if name is None or own.curve is None or own.parameter is None:
        notes.append("The page starts with a suggested parameter: the run has no curve with a single known parameter.")
    else:
        # Spectra are shares of the trace. A curve that is applied without dividing by it needs a larger parameter;
        # a power does not depend on scale.
        factor = 1.0 if own.curve.trace_normalize or isinstance(own.curve, Gamma) else suggested.trace
        start = (name, own.parameter * factor)
        if own.mode == "elementwise":
            notes.append("The run applies its curve to entries; here it is applied to eigenvalues.")
        if factor != 1:
            notes.append(
                f"The run does not divide by the trace, so its parameter is multiplied by the mean trace {factor:.3g}."
            )
    omitted = {"trace power": own.trace_power, "slope": own.slope}
    if any(omitted.values()) and not own.is_first_order:
        notes.append(f"Not shown: {', '.join(f'{term} {value:g}' for term, value in omitted.items() if value)}.")
    values = found.before.spectra[:kept].clamp(0, 1).tolist()
    return RunSpectra(
        title=found.headline(),
        notes=tuple(notes),
        spectra=tuple(tuple(float(f"{value:.{DIGITS}g}") for value in one) for one in values),
        start=start,
        suggestion=suggestion,
        rounding=own.curve.rounding if isinstance(own.curve, FAHDP) else None,
    )


def write_page(path: str | Path, run: RunSpectra | None = None) -> None:
    """Write the explorer atomically.

    Args:
        path: of the HTML file.
        run: spectra of a trained model, shown beside those of Beta distributions.
    """
    write_text(path, make_page(run))


def make_page(run: RunSpectra | None = None) -> str:
    """Return the explorer as HTML. Needs the packages ``jinja2`` and ``plotly``, which contains the plotting script."""
    import jinja2
    from plotly.offline import get_plotlyjs

    scripts = [_escape_script(text) for text in (get_plotlyjs(), _read_asset("formulas.js"), _read_asset("app.js"))]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.from_string(_read_asset("page.html")).render(
        title=TITLE if run is None else f"{TITLE}: {run.title}",
        policy=make_policy(scripts),
        style=_read_asset("page.css"),
        scripts=scripts,
        run=run,
        data=None if run is None else run.to_dict(),
        version=__version__,
    )


def make_policy(scripts: list[str]) -> str:
    """Return a Content-Security-Policy that allows these scripts and inline styles, and no requests.

    Example:
        >>> make_policy(["1"]).split(";")[1]
        " script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _read_asset(name: str) -> str:
    return resources.files("powerpool.analysis.explorer").joinpath("assets", name).read_text(encoding="utf-8")


def _escape_script(text: str) -> str:
    """Escape what would end a script element; in JavaScript it can only occur in strings and regular expressions."""
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")
