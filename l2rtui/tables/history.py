"""History: the columns of its runs, and the documents of runs, full records and differences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import to_builtins

from l2rtui.domain.history import Difference, HistoryEntry, HistoryRecord, RunOutcome
from l2rtui.domain.quantity import rfc3339, utc
from l2rtui.domain.status import Level
from l2rtui.tables.column import Column, TableColumn, View, app_only, both
from l2rtui.tables.summaries import TREND, six_digits

_LEVELS: Final = {
    RunOutcome.RUNNING: Level.OK,
    RunOutcome.DONE: Level.DONE,
    RunOutcome.FAILED: Level.BAD,
    RunOutcome.TAKEN_BACK: Level.WARN,
    RunOutcome.LOST: Level.WARN,
}
_REVISION_CHARS: Final = 10


def history_document(entry: HistoryEntry) -> dict[str, Any]:
    """Return one run of the history; ``dirty`` is null without a revision."""
    return {
        "run": entry.run,
        "run_id": entry.run_id,
        "experiment": entry.experiment,
        "seed": entry.seed,
        "state": str(entry.state),
        "started": rfc3339(entry.started),
        "ended": rfc3339(entry.ended),
        "env_steps": None if entry.env_steps is None else int(entry.env_steps),
        "best_return": entry.best_return,
        "image": entry.image or None,
        "revision": entry.revision or None,
        "dirty": entry.is_dirty,
        "backend": entry.backend or None,
        "context": entry.context or None,
        "namespace": entry.namespace or None,
    }


def _revision(entry: HistoryEntry) -> str:
    return entry.revision[:_REVISION_CHARS] + ("+" if entry.is_dirty else "")


def _steps(entry: HistoryEntry) -> int | None:
    return None if entry.env_steps is None else int(entry.env_steps)


def _context(entry: HistoryEntry) -> str:
    return "/".join(filter(None, (entry.context or entry.backend, entry.namespace)))


def _to_the_minute(seconds: float) -> str:
    """Return a time to the minute, which suits a table of months of runs."""
    return utc(seconds)[:16]


_time = partial(both, cli_text=_to_the_minute, text=_to_the_minute)
"""A column of times: aligned to the left, sorted as numbers."""
RUNS: Final[View[HistoryEntry]] = View(
    lambda entry: entry.run,
    (
        both("run", lambda entry: entry.run, 40, style="strong"),
        both("seed", lambda entry: entry.seed, 6, 3, is_number=True),
        both("state", lambda entry: str(entry.state), 10, level=lambda entry: _LEVELS.get(entry.state)),
        _time("started, UTC", lambda entry: entry.started, 16, header="STARTED", key="started"),
        _time("ended, UTC", lambda entry: entry.ended, 16, 4, header="ENDED", key="ended"),
        both("env steps", _steps, 12, 2, header="STEPS", key="steps", is_number=True, text="{:,}".format),
        both("best", lambda entry: entry.best_return, 9, is_number=True, cli_text=six_digits, style="strong"),
        app_only(TableColumn("final", "final", most=9, right=True, rank=5), lambda entry: entry.final_return),
        app_only(TREND),
        both("revision", _revision, 11, 6, style="dim"),
        app_only(TableColumn("owner", "owner", most=16, rank=7, style="dim"), lambda entry: entry.owner),
        Column("WHERE", lambda entry: entry.place),
        both("experiment", lambda entry: entry.experiment, 24, 8, is_wide=True, style="dim"),
        app_only(TableColumn("context", "context", most=20, rank=4, style="dim"), _context),
        Column("ID", lambda entry: entry.run_id, is_wide=True),
        Column("IMAGE", lambda entry: entry.image, is_wide=True),
    ),
    document=history_document,
)


def record_document(record: HistoryRecord, spec: Any) -> dict[str, Any]:
    """Return a full record; fields of the end are null while the end is unknown."""
    entry, launch, ending = record.entry, record.launch, record.ending
    return {
        **history_document(entry),
        "owner": entry.owner or None,
        "final_return": entry.final_return,
        "command": launch.command or None,
        "versions": dict(launch.versions),
        "placement": {pod: list(slots) for pod, slots in launch.placement},
        "source": to_builtins(launch.source),
        "spec": spec,
        "checkpoints": (ending.checkpoints if ending else "") or None,
        "receipt": (ending.receipt if ending else "") or None,
        "note": (ending.note if ending else "") or None,
        "curve": {name: list(values) for name, values in ending.curve} if ending else {},
        "logs": {pod: list(lines) for pod, lines in ending.logs} if ending else {},
    }


def difference_document(
    first: HistoryEntry, second: HistoryEntry, rows: Sequence[Difference], patch: Sequence[str]
) -> dict[str, Any]:
    """Return the differences of two records: fields, and the differences of their source trees as a unified
    diff.
    """
    return {
        "first": history_document(first),
        "second": history_document(second),
        "differences": to_builtins(rows),
        "changes": list(patch),
    }
