"""Small made-up records and cases, with numbers that are easy to check."""

from __future__ import annotations

from powerpool.bench.measure import Spread
from powerpool.bench.record import BenchRecord, CaseRecord, Measured, RecordedOptions
from powerpool.runs.environment import Environment

ENVIRONMENT = Environment(processor="a machine", threads=2, torch="2", powerpool="0", time="2026-01-01T00:00:00+00:00")


def measured(name: str, milliseconds: float, origin: str = "powerpool", spread: float = 0.05, peak: int = 2**20):
    """A contender whose quartiles are ``spread`` times the median away from it."""
    total = Spread(1e-3 * milliseconds, 1e-3 * milliseconds * (1 - spread), 1e-3 * milliseconds * (1 + spread))
    half = Spread(total.median / 2, total.lower / 2, total.upper / 2)
    return Measured(name, origin, "M", 5, half, half, total, peak, 2, 100, 0, 1e-7, None)


def case(name: str, sizes: dict[str, int], *results: Measured) -> CaseRecord:
    return CaseRecord(name, sizes, {"curve": "MaxExp(50)"}, list(results))


def record(*cases: CaseRecord, suite: str = "pools", **options) -> BenchRecord:
    given = RecordedOptions(**{"quick": False, "device": "cpu", "threads": 2, "repetitions": 0} | options)
    return BenchRecord(suite, given, ENVIRONMENT, {}, list(cases), complete=True)


def pair(auto: float, floor: float = 1.0, squaring: float = 8.0, spread: float = 0.05) -> BenchRecord:
    """A record of two cases; ``auto`` and ``floor`` are the milliseconds of the first."""
    rows = (
        measured("form M", floor, "floor", spread),
        measured("powerpool auto", auto, spread=spread),
        measured("eigh + Loewner", 20.0 * floor, "competitor", spread),
    )
    second = (measured("form M", 2.0, "floor"), measured("powerpool squaring", squaring))
    return record(
        case("first", {"batch": 8, "channels": 64, "locations": 49, "eta": 50}, *rows),
        case("second", {"batch": 8, "channels": 128, "locations": 49, "eta": 50}, *second),
    )
