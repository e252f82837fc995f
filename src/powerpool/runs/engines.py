"""What runs units: processes of this machine, or the workers of a dask or ray cluster.

An engine makes executors of one worker each, as :mod:`concurrent.futures` defines them: ``submit``, ``shutdown``, and
``BrokenExecutor`` when the worker died. The loop in :mod:`powerpool.runs.scheduler` needs nothing else.

On a cluster every unit has a process of its own, which its worker starts with the variables, the working folder and
the versions that the command asks for. So a result does not depend on how the workers were started, and not on the
engine: dask, for one, gives its workers another hash seed, whatever they are told. Workers read data and write results
themselves: all machines need the same folders under the same names, and every unit makes sure of that first.
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from powerpool.errors import ArgumentError, PowerPoolError, require_choice
from powerpool.files import atomic, write_text
from powerpool.runs.environment import environment
from powerpool.runs.processes import module_places, python, usable_cores

EngineName = Literal["loky", "dask", "ray"]
PACKAGES = {"loky": "joblib", "dask": "distributed", "ray": "ray"}
EXTRAS = {"loky": "sweep", "dask": "dask", "ray": "ray"}
TOKEN = ".engine"
"""The file in the folder of the units that a worker must see."""
OWN = ("POWERPOOL_", "XDG_CACHE_HOME", "OMP_", "MKL_", "KMP_", "ATEN_", "TORCH_")
"""Variables that begin with these are for units those of the command, and not those of a worker: where data is,
``--offline``, and what changes the numbers of torch."""
PATIENCE = 30
"""Seconds that a cluster has for its first answer."""
Answer = TypeVar("Answer")


class EngineError(PowerPoolError, RuntimeError):
    """A cluster does not answer, or its workers cannot do what is asked; the message says what to change."""

    exit_code = 1


class DeathError(BrokenExecutor):
    """The process of a unit, or the worker that started it, died."""


@dataclass(frozen=True)
class Engine:
    """Which engine, and where.

    Example:
        >>> Engine()
        Engine(name='loky', cluster=None)
        >>> Engine(cluster="tcp://10.0.0.1:8786")
        Traceback (most recent call last):
        ...
        powerpool.errors.ArgumentError: cluster needs engine dask or ray (got loky): loky runs on this machine alone.
    """

    name: EngineName = "loky"
    cluster: str | None = None
    """The address of a scheduler; None for a cluster on this machine that ends with the command."""

    def __post_init__(self) -> None:
        require_choice(self.name, tuple(PACKAGES), "engine")
        if self.name == "loky" and self.cluster is not None:
            raise ArgumentError("cluster needs engine dask or ray (got loky): loky runs on this machine alone.")
        if importlib.util.find_spec(PACKAGES[self.name]) is None:
            raise ArgumentError(
                f"engine {self.name} needs the package {PACKAGES[self.name]}, which is not installed: "
                f"pip install 'powerpool[{EXTRAS[self.name]}]'."
            )


@dataclass(frozen=True, kw_only=True)  # behind the options of the command itself
class EngineOptions:
    """What runs the units of a command.

    Args:
        engine: where the work is done: loky, in processes of this machine; or dask or ray, if installed. Figures do
            not depend on it
        cluster: address of the scheduler of a dask or ray cluster, whose machines share this one's folders; without it
            a cluster on this machine, of as many workers as there are jobs
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
    """An engine at work."""

    jobs: int
    """How many units it runs at a time."""
    make: Callable[[], Executor]
    """Another executor of one worker."""


@dataclass(frozen=True)
class Orders:
    """What a worker of a cluster must hold to, so that its results are those of any other."""

    variables: dict[str, str]
    """Of the environment, set before the interpreter of a unit starts."""
    place: str
    """The working folder."""
    token: str
    """The path of a file that the command has written there."""
    content: str
    """What the file holds."""
    versions: dict[str, str]
    """What must be installed, by name; empty where it is the same installation."""


