"""From the words of the command line to an exit code; every expected failure is reported here as one sentence."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from l2rtui.cli.other_words import advice, translated, without_kind
from l2rtui.cli.parser import VERBS, app_parser, find_verb, split_verb, verb_parser
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, L2RError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace

EXIT_BROKEN_PIPE = 141
"""Exit code of a program ended by SIGPIPE: shells then know that the reader closed the pipe."""


def main(words: Sequence[str] | None = None) -> int:
    """Run l2rtui; return its exit code.

    Args:
        words: The command line without the program's name; None takes it from the process.
    """
    _repair_streams()
    code = _guarded(sys.argv[1:] if words is None else words)
    try:
        sys.stderr.flush()
    except OSError:  # stderr is closed: not a failure
        _drop(sys.stderr)
    return code


def _guarded(words: Sequence[str]) -> int:
    """Run the command line and turn every expected failure into a sentence and an exit code."""
    try:
        code = _run(words)
        sys.stdout.flush()
    except L2RError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:  # the reader closed the pipe (`| head`)
        _drop(sys.stdout)
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if limit := _limit_of(error):
            _complain(limit)
            return EXIT_FAILED
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            # A full disk or a closed descriptor behind a redirection; other OSErrors were translated already.
            _drop(sys.stdout)
            _complain(f"The output cannot be written: {error.strerror}.")
            return EXIT_FAILED
        import logging  # a bug: Python prints its traceback, and it is logged

        logging.getLogger(__name__).exception("unexpected error")
        raise
    return code


def _limit_of(error: Exception) -> str:
    """Return a sentence about the limit of this user or machine that the error stands for; empty for another."""
    if isinstance(error, ExceptionGroup):  # of a task group
        return next(filter(None, map(_limit_of, error.exceptions)), "")
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "Memory ran out. End other programs, or raise `ulimit -v`."
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return "The limit of processes and threads is reached. End some, or raise `ulimit -u`."
    if number in (errno.EMFILE, errno.ENFILE):
        return "The limit of open files is reached. Close some, or raise `ulimit -n`."
    return ""


def _repair_streams() -> None:
    """Replace closed standard streams by /dev/null, and escape characters that a stream cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123  (open to the end)
        elif mode == "w" and hasattr(stream, "reconfigure"):
            # A terminal with a narrow encoding must not turn a log line into a UnicodeEncodeError.
            stream.reconfigure(errors="backslashreplace")


def _drop(stream: TextIO) -> None:
    """Discard buffered output; Python flushes again at exit."""
    # Python flushes stdout at exit and would print a second BrokenPipeError.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(words: Sequence[str]) -> int:
    name, rest = split_verb(words)
    try:
        if name == "__complete":
            from l2rtui.cli.completion import complete

            return complete(rest)
        if name == "__served":
            from l2rtui.cli.verbs.serve import run_served

            return run_served(rest)
        if not name:
            return _open_app(rest)
        if name == "demo":
            return _open_demo(rest)
        return _run_verb(name, rest)
    except SystemExit as ended:  # argparse has printed --help or --version
        return ended.code if isinstance(ended.code, int) else EXIT_DONE


def _run_verb(name: str, words: list[str]) -> int:
    if name not in VERBS or name == "diff":
        if command_line := translated(name, words):
            # For people: a script that uses `get pods` must stay as quiet as one that uses `pods`.
            if sys.stderr.isatty():
                _say(f"→ l2rtui {' '.join(command_line)}")
            return _run(command_line)
        if {"--help", "-h"} & set(words) and advice(name, words):
            return _open_app(["--help"])
    verb = find_verb(name, words)
    if name == "describe":
        words = without_kind(words)
    command: list[str] = []
    if verb.name == "exec" and "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    args = verb_parser(verb).read(words)
    if verb.name == "launch":
        _accept_old_spellings(args)
    args.command = command
    args.verb = verb.name
    # Each verb imports its own client libraries: `runs --backend local` must not pay for boto3.
    from importlib import import_module

    _configure_log(args)
    module = import_module(f"l2rtui.cli.verbs.{verb.module}")
    run = getattr(module, f"run_{verb.name.replace('-', '_')}")
    if verb.module in ("files", "serve", "config", "template", "service"):  # these need no backend
        return int(run(args))
    from l2rtui.cli.session import Session, settings_of

    return Session(args, settings_of(args)).run(run)


def _open_demo(words: list[str]) -> int:
    """Open the app over the demo, a cluster in memory; with a verb, run the verb there."""
    if any(word == "--backend" or word.startswith("--backend=") for word in words):
        raise UsageError("demo is a backend itself: --backend contradicts it.", "Leave one of them out.")
    verb, _ = split_verb(words)
    return _run(["--backend", "demo", *words]) if verb != "demo" else _run(words)


def _accept_old_spellings(args: Namespace) -> None:
    """Treat ``launch --as RUN`` and ``--as-run RUN`` as ``--like RUN``, with a note."""
    old = "--as-run" if args.as_run else ""
    if not (args.file or args.template or args.like or old) and args.impersonate_user:
        # Without a file there is nothing to launch as another user, so a past run is meant.
        old, args.as_run, args.impersonate_user = "--as", args.impersonate_user, None
    if old:
        _say(f"`launch {old} RUN` is written `launch --like RUN` now; --as names a user.")
        args.like = args.like or args.as_run


def _open_app(words: list[str]) -> int:
    from l2rtui.cli.shared_view import take_place

    args = app_parser().read(words)
    take_place(args)
    term = os.environ.get("TERM", "")
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):  # Textual draws on stderr
        _complain("The app needs a terminal. Use a verb, such as `l2rtui runs`; `l2rtui --help` lists them.")
        return EXIT_USAGE
    if term in ("", "dumb"):
        _complain(f"The app cannot draw on a terminal of kind {term or 'unknown'!r}. Set TERM, or use a verb.")
        return EXIT_USAGE
    from functools import partial

    from l2rtui.cli.contexts import contexts_of
    from l2rtui.cli.session import refuse_unusable, settings_for, settings_of, start_files
    from l2rtui.ui.terminal_guard import guarded

    settings, contexts = settings_of(args), contexts_of(args)
    if args.record and args.replay:
        raise UsageError("--record and --replay exclude each other: a recording is a file already.", "Use one.")
    if not (args.replay or contexts):
        refuse_unusable(settings)

    def app() -> int:
        # After the fork: the parent that guards the terminal stays small.
        from l2rtui.ui.bootstrap import Recording, run

        _configure_log(args, is_app=True)
        recording = Recording(args.record, args.replay, args.speed)
        files = start_files(args)
        return int(run(settings, partial(settings_for, args), recording, contexts, args.view, files) or EXIT_DONE)

    return guarded(app)


def _configure_log(args: Namespace, *, is_app: bool = False) -> None:
    from l2rtui import log

    log.configure(is_verbose=args.verbose, is_debug=args.debug, is_app=is_app)


def _complain(sentence: str) -> None:
    _say(f"l2rtui: {sentence}")


def _say(sentence: str) -> None:
    from contextlib import suppress

    from l2rtui.domain.sanitize import sanitize

    with suppress(OSError):  # stderr is closed
        print(sanitize(sentence), file=sys.stderr)
