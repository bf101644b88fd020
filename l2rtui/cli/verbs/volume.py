"""volume: volumes and the files on them. results: results of destroyed runs on this machine: ls, rm, prune."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from l2rtui.backends.base import ResultStore, VolumeStore
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed
from l2rtui.domain.quantity import counted, format_bytes, rfc3339
from l2rtui.domain.volume import KeptResult
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, NotFoundError, RefusedError, UsageError, nearest
from l2rtui.services import volumes
from l2rtui.tables.cluster import format_age
from l2rtui.tables.column import Column, View
from l2rtui.tables.resources import FILES, VOLUMES


async def run_volume(session: Session) -> int:
    """Run the action that the first argument names."""
    actions = {"ls": _list, "create": _create, "delete": _delete, "files": _files, "get": _get, "put": _put}
    if session.args.action != "delete":
        session.args.yes = True  # only rm asks
    return await actions[session.args.action](session)


def _store(session: Session) -> VolumeStore:
    if session.backend.volumes is None:
        raise UsageError(
            f"The {session.backend.name} backend has no volumes of its own: runs keep files in plain folders.",
            "Volumes are a cluster's: --backend kubernetes.",
        )
    return session.backend.volumes


async def _list(session: Session) -> int:
    session.out.show_all(VOLUMES, await _store(session).list())
    return EXIT_DONE


async def _create(session: Session) -> int:
    session.require_change("volume create")
    name, args = _name(session), session.args
    if not args.size:
        raise UsageError("volume create needs --size, such as --size 50Gi.")
    modes = tuple(mode.strip().upper() for mode in args.access.split(",") if mode.strip())
    made = await _store(session).create(name, args.size, storage_class=args.storage_class, modes=modes)
    session.talk.say(f"made {name}: {made.phase}{f', {made.reason}' if made.reason else ''}")
    session.out.show_all(VOLUMES, [made])
    return EXIT_DONE


async def _delete(session: Session) -> int:
    session.require_change("volume delete")
    name, store = _name(session), _store(session)
    if not session.confirm(
        lambda: f"Delete the volume {name} and all files in it {session.backend.acts_on()}?", name
    ):
        return EXIT_FAILED
    await store.delete(name)
    session.talk.say(f"deleted {name}")
    return EXIT_DONE


async def _files(session: Session) -> int:
    name, path = _path(session.args.source)
    async with _store(session).files(name, session.args.image) as files:
        session.out.show_all(FILES, await files.entries(path))
    return EXIT_DONE


async def _get(session: Session) -> int:
    session.require_change("volume get")
    name, path = _path(session.args.source)
    target = _local(session.args.target or ".")
    async with _store(session).files(name, session.args.image) as files:
        sentence = await volumes.download(files, path, target, session.talk.step)
    session.talk.say(f"{sentence}, of {name}")
    return EXIT_DONE


async def _put(session: Session) -> int:
    session.require_change("volume put")
    name, path = _path(session.args.target)
    source = _local(session.args.source)
    async with _store(session).files(name, session.args.image) as files:
        sentence = await volumes.upload(files, source, path, session.talk.step)
    session.talk.say(f"{name}: {sentence}, of {source}")
    return EXIT_DONE


def _name(session: Session) -> str:
    name: str = session.args.source
    if not name or ":" in name:
        raise UsageError(f"volume {session.args.action} takes the name of a volume.")
    return name


def _path(word: str) -> tuple[str, str]:
    name, _, path = word.partition(":")
    if not name:
        raise UsageError("Name a volume, and a path in it: NAME:PATH.")
    return name, path


def _local(word: str) -> Path:
    return Path(word).expanduser()


# --- results ---------------------------------------------------------------------------------------------------
_RESULTS = View(
    "id",
    (
        Column("ID", "id"),
        Column("RUN", "run"),
        Column("SIZE", lambda document: format_bytes(document["size_bytes"]), is_number=True),
        Column("AGE", lambda document: format_age(document["age_seconds"]), is_number=True),
        # The run is there, and may have ended.
        Column("STATE", "state", text=lambda state: "not destroyed" if state == "running" else str(state)),
        Column("USED BY", lambda document: ",".join(document["used_by"]), is_wide=True),
        Column("PATH", "path", is_wide=True),
    ),
)


async def run_results(session: Session) -> int:
    """Run the action that the first argument names."""
    args = session.args
    if args.action == "ls":
        return await _list_results(session)
    session.require_writable(f"results {args.action}")
    if args.action == "rm" and not args.names:
        raise UsageError("results rm needs ids.", "See `l2rtui results ls`.")
    if args.action == "prune" and args.older is None and args.keep is None and args.size is None:
        sentence = "results prune needs --older SPAN, --keep N or --size SIZE, or several of them."
        raise UsageError(sentence, "Such as --older 30d --keep 1, or --size 10Gi.")
    store = _result_store(session)
    results = await store.list()
    chosen = _results_named(results, args.names) if args.action == "rm" else _prunable(session, results)
    session.require_answer(f"results {args.action}")
    if not chosen:
        session.talk.say("Nothing is to be removed.")
        return EXIT_DONE
    names = listed(result.id for result in chosen)
    size = format_bytes(sum(result.size_bytes for result in chosen))
    if not session.confirm(lambda: f"Delete the results {names} ({size}) for good?"):
        return EXIT_FAILED
    with session.interruption("`l2rtui results ls` lists the remaining ones."):
        freed = await store.remove([result.id for result in chosen])
    session.talk.say(f"removed {counted(len(chosen), 'folder')}, {format_bytes(freed)}")
    session.out.show_all(_RESULTS, [_result_document(result) for result in chosen])
    return EXIT_DONE


def _result_store(session: Session) -> ResultStore:
    store = session.backend.kept_results
    if store is None:
        sentence = f"Results of the {session.backend.name} backend lie in its volumes."
        raise UsageError(sentence, "See `l2rtui volume ls`; --backend local shows this machine's results.")
    return store


async def _list_results(session: Session) -> int:
    args = session.args
    results = await _result_store(session).list()
    chosen = [result for result in results if not args.names or {result.id, result.run} & set(args.names)]
    session.out.show_all(_RESULTS, [_result_document(result) for result in chosen])
    if len(chosen) > 1 and session.out.form == "table":
        session.talk.say(f"{format_bytes(sum(result.size_bytes for result in chosen))} in all")
    if not chosen:
        session.talk.say("No results are kept here." if not args.names else "No results are kept under that name.")
    return EXIT_DONE


def _results_named(results: Sequence[KeptResult], words: Sequence[str]) -> list[KeptResult]:
    """Return the results of these ids, ends of ids, or runs with one folder.

    Raises:
        NotFoundError: no match. UsageError: a run has several. RefusedError: a run uses them.
    """
    chosen: dict[str, KeptResult] = {}
    for word in words:
        matching = [result for result in results if result.id == word and not result.is_of_run]
        matching = matching or [result for result in results if word in (result.run, result.id.rpartition("-")[2])]
        if not matching:
            hint = nearest(word, [result.id for result in results], most=2) or "See `l2rtui results ls`."
            raise NotFoundError(f"There are no kept results {word}.", hint)
        free = [result for result in matching if not result.is_of_run]
        if len(free) > 1:
            ids = listed(result.id for result in free)
            raise UsageError(f"{word} has left results {len(free)} times: {ids}.", "Name one of them.")
        for result in free or matching:
            if result.used_by:
                what = "is of a run that is there" if result.is_of_run else f"is used by {listed(result.used_by)}"
                raise RefusedError(f"{result.id} {what}.", f"First `l2rtui destroy {result.used_by[0]}`.")
            chosen[result.id] = result
    return list(chosen.values())


def _prunable(session: Session, results: Sequence[KeptResult]) -> list[KeptResult]:
    """Return the results that all of --older, --keep and --size select; never results in use by a run."""
    args, now = session.args, time.time()
    newer: Counter[str] = Counter()
    newer_bytes = 0
    chosen = []
    for result in results:  # the newest first
        if result.is_of_run or (args.names and result.run not in args.names):
            continue
        is_beyond = args.keep is None or newer[result.run] >= args.keep
        newer[result.run] += 1
        newer_bytes += result.size_bytes
        is_beyond = is_beyond and (args.size is None or newer_bytes > args.size)
        if is_beyond and not result.used_by and (args.older is None or now - result.changed > args.older):
            chosen.append(result)
    return chosen


def _result_document(result: KeptResult) -> dict[str, Any]:
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