@contextlib.contextmanager
def opened(engine: Engine, jobs: int | None, variables: Mapping[str, str], folder: Path) -> Iterator[Slots]:
    """A cluster that is ready to run units.

    Args:
        engine: dask or ray.
        jobs: units at a time; ``None`` for as many as a cluster that is there has workers, or this machine cores.
        variables: of the environment of units.
        folder: where results go: workers that do not see it are refused.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith(OWN)}
    token, content = folder.absolute() / TOKEN, secrets.token_hex(16)
    write_text(token, content)
    # A cluster on this machine runs the code that is here, as loky does.
    known = {} if engine.cluster is None else versions()
    orders = Orders({**own, **variables}, os.getcwd(), str(token), content, known)
    try:
        with (_dask if engine.name == "dask" else _ray)(engine.cluster, jobs, orders) as slots:
            yield slots
    finally:
        token.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return what results depend on beside their settings: workers with other versions are refused."""
    found = environment()
    names = ("python", "torch", "powerpool", "commit")
    return {**{name: str(getattr(found, name)) for name in names}, "pillow": found.packages.get("pillow", "none")}


# ---- dask ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dask(address: str | None, jobs: int | None, orders: Orders) -> Iterator[Slots]:
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        if address is None:
            jobs = usable_cores() if jobs is None else jobs
            address = stack.enter_context(
                LocalCluster(
                    n_workers=jobs,
                    threads_per_worker=1,
                    memory_limit=0,  # a unit takes what it needs, as on loky
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,  # a death is told by the command itself
                    scheduler_kwargs={"allowed_failures": 0},  # it is the command that counts deaths
                )
            ).scheduler_address
        try:
            client = stack.enter_context(Client(address, timeout=PATIENCE, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineError(
                f"No dask scheduler answers at {address}: {error}. Start one with 'dask scheduler', and name the "
                "address that it prints."
            ) from error
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as error:
            raise EngineError(
                f"The dask cluster at {address} has no workers. Start some on each machine: dask worker {address} "
                "--nworkers auto --nthreads 1"
            ) from error
        yield Slots(jobs or sum(client.nthreads().values()), partial(_DaskSlot, client, orders))


class _DaskSlot(Executor):
    """A place in the queue of a dask cluster, for one unit at a time."""

    def __init__(self, client: Any, orders: Orders) -> None:
        self.client, self.orders = client, orders
        self.sent: Any = None

    def submit(self, call: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        """Send a call to a worker."""
        ours: Future[Answer] = Future()
        payload = pickle.dumps(partial(call, *args, **kwargs))
        # Kept: dask drops a task that nobody refers to any more.
        self.sent = self.client.submit(run_alone, payload, self.orders, pure=False, retries=0)
        self.sent.add_done_callback(partial(self._answered, ours))
        return ours

    def _answered(self, ours: Future[Answer], theirs: Any) -> None:
        # Not kept any longer: dask would run a task again whose answer was lost with a worker. Before the answer is
        # passed on, after which the next call may come at once.
        self.sent = None
        _pass_on(ours, _dask_error, theirs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, kill_workers: bool = False) -> None:
        """Take the call back; the worker belongs to the cluster."""
        del wait, cancel_futures, kill_workers
        sent = self.sent
        if sent is not None and not sent.done():
            sent.cancel(force=True)


def _dask_error(error: BaseException) -> BaseException:
    from distributed import CancelledError, KilledWorker
    from distributed.comm.core import CommClosedError

    if isinstance(error, KilledWorker):
        return DeathError("The worker died.")
    if isinstance(error, (CancelledError, CommClosedError, TimeoutError)):
        return EngineError(f"The dask scheduler does not answer any more: {error}.")
    return error


# ---- ray -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ray(address: str | None, jobs: int | None, orders: Orders) -> Iterator[Slots]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would send reports over the network
    # Ray 2 clears CUDA_VISIBLE_DEVICES of a task without a GPU, and warns that a later one will not.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    options = {"include_dashboard": False} if address is None else {}
    cores = (usable_cores() if jobs is None else jobs) if address is None else None
    try:
        ray.init(address=address or "local", num_cpus=cores, logging_level=logging.CRITICAL, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"No ray cluster at {address or 'this machine'}: {error} Start one with 'ray start --head', and name the "
            "address that it prints."
        ) from error
    try:
        jobs = jobs or int(ray.cluster_resources().get("CPU", 0))
        if jobs < 1:
            raise EngineError(f"The ray cluster at {address} has no cores. Start 'ray start --address={address}'.")
        run = ray.remote(num_cpus=1, max_retries=0)(run_alone)
        yield Slots(jobs, partial(_RaySlot, run, orders))
    finally:
        ray.shutdown()


class _RaySlot(Executor):
    """A core of a ray cluster, for one unit at a time."""

    def __init__(self, run: Any, orders: Orders) -> None:
        self.run, self.orders = run, orders
        self.sent: Any = None

    def submit(self, call: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        """Send a call to a worker."""
        ours: Future[Answer] = Future()
        self.sent = self.run.remote(pickle.dumps(partial(call, *args, **kwargs)), self.orders)
        self.sent.future().add_done_callback(partial(_pass_on, ours, _ray_error))
        return ours

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, kill_workers: bool = False) -> None:
        """End the process that runs the call, if it does."""
        import ray

        del wait, cancel_futures, kill_workers
        if self.sent is not None and ray.is_initialized():
            ray.cancel(self.sent, force=True)


def _ray_error(error: BaseException) -> BaseException:
    from ray import exceptions

    deaths = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError)
    if isinstance(error, deaths):
        return DeathError("The worker died.")
    if isinstance(error, exceptions.RayTaskError):
        return error.cause if isinstance(error.cause, BaseException) else error
    return error


# ---- both ------------------------------------------------------------------------------------------------------------


def _pass_on(ours: Future[Any], translate: Callable[[BaseException], BaseException], theirs: Any) -> None:
    """Give the answer of a cluster's future to ours, its errors in our words."""
    try:
        answer = theirs.result()
    except BaseException as error:  # the one who waits for ours has to know, whatever it is
        told = translate(error)
        if not isinstance(told, (DeathError, PowerPoolError)):
            told = EngineError(_unfit(told))
        ours.set_exception(told)
    else:
        ours.set_result(answer)


def _unfit(error: BaseException) -> str:
    return (
        f"A worker of the cluster cannot run units: {type(error).__name__}: {error}. It needs the packages that this "
        "command has."
    )


# In a worker of the cluster.


def run_alone(payload: bytes, orders: Orders) -> Any:
    """Run a pickled call in a process of its own, as ordered, and return its answer.

    Raises:
        DeathError: the process died.
        EngineError: this machine cannot hold to the orders.
    """
    if not Path(orders.place).is_dir():
        raise _unshared(orders.place)
    with tempfile.TemporaryDirectory(prefix="powerpool-unit-") as name:
        given, answered = Path(name, "call"), Path(name, "answer")
        given.write_bytes(pickle.dumps((payload, orders)))
        code = "from powerpool.runs.engines import serve; serve(*sys.argv[1:])"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
        ended = subprocess.run(
            python(code, str(given), str(answered)),
            cwd=orders.place,
            env=kept | module_places() | orders.variables,
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


def serve(given: str, answered: str) -> None:
    """What the process of a unit does: check, call, leave the answer in a file."""
    payload, orders = pickle.loads(Path(given).read_bytes())
    try:
        require(orders)
        answer: tuple[Any, str | None] = pickle.loads(payload)(), None
    except EngineError as error:
        answer = None, str(error)
    except Exception as error:  # of an import that unpickling needs: without an answer it would look like a death
        answer = None, _unfit(error)
    with atomic(Path(answered)) as file:
        file.write_bytes(pickle.dumps(answer))


def require(orders: Orders) -> None:
    """Refuse to run where results would differ, or would not be seen."""
    here = versions() if orders.versions else {}
    for name, value in orders.versions.items():
        if here[name] != value:
            raise EngineError(
                f"{name} is {here[name]} on {platform.node()}, and {value} where the command runs. Results would mix: "
                "install the same on all machines."
            )
    try:
        content = Path(orders.token).read_text(encoding="ascii")
    except OSError:
        content = ""
    if content != orders.content:
        raise _unshared(str(Path(orders.token).parent))


def _unshared(folder: str) -> EngineError:
    return EngineError(
        f"{platform.node()} does not see {folder} as it is where the command runs. Workers read data and write results "
        "themselves: run in a folder that all machines share under the same name."
    )
