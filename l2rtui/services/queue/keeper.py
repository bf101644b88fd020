"""The keeper of one queue: ``python -m l2rtui.services.queue.keeper FOLDER``.

One small process in a separate session, which outlives the command that queued the first run. It starts whole runs
as slots become free, in the order of ``domain.queue``, by the launcher that every command uses. It also stops the
worst trials of sweeps (``sweep_halving``), and records the ends of runs. The lock file allows one
keeper at a time, and the kernel releases it with its process. Its successor can read all of its state again, except
the pauses after failed starts. No decision uses the wall clock, which may jump.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from l2rtui import log
from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile, QueueStore
from l2rtui.backends.registry import make_backend
from l2rtui.config import load_settings
from l2rtui.domain import queue as transitions
from l2rtui.domain.history import RunOutcome
from l2rtui.domain.preflight import refusals
from l2rtui.domain.queue import RunQueue, Ticket, TicketState, admit, fair_order, held_slots
from l2rtui.domain.snapshot import UNSUPERVISED, ClusterSnapshot, RunView
from l2rtui.errors import L2RError, RefusedError
from l2rtui.services import launcher
from l2rtui.services.adoption import adopt_lost
from l2rtui.services.history.completion import LOST_SECONDS, complete_ended
from l2rtui.services.history.endings import outcome_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore
from l2rtui.services.monitor import Monitor
from l2rtui.services.queue.sweep_halving import SweepHalving
from runtime.base.atomic_files import try_lock
from runtime.base.cgroups import leave_run_group
from runtime.base.processes import exponential_delay

LOOK_SECONDS: Final = 1.0
"""Period at which the rows of the watch are checked."""
PLACE_SECONDS: Final = 60.0
"""Longest wait for the place for records: the keeper delays no user."""
_PAUSE_SECONDS: Final = 30.0
"""Time after which a failed recording of an end is tried again."""
_log = logging.getLogger(__name__)
Transition = Callable[[RunQueue], RunQueue]
EXIT_ALREADY_KEPT: Final = 3
"""Another keeper has the lock of this queue."""
_LOCK_TRIES: Final = 50
_LOCK_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 0.25
"""Period at which the file of the queue is checked: a stat."""
_ROUND_SECONDS: Final = 15.0
"""Longest time without a decision, even if no change was noticed."""
_FIRST_PAUSE_SECONDS: Final = 5.0
_LAST_PAUSE_SECONDS: Final = 300.0
"""Pauses after a failed start; doubled from the first to the last."""
_RACE_SECONDS: Final = 0.5
"""Pause after another launch was faster."""
_COMPLETE_SECONDS: Final = 60.0
"""Time for the pods of an interrupted launch to appear before it is undone and repeated."""


class EndRecords:
    """Records the ends of the runs listed in a queue's file, and removes them from it."""

    def __init__(self, store: QueueStore, backend: Backend, monitor: Monitor) -> None:
        self._store = store
        self._backend = backend
        self._monitor = monitor
        self._missing_since: dict[str, float] = {}
        self._paused_until = 0.0

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            try:
                if time.monotonic() >= self._paused_until:
                    await self.look()
            except L2RError as error:
                _log.warning("%s", error)
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            except Exception:  # noqa: BLE001  (an unseen failure would keep the keeper running forever)
                _log.exception("the ends of runs could not be recorded")
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Record the ends of runs that have ended.

        Raises:
            L2RError: the history or the queue cannot be read or written.
        """
        file = self._store.read()
        if not file.unrecorded or self._monitor.error or self._monitor.heard_at is None:
            return
        snapshot = self._monitor.snapshot
        waiting = {ticket.uid for ticket in file.queue.tickets}
        gone = {uid for uid in file.unrecorded if uid not in snapshot.runs and uid not in waiting}
        over = {uid for uid in file.unrecorded if _is_over(snapshot, uid)}
        now = time.monotonic()
        self._missing_since = {uid: self._missing_since.get(uid, now) for uid in gone}
        if not (gone or over):
            return
        lost = {uid for uid, since in self._missing_since.items() if now - since > LOST_SECONDS}
        if over or lost:
            await complete_ended(self._backend, place_seconds=PLACE_SECONDS)
        # A destroy has written the ends of the runs it deleted; a run that never appeared has no record, or is
        # finally lost.
        unfinished = await asyncio.to_thread(_unfinished, gone | over)
        if over & unfinished:
            self._paused_until = now + _PAUSE_SECONDS
        await asyncio.to_thread(self._forget, ((gone | over) - unfinished) | lost)

    def _forget(self, uids: Collection[str]) -> None:
        def changed(file: QueueFile) -> QueueFile:
            left = tuple(uid for uid in file.unrecorded if uid not in uids)
            return msgspec.structs.replace(file, unrecorded=left)

        if uids:
            self._store.change(changed)


def _is_over(snapshot: ClusterSnapshot, uid: str) -> bool:
    run = snapshot.runs.get(uid)
    return run is not None and outcome_of(run, snapshot.pods_of(run.name)) is not None


def _unfinished(uids: Collection[str]) -> set[str]:
    """Return the ids of runs that the own history lists as running."""
    with HistoryStore() as history:
        selection = HistoryFilter(names=tuple(uids), states=(RunOutcome.RUNNING,))
        return {entry.run_id for entry in history.entries(selection)}


class Keeper:
    """Starts the runs of one queue; see the module.

    Args:
        lock: Descriptor of the locked lock file; closed when the queue is empty.
    """

    def __init__(self, store: QueueStore, backend: Backend, lock: int) -> None:
        self._store = store
        self._backend = backend
        self._lock = lock
        self._monitor = Monitor(backend)
        self._halving = SweepHalving(store, backend)
        self._ends = EndRecords(store, backend, self._monitor)
        self._failures: dict[str, int] = {}
        self._paused_until: dict[str, float] = {}

    async def run(self) -> None:
        """Keep the queue until it is empty."""
        # In parallel with the starts, which may take seconds: a trial continues to compute until it is stopped.
        tasks = [asyncio.create_task(work) for work in (self._monitor.run(), self._halving.run(), self._ends.run())]
        try:
            await self._until_settled()
            while not await asyncio.to_thread(self._retire):
                before = self._situation()
                try:
                    is_started = await self._start_next()
                except L2RError as error:
                    # The backend is unreachable: no decision is made without it, and nothing is lost.
                    _log.warning("%s", error)
                    is_started = False
                if not is_started:
                    await self._news(before)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._backend.close()

    # --- decisions ---------------------------------------------------------------------------------------------
    async def _start_next(self) -> bool:
        """Start the first run that may start; return True if anything has changed."""
        file = self._store.read()
        queue = file.queue
        if not queue.tickets:
            return not file.needs_keeper
        snapshot = await self._backend.snapshot()
        await adopt_lost(self._backend, snapshot)  # otherwise their free slots would go unnoticed
        now = time.monotonic()
        due = [
            replace(ticket, problem="") if now >= self._paused_until.get(ticket.uid, 0.0) else ticket
            for ticket in queue.tickets
        ]
        order = fair_order(due, held_slots(snapshot.ledger))
        for verdict in admit(order, snapshot.ledger):
            if verdict.slots is not None:
                return await self._start(verdict.ticket)
        return False

    async def _start(self, ticket: Ticket) -> bool:
        """Launch one run under the id of its ticket: the intent first, the ticket's end last."""
        name, uid = ticket.spec.name, ticket.uid
        with self._as_submitted(ticket):
            try:
                prepared = await launcher.prepare_runs(
                    self._backend,
                    [ticket.spec],
                    pins=ticket.pins,
                    policy=ticket.policy,
                    wave=ticket.wave,
                    uids=[uid],
                    source=ticket.source,
                )
                if refused := refusals(prepared.findings):
                    if prepared.plan.conflicts:
                        return False  # another launch took the slots between two looks
                    await self._postpone(ticket, "; ".join(finding.sentence for finding in refused))
                    return True
                queue = await self._change(lambda queue: transitions.begin(queue, uid))
                if queue.with_uid(uid) is None:
                    return True  # it was cancelled
                async for _ in launcher.launch(self._backend, prepared):
                    pass
            except RefusedError as error:  # another launch took a slot: nothing was made, the ticket stays first
                _log.info("%s: %s", name, error)
                await self._change(lambda queue: transitions.postpone(queue, uid))
                await asyncio.sleep(_RACE_SECONDS)
                return True
            except L2RError as error:
                await self._postpone(ticket, error.message.rstrip("."))
                return True
        await self._change(lambda queue: transitions.finish(queue, {uid}))
        self._failures.pop(uid, None)
        return True

    async def _postpone(self, ticket: Ticket, problem: str) -> None:
        """Let a run wait after a failed start; the runs after it are started in the meantime."""
        failures = self._failures[ticket.uid] = self._failures.get(ticket.uid, 0) + 1
        pause = exponential_delay(failures, _FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
        self._paused_until[ticket.uid] = time.monotonic() + pause
        _log.warning("%s did not start: %s", ticket.spec.name, problem)
        await self._change(lambda queue: transitions.postpone(queue, ticket.uid, f"it did not start: {problem}"))

    # --- after a crash -----------------------------------------------------------------------------------------
    async def _until_settled(self) -> None:
        """Resolve the starts that an earlier keeper has announced, as soon as the backend answers."""
        while True:
            try:
                await self._settle()
            except L2RError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_FIRST_PAUSE_SECONDS)
            else:
                return

    async def _settle(self) -> None:
        launched: set[str] = set()
        for ticket in self._store.read().queue.tickets:
            if ticket.state is not TicketState.STARTING:
                continue
            run = (await self._backend.snapshot()).runs.get(ticket.uid)
            if run is not None and not await self._is_complete(run):
                # An incomplete run is undone like any interrupted launch, and started again in its place.
                items = self._backend.destroy(run, grace_seconds=0.0, purge=True)
                async for _ in items:
                    pass
            elif run is not None:
                launched.add(ticket.uid)
        await self._change(lambda queue: transitions.reconcile(queue, launched))

    async def _is_complete(self, run: RunView) -> bool:
        """Return True once all replicas of a run have started; restart its supervisor if needed."""
        if self._backend.adopt is not None:
            # Its record was published as a whole: only the supervisor that executes it may be missing.
            if not _has_started(await self._backend.snapshot(), run):
                await self._backend.adopt(run.name)
            return True
        until = time.monotonic() + _COMPLETE_SECONDS
        while not _has_started(await self._backend.snapshot(), run):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(1.0)
        return True

    # --- waiting -----------------------------------------------------------------------------------------------
    def _situation(self) -> tuple[object, ...]:
        """Return the inputs of decisions; a difference triggers new decisions."""
        snapshot = self._monitor.snapshot
        file, error = self._store.read(), self._monitor.error
        if not file.queue.tickets:  # without tickets, do not compute the ledger of a large cluster
            return file, error
        lost = tuple(uid for uid, run in snapshot.runs.items() if run.reason == UNSUPERVISED)
        return file, snapshot.ledger.free(), lost, error

    async def _news(self, before: tuple[object, ...]) -> None:
        """Wait until slots, the queue or a pause after a failed start have changed."""
        deadlines = [until for until in self._paused_until.values() if until > time.monotonic()]
        until = min([time.monotonic() + _ROUND_SECONDS, *deadlines])
        while time.monotonic() < until and self._situation() == before:  # noqa: ASYNC110  (files make no events)
            await asyncio.sleep(_LOOK_SECONDS)

    def _retire(self) -> bool:
        """Release the lock of an empty queue; return True on success.

        Under the lock of the file: a command that queues a run after this sees no keeper and starts another.
        """
        if self._store.read().needs_keeper:
            return False
        is_empty = False

        def look(file: QueueFile) -> QueueFile:
            nonlocal is_empty
            if not file.needs_keeper:
                is_empty = True
                os.close(self._lock)
            return file

        self._store.change(look)
        return is_empty

    async def _change(self, changed: Transition) -> RunQueue:
        return await asyncio.to_thread(self._store.change_queue, changed)

    @contextlib.contextmanager
    def _as_submitted(self, ticket: Ticket) -> Iterator[None]:
        """Use the folder and the environment of the command that queued a run."""
        # Both are process-wide: starts are done one at a time.
        submission = self._store.read().submissions.get(ticket.submission)
        environ, folder = dict(os.environ), "/"
        try:
            if submission is not None:
                # Values that looked like a secret were not stored: for those, the keeper's own apply.
                os.environ.update(submission.environ)
                with contextlib.suppress(OSError):  # removed since: as for a command without a folder
                    os.chdir(submission.cwd)
            yield
        finally:
            os.environ.clear()
            os.environ.update(environ)
            os.chdir(folder)


