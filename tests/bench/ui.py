"""The app on a pseudo-terminal at any size: start, keys, events, load, memory, logs; compared with an empty Textual
app.

A key's time is from the moment when it is written to the first byte that comes back. What the in-memory crowd
(``tests.fakes.load_generator``) does is told beside it through a pipe, on the same clock.

    python -m tests.bench ui
    python -m tests.bench.ui --pods 1000 5000 10000 --rate 100 --seconds 20
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import os
import random
import re
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time

import psutil

from tests.bench.startup import EMPTY_APP, Terminal

KEYS = (b"j", b"k")
PAUSES = random.Random(7)
BARE_LIST = """
from textual.app import App
from textual.widgets import OptionList

class Bare(App):
    def compose(self):
        yield OptionList(*(f"crowd-{number}" for number in range(40)))

    def on_mount(self):
        self.query_one(OptionList)._bindings.bind("j", "cursor_down")
        self.query_one(OptionList)._bindings.bind("k", "cursor_up")

Bare().run()
"""
APP = """
import asyncio, os, sys, time

from l2rtui.ui.bootstrap import make_ready

make_ready()
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp

pods, told, has_beacon = map(int, sys.argv[1:4])
rate, lines, most = map(float, sys.argv[4:])

def tell(*words):
    os.write(told, (" ".join(map(str, words)) + "\\n").encode())

def make():
    from tests.fakes.load_generator import LoadBackend

    began = time.thread_time()
    beacon = lambda number: tell("seen", number, time.monotonic())
    crowd = LoadBackend(pods, rate, lines, beacon if has_beacon else None, most_lines=most)
    tell("crowd", time.thread_time() - began)
    return crowd

class Told(L2RApp):
    def on_mount(self):
        self.probe = asyncio.create_task(self.look())

    async def look(self):
        started = last = time.monotonic()
        most = 0.0
        while lines or last < started + 5:  # a look costs a little: none while the load at rest is measured
            began = time.monotonic()
            await asyncio.sleep(0.01)
            now = time.monotonic()
            if now - began - 0.01 > most:
                most = now - began - 0.01
                tell("stall", most)
            if now - last > 0.5 and self.ctx.backend_or_none is not None:
                last = now
                accepted = sum(desk.pane.received for desk in self.cluster.panes.logs.controllers)
                tell("lines", accepted, now)

Told(Settings(backend="demo", notify=False), make).run()
"""


PARTS = ("start", "busy", "idle", "letters", "help", "logs", "streams", "flood", "gone", "soak")
FORMS = {"plain": b"5", "wrapped": b"5w", "filtered": b"5&step\r", "searched": b"5/reward\r"}


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=[1_000, 5_000, 10_000])
    parser.add_argument("--rate", type=float, default=100.0, help="changes of pods a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each figure is taken")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1], help="what to measure")
    options = parser.parse_args(arguments)
    parts = set(options.parts)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, "TERM": "xterm-256color"}
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        print(f"load of this machine {load:.1f} a core: wall times count it, CPU times do not")
        bare = empty(env)
        for pods in options.pods if parts & {"start", "busy", "idle"} else ():
            print(f"{pods:,} pods")
            if "start" in parts:
                start(env, pods)
            if "busy" in parts:
                busy(env, pods, options.rate, options.seconds, bare)
            if "idle" in parts:
                idle(env, pods, options.seconds)
        if "letters" in parts:
            for most_lines in (60_000, math.inf):
                letters(env, bare, most_lines)
        if "help" in parts:
            help_bytes(env)
        if "logs" in parts:
            for panes in (1, 4):
                logs(env, panes, options.seconds)
        if "streams" in parts:
            streams(env, options.seconds)
        if "flood" in parts:
            flood(env, options.seconds)
        if "gone" in parts:
            gone(env)
        if "soak" in parts:
            soak(env, options.seconds)
    return 0


class Told:
    """The app over a crowd on a terminal, and its reports through a pipe.

    Attributes:
        crowd_seconds: CPU seconds for making the crowd, which are not the app's.
        stall_seconds: The longest time so far for which its event loop was blocked.
        lines: Newest count of the log lines that its panes have accepted, and when.
        changes: Numbers that the cluster has shown since, and when.
    """

    def __init__(
        self,
        env: dict[str, str],
        pods: int,
        rate: float = 0.0,
        lines: float = 0.0,
        *,
        beacon: bool = False,
        most_lines: float = math.inf,
    ) -> None:
        self._reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        self.terminal = Terminal(["-c", APP, *map(str, (pods, writer, int(beacon), rate, lines, most_lines))], env)
        os.close(writer)
        os.set_blocking(self._reader, False)
        self._rest = b""
        self.crowd_seconds = self.stall_seconds = 0.0
        self.lines = 0, 0.0
        self.changes: dict[bytes, float] = {}

    def listen(self) -> None:
        """Read its reports."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, 1 << 16):
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for what, *words in (line.split() for line in lines):
            match what:
                case b"crowd":
                    self.crowd_seconds = float(words[0])
                case b"stall":
                    self.stall_seconds = float(words[0])
                case b"lines":
                    self.lines = int(words[0]), float(words[1])
                case _:
                    self.changes[words[0]] = float(words[1])

    def ready(self) -> Terminal:
        """Wait for real rows."""
        self.terminal.read(60.0, until=b"crowd-1")
        return self.terminal

    def close(self) -> None:
        """End it."""
        self.terminal.close()
        os.close(self._reader)


