"""Error classes, and the helpers that make their messages.

Every error that powerpool raises on purpose subclasses :class:`PowerPoolError` and a built-in exception. A message says
what was given, what is needed and what to do.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

MANY = 20
"""A message lists at most this many choices; of more it shows the nearest."""
BEFORE_LAST_PART = re.compile(r".*[./]")


class PowerPoolError(Exception):
    """Base class of every error that powerpool raises on purpose."""

    exit_code = 2
    """Exit status of the command line: 2 where the user can fix the call, 1 where it is a failure."""


class ShapeError(PowerPoolError, ValueError):
    """A tensor has the wrong number or size of dimensions."""


class DTypeError(PowerPoolError, TypeError):
    """A tensor has a dtype that the operator cannot compute with."""


class ArgumentError(PowerPoolError, ValueError):
    """An argument is outside its range, or contradicts another argument."""


class UnknownNameError(PowerPoolError, ValueError):
    """A name is not among the choices; the message lists them, or the nearest of them where there are many."""

    is_cut: bool = False
    """Whether the message lists only some of the choices."""


class StateError(PowerPoolError, RuntimeError, ValueError):
    """A module is not in the state that is needed: a saved state is that of other settings, or a layer has not run."""


class DomainError(PowerPoolError, ValueError):
    """A value lies outside the domain of the curve, or is NaN or infinite."""


class NotFiniteError(DomainError):
    """A tensor contains NaN or infinity."""


class NotSymmetricError(PowerPoolError, ValueError):
    """A matrix differs from its transpose by more than round-off."""


class DoubleBackwardError(PowerPoolError, RuntimeError, ValueError):
    """A second derivative was requested from an operator that does not have one."""


class NotPositiveError(DomainError):
    """A matrix has negative eigenvalues beyond round-off, or a trace that cannot normalize it."""


class RecordError(PowerPoolError, ValueError):
    """A file is missing, unreadable, or does not contain what it should."""


class DiskError(RecordError):
    """The disk is full or rejects writes. Existing files are unchanged."""

    exit_code = 1


class LockedError(PowerPoolError, RuntimeError):
    """Another process is working in the same folder."""


def require_choice(value: str, choices: Iterable[str], what: str) -> None:
    """Refuse a name that is not among ``choices``, and list them, or the nearest where there are many.

    Example:
        >>> require_choice("maxep", ["gamma", "maxexp"], "curve")
        Traceback (most recent call last):
        powerpool.errors.UnknownNameError: Unknown curve 'maxep': choose one of 'gamma', 'maxexp'.
    """
    options = list(choices)
    if value not in options:
        shown = options if len(options) <= MANY else _nearest(value, options)
        listed = ", ".join(repr(option) for option in shown)
        some = "choose one of" if shown is options else f"the nearest of {len(options)} names are"
        error = UnknownNameError(f"Unknown {what} {value!r}: {some} {listed}.")
        error.is_cut = shown is not options
        raise error


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return " Did you mean X?" for the nearest of the names, or an empty string if none is near.

    Names may be grouped, as ``model.hidden`` and ``graph/MUTAG``. The last part decides: a misspelt or missing group
    still finds its name, and a shared group alone does not make two names near.
    """
    name = name[:100].lower()
    lasts = {known: BEFORE_LAST_PART.sub("", known.lower()) for known in names}
    own = BEFORE_LAST_PART.sub("", name)
    wanted = [own] if own in lasts.values() else difflib.get_close_matches(own, lasts.values(), n=1)
    near = [known for known, last in lasts.items() if last in wanted]
    if own != name:  # several are equally near by their last part: compare whole names
        near.sort(key=lambda known: -difflib.SequenceMatcher(None, name, known.lower()).ratio())
    return f" Did you mean {prefix}{near[0]}?" if near else ""


class _BoundedRepr(reprlib.Repr):
    """A repr of limited length and depth: that of a nested structure from a file may be endless."""

    def repr_instance(self, value: Any, level: int) -> str:
        # reprlib limits plain containers only; a subclass such as OrderedDict is shown by its name.
        if isinstance(value, dict | list | tuple | set | frozenset):
            return f"<{type(value).__name__}>"
        return super().repr_instance(value, level)


_BOUNDED = _BoundedRepr()
_BOUNDED.maxlevel = 2


def shorten(text: str, longest: int = 60) -> str:
    """Cut a text so that it fits into a message."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def shown(value: Any) -> str:
    """Return a bounded ``repr`` of a value for a message; None is shown as null, as in YAML."""
    if value is None:
        return "null"
    return shorten(repr(value[:100]) if isinstance(value, str) else _BOUNDED.repr(value))


def _nearest(value: str, names: list[str]) -> list[str]:
    like = {name: difflib.SequenceMatcher(None, value[:100].lower(), name.lower()).ratio() for name in names}
    return sorted(names, key=lambda name: -like[name])[:3]
