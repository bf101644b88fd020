"""One of several contexts: its watch with endless retries, its health, and its rows under qualified names.

Every name and uid starts with the context, ``lab:n1``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final, assert_never, overload

from msgspec.structs import replace

from l2rtui.backends.base import Backend, ContextMember
from l2rtui.config import Settings
from l2rtui.domain.change import (
    Change,
    ContextsChanged,
    NodeChanged,
    NodeGone,
    PodChanged,
    PodGone,
    ProblemsChanged,
    RunChanged,
    RunGone,
    SilenceChanged,
    apply,
    difference,
)
from l2rtui.domain.node import Node
from l2rtui.domain.receipt import Leak, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, ContextHealth, PodView, RunView
from l2rtui.errors import BackendError, L2RError, RefusedError
from runtime.base.processes import exponential_delay


def short_names(contexts: Sequence[str]) -> tuple[str, ...]:
    """Return a short name for each context: the part after its last slash (in an ARN, the cluster) if that is
    unique.
    """
    # A slash would end the name of a node in NODE/GPU.SLOT, and the name of a run in RUN/SET.
    last = [context.rpartition("/")[2] for context in contexts]
    full = [context.replace("/", "_") for context in contexts]
    return tuple(
        short if short and last.count(short) == 1 else long for short, long in zip(last, full, strict=True)
    )


class QualifiedRows:
    """Adds the context name to the rows of one context, and removes it again.

    Args:
        context: Name of the context, without a slash.
    """

    def __init__(self, context: str) -> None:
        self.context = context
        self.prefix = f"{context}:"

    def change(self, change: Change) -> Change | None:
        """Return a change with a qualified row; None for facts of the whole context."""
        match change:
            case NodeChanged(node):
                return NodeChanged(self.node(node))
            case NodeGone(name):
                return NodeGone(self._named(name))
            case PodChanged(pod):
                return PodChanged(self.pod(pod))
            case PodGone(uid):
                return PodGone(self._named(uid))
            case RunChanged(run):
                return RunChanged(self.run(run))
            case RunGone(uid):
                return RunGone(self._named(uid))
            case ProblemsChanged() | SilenceChanged() | ContextsChanged():
                return None
            case _:  # pragma: no cover  (the type checker proves that there is no other change)
                assert_never(change)

    def node(self, node: Node) -> Node:
        """Return a node, and its devices, under its qualified name."""
        return _renamed(node, self._named(node.name), self.context)

    def pod(self, pod: PodView) -> PodView:
        """Return a pod under its qualified name. The uid is qualified too, as two contexts may refer to one
        cluster.
        """
        return replace(
            pod,
            uid=self._named(pod.uid),
            name=self._named(pod.name),
            node=self._named(pod.node),
            run=self._named(pod.run),
            context=self.context,
        )

    def run(self, run: RunView) -> RunView:
        """Return a run under its qualified name; its experiment may have seeds in several contexts."""
        return replace(run, uid=self._named(run.uid), name=self._named(run.name), context=self.context)

    def leak(self, leak: Leak) -> Leak:
        """Return a leaked object under its qualified name."""
        of = None if leak.of is None else self.run(leak.of)
        return replace(leak, run=self._named(leak.run), name=self._named(leak.name), of=of)

    def receipt(self, receipt: Receipt) -> Receipt:
        """Return the result of a destroy under the qualified name of the run."""
        return replace(receipt, run=self._named(receipt.run))

    @overload
    def original(self, row: PodView) -> PodView: ...
    @overload
    def original(self, row: RunView) -> RunView: ...
    @overload
    def original(self, row: Node) -> Node: ...

    def original(self, row: PodView | RunView | Node) -> PodView | RunView | Node:
        """Return the row as its own context names it."""
        name = self._own(row.name)
        if isinstance(row, Node):
            return _renamed(row, name, "")
        if isinstance(row, RunView):
            return replace(row, uid=self._own(row.uid), name=name, context="")
        node, run = self._own(row.node), self._own(row.run)
        return replace(row, uid=self._own(row.uid), name=name, node=node, run=run, context="")

    def _named(self, name: str) -> str:
        return f"{self.prefix}{name}" if name else ""  # a waiting pod has no node, a foreign pod has no run

    def _own(self, name: str) -> str:
        return name.removeprefix(self.prefix)


def _renamed(node: Node, name: str, context: str) -> Node:
    gpus = tuple(replace(gpu, node=name) for gpu in node.gpus)
    cpu = replace(node.cpu, node=name) if node.cpu is not None else None
    return replace(node, name=name, gpus=gpus, cpu=cpu, context=context)


FIRST_BACKOFF_SECONDS: Final = 0.8
LAST_BACKOFF_SECONDS: Final = 30.0
"""As in client-go: doubled from the first to the last while a server is unreachable."""
SNAPSHOT_SECONDS: Final = 15.0
"""Timeout of a context in a one-time snapshot: a server behind a firewall never refuses."""


class ComposedContext:
    """A backend with the name of its context.

    Attributes:
        rows: Qualifies its rows with the context name.
        problem: Why its rows are old; empty while its watch works.
        has_answered: It has delivered a first batch, or a first failure.
    """

    def __init__(self, context: str, backend: Backend, settings: Settings) -> None:
        self.rows = QualifiedRows(context)
        self.backend = backend
        self.settings = settings
        self.problem = ""
        self.has_answered = False
        self._has_rows = False
        self._is_watched = False
        self._failed_at = 0.0
        self._latest: ClusterSnapshot = EMPTY_SNAPSHOT

    @property
    def member(self) -> ContextMember:
        """This context as callers see it."""
        return ContextMember(self.backend, self.settings, self.rows.prefix, self.rows.original)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on the parts of this context that cannot be read, each with the context name."""
        since = self._latest.silent_since
        clock = time.strftime("%H:%M:%S", time.localtime(since)) if since is not None else ""
        silence = (f"nothing answers since {clock}",) if since is not None else ()
        waiting = () if self.has_answered else ("no answer yet",)
        own = (self.problem,) if self.problem else (*waiting, *silence, *self._latest.problems)
        return tuple(f"{self.rows.context}: {problem}" for problem in own)

    @property
    def health(self) -> ContextHealth:
        """State for its part of the header, and for the age of its rows."""
        since = self._latest.silent_since
        if since is None and self.problem and self._has_rows:
            since = self._failed_at
        return ContextHealth(
            self.rows.context,
            self._has_rows,
            since,
            bool(self.problem),
            self.problems,
            is_protected=self.settings.protected,
        )

    async def watch(self, report: Callable[[tuple[Change, ...]], None]) -> None:
        """Report changes of its qualified rows until cancelled; rows survive an outage, which is reported once."""
        self._is_watched = True
        failures = 0
        while True:
            is_new = True
            try:
                async with aclosing(self.backend.watch()) as batches:
                    async for changes in batches:
                        # A new watch begins with all rows: rows that were deleted during the outage must be deleted
                        # here too.
                        news = difference(self._latest, apply(EMPTY_SNAPSHOT, changes)) if is_new else changes
                        self.problem, is_new, failures = "", False, 0
                        self._take(news, report)
                problem = "the watch ended"
            except L2RError as error:
                problem = str(error)
            if problem != self.problem:  # an outage of hours is reported once
                self.fail(problem)
                report(())
            failures += 1
            await asyncio.sleep(exponential_delay(failures, FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS))

    def _take(self, news: tuple[Change, ...], report: Callable[[tuple[Change, ...]], None]) -> None:
        self._accept(apply(self._latest, news))
        changes = (self.rows.change(change) for change in news)
        report(tuple(change for change in changes if change is not None))

    def _accept(self, snapshot: ClusterSnapshot) -> None:
        self._latest = snapshot
        self.has_answered = self._has_rows = True

    def fail(self, problem: str) -> None:
        """Mark its rows as old."""
        if not self.problem:  # they are as old as the first failure, not as the latest
            self._failed_at = time.time()
        self.has_answered, self.problem = True, problem

    async def snapshot(self) -> tuple[Change, ...]:
        """Return all its current rows as changes.

        If it is being watched and does not respond, return its last rows; the watch reports how old they are.

        Raises:
            L2RError: It does not respond, and is not being watched.
        """
        is_away = self._is_watched and (self.problem or self._latest.silent_since is not None)
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                # Do not make the others wait for the timeout of a context that is known to be unreachable.
                latest = self._latest if is_away else await self.backend.snapshot()
        except (L2RError, TimeoutError) as error:
            if not self._is_watched:
                raise self._failure(error) from error
            latest = self._latest
        if not self._is_watched:  # otherwise the next change of the watch would apply to other rows
            self._accept(latest)
        changes = (self.rows.change(change) for change in difference(EMPTY_SNAPSHOT, latest))
        return tuple(change for change in changes if change is not None)

    def _failure(self, error: Exception) -> L2RError:
        if isinstance(error, L2RError):
            self.fail(str(error))
            return error
        self.fail(f"no answer within {SNAPSHOT_SECONDS:.0f} s")
        return BackendError(f"The context {self.rows.context} gave no answer.", "Try again.")

    def require_writable(self, what: str) -> None:
        """Refuse a change if the settings of this context say readonly.

        Raises:
            RefusedError: The context is read-only.
        """
        if self.settings.readonly:
            raise RefusedError(f"{what} changes something, and the context {self.rows.context} is read-only here.")


def facts(members: tuple[ComposedContext, ...]) -> tuple[ProblemsChanged, ContextsChanged]:
    """Return the problems and states of all contexts, each with its name; one context never makes another's rows
    old.
    """
    problems = tuple(problem for member in members for problem in member.problems)
    return ProblemsChanged(problems), ContextsChanged(tuple(member.health for member in members))