def empty(env: dict[str, str]) -> list[float]:
    """The same figures for apps that do nothing; return the milliseconds of keys in a bare list."""
    began = time.monotonic()
    terminal = Terminal(["-c", EMPTY_APP], env)
    terminal.read(60.0, until=b"l2rtui")
    print(f"  empty Textual app: frame {time.monotonic() - began:.2f} s, {terminal.cpu():.2f} s CPU", end="")
    terminal.read(1.0)
    print(f", {memory(terminal):.0f} MiB")
    terminal.close()
    terminal = Terminal(["-c", BARE_LIST], env)
    terminal.read(60.0, until=b"crowd-1")
    terminal.read(1.0)
    waits = keys(terminal, 10.0)
    print(f"  bare list of 40 rows in Textual: key to first byte {spread(waits)} ms")
    terminal.close()
    return waits


def ratio(waits: list[float], bare: list[float]) -> str:
    """95th percentile relative to that of the bare list."""
    high, low = (statistics.quantiles(values, n=20)[18] for values in (waits, bare))
    return f"p95 is {high / low:.2f} of the bare list's"


def start(env: dict[str, str], pods: int) -> None:
    """Time to the first frame and to real rows, and the longest wait of a key during it."""
    began = time.monotonic()
    told = Told(env, pods)
    terminal = told.terminal
    terminal.read(60.0, until=b"l2rtui")
    frame, frame_cpu = time.monotonic() - began, terminal.cpu()
    told.ready()
    rows, rows_cpu = time.monotonic() - began, terminal.cpu()
    terminal.read(1.0)
    told.listen()
    print(
        f"  first frame {frame:.2f} s ({frame_cpu:.2f} s CPU), real rows {rows:.2f} s ({rows_cpu:.2f} s CPU,",
        end="",
    )
    crowd, stall = told.crowd_seconds, told.stall_seconds * 1000
    print(f" of which {crowd:.2f} s for making the crowd); longest stall {stall:.0f} ms")
    told.close()


def keys(terminal: Terminal, seconds: float, pressed: tuple[bytes, bytes] = KEYS) -> list[float]:
    """Milliseconds from a key to the first byte, under the current load."""
    found: list[float] = []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        terminal.read(PAUSES.uniform(0.05, 0.25))  # a regular one would always meet the same frame
        while select.select([terminal.leader], [], [], 0.004)[0]:
            terminal.read(0.004)
        began = time.monotonic()
        os.write(terminal.leader, pressed[number % len(pressed)])
        number += 1  # down and up again: the first row stays visible
        if select.select([terminal.leader], [], [], 2.0)[0]:
            found.append((time.monotonic() - began) * 1000)
    return found


