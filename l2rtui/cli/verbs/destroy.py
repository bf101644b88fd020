"""destroy: remove runs and print the receipt of each, counted where they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from l2rtui.backends.base import DestroyProgress, Receipt
from l2rtui.cli import documents, views
from l2rtui.cli.choose import counted, listed, runs_named
from l2rtui.cli.session import Session
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND, UsageError
from l2rtui.services import launcher
from l2rtui.services.owners import is_mine, refuse_others

_FORCE_WARNING = (
    "--force takes pods that outstay their grace out of the cluster's books. Their processes may live on, unseen, "
    "and hold their GPUs: see to the node afterwards."
)


async def run_destroy(session: Session) -> int:
    """Remove runs; 4 when something of one is left."""
    args = session.args
    if bool(args.targets) == args.all_mine:
        raise UsageError("destroy needs the names of runs, or else --all-mine.", "See `l2rtui runs`.")
    session.require_change("destroy")
    with session.interruption("nothing was destroyed."):
        snapshot = await session.backend.snapshot()
    runs = _mine(snapshot) if args.all_mine else runs_named(snapshot, args.targets)
    refuse_others("destroy", runs, is_admin=args.admin)
    if not runs:
        session.talk.say("You have no runs.")
    elif not session.confirm(lambda: _question(session, snapshot, runs), word="force" if args.force else ""):
        return EXIT_FAILED
    receipts, failures = await _Destroyer(session, runs).all()
    found = [documents.receipt_document(receipt) for receipt in receipts]
    for receipt in receipts:
        kept = f"; results kept in {receipt.kept}" if receipt.kept else ""
        session.talk.say(f"{receipt.sentence}{kept}")
    if len(runs) > 1 or args.all_mine or len(args.targets) > 1:
        session.out.show_all(views.RECEIPTS, found)
    elif found:
        session.out.show_one(views.RECEIPTS, found[0])
    if failures:
        raise failures[0]
    return EXIT_LEFT_BEHIND if any(receipt.left for receipt in receipts) else EXIT_DONE


def _mine(snapshot: ClusterSnapshot) -> tuple[RunView, ...]:
    return tuple(run for run in snapshot.runs.values() if is_mine(run))


def _question(session: Session, snapshot: ClusterSnapshot, runs: Sequence[RunView]) -> str:
    pods = 0
    for run in runs:
        of_run = snapshot.pods_of(run.name)
        pods += len(of_run)
        slots = sum(len(pod.slots) for pod in of_run)
        whose = "" if is_mine(run) else f", owned by {run.owner or 'nobody known'}"
        session.talk.say(f"  {run.name}: {counted(len(of_run), 'pod')}, frees {counted(slots, 'slot')}{whose}")
    results = " and DELETE their results" if session.args.purge else ""
    if session.args.force:
        session.talk.say(_FORCE_WARNING)
    return f"Destroy {listed(run.name for run in runs)} ({counted(pods, 'pod')}){results}?"


class _Destroyer:
    """Several destroys at once under one line of progress."""

    def __init__(self, session: Session, runs: Sequence[RunView]) -> None:
        self._session = session
        self._runs = runs
        self._left: dict[str, int] = {}
        self._receipts: dict[str, Receipt] = {}

    async def all(self) -> tuple[list[Receipt], list[BaseException]]:
        """Destroy every run; the receipts, and the failures of those that have none."""
        try:
            outcomes = await asyncio.gather(*(self._one(run) for run in self._runs), return_exceptions=True)
        except asyncio.CancelledError:
            unfinished = [run.name for run in self._runs if run.uid not in self._receipts]
            self._session.talk.say(
                f"Interrupted: {listed(unfinished)} may be half gone. "
                f"`l2rtui destroy {' '.join(unfinished)}` goes on."
            )
            raise
        receipts = [self._receipts[run.uid] for run in self._runs if run.uid in self._receipts]
        return receipts, [outcome for outcome in outcomes if isinstance(outcome, BaseException)]

    async def _one(self, run: RunView) -> None:
        grace = self._session.args.grace
        items = launcher.destroy(
            self._session.backend,
            run,
            grace_seconds=self._session.settings.grace_seconds if grace is None else grace,
            purge=self._session.args.purge,
            force=self._session.args.force,
        )
        async with aclosing(items) as stream:
            async for item in stream:
                match item:
                    case DestroyProgress(left):
                        self._left[run.name] = sum(count for _, count in left)
                        self._tell()
                    case Receipt():
                        self._left.pop(run.name, None)
                        self._receipts[run.uid] = item

    def _tell(self) -> None:
        waiting = ", ".join(f"{name} ({count} left)" for name, count in self._left.items())
        self._session.talk.progress(f"destroying {waiting}")