def _has_started(snapshot: ClusterSnapshot, run: RunView) -> bool:
    replicas = sum(worker_set.replicas for worker_set in run.sets)
    pods = snapshot.pods_of(run.name)
    return len(pods) >= replicas and all(pod.started is not None or pod.phase.is_over for pod in pods)


def _detach(log_file: Path) -> None:
    """Detach from the terminal and the session of the command that started this."""
    os.setsid()
    output = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)


def _locked(path: Path) -> int | None:
    """Return the descriptor of the locked lock file; None while another keeper is running."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    # Tried for a moment: a process that looks for a keeper holds a shared lock for some microseconds.
    for _ in range(_LOCK_TRIES):
        if try_lock(descriptor):
            return descriptor
        time.sleep(_LOCK_SECONDS)
    os.close(descriptor)
    return None


def main(argv: list[str]) -> int:
    """Lock the queue, continue in the background, and return; or return a code with a reason on stderr."""
    store = QueueStore(Path(argv[1]))
    try:
        place = store.read().place
        os.environ.update(place.environ)
        settings = load_settings(place.flags)
        lock = _locked(store.keeper_lock)
    except (OSError, L2RError) as error:
        print(error, file=sys.stderr)
        return 1
    if lock is None:
        return EXIT_ALREADY_KEPT
    if os.fork():
        return 0  # the child has the lock: the caller waits only for this process, and has no child to reap
    _detach(store.keeper_log)
    leave_run_group()  # a command of a run may have started us
    log.configure(is_verbose=False, is_debug=False)
    try:
        backend = make_backend(place.flags.get("backend", ""), settings, is_queued=False)
        asyncio.run(Keeper(store, backend, lock).run())
    except BaseException:  # no process could show it: it must reach the log
        _log.exception("the keeper of %s has failed", store.folder)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
