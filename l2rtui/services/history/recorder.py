"""Recorder: observes launches and destroys for the history, the journal and the log of the program.

The history is written in a thread; a launch neither waits long for it nor fails with it. A history that cannot be
written causes one warning per program, which the caller shows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from l2rtui.domain.history import Ending, HistoryRecord, RunOutcome
from l2rtui.errors import L2RError
from l2rtui.services import destroyed_specs
from l2rtui.services.history import journal
from l2rtui.services.history.contexts import owner_of, parts_of

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.domain.plan import LaunchPlan
    from l2rtui.domain.receipt import Receipt
    from l2rtui.domain.snapshot import RunView

WRITE_SECONDS: Final = 3.0
"""Longest wait of a finished launch for its record; the thread continues, and ends before the program."""
_UNRECORDED: Final = frozenset(("demo",))
"""Backends whose runs are not worth recording."""
_log = logging.getLogger(__name__)
_warnings: list[str] = []


def take_warnings() -> list[str]:
    """Return the records that could not be written since the last call, one sentence each, without duplicates."""
    warnings = list(dict.fromkeys(_warnings))
    _warnings.clear()
    return warnings


def is_recorded(backend: Backend) -> bool:
    """Return True if runs of this backend are recorded in the history."""
    return backend.name not in _UNRECORDED


def is_shared(backend: Backend) -> bool:
    """Return True if other users may have or get records of this backend's runs."""
    return any(part.records is not None or part.history_to for part in parts_of(backend))


class LaunchRecording:
    """Record of one launch, written in parallel with the launch from its start: a launcher that is killed half-way
    leaves objects, and they must be in the history.

    Args:
        source: Spec file of the launch; empty without one.
    """

    def __init__(self, backend: Backend, plan: LaunchPlan, source: str) -> None:
        self._backend = backend
        self._plan = plan
        self._names = ", ".join(run.spec.name for run in plan.runs)
        _log.info("launch %s: begins", self._names)
        self._task: asyncio.Task[list[HistoryRecord] | None] | None = None
        if is_recorded(backend):
            self._task = asyncio.create_task(
                _quietly(lambda: asyncio.to_thread(_put_launch, backend, plan, source))
            )

    async def done(self) -> None:
        """Wait, a few moments at most, until the record is written and attached to its run."""
        journal.record(
            "launch", self._names, "done", pods=[pod.name for run in self._plan.runs for pod in run.pods]
        )
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=WRITE_SECONDS)
        records = self._task.result() if self._task.done() else None
        if records and is_shared(self._backend):
            from l2rtui.services.history.sharing import share

            await _quietly(lambda: share(self._backend, records))
            await _quietly(lambda: watch_ends(self._backend, [record.entry.run_id for record in records]))

    async def failed(self, error: L2RError) -> None:
        """Record that the launch failed and was rolled back."""
        from l2rtui.backends.common.refusals import SlotTakenError

        journal.record("launch", self._names, "failed", error=str(error))
        if isinstance(error, SlotTakenError):
            # Another launch was faster, nothing ran, and usually the launch is planned again.
            await self._end(_remove)
        else:
            await self._taken_back(error.message)

    async def interrupted(self) -> None:
        """Record that the user interrupted the launch, and that it was rolled back."""
        journal.record("launch", self._names, "taken back")
        await self._taken_back("it was interrupted")

    async def _taken_back(self, sentence: str) -> None:
        records = await self._end(lambda uids: _complete(uids, RunOutcome.TAKEN_BACK, sentence))
        await _left_in_place(self._backend, records)

    async def _end(self, change: Callable[[list[str]], Any]) -> Any:
        """Change the records of the runs, by their ids, in a thread."""
        if self._task is None:
            return None
        await asyncio.wait({self._task}, timeout=WRITE_SECONDS)
        uids = [run.uid for run in self._plan.runs]
        return await _quietly(lambda: asyncio.to_thread(change, uids))


