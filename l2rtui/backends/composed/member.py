"""One context of several: its watch, tried again for ever, and what it says of itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from l2rtui.backends.base import Backend
from l2rtui.backends.composed.qualified import QualifiedRows
from l2rtui.domain.change import Change, ProblemsChanged, apply, difference
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.errors import L2RError

FIRST_BACKOFF_SECONDS: Final = 0.8
LAST_BACKOFF_SECONDS: Final = 30.0
"""As client-go: doubled from the first to the last while a server is away."""


class ComposedContext:
    """A backend under the name of its context.

    Attributes:
        rows: The name before its rows.
        problem: Reason why its rows are old; empty while its watch works.
        has_answered: It has given a first batch, or a first failure.
    """

    def __init__(self, context: str, backend: Backend) -> None:
        self.rows = QualifiedRows(context)
        self.backend = backend
        self.problem = ""
        self.has_answered = False
        self._latest: ClusterSnapshot = EMPTY_SNAPSHOT

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what of this context cannot be read, each with its name."""
        since = self._latest.silent_since
        clock = time.strftime("%H:%M:%S", time.localtime(since)) if since is not None else ""
        silence = (f"nothing answers since {clock}",) if since is not None else ()
        waiting = () if self.has_answered else ("no answer yet",)
        own = (self.problem,) if self.problem else (*waiting, *silence, *self._latest.problems)
        return tuple(f"{self.rows.context}: {problem}" for problem in own)

    async def watch(self, report: Callable[[tuple[Change, ...]], None]) -> None:
        """Report changes of its qualified rows until cancelled; an outage keeps the rows, and is reported once."""
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            is_new = True
            try:
                async with aclosing(self.backend.watch()) as batches:
                    async for changes in batches:
                        # A new watch begins with everything: rows that went during the outage must go here too.
                        news = difference(self._latest, apply(EMPTY_SNAPSHOT, changes)) if is_new else changes
                        self.problem, is_new, backoff = "", False, FIRST_BACKOFF_SECONDS
                        self._take(news, report)
                problem = "the watch ended"
            except L2RError as error:
                problem = str(error)
            if problem != self.problem:  # an outage of hours is reported once
                self.fail(problem)
                report(())
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LAST_BACKOFF_SECONDS)

    def _take(self, news: tuple[Change, ...], report: Callable[[tuple[Change, ...]], None]) -> None:
        self._latest = apply(self._latest, news)
        self.has_answered = True
        changes = (self.rows.change(change) for change in news)
        report(tuple(change for change in changes if change is not None))

    def fail(self, problem: str) -> None:
        """Mark its rows as old."""
        self.has_answered, self.problem = True, problem

    async def snapshot(self) -> tuple[Change, ...]:
        """Return everything that it has now, as changes of qualified rows; L2RError where it does not answer."""
        self._latest = await self.backend.snapshot()
        self.has_answered = True
        changes = (self.rows.change(change) for change in difference(EMPTY_SNAPSHOT, self._latest))
        return tuple(change for change in changes if change is not None)


def facts(members: tuple[ComposedContext, ...]) -> ProblemsChanged:
    """Return the problems of all contexts; each is named, and none makes the rows of another old."""
    return ProblemsChanged(tuple(problem for member in members for problem in member.problems))
