"""Session of one verb: settings, backend, output, and the handling of signals.

The first SIGINT, SIGTERM or SIGHUP cancels the verb, which rolls back unfinished work. A second one only prints a
sentence, since stopping the roll-back would leave objects behind. SIGQUIT still ends the program immediately. Plain
signal handlers are used, not the event loop's. So a signal is registered even while the verb does not await
anything, and a signal after the end of the work cannot turn a success into a death by signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from l2rtui.backends.registry import chosen_backend, make_backend
from l2rtui.cli.contexts import composed_backend, contexts_of
from l2rtui.cli.output import Output, StderrReporter, can_ask
from l2rtui.config import Settings, load_settings, state_dir
from l2rtui.errors import EXIT_FAILED, L2RError, RefusedError, UsageError

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.services.adoption import Adoption

_LOOK_SECONDS: Final = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def settings_of(args: Namespace) -> Settings:
    """Join file, environment and flags."""
    return settings_for(args, args.context, args.namespace)


def settings_for(args: Namespace, context: str | None, namespaces: str | tuple[str, ...] | None) -> Settings:
    """Join file, environment and flags, with another context and other namespaces than in the flags."""
    # In the environment: the cluster's client, credential plugins and child processes all read it there.
    if args.kubeconfig and getattr(args, "verb", "") != "cluster":  # `cluster` writes to it
        os.environ["KUBECONFIG"] = args.kubeconfig
    environ = dict(os.environ)
    if args.config:
        environ["L2RTUI_CONFIG"] = args.config
    flags = {
        "backend": args.backend,
        "context": context,
        "impersonate_user": args.impersonate_user,
        "impersonate_groups": args.impersonate_groups,
        "namespaces": namespaces,
        "readonly": args.readonly,
    }
    return load_settings(flags, environ)


def start_files(args: Namespace) -> dict[str, str]:
    """Return the files that the command line names, by option."""
    kubeconfig = "" if getattr(args, "verb", "") == "cluster" else args.kubeconfig
    # As an absolute path: the line may be pasted in another folder.
    paths = (os.path.abspath(path) if path else "" for path in (kubeconfig, args.config))  # noqa: PTH100  (text)
    return dict(zip(("--kubeconfig", "--config"), paths, strict=True))


def refuse_unusable(settings: Settings) -> None:
    """Report an unusable kubeconfig before a screen is opened.

    Raises:
        ConfigError: see ``chosen_backend``.
    """
    if not settings.backend:
        chosen_backend(settings)


class Session:
    """Settings, streams and backend of a verb.

    Attributes:
        args: The parsed command line.
        out: stdout. talk: stderr.
    """

    def __init__(self, args: Namespace, settings: Settings) -> None:
        self.args = args
        self.settings = settings
        self.out = Output(getattr(args, "output", "table"))
        self.talk = StderrReporter(hint=self._hint)
        self._stopped_by: int | None = None
        self._stopped_at = 0.0
        self._is_stopping = False
        self._reaction = ""
        self._is_asking = False
        self._task: asyncio.Task[int] | None = None
        self._adoption: Adoption | None = None
        self._check_flags()

    @functools.cached_property
    def backend(self) -> Backend:
        """The backend; made on first use, as ``cluster create`` must not need the kubeconfig that it writes."""
        contexts = contexts_of(self.args)
        if contexts:
            return composed_backend(contexts, lambda name: settings_for(self.args, name, self.args.namespace))
        backend = make_backend(self.settings.backend, self.settings)
        # If nothing was ever launched on this machine, no supervisor can have been lost.
        if backend.adopt is not None and not self.settings.readonly and (state_dir() / "local" / "runs").is_dir():
            from l2rtui.services.adoption import Adoption

            with contextlib.suppress(RuntimeError):  # no loop yet: the flags are being checked
                self._adoption = Adoption(backend, self.talk.say)
        return backend

    async def recovered(self) -> dict[str, str]:
        """Return the runs that this command found without a supervisor, with the error of a failed start or ''."""
        has_supervisors = self.backend.adopt is not None
        if not has_supervisors:
            raise UsageError("Only runs of this machine have supervisors.", "Add --backend local.")
        return await self._adoption.first_outcomes() if self._adoption is not None else {}

    def adoption_failure(self, run: str) -> str:
        """Return the error of the adoption of a run; empty without one."""
        if self.settings.readonly and self.backend.adopt is not None:
            return "with --readonly none is started"
        return self._adoption.failures.get(run, "") if self._adoption is not None else ""

    def _hint(self, text: str) -> str:
        """Return a sentence whose command lines act on the same context as this one."""
        if "`l2rtui " not in text:
            return text
        from l2rtui.services.terminal import flags_of, with_flags

        return with_flags(text, flags_of(self.settings, start_files(self.args), os.environ))

    def _check_flags(self) -> None:
        impersonated = self.args.impersonate_user or self.args.impersonate_groups
        if not (self.args.context or self.args.all_contexts or self.args.namespace or impersonated):
            return
        has_locations = self.backend.location is not None
        for flag, value, what in (
            ("--context", self.args.context, "contexts"),
            ("--as", impersonated, "users"),
            ("-n", self.args.namespace, "namespaces"),
        ):
            if value and not has_locations:
                raise UsageError(f"The {self.backend.name} backend has no {what}: {flag} means nothing there.")

    def require_change(self, verb: str) -> None:
        """Refuse a verb that changes something if the settings or the terminal forbid it.

        Raises:
            RefusedError, UsageError: see ``require_writable`` and ``require_answer``.
        """
        self.require_writable(verb)
        # Before any work: a launch must not be planned for minutes and then fail at the question.
        self.require_answer(verb)

    def require_writable(self, verb: str) -> None:
        """Refuse a verb that changes something if the settings are read-only.

        Raises:
            RefusedError: they are.
        """
        if self.settings.readonly:
            sentence = f"{verb} changes something, and l2rtui is read-only here."
            raise RefusedError(sentence, "Leave out --readonly, and the setting `readonly`.")

    def require_answer(self, verb: str) -> None:
        """Refuse to continue if a question could not be answered.

        Raises:
            UsageError: there is no terminal for the question, and ``--yes`` was not given.
        """
        if not getattr(self.args, "yes", True) and not can_ask():
            sentence = f"{verb} asks for confirmation, which needs a terminal."
            raise UsageError(sentence, "Add --yes to go ahead.")

    def confirm(self, question: Callable[[], str], word: str = "") -> bool:
        """Ask on the terminal unless ``--yes`` was given; Ctrl-C at the question stops the verb.

        Args:
            word: Word that must be typed in full if y is not enough.
        """
        if self.args.yes:
            return True
        with self._prompting():
            is_confirmed = self.talk.ask(question(), word)
        if not is_confirmed:
            self.talk.say("Nothing was done.")
        return is_confirmed

    def ask_text(self, question: str) -> str:
        """Ask for one line on the terminal; Ctrl-C stops the verb."""
        return self._answer(lambda: input(question))

    def ask_hidden(self, question: str) -> str:
        """Prompt without echo. Ctrl-C stops the verb."""
        from getpass import getpass

        return self._answer(lambda: getpass(question, sys.stderr))

    def _answer(self, ask: Callable[[], str]) -> str:
        answer = ""
        with self._prompting(), contextlib.suppress(EOFError):
            answer = ask()
        if not answer:
            raise UsageError("Nothing was entered.", "Try again.")
        return answer

    @contextlib.contextmanager
    def _prompting(self) -> Iterator[None]:
        """Let Ctrl-C at a prompt stop the verb as it does elsewhere."""
        # A read from the terminal blocks the event loop, so the signal handler raises KeyboardInterrupt instead of
        # cancelling the task; here that becomes the same cancellation.
        self._is_asking = True
        # A signal that comes just before read(2) would be handled only after the answer: alarms interrupt the read,
        # and Python continues it after the handlers of all signals.
        alarm = signal.signal(signal.SIGALRM, lambda _number, _frame: None)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            yield
        except KeyboardInterrupt:
            self._is_stopping = True
            raise asyncio.CancelledError from None
        finally:
            self._is_asking = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)

    @contextlib.contextmanager
    def interruption(self, meaning: str) -> Iterator[None]:
        """Describe the effect of an interruption within this block."""
        try:
            yield
        except asyncio.CancelledError:
            self.talk.say(f"Interrupted: {meaning}")
            raise

    @contextlib.contextmanager
    def announcing(self, reaction: str) -> Iterator[None]:
        """Say this as soon as a signal arrives within this block: the work that undoes things may take long."""
        self._reaction = reaction
        try:
            yield
        finally:
            self._reaction = ""

    def stop_if_asked(self) -> None:
        """Raise if a signal has arrived; for loops that may run without awaiting anything."""
        if self._stopped_by is not None and not self._is_stopping:
            self._is_stopping = True
            raise asyncio.CancelledError

    @contextlib.contextmanager
    def interrupt_belongs_to_child(self) -> Iterator[None]:
        """Leave Ctrl-C to a child on this terminal, which gets the same signal."""
        # A child would inherit SIG_IGN across exec and ignore Ctrl-C; it does not inherit a Python handler.
        ours = signal.signal(signal.SIGINT, lambda _number, _frame: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, ours)

    def run(self, verb: Callable[[Session], Awaitable[int]]) -> int:
        """Run a verb; return its exit code, or 128 + n if signal n has stopped it."""
        try:
            return asyncio.run(self._guarded(verb))
        except L2RError as error:
            error.message, error.hint = self._hint(error.message), self._hint(error.hint)
            raise
        except (asyncio.CancelledError, KeyboardInterrupt):
            # As a shell reports a program that died of the signal, so that scripts see the interruption.
            return EXIT_FAILED if self._stopped_by is None else 128 + self._stopped_by

    async def _guarded(self, verb: Callable[[Session], Awaitable[int]]) -> int:
        if (state_dir() / "queue").is_dir():  # rarely: most users have no queued runs
            from l2rtui.backends.queue_store import ensure_keepers

            for problem in ensure_keepers():
                self.talk.say(f"warning: {problem}")
        # Not the loop's signal handling, which delivers only between two awaits.
        self._task = asyncio.current_task()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as for nohup, and for jobs in the background
                signal.signal(number, partial(self._on_signal, asyncio.get_running_loop()))
        try:
            return await verb(self)
        finally:
            if self._adoption is not None:
                await self._adoption.close()
            if "backend" in self.__dict__:
                with contextlib.suppress(asyncio.CancelledError):  # the verb's own outcome counts
                    await self.backend.close()

    def _on_signal(self, loop: asyncio.AbstractEventLoop, number: int, _frame: object) -> None:
        is_first = self._stopped_by is None
        if is_first:
            self._stopped_by, self._stopped_at = number, time.monotonic()
        # A read that blocks the loop would continue: from the terminal, or from a file without data, such as a
        # pipe. If the first signal was not handled within a second, the second one ends the read.
        is_deaf = not self._is_stopping and time.monotonic() - self._stopped_at > 1.0
        if self._is_asking or is_deaf:
            raise KeyboardInterrupt
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work is done
            loop.call_soon_threadsafe(self._hear, is_first)

    def _hear(self, is_first: bool) -> None:
        if not is_first:
            self.talk.say("Still clearing up, one moment.")
        elif self._reaction:
            self.talk.say(self._reaction)
        # Cancelled only once: a second cancellation would break the roll-back that the first one started.
        if is_first and not self._is_stopping and self._task is not None:
            self._is_stopping = True
            self._task.cancel()
