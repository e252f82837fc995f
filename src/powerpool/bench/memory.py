"""How much memory a step needs at its peak, above what was there before it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(step: Callable[[], object], device: str = "cpu") -> int:
    """The largest sum of the tensors that ``step`` has alive at one time, with its result.

    On CUDA from the allocator's own statistics; on the CPU from every allocation and release that the profiler sees.
    What a library such as LAPACK allocates behind torch's back is not seen.
    """
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
    del result
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    # No public call lists single allocations: prof.events() has them added up by operator.
    changes = sorted(
        ((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"),
        key=lambda change: change[0],
    )
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak
