"""Background work of the app: coroutines that run as Textual workers, with every expected failure shown.

An L2RError has a sentence for the user and becomes a notification; the app continues. Any other exception is a bug
and ends the app with a report, since a silent one would leave a screen with false content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Final

from textual.app import App
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError

_MIN_PRUNE: Final = 16
"""Finished workers are pruned when the list has doubled since the last time, and has at least this many more."""


class Background:
    """Workers and notifications of one app.

    Args:
        app: Owns the workers, instead of a screen, so that closing a dialog stops nothing.
        on_busy: Called whenever ``doing`` has changed.
    """

    def __init__(self, app: App[None], on_busy: Callable[[], None]) -> None:
        self._app = app
        self.complete: Callable[[str], str] = str
        """Completes the command lines in a sentence."""
        self._on_busy = on_busy
        self._doing: list[str] = []
        self._prune_at = _MIN_PRUNE
        self._cleanups: set[asyncio.Task[None]] = set()
        self._started: list[tuple[Worker[None], Coroutine[Any, Any, None], Coroutine[Any, Any, None]]] = []

    @property
    def doing(self) -> str:
        """Work that must not be interrupted without a question, such as ``launching r7``; empty if there is
        none.
        """
        names: dict[str, list[str]] = {}
        for what in self._doing:
            verb, _, name = what.partition(" ")
            names.setdefault(verb, []).append(name)
        return ", ".join(f"{verb} {_few(of_verb)}" for verb, of_verb in names.items())

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """List work in ``doing`` while it runs."""
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
        """Run a coroutine in the background.

        Args:
            group: Kind of work. is_exclusive: cancels running work of its group.
            what: Title of the notification of a failure: ``the launch of r7``.
        """
        reported = self._report_errors(work, what)
        worker = self._app.run_worker(reported, name=what, group=group, exclusive=is_exclusive)
        self._started.append((worker, reported, work))
        if len(self._started) >= self._prune_at:
            self._prune()
            self._prune_at = 2 * len(self._started) + _MIN_PRUNE
        return worker

    async def finish(self, cleanup: Coroutine[Any, Any, None]) -> None:
        """Run a cleanup that continues when its caller is cancelled; ``stop`` waits for it."""
        task = asyncio.create_task(cleanup, name="cleanup")
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        await asyncio.shield(task)

    def _prune(self) -> None:
        """Drop finished work, and close coroutines that were cancelled before they started."""
        running = []
        for worker, reported, work in self._started:
            if worker.is_cancelled:
                # Textual drops such coroutines unawaited, for which Python prints a RuntimeWarning.
                for coroutine in (reported, work):
                    if getcoroutinestate(coroutine) == CORO_CREATED:
                        coroutine.close()
            elif not worker.is_finished:
                running.append((worker, reported, work))
        self._started = running

    def say(self, sentence: str, *, is_error: bool = False, title: str = "") -> None:
        """Show a sentence for a few seconds; text from outside is sanitised."""
        self._app.notify(
            sanitize(self.complete(sentence)),
            title=sanitize(title),
            severity="error" if is_error else "information",
            timeout=10 if is_error else 5,
            markup=False,
        )

    def notice(self, text: str, *, title: str, seconds: float) -> None:
        """Show lines for longer than a sentence, until `clear` removes them; the text must not contain outside
        text.
        """
        self._app.notify(text, title=title, timeout=seconds, markup=False)

    def clear(self) -> None:
        """Remove all notifications."""
        self._app.clear_notifications()

    def copy(self, command: str) -> None:
        """Copy a command line to the clipboard of the terminal, and say so."""
        self._app.copy_to_clipboard(command)
        self.say(f"copied: {command}")

    async def stop(self, seconds: float, spare: Collection[Worker[None]] = ()) -> None:
        """Cancel work and wait at most this long for its cleanup, such as undoing an unfinished launch.

        Args:
            spare: Work that continues.
        """
        workers = [worker for worker in self._app.workers if worker not in spare]
        for worker in workers:
            worker.cancel()
        try:
            async with asyncio.timeout(seconds):
                for worker in workers:
                    try:
                        await worker.wait()
                    except (WorkerCancelled, WorkerFailed):
                        pass  # its failure was already shown, or the screen no longer exists
                while self._cleanups:
                    await asyncio.wait(self._cleanups)
        except TimeoutError:
            pass  # the journal and the snapshot show the remaining objects
        self._prune()

    async def _report_errors(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except L2RError as error:
            self.say(str(error), is_error=True, title=what)


def _few(names: list[str]) -> str:
    """Return names for a header, which has context and health beside them: three, or the first and a number."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
