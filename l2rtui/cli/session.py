"""One call of a verb: its settings, its backend, its output, and what the first Ctrl-C does.

The first SIGINT, SIGTERM or SIGHUP cancels the verb, which takes back what is half done; a second one is told to
wait, since stopping in the middle of that would leave something behind. SIGQUIT still ends the program at once.
The handlers are plain ones, not the event loop's: a signal is noted at once, even while the verb does not wait for
anything, and one that comes after the work is done cannot turn a success into a death by signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from l2rtui.backends.base import Backend
from l2rtui.backends.registry import make_backend
from l2rtui.cli.confirm import can_ask
from l2rtui.cli.output import Output, Talk
from l2rtui.config import Settings, load_settings
from l2rtui.errors import EXIT_FAILED, RefusedError, UsageError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def settings_of(args: Namespace) -> Settings:
    """Join file, environment and flags."""
    environ = dict(os.environ)
    if args.config:
        environ["L2RTUI_CONFIG"] = args.config
    flags = {
        "backend": args.backend,
        "context": args.context,
        "namespaces": args.namespace,
        "readonly": args.readonly,
    }
    return load_settings(flags, environ)


class Session:
    """What a verb works with.

    Attributes:
        args: The words of the command line.
        out: stdout. talk: stderr. backend: where runs live.
    """

    def __init__(self, args: Namespace, settings: Settings) -> None:
        self.args = args
        self.settings = settings
        self.out = Output(getattr(args, "output", "table"))
        self.talk = Talk()
        self.backend: Backend = make_backend(settings.backend, settings)
        self._stopped_by: int | None = None
        self._is_stopping = False
        self._is_asking = False
        self._task: asyncio.Task[int] | None = None
        self._check_flags()

    def _check_flags(self) -> None:
        can = self.backend.capabilities
        for flag, is_given, is_known in (
            ("--context", bool(self.args.context), can.has_contexts),
            ("-n", bool(self.args.namespace), can.has_namespaces),
        ):
            if is_given and not is_known:
                what = "contexts" if flag == "--context" else "namespaces"
                raise UsageError(f"The {self.backend.name} backend has no {what}: {flag} means nothing there.")

    def require_change(self, verb: str) -> None:
        """Refuse a verb that changes something where the settings or the terminal forbid it.

        Raises:
            RefusedError: the settings say readonly.
            UsageError: nobody can be asked, and ``--yes`` was not given.
        """
        if self.settings.readonly:
            raise RefusedError(
                f"{verb} changes something, and l2rtui is read-only here.",
                "Leave out --readonly, and the setting `readonly`.",
            )
        if not getattr(self.args, "yes", True) and not can_ask():
            raise UsageError(
                f"{verb} asks before it acts, and there is no terminal to ask on.", "Add --yes to go ahead."
            )

    def confirm(self, question: Callable[[], str], word: str = "") -> bool:
        """Ask on the terminal unless ``--yes`` was given; Ctrl-C at the question stops the verb as anywhere.

        Args:
            word: What must be typed in full where y is too little.
        """
        if self.args.yes:
            return True
        self._is_asking = True
        try:
            is_wanted = self.talk.ask(question(), word)
        except KeyboardInterrupt:
            self._is_stopping = True
            raise asyncio.CancelledError from None
        finally:
            self._is_asking = False
        if not is_wanted:
            self.talk.say("Nothing was done.")
        return is_wanted

    def ask_text(self, question: str) -> str:
        """Ask for one line on the terminal; Ctrl-C stops the verb."""
        return self._asked(lambda: input(question))

    def ask_hidden(self, question: str) -> str:
        """Ask for what nobody may see: the terminal does not echo it. Ctrl-C stops the verb."""
        from getpass import getpass

        return self._asked(lambda: getpass(question, sys.stderr))

    def _asked(self, ask: Callable[[], str]) -> str:
        self._is_asking = True
        try:
            answer = ask()
        except KeyboardInterrupt:
            self._is_stopping = True
            raise asyncio.CancelledError from None
        except EOFError:
            answer = ""
        finally:
            self._is_asking = False
        if not answer:
            raise UsageError("Nothing was entered.", "Try again.")
        return answer

    @contextlib.contextmanager
    def interruption(self, meaning: str) -> Iterator[None]:
        """Say what it means when a signal stops the verb in here."""
        try:
            yield
        except asyncio.CancelledError:
            self.talk.say(f"Interrupted: {meaning}")
            raise

    def stop_if_asked(self) -> None:
        """Stop here when a signal has come; for loops that may run through without waiting for anything."""
        if self._stopped_by is not None and not self._is_stopping:
            self._is_stopping = True
            raise asyncio.CancelledError

    @contextlib.contextmanager
    def interrupt_belongs_to_child(self) -> Iterator[None]:
        """Leave Ctrl-C to a program that runs on this terminal; it gets the signal as we do."""
        # A handler of ours, unlike SIG_IGN, is not inherited by the program that is started.
        ours = signal.signal(signal.SIGINT, lambda _number, _frame: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, ours)

    def run(self, verb: Callable[[Session], Awaitable[int]]) -> int:
        """Carry out a verb; give its exit code, or 128 + n when signal n has stopped it."""
        try:
            return asyncio.run(self._guarded(verb))
        except asyncio.CancelledError:
            return EXIT_FAILED if self._stopped_by is None else 128 + self._stopped_by

    async def _guarded(self, verb: Callable[[Session], Awaitable[int]]) -> int:
        self._task = asyncio.current_task()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as for nohup, and for jobs in the background
                signal.signal(number, partial(self._on_signal, asyncio.get_running_loop()))
        try:
            return await verb(self)
        finally:
            with contextlib.suppress(asyncio.CancelledError):  # the verb's own outcome counts
                await self.backend.close()

    def _on_signal(self, loop: asyncio.AbstractEventLoop, number: int, _frame: object) -> None:
        is_first = self._stopped_by is None
        if is_first:
            self._stopped_by = number
        if self._is_asking:
            raise KeyboardInterrupt  # or the read from the terminal would simply go on
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work is done
            loop.call_soon_threadsafe(self._hear, is_first)

    def _hear(self, is_first: bool) -> None:
        if not is_first:
            self.talk.say("Still clearing up, one moment.")
        elif not self._is_stopping and self._task is not None:
            self._is_stopping = True
            self._task.cancel()
