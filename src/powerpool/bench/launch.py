"""Threads are chosen before torch starts: the command runs itself once more with the right environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from powerpool.runs.processes import module_path


def variables(threads: int) -> dict[str, str]:
    """What the environment has to say. ``torch.set_num_threads`` is no way: batched LU fails after it in torch 2.13."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # a waiting thread that spins takes the core from one that works
        "KINETO_LOG_LEVEL": "99",  # the profiler, which counts memory, would print two lines for every step
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # and warn of memory that it has not seen being allocated, which does not count
    }


def is_set(threads: int) -> bool:
    """Whether this process was started with them."""
    return all(os.environ.get(name) == value for name, value in variables(threads).items())


def relaunch(arguments: Sequence[str], threads: int) -> int:
    """Run ``powerpool ARGUMENTS`` in a child with that environment, and return its exit code."""
    command = python("sys.argv[0] = 'powerpool'; from powerpool.cli.main import main; sys.exit(main())", *arguments)
    with subprocess.Popen(command, env=os.environ | module_path() | variables(threads)) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            # A terminal sends Ctrl-C to both; otherwise the child has not heard of it. It ends by itself, and says so.
            if sys.stdin is None or not sys.stdin.isatty():
                child.send_signal(signal.SIGINT)
            status = child.wait()
    return status if status >= 0 else 128 - status  # killed by a signal: the code that a shell would give
