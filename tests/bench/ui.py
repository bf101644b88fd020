"""The app on a pseudo-terminal at any size: start, keys, events, load, memory, logs; beside an empty Textual app.

A key's time is from the moment when it is written to the first byte that comes back. What the in-memory crowd
(``backends.fake.crowd``) does is told beside it through a pipe, on the same clock.

    python -m tests.bench ui
    python -m tests.bench.ui --pods 1000 5000 10000 --rate 100 --seconds 20
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import signal
import statistics
import sys
import tempfile
import time

import psutil

from tests.bench.startup import EMPTY_APP, Terminal

KEYS = (b"j", b"k", b"j", b"j", b"k")
APP = """
import os, sys, time
from l2rtui.backends.fake.crowd import CrowdBackend
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp

pods, rate, lines, beacons = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])

def beacon(number):
    os.write(beacons, f"{number} {time.monotonic()}\\n".encode())

make = lambda: CrowdBackend(pods, rate, lines, beacon if beacons >= 0 else None)
L2RApp(Settings(backend="demo", notify=False), make).run()
"""


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=[1_000, 5_000, 10_000])
    parser.add_argument("--rate", type=float, default=100.0, help="changes of pods a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each figure is taken")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, "TERM": "xterm-256color"}
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        print(f"load of this machine {load:.1f} a core: wall times count it, CPU times do not")
        empty(env)
        for pods in options.pods:
            print(f"{pods:,} pods")
            start(env, pods)
            busy(env, pods, options.rate, options.seconds)
            idle(env, pods, options.seconds)
        logs(env, options.seconds)
        streams(env, options.seconds)
        gone(env)
    return 0


def app(env: dict[str, str], pods: int, rate: float = 0.0, lines: float = 0.0, beacons: int = -1) -> Terminal:
    """The app over a crowd."""
    if beacons >= 0:
        os.set_inheritable(beacons, True)
    return Terminal(["-c", APP, str(pods), str(rate), str(lines), str(beacons)], env)


def empty(env: dict[str, str]) -> None:
    """The same figures for an app that does nothing."""
    began = time.monotonic()
    terminal = Terminal(["-c", EMPTY_APP], env)
    terminal.read(60.0, until=b"l2rtui")
    print(f"  empty Textual app: frame {time.monotonic() - began:.2f} s, {terminal.cpu():.2f} s CPU", end="")
    terminal.read(1.0)
    print(f", {memory(terminal):.0f} MiB")
    terminal.close()


def start(env: dict[str, str], pods: int) -> None:
    """Time to the first frame and to real rows, and how long keys wait meanwhile."""
    began = time.monotonic()
    terminal = app(env, pods)
    terminal.read(60.0, until=b"l2rtui")
    frame, frame_cpu = time.monotonic() - began, terminal.cpu()
    terminal.read(60.0, until=b"crowd-1")
    rows, rows_cpu = time.monotonic() - began, terminal.cpu()
    print(f"  first frame {frame:.2f} s ({frame_cpu:.2f} s CPU), real rows {rows:.2f} s ({rows_cpu:.2f} s CPU)")
    terminal.close()


def keys(terminal: Terminal, seconds: float) -> list[float]:
    """Milliseconds from a key to the first byte, while everything else goes on."""
    found: list[float] = []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        terminal.read(0.15)
        while select.select([terminal.leader], [], [], 0.004)[0]:
            terminal.read(0.004)
        began = time.monotonic()
        os.write(terminal.leader, KEYS[number % len(KEYS)])
        number += 1
        if select.select([terminal.leader], [], [], 2.0)[0]:
            found.append((time.monotonic() - began) * 1000)
    return found


def busy(env: dict[str, str], pods: int, rate: float, seconds: float) -> None:
    """Keys, events and load while pods change."""
    reader, writer = os.pipe()
    terminal = app(env, pods, rate, beacons=writer)
    os.close(writer)
    terminal.read(60.0, until=b"crowd-1")
    os.write(terminal.leader, b"3")
    terminal.read(2.0)
    waits = keys(terminal, seconds)
    print(f"  key to first byte at {rate:g} events/s: {spread(waits)} ms")
    print(f"  event to painted cell: {spread(painted(terminal, reader, seconds))} ms")
    cpu, received, began = terminal.cpu(), terminal.received, time.monotonic()
    terminal.read(seconds)
    took = time.monotonic() - began
    share, sent = (terminal.cpu() - cpu) / took, (terminal.received - received) / took
    print(f"  at {rate:g} events/s: {share:.1%} of a core, {sent / 1024:.2f} KiB/s to the terminal")
    terminal.close()
    os.close(reader)


def painted(terminal: Terminal, reader: int, seconds: float) -> list[float]:
    """Milliseconds from a change on the cluster to its number on the screen."""
    told: dict[bytes, float] = {}
    found: list[float] = []
    end, rest = time.monotonic() + seconds, b""
    while (left := end - time.monotonic()) > 0:
        ready = select.select([reader, terminal.leader], [], [], left)[0]
        if reader in ready:
            rest += os.read(reader, 1 << 16)
            *lines, rest = rest.split(b"\n")
            told.update((number, float(at)) for number, at in (line.split() for line in lines))
        if terminal.leader in ready:
            data = os.read(terminal.leader, 1 << 20)
            terminal.received += len(data)
            now = time.monotonic()
            seen = told.keys() & set(re.findall(rb"1\d{4}", data))
            found.extend((now - told.pop(number)) * 1000 for number in seen)
    return found


def idle(env: dict[str, str], pods: int, seconds: float) -> None:
    """Load while nothing happens."""
    terminal = app(env, pods)
    terminal.read(60.0, until=b"crowd-1")
    terminal.read(3.0)
    cpu, received, began = terminal.cpu(), terminal.received, time.monotonic()
    terminal.read(seconds)
    took = time.monotonic() - began
    share, sent = (terminal.cpu() - cpu) / took, (terminal.received - received) / took
    rate = f"{share:.2%} of a core, {sent / 1024:.2f} KiB/s to the terminal"
    print(f"  at rest: {rate}, {memory(terminal):.0f} MiB")
    terminal.close()


def logs(env: dict[str, str], seconds: float) -> None:
    """Ten thousand lines a second into each of four panes: keys meanwhile, and memory."""
    terminal = app(env, 5_000, lines=10_000.0)
    terminal.read(60.0, until=b"crowd-1")
    os.write(terminal.leader, b"|")
    terminal.read(2.0)
    for _ in range(2):
        os.write(terminal.leader, b"|")
        terminal.read(2.0)
    os.write(terminal.leader, b"\x1b")
    terminal.read(1.0)
    waits = keys(terminal, seconds)
    print("5,000 pods, four panes")
    print(f"  key to first byte while lines rush in: {spread(waits)} ms")
    print(f"  {memory(terminal):.0f} MiB")
    terminal.close()


def streams(env: dict[str, str], seconds: float) -> None:
    """Sixty-four logs in one pane: keys meanwhile."""
    terminal = app(env, 64, lines=10_000.0)
    terminal.read(60.0, until=b"crowd-1")
    os.write(terminal.leader, b"A3*")
    terminal.read(3.0)
    print(f"64 streams in one pane: key to first byte {spread(keys(terminal, seconds))} ms")
    terminal.close()


def gone(env: dict[str, str]) -> None:
    """From the end of the terminal's session to that of the process."""
    terminal = app(env, 1_000)
    terminal.read(60.0, until=b"crowd-1")
    process, began = psutil.Process(terminal.pid), time.monotonic()
    os.kill(terminal.pid, signal.SIGHUP)
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() - began < 10.0:
        with contextlib.suppress(OSError):  # its terminal is closed: what is left is its end
            terminal.read(0.01)
    print(f"SIGHUP to process gone: {time.monotonic() - began:.2f} s")
    terminal.close()


def memory(terminal: Terminal) -> float:
    """Resident MiB."""
    return float(psutil.Process(terminal.pid).memory_info().rss) / 2**20


def spread(values: list[float]) -> str:
    """Median, 95th percentile and the most."""
    if len(values) < 2:
        return "nothing came"
    cuts = statistics.quantiles(values, n=20)
    return f"p50 {statistics.median(values):.1f}, p95 {cuts[18]:.1f}, max {max(values):.1f} (n={len(values)})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
