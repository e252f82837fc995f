"""The sensitivity studies of ``powerpool sweep vision``: each setting with a method and the values to try."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = "powerpool sweep 1"
"""The first field of the JSON files that a sweep writes."""


@dataclass(frozen=True)
class Study:
    """A method that depends on a setting, and values of the setting."""

    method: str
    values: tuple[float, ...]


STUDIES = {
    "beta": Study("SOP+SC+SpecMaxExpF", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    "alpha": Study("SOP+SC+SpecMaxExpF", (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)),
    "sigme_eta": Study("SOP+SC+SigmE", (50, 200, 1000, 5000, 20000)),
    "eta": Study("SOP+SC+SpecMaxExpF", (1, 5, 10, 20, 40, 80, 160)),
    "gamma": Study("SOP+SC+SpecGamma", (0.2, 0.35, 0.5, 0.65, 0.8, 1.0)),
    "asinhe_gamma": Study("SOP+SC+AsinhE", (100, 1000, 10000, 100000)),
    "t": Study("SOP+SC+SpecHDP", (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1)),
    "sigma": Study("SOP+SC+SpecMaxExpF", (0.2, 0.35, 0.5, 0.7, 1.0)),
    "pivots": Study("SOP+SC+SpecMaxExpF", (3, 5, 7, 10)),
}
PAPER = ("beta", "alpha", "sigme_eta", "eta")
"""The settings that the paper studies."""
