"""Kill runs with SIGKILL at random moments, give the same command again, and compare with a run nobody killed.

    python -m tests.stress.kills --kills 24 --seed 0 --out runs/stress

Moments are drawn over what a run computes, with a random part of what one unit takes on top: they fall between two
steps, inside of one, and into the writing of a checkpoint. Before the next kill the run has done at least one unit
more, so that none falls into the start of the program.

Two runs are equal where the digests of all weights and all numbers of their records are, but for times. Nothing was
redone that was in a checkpoint where no unit that had been saved at the kill was computed again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import powerpool
from powerpool.files import read_json, write_json, write_text
from powerpool.runs.environment import environment
from powerpool.runs.typed import to_json
from tests.stress import cases, launch
from tests.stress.cases import Case, outcome

ROOT = Path(__file__).parents[2]
PATIENCE = 3600.0
"""Seconds that anything may take: nothing here is about time, and nothing waits for ever."""
POLL = 0.005
REPRODUCE_KILLS = 3
EVERY = 4
"""Epochs or episodes from one checkpoint to the next: most kills fall between two."""
RECORD, TABLE = "kills.json", "README.md"

PRELOADED = (
    "tests.stress.launch",
    "powerpool.tasks.fewshot.task",
    "powerpool.tasks.graph.task",
    "powerpool.tasks.vision.task",
    "lightning.fabric",
    "jsonargparse",
    "rich.progress",
    "torch_geometric.nn",
)


@dataclass(frozen=True)
class Place:
    """A run of a case: its folder, its cache and its ledger lie below one folder, in which the command is given."""

    case: Case
    folder: Path
    name: str
    hold: int | None = None
    """After so many units a process of its own stands still, until it is told to go on."""
    every: int = 1
    """Epochs or episodes from one checkpoint to the next."""

    @property
    def words(self) -> list[str]:
        """What is typed after ``powerpool``."""
        return [*self.case.words, "--out", self.name]

    @property
    def run(self) -> Path:
        return self.folder / self.name

    @property
    def cache(self) -> Path:
        return self.folder / f"{self.name}-cache"

    @property
    def ledger(self) -> Path:
        return self.folder / f"{self.name}.ledger"

    @property
    def stamps(self) -> cases.Stamps:
        """The units that were computed."""
        return self.case.stamps(self.run, self.ledger)

    @property
    def saved(self) -> set[str]:
        """The units that are safe."""
        return self.case.saved(self.run, self.cache)

    @property
    def variables(self) -> dict[str, str]:
        """Of the processes: a cache of their own, no network, this very code, and as many threads as here."""
        paths = [str(Path(powerpool.__file__).parents[1]), str(ROOT)]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "POWERPOOL_CACHE": str(self.cache),
            "POWERPOOL_OFFLINE": "1",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            launch.EVERY: str(self.every),
            **({} if self.hold is None else {launch.HOLD: str(self.hold)}),
        }


@dataclass(frozen=True)
class Running:
    """A process that was started, and the files that its messages go to."""

    pid: int
    poll: Callable[[], int | None]
    """The exit code, as :mod:`subprocess` has it; None while it runs."""
    out: Path
    err: Path

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait_until_held(self) -> None:
        """Wait until it stands still."""
        end = time.monotonic() + PATIENCE
        while self.poll() is None and time.monotonic() < end:
            # The letter after the name, which is in brackets and may hold anything.
            state = Path("/proc", str(self.pid), "stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                return
            time.sleep(POLL)
        raise StressError(f"Process {self.pid} does not stand still: {self.err.read_text()}")

    def wait(self) -> int:
        """The exit code, when it has ended."""
        end = time.monotonic() + PATIENCE
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise StressError(f"Process {self.pid} does not end.")
            time.sleep(POLL)
        return code


def start(place: Place) -> Running:
    """The command in a process that has imported everything already: a copy of one that has done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *PRELOADED])
    out, err = place.ledger.with_suffix(".out"), place.ledger.with_suffix(".err")
    arguments = (place.folder, place.variables, place.ledger, place.words, out, err)
    process = context.Process(target=_run_warm, args=arguments)
    process.start()
    assert process.pid is not None
    return Running(process.pid, lambda: process.exitcode, out, err)


