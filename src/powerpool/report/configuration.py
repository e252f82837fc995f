"""Settings, machines and versions behind the tables of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from powerpool.report import tables
from powerpool.report.document import Block, Code, Heading, Items, Table, Text
from powerpool.runs.record import RunRecord


def configuration(records: Sequence[RunRecord]) -> Iterator[Block]:
    """What runs were asked for, and where they ran."""
    yield Heading("Configuration", 2)
    yield from _settings(records)
    yield from _origin(records)


def _settings(records: Sequence[RunRecord]) -> Iterator[Block]:
    """What all runs of a pipeline have in common, and where they differ, beyond the names of data and methods."""
    pipelines = tables.by_pipeline(records)
    for pipeline, members in pipelines.items():
        common, different = _compare_settings(members)
        of = f" of {pipeline}" if len(pipelines) > 1 else ""
        yield Text(f"Settings of every run{of}:")
        yield Code("\n".join(common) or "none in common")
        if different:
            yield Text(f"Settings in which runs{of} differ:")
            yield Table(("setting", "value", "runs"), different)


def _compare_settings(records: Sequence[RunRecord]) -> tuple[list[str], list[tuple[str, str, str]]]:
    flat = [dict(_flat(record.config)) for record in records]
    names = list(dict.fromkeys(name for settings in flat for name in settings))
    common: list[str] = []
    different: list[tuple[str, str, str]] = []
    for name in names:
        values = [settings.get(name, tables.MISSING) for settings in flat]
        if len(set(values)) == 1:
            common.append(f"{name}: {values[0]}")
        elif any(value not in (record.method, record.data) for value, record in zip(values, records, strict=True)):
            # Runs that do not have the setting at all are those that are not named.
            different += [
                (name, value, _where([other == value for other in values], records))
                for value in dict.fromkeys(values)
                if value != tables.MISSING
            ]
    return common, different


def _where(chosen: Sequence[bool], records: Sequence[RunRecord]) -> str:
    """Data sets of which all runs are chosen, protocols of others of which all are, and single runs of the rest."""
    members: dict[str, dict[str, list[tuple[bool, RunRecord]]]] = defaultdict(lambda: defaultdict(list))
    for is_chosen, record in zip(chosen, records, strict=True):
        members[record.data][record.protocol].append((is_chosen, record))
    parts = []
    for data, protocols in members.items():
        if all(is_chosen for runs in protocols.values() for is_chosen, _ in runs):
            parts.append(data)
            continue
        for protocol, runs in protocols.items():
            if all(is_chosen for is_chosen, _ in runs):
                parts.append(f"{data} ({protocol})")
            else:
                parts += [f"{data} {record.method} ({protocol})" for is_chosen, record in runs if is_chosen]
    return ", ".join(parts)


def _origin(records: Sequence[RunRecord]) -> Iterator[Block]:
    """Machines and versions, each once."""
    machines: dict[str, list[str]] = defaultdict(list)
    for record in records:
        machines[_machine(record.environment)].append(str(record.environment.get("time", ""))[:10])
    yield Heading("Where the numbers come from", 2)
    yield Items(
        [
            f"{machine}: {len(dates)} records, {min(dates)}" + (f" to {max(dates)}" if len(set(dates)) > 1 else "")
            for machine, dates in machines.items()
        ]
    )


def _machine(environment: dict[str, Any]) -> str:
    facts = environment.get
    versions = [f"{name} {facts(name)}" for name in ("python", "torch", "powerpool") if facts(name)]
    commit = facts("commit")
    code = "no commit" if commit is None else f"commit {str(commit)[:10]}{' with changes' if facts('dirty') else ''}"
    machine = " with ".join(str(part) for part in (facts("processor"), facts("cuda")) if part) or "unknown machine"
    threads = [f"threads {facts('threads')}"] if facts("threads") else []
    return ", ".join([machine, *threads, *versions, code])


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings by dotted names."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
