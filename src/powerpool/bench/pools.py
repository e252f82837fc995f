"""The suite ``pools``: spectral MaxExp from features, against what people use instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

import powerpool as pp
from powerpool.bench import competitors, reference
from powerpool.bench.case import Answer, BenchCase, Contender, Skipped
from powerpool.bench.inputs import FLOOR_ANSWERS, GRAM_RATIO, GRAM_REASON, Inputs
from powerpool.bench.targets import GRAM, TARGETS
from powerpool.solvers import NewtonSchulz

ETA = 50

CHANNELS = (64, 128, 256, 512, 1024, 2048)
LOCATIONS = (16, 49, 100, 196, 400, 784, 1600)
ETAS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)

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
"""Where a contender stops taking part: a step beyond takes more than about five seconds on two cores."""


def cases(quick: bool, device: str = "cpu") -> list[BenchCase]:
    """The rows that have targets, then sweeps over C at N = 49, over N at C = 256, and over eta."""
    if quick:
        sizes = [(8, 64, 196), (2, 32, 49), (2, 64, 49), (2, 128, 49)]
        etas = [(2, 128, 49, (5, 500)), (2, 64, 128, (5, 50, 500))]
    else:
        sizes = [(target.batch, target.channels, target.locations) for target in TARGETS]
        sizes += [(2, channels, 49) for channels in CHANNELS]
        sizes += [(8, 256, locations) for locations in LOCATIONS]
        etas = [(8, 512, 49, ETAS), (8, 256, 784, ETAS)]
    found = {}
    for batch, channels, locations in sizes:
        case = pool_case(Inputs(batch, channels, locations, device), ETA, everyone=True)
        found[case.name] = case
    for batch, channels, locations, sweep in etas:
        for eta in sweep:
            case = pool_case(Inputs(batch, channels, locations, device), eta, everyone=False)
            found.setdefault(case.name, case)
    return list(found.values())


def pool_case(inputs: Inputs, eta: int, everyone: bool) -> BenchCase:
    """All contenders on one size; without ``everyone`` those whose time may depend on eta, and eigh beside them."""
    answers = f"spectral MaxExp({eta})"
    elementwise = f"element-wise MaxExp({eta})"
    ours, theirs = partial(_ours, inputs, answers, eta), partial(_theirs, inputs, answers, eta)
    contenders = [
        inputs.floor(),
        ours("powerpool auto", "auto"),
        ours("powerpool gram", "gram"),
        ours("powerpool squaring", "squaring"),
        ours("powerpool eigen", "eigen"),
        theirs("eigh + Loewner", competitors.eigh_loewner),
        theirs("matrix_power autograd", competitors.matrix_power_autograd),
    ]
    if everyone:
        contenders += [
            inputs.contender("powerpool autocorrelation", "powerpool", FLOOR_ANSWERS, pp.autocorrelation),
            theirs("eigh autograd", competitors.eigh_autograd),
            theirs("svd autograd", competitors.svd_autograd),
            # Its answer is that of a randomly shifted matrix, by design.
            theirs("GSPN (Algorithm 1)", competitors.gspn_autograd, approximate=True),
            *(_newton_schulz(inputs, iterations) for iterations in (5, 20)),
            inputs.contender(
                "powerpool newton_schulz 5",
                "powerpool",
                "Newton-Schulz 5",
                lambda x: pp.second_order_pool(x, pp.Gamma(0.5), solver=NewtonSchulz(5)),
            ),
            inputs.contender(
                "powerpool element-wise",
                "powerpool",
                elementwise,
                lambda x: pp.second_order_pool(x, pp.MaxExp(eta), mode="elementwise"),
            ),
            inputs.contender(
                "element-wise MaxExp",
                "competitor",
                elementwise,
                partial(competitors.elementwise_maxexp, eta=eta),
            ),
        ]
    kept, skipped = leave_out(inputs, contenders)
    references: dict[str, Callable[[], Answer]] = {
        FLOOR_ANSWERS: inputs.floor_reference,
        answers: lambda: reference.spectral(inputs.features, inputs.upstream, reference.maxexp(eta)),
        elementwise: lambda: reference.elementwise(inputs.features, inputs.upstream, reference.maxexp(eta)),
        "Newton-Schulz 5": lambda: reference.newton_schulz(inputs.features, inputs.upstream, 5),
        "Newton-Schulz 20": lambda: reference.newton_schulz(inputs.features, inputs.upstream, 20),
    }
    sizes = inputs.sizes | {"eta": eta}
    return BenchCase("pools", f"{inputs.name} eta{eta}", sizes, kept, references, skipped, {"curve": f"MaxExp({eta})"})


def leave_out(inputs: Inputs, contenders: list[Contender]) -> tuple[list[Contender], list[Skipped]]:
    """Those that take part at this size, and those that do not, with the reason."""
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


def _ours(inputs: Inputs, answers: str, eta: int, name: str, solver: str) -> Contender:
    curve = pp.MaxExp(eta)

    def pool(features: Tensor) -> Tensor:
        return pp.second_order_pool(features, curve, solver=solver)

    return inputs.contender(name, "powerpool", answers, pool)


def _theirs(
    inputs: Inputs,
    answers: str,
    eta: int,
    name: str,
    function: Callable[[Tensor, int], Tensor],
    approximate: bool = False,
) -> Contender:
    return inputs.contender(name, "competitor", answers, lambda features: function(features, eta), approximate)


def _newton_schulz(inputs: Inputs, iterations: int) -> Contender:
    name = f"Newton-Schulz {iterations}"
    root = partial(competitors.newton_schulz, iterations=iterations)
    # What round-off leaves in the null space of M grows by 1.5 with every iteration: 20 of them lose the digits that
    # float32 has, and the reference keeps.
    return inputs.contender(name, "competitor", name, root, approximate=iterations > 10)