def busy(env: dict[str, str], pods: int, rate: float, seconds: float, bare: list[float]) -> None:
    """Keys, events and load while pods change."""
    told = Told(env, pods, rate, beacon=True)
    terminal = told.ready()
    os.write(terminal.leader, b"3")
    terminal.read(2.0)
    print(f"  event to painted cell: {spread(painted(told, seconds))} ms")
    told.close()
    told = Told(env, pods, rate)  # a visible pod that changes ten times a second is not typical
    terminal = told.ready()
    os.write(terminal.leader, b"3")
    terminal.read(6.0)
    waits = keys(terminal, seconds)
    print(f"  key to first byte at {rate:g} events/s: {spread(waits)} ms; {ratio(waits, bare)}")
    cpu, received, began = terminal.cpu(), terminal.received, time.monotonic()
    terminal.read(seconds)
    took = time.monotonic() - began
    share, sent = (terminal.cpu() - cpu) / took, (terminal.received - received) / took
    print(f"  at {rate:g} events/s: {share:.1%} of a core, {sent / 1024:.2f} KiB/s to the terminal")
    told.close()


def letters(env: dict[str, str], bare: list[float], most_lines: float) -> None:
    """Letters of a search in a full log of 50,000 lines, which gets more lines or has ended."""
    told = Told(env, 64, lines=5_000.0, most_lines=most_lines)
    terminal = told.ready()
    os.write(terminal.leader, b"5")
    terminal.read(15.0)
    os.write(terminal.leader, b"k")  # stops following: only keys paint
    terminal.read(1.0)
    waits: list[float] = []
    for word in (b"997", b"step 12", b"reward 1", b"nowhere") * 3:
        os.write(terminal.leader, b"/")
        terminal.read(0.5)
        for letter in word:
            terminal.read(0.2)
            began = time.monotonic()
            os.write(terminal.leader, bytes((letter,)))
            if select.select([terminal.leader], [], [], 5.0)[0]:
                waits.append((time.monotonic() - began) * 1000)
        os.write(terminal.leader, b"\r")
        terminal.read(0.5)
    state = "that have ended" if most_lines < math.inf else "and 5,000 more a second"
    print(f"letter of a search on 50,000 lines {state}: {spread(waits)} ms; {ratio(waits, bare)}")
    told.close()


def help_bytes(env: dict[str, str]) -> None:
    """Bytes that the help sends at 120x40, from the key until nothing more comes."""
    terminal = Terminal(["-m", "l2rtui", "--backend", "local"], env)
    fcntl.ioctl(terminal.leader, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    terminal.read(10.0)
    before = terminal.received
    os.write(terminal.leader, b"?")
    terminal.read(4.0)
    print(f"help at 120x40: {(terminal.received - before) / 1000:.1f} kB")
    terminal.close()


def painted(told: Told, seconds: float) -> list[float]:
    """Milliseconds from a change on the cluster to its number on the screen; a newer change replaces it."""
    terminal, found = told.terminal, list[float]()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal.leader], [], [], left)[0]:
            data = os.read(terminal.leader, 1 << 20)
            now = time.monotonic()
            terminal.received += len(data)
            told.listen()
            seen = told.changes.keys() & set(re.findall(rb"1\d{4}", data))
            found.extend((now - told.changes.pop(number)) * 1000 for number in seen)
    return found


def idle(env: dict[str, str], pods: int, seconds: float) -> None:
    """Load while nothing happens."""
    told = Told(env, pods)
    terminal = told.ready()
    terminal.read(8.0)  # garbage collection is enabled again
    cpu, received, began = terminal.cpu(), terminal.received, time.monotonic()
    terminal.read(seconds)
    took = time.monotonic() - began
    share, sent = (terminal.cpu() - cpu) / took, (terminal.received - received) / took
    rate = f"{share:.2%} of a core, {sent / 1024:.2f} KiB/s to the terminal"
    print(f"  at rest: {rate}, {memory(terminal):.0f} MiB")
    told.close()


