"""Differences between two records: spec, code, versions and outcome field by field, and the code line by line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.domain.history.record import HistoryRecord

MAX_COMPARED_LINES: Final = 4_000
"""Lines of a patch that are compared one by one. For longer patches difflib would take seconds."""
_OUTCOME: Final = ("state", "env_steps", "best_return", "final_return")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs.

    Attributes:
        part: ``spec``, ``code``, ``versions`` or ``outcome``.
        field: Path of the field, such as ``train.gamma``.
        first, second: JSON values; None if a record lacks the field.
    """

    part: str
    field: str
    first: Any
    second: Any


def differences(
    first: HistoryRecord, second: HistoryRecord, first_spec: Mapping[str, Any], second_spec: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """Return the fields in which two records differ, part by part; ids, times and places are ignored.

    Args:
        first_spec, second_spec: Their specs as documents.
    """
    return tuple(
        Difference(part, field, before.get(field), after.get(field))
        for part, before, after in (
            ("spec", dict(flat_fields(first_spec)), dict(flat_fields(second_spec))),
            ("code", _code(first), _code(second)),
            ("versions", dict(first.launch.versions), dict(second.launch.versions)),
            ("outcome", _outcome(first), _outcome(second)),
        )
        for field in dict.fromkeys((*before, *after))
        if before.get(field) != after.get(field)
    )


def _code(record: HistoryRecord) -> dict[str, Any]:
    tree = record.launch.source
    changes = f"{tree.diff.count(chr(10))} changed lines" if tree.diff else "none"
    fields = {"revision": tree.revision or None, "branch": tree.branch or None, "changes": changes}
    return {"image": record.entry.image or None, **fields, "untracked": ", ".join(tree.untracked) or None}


def _outcome(record: HistoryRecord) -> dict[str, Any]:
    entry = record.entry
    seconds = None if entry.ended is None else round(entry.ended - entry.started)
    return {**{name: getattr(entry, name) for name in _OUTCOME}, "seconds": seconds}


def flat_fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document with their paths; list items are addressed by name if they have one."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        items = ((str(item["name"]), item) for item in value)
    else:
        yield path, value
        return
    for name, item in items:
        yield from flat_fields(item, f"{path}.{name}" if path else name)


def patch_difference(first: HistoryRecord, second: HistoryRecord) -> tuple[str, ...]:
    """Return a unified diff of the uncommitted changes of both source trees; empty if they are equal."""
    before, after = first.launch.source.diff.splitlines(), second.launch.source.diff.splitlines()
    if before == after:
        return ()
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        return (f"The changes are too long to compare here: {len(before):,} and {len(after):,} lines.",)
    return tuple(difflib.unified_diff(before, after, first.entry.run, second.entry.run, lineterm=""))


def _number(value: object) -> object:
    """Write a number with thousands separators and at most six significant digits; other values stay."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else value


def unified(rows: Iterable[Difference], patch: Iterable[str], first: str, second: str) -> Iterator[str]:
    """Yield differences as a unified diff for display: each part under its name, ``-`` the first, ``+`` the second.

    Args:
        first, second: Titles of the records.
    """
    yield f"--- {first}"
    yield f"+++ {second}"
    part = ""
    for row in rows:
        if row.part != part:
            part = row.part
            yield f"@@ {part} @@"
        # A field of a spec keeps its name, so that it can be found in the file; an outcome is for people.
        name = row.field.replace("_", " ") if part == "outcome" else row.field
        for sign, value in (("-", row.first), ("+", row.second)):
            if value is not None:
                yield f"{sign}{name}: {_number(value) if part == 'outcome' else value}"
    lines = list(patch)
    if lines:
        yield "@@ changes of the source tree @@"
        yield from lines
