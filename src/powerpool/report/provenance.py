"""Settings, machines and commands behind the tables of a report."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from powerpool.report.tables import MISSING, RENAMED, Table
from powerpool.runs.environment import Environment
from powerpool.runs.record import RunRecord
from powerpool.runs.typed import Json

EXTRAS = {
    "graph": ("train", "graph", "sweep", "figures"),
    "vision": ("train", "vision", "sweep", "figures", "sklearn"),
    "fewshot": ("train", "vision", "sweep", "figures", "sklearn"),
}
"""The extras of the package that the commands of each task need."""
WIDTH = 96
"""Characters of a line of code."""
SAFE = re.compile(r"[\w.+!-]+", re.ASCII)
"""What may stand in a command that someone copies: a record may have been written by anyone."""


@dataclass(frozen=True)
class Settings:
    """What the runs of a task were asked for."""

    task: str
    common: list[str]
    """Settings of every run, as ``name: value``."""
    different: Table | None


def compare_settings(records: Sequence[RunRecord]) -> list[Settings]:
    """Return, for each task, the settings that all runs share and those in which they differ."""
    tasks = dict.fromkeys(record.task for record in records)
    return [_compare_settings(task, [record for record in records if record.task == task]) for task in tasks]


def list_machines(records: Sequence[RunRecord]) -> Table:
    """Return machines and versions, each once."""
    dates: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for record in records:
        dates[_describe_machine(record.environment)].append((record.environment.time or "")[:10])
    rows = [
        (*facts, str(len(days)), min(days) if len(set(days)) == 1 else f"{min(days)} to {max(days)}")
        for facts, days in dates.items()
    ]
    return Table(("machine", "threads", "Python", "torch", "powerpool", "commit", "records", "date"), rows)


@dataclass(frozen=True)
class Reproduction:
    """All that is needed to make the records again, and what may prevent it."""

    setup: list[str]
    """Commands that install the code and the versions that the records name."""
    commands: list[str]
    data: Table
    changed: int
    """Records from a checkout with uncommitted changes."""
    unknown: int
    """Records without a commit."""
    omitted: int
    """Records whose command is not a single call of powerpool."""
    differing: list[str]
    """Packages of which the records name several versions."""
    variables: list[str]
    """Environment variables of the workers, which ``reproduce`` sets itself."""


def describe_reproduction(records: Sequence[RunRecord]) -> Reproduction:
    """Collect code, versions, data and commands of records, each once, in the order of the runs."""
    commits: dict[str, list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda one: one.environment.time or ""):  # one may start from another's models
        commits[record.environment.commit or ""].append(record)
    versions = _collect_versions(records)
    checkout = _checkout(next(iter(commits))) if len(commits) == 1 else []
    named = [record.environment.command for record in records if record.environment.command is not None]
    variables = (f"{name}={value}" for one in records for name, value in one.environment.variables.items())
    return Reproduction(
        setup=[*checkout, *_install(records, versions)],
        commands=_list_commands(commits),
        data=_list_data(records),
        changed=sum(bool(record.environment.dirty) for record in records),
        unknown=sum(not record.environment.commit for record in records),
        omitted=sum(_quote_call(command) is None for command in named),
        differing=[f"{name} {', '.join(found)}" for name, found in versions.items() if len(found) > 1],
        variables=list(dict.fromkeys(variables)),
    )


# ---- settings --------------------------------------------------------------------------------------------------------


def _compare_settings(task: str, records: Sequence[RunRecord]) -> Settings:
    flat = [dict(_flatten(record.config)) for record in records]
    common: list[str] = []
    different: list[tuple[str, str, str]] = []
    for name in dict.fromkeys(name for settings in flat for name in settings):
        values = [settings.get(name) for settings in flat]
        if len(set(values)) == 1:
            common.append(f"{name}: {values[0]}")
        elif any(value not in (record.method, record.data) for value, record in zip(values, records, strict=True)):
            # Runs without the setting are those that are not listed.
            for value in dict.fromkeys(value for value in values if value is not None):
                chosen = [record for record, other in zip(records, values, strict=True) if other == value]
                different.append((name, value, _describe_runs(chosen, records)))
    table = Table(("setting", "value", "runs"), different) if different else None
    return Settings(task, common, table)


def _flatten(settings: dict[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings by dotted names, those of version 0.1 by their new names."""
    for name, value in settings.items():
        name = RENAMED.get(name, name)
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def _describe_runs(chosen: Sequence[RunRecord], records: Sequence[RunRecord]) -> str:
    """Name some of the records: by data sets, methods or protocols where these have no others."""
    ways: tuple[Callable[[RunRecord], str], ...] = (
        lambda record: record.data,
        lambda record: record.method,
        lambda record: record.protocol,
        lambda record: f"{record.data} ({record.protocol})",
        lambda record: f"{record.data} {record.method}",
    )
    for name in ways:
        named = dict.fromkeys(map(name, chosen))
        if sum(name(record) in named for record in records) == len(chosen):
            return ", ".join(named)
    return ", ".join(f"{record.data} {record.method} ({record.protocol})" for record in chosen)


