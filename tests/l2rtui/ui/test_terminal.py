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
from pathlib import Path

import psutil
import pytest

from l2rtui.ui.terminal_guard import CLEAN_SCREEN
from tests.tiers import starts_processes

pytestmark = pytest.mark.process

DEADLINE_SECONDS = 100.0
BUSY_SECONDS = 15.0
"""Allowance for a test machine that has others to serve, too; without an end the app would run for good."""
ENTERED_ALTERNATE_SCREEN = b"\x1b[?1049h"
DEFECT = """
from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp

class Broken(L2RApp):
    def on_snapshot_arrived(self, message):
        secret = "hunter" + "2"
        return 1 / (len(secret) - 7)

app = Broken(Settings(backend="demo"), FakeBackend)
app.run()
raise SystemExit(app.return_code)
"""
EVIL = """
import sys
from l2rtui.domain.log import LogLine
from l2rtui.backends.fake import FakeBackend, demo_logs
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp

controls = [chr(code) for code in (*range(0x20), 0x7f, *range(0x80, 0xa0))]
texts = ["quiet \\x1b[31mred\\x1b[0m"] if sys.argv[1] == "quiet" else [
    *(f"evil {one}{rest}" for one in controls for rest in ("", "[2J", "]0;title\\x07", "31m")),
    "\\x1b]52;c;ZXZpbA==\\x07", "\\x1b]8;;http://evil\\x1b\\\\evil\\x1b]8;;\\x1b\\\\", "\\x1bP+q544e\\x1b\\\\",
    "\\x1b[6n\\x1b[c\\x1b[?1049l\\x1b[8mhidden", "evil \\u202egnp.exe\\u202c \\u200b\\u2066",
    b"evil \\xff\\xfe\\xc3".decode(errors="surrogateescape"), b"evil \\xc2\\x9b2J".decode(),
    "evil " + "x\\x1b[31m" * 1_250_000, '{"l2r":"learner","evil":"\\\\u001b]0;t\\\\u0007\\\\u202e"}',
]
demo_logs.lines = lambda pod, query, now, peers: [] if query.since else [
    LogLine(now, pod.name, text) for text in (*texts, "the last line")
]
app = L2RApp(Settings(backend="demo"), FakeBackend)
app.run()
raise SystemExit(app.return_code)
"""
SHELL = """
import os, signal, subprocess, sys

app = subprocess.Popen([sys.executable, "-m", "l2rtui", "--backend", "demo"])
_, status = os.waitpid(app.pid, os.WUNTRACED)
assert os.WIFSTOPPED(status)
print("the shell is back", flush=True)
input()
app.send_signal(signal.SIGCONT)
sys.exit(app.wait())
"""
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOWN_CURSOR = b"\x1b[?25h"


def _environment() -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "COLORTERM")}
    return {**passed, "TERM": "xterm-256color", "PYTHONWARNINGS": ""}


