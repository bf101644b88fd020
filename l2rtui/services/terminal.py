"""The caller's terminal while a process of a run uses it, and the command lines that l2rtui shows.

The terminal is attached to the standard streams of a pod's process until it ends or the user detaches. A process
that has a terminal draws on ours, like a shell. Lines of a process without one are sanitised first.

A shown line ("same as" of dialogs, copied lines, hints) may be pasted into another shell, or into a script, and
must act there on the objects that the dialog showed. So only `write` composes them, with every option that differs
from a start without options: context, namespace, backend, user and files.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from l2rtui.backends.common.terminal import forwarded_size, line_mode, raw_mode, stdin_blocks, write_all
from l2rtui.config import PREFIX, Settings, load_settings
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.secret import redact_long
from l2rtui.errors import ConfigError

if TYPE_CHECKING:
    from l2rtui.backends.base import AttachedProcess

_DETACH: Final = b"\x10\x11"
_INTERRUPT: Final = b"\x03"
RESTORE: Final = (
    b"\x1b[?1049l"  # the original screen
    b"\x1b[?25h\x1b[0m"  # show the cursor, plain colours
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l"  # no mouse reports
    b"\x1b[?2004l\x1b[?1004l\x1b[<u"  # no bracketed paste, no focus reports, normal key encoding
)
"""Resets the modes set by a full-screen process from which the user detached."""


def leave_text(*, has_terminal: bool) -> str:
    """Return the hint how to detach without ending the process."""
    keys = "ctrl+p ctrl+q" if has_terminal else "ctrl+p ctrl+q, or ctrl+c,"
    return f"{keys} leaves it running"


class DetachKeys:
    """Search for the detach keys in typed input.

    Args:
        is_interrupt: ctrl+c detaches too: a process without a terminal gets no signal from a key.
    """

    def __init__(self, *, is_interrupt: bool) -> None:
        self._is_interrupt = is_interrupt
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return the input for the process, and True once the detach keys were typed; a ctrl+p waits for the next
        key.
        """
        typed, self._held = self._held + typed, b""
        ends = [typed.find(_DETACH), typed.find(_INTERRUPT) if self._is_interrupt else -1]
        first = min((end for end in ends if end >= 0), default=-1)
        if first >= 0:
            return typed[:first], True
        if typed.endswith(_DETACH[:1]):
            typed, self._held = typed[:-1], typed[-1:]
        return typed, False


class _Cleaner:
    """Output of a process without a terminal, sanitised for display."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def clean(self, block: bytes) -> bytes:
        text = self._decoder.decode(block).replace("\r\n", "\n")
        return "\n".join(sanitize(line) for line in text.split("\n")).encode("utf-8", "replace")


async def carry(process: AttachedProcess) -> bool:
    """Forward our standard streams to a process and back; True after a detach, False when its output has ended.

    Only a terminal has detach keys; the end of piped input closes the input of the process.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        if is_terminal and process.has_terminal:
            stack.enter_context(raw_mode())
            stack.enter_context(forwarded_size(process.resize))
            stack.callback(write_all, sys.stdout.fileno(), RESTORE)
        elif is_terminal:
            stack.enter_context(line_mode(_DETACH[1:], _INTERRUPT))
        keys = DetachKeys(is_interrupt=not process.has_terminal) if is_terminal else None
        writing = asyncio.ensure_future(_write_output(process))
        typing = asyncio.ensure_future(_send_input(process, keys))
        try:
            await asyncio.wait((writing, typing), return_when=asyncio.FIRST_COMPLETED)
            if typing.done() and not typing.cancelled() and typing.exception() is None and typing.result():
                return True
            await writing
            return False
        finally:
            writing.cancel()
            typing.cancel()
            await asyncio.gather(writing, typing, return_exceptions=True)


async def _write_output(process: AttachedProcess) -> None:
    cleaners = _Cleaner(), _Cleaner()
    async with contextlib.aclosing(process.output()) as blocks:
        async for is_error, block in blocks:
            stream = sys.stderr if is_error else sys.stdout
            is_safe = process.has_terminal or not stream.isatty()
            # In a thread: our stdout may be a pipe with a slow reader, and the connection must still be served.
            await asyncio.to_thread(
                write_all, stream.fileno(), block if is_safe else cleaners[is_error].clean(block)
            )