def _run_warm(folder: Path, variables: dict[str, str], ledger: Path, words: list[str], out: Path, err: Path) -> None:
    os.chdir(folder)
    os.environ.update(variables)
    for number, file in ((1, out), (2, err)):
        with file.open("w") as to:
            os.dup2(to.fileno(), number)
    sys.exit(launch.run(ledger, words))


@dataclass
class Kill:
    """One kill, and what came of it."""

    case: str
    unit: str
    moment: float
    """Seconds after the first unit of this attempt."""
    done: int
    """Units that had been computed."""
    of: int
    """Units of the whole run."""
    saved: int
    """Units that were in a checkpoint."""
    redone: int = 0
    """Units that were computed again: those since the last checkpoint."""
    saved_redone: int = 0
    """Those of them that were in a checkpoint; there must be none."""
    equal: bool = False
    """Whether weights and metrics are in the end those of the run that nobody killed."""


class StressError(AssertionError):
    """A command failed that should not have."""


# ---- one run ---------------------------------------------------------------------------------------------------------


def finish(place: Place) -> None:
    """Give the command in this process, and wait for its end."""
    code = give_here(place)
    if code != 0:
        raise StressError(f"{' '.join(place.words)} ended with exit code {code}.")


def give_here(place: Place) -> int:
    """Give the command in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.folder)
        for name in ("POWERPOOL_CACHE", "POWERPOOL_OFFLINE", launch.EVERY):
            patch.setenv(name, place.variables[name])
        return launch.run(place.ledger, place.words)


def kill_at(place: Place, point: float, gap: float, whole: int) -> Kill | None:
    """Start, kill when ``point`` units are done and one of them is new, and a part of ``gap`` seconds later.

    None where the command came to its end before.
    """
    first, began = place.stamps, 0.0
    running = start(place)
    try:
        while running.poll() is None:
            stamps = place.stamps
            if not began and stamps != first:
                began = time.monotonic()
            if began and len(stamps) >= int(point):
                time.sleep((point - int(point)) * gap)
                break
            time.sleep(POLL)
    finally:
        running.signal(signal.SIGKILL)
    moment, code = time.monotonic() - began, running.wait()
    if code == 0 or (place.run / "record.json").exists():  # all was done, but for the end of the process
        return None
    if code != -signal.SIGKILL:
        raise StressError(f"{' '.join(place.words)} ended with {code}: {running.err.read_text()}")
    return Kill(place.case.name, place.case.unit, round(moment, 2), len(place.stamps), whole, len(place.saved))


def begin(case: Case, folder: Path) -> Place:
    """Make the data in an empty folder and run a case without a kill: what others are compared with."""
    case.prepare(folder)
    whole = Place(case, folder, "whole")
    finish(whole)
    return whole


def trial(whole: Place, kills: int, draw: random.Random, every: int = 1) -> list[Kill]:
    """Run the case of ``whole``, which nobody killed, with so many kills at drawn moments, and return them."""
    times = sorted(whole.stamps.values())
    count, gap = len(times), (times[-1] - times[0]) / max(len(times) - 1, 1)
    found: list[Kill] = []
    for number in range(1, 10 * kills + 1):  # a run that ends before its last kill leaves it to another one
        if len(found) == kills:
            break
        place = Place(whole.case, whole.folder, f"killed-{number}", every=every)
        points = sorted(draw.uniform(0, count) for _ in range(kills - len(found)))
        own = _round(place, points, gap, count)
        for kill in own:
            kill.equal = are_equal(place, whole)
        found += own
    return found


def are_equal(one: Place, other: Place) -> bool:
    """Whether two runs have come to the same, bit for bit, by the same units."""
    return outcome(one.run) == outcome(other.run) and one.stamps.keys() == other.stamps.keys()


def _round(place: Place, points: Sequence[float], gap: float, whole: int) -> list[Kill]:
    """One run, killed at these points unless it ends before."""
    kills: list[Kill] = []
    ended = False
    for point in points:
        before, saved = place.stamps, place.saved
        kill = kill_at(place, point, gap, whole)
        _note_redone(kills, before, saved, place.stamps)
        if kill is None:
            ended = True
            break
        kills.append(kill)
    if not ended:
        before, saved = place.stamps, place.saved
        finish(place)
        _note_redone(kills, before, saved, place.stamps)
    return kills


def _note_redone(kills: list[Kill], before: cases.Stamps, saved: set[str], after: cases.Stamps) -> None:
    """What the attempt after the last kill did again."""
    if kills:
        again = {unit for unit, when in before.items() if after.get(unit) != when}
        kills[-1].redone, kills[-1].saved_redone = len(again), len(again & saved)


# ---- the record ------------------------------------------------------------------------------------------------------


def table(record: dict[str, Any]) -> str:
    """The record as a page."""
    kills, machine = record["kills"], record["environment"]
    rows = ["| run | kills | after a checkpoint | computed again | of it from a checkpoint | same result |"]
    rows += ["|---|--:|--:|--:|--:|--:|"]
    for name in dict.fromkeys(kill["case"] for kill in kills):
        own = [kill for kill in kills if kill["case"] == name]
        again = f"{sum(kill['redone'] for kill in own)} of {sum(kill['done'] for kill in own)} {own[0]['unit']}"
        cells = [len(own), sum(kill["saved"] > 0 for kill in own), again, sum(kill["saved_redone"] for kill in own)]
        rows.append(f"| {name} | {' | '.join(map(str, cells))} | {sum(kill['equal'] for kill in own)} |")
    after, equal = sum(kill["saved"] > 0 for kill in kills), sum(kill["equal"] for kill in kills)
    return f"""# Killed and taken up again

