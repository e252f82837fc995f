"""What the pools are to reach, as ratios within one run, and whether they did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from powerpool.bench.record import CaseRecord

OURS = "powerpool auto"
NEWTON_SCHULZ = "Newton-Schulz 5"
LOEWNER = "eigh + Loewner"
GRAM = "powerpool gram"
MEMORY = 1.3
"""Most memory that ``gram`` may need, in units of the memory of forming M."""


@dataclass(frozen=True)
class Target:
    """At eta = 50: so many times faster than two competitors, at most so many times the floor."""

    channels: int
    locations: int
    newton_schulz: float
    loewner: float
    floor: float
    batch: int = 8


TARGETS = (
    Target(256, 49, newton_schulz=25, loewner=9, floor=2.5),
    Target(512, 49, newton_schulz=80, loewner=24, floor=1.5),
    Target(512, 196, newton_schulz=15, loewner=4.5, floor=2.8),
    Target(1024, 196, newton_schulz=45, loewner=13, floor=1.8),
    Target(2048, 49, newton_schulz=380, loewner=90, floor=1.1, batch=2),
    Target(256, 784, newton_schulz=3.2, loewner=1.5, floor=2.3),
    Target(64, 196, newton_schulz=3, loewner=2, floor=3),
)


@dataclass(frozen=True)
class Outcome:
    """One target beside what was measured."""

    case: str
    what: str
    wanted: float
    measured: float
    met: bool


def outcomes(cases: list[CaseRecord], eta: int = 50) -> list[dict[str, Any]]:
    """Every target whose case was run, met or missed."""
    found: list[Outcome] = []
    for target in TARGETS:
        sizes = {"batch": target.batch, "channels": target.channels, "locations": target.locations, "eta": eta}
        for case in cases:
            if case.sizes == sizes and not case.error:
                found += _of_case(case, target)
    return [asdict(outcome) for outcome in found]


def limits(cases: list[CaseRecord], most: dict[str, float], ours: str) -> list[dict[str, Any]]:
    """At most so many times the floor: the contender ``ours`` of the cases named in ``most``."""
    found = []
    for case in cases:
        result, floor = case.find(ours), case.floor
        if case.name in most and result is not None and floor is not None:
            ratio = result.total.median / floor.total.median
            found.append(
                asdict(Outcome(case.name, "times the floor", most[case.name], ratio, ratio <= most[case.name]))
            )
    return found


def _of_case(case: CaseRecord, target: Target) -> list[Outcome]:
    ours, floor, gram = case.find(OURS), case.floor, case.find(GRAM)
    assert ours is not None
    found = []
    for name, wanted in ((NEWTON_SCHULZ, target.newton_schulz), (LOEWNER, target.loewner)):
        rival = case.find(name)
        if rival is not None:
            ratio = rival.total.median / ours.total.median
            found.append(Outcome(case.name, f"times faster than {name}", wanted, ratio, ratio >= wanted))
    if floor is not None:
        ratio = ours.total.median / floor.total.median
        found.append(Outcome(case.name, "times the floor", target.floor, ratio, ratio <= target.floor))
        if gram is not None and target.locations < target.channels:
            ratio = gram.peak_bytes / floor.peak_bytes
            found.append(Outcome(case.name, "gram memory, times the floor", MEMORY, ratio, ratio <= MEMORY))
    return found
