"""A record as readable lines: facts, source tree, placement, last lines of pods, changes, spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from l2rtui.domain.history import HistoryRecord
from l2rtui.domain.quantity import utc
from l2rtui.domain.sanitize import sanitize
from l2rtui.services.history.launch_facts import spec_of
from l2rtui.services.history.lookup import spec_document

_FACTS: Final = ("run", "run_id", "experiment", "seed", "state", "owner", "backend", "context", "namespace")
_FIGURES: Final = {"env_steps": ",.0f", "best_return": ".6g", "final_return": ".6g"}


def record_lines(record: HistoryRecord) -> Iterator[str]:
    """Yield the lines of a record, safe for a terminal; the spec is last, so that it can be saved unchanged."""
    yield from map(sanitize, _lines(record))


def _lines(record: HistoryRecord) -> Iterator[str]:
    import yaml  # 20 ms, not needed for lists

    entry, launch, ending = record.entry, record.launch, record.ending
    facts: dict[str, object] = {name: getattr(entry, name) for name in _FACTS}
    facts |= {"started": utc(entry.started), "ended": utc(entry.ended)}
    figures = ((name, getattr(entry, name), form) for name, form in _FIGURES.items())
    facts |= {name: format(value, form) for name, value, form in figures if value is not None}
    if ending is not None:
        facts |= {"checkpoints": ending.checkpoints, "receipt": ending.receipt, "note": ending.note}
    facts |= {"image": entry.image, "command": launch.command, **dict(launch.versions)}
    yield from (_fact(name, str(value)) for name, value in facts.items() if value not in (None, ""))
    source = launch.source
    if source.revision:
        branch = f" on {source.branch}" if source.branch else ""
        yield _fact("source", f"{source.root} at {source.revision}{branch}")
    if source.problem:
        yield _fact("source", source.problem)
    spec = spec_of(launch.spec)
    if spec is not None and spec.workdir is not None:
        yield _fact("own code", f"{spec.workdir.path}: {spec.workdir.size}")
    for pod, slots in launch.placement:
        yield _fact("placed", f"{pod} {' '.join(slots) or 'on no slot'}")
    for pod, lines in ending.logs if ending else ():
        yield from _block(f"last lines of {pod}", lines)
    yield from _block("files in no commit", source.untracked)
    yield from _block("changes beyond the commit", source.diff.splitlines())
    document = spec_document(record)
    if document:
        yield from _block("spec", yaml.safe_dump(document, sort_keys=False, width=110).splitlines())


def _fact(name: str, value: str) -> str:
    return f"{name.replace('_', ' ') + ':':<14}{value}"


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)