class Terminal:
    """The app as the child of a pseudo-terminal, and what it has written."""

    def __init__(self, *words: str, size: tuple[int, int] = (100, 30), module: bool = True, **env: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # pragma: no cover  (the child becomes the app)
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            # An environment of its own: readline has put COLUMNS and LINES of another terminal into ours.
            words = (sys.executable, *(("-m", "l2rtui", "--backend", "demo") if module else ()), *words)
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

    def until(self, text: bytes, start: int = 0) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.written[start:]:
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
@starts_processes
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


def test_the_last_resort_restores_the_terminal_too(terminal):
    one = terminal("-c", "from l2rtui.ui.terminal_guard import end_at_once; end_at_once(143)", module=False)
    assert one.end() == 143
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


def child_of(one) -> int:
    """The process that draws, under the one that watches over it."""
    (child,) = psutil.Process(one.pid).children()
    return child.pid


def test_a_killed_app_leaves_a_restored_terminal_and_its_true_code(terminal):
    one = terminal()
    one.until(b"live")
    os.kill(child_of(one), signal.SIGKILL)
    assert one.end() == 137
    assert one.written.rfind(LEFT_ALTERNATE_SCREEN) > one.written.rfind(ENTERED_ALTERNATE_SCREEN)
    assert b"The app was ended by SIGKILL. Runs go on; the terminal was restored." in one.written


def test_an_app_whose_watchdog_is_killed_ends_within_two_seconds(terminal):
    one = terminal()
    one.until(b"live")
    child = psutil.Process(child_of(one))
    began = time.monotonic()
    os.kill(one.pid, signal.SIGKILL)
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        one.read()
        assert time.monotonic() - began < 2 + BUSY_SECONDS


def test_a_stopped_app_stops_its_watchdog_and_both_go_on(terminal):
    one = terminal()
    one.until(b"live")
    child = child_of(one)
    os.kill(child, signal.SIGSTOP)
    _, status = os.waitpid(one.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(one.pid, signal.SIGCONT)
    while psutil.Process(child).status() == psutil.STATUS_STOPPED:
        one.read()
    os.kill(one.pid, signal.SIGTERM)
    assert one.end() == 143


def test_ctrl_z_gives_the_terminal_to_the_shell_and_comes_back(terminal):
    one = terminal("-c", SHELL, module=False)
    one.until(b"live")
    one.type("\x1a")
    one.until(b"the shell is back")
    assert LEFT_ALTERNATE_SCREEN in one.written
    before = len(one.written)
    one.type("fg\n")
    one.until(ENTERED_ALTERNATE_SCREEN, before)
    one.until(b"racing-sac-s1", before)
    one.type("q")
    assert one.end() == 0


def test_ctrl_z_without_a_shell_says_so(terminal):
    one = terminal()
    one.until(b"live")
    one.type("\x1a")
    one.until(b"There is no shell to go back to")
    one.type("q")
    assert one.end() == 0


def test_a_defect_is_reported_without_values_and_the_terminal_is_restored(terminal):
    one = terminal("-c", DEFECT, module=False)
    one.until(b"defect")
    assert one.end() == 1
    assert LEFT_ALTERNATE_SCREEN in one.written
    assert b"ZeroDivisionError" in one.written
    assert b"hunter2" not in one.written


def test_what_others_write_to_the_terminal_stays_until_ctrl_l_draws_everything_again(terminal):
    one = terminal()
    one.until(b"racing-sac-s1")
    # The app's own descriptor: what a library in C or a child process writes there passes Python by.
    with Path(f"/proc/{child_of(one)}/fd/1").open("wb", buffering=0) as stray:
        stray.write(b"\x1b[5;9r\x1b[31mstray words\r\n" * 40)
    one.until(b"stray words")
    before = len(one.written)
    one.type("\x0c")
    one.until(CLEAN_SCREEN.encode(), before)
    drawn = one.written.index(CLEAN_SCREEN.encode(), before)
    one.until(b"\x1b[30;1H", drawn)  # each line of the terminal is drawn, down to the last
    rows = {int(row) for row in re.findall(rb"\x1b\[(\d+);1H", one.written[drawn:])}
    assert rows == set(range(1, 31))
    one.until(b"racing-sac-s1", drawn)
    one.type("q")
    assert one.end() == 0


@pytest.mark.timeout(400)
def test_no_byte_of_a_log_changes_the_terminal(terminal):
    quiet, loud = (terminal("-c", EVIL, how, module=False, size=(120, 40)) for how in ("quiet", "loud"))
    for one in (quiet, loud):
        one.until(b"the last line")
        one.type("5ztwJJ/the last line\r")  # all at once, as from a script
        one.until(b"/the last line, ")
        os.kill(one.pid, signal.SIGTERM)
        assert one.end() == 143
    text = loud.written.decode()  # valid UTF-8 to the last byte
    assert not re.search("[\x80-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f]", text)
    assert set(orders(loud.written)) <= set(orders(quiet.written))


ORDER = re.compile(rb"\x1b\[([?<>=]?)[0-9;:]*([ -/]*[@-~])|\x1b([\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\\\)?)|\x1b(.)")


def orders(written: bytes) -> list[tuple[bytes, ...]]:
    """What the terminal was told besides text: kinds of sequences without their numbers, and lone controls."""
    rest = ORDER.sub(b"", written)
    controls = [(bytes([one]),) for one in rest if one < 0x20 and one not in b"\r\n"]
    return [match.groups(b"") for match in ORDER.finditer(written)] + controls


def test_a_terminal_that_goes_away_takes_the_app_with_it_within_two_seconds(terminal):
    one = terminal()
    one.until(b"live")
    os.close(one.fd)
    one.fd = -1
    began = time.monotonic()
    assert one.code() == 129
    assert time.monotonic() - began < 2 + BUSY_SECONDS


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
