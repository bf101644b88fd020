"""Backend whose snapshots include the waiting runs of its queue, and whose destroy removes them from it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from l2rtui.backends.base import Backend
from l2rtui.backends.common.wrapper import WrappedBackend
from l2rtui.config import Settings, state_dir
from l2rtui.domain.change import Change, RunChanged, RunGone
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot, RunView, SetView
from l2rtui.domain.status import QUEUED
from l2rtui.errors import BackendError, RefusedError

if TYPE_CHECKING:
    from l2rtui.backends.queue_store import Place, QueueStore
    from l2rtui.domain.plan import ScalePlan
    from l2rtui.domain.queue import Ticket
    from l2rtui.domain.receipt import DestroyProgress, Receipt
    from l2rtui.domain.workload import RunSpec


_WATCH_SECONDS: Final = 0.5
"""Interval at which the queue's file is checked while the backend is silent: one stat."""
_SETTLE_SECONDS: Final = 60.0
"""Longest wait for a start in progress when its run is destroyed."""


class QueuedBackend(WrappedBackend):
    """A backend and its queue.

    Args:
        state: Folder of all queues; None for ``queue`` in the user's state folder.
    """

    def __init__(self, backend: Backend, settings: Settings, state: Path | None = None) -> None:
        super().__init__(backend)
        self._settings = settings
        self._state = state or state_dir() / "queue"
        self._store: QueueStore | None = None

    @property
    def queue(self) -> QueueStore:
        """The queue of this place; for a cluster only once it is connected, as its context is unknown before."""
        from l2rtui.backends.queue_store import QueueStore

        if self._store is None or self._backend.contexts is not None:
            place = self._place()
            folder = self._state / _folder_name(place)
            if self._store is None or self._store.folder != folder:
                self._store = QueueStore(folder, place)
        return self._store

    # --- observation -------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Return the current state, including queued runs."""
        # The queue first: a run that is launched between the two reads is then in both, and never in none.
        connected = self._backend.contexts is None
        before = self._views() if connected else {}
        snapshot = await self._backend.snapshot()
        queued = {uid: view for uid, view in (before or self._views()).items() if uid not in snapshot.runs}
        if not queued:
            return snapshot
        return replace(snapshot, runs=MappingProxyType({**snapshot.runs, **queued}))

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes of the backend and of its queue."""
        rows = _QueuedRows()
        async with aclosing(self._backend.watch()) as batches:
            batch = asyncio.ensure_future(anext(batches, None))
            try:
                while True:
                    done, _ = await asyncio.wait({batch}, timeout=_WATCH_SECONDS)
                    changes: tuple[Change, ...] = ()
                    if done:
                        newest = batch.result()
                        if newest is None:
                            return
                        changes = newest
                        rows.hear(changes)
                        batch = asyncio.ensure_future(anext(batches, None))
                    if rows.has_answered:
                        changes = (*changes, *rows.update(self._views()))
                    if changes or done:
                        yield changes
            finally:
                batch.cancel()
                await asyncio.gather(batch, return_exceptions=True)

    async def spec(self, run: str) -> RunSpec:
        """Return the spec of a run, queued or not."""
        from l2rtui.domain.queue import TicketState

        ticket = self.queue.look().queue.named(run)
        if ticket is not None and ticket.state is TicketState.WAITING:
            return ticket.spec
        return await self._backend.spec(run)

    # --- changes -----------------------------------------------------------------------------------------------
    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas of a set; a queued run has none."""
        if self.queue.look().queue.named(plan.run) is not None:
            hint = f"`l2rtui destroy {plan.run}`, and launch it with another number."
            raise RefusedError(f"{plan.run} is queued and cannot be scaled before it runs.", hint)
        await self._backend.scale(plan, grace_seconds)

    async def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run from the queue, or remove it and all it owns; the last item is the Receipt."""
        began = time.monotonic()
        # Also for an existing run: its ticket may have survived a crash, and would launch it again.
        await self._withdraw(run)
        if run.reason == QUEUED:
            launched = (await self._backend.snapshot()).runs.get(run.uid)
            if launched is None:
                from l2rtui.domain.receipt import Receipt

                yield Receipt(run.name, 1, (), time.monotonic() - began, was_queued=True)
                return
            run = launched
        items = self._backend.destroy(run, grace_seconds=grace_seconds, purge=purge, force=force)
        async with aclosing(items) as stream:
            async for item in stream:
                yield item

    async def _withdraw(self, run: RunView) -> None:
        """Remove the ticket of a run; a start in progress is awaited, as it cannot be cancelled."""
        from l2rtui.domain.queue import TicketState

        store = self.queue
        until = time.monotonic() + _SETTLE_SECONDS
        while (ticket := store.look().queue.with_uid(run.uid)) is not None:
            if ticket.state is TicketState.WAITING or not store.is_kept():
                # Decided again under the lock: the keeper may have begun the start meanwhile.
                await asyncio.to_thread(store.change_queue, lambda queue: _without(queue, run.uid, store))
                continue
            if time.monotonic() > until:
                sentence = f"{run.name} is being started, and that has not ended for {_SETTLE_SECONDS:g} s."
                raise BackendError(sentence, f"See {store.keeper_log}.")
            await asyncio.sleep(_WATCH_SECONDS / 5)

    # --- inside ------------------------------------------------------------------------------------------------
    def _views(self) -> dict[str, RunView]:
        """Return the rows of queued runs by uid."""
        if self._store is None and not any(self._state.glob("*/queue.json")):
            return {}
        tickets = self.queue.look().queue.tickets
        return {ticket.uid: _view(ticket, number) for number, ticket in enumerate(tickets, 1)}

    def _place(self) -> Place:
        from l2rtui.backends.queue_store import Place, place_variables

        contexts, settings = self._backend.contexts, self._settings
        flags = {"backend": self._backend.name}
        if contexts is not None:
            flags |= {"context": contexts.current, "namespaces": ",".join(settings.namespaces)}
            flags |= {"impersonate_user": settings.impersonate_user}
            flags |= {"impersonate_groups": ",".join(settings.impersonate_groups)}
        flags = {name: value for name, value in flags.items() if value}
        return Place(flags, place_variables(os.environ))


def _folder_name(place: Place) -> str:
    """Return a short folder name for a place; only equal places have equal names."""
    name = place.flags["backend"]
    engine = {key: value for key, value in place.environ.items() if key in ("DOCKER_HOST", "DOCKER_CONTEXT")}
    facts = [*place.flags.items(), *(engine.items() if name == "docker" else ())]
    digest = hashlib.sha256(repr(sorted(facts)).encode()).hexdigest()[:12]
    return name if name == "local" else f"{name}-{digest}"


def _without(queue: Any, uid: str, store: QueueStore) -> Any:
    from l2rtui.domain.queue import TicketState, finish

    ticket = queue.with_uid(uid)
    is_settled = ticket is None or ticket.state is TicketState.WAITING or not store.is_kept()
    return finish(queue, {uid}) if is_settled else queue


def _view(ticket: Ticket, number: int) -> RunView:
    """Return the row of a queued run: no pods, and the reason why it waits."""
    from l2rtui.domain.history import spec_id
    from l2rtui.domain.queue import TicketState

    message = f"waits for {counted(ticket.demand, 'slot')}, number {number} in the queue"
    if ticket.state is TicketState.STARTING:
        message = "is being started"
    elif ticket.problem:
        message = f"waits in the queue: {ticket.problem}"
    spec = ticket.spec
    return RunView(
        ticket.uid,
        spec.name,
        spec.experiment,
        ticket.owner,
        spec.seed,
        str(spec.kind),
        ticket.since,
        tuple(SetView(part.name, part.role, part.replicas, part.slots > 0) for part in spec.sets),
        reason=QUEUED,
        message=message,
        trial=spec.trial,
        spec_id=spec_id(spec),
    )


class _QueuedRows:
    """Rows of queued runs as a watch has shown them, and the changes that update them."""

    def __init__(self) -> None:
        self.has_answered = False
        self._launched: set[str] = set()
        self._shown: dict[str, RunView] = {}
        self._leaving: set[str] = set()

    def hear(self, changes: tuple[Change, ...]) -> None:
        """Record which runs the backend itself shows."""
        self.has_answered = True
        for change in changes:
            if isinstance(change, RunChanged):
                self._launched.add(change.run.uid)
            elif isinstance(change, RunGone):
                self._launched.discard(change.uid)
                self._shown.pop(change.uid, None)  # the row is gone: a ticket that still exists brings it back

    def update(self, queued: dict[str, RunView]) -> tuple[Change, ...]:
        """Return the changes that lead to these rows."""
        rows = {uid: view for uid, view in queued.items() if uid not in self._launched}
        changes: list[Change] = [RunChanged(view) for uid, view in rows.items() if self._shown.get(uid) != view]
        absent = {uid for uid in self._shown if uid not in rows and uid not in self._launched}
        # One round later: some time passes between the end of a ticket and the first row of its run.
        gone = absent & self._leaving
        changes.extend(RunGone(uid) for uid in gone)
        self._shown = {**{uid: self._shown[uid] for uid in absent - gone}, **rows}
        self._leaving = absent - gone
        return tuple(changes)
