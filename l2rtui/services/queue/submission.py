"""Submission: whole runs that fit start now, the others get a ticket in the queue."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile, QueueStore, Submission, ensure_keeper, is_tag
from l2rtui.config import user_name
from l2rtui.domain.preflight import Finding, refusals
from l2rtui.domain.quantity import counted
from l2rtui.domain.queue import RunQueue, Ticket, admit, enqueue, impossible
from l2rtui.domain.secret import is_secret_variable
from l2rtui.errors import RefusedError
from l2rtui.services.history import journal
from l2rtui.services.history.recorder import watch_ends
from l2rtui.services.launcher import CheckedPlan, prepare_runs
from l2rtui.services.sweeps import watch_sweeps


class Submissions(Struct, frozen=True):
    """A launch of which a part waits.

    Attributes:
        start: Checked plan of the runs that start now; None if none do.
        waiting: Tickets of the others, not numbered yet.
        ahead: Number of runs that are already waiting.
    """

    start: CheckedPlan | None
    waiting: tuple[Ticket, ...]
    ahead: int = 0

    @property
    def sentence(self) -> str:
        """Return ``6 of 12 runs start now, 6 wait for slots``."""
        starting = len(self.start.plan.runs) if self.start is not None else 0
        total = starting + len(self.waiting)
        behind = f", behind {counted(self.ahead, 'run')} in the queue" if self.ahead else ""
        verb = "waits" if len(self.waiting) == 1 else "wait"
        return f"{starting} of {counted(total, 'run')} start now, {len(self.waiting)} {verb} for slots{behind}"


def may_wait(backend: Backend, prepared: CheckedPlan) -> bool:
    """Return True when a plan is refused only for lack of room, on a backend where runs can wait."""
    return backend.queue is not None and bool(prepared.plan.conflicts) and not other_refusals(prepared)


async def divide(backend: Backend, prepared: CheckedPlan) -> Submissions:
    """Divide the runs of a plan into those that start now and those that wait. Nothing is created.

    Runs that are already waiting come first: then all of these wait too, and start in turn.

    Raises:
        RefusedError: runs cannot wait here, would never fit, or are refused for another reason than room.
    """
    store = _store(backend)
    snapshot = await backend.snapshot()
    ahead = len(store.read().queue.tickets)
    now, submission = time.time(), uuid.uuid4().hex
    placing = prepared.placing
    tickets = tuple(
        Ticket(
            number,
            run.uid,
            run.spec,
            user_name(),
            now,
            placing.policy,
            placing.pins,
            prepared.plan.wave,
            submission,
            prepared.source,
        )
        for number, run in enumerate(prepared.plan.runs, 1)
    )
    if misfit := impossible(tickets, snapshot.ledger):
        hint = "It would wait forever: make it smaller, or name other slots with --on."
        raise RefusedError(f"{misfit[0].spec.name} is more than there is: {misfit[1]}.", hint)
    verdicts = admit(tickets, snapshot.ledger)
    starting = {verdict.ticket.uid for verdict in verdicts if verdict.slots is not None} if not ahead else set()
    waiting = tuple(ticket for ticket in tickets if ticket.uid not in starting)
    await _refuse_faulty(backend, waiting)
    start = None
    if starting:
        specs = [ticket.spec for ticket in tickets if ticket.uid in starting]
        start = await prepare_runs(
            backend,
            specs,
            pins=placing.pins,
            policy=placing.policy,
            wave=prepared.plan.wave,
            source=prepared.source,
        )
    return Submissions(start, waiting, ahead)


async def submit(backend: Backend, submissions: Submissions, environ: Mapping[str, str] | None = None) -> RunQueue:
    """Write the waiting runs to the queue on disk, and start its keeper if needed.

    Args:
        environ: Environment that the runs get; None takes this process's.

    Raises:
        RefusedError: a run of one of the names is already waiting; none was queued.
    """
    store = _store(backend)
    variables = os.environ if environ is None else environ
    # Secrets with a recognisable name are not stored on disk: a spec names secrets, see `l2rtui secret`.
    submitted = Submission(
        _working_folder(),
        {name: value for name, value in variables.items() if not is_secret_variable(name) and not is_tag(name)},
    )

    def added(file: QueueFile) -> QueueFile:
        queue = enqueue(file.queue, submissions.waiting)
        keys = {ticket.submission for ticket in submissions.waiting}
        entries = {**file.submissions, **dict.fromkeys(keys, submitted)}
        return msgspec.structs.replace(file, submissions=entries).with_queue(queue)

    try:
        file = await asyncio.to_thread(store.change, added)
    except ValueError as error:
        raise RefusedError(
            f"Nothing was queued: {error}.", "See `l2rtui queue`, or choose another --name."
        ) from None
    names = [ticket.spec.name for ticket in submissions.waiting]
    journal.record("queue", ", ".join(names), "queued")
    await watch_sweeps(backend, [(ticket.uid, ticket.spec) for ticket in submissions.waiting])
    await watch_ends(backend, [ticket.uid for ticket in submissions.waiting])
    await asyncio.to_thread(ensure_keeper, store)
    return file.queue


async def _refuse_faulty(backend: Backend, waiting: tuple[Ticket, ...]) -> None:
    """Refuse runs that could not start even with room, while the user is still there to correct them."""
    if not waiting:
        return
    first = waiting[0]
    specs = [ticket.spec for ticket in waiting]
    checked = await prepare_runs(backend, specs, pins=first.pins, policy=first.policy, overcommit=True)
    if faults := other_refusals(checked):
        reasons = "; ".join(fault.sentence for fault in faults)
        raise RefusedError(f"The launch is refused: {reasons}.", faults[0].hint)


def other_refusals(prepared: CheckedPlan) -> list[Finding]:
    """Return the refusals for reasons other than lack of room."""
    conflicts = {conflict.partition(": ")[2] or conflict for conflict in prepared.plan.conflicts}
    return [finding for finding in refusals(prepared.findings) if finding.sentence not in conflicts]


def _store(backend: Backend) -> QueueStore:
    store = backend.queue
    if store is None:
        raise RefusedError(
            f"Runs cannot wait on the {backend.name} backend: it has no queue.", "Leave out --queue."
        )
    return store


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  (as text, for a file)
    except FileNotFoundError:
        return os.path.expanduser("~")  # noqa: PTH111
