"""The suites of operators: ``curves``, ``solvers`` and ``pools``, forward and backward from the same features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

import powerpool as pp
from powerpool.bench import competitors, reference
from powerpool.bench.cases import MOMENT, BenchCase, Contender, Inputs, Reference
from powerpool.bench.record import ELEMENTWISE, GRAM, NEWTON_SCHULZ, TARGETS, Skipped
from powerpool.bench.reference import EPS, Scalar
from powerpool.curves import Curve

GRAM_RATIO = 2
GRAM_REASON = f"left out above {GRAM_RATIO} locations a channel: it works in N x N, and is of use where N < C"


@dataclass(frozen=True)
class BenchCurve:
    """A curve and its formula, which is both the reference in float64 and the plain competitor."""

    curve: Curve
    scalar: Scalar

    def plain_pool(self, features: Tensor) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
        """The formula applied to M or M/tr M, without a spectrum."""
        form = competitors.divided_moment if self.curve.trace_normalize else competitors.form_moment
        points = form(features)
        return self.scalar.value(points + EPS if self.scalar.adds_eps else points)

    @property
    def elementwise(self) -> Reference:
        """The reference of the element-wise form."""
        return partial(reference.elementwise, curve=self.scalar)

    @property
    def spectral(self) -> Reference:
        """The reference of the spectral form."""
        return partial(reference.spectral, curve=self.scalar)


def maxexp(eta: int) -> BenchCurve:
    """MaxExp of any exponent."""
    return BenchCurve(pp.MaxExp(eta), reference.maxexp(eta))


CURVES: dict[str, BenchCurve] = {
    "Gamma(0.5)": BenchCurve(pp.Gamma(0.5), reference.gamma(0.5)),
    "MaxExp(50)": maxexp(50),
    "SignedMaxExp(50)": BenchCurve(pp.SignedMaxExp(50), reference.signed_maxexp(50)),
    "AsinhE(10)": BenchCurve(pp.AsinhE(10.0), reference.asinhe(10.0)),
    "SigmE(50)": BenchCurve(pp.SigmE(50.0), reference.sigme(50.0)),
    "HDP(0.01)": BenchCurve(pp.HDP(0.01), reference.hdp(0.01)),
    "FAHDP(0.01)": BenchCurve(pp.FAHDP(0.01), reference.fahdp(0.01)),
}
"""The curves of the suite ``curves``."""


# ---- curves ----------------------------------------------------------------------------------------------------------


def curves(quick: bool, device: str = "cpu") -> list[BenchCase]:
    """Every curve: element-wise by the library and by the plain formula, spectral by the library."""
    sizes = [(8, 32, 49)] if quick else [(8, 64, 196), (8, 256, 196), (8, 512, 49)]
    return [_curve_case(Inputs(*size, device), name) for size in sizes for name in CURVES]


def _curve_case(inputs: Inputs, name: str) -> BenchCase:
    row = CURVES[name]
    entries, spectrum = f"element-wise {name}", f"spectral {name}"
    pool = partial(pp.second_order_pool, curve=row.curve)
    contenders = [
        inputs.floor(),
        inputs.contender("powerpool element-wise", "powerpool", entries, partial(pool, mode="elementwise")),
        inputs.contender("plain torch formula", "competitor", entries, row.plain_pool),
        inputs.contender("powerpool eigen", "powerpool", spectrum, partial(pool, solver="eigen")),
        inputs.contender("powerpool auto", "powerpool", spectrum, pool),
    ]
    references = inputs.references({entries: row.elementwise, spectrum: row.spectral})
    labels = {"curve": name}
    return BenchCase("curves", f"{name} {inputs.name}", inputs.sizes, contenders, references, labels=labels)


# ---- solvers ---------------------------------------------------------------------------------------------------------

ROOT = "Gamma(0.5)"
SOLVER_CURVES = {
    "MaxExp(50)": maxexp(50),
    "MaxExp(500)": maxexp(500),
    "HDP(0.01)": CURVES["HDP(0.01)"],
    ROOT: CURVES[ROOT],
}
ROOT_RATIO = 3
"""Locations as a multiple of channels for Gamma(0.5): with as many locations as channels its gradient is
ill-conditioned, and float32 answers disagree."""
SOLVER_CHANNELS = (16, 32, 64, 128, 256, 512)
RATIOS = (0.25, 0.5, 0.7, 0.9, 1.0, 1.5, 4.0)
"""Locations as a multiple of channels."""
LARGE = 512
"""From here on only up to as many locations as channels: beyond, only gram depends on them, and it is left out."""
BATCH = 8


def solvers(quick: bool, device: str = "cpu") -> list[BenchCase]:
    """Every solver that can take the curve, over channels and locations, and from a given matrix.

    The thresholds of ``select_solver`` come from these measurements.
    """
    channels, ratios = ((16, 64), (0.5, 2.0)) if quick else (SOLVER_CHANNELS, RATIOS)
    names = ("MaxExp(50)", "HDP(0.01)") if quick else ("MaxExp(50)", "MaxExp(500)", "HDP(0.01)")
    found = []
    for name in names:
        for size in channels:
            locations = [round(ratio * size) for ratio in ratios if size < LARGE or ratio <= 1]
            found += [_solver_case(Inputs(BATCH, size, count, device), name, "features") for count in locations]
            found.append(_solver_case(Inputs(BATCH, size, 2 * size, device), name, "matrix"))
    return found + [_root_case(Inputs(BATCH, size, ROOT_RATIO * size, device)) for size in channels]


def _root_case(inputs: Inputs) -> BenchCase:
    """The square root at full rank: by eigenvalues, by products, and by Newton-Schulz, which does not converge."""
    row, answers = SOLVER_CURVES[ROOT], f"spectral {ROOT}"
    contenders = [inputs.floor()]
    for solver in ("eigen", "minimax"):
        pool = partial(pp.second_order_pool, curve=row.curve, solver=solver)
        contenders.append(inputs.contender(f"powerpool {solver}", "powerpool", answers, pool))
    five = partial(competitors.newton_schulz, iterations=5)
    contenders.append(inputs.contender(NEWTON_SCHULZ, "competitor", answers, five, approximate=True))
    references, labels = inputs.references({answers: row.spectral}), {"curve": ROOT, "from": "features"}
    return BenchCase("solvers", f"{ROOT} {inputs.name}", inputs.sizes, contenders, references, [], labels)


def _solver_case(inputs: Inputs, name: str, source: str) -> BenchCase:
    """``second_order_pool`` of features, or ``spectral`` of a matrix, which is formed first by all contenders."""
    row, answers = SOLVER_CURVES[name], f"spectral {name}"
    given = {"features": inputs.name, "matrix": f"B{inputs.batch} C{inputs.channels} matrix"}[source]
    sizes = inputs.sizes if source == "features" else {"batch": inputs.batch, "channels": inputs.channels}
    names = ["eigen"] + (["squaring"] if row.curve.integer_power() is not None else [])
    skipped = []
    if source == "features" and inputs.locations > GRAM_RATIO * inputs.channels:
        skipped.append(Skipped(GRAM, GRAM_REASON))
    elif source == "features":
        names.append("gram")

    def apply(features: Tensor, solver: str) -> Tensor:
        if source == "features":
            return pp.second_order_pool(features, row.curve, solver=solver)
        return pp.spectral(pp.autocorrelation(features), row.curve, solver=solver)

    contenders = [inputs.floor()] + [
        inputs.contender(f"powerpool {solver}", "powerpool", answers, partial(apply, solver=solver)) for solver in names
    ]
    references, labels = inputs.references({answers: row.spectral}), {"curve": name, "from": source}
    return BenchCase("solvers", f"{name} {given}", sizes, contenders, references, skipped, labels)


# ---- pools -----------------------------------------------------------------------------------------------------------

ETA = 50
CHANNELS = (64, 128, 256, 512, 1024, 2048)
LOCATIONS = (16, 49, 100, 196, 400, 784, 1600)
ETAS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
ELEMENTWISE_SIZES = [(2, 64, 49), (8, 64, 196), (8, 256, 196), (8, 512, 49), (2, 2048, 49)]
"""Sizes of all element-wise curves: small, with more locations than channels, and large."""
LARGEST_CHANNELS = {
    "svd autograd": 256,
    "Newton-Schulz 20": 256,
    "powerpool newton_schulz 5": 512,
    "powerpool squaring": 1024,
    "powerpool eigen": 1024,
    "matrix_power autograd": 1024,
    "eigh autograd": 1024,
    "GSPN (Algorithm 1)": 1024,
}
"""Largest size at which a contender takes part: a larger step takes more than about five seconds on two cores."""


def pools(quick: bool, device: str = "cpu") -> list[BenchCase]:
    """Spectral MaxExp against its competitors: the sizes that have targets, sweeps over C, over N, and over eta.

    And all element-wise curves against their plain formulas.
    """
    if quick:
        sizes = [(8, 64, 196), (2, 32, 49), (2, 64, 49), (2, 128, 49)]
        sweeps: list[tuple[int, int, int, tuple[int, ...]]] = [(2, 128, 49, (5, 500)), (2, 64, 128, (5, 50, 500))]
    else:
        sizes = [(target.batch, target.channels, target.locations) for target in TARGETS]
        sizes += [(2, channels, 49) for channels in CHANNELS]
        sizes += [(8, 256, locations) for locations in LOCATIONS]
        sweeps = [(8, 512, 49, ETAS), (8, 256, 784, ETAS)]
    found = {}
    for size in sizes:
        case = _pool_case(Inputs(*size, device), ETA, everyone=True)
        found[case.name] = case
    for batch, channels, locations, etas in sweeps:
        for eta in etas:
            case = _pool_case(Inputs(batch, channels, locations, device), eta, everyone=False)
            found.setdefault(case.name, case)
    elementwise = [(2, 64, 49)] if quick else ELEMENTWISE_SIZES
    return [*found.values(), *(_elementwise_case(Inputs(*size, device)) for size in elementwise)]


def _elementwise_case(inputs: Inputs) -> BenchCase:
    """Every curve on entries, by the library and by the plain formula with autograd, beside forming M."""
    contenders, references = [inputs.floor()], {}
    for name, row in CURVES.items():
        answers = f"element-wise {name}"
        pool = partial(pp.second_order_pool, curve=row.curve, mode="elementwise")
        contenders.append(inputs.contender(f"powerpool {name}", "powerpool", answers, pool))
        contenders.append(inputs.contender(f"plain {name}", "competitor", answers, row.plain_pool))
        references[answers] = row.elementwise
    name = f"{ELEMENTWISE}{inputs.name}"
    return BenchCase("pools", name, inputs.sizes, contenders, inputs.references(references))


def _pool_case(inputs: Inputs, eta: int, everyone: bool) -> BenchCase:
    """All contenders on one size; without ``everyone`` those whose time may depend on eta, and eigh for comparison."""
    row, answers, elementwise = maxexp(eta), f"spectral MaxExp({eta})", f"element-wise MaxExp({eta})"
    pool = partial(pp.second_order_pool, curve=row.curve)
    ours = partial(inputs.contender, origin="powerpool", answers=answers)
    theirs = partial(inputs.contender, origin="competitor", answers=answers)
    contenders = [inputs.floor()]
    contenders += [
        ours(f"powerpool {solver}", function=partial(pool, solver=solver))
        for solver in ("auto", "gram", "squaring", "eigen")
    ]
    contenders += [
        theirs("eigh + Loewner", function=partial(competitors.eigh_loewner, eta=eta)),
        theirs("matrix_power autograd", function=partial(competitors.matrix_power_autograd, eta=eta)),
    ]
    if everyone:
        root = partial(pp.second_order_pool, curve=pp.Gamma(0.5), solver=pp.solvers.NewtonSchulz(5))
        contenders += [
            ours("powerpool autocorrelation", answers=MOMENT, function=pp.autocorrelation),
            theirs("eigh autograd", function=partial(competitors.eigh_autograd, eta=eta)),
            theirs("svd autograd", function=partial(competitors.svd_autograd, eta=eta)),
            # Its answer is that of a randomly shifted matrix, by design.
            theirs("GSPN (Algorithm 1)", function=partial(competitors.gspn_autograd, eta=eta), approximate=True),
            theirs(
                "Newton-Schulz 5", answers="Newton-Schulz 5", function=partial(competitors.newton_schulz, iterations=5)
            ),
            # Round-off in the null space of M grows 1.5-fold in every iteration: 20 use up the digits of float32.
            theirs(
                "Newton-Schulz 20",
                answers="Newton-Schulz 20",
                function=partial(competitors.newton_schulz, iterations=20),
                approximate=True,
            ),
            ours("powerpool newton_schulz 5", answers="Newton-Schulz 5", function=root),
            ours("powerpool element-wise", answers=elementwise, function=partial(pool, mode="elementwise")),
            theirs("element-wise MaxExp", answers=elementwise, function=row.plain_pool),
        ]
    kept, skipped = _leave_out(inputs, contenders)
    references = inputs.references(
        {
            answers: row.spectral,
            elementwise: row.elementwise,
            "Newton-Schulz 5": partial(reference.newton_schulz, iterations=5),
            "Newton-Schulz 20": partial(reference.newton_schulz, iterations=20),
        }
    )
    sizes = inputs.sizes | {"eta": eta}
    return BenchCase("pools", f"{inputs.name} eta{eta}", sizes, kept, references, skipped, {"curve": f"MaxExp({eta})"})


def _leave_out(inputs: Inputs, contenders: list[Contender]) -> tuple[list[Contender], list[Skipped]]:
    """The contenders that take part at this size, and those that do not, with the reason."""
    kept, skipped = [], []
    for contender in contenders:
        limit = LARGEST_CHANNELS.get(contender.name, inputs.channels)
        if contender.name == GRAM and inputs.locations > GRAM_RATIO * inputs.channels:
            skipped.append(Skipped(contender.name, GRAM_REASON))
        elif inputs.channels > limit:
            reason = f"left out above {limit} channels, where a step takes many seconds"
            skipped.append(Skipped(contender.name, reason))
        else:
            kept.append(contender)
    return kept, skipped
