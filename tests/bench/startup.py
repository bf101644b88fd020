"""Cost of starting: --version, --help, a verb, the first frame; and cost of the idle app with a training run.

CPU seconds (user + system), because wall time on a shared machine is not reliable; each with the same for a bare
interpreter, and for an empty Textual app.

    python -m tests.bench startup
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil

EMPTY_APP = """
from textual.app import App
from textual.widgets import Footer, Static

class Empty(App):
    def compose(self):
        yield Static('l2rtui')
        yield Footer()

Empty().run()
"""


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, "TERM": "xterm-256color"}
        commands = {
            "python -c pass": ["-c", "pass"],
            "l2rtui --version": ["-m", "l2rtui", "--version"],
            "l2rtui --help": ["-m", "l2rtui", "--help"],
            "l2rtui slots": ["-m", "l2rtui", "slots", "--backend", "local"],
        }
        for name, words in commands.items():
            seconds = statistics.median(command(words, env) for _ in range(options.rounds))
            print(f"{name:28} {seconds * 1000:6.0f} ms CPU")
        apps = {
            "empty Textual app": ["-c", EMPTY_APP],
            "l2rtui, this machine": ["-m", "l2rtui", "--backend", "local"],
            "l2rtui, demo cluster": ["-m", "l2rtui", "--backend", "demo"],
        }
        for name, words in apps.items():
            seconds = statistics.median(first_frame(words, env) for _ in range(options.rounds))
            print(f"{name:28} {seconds:6.2f} s CPU to a frame")
        idle(env, options.idle_seconds)
    return 0


def command(words: list[str], env: dict[str, str]) -> float:
    """CPU seconds of one command."""
    process = subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


class Terminal:
    """A program on a pseudo-terminal of 160x45, and the bytes that it sends."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.pid, self.leader = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, *words], env)  # noqa: S606  (a pty's child)
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self.received = 0
        self.screen = b""

    def cpu(self) -> float:
        """CPU seconds so far, of the process that draws and of its guard process."""
        process = psutil.Process(self.pid)
        every = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return sum(times.user + times.system for times in every)

    def read(self, seconds: float, until: bytes = b"") -> None:
        """Read output for some time, or until these bytes have arrived."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not (until and until in self.screen):
            if select.select([self.leader], [], [], left)[0]:
                data = os.read(self.leader, 1 << 20)
                self.received += len(data)
                self.screen = (self.screen + data)[-1_000_000:]

    def close(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGTERM)
        try:
            while os.read(self.leader, 1 << 16):
                pass
        except OSError:
            pass  # the other side is closed
        os.waitpid(self.pid, 0)
        os.close(self.leader)


def first_frame(words: list[str], env: dict[str, str]) -> float:
    """CPU seconds until a frame with the program's name has been painted."""
    terminal = Terminal(words, env)
    terminal.read(20.0, until=b"l2rtui")
    seconds = terminal.cpu()
    terminal.close()
    return seconds


def verb(env: dict[str, str], *words: str) -> None:
    """Run a verb on this machine's backend, silently."""
    command = [sys.executable, "-m", "l2rtui", *words, "--backend", "local"]
    subprocess.run(command, env=env, check=True, capture_output=True)


def idle(env: dict[str, str], seconds: float) -> None:
    """CPU share and bytes a second of the untouched app, while a run trains."""
    spec = str(Path(__file__).parents[2] / "manifests/racing-sac.yaml")
    verb(env, "launch", "-f", spec, "--yes", "--wait")
    try:
        terminal = Terminal(["-m", "l2rtui", "--backend", "local"], env)
        terminal.read(8.0)
        cpu, received = terminal.cpu(), terminal.received
        terminal.read(seconds)
        share, rate = (terminal.cpu() - cpu) / seconds, (terminal.received - received) / seconds
        supervisor = next(
            process
            for process in psutil.process_iter(["cmdline"])  # the command line of a zombie is None, not an error
            if "l2rtui.backends.local.supervision.supervisor" in (process.info["cmdline"] or ())
        )
        times = supervisor.cpu_times()
        age = time.time() - supervisor.create_time()
        terminal.close()
    finally:
        verb(env, "destroy", "--all-mine", "--yes", "--purge")
    print(f"{'idle beside a training run':28} {share:6.2%} of a core, {rate:.0f} bytes/s to the terminal")
    print(f"{'its supervisor':28} {(times.user + times.system) / age:6.2%} of a core")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
