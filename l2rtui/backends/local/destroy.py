"""Destroy: stop everything, prove on the machine itself that nothing is left, then remove the folder.

The supervisor stops the pods, so that their last words reach the logs; one that is dead is replaced, one that does
not answer is killed and replaced. Whatever still carries the run's mark after that is killed here.

``Receipt.objects`` counts the run's record, its supervisor, each pod, and the folder of its sockets.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from l2rtui.backends.base import DestroyProgress, Leftover, Receipt
from l2rtui.backends.local import control, files, folders, processes
from l2rtui.backends.local.layout import REMOVED, Root, RunFolder
from l2rtui.backends.local.processes import Marked
from l2rtui.backends.local.records import Proc, RunStatus, StopRequest
from l2rtui.backends.local.store import RunState, Store, corrupt_uid, short_uid
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import BackendError, NotFoundError

_ANSWER_SECONDS = 3.0
"""A supervisor that has not taken up the request after this long is killed."""
_OVERTIME_SECONDS = 10.0
"""A supervisor gets so much longer than the longest grace."""
_KILL_SECONDS = 5.0
"""A process must be gone so long after SIGKILL; else it is reported (it sleeps in the kernel)."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RESULTS = ("checkpoints", "metrics.jsonl", "tensorboard")
"""What in a run's ``data/`` is kept, as ``runtime.contract`` names it."""


async def destroy(
    root: Root, store: Store, run: RunView, grace_seconds: float | None, *, purge: bool
) -> AsyncIterator[DestroyProgress | Receipt]:
    """Remove a run; see ``Backend.destroy``.

    Raises:
        NotFoundError: there is neither a folder nor a process of this run.
    """
    began = time.monotonic()
    folder = root.run(run.name)
    is_marked = _mark_of(folder, run.uid)
    state = store.find(run.uid)
    found = await asyncio.to_thread(processes.marked, is_marked)
    if state is None and not found:
        raise NotFoundError(f"The run {run.name} is gone.", "Look at the runs again.")
    objects, known = _inventory(folder, state, found)
    if state is not None:
        async for left in _stop(root, folder, state, grace_seconds, is_marked):
            yield DestroyProgress(left)
    leftovers = await control.settled(_kill_rest, is_marked, known)
    kept = ""
    if not leftovers:
        async with control.locked(root):
            # The same name may be another run's by now: then this one's folder was removed already.
            if store.find(run.uid) is not None:
                leftovers, kept = await control.settled(_remove, root, folder, run.uid, purge)
            else:
                results = _results_path(root, run.name, run.uid)
                kept = str(results) if results.exists() else ""
        # A supervisor that somebody started at the last moment may have outlived the folder.
        leftovers.extend(await control.settled(_kill_rest, is_marked, set()))
    yield Receipt(run.name, objects, tuple(leftovers), time.monotonic() - began, kept)


def _mark_of(folder: RunFolder, uid: str) -> Callable[[Marked], bool]:
    """What tells a process of this run; without a readable record, its folder does."""
    path = str(folder.path)
    if uid == corrupt_uid(folder):
        return lambda one: one.folder == path
    return lambda one: one.run_id == uid and one.folder == path


def _inventory(folder: RunFolder, state: RunState | None, found: list[Marked]) -> tuple[int, set[Proc]]:
    """How many objects there are, and every process that is known by pid and start time."""
    known = {one.proc for one in found}
    if state is None:
        return len(known), known
    pods = {pod.uid for pod in state.status.pods} if state.status else set()
    names = {pod.plan.name for pod in state.status.pods} if state.status else set()
    if state.record is not None:
        pods |= {wish.uid for wish in state.record.pods if wish.plan.name not in names}
    pods |= {one.pod_id for one in found if one.pod_id}
    if state.status is not None:
        known |= {state.status.supervisor, *(pod.proc for pod in state.status.pods if pod.proc)}
    supervisors = 1 if state.status is not None else 0
    return 1 + supervisors + len(pods) + len(folders.socket_dirs(folder)[:1]), known


