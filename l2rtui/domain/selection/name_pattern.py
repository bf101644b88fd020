"""Names with the wildcards of the shell, as the words of a command select by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

_WILDCARDS = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Return True if a name has a wildcard of the shell."""
    return not _WILDCARDS.isdisjoint(name)


def matches_any(names: Iterable[str], patterns: Collection[str]) -> bool:
    """Return True if one of the names matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