{len(kills)} times a run was ended by SIGKILL at a random moment and the same command given again, {after} times with a
checkpoint to go on from. {equal} of {len(kills)} came to the weights and metrics of a run that nobody killed, bit for
bit.

{chr(10).join(rows)}

Computed again is what was done since the last checkpoint, summed over kills. Training end to end saves every epoch, and
the features of pictures every batch. Of folds, those that ran at the kill are not counted.

Made by `python -m tests.stress.kills --kills {record["asked"]} --seed {record["seed"]}` on {machine["processor"]} with
torch {machine["torch"]}, commit {(machine["commit"] or "unknown")[:7]}. Each kill is in [{RECORD}]({RECORD}).
"""


def problems(record: dict[str, Any]) -> list[str]:
    """What is not as it has to be."""
    kills, found = record["kills"], []
    of_reproduce = sum(kill["case"] == "reproduce" for kill in kills)
    for what, count, asked in (
        ("trainings", len(kills) - of_reproduce, record["asked"]),
        ("reproduce", of_reproduce, REPRODUCE_KILLS),
    ):
        if count < asked:
            found.append(f"{count} kills of {what}, not the {asked} that were asked for: runs ended before")
    different = [kill["case"] for kill in kills if not kill["equal"]]
    again = [kill["case"] for kill in kills if kill["saved_redone"]]
    if different:
        found.append(f"other weights or metrics after kills of: {', '.join(different)}")
    if again:
        found.append(f"what was in a checkpoint was computed again after kills of: {', '.join(again)}")
    if 2 * sum(kill["saved"] > 0 for kill in kills) < len(kills):
        found.append("less than half of the kills fell after a checkpoint")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases, write the record and the table; 1 if anything is not as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=24, help="of trainings; three of reproduce come on top")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs", "stress"), help="folder for the record and its table")
    options = parser.parse_args(argv)
    machine, draw = to_json(environment()), random.Random(options.seed)
    chosen = [cases.graph(), cases.fewshot(), cases.frozen(), cases.end_to_end(), cases.reproduce()]
    trainings = len(chosen) - 1
    shares = [options.kills // trainings + (place < options.kills % trainings) for place in range(trainings)]
    kills: list[Kill] = []
    for case, share in zip(chosen, [*shares, REPRODUCE_KILLS], strict=True):
        with tempfile.TemporaryDirectory(prefix="powerpool-stress-") as folder:
            found = trial(begin(case, Path(folder)), share, draw, EVERY)
        kills += found
        print(f"{case.name}: {len(found)} kills, {sum(kill.equal for kill in found)} with the same result", flush=True)
    listed = [asdict(kill) for kill in kills]
    record = {"schema": 1, "asked": options.kills, "seed": options.seed, "kills": listed, "environment": machine}
    write_json(options.out / RECORD, record)
    write_text(options.out / TABLE, table(read_json(options.out / RECORD)))
    wrong = problems(record)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"written: {options.out / TABLE}, {options.out / RECORD}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