def rushing(env: dict[str, str], panes: int) -> Told:
    """Panes that each receive ten thousand lines a second."""
    told = Told(env, 5_000, lines=10_000.0)
    terminal = told.ready()
    terminal.read(2.0)
    for _ in range(panes - 1):
        os.write(terminal.leader, b"|")
        terminal.read(2.0)
    os.write(terminal.leader, b"4")  # keys in the list of nodes select no other log
    terminal.read(6.0)
    return told


def logs(env: dict[str, str], panes: int, seconds: float) -> None:
    """Ten thousand lines a second into each pane: accepted lines, keys during it, memory and load."""
    told = rushing(env, panes)
    terminal = told.terminal
    told.listen()
    (accepted, began), cpu, at = told.lines, terminal.cpu(), time.monotonic()
    waits = keys(terminal, seconds)
    share = (terminal.cpu() - cpu) / (time.monotonic() - at)
    told.listen()
    newest, end = told.lines
    rate = (newest - accepted) / max(0.1, end - began) / panes
    print(f"5,000 pods, panes of a log: {panes}")
    print(f"  accepted {rate:,.0f} lines/s a pane, {share:.0%} of a core, {memory(terminal):.0f} MiB")
    print(f"  key to first byte while lines rush in: {spread(waits)} ms")
    told.close()


def soak(env: dict[str, str], seconds: float) -> None:
    """Memory over a long time, with four full panes that each receive ten thousand lines a second."""
    told = rushing(env, 4)
    terminal, points, began = told.terminal, list[tuple[float, float]](), time.monotonic()
    terminal.read(20.0)  # until the panes are full
    while (now := time.monotonic() - began) < seconds:
        terminal.read(10.0)
        points.append((now, memory(terminal)))
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    sizes = [size for _, size in points]
    size = f"{min(sizes):.0f} to {max(sizes):.0f} MiB"
    print(f"four full panes for {seconds:.0f} s: {size}, {slope * 3600:+.1f} MiB an hour")
    told.close()


def streams(env: dict[str, str], seconds: float) -> None:
    """Sixty-four logs in one pane: keys during it."""
    told = Told(env, 64, lines=10_000.0)
    terminal = told.ready()
    os.write(terminal.leader, b"A3*")
    terminal.read(3.0)
    print(f"64 streams in one pane: key to first byte {spread(keys(terminal, seconds))} ms")
    told.close()


def flood(env: dict[str, str], seconds: float) -> None:
    """Forty-nine pods that write without a pause, every hundredth line of a million characters, in one log."""
    for form, pressed in FORMS.items():
        told = Told(env, 64, lines=math.inf)
        terminal = told.ready()
        terminal.read(2.0)
        os.write(terminal.leader, pressed)
        terminal.read(5.0)  # until lines are dropped
        os.write(terminal.leader, b"4")
        terminal.read(5.0)
        told.listen()
        accepted, began = told.lines
        waits = keys(terminal, seconds)
        told.listen()
        newest, end = told.lines
        rate = (newest - accepted) / max(0.1, end - began)
        size = memory(terminal)
        print(
            f"a flood, {form}: {rate:,.0f} lines/s, {size:.0f} MiB, key to first byte {spread(waits)} ms",
            flush=True,
        )
        told.close()


def gone(env: dict[str, str]) -> None:
    """Time from the end of the terminal's session to the end of the process."""
    told = Told(env, 1_000)
    terminal = told.ready()
    process, began = psutil.Process(terminal.pid), time.monotonic()
    os.kill(terminal.pid, signal.SIGHUP)
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() - began < 10.0:
        with contextlib.suppress(OSError):  # its terminal is closed; only its end is expected
            terminal.read(0.01)
    print(f"SIGHUP to process gone: {time.monotonic() - began:.2f} s")
    told.close()


def memory(terminal: Terminal) -> float:
    """Resident MiB."""
    return float(psutil.Process(terminal.pid).memory_info().rss) / 2**20


def spread(values: list[float]) -> str:
    """Median, 95th percentile and maximum."""
    if len(values) < 2:
        return "nothing came"
    cuts = statistics.quantiles(values, n=20)
    return f"p50 {statistics.median(values):.1f}, p95 {cuts[18]:.1f}, max {max(values):.1f} (n={len(values)})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
