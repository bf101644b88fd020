"""A parent that outlives the app: whatever ends it, SIGKILL and the OOM killer too, the terminal is restored.

The app runs in the child. The parent only waits: it hands signals on, stops and goes on with the child, and when
the child died without having restored the terminal it does so, says what happened, and gives the true exit code. It
is made before anything large is imported, so it costs some megabytes that the child shares.
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
_HANDED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_RESTORES_ITSELF: Final = {128 + number for number in _HANDED_ON}
_PR_SET_PDEATHSIG: Final = 1


def guarded(app: Callable[[], int]) -> int:
    """Run the app in a child of this process and watch over the terminal.

    Returns:
        In the parent the exit code of the child; 128 + n where signal n ended it. In the child, what the app gives.
    """
    try:
        before: list[Any] | None = termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):
        before = None
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(parent)
        return app()
    for number in _HANDED_ON:
        signal.signal(number, _hand_on_to(child))
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # restoring the terminal from the background must not stop us
    code = _wait(child)
    if before is not None and code in _RESTORES_ITSELF:
        with contextlib.suppress(OSError, termios.error, ValueError):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)  # what it had no time for
    if code > 128 and code not in _RESTORES_ITSELF:
        _restore(before)
        name = _name(code - 128)
        print(f"l2rtui: The app was ended by {name}. Runs go on; the terminal was restored.", file=sys.stderr)
    _leave(code)
    return code


def _leave(code: int) -> None:
    """End the parent: what stands above it in the call stack is the child's business, and was done there."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with(parent: int) -> None:
    """End when this parent does, however it does, and write no core file."""
    _die_with(parent)
    _dump_no_core()


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent dies (Linux; elsewhere the terminal's hang-up does)."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), signal.SIGHUP)


def _dump_no_core() -> None:
    """A core file would hold whatever secrets the app has read."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _hand_on_to(child: int) -> Callable[[int, FrameType | None], None]:
    def hand_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    return hand_on


def _wait(child: int) -> int:
    """Wait for the end of the child; while it is stopped (ctrl+z), be stopped too."""
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
            continue
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code


def end_at_once(code: int) -> None:
    """The child's last resort, when its event loop answers no signal: restore the terminal, and be gone.

    The parent sees a code with which children restore the terminal themselves.
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
