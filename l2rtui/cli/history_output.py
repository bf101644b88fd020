"""Documents and tables of the history: rows, full records, differences, CSV."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from l2rtui.cli.output import Column, Document, View
from l2rtui.domain.quantity import rfc3339
from l2rtui.domain.status import Level

if TYPE_CHECKING:
    from l2rtui.domain.history.difference import Difference
    from l2rtui.domain.history.record import HistoryEntry, HistoryRecord

_LEVELS: Final = {
    "running": Level.OK,
    "done": Level.DONE,
    "failed": Level.BAD,
    "taken-back": Level.WARN,
    "lost": Level.WARN,
}
_REVISION_CHARS: Final = 10


def _day(field: str) -> Any:
    """Return the function that formats a time to the minute, which suits a table of months of runs."""
    return lambda document: document[field] and document[field][:16].replace("T", " ")


def _revision(document: Document) -> str:
    return f"{document['revision'] or ''}"[:_REVISION_CHARS] + ("+" if document["dirty"] else "")


def _place(document: Document) -> str:
    return "/".join(filter(None, (document["backend"], document["context"], document["namespace"])))


def _rounded(field: str) -> Any:
    return lambda document: None if document[field] is None else f"{document[field]:.6g}"


ROWS: Final = View(
    "run",
    (
        Column("RUN", "run"),
        Column("SEED", "seed", is_number=True),
        Column("STATE", "state", level=lambda document: _LEVELS.get(document["state"])),
        Column("STARTED", _day("started")),
        Column("ENDED", _day("ended")),
        Column("STEPS", "env_steps", is_number=True),
        Column("BEST", _rounded("best_return"), is_number=True),
        Column("REVISION", _revision),
        Column("WHERE", _place),
        Column("EXPERIMENT", "experiment", is_wide=True),
        Column("ID", "run_id", is_wide=True),
        Column("IMAGE", "image", is_wide=True),
    ),
)


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
        "source": asdict(launch.source),
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
        "differences": [asdict(row) for row in rows],
        "changes": list(patch),
    }


def csv_rows(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the lines of a CSV table with the fields of the JSON as its header."""
    header: Sequence[str] = ()
    for document in documents:
        if not header:
            header = tuple(document)
            yield _csv_line(header)
        yield _csv_line([document[name] for name in header])


def _csv_line(cells: Iterable[object]) -> str:
    import csv  # needed only for this form

    file = io.StringIO()
    # Spreadsheets read a cell with such a first character as a formula, and names of runs come from other users.
    csv.writer(file, lineterminator="").writerow(
        f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") else cell for cell in cells
    )
    return file.getvalue()