class DestroyRecording:
    """Record of the end of one run: gathered before its first object is deleted, written with the receipt."""

    def __init__(self, backend: Backend, run: RunView) -> None:
        _log.info("destroy %s: begins", run.name)
        self._name, self._spec = run.name, backend.spec
        # In a view of several contexts the record is made in the run's own context.
        self._backend, self._run = owner_of(backend, run)
        self._ending: Ending | None = None

    async def gather(self) -> None:
        """Read the data that the destroy will remove; a failure is a note in the record.

        The exact spec is kept for ``relaunch``: afterwards it can no longer be read.
        """
        if is_recorded(self._backend):
            self._ending = await _quietly(self._gathered)
        with suppress(L2RError):  # a run whose spec cannot be read is destroyed anyway
            destroyed_specs.keep(await self._spec(self._name))

    async def _gathered(self) -> Ending:
        from l2rtui.services.history.endings import gather_ending, outcome_of

        snapshot = await self._backend.snapshot()
        outcome = outcome_of(self._run, snapshot.pods_of(self._run.name)) or RunOutcome.DESTROYED
        return await gather_ending(self._backend, snapshot, self._run, outcome)

    async def done(self, receipt: Receipt) -> None:
        """Write the end with its receipt, also for a run launched by another user."""
        left = [f"{leftover.kind} {leftover.name}" for leftover in receipt.left]
        journal.record("destroy", self._name, "left" if left else "done", left=left, objects=receipt.objects)
        if self._ending is None:
            return
        ending = replace(self._ending, receipt=receipt.sentence)
        place = receipt.results_location
        record = await _quietly(lambda: asyncio.to_thread(_put_ending, self._backend, self._run, ending, place))
        await _left_in_place(self._backend, [record] if record else None)


async def _left_in_place(backend: Backend, records: list[HistoryRecord] | None) -> None:
    """Write the ends of deleted runs to the place for records, if there is one."""
    if records and backend.history_to:
        from l2rtui.services.history.place import leave

        await _quietly(lambda: leave(backend, records))


async def _quietly(work: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a write; None if it fails, with a warning."""
    try:
        return await work()
    except L2RError as error:
        _warnings.append(str(error))
        _log.warning("history: %s", error)
    except Exception:  # noqa: BLE001
        # No exception may end a launch or a destroy: the log has the traceback.
        _warnings.append("The history was not written: see the log file.")
        _log.exception("history: unexpected error")
    return None


# --- in a thread -----------------------------------------------------------------------------------------------
# Each function imports the store: SQLite is loaded when something is recorded, not with the launcher.
def _put_launch(backend: Backend, plan: LaunchPlan, source: str) -> list[HistoryRecord]:
    from l2rtui.services.history.launch_facts import launch_records
    from l2rtui.services.history.store import HistoryStore

    records = launch_records(backend, plan, source)
    with HistoryStore() as store:
        # The keeper of a queue starts a run under the same id again after a start that was undone.
        store.remove([record.entry.run_id for record in records])
        store.put(records)
    return records


def _complete(uids: list[str], outcome: RunOutcome, sentence: str) -> list[HistoryRecord]:
    from l2rtui.services.history.store import HistoryStore

    ending = Ending(outcome, time.time(), note=sentence)
    with HistoryStore() as store:
        return [store.get(uid) for uid in uids if store.complete(uid, ending)]


def _remove(uids: list[str]) -> None:
    from l2rtui.services.history.store import HistoryStore

    with HistoryStore() as store:
        store.remove(uids)


def _put_ending(backend: Backend, run: RunView, ending: Ending, place: str) -> HistoryRecord:
    if place or (backend.results is not None and "://" not in ending.checkpoints):
        # Results that the destroy has moved or purged are no longer at their old place.
        left = ending.checkpoints if ending.checkpoints and Path(ending.checkpoints).exists() else ""
        ending = replace(ending, checkpoints=place or left)
    from l2rtui.services.history.launch_facts import entry_of
    from l2rtui.services.history.store import HistoryStore

    with HistoryStore() as store:
        if not store.complete(run.uid, ending):
            # Launched from another machine, or by a version without a history: record what is visible of it.
            store.put([HistoryRecord(entry_of(backend, run))])
            store.complete(run.uid, ending)
        return store.get(run.uid)


async def watch_ends(backend: Backend, run_ids: Sequence[str]) -> None:
    """Let the keeper of the queue record the ends of these runs, if the settings name a place for records.

    The keeper writes them without any app or command running.

    Raises:
        BackendError: the queue cannot be written, or its keeper did not start.
    """
    store = backend.queue
    if store is None or not backend.history_to or not run_ids:
        return
    from l2rtui.backends.queue_store import QueueFile, ensure_keeper

    def added(file: QueueFile) -> QueueFile:
        return replace(file, unrecorded=tuple(dict.fromkeys((*file.unrecorded, *run_ids))))

    await asyncio.to_thread(store.change, added)
    await asyncio.to_thread(ensure_keeper, store)
