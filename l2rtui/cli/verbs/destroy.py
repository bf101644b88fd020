"""destroy: remove runs, or sets of them, and print the receipt of each, counted where they ran."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed, require_only_named, runs_named
from l2rtui.domain.quantity import age, counted
from l2rtui.domain.receipt import DestroyProgress, Leak, Receipt
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND, NotFoundError, UsageError
from l2rtui.services import launcher, set_destroy
from l2rtui.services.history import recorder
from l2rtui.services.ownership import is_mine, refuse_others
from l2rtui.tables import operations
from l2rtui.tables.documents import receipt_document

Scope = tuple[RunView, str]
"""A run, or one set of it by its name."""
_SILENT_SECONDS: Final = 10.0
_FORCE_WARNING = (
    "--force deletes pods after their grace period without waiting for their processes, which may continue to run "
    "and hold GPUs: check the node afterwards."
)


async def run_destroy(session: Session) -> int:
    """Destroy runs, or sets of them; exit code 4 if any object is left."""
    args = session.args
    if bool(args.targets) == args.all_mine:
        raise UsageError("destroy needs the names of runs, or else --all-mine.", "See `l2rtui runs`.")
    # A set has no separate results, and force would orphan the objects that the run still owns.
    is_of_sets = any("/" in target for target in args.targets)
    if is_of_sets and (args.purge or args.force):
        raise UsageError("--purge and --force are for whole runs.", "Name runs, and no RUN/SET.")
    session.require_writable("destroy")
    with session.interruption("nothing was destroyed."):
        snapshot = await session.backend.snapshot()
    mine = [(run, "") for run in snapshot.runs.values() if is_mine(run)]
    scopes = scopes_of(snapshot, args.targets, args.seed) if args.targets else mine
    runs = list({run.uid: run for run, _ in scopes}.values())
    refuse_others("destroy", runs, is_admin=args.admin)
    require_only_named(session, "destroy", _named(snapshot, args.targets, args.seed))
    session.require_answer("destroy")  # after the names: a typo must not need a second call
    if not scopes:
        session.talk.say("You have no runs.")
    elif not session.confirm(lambda: _question(session, snapshot, scopes), word="force" if args.force else ""):
        return EXIT_FAILED
    receipts, failures = await _Destroyer(session, scopes).all()
    # Receipts, if any, are printed first: they prove which objects were deleted, even if other runs failed.
    if failures and not receipts:
        raise failures[0]
    documents = [receipt_document(receipt) for receipt in receipts]
    session.talk.clear()
    for sentence in (*recorder.take_warnings(), *map(str, failures[1:])):
        session.talk.say(sentence)
    if len(scopes) > 1 or args.all_mine or len(args.targets) > 1:
        session.out.show_all(operations.RECEIPTS, documents)
    elif documents:
        session.out.show_one(operations.RECEIPTS, documents[0])
    if failures:
        raise failures[0]
    return EXIT_LEFT_BEHIND if any(receipt.left for receipt in receipts) else EXIT_DONE


async def destroy_leaks(session: Session, leaks: Sequence[Leak]) -> int:
    """Destroy the deleted runs of these leaks; exit code 4 if any object is left, of a run or of no run."""
    runs: dict[str, RunView] = {}
    for leak in leaks:
        # A claim on a slot names no owner; any other object of the run does.
        if leak.of is not None and not ((earlier := runs.get(leak.of.uid)) and earlier.owner):
            runs[leak.of.uid] = leak.of
    others = [leak for leak in leaks if leak.of is None]
    # The next launch on its slot takes over the claim of a deleted run: whose it was does not matter.
    owned = {leak.of.uid for leak in leaks if leak.of is not None and leak.kind != "Lease"}
    refuse_others("leaks --clean", [run for uid, run in runs.items() if uid in owned], is_admin=session.args.admin)
    session.require_answer("leaks --clean")
    for leak in others:
        session.talk.say(f"{leak.kind} {leak.name} stays: {leak.reason}.")
    if not runs:
        return EXIT_LEFT_BEHIND
    names = listed(run.name for run in runs.values())
    where = session.backend.acts_on({run.namespace for run in runs.values()})
    objects = counted(len(leaks) - len(others), "object")
    if not session.confirm(lambda: f"Destroy what is left of {names} ({objects}) {where}?"):
        return EXIT_FAILED
    receipts, failures = await _Destroyer(session, [(run, "") for run in runs.values()]).all()
    session.talk.clear()
    session.out.show_all(operations.RECEIPTS, [receipt_document(receipt) for receipt in receipts])
    if failures:
        raise failures[0]
    return EXIT_LEFT_BEHIND if others or any(receipt.left for receipt in receipts) else EXIT_DONE


def scopes_of(snapshot: ClusterSnapshot, targets: Sequence[str], seeds: Sequence[int]) -> list[Scope]:
    """Return the named runs and sets, each once; a set of a run that is destroyed as a whole is left out.

    Raises:
        NotFoundError: a target matches nothing.
    """
    scopes: dict[tuple[str, str], Scope] = {}
    for target in targets:
        of_target, parts = snapshot.runs_in(target)
        runs = [run for run in of_target or runs_named(snapshot, [target]) if not seeds or run.seed in seeds]
        set_name = "/".join(parts)
        if not runs:
            raise NotFoundError(f"{target} has no run with seed {listed(map(str, seeds))}.", "See `l2rtui runs`.")
        for run in runs:
            names = [set_view.name for set_view in run.sets]
            if set_name and set_name not in names:
                raise NotFoundError(f"{run.name} has no set {set_name}: it has {listed(names)}.")
            scopes[run.uid, set_name] = (run, set_name)
    return [scope for (uid, set_name), scope in scopes.items() if not set_name or (uid, "") not in scopes]


def _named(snapshot: ClusterSnapshot, targets: Sequence[str], seeds: Sequence[int]) -> dict[str, list[str]]:
    """Return the runs of each target; with ``--seed``, of each of its seeds, so that both together name one run."""
    names: dict[str, list[str]] = {}
    for target in targets:
        for run in snapshot.runs_in(target)[0]:
            if not seeds:
                names.setdefault(target, []).append(run.name)
            elif run.seed in seeds:
                names.setdefault(f"{target} with --seed {run.seed}", []).append(run.name)
    return names


def _name(scope: Scope) -> str:
    run, set_name = scope
    return f"{run.name}/{set_name}" if set_name else run.name


def _question(session: Session, snapshot: ClusterSnapshot, scopes: Sequence[Scope]) -> str:
    pods = 0
    for run, set_name in scopes:
        of_run = snapshot.pods_of(run, set_name)
        pods += len(of_run)
        slots = sum(len(pod.slots) for pod in of_run)
        whose = "" if is_mine(run) else f", owned by {run.owner or 'nobody known'}"
        session.talk.say(
            f"  {_name((run, set_name))}: {counted(len(of_run), 'pod')}, frees {counted(slots, 'slot')}{whose}"
        )
        if run.silent_since is not None:
            session.talk.say(f"  {run.name}: {run.message}")
    results = " and DELETE their results" if session.args.purge else ""
    if session.args.force:
        session.talk.say(_FORCE_WARNING)
    where = session.backend.acts_on({run.namespace for run, _ in scopes})
    return f"Destroy {listed(map(_name, scopes))} ({counted(pods, 'pod')}){results} {where}?"


class _Destroyer:
    """Concurrent destroys: one updated line on a terminal, elsewhere a line for each finished destroy."""

    def __init__(self, session: Session, scopes: Sequence[Scope]) -> None:
        self._session = session
        self._scopes = scopes
        self._left: dict[str, int] = {}
        self._refusals: set[str] = set()
        self._receipts: dict[str, Receipt] = {}
        self._is_told = False
        self._changed = time.monotonic()

    async def all(self) -> tuple[list[Receipt], list[BaseException]]:
        """Destroy all; return the receipts, and the errors of those without one."""
        names = [_name(scope) for scope in self._scopes]
        telling = asyncio.create_task(self._tell_silence())
        try:
            # A failed destroy must not cancel the others half-way.
            outcomes = await asyncio.gather(*(self._one(scope) for scope in self._scopes), return_exceptions=True)
        except asyncio.CancelledError:
            unfinished = [name for name in names if name not in self._receipts]
            self._session.talk.say(
                f"Interrupted: {listed(unfinished)} may be half gone. "
                f"`l2rtui destroy {' '.join(unfinished)}` goes on."
            )
            raise
        finally:
            telling.cancel()
        receipts = [self._receipts[name] for name in names if name in self._receipts]
        return receipts, [outcome for outcome in outcomes if isinstance(outcome, BaseException)]

    async def _one(self, scope: Scope) -> None:
        run, set_name = scope
        args, backend, name = self._session.args, self._session.backend, _name(scope)
        grace = self._session.settings.grace_seconds if args.grace is None else args.grace
        items = (
            set_destroy.destroy_set(backend, run, set_name, grace_seconds=grace)
            if set_name
            else launcher.destroy(
                backend,
                run,
                grace_seconds=grace,
                purge=getattr(args, "purge", False),
                force=getattr(args, "force", False),
            )
        )
        async with aclosing(items) as stream:
            async for item in stream:
                self._changed = time.monotonic()
                match item:
                    case DestroyProgress(left, refusal):
                        self._left[name] = sum(count for _, count in left)
                        self._tell()
                        self._tell_refusal(refusal)
                    case Receipt():
                        self._left.pop(name, None)
                        self._receipts[name] = item
                        self._tell_end(item)

    async def _tell_silence(self) -> None:
        """Say for how long nothing has changed: a server that no longer answers looks like a long grace period."""
        while True:
            await asyncio.sleep(1.0)
            if self._left and time.monotonic() - self._changed >= _SILENT_SECONDS:
                self._session.talk.live(self._progress())

    def _tell(self) -> None:
        if self._session.talk.is_live or not self._is_told:  # elsewhere once, then a line per deleted run
            self._session.talk.progress(self._progress())
            self._is_told = True

    def _tell_refusal(self, refusal: str) -> None:
        if refusal and refusal not in self._refusals:
            self._refusals.add(refusal)
            self._session.talk.say(f"refused, and tried again: {refusal}")

    def _progress(self) -> str:
        gone = f"{len(self._receipts)} of {len(self._scopes)} gone: " if len(self._scopes) > 1 else ""
        waiting = listed(f"{name} ({count} left)" for name, count in self._left.items())
        silent = time.monotonic() - self._changed
        since = f", no change for {age(silent)}" if silent >= _SILENT_SECONDS else ""
        return f"destroying {gone}{waiting}{since}"

    def _tell_end(self, receipt: Receipt) -> None:
        talk = self._session.talk
        # On a terminal the table of many receipts says the same; only leftovers need a sentence.
        if talk.is_live and len(self._scopes) > 1 and not receipt.left:
            self._tell()
            return
        results = f"; results kept in {receipt.results_location}" if receipt.results_location else ""
        talk.say(f"{receipt.sentence}{results}")
