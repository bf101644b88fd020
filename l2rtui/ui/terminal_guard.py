"""Parent process that restores the terminal however the app ends, also after SIGKILL or the OOM killer.

The app runs in the child. The parent only waits: it forwards signals, stops and continues with the child, and when
the child died without having restored the terminal it does so, reports the cause, and returns the true exit code.
The fork happens before anything large is imported, so the parent costs few megabytes, shared with the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from runtime.base.processes import shell_exit_code, signal_at_end_of

RESTORE: Final = (
    "\x1b[?1049l"  # the screen that was there before
    "\x1b[?25h"  # the cursor
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # no mouse
    "\x1b[?2004l"  # no bracketed paste
    "\x1b[?2026l\x1b[?2048l"  # no synchronised output, no size reports
    "\x1b[?1004l"  # no focus reports
    "\x1b[<u"  # plain keys
    "\x1b[0m"
)

CLEAN_SCREEN: Final = (
    "\x1b[?1049h"  # the app's screen, where something has left it
    "\x1b[r\x1b[?6l\x1b[?7h\x1b[4l"  # the whole of it scrolls, lines break, nothing is inserted
    "\x1b(B\x0f"  # letters are letters
    "\x1b[?25l\x1b[0m\x1b[2J"
)
"""Undoes what somebody else has written to the terminal of the app, which then draws everything."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_RESTORES_ITSELF: Final = {128 + number for number in _FORWARDED}


def guarded(app: Callable[[], int]) -> int:
    """Run the app in a child of this process and watch over the terminal.

    Returns:
        In the child, the exit code of the app. The parent ends with it, or with 128 + n where signal n ended it.
    """
    try:
        before: list[Any] | None = termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):
        before = None
    # Else both processes would write what is in the buffers.
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(parent)
        return app()

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # restoring the terminal from the background must not stop us
    code = _wait(child)
    if before is not None and code in _RESTORES_ITSELF:
        with contextlib.suppress(OSError, termios.error, ValueError):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)  # what it had no time for
    if code > 128 and code not in _RESTORES_ITSELF:
        _restore(before)
        name = _name(code - 128)
        print(f"l2rtui: The app was ended by {name}. Runs go on; the terminal was restored.", file=sys.stderr)
    # The parent ends at once: the callers up the stack ran in the child, and must not run again here.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with(parent: int) -> None:
    """Make this process end with its parent, and write no core file."""
    import resource

    signal_at_end_of(parent, signal.SIGHUP)
    # A core file would hold whatever secrets the app has read.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))


def _wait(child: int) -> int:
    """Wait for the end of the child; while it is stopped (ctrl+z), be stopped too."""
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            # The shell watches this process: it must stop as well, and wakes the child when it is continued.
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
            continue
        code = os.waitstatus_to_exitcode(status)
        return shell_exit_code(code)


def end_at_once(code: int) -> None:
    """End the child when its event loop answers no signal: restore the terminal and exit.

    ``code`` is one of those after which the parent expects a restored terminal, so it stays silent.
    """
    _restore(None)
    os._exit(code)


def _restore(before: list[Any] | None) -> None:
    with contextlib.suppress(OSError, termios.error, ValueError):
        os.write(sys.stderr.fileno(), RESTORE.encode())
        if before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, before)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
