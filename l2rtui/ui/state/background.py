"""Background work: started here, named here, and every expected failure shown to the user.

An L2RError is a sentence for people and becomes a notification; the app goes on. Any other exception is a defect:
it ends the app with a report, since a silent one would leave a screen that shows something false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Final

from textual.app import App
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError

FEW: Final = 16


class Background:
    """All tasks of one app.

    Args:
        app: Tasks belong to it and not to a screen, so that closing a dialog stops nothing.
        on_busy: Called whenever ``doing`` has changed.
    """

    def __init__(self, app: App[None], on_busy: Callable[[], None]) -> None:
        self._app = app
        self._on_busy = on_busy
        self._doing: list[str] = []
        self._look_at = FEW
        self._started: list[tuple[Worker[None], Coroutine[Any, Any, None], Coroutine[Any, Any, None]]] = []

    @property
    def doing(self) -> str:
        """What must not be broken off without asking, for example ``launching r7``; empty when nothing."""
        return ", ".join(self._doing)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Hold ``doing`` while something is changed."""
        self._doing.append(what)
        self._on_busy()
        try:
            yield
        finally:
            self._doing.remove(what)
            self._on_busy()

    def start(
        self, work: Coroutine[Any, Any, None], *, group: str, what: str, is_exclusive: bool = False
    ) -> Worker[None]:
        """Run a coroutine beside the app.

        Args:
            group: Kind of work. is_exclusive: it takes the place of what runs in its group.
            what: Begins the sentence of a failure: ``the launch of r7``.
        """
        shown = self._shown(work, what)
        worker = self._app.run_worker(shown, name=what, group=group, exclusive=is_exclusive)
        self._started.append((worker, shown, work))
        if len(self._started) >= self._look_at:
            self._let_go()
            self._look_at = 2 * len(self._started) + FEW
        return worker

    def _let_go(self) -> None:
        """Close what was cancelled before it had begun: nobody else will."""
        for worker, shown, work in self._started:
            if worker.is_cancelled:
                for one in (shown, work):
                    if getcoroutinestate(one) == CORO_CREATED:
                        one.close()
        self._started = [one for one in self._started if not (one[0].is_finished or one[0].is_cancelled)]

    def say(self, sentence: str, *, is_error: bool = False, title: str = "") -> None:
        """Show a sentence for a few seconds; it may hold text from outside."""
        self._app.notify(
            sanitize(sentence),
            title=sanitize(title),
            severity="error" if is_error else "information",
            timeout=10 if is_error else 5,
            markup=False,
        )

    async def stop(self, seconds: float) -> None:
        """Cancel all work and wait, so that what was half done is taken back; at most this long."""
        workers = list(self._app.workers)
        for worker in workers:
            worker.cancel()
        try:
            async with asyncio.timeout(seconds):
                for worker in workers:
                    try:
                        await worker.wait()
                    except (WorkerCancelled, WorkerFailed):
                        pass  # how it ended was shown, or nobody is there to be told
        except TimeoutError:
            pass  # the caller could wait no longer; the journal and the snapshot tell what is left
        self._let_go()

    async def _shown(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except L2RError as error:
            self.say(str(error), is_error=True, title=what)
