"""What can be wrong with data on disk."""

from __future__ import annotations

from powerpool.errors import PowerPoolError


class DataError(PowerPoolError, ValueError):
    """A file is damaged, or is not what its format says; the message names the file, and the line where there is one.

    Example:
        >>> issubclass(MissingDataError, DataError) and issubclass(DataError, ValueError)
        True
    """


class MissingDataError(DataError):
    """Data are not where they were looked for, or a file of theirs is not there; the message says where to put them."""
