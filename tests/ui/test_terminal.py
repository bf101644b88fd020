"""The app on a real terminal: how it ends, what it leaves behind, and terminals that are too small."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest

DEADLINE_SECONDS = 30.0
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOWN_CURSOR = b"\x1b[?25h"


def _environment() -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "COLORTERM")}
    return {**passed, "TERM": "xterm-256color", "PYTHONWARNINGS": ""}


class Terminal:
    """The app as the child of a pseudo-terminal, and what it has written."""

    def __init__(self, *words: str, size: tuple[int, int] = (100, 30), **env: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # pragma: no cover  (the child becomes the app)
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            # An environment of its own: readline has put COLUMNS and LINES of another terminal into ours.
            words = (sys.executable, "-m", "l2rtui", "--backend", "demo", *words)
            os.execve(sys.executable, words, {**_environment(), **env})  # noqa: S606  (pty.fork knows no other way)
        self.written = b""
        self.is_over = False
        self.before = termios.tcgetattr(self.fd)

    def read(self, seconds: float = 0.05) -> bool:
        """Read what comes within a time; tells whether the other end is still there."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                block = os.read(self.fd, 65_536)
            except OSError:
                block = b""
            self.written += block
            self.is_over = not block
        return not self.is_over

    def until(self, text: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.written:
            assert self.read(), f"ended before {text!r}: {self.written[-2000:]!r}"
            assert time.monotonic() < deadline, f"no {text!r} in {self.written[-2000:]!r}"

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Read to the end; give the exit code."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.read():
            assert time.monotonic() < deadline, "does not end"
        return self.code()

    def code(self) -> int:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "does not end"
            time.sleep(0.01)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.fd >= 0:
            os.close(self.fd)


@pytest.fixture
def terminal():
    opened: list[Terminal] = []

    def make(*words: str, **options) -> Terminal:
        opened.append(Terminal(*words, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_q_leaves_with_code_0_and_a_terminal_as_it_was(terminal):
    one = terminal()
    one.until(b"live")
    one.type("q")
    assert one.end() == 0
    assert LEFT_ALTERNATE_SCREEN in one.written
    assert SHOWN_CURSOR in one.written


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131), (signal.SIGINT, 130)]
)
def test_signals_restore_the_terminal_and_give_their_code(terminal, number, code):
    one = terminal()
    one.until(b"live")
    os.kill(one.pid, number)
    assert one.end() == code
    assert LEFT_ALTERNATE_SCREEN in one.written
    assert SHOWN_CURSOR in one.written


def test_a_terminal_that_goes_away_takes_the_app_with_it_within_two_seconds(terminal):
    one = terminal()
    one.until(b"live")
    os.close(one.fd)
    one.fd = -1
    began = time.monotonic()
    assert one.code() == 129
    # The two seconds are the app's; the rest is for a test machine that has others to serve too.
    assert time.monotonic() - began < 2 + 3


def test_a_terminal_of_20x5_gets_a_sentence_and_no_traceback(terminal):
    one = terminal(size=(20, 5))
    one.until(b"This terminal is")
    one.type("q")
    assert one.end() == 0
    assert b"Traceback" not in one.written


def test_without_colour_every_state_is_still_told_apart(terminal):
    one = terminal(size=(160, 45), NO_COLOR="1")
    one.until(b"Degraded")
    one.type("q")
    assert one.end() == 0
    colours = set(re.findall(rb"38;2;(\d+);(\d+);(\d+)", one.written))
    assert all(red == green == blue for red, green, blue in colours)


def test_an_unknown_backend_is_a_sentence_on_an_unharmed_terminal(terminal):
    one = terminal("--backend", "mars")
    assert one.end() == 2
    assert b"There is no backend 'mars'" in one.written
    assert b"Traceback" not in one.written
