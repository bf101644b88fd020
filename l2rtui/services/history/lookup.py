"""Lookup of records by a run's name, its id or the start of the id; and a record as lines, with its spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from l2rtui.domain.history import HistoryEntry, HistoryRecord
from l2rtui.domain.quantity import utc
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.selection.filter_language import EXPERIMENT_WORDS
from l2rtui.errors import NotFoundError, UsageError
from l2rtui.services.history.store import HistoryFilter, HistoryStore
from runtime.base import bounded_json

if TYPE_CHECKING:
    from l2rtui.domain.history import Difference


MIN_ID_CHARS: Final = 6
"""Minimum number of characters of an id that identify a run."""


def bare_experiment(word: str) -> str:
    """Return the name in ``experiment/NAME``; another word unchanged."""
    head, slash, name = word.partition("/")
    return name if slash and head in EXPERIMENT_WORDS else word


def find_entry(
    store: HistoryStore, word: str, is_here: Callable[[HistoryEntry], bool] = lambda _: True
) -> HistoryEntry:
    """Return the run selected by a word: its id, the start of its id, or the newest launch of that name.

    Args:
        is_here: Selects the records by their place.

    Raises:
        NotFoundError: no such run. UsageError: it is the name of an experiment with several runs.
    """
    entries = [entry for entry in store.entries(HistoryFilter(names=(bare_experiment(word),))) if is_here(entry)]
    runs = [entry for entry in entries if word in (entry.run, entry.run_id)]
    if not runs and len(word) >= MIN_ID_CHARS:
        runs = list(filter(is_here, store.by_id(word)))
    if runs:
        return runs[0]
    names = list(dict.fromkeys(entry.run for entry in entries))
    if len(names) == 1:
        return entries[0]
    if names:
        some = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
        raise UsageError(f"{word} is an experiment of {len(names)} runs: {some}.", "Name one of them.")
    raise NotFoundError(f"The history has no run {word}.", "See `l2rtui history`.")


def find_record(
    store: HistoryStore, word: str, is_here: Callable[[HistoryEntry], bool] = lambda _: True
) -> HistoryRecord:
    """Return the record of the run selected by a word.

    Raises:
        NotFoundError, UsageError: as for `find_entry`.
    """
    return store.get(find_entry(store, word, is_here).run_id)


def spec_document(record: HistoryRecord) -> Mapping[str, Any]:
    """Return the spec of a record in the form of a spec file; as stored if this version cannot read it."""
    # 20 ms, not needed for a list.
    from l2rtui.services.history.launch_facts import spec_of
    from l2rtui.services.spec.encode import to_document

    spec = spec_of(record.launch.spec)
    if spec is not None:
        return to_document(spec)
    document = bounded_json.decode(record.launch.spec)
    return document if isinstance(document, dict) else {}


def compared(first: HistoryRecord, second: HistoryRecord) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """Return the fields in which two records differ, and the difference of their source trees as a unified diff."""
    from l2rtui.domain.history import differences, patch_difference  # with difflib

    rows = differences(first, second, spec_document(first), spec_document(second))
    return rows, patch_difference(first, second)


_FACTS: Final = ("run", "run_id", "experiment", "seed", "state", "owner", "backend", "context", "namespace")
_FIGURES: Final = {"env_steps": ",.0f", "best_return": ".6g", "final_return": ".6g"}


def record_lines(record: HistoryRecord) -> Iterator[str]:
    """Yield the lines of a record, safe for a terminal; the spec is last, so that it can be saved unchanged."""
    yield from map(sanitize, _lines(record))


def _lines(record: HistoryRecord) -> Iterator[str]:
    import yaml  # 20 ms, not needed for lists

    from l2rtui.services.history.launch_facts import spec_of

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