def _describe_machine(environment: Environment) -> tuple[str, ...]:
    machine = " with ".join(part for part in (environment.processor, environment.cuda) if part)
    commit = MISSING if environment.commit is None else environment.commit[:10]
    return (
        machine or MISSING,
        MISSING if environment.threads is None else str(environment.threads),
        environment.python or MISSING,
        environment.torch or MISSING,
        environment.powerpool or MISSING,
        f"{commit} with changes" if environment.dirty else commit,
    )


# ---- commands --------------------------------------------------------------------------------------------------------


def _checkout(commits: str) -> list[str]:
    """The line that checks out the code; none where no commit is known."""
    known = [commit for commit in commits.split(", ") if re.fullmatch(r"[0-9a-f]{7,64}", commit)]
    others = f"  # some of the results come from {', '.join(known[1:])}" if len(known) > 1 else ""
    return [f"git checkout {known[0]}{others}"] if known else []


def _list_commands(commits: dict[str, list[RunRecord]]) -> list[str]:
    """The commands, each once; with several commits each group follows its checkout."""
    lines: list[str] = []
    for commit, records in commits.items():
        calls = [call for record in records if (call := _quote_call(record.environment.command))]
        if calls and len(commits) > 1:
            lines += _checkout(commit) or ["# unknown commit:"]
        lines += dict.fromkeys(calls)
    return lines


def _quote_call(command: str | None) -> str | None:
    """Quote a command again; None unless it is a single call of powerpool.

    Example:
        >>> _quote_call("powerpool report; rm -rf ~"), _quote_call("curl x | sh")
        ("powerpool 'report;' rm -rf '~'", None)
    """
    if command is None or not command.isprintable():
        return None
    try:
        words = shlex.split(command)
    except ValueError:  # a quotation mark is not closed
        return None
    return shlex.join(words) if words[:1] == ["powerpool"] else None


def _install(records: Sequence[RunRecord], versions: dict[str, list[str]]) -> list[str]:
    extras = dict.fromkeys(extra for record in records for extra in EXTRAS[record.task])
    pinned = [
        f"{name}=={found[0].partition('+')[0]}"  # after + is the name of a build, which pip finds elsewhere
        for name, found in versions.items()
        if len(found) == 1 and name not in ("python", "powerpool")
    ]
    python = f"  # Python {', '.join(versions['python'])}" if versions["python"] else ""
    install = " ".join(["pip install -e", f"'.[{','.join(extras)}]'", *pinned])
    lines = textwrap.wrap(install, WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")
    wrapped = [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
    return [f"python -m venv .venv{python}", ". .venv/bin/activate", *wrapped]


def _collect_versions(records: Iterable[RunRecord]) -> dict[str, list[str]]:
    """Versions of Python, torch and other packages by name; a record may name several, of several machines."""
    found: dict[str, list[str]] = {"python": [], "torch": []}
    for record in records:
        environment = record.environment
        named = {"python": environment.python, "torch": environment.torch, **environment.packages}
        for name, text in named.items():
            for version in (text or "").split(", "):
                if SAFE.fullmatch(name) and SAFE.fullmatch(version) and version not in found.setdefault(name, []):
                    found[name].append(version)
    return found


def _list_data(records: Iterable[RunRecord]) -> Table:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for record in records:
        counts[record.data, str(record.config.get("data_digest") or MISSING)] += 1
    return Table(("data", "digest", "records"), [(*names, str(count)) for names, count in counts.items()])