async def _send_input(process: AttachedProcess, keys: DetachKeys | None) -> bool:
    """Send typed or piped input; True if it contained the detach keys."""
    async with contextlib.aclosing(stdin_blocks()) as blocks:
        async for block in blocks:
            content, is_left = (block, False) if keys is None else keys.feed(block)
            if content:
                await process.send(content)
            if is_left:
                return True
    await process.end_input()
    return False


Words = Sequence[str]
"""A verb and its arguments."""

PLACELESS: Final = frozenset({"image", "template", "config", "schema", "completion", "cluster", "serve"})
"""Verbs whose hints name no run and no cluster: options for a place would be useless there."""
_HINT: Final = re.compile(r"`l2rtui ([a-z][a-z-]*)((?: [^`]*)?)`")
_PLACEHOLDER: Final = re.compile(r"(?:^|[ /:=.\[])[A-Z][A-Z]+(?:$|[ /:=.,…\]])|(?:^| )N$")
"""Placeholder, as in ``scale RUN/SET N``: such a line shows a form, and is not pasted."""


def write(commands: Iterable[Words], flags: Words = (), prefix: str = "") -> str:
    """Return the line of one or several commands, quoted for a shell; possible secrets are hidden.

    Args:
        flags: Options placed before each verb, as returned by `flags_of`.
        prefix: Name of a context before the names of its rows, if several are shown.
    """
    return " && ".join(shlex.join(["l2rtui", *flags, *_own_words(words, prefix)]) for words in commands)


def _own_words(words: Words, prefix: str) -> Iterable[str]:
    is_of_program = False
    for word in words:
        is_of_program = is_of_program or word == "--"  # the program's own command follows it
        yield redact_long(word if is_of_program else word.removeprefix(prefix))


def flags_of(
    settings: Settings, files: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the options that distinguish a start with these settings from one without options.

    Args:
        files: Files named at the start, by option: ``--kubeconfig``, ``--config``.
        environ: Environment of the start without options; None for another shell's, which lacks our variables.
    """
    files = {option: path for option, path in (files or {}).items() if path}
    if environ is None:
        # The other shell lacks the variables of this one, except the choice of the settings file: like KUBECONFIG,
        # it is usually set at login.
        own = f"{PREFIX}CONFIG"
        environ = {name: value for name, value in os.environ.items() if name == own or not name.startswith(PREFIX)}
    if config := files.get("--config", ""):
        environ = {**environ, f"{PREFIX}CONFIG": config}
    flags = [part for option, path in files.items() for part in (option, path)]
    bare = _settings({}, environ)
    # A context or a namespace implies a cluster: then no backend needs to be named.
    is_implied = settings.backend == "kubernetes" and not bare.backend and (settings.context or settings.namespaces)
    if settings.backend != bare.backend and not is_implied:
        flags += ["--backend", settings.backend or "kubernetes"]
    if settings.context and settings.context != bare.context:
        flags += ["--context", settings.context]
    # With the table of the context in the settings file.
    bare = _settings({"backend": settings.backend, "context": settings.context}, environ)
    if settings.namespaces and settings.namespaces != bare.namespaces:
        flags += ["-n", ",".join(settings.namespaces)]
    if settings.impersonate_user and settings.impersonate_user != bare.impersonate_user:
        flags += ["--as", settings.impersonate_user]
    if settings.impersonate_groups != bare.impersonate_groups:
        flags += [part for group in settings.impersonate_groups for part in ("--as-group", group)]
    if settings.readonly and not bare.readonly:
        flags.append("--readonly")
    return tuple(flags)


def _settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    try:
        return load_settings(flags, environ)
    except ConfigError:  # the file is being edited: then every option is written out
        return Settings()


def with_flags(text: str, flags: Words) -> str:
    """Return a sentence whose command lines in backquotes act on the context of this process; forms stay
    unchanged.
    """
    if not flags or "`l2rtui " not in text:
        return text
    options = shlex.join(flags)

    def completed(match: re.Match[str]) -> str:
        verb, rest = match.groups()
        is_form = verb in PLACELESS or _PLACEHOLDER.search(rest) is not None
        return match[0] if is_form else f"`l2rtui {options} {verb}{rest}`"

    return _HINT.sub(completed, text)
