"""Where units run: processes of this machine (loky), or the workers of a dask or ray cluster.

A worker of a cluster starts a fresh process for each unit, with the environment variables of the command, so that its
results are those of any other machine. Workers that do not share the folder of the command, or have other versions, are
refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pickle
import platform
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from powerpool.errors import ArgumentError, PowerPoolError, require_choice
from powerpool.files import atomic, write_text
from powerpool.runs.environment import environment
from powerpool.runs.processes import module_path, python_command, usable_cores

EngineName = Literal["loky", "dask", "ray"]
PACKAGES = {"loky": "joblib", "dask": "distributed", "ray": "ray"}
EXTRAS = {"loky": "sweep", "dask": "dask", "ray": "ray"}
WORKER_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # a waiting thread that spins takes the core from one that works
    "PYTHONHASHSEED": "0",  # otherwise the order of a set of strings differs between workers
}
"""Set before the interpreter of a worker starts: batched LU fails in torch 2.13 after torch.set_num_threads."""
TOKEN = ".engine"
"""A file in the folder of the units, by which a worker shows that it sees the folder."""
INHERITED = ("POWERPOOL_", "XDG_CACHE_HOME", "OMP_", "MKL_", "KMP_", "ATEN_", "TORCH_")
"""Prefixes of variables that units take from the command, not from their worker."""
PATIENCE = 30
"""Seconds that a cluster has for its first answer."""
Answer = TypeVar("Answer")


class EngineError(PowerPoolError, RuntimeError):
    """A cluster does not answer, or its workers cannot run units."""

    exit_code = 1


class DeathError(BrokenExecutor):
    """The process of a unit died."""


@dataclass(frozen=True)
class Engine:
    """Which engine, and the address of its cluster.

    Example:
        >>> Engine()
        Engine(name='loky', cluster=None)
        >>> Engine(cluster="tcp://10.0.0.1:8786")
        Traceback (most recent call last):
        ...
        powerpool.errors.ArgumentError: cluster needs engine dask or ray (got loky, which runs on this machine).
    """

    name: EngineName = "loky"
    cluster: str | None = None
    """Address of a scheduler; None for a cluster on this machine that ends with the command."""

    def __post_init__(self) -> None:
        require_choice(self.name, tuple(PACKAGES), "engine")
        if self.name == "loky" and self.cluster is not None:
            raise ArgumentError("cluster needs engine dask or ray (got loky, which runs on this machine).")
        if importlib.util.find_spec(PACKAGES[self.name]) is None:
            raise ArgumentError(
                f"engine {self.name} needs the package {PACKAGES[self.name]}, which is not installed: "
                f"pip install 'powerpool[{EXTRAS[self.name]}]'."
            )


@dataclass(frozen=True, kw_only=True)  # after the options of the command itself
class EngineOptions:
    """Where the units of a command run.

    Args:
        engine: loky, processes of this machine; or dask or ray, if installed. Results do not depend on it
        cluster: address of the scheduler of a dask or ray cluster whose machines share the folders of this one;
            default: a cluster on this machine with as many workers as jobs
    """

    engine: EngineName = "loky"
    cluster: str | None = None

    def __post_init__(self) -> None:
        Engine(self.engine, self.cluster)

    @property
    def runs_on(self) -> Engine:
        """The engine."""
        return Engine(self.engine, self.cluster)


@dataclass(frozen=True)
class Slots:
    """A running engine."""

    jobs: int
    """How many units it runs at a time."""
    make: Callable[[], Executor]
    """Makes an executor of one worker."""


@dataclass(frozen=True)
class Conditions:
    """What a worker of a cluster must provide, so that its results are those of any other."""

    variables: dict[str, str]
    folder: str
    """The working folder."""
    token: str
    """Path of a file that the command has written."""
    content: str
    versions: dict[str, str]
    """Required versions; empty on a cluster of this machine, which runs this installation."""


@contextlib.contextmanager
def open_cluster(engine: Engine, jobs: int | None, folder: Path) -> Iterator[Slots]:
    """Start or connect to a dask or ray cluster.

    Args:
        engine: dask or ray.
        jobs: units at a time; default: the workers of an existing cluster, or the cores of this machine.
        folder: where results go; workers that do not see it are refused.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
    token, content = folder.absolute() / TOKEN, secrets.token_hex(16)
    write_text(token, content)
    versions = {} if engine.cluster is None else installed_versions()
    conditions = Conditions({**own, **WORKER_VARIABLES}, os.getcwd(), str(token), content, versions)
    try:
        with (_open_dask if engine.name == "dask" else _open_ray)(engine.cluster, jobs, conditions) as slots:
            yield slots
    finally:
        token.unlink(missing_ok=True)