async def _stop(
    root: Root,
    folder: RunFolder,
    state: RunState,
    grace_seconds: float | None,
    is_marked: Callable[[Marked], bool],
) -> AsyncIterator[tuple[tuple[str, int], ...]]:
    """Let a supervisor stop every pod; what is left, whenever that changes."""
    graces = [wish.plan.set_spec.grace_seconds for wish in state.record.pods] if state.record else []
    longest = max(graces, default=0.0) if grace_seconds is None else grace_seconds
    request = StopRequest(grace_seconds)
    try:
        await control.settled(files.write_atomic, folder.destroy_request, request, sync=True)
    except FileNotFoundError:
        return  # another destroy was faster
    except OSError as error:
        if error.errno not in _FULL:
            raise control.unwritable(root, error) from error
        await _stop_unaided(folder, is_marked, longest)
        return
    if state.record is None and control.supervisor_of(folder) is None:
        return  # no supervisor can work without a record
    control.wake(folder)  # it may be at an earlier request with a longer grace
    until = time.monotonic() + longest + _OVERTIME_SECONDS
    last = _left(state.status)
    yield last
    async for status in _until_ended(folder, state, until):
        left = _left(status)
        if left != last:
            last = left
            yield left


async def _stop_unaided(folder: RunFolder, is_marked: Callable[[Marked], bool], grace_seconds: float) -> None:
    """Stop every process without a word to a supervisor: on a full disk none can be told, and room is wanted."""
    supervisor = control.supervisor_of(folder)
    if supervisor is not None:
        processes.signal_process(supervisor, signal.SIGKILL)  # or it would start them again
    found = await asyncio.to_thread(processes.marked, is_marked)
    for one in found:
        processes.signal_process(one.proc, signal.SIGTERM)
    await asyncio.to_thread(_wait_for, found, grace_seconds)


def _wait_for(found: list[Marked], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(processes.is_alive(one.proc) for one in found):
        time.sleep(control.POLL_SECONDS)


def _left(status: RunStatus | None) -> tuple[tuple[str, int], ...]:
    pods = status.pods if status else []
    return (("Pod", sum(not pod.phase.is_over for pod in pods)), ("Run", 1))


async def _until_ended(folder: RunFolder, state: RunState, until: float) -> AsyncIterator[RunStatus]:
    """Keep a supervisor at work until it has ended in order; its status at each look."""
    asked_at = 0.0
    while time.monotonic() < until and folder.path.exists():
        supervisor = control.supervisor_of(folder)
        status = control.read_status(folder)
        if status is not None and status.is_destroying:
            yield status
            if status.is_ended:
                return
        if supervisor is None:
            try:
                await control.settled(control.start_supervisor, folder, state.uid)
            except BackendError:
                return  # what runs is killed by its mark
            asked_at = time.monotonic()
        elif status is None or not status.is_destroying:
            if not asked_at:
                asked_at = time.monotonic()
                control.wake(folder)
            elif time.monotonic() > asked_at + _ANSWER_SECONDS:
                processes.signal_process(supervisor, signal.SIGKILL)
                asked_at = 0.0
        await asyncio.sleep(control.POLL_SECONDS)


def _kill_rest(is_marked: Callable[[Marked], bool], known: set[Proc]) -> list[Leftover]:
    """SIGKILL whatever carries the mark or was known, until the machine shows nothing more."""
    until = time.monotonic() + _KILL_SECONDS
    while True:
        found = processes.kill_marked(is_marked)
        names = {one.proc: one.command or one.pod or "process" for one in found}
        for proc in known:
            if processes.signal_process(proc, signal.SIGKILL):
                names.setdefault(proc, "process")
        if not names:
            return []
        if time.monotonic() > until:
            return [
                Leftover("Process", f"{proc.pid} {name}", "does not end on SIGKILL: it sleeps in the kernel")
                for proc, name in names.items()
            ]
        time.sleep(control.POLL_SECONDS)


def _remove(root: Root, folder: RunFolder, uid: str, purge: bool) -> tuple[list[Leftover], str]:
    """Keep the results, delete the rest, look whether it is gone; with the lock held."""
    kept = ""
    if not purge and any(_holds_something(folder.data / name) for name in _RESULTS):
        target = _results_path(root, folder.name, uid)
        try:
            root.results.mkdir(mode=0o700, exist_ok=True)
            folder.data.rename(target)
        except OSError as error:
            return [Leftover("Results", str(folder.data), f"cannot be moved to {target}: {error.strerror}")], ""
        kept = str(target)
    sockets = folders.socket_dirs(folder)
    gone = root.runs / f"{REMOVED}{uid}-{os.getpid()}"
    try:
        folder.path.rename(gone)  # at once out of everybody's sight, then file by file
    except OSError as error:
        return [Leftover("Folder", str(folder.path), error.strerror or str(error))], kept
    problem = folders.remove(gone, *(path for path in sockets if path != folder.sockets))
    left = [path for path in (gone, *sockets) if path.exists()]
    return [Leftover("Folder", str(path), problem or "is still there") for path in left], kept


def _holds_something(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _results_path(root: Root, name: str, uid: str) -> Path:
    return root.results / f"{name}-{short_uid(uid)}"
