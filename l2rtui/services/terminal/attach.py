"""Attachment of the caller's terminal to the standard streams of a pod's own process, until it ends or is left.

A process with a terminal of its own draws on ours, as a shell does. Lines of one without are sanitised first.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import sys
from typing import TYPE_CHECKING, Final

from l2rtui.backends.common.terminal import forwarded_size, line_mode, raw_mode, stdin_blocks, write_all
from l2rtui.domain.sanitize import sanitize

if TYPE_CHECKING:
    from l2rtui.backends.base import AttachedProcess

_DETACH: Final = b"\x10\x11"
_INTERRUPT: Final = b"\x03"
RESTORE: Final = (
    b"\x1b[?1049l"  # the screen that was there before
    b"\x1b[?25h\x1b[0m"  # the cursor, plain colours
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l"  # no mouse
    b"\x1b[?2004l\x1b[?1004l\x1b[<u"  # no bracketed paste, no focus reports, plain keys
)
"""Undoes what a process that was left in the middle of a screen has set."""


def leave_text(*, has_terminal: bool) -> str:
    """Return how to leave a process without ending it, for people."""
    keys = "ctrl+p ctrl+q" if has_terminal else "ctrl+p ctrl+q, or ctrl+c,"
    return f"{keys} leaves it running"


class DetachKeys:
    """Search for the keys that leave a process, in what is typed.

    Args:
        is_interrupt: ctrl+c leaves too: a process without a terminal gets no signal from a key.
    """

    def __init__(self, *, is_interrupt: bool) -> None:
        self._is_interrupt = is_interrupt
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return what the process gets, and True once the keys came; a ctrl+p waits for what follows it."""
        typed, self._held = self._held + typed, b""
        ends = [typed.find(_DETACH), typed.find(_INTERRUPT) if self._is_interrupt else -1]
        first = min((end for end in ends if end >= 0), default=-1)
        if first >= 0:
            return typed[:first], True
        if typed.endswith(_DETACH[:1]):
            typed, self._held = typed[:-1], typed[-1:]
        return typed, False


class _Cleaner:
    """Output of a process without a terminal, as text that ours only displays."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def clean(self, block: bytes) -> bytes:
        text = self._decoder.decode(block).replace("\r\n", "\n")
        return "\n".join(sanitize(line) for line in text.split("\n")).encode("utf-8", "replace")


async def carry(process: AttachedProcess) -> bool:
    """Carry our standard streams to a process and back; True when it was left, False when its output has ended.

    Only a terminal has keys that leave; the end of piped input closes the input of the process.
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
            # In a thread: our stdout may be a pipe whose reader is slow, and the connection must still be served.
            await asyncio.to_thread(
                write_all, stream.fileno(), block if is_safe else cleaners[is_error].clean(block)
            )


async def _send_input(process: AttachedProcess, keys: DetachKeys | None) -> bool:
    """Send what is typed or piped; True where it held the keys that leave."""
    async with contextlib.aclosing(stdin_blocks()) as blocks:
        async for block in blocks:
            content, is_left = (block, False) if keys is None else keys.feed(block)
            if content:
                await process.send(content)
            if is_left:
                return True
    await process.end_input()
    return False
