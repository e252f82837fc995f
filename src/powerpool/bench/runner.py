"""One case from start to end: answers, memory, counts, then the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from powerpool.bench.agreement import DisagreementError, check_answers
from powerpool.bench.case import BenchCase
from powerpool.bench.counts import Counts, count
from powerpool.bench.memory import peak_bytes
from powerpool.bench.record import CaseRecord, Measured
from powerpool.bench.timing import Stopwatch, measure


@dataclass(frozen=True)
class Effort:
    """How long a case is measured."""

    repetitions: int
    budget: float
    """Seconds for one contender of one case; a slow one gets fewer repetitions, at least three."""
    warm_up: int


def run_case(
    case: BenchCase, effort: Effort, device: str = "cpu", say: Callable[[str], None] = lambda text: None
) -> CaseRecord:
    """Measure a case; where the answers disagree nothing is timed, and the record says by how much."""
    say("answers")
    torch.manual_seed(0)  # GSPN draws from the global generator
    try:
        agreements = check_answers(case)
    except DisagreementError as error:
        return CaseRecord(case.name, case.sizes, case.labels, skipped=case.skipped, error=str(error))
    say("memory")
    steps = {contender.name: contender.step for contender in case.contenders}
    peaks: dict[str, int] = {}
    counts: dict[str, Counts] = {}
    for name, step in steps.items():
        once = partial(step, Stopwatch())
        once()  # inputs and networks are made when they are first used: they are not part of the step
        peaks[name] = peak_bytes(once, device)
        counts[name] = count(once)
    synchronize = partial(torch.cuda.synchronize, device) if torch.device(device).type == "cuda" else None
    timings = measure(
        steps,
        effort.repetitions,
        effort.budget,
        effort.warm_up,
        Stopwatch(synchronize=synchronize),
        progress=say,
    )
    results = []
    for contender in case.contenders:
        timing, agreement, counted = timings[contender.name], agreements[contender.name], counts[contender.name]
        results.append(
            Measured(
                name=contender.name,
                origin=contender.origin,
                answers=contender.answers,
                repetitions=timing.repetitions,
                forward=timing.forward,
                backward=timing.backward,
                total=timing.total,
                peak_bytes=peaks[contender.name],
                products=counted.products,
                product_flops=counted.product_flops,
                decompositions=counted.decompositions,
                value_error=agreement.value_error,
                gradient_error=agreement.gradient_error,
                note=agreement.note,
            )
        )
    return CaseRecord(case.name, case.sizes, case.labels, results, case.skipped)
