"""How the records of a report can be made again: code, versions, data and commands, each once."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from powerpool.report.document import Block, Code, Heading, Items, Table, Text
from powerpool.runs.record import RunRecord

EXTRAS = {
    "graph": ("train", "graph", "sweep", "figures"),
    "vision": ("train", "vision", "sweep", "figures", "sklearn"),
    "fewshot": ("train", "vision", "sweep", "figures", "sklearn"),
}
"""What the commands of each pipeline need beside the library."""
WIDTH = 96
"""Letters of a line of code."""
SAFE = re.compile(r"[\w.+!-]+", re.ASCII)
"""What may stand in a command that someone copies: a record may have been written by anyone."""


def reproduction(records: Sequence[RunRecord]) -> Iterator[Block]:
    """A section with all that is needed, and what stands in the way."""
    yield Heading("How to reproduce", 2)
    yield Text(
        "In a checkout of the repository, with the versions that the records name. Settings and seeds are those above; "
        "recipes that ship hold them, and the commands choose the recipe."
    )
    found = _by_commit(records)
    single = _checkout(next(iter(found))) if len(found) == 1 else []
    yield Code("\n".join([*single, *_install(records)]))
    commands = _commands(found)
    if commands:
        yield Text("Commands:" if len(found) == 1 else "Commands, each group with the code of its commit:")
        yield Code("\n".join(commands))
    yield Text(
        "Data is looked for below --data_root, below $POWERPOOL_DATA and in the cache, and is fetched with --download "
        "true. The digest of its content is in the record:"
    )
    yield Table(("data", "digest", "records"), _data(records))
    yield Items([*_obstacles(records), *_notes(records)])


def _by_commit(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Records by the commit that they come from, or by several of them, as the records name them."""
    found: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        found[str(record.environment.get("commit") or "")].append(record)
    return found


def _checkout(commits: str) -> list[str]:
    """The line that gets the code; none where no commit is known."""
    known = [commit for commit in commits.split(", ") if re.fullmatch(r"[0-9a-f]{7,64}", commit)]
    if not known:
        return []
    others = f"  # some of the results come from {_listed(known[1:])}" if len(known) > 1 else ""
    return [f"git checkout {known[0]}{others}"]


def _commands(found: dict[str, list[RunRecord]]) -> list[str]:
    """The commands, each once; where there are several commits, behind the line that gets the code."""
    lines = []
    for commits, records in found.items():
        own = _each(_call(record.environment.get("command")) for record in records)
        if own and len(found) > 1:
            lines += _checkout(commits) or ["# no commit is known:"]
        lines += own
    return lines


def _call(command: Any) -> str | None:
    """The command where it is one call of powerpool and nothing else, quoted anew; None for what is anything more.

    Example:
        >>> _call("powerpool report; rm -rf ~"), _call("curl x | sh")
        ("powerpool 'report;' rm -rf '~'", None)
    """
    if not isinstance(command, str) or not command.isprintable():
        return None
    try:
        words = shlex.split(command)
    except ValueError:  # a quotation mark that nothing closes
        return None
    return shlex.join(words) if words[:1] == ["powerpool"] else None


def _install(records: Sequence[RunRecord]) -> list[str]:
    extras = _each(extra for record in records for extra in EXTRAS.get(record.pipeline, ()))
    pythons = _versions(records)["python"]
    pinned = [
        f"{name}=={next(iter(versions)).partition('+')[0]}"  # what is behind + names a build, which pip finds elsewhere
        for name, versions in _versions(records).items()
        if len(versions) == 1 and name not in ("python", "powerpool")
    ]
    return [
        f"python -m venv .venv{f'  # Python {_listed(pythons)}' if pythons else ''}",
        ". .venv/bin/activate",
        *_broken(" ".join(["pip install -e", f"'.[{','.join(extras)}]'", *pinned])),
    ]


def _broken(command: str) -> list[str]:
    """A long command on several lines that a shell reads as one."""
    lines = textwrap.wrap(command, WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _versions(records: Sequence[RunRecord]) -> dict[str, dict[str, None]]:
    """Of Python, torch and other packages, by name: more than one where records differ."""
    found: dict[str, dict[str, None]] = {name: {} for name in ("python", "torch")}
    for record in records:
        facts = record.environment
        packages = facts.get("packages")
        named: dict[Any, Any] = {name: facts.get(name) for name in ("python", "torch")}
        named |= packages if isinstance(packages, dict) else {}
        for name, version in named.items():
            for one in version.split(", ") if isinstance(version, str) else ():
                if _is_safe(name) and _is_safe(one):
                    found.setdefault(name, {})[one] = None
    return found


def _data(records: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for record in records:
        counts[record.data, str(record.config.get("data_digest") or "not in the record")] += 1
    return [(data, digest, str(count)) for (data, digest), count in counts.items()]


def _obstacles(records: Sequence[RunRecord]) -> Iterator[str]:
    """What keeps someone from making the very same figures."""
    changed = [record for record in records if record.environment.get("dirty")]
    if changed:
        yield (
            f"{len(changed)} of {len(records)} records come from a checkout with changes that no commit holds: theirs "
            "cannot be made again exactly."
        )
    unknown = [record for record in records if not record.environment.get("commit")]
    if unknown:
        yield f"{len(unknown)} of {len(records)} records do not say which commit they come from."
    named = [record.environment["command"] for record in records if record.environment.get("command") is not None]
    others = [command for command in named if _call(command) is None]
    if others:
        yield (
            f"{len(others)} of {len(records)} records name a command that is more than one call of powerpool, or "
            "another: it is left out."
        )
    for name, versions in _versions(records).items():
        if len(versions) > 1:
            yield f"Records differ in {name}: {_listed(versions)}."


def _notes(records: Sequence[RunRecord]) -> Iterator[str]:
    variables = _each(
        f"{name}={value}"
        for record in records
        if isinstance(found := record.environment.get("variables"), dict)
        for name, value in found.items()
    )
    if variables:
        yield f"The workers of the commands had {_listed(variables)}, which reproduce sets by itself."
    yield (
        "On the same processor with the same versions the same command gives the same values. Another processor, "
        "number of threads or version rounds otherwise, and training enlarges that."
    )
    yield "powerpool report --records PLACE writes this page anew from the records that lie there."


def _each(values: Iterable[Any]) -> list[str]:
    """The texts among the values, each once, in their order."""
    return list(dict.fromkeys(value for value in values if isinstance(value, str) and value))


def _listed(values: Iterable[str]) -> str:
    return ", ".join(values)


def _is_safe(value: Any) -> bool:
    return isinstance(value, str) and SAFE.fullmatch(value) is not None
