"""The real program in a separate process with a separate home."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import starts_processes

DEADLINE_SECONDS = 60.0


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, argv: list[str], env: dict[str, str], **streams: Any) -> None:
        self._master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave} | streams
        self.process = subprocess.Popen(argv, env=env, start_new_session=True, **streams)
        os.close(slave)
        self.text = ""

    def read_until(self, words: str) -> str:
        """Read until the words appear."""
        end = time.monotonic() + DEADLINE_SECONDS
        while words not in self.text:
            if time.monotonic() > end or not self._read_some():
                raise AssertionError(f"{words!r} never appeared in {self.text!r}")
        return self.text

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def finish(self) -> int:
        """Read to the end; give the exit code."""
        while self._read_some():
            pass
        return self.process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        """End the program and release the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read_some(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 1.0)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux: the last writer has closed its end
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


class Cli:
    """Calls of ``l2rtui`` in one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "TERM": "xterm-256color",
            "PYTHONWARNINGS": "error",
            "L2RTUI_READY_SECONDS": "0.5",
        }
        self._terminals: list[Terminal] = []

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "l2rtui", *words]

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run to the end, without a terminal."""
        return subprocess.run(
            self.argv(*words),
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def demo(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run against the in-memory cluster."""
        return self.run(*words, L2RTUI_BACKEND="demo", **env)

    def json(self, *words: str, code: int = 0) -> Any:
        """Run with ``-o json`` against this machine and decode the output."""
        done = self.run(*words, "-o", "json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start without waiting; stdout and stderr are pipes."""
        return subprocess.Popen(
            self.argv(*words),
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def terminal(self, *words: str, streams: dict[str, Any] | None = None, **env: str) -> Terminal:
        """Start on a terminal."""
        opened = Terminal(self.argv(*words), self.env | env, **(streams or {}))
        self._terminals.append(opened)
        return opened

    def close(self) -> None:
        for one in self._terminals:
            one.close()


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A verb called in this process keeps its signal handlers to the end, as in the real program."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The program in an empty home."""
    made = Cli(tmp_path)
    yield made
    made.close()


@pytest.fixture
@starts_processes
def local(cli: Cli) -> Iterator[Cli]:
    """The same; everything launched on this machine is destroyed at the end."""
    cli.env["L2RTUI_BACKEND"] = "local"
    yield cli
    done = cli.run("destroy", "--all-mine", "--grace", "0", "--purge", "--yes")
    assert done.returncode == 0, done.stderr
    # The keeper of the queue is no part of a run: it ends when it sees that nothing waits.
    eventually(lambda: processes_of(cli.home) == [], "the end of all processes")


def processes_of(home: Path) -> list[int]:
    """Every process started in this home, found by its environment, not by our own records."""
    mark = f"XDG_STATE_HOME={home / 'state'}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            pass  # it has ended, or belongs to another user
    return found


def eventually(is_so: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_SECONDS} s"
        time.sleep(0.02)


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal; give exit code, stdout, stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, out, err
