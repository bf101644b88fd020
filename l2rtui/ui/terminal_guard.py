"""Parent process that restores the terminal however the app ends, including SIGKILL and the OOM killer.

The app runs in the child. The parent only waits: it forwards signals, and stops and continues with the child. If
the child died without restoring the terminal, the parent restores it, reports the cause, and returns the true exit
code. The fork happens before anything large is imported, so the parent costs a few megabytes, shared with the
child.
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
    "\x1b[?1049l"  # the original screen
    "\x1b[?25h"  # show the cursor
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # no mouse reports
    "\x1b[?2004l"  # no bracketed paste
    "\x1b[?2026l\x1b[?2048l"  # no synchronised output, no size reports
    "\x1b[?1004l"  # no focus reports
    "\x1b[<u"  # normal key encoding
    "\x1b[0m"
)

CLEAN_SCREEN: Final = (
    "\x1b[?1049h"  # the app's screen, if another program has left it
    "\x1b[r\x1b[?6l\x1b[?7h\x1b[4l"  # full scroll region, wrapping on, insert mode off
    "\x1b(B\x0f"  # normal character set
    "\x1b[?25l\x1b[0m\x1b[2J"
)
"""Undoes what other programs have written to the app's terminal; the app then repaints everything."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_RESTORES_ITSELF: Final = {128 + number for number in _FORWARDED}


def guarded(app: Callable[[], int]) -> int:
    """Run the app in a child of this process and restore the terminal after it.

    Returns:
        In the child, the exit code of the app. The parent exits with it, or with 128 + n if signal n ended it.
    """
    try:
        before: list[Any] | None = termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):
        before = None
    # Otherwise both processes would write the buffered output.
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
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)  # if the child did not restore it
    if code > 128 and code not in _RESTORES_ITSELF:
        _restore(before)
        name = _name(code - 128)
        print(f"l2rtui: The app was ended by {name}. Runs go on; the terminal was restored.", file=sys.stderr)
    # The parent exits here: the callers up the stack ran in the child, and must not run again.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with(parent: int) -> None:
    """Make this process end with its parent, and write no core file."""
    import resource

    signal_at_end_of(parent, signal.SIGHUP)
    # A core file would contain secrets that the app has read.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))


def _wait(child: int) -> int:
    """Wait for the end of the child; while it is stopped (ctrl+z), stop too."""
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
    """End the child when its event loop does not handle a signal: restore the terminal and exit.

    ``code`` is a code for which the parent expects a restored terminal, so the parent prints nothing.
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
