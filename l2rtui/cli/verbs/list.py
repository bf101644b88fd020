"""Verbs that only read: nodes, slots, pods, runs, experiments, leaks, check."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from l2rtui.cli.listings import EXPERIMENTS, NODES, PODS, RUNS, SLOTS, Listing
from l2rtui.cli.selection import RowSelection, filtered
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed
from l2rtui.config import state_dir
from l2rtui.domain.node import natural_key
from l2rtui.domain.selection.filter_language import about_gpu
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND
from l2rtui.tables import cluster, operations
from l2rtui.tables.column import Document
from l2rtui.tables.documents import finding_document, run_document
from l2rtui.tables.resources import LEAKS
from l2rtui.tables.summaries import experiment_document

if TYPE_CHECKING:
    from l2rtui.domain.preflight import Finding
    from l2rtui.domain.runstatus import LearningState
    from l2rtui.services.learning import LearningReader


_MOST_MISMATCHES: Final = 10
"""Mismatches that are printed one by one: a cluster with a wrong setting has thousands."""


async def run_nodes(session: Session) -> int:
    """List the nodes."""
    return await _Lister(session, NODES).run()


async def run_slots(session: Session) -> int:
    """List the slots."""
    return await _Lister(session, SLOTS).run()


async def run_pods(session: Session) -> int:
    """List the pods, grouped by run."""
    return await _Lister(session, PODS).run()


async def run_runs(session: Session) -> int:
    """List the runs."""
    return await _RunLister(session, RUNS).run()


async def run_experiments(session: Session) -> int:
    """List the experiments, each over its seeds."""
    return await _ExperimentLister(session, EXPERIMENTS).run()


class _Lister:
    """Listing of one kind, once or followed."""

    def __init__(self, session: Session, listing: Listing) -> None:
        self.session = session
        self.listing = listing
        self.selection = RowSelection(session.args, listing)
        self._filter = " ".join(filter(None, (session.args.filter, about_gpu(getattr(session.args, "gpu", "")))))
        self.candidates: Sequence[Document] = ()
        """Documents before more is read for them than a snapshot holds."""
        self._is_first = True
        self._last: tuple[object, Sequence[Document]] = (None, ())

    async def run(self) -> int:
        """Print the selected objects; with ``--watch`` until it is stopped."""
        listing, out = self.listing, self.session.out
        # Before the backend is asked: a typo must not require a login.
        filtered(self._filter, listing.view, ())
        if self.session.args.watch:
            from l2rtui.cli import watching

            writer = watching.writer_of(self.session, listing.view, listing.key, listing.volatile)
            return await watching.follow(self.session, writer, self._followed)
        snapshot = await self.session.backend.snapshot()
        for problem in snapshot.problems:
            self.session.talk.say(f"warning: {problem.rstrip('.')}. See `l2rtui check`.")
        documents = await self.chosen(snapshot)
        out.show_all(cluster.with_namespaces(listing.view, documents), documents)
        of_chosen = (sentence for document in documents for sentence in document.get("mismatches", ()))
        # For slots all problems: a fault of a pod without a slot belongs to no slot.
        self._say_mismatches(snapshot.ledger.problems if listing is SLOTS else of_chosen)
        return EXIT_DONE

    def _say_mismatches(self, sentences: Iterable[str]) -> None:
        problems = sorted(dict.fromkeys(sentences), key=natural_key)
        for problem in problems[:_MOST_MISMATCHES]:
            self.session.talk.say(f"Mismatch: {problem}.")
        if (more := len(problems) - _MOST_MISMATCHES) > 0:
            self.session.talk.say(f"… and {more} more mismatches: see `-o wide`.")

    async def chosen(self, snapshot: ClusterSnapshot) -> Sequence[Document]:
        """Return the selected documents; if the arguments match nothing, say which."""
        every = self.listing.documents(snapshot)
        if self._is_first:
            self.selection.require_names(snapshot, every)
        documents = await self.narrowed(snapshot, every)
        is_unexplained = not documents and self._is_first
        if is_unexplained and (why := self.selection.why_empty(snapshot, self.candidates or every)):
            self.session.talk.say(why)
        self._is_first = False
        return documents

    async def narrowed(self, snapshot: ClusterSnapshot, every: Sequence[Document]) -> Sequence[Document]:
        """Return the documents that the arguments select."""
        return self.filtered(self.selection.choose(snapshot, every))

    def filtered(self, documents: Sequence[Document]) -> Sequence[Document]:
        """Return the documents that pass ``--filter``."""
        return filtered(self._filter, self.listing.view, documents) if self._filter else documents

    def stamp(self, snapshot: ClusterSnapshot) -> object:
        """Return a value that differs if the documents may."""
        return snapshot.revision

    async def _followed(self, snapshot: ClusterSnapshot) -> Sequence[Document]:
        stamp = self.stamp(snapshot)
        if self._last[0] != stamp:
            self._last = stamp, await self.chosen(snapshot)
        return self._last[1]


class _RunLister(_Lister):
    """Listing of runs, whose learning state is in their logs."""

    def __init__(self, session: Session, listing: Listing) -> None:
        super().__init__(session, listing)
        self._states: dict[str, LearningState] = {}

    @cached_property
    def _reader(self) -> LearningReader:
        from l2rtui.services.learning import LearningReader

        return LearningReader(self.session.backend)

    async def narrowed(self, snapshot: ClusterSnapshot, every: Sequence[Document]) -> Sequence[Document]:
        """Return the selected documents with their learning; only logs of runs that may be among them are read."""
        # Names need no log: for a large cluster they must be printed quickly.
        if self.session.out.form == "name" and not (self.session.args.state or self.session.args.filter):
            return self.selection.choose(snapshot, every)
        documents = self.selection.choose(snapshot, every, skip={"state"})
        now = time.time()
        runs = [snapshot.runs[document["uid"]] for document in documents]
        learning = await self._reader.look(snapshot, runs, now)
        self._states = {run.uid: self._continued(run, learning[run.uid].state) for run in runs}
        self.candidates = [run_document(run, snapshot, self._states[run.uid]) for run in runs]
        return self.filtered(self.selection.by_state(self.candidates))

    def _continued(self, run: RunView, state: LearningState) -> LearningState:
        """Return a state that starts when its predecessor of the same kind did."""
        before = self._states.get(run.uid)
        return replace(state, since=before.since) if before is not None and before.state is state.state else state

    def stamp(self, snapshot: ClusterSnapshot) -> object:
        """Return a value that differs if a snapshot does, or its learning may."""
        return snapshot.revision, self._reader.period


class _ExperimentLister(_Lister):
    """Listing of experiments, whose returns are in the logs of their learners."""

    @cached_property
    def _reader(self) -> LearningReader:
        from l2rtui.services.learning import LearningReader

        return LearningReader(self.session.backend, with_ended=True)

    async def narrowed(self, snapshot: ClusterSnapshot, every: Sequence[Document]) -> Sequence[Document]:
        """Return the selected documents with states and returns; only logs of their runs are read."""
        documents = self.selection.choose(snapshot, every)
        if self.session.out.form == "name" and not self.session.args.filter:
            return documents
        from l2rtui.services.sweeps import experiments

        names = {document["experiment"] for document in documents}
        runs = [run for run in snapshot.runs.values() if run.experiment in names]
        summaries = await experiments(self._reader, snapshot, runs, time.time())
        self.candidates = [experiment_document(summary) for summary in summaries]
        chosen = self.filtered(self.candidates)
        if not self.session.args.watch:
            for document in chosen:
                if seeds := listed(map(str, document["repeated_seeds"])):
                    title = document["title"]
                    self.session.talk.say(f"{title}: seed {seeds} has several runs, and the newest counts.")
        return chosen

    def stamp(self, snapshot: ClusterSnapshot) -> object:
        """Return a value that differs if a snapshot does, or its learning may."""
        return snapshot.revision, self._reader.period


async def run_leaks(session: Session) -> int:
    """List leftover objects of deleted runs, or remove them; exit code 4 if there are any left."""
    if session.args.clean:
        session.require_writable("leaks --clean")
    report = await session.backend.leaks()
    leaks = report.leaks
    if leaks and session.args.clean:
        from l2rtui.cli.verbs.destroy import destroy_leaks

        return await destroy_leaks(session, leaks)
    session.out.show_all(LEAKS, leaks)
    if not leaks:
        session.talk.say("No leaks." if not report.not_seen else "No leaks among the objects that you may list.")
    if report.not_seen:
        session.talk.say(f"warning: leaks among {report.not_seen} are unknown: you may not list them.")
    return EXIT_LEFT_BEHIND if leaks else EXIT_DONE


async def run_check(session: Session) -> int:
    """Print the findings about this setup; exit code 1 if a required part does not work."""
    from l2rtui.domain.preflight import refusals

    findings = [*await session.backend.doctor(), *_own_findings()]
    session.out.show_all(operations.FINDINGS, [finding_document(finding) for finding in findings])
    return EXIT_FAILED if refusals(findings) else EXIT_DONE


def _own_findings() -> Iterable[Finding]:
    """Return findings that do not depend on the backend."""
    from l2rtui.domain.preflight import Finding, Severity

    term = os.environ.get("TERM", "")
    if term in ("", "dumb"):
        yield Finding(Severity.WARNING, "terminal", f"TERM is {term!r}: the app cannot draw", "Set TERM.")
    else:
        yield Finding(Severity.OK, "terminal", f"TERM is {term}")
    path = state_dir()
    if any(part.exists() and not os.access(part, os.W_OK) for part in (path, path / "journal.jsonl")):
        yield Finding(Severity.WARNING, "journal", f"{path} cannot be written: changes are not recorded")
    # Those of runs are findings of the backend.
    for aside in sorted(file for depth in ("*", "*/*", "*/*/*") for file in path.glob(f"{depth}.*-*[0-9]")):
        if aside.suffix.startswith((".damaged-", ".corrupt-")):
            sentence = f"a damaged file was set aside as {aside}: what it recorded is not shown"
            yield Finding(Severity.WARNING, "state", sentence, "Restore it from a backup, or remove it.")
