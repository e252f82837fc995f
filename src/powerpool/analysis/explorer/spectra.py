"""The eigenvalues of a run as the explorer takes them: few numbers, and where its sliders are to stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from powerpool.analysis import Inspection
from powerpool.curves import FAHDP, HDP, AsinhE, Curve, Gamma, MaxExp, SigmE

NAMES: dict[type[Curve], str] = {
    MaxExp: "maxexp",
    Gamma: "gamma",
    SigmE: "sigme",
    AsinhE: "asinhe",
    HDP: "hdp",
    FAHDP: "fahdp",
}
"""What the page calls a curve; SignedMaxExp is a MaxExp."""
LARGEST = 20_000
"""Eigenvalues in the page, of all samples together: every one goes through the curve while a slider moves."""
DIGITS = 7


@dataclass(frozen=True)
class RunSpectra:
    """What the page shows of a run.

    Args:
        title: which model, and which samples, in words.
        notes: what a reader has to know beside.
        spectra: eigenvalues of each sample as parts of the trace, the largest first.
        start: the name of a curve in the page, and the parameter at which it begins.
        rounding: of FAHDP.
        suggestion: a parameter to try for every curve, by its name in the page.
    """

    title: str
    notes: tuple[str, ...]
    spectra: tuple[tuple[float, ...], ...]
    start: tuple[str, float]
    suggestion: dict[str, float]
    rounding: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """What the scripts of the page read; texts are in its HTML."""
        curve, value = self.start
        return {
            "spectra": self.spectra,
            "start": {"curve": curve, "value": value, "rounding": self.rounding},
            "suggestion": self.suggestion,
        }


def spectra_of(found: Inspection, largest: int = LARGEST) -> RunSpectra:
    """The spectra before the curve, at most ``largest`` numbers of samples that were drawn at random anyway.

    Example:
        >>> import torch, powerpool as pp
        >>> from powerpool.analysis import inspect_features
        >>> spectra = spectra_of(inspect_features(torch.eye(4).expand(3, 4, 4), pp.MaxExp(eta=20)))
        >>> spectra.start, spectra.spectra[0]
        (('maxexp', 20.0), (0.25, 0.25, 0.25, 0.25))
    """
    kept = max(1, min(found.samples, largest // found.channels))
    notes = list(found.notes)
    if kept < found.samples:
        notes.append(f"The page has the first {kept} of {found.samples} samples.")
    own, suggested = found.normalization, found.suggestions["spectral"]
    suggestion = {name: float(suggested.of(kind(1.0))) for kind, name in NAMES.items()}  # type: ignore[call-arg]
    suggestion["asinhe"] = suggested.eta  # its gamma', for eigenvalues that are parts of the trace
    start = ("maxexp", suggestion["maxexp"])
    if own.curve is None or own.is_first_order:
        notes.append("The run has no curve of second order: the page begins with a suggestion.")
    elif not suggested.knows(own.curve):
        notes.append(f"The page cannot draw the curve of the run, {type(own.curve).__name__}: it begins with another.")
    elif own.parameter is None:
        notes.append("The run has a parameter for each channel: the page begins with a suggestion.")
        start = (_name(own.curve), suggestion[_name(own.curve)])
    else:
        factor = _factor(own.curve, suggested.trace)
        start = (_name(own.curve), own.parameter * factor)
        if own.mode == "elementwise":
            notes.append("The run applies its curve entry by entry; here it acts on eigenvalues.")
        if factor != 1:
            notes.append(
                f"The run does not divide by the trace, {factor:.3g} on average: here its parameter is multiplied by "
                "it, which is right for samples of that trace."
            )
    terms = {"trace power": own.trace_power, "slope": own.slope}
    left_out = [f"{term} {value:g}" for term, value in terms.items() if value and not own.is_first_order]
    if left_out:
        notes.append(f"The page leaves out what the run does beside its curve: {' and '.join(left_out)}.")
    values = found.before.spectra[:kept].clamp(0, 1).tolist()
    return RunSpectra(
        title=found.headline(),
        notes=tuple(notes),
        spectra=tuple(tuple(float(f"{value:.{DIGITS}g}") for value in one) for one in values),
        start=start,
        suggestion=suggestion,
        rounding=own.curve.rounding if isinstance(own.curve, FAHDP) else None,
    )


def _name(curve: Curve) -> str:
    return next(name for kind, name in NAMES.items() if isinstance(curve, kind))


def _factor(curve: Curve, trace: float) -> float:
    """What a parameter is multiplied by for eigenvalues that are parts of the trace. A power has no scale."""
    return 1.0 if curve.trace_normalize or isinstance(curve, Gamma) else trace
