"""Segments from one worker to one learner: raw TCP, bare ZeroMQ, the exchange over TCP, with CURVE, by memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event

import numpy as np
import psutil
import zmq

from runtime.exchange.transport.shared_memory import keep_freed
from tests.bench.exchange.ends import MEMORY_BYTES, SHAPES, SOURCE_BYTES, Case, Learner, worker
from tests.fakes.faults import free_port

SPAWN = multiprocessing.get_context("spawn")
BARE_MESSAGES = 8
"""Number of waiting segments of half a megabyte or more at each end, if no credit limits them."""


def cpu_of(child: int) -> float:
    """CPU seconds of this process and of the other end."""
    both = (psutil.Process(), psutil.Process(child))
    return sum(times.user + times.system for times in (each.cpu_times() for each in both))


def measure(taken: Callable[[], int], seconds: float, child: int) -> tuple[float, float]:
    """Segments per second in steady state, and CPU seconds for each of them at both ends."""
    limit = time.monotonic() + 30
    while taken() < 20 and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.2)
    first, began, cpu = taken(), time.perf_counter(), cpu_of(child)
    time.sleep(seconds)
    count = taken() - first
    # The kernel counts CPU time in ticks: what takes less counts as one.
    used = max(cpu_of(child) - cpu, 1 / os.sysconf("SC_CLK_TCK"))
    return count / (time.perf_counter() - began), used / max(1, count)


def _while_received(
    receive: Callable[[], None], taken: Callable[[], int], seconds: float, child: BaseProcess, stop: Event
) -> tuple[float, float]:
    """Measure while a thread receives data from a child, then end both."""
    thread = threading.Thread(target=receive)
    thread.start()
    found = measure(taken, seconds, child.pid or 0)
    stop.set()
    thread.join()
    child.join()
    return found


def _raw_sender(port: int, size: int, stop: Event) -> None:
    many = max(1, SOURCE_BYTES // size)
    data = memoryview(np.zeros(many * size, dtype=np.uint8))
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not stop.is_set():
            stream.sendall(data)


def raw(shape: str, seconds: float, memory_bytes: int = MEMORY_BYTES) -> tuple[float, float]:
    """A socket whose bytes arrive directly in the slots: the upper bound for any exchange over TCP."""
    layout, transitions = SHAPES[shape]
    size = layout.item_bytes * transitions
    slots = memoryview(np.ones(max(2, memory_bytes // size) * size, dtype=np.uint8))
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = SPAWN.Event()
        child = SPAWN.Process(target=_raw_sender, args=(server.getsockname()[1], size, stop))
        child.start()
        stream, _ = server.accept()
        taken = [0]

        def receive() -> None:
            at = 0
            with stream:
                while got := stream.recv_into(slots[at:]):
                    at = (at + got) % len(slots)
                    taken[0] += got

        return _while_received(receive, lambda: taken[0] // size, seconds, child, stop)


def _bare_sender(port: int, size: int, stop: Event) -> None:
    many = max(1, SOURCE_BYTES // size)
    data = memoryview(np.zeros(many * size, dtype=np.uint8))
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDHWM, BARE_MESSAGES)
        dealer.setsockopt(zmq.SNDTIMEO, 100)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        while not stop.is_set():
            with contextlib.suppress(zmq.Again):
                dealer.send(data, copy=False)


def bare(shape: str, seconds: float, memory_bytes: int = MEMORY_BYTES) -> tuple[float, float]:
    """ZeroMQ without an exchange: no header, no check, no accounts, and one copy into the slots."""
    layout, transitions = SHAPES[shape]
    size = layout.item_bytes * transitions
    slots, at, taken = memoryview(np.ones(max(2, memory_bytes // size) * size, dtype=np.uint8)), 0, [0]
    keep_freed()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVHWM, BARE_MESSAGES)
        stop, port = SPAWN.Event(), router.bind_to_random_port("tcp://127.0.0.1")
        child = SPAWN.Process(target=_bare_sender, args=(port, size, stop))
        child.start()

        def receive() -> None:
            nonlocal at
            while not stop.is_set():
                if router.poll(100):
                    router.recv()
                    data = router.recv(copy=False).buffer
                    at = at if at + len(data) <= len(slots) else 0
                    slots[at : at + len(data)] = data
                    at += len(data)
                    taken[0] += len(data)

        return _while_received(receive, lambda: taken[0] // size, seconds, child, stop)


def copies(shape: str, seconds: float, memory_bytes: int = MEMORY_BYTES) -> tuple[float, float]:
    """The same bytes copied into the slots by just one process: each copy on the way costs at least as much."""
    layout, transitions = SHAPES[shape]
    size = layout.item_bytes * transitions
    many = max(1, SOURCE_BYTES // size)
    source = memoryview(np.zeros(many * size, dtype=np.uint8))
    places = max(2, memory_bytes // len(source))
    slots = memoryview(np.ones(places * len(source), dtype=np.uint8))
    count, began, cpu = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - began) < seconds:
        at = count % places * len(source)
        slots[at : at + len(source)] = source
        count += 1
    return count * many / passed, (time.process_time() - cpu) / (count * many)


def ours(
    shape: str,
    seconds: float,
    memory_bytes: int = MEMORY_BYTES,
    *,
    transport: str,
    curve: bool = False,
    ring: bool = False,
) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
        endpoint = f"ipc://{folder}" if transport == "ipc" else f"tcp://127.0.0.1:{free_port()}"
        case = Case(endpoint, shape, curve=curve, ring=ring, memory_bytes=memory_bytes)
        learner = Learner(case)
        child = SPAWN.Process(target=worker, args=(case, "w-0", None, seconds + 30))
        child.start()
        found = measure(lambda: learner.store.taken, seconds, child.pid or 0)
        learner.exchange.finish("done", 0.0, 5.0)
        child.join(10)
        totals = learner.machine.accounts.totals
        learner.exchange.close()
        assert totals.accepted == learner.store.taken, totals
        assert totals.misfit == totals.stale == totals.lost == 0, totals
    return found


CONTENDERS: dict[str, Callable[[str, float, int], tuple[float, float]]] = {
    "raw TCP": raw,
    "one copy in memory": copies,
    "bare ZeroMQ, one copy": bare,
    "exchange, TCP": lambda shape, seconds, memory: ours(shape, seconds, memory, transport="tcp"),
    "exchange, ipc socket": lambda shape, seconds, memory: ours(shape, seconds, memory, transport="ipc"),
    "exchange, memory ring": lambda shape, seconds, memory: ours(
        shape, seconds, memory, transport="tcp", ring=True
    ),
    "exchange, TCP + CURVE": lambda shape, seconds, memory: ours(
        shape, seconds, memory, transport="tcp", curve=True
    ),
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--shape", choices=[*SHAPES, "both"], default="both")
    parser.add_argument("--only", default="")
    parser.add_argument("--memory", type=int, default=MEMORY_BYTES // 2**20, help="MiB of slots in which it ends")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    for shape in SHAPES if options.shape == "both" else [options.shape]:
        layout, transitions = SHAPES[shape]
        size = layout.item_bytes * transitions
        names = [name for name in CONTENDERS if options.only in name or name == "raw TCP"]
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for turn in range(options.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found[name].append(CONTENDERS[name](shape, options.seconds, options.memory * 2**20))
                print(".", end="", file=sys.stderr, flush=True)
        print(f"\n{shape}: {size} bytes a segment, {options.rounds} rounds; ratios to raw TCP in the same round")
        for name in names:
            ratio = [ours[0] / raw[0] for ours, raw in zip(found[name], found["raw TCP"], strict=True)]
            thrift = [raw[1] / ours[1] for ours, raw in zip(found[name], found["raw TCP"], strict=True)]
            rate, cpu = (statistics.median(column) for column in zip(*found[name], strict=True))
            print(
                f"  {name:24} {rate:9.0f}/s {rate * size / 1e6:7.0f} MB/s x{statistics.median(ratio):5.2f} "
                f"({min(ratio):.2f} to {max(ratio):.2f})   {cpu / size * 1e9:6.3f} CPU s/GB "
                f"x{statistics.median(thrift):5.2f} ({min(thrift):.2f} to {max(thrift):.2f})"
            )
        if options.json:
            print(json.dumps({shape: found}))


if __name__ == "__main__":
    main(sys.argv[1:])