def installed_versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    found = environment()
    names = ("python", "torch", "powerpool", "commit")
    return {**{name: str(getattr(found, name)) for name in names}, "pillow": found.packages.get("pillow", "none")}


# ---- dask ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_dask(address: str | None, jobs: int | None, conditions: Conditions) -> Iterator[Slots]:
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        if address is None:
            jobs = usable_cores() if jobs is None else jobs
            cluster = LocalCluster(
                n_workers=jobs,
                threads_per_worker=1,
                memory_limit=0,  # as on loky
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
                scheduler_kwargs={"allowed_failures": 0},  # the command counts deaths
            )
            address = stack.enter_context(cluster).scheduler_address
        try:
            client = stack.enter_context(Client(address, timeout=PATIENCE, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineError(
                f"No dask scheduler answers at {address}: {error}. Start one with 'dask scheduler', and pass the "
                "address that it prints."
            ) from error
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as error:
            raise EngineError(
                f"The dask cluster at {address} has no workers. Start some on each machine: dask worker {address} "
                "--nworkers auto --nthreads 1"
            ) from error
        yield Slots(jobs or sum(client.nthreads().values()), partial(_DaskSlot, client, conditions))


class _DaskSlot(Executor):
    """One unit at a time on a dask cluster."""

    def __init__(self, client: Any, conditions: Conditions) -> None:
        self.client, self.conditions = client, conditions
        self.sent: Any = None

    def submit(self, call: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        ours: Future[Answer] = Future()
        payload = pickle.dumps(partial(call, *args, **kwargs))
        # Referred to, or dask would drop the task.
        self.sent = self.client.submit(run_in_process, payload, self.conditions, pure=False, retries=0)
        self.sent.add_done_callback(partial(self._receive, ours))
        return ours

    def _receive(self, ours: Future[Answer], theirs: Any) -> None:
        # Released before the answer is passed on: dask would repeat a task whose answer was lost with a worker.
        self.sent = None
        _pass_on(ours, _translate_dask, theirs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, kill_workers: bool = False) -> None:
        """Cancel the call; the worker belongs to the cluster."""
        del wait, cancel_futures, kill_workers
        sent = self.sent
        if sent is not None and not sent.done():
            sent.cancel(force=True)


def _translate_dask(error: BaseException) -> BaseException:
    from distributed import CancelledError, KilledWorker
    from distributed.comm.core import CommClosedError

    if isinstance(error, KilledWorker):
        return DeathError("The worker died.")
    if isinstance(error, (CancelledError, CommClosedError, TimeoutError)):
        return EngineError(f"The dask scheduler does not answer any more: {error}.")
    return error


# ---- ray -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_ray(address: str | None, jobs: int | None, conditions: Conditions) -> Iterator[Slots]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would send reports over the network
    # Ray 2 clears CUDA_VISIBLE_DEVICES of a task without a GPU, and warns that a later version will not.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    options = {"include_dashboard": False} if address is None else {}
    cores = (usable_cores() if jobs is None else jobs) if address is None else None
    try:
        ray.init(address=address or "local", num_cpus=cores, logging_level=logging.CRITICAL, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"No ray cluster at {address or 'this machine'}: {error} Start one with 'ray start --head', and pass the "
            "address that it prints."
        ) from error
    try:
        jobs = jobs or int(ray.cluster_resources().get("CPU", 0))
        if jobs < 1:
            raise EngineError(f"The ray cluster at {address} has no cores. Start 'ray start --address={address}'.")
        remote = ray.remote(num_cpus=1, max_retries=0)(run_in_process)
        yield Slots(jobs, partial(_RaySlot, remote, conditions))
    finally:
        ray.shutdown()


class _RaySlot(Executor):
    """One unit at a time on a ray cluster."""

    def __init__(self, remote: Any, conditions: Conditions) -> None:
        self.remote, self.conditions = remote, conditions
        self.sent: Any = None

    def submit(self, call: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        ours: Future[Answer] = Future()
        self.sent = self.remote.remote(pickle.dumps(partial(call, *args, **kwargs)), self.conditions)
        self.sent.future().add_done_callback(partial(_pass_on, ours, _translate_ray))
        return ours

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, kill_workers: bool = False) -> None:
        """End the process that runs the call."""
        import ray

        del wait, cancel_futures, kill_workers
        if self.sent is not None and ray.is_initialized():
            ray.cancel(self.sent, force=True)


def _translate_ray(error: BaseException) -> BaseException:
    from ray import exceptions

    deaths = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError)
    if isinstance(error, deaths):
        return DeathError("The worker died.")
    if isinstance(error, exceptions.RayTaskError):
        return error.cause if isinstance(error.cause, BaseException) else error
    return error


# ---- both clusters ---------------------------------------------------------------------------------------------------


def _pass_on(ours: Future[Any], translate: Callable[[BaseException], BaseException], theirs: Any) -> None:
    """Pass the answer or the error of a cluster's future on to ours."""
    try:
        answer = theirs.result()
    except BaseException as error:  # every error must reach the waiting future
        found = translate(error)
        if not isinstance(found, (DeathError, PowerPoolError)):
            found = EngineError(_describe_unfit(found))
        ours.set_exception(found)
    else:
        ours.set_result(answer)


def _describe_unfit(error: BaseException) -> str:
    return (
        f"A worker of the cluster cannot run units: {type(error).__name__}: {error}. Install the packages of this "
        "machine there."
    )


def run_in_process(payload: bytes, conditions: Conditions) -> Any:
    """Run a pickled call in a fresh process of a cluster's worker, and return its answer.

    Raises:
        DeathError: the process died.
        EngineError: this machine does not meet the conditions.
    """
    if not Path(conditions.folder).is_dir():
        raise _not_shared(conditions.folder)
    with tempfile.TemporaryDirectory(prefix="powerpool-unit-") as name:
        given, answered = Path(name, "call"), Path(name, "answer")
        given.write_bytes(pickle.dumps((payload, conditions)))
        code = "from powerpool.runs.engines import answer_call; answer_call(*sys.argv[1:])"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
        ended = subprocess.run(
            python_command(code, str(given), str(answered)),
            cwd=conditions.folder,
            env=kept | module_path() | conditions.variables,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C on a terminal is for the command, which then stops the cluster
            check=False,
        ).returncode
        if not answered.exists():
            raise DeathError(f"{{{signal.Signals(-ended).name if ended < 0 else 'EXIT'}({ended})}}")
        answer, error = pickle.loads(answered.read_bytes())
    if error is not None:
        raise EngineError(error)
    return answer


def answer_call(given: str, answered: str) -> None:
    """Check the conditions, call, and leave the answer in a file: what the fresh process does."""
    payload, conditions = pickle.loads(Path(given).read_bytes())
    try:
        require_conditions(conditions)
        answer: tuple[Any, str | None] = pickle.loads(payload)(), None
    except EngineError as error:
        answer = None, str(error)
    except Exception as error:  # of an import that unpickling needs; without an answer it would look like a death
        answer = None, _describe_unfit(error)
    with atomic(Path(answered)) as file:
        file.write_bytes(pickle.dumps(answer))


def require_conditions(conditions: Conditions) -> None:
    """Refuse to run where results would differ, or would not be seen."""
    here = installed_versions() if conditions.versions else {}
    for name, value in conditions.versions.items():
        if here[name] != value:
            raise EngineError(
                f"{name} is {here[name]} on {platform.node()}, and {value} where the command runs. Install the same "
                "versions on all machines."
            )
    with contextlib.suppress(OSError):
        if Path(conditions.token).read_text(encoding="ascii") == conditions.content:
            return
    raise _not_shared(str(Path(conditions.token).parent))


def _not_shared(folder: str) -> EngineError:
    return EngineError(
        f"{platform.node()} does not see {folder} of the machine where the command runs. Run in a folder that all "
        "machines share under the same path."
    )
