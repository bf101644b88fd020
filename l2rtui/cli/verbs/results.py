"""results: checkpoints and metrics that destroyed runs have left on this machine: ls, rm, prune."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from l2rtui.backends.base import ResultStore
from l2rtui.cli.argument_parser import nearest
from l2rtui.cli.output import Column, View
from l2rtui.cli.session import Session
from l2rtui.cli.table_output import format_age
from l2rtui.cli.targets import listed
from l2rtui.domain.quantity import counted, format_bytes, rfc3339
from l2rtui.domain.volume import KeptResult
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, NotFoundError, RefusedError, UsageError

_VIEW = View(
    "id",
    (
        Column("ID", "id"),
        Column("RUN", "run"),
        Column("SIZE", lambda document: format_bytes(document["size_bytes"]), is_number=True),
        Column("AGE", lambda document: format_age(document["age_seconds"]), is_number=True),
        Column("STATE", "state"),
        Column("USED BY", lambda document: ",".join(document["used_by"]), is_wide=True),
        Column("PATH", "path", is_wide=True),
    ),
)


async def run_results(session: Session) -> int:
    """Run the action that the first argument names."""
    args = session.args
    if args.action == "ls":
        return await _list(session)
    session.require_writable(f"results {args.action}")
    if args.action == "rm" and not args.names:
        raise UsageError("results rm needs ids.", "See `l2rtui results ls`.")
    if args.action == "prune" and args.older is None and args.keep is None:
        raise UsageError("results prune needs --older SPAN, --keep N, or both.", "Such as --older 30d --keep 1.")
    store = _store(session)
    kept = await store.list()
    chosen = _named(kept, args.names) if args.action == "rm" else _prunable(session, kept)
    session.require_answer(f"results {args.action}")
    if not chosen:
        session.talk.say("Nothing is to be removed.")
        return EXIT_DONE
    names = listed(result.id for result in chosen)
    size = format_bytes(sum(result.size_bytes for result in chosen))
    if not session.confirm(lambda: f"Delete the results {names} ({size}) for good?"):
        return EXIT_FAILED
    with session.interruption("`l2rtui results ls` shows what is left."):
        freed = await store.remove([result.id for result in chosen])
    session.talk.say(f"removed {counted(len(chosen), 'folder')}, {format_bytes(freed)}")
    session.out.show_all(_VIEW, [_document(result) for result in chosen])
    return EXIT_DONE


def _store(session: Session) -> ResultStore:
    store = session.backend.kept_results
    if store is None:
        sentence = f"Results of the {session.backend.name} backend lie in its volumes."
        raise UsageError(sentence, "See `l2rtui volume ls`; --backend local has those of this machine.")
    return store


async def _list(session: Session) -> int:
    args = session.args
    kept = await _store(session).list()
    chosen = [result for result in kept if not args.names or {result.id, result.run} & set(args.names)]
    session.out.show_all(_VIEW, [_document(result) for result in chosen])
    if len(chosen) > 1 and session.out.form == "table":
        session.talk.say(f"{format_bytes(sum(result.size_bytes for result in chosen))} in all")
    if not chosen:
        session.talk.say("No results are kept here." if not args.names else "No results are kept under that name.")
    return EXIT_DONE


def _named(kept: Sequence[KeptResult], words: Sequence[str]) -> list[KeptResult]:
    """Return the results of these ids, ends of ids, or runs with one folder.

    Raises:
        NotFoundError: there are none. UsageError: a run has several. RefusedError: a run uses them.
    """
    chosen: dict[str, KeptResult] = {}
    for word in words:
        found = [result for result in kept if result.id == word and not result.is_of_run]
        found = found or [result for result in kept if word in (result.run, result.id.rpartition("-")[2])]
        if not found:
            hint = nearest(word, [result.id for result in kept]) or "See `l2rtui results ls`."
            raise NotFoundError(f"There are no kept results {word}.", hint)
        free = [result for result in found if not result.is_of_run]
        if len(free) > 1:
            ids = listed(result.id for result in free)
            raise UsageError(f"{word} has left results {len(free)} times: {ids}.", "Name one of them.")
        for result in free or found:
            if result.used_by:
                what = "is of a run that is there" if result.is_of_run else f"is used by {listed(result.used_by)}"
                raise RefusedError(f"{result.id} {what}.", f"First `l2rtui destroy {result.used_by[0]}`.")
            chosen[result.id] = result
    return list(chosen.values())


def _prunable(session: Session, kept: Sequence[KeptResult]) -> list[KeptResult]:
    """Return what ``--older`` and ``--keep`` select; never what a run uses."""
    args, now = session.args, time.time()
    newer: Counter[str] = Counter()
    chosen = []
    for result in kept:  # the newest first
        if result.is_of_run or (args.names and result.run not in args.names):
            continue
        is_beyond = args.keep is None or newer[result.run] >= args.keep
        newer[result.run] += 1
        if is_beyond and not result.used_by and (args.older is None or now - result.changed > args.older):
            chosen.append(result)
    return chosen


def _document(result: KeptResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "run": result.run,
        "size_bytes": result.size_bytes,
        "changed": rfc3339(result.changed),
        "age_seconds": round(max(0.0, time.time() - result.changed), 1),
        "state": "running" if result.is_of_run else "used" if result.used_by else "kept",
        "used_by": list(result.used_by),
        "path": result.path,
    }
