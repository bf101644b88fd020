"""Number of small segments that the learner accepts per second of its CPU, from 1 to 256 workers over TCP.

The workers are real connections with a session each, in one process. All CPU time of the learner's process counts:
its network thread, ZeroMQ's own thread, and copying the segments into slots. `--join` also measures how long that
many workers take from their first connection until all are members, while those that are send segments.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from typing import Any

import psutil
import zmq

from runtime.base.addresses import parse
from runtime.base.descriptors import raise_limit
from runtime.exchange.machines.session import PeerSession
from runtime.exchange.protocol.framing import decode, encode
from runtime.exchange.protocol.messages import Segments, Trajectory
from runtime.exchange.segments import SegmentAllocator, gather
from runtime.exchange.transport.sockets import Port
from tests.bench.exchange.ends import SOURCE_BYTES, Case, Learner, hello_of
from tests.bench.exchange.segments import free_port

SPAWN = multiprocessing.get_context("spawn")
COUNTS = (1, 8, 64, 256)


def _workers(case: Case, count: int, seconds: float, began: Any = None) -> None:
    raise_limit()
    address = getattr(parse(case.endpoint), Port.DATA.value)
    arenas = SegmentAllocator(case.layout.item_bytes * case.transitions)
    source = [arenas.allocate() for _ in range(SOURCE_BYTES // (case.layout.item_bytes * case.transitions))]
    for each in source:
        each.view[:] = bytes(each.nbytes)
    row = Trajectory(case.transitions, 0, 0, 0, 0.0, 0.0)
    context, poller, sessions = zmq.Context(), zmq.Poller(), {}
    context.set(zmq.MAX_SOCKETS, 2 * count + 8)
    if began is not None:
        began.value = time.monotonic()
    for index in range(count):
        hello = hello_of(case, f"w-{index}", time.time_ns() // 1000)
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, f"{hello.pod}.{hello.incarnation}".encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.connect(address)
        poller.register(socket, zmq.POLLIN)
        sessions[socket] = PeerSession(hello)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for socket, session in sessions.items():
            while session.has_credit:
                session.queue_segment(row, source[session.offered % len(source)])
            for out in session.outgoing(time.monotonic(), session.offered, 0.0, 0):
                is_bundle = isinstance(out.message, Segments)
                frames = encode(out.message, gather(out.arenas) if is_bundle else None)
                try:
                    socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    session.unsent(out.message)
                    break
        for socket, _ in poller.poll(5):
            while True:
                try:
                    sessions[socket].receive(time.monotonic(), decode(socket.recv_multipart(zmq.NOBLOCK))[0])
                except zmq.Again:
                    break
    context.destroy(0)


def intake(count: int, seconds: float) -> tuple[float, float]:
    """Segments per second of the learner's CPU, and segments per second."""
    case = Case(f"tcp://127.0.0.1:{free_port()}", ring=False)
    learner = Learner(case)
    child = SPAWN.Process(target=_workers, args=(case, count, seconds + 60), daemon=True)
    child.start()
    limit = time.monotonic() + 50
    while (learner.machine.workers < count or learner.store.taken < 50 * count) and time.monotonic() < limit:
        time.sleep(0.02)
    me = psutil.Process()
    first, began, cpu = learner.store.taken, time.perf_counter(), sum(me.cpu_times()[:2])
    time.sleep(seconds)
    taken, used = learner.store.taken - first, sum(me.cpu_times()[:2]) - cpu
    rate = taken / (time.perf_counter() - began)
    assert learner.machine.workers == count
    child.terminate()
    child.join()
    learner.exchange.close()
    return taken / max(used, 1e-6), rate


def joining(count: int) -> tuple[float, float]:
    """Return the seconds from the first connection until all workers are members, and the learner's CPU seconds."""
    case = Case(f"tcp://127.0.0.1:{free_port()}", ring=False)
    raise_limit()
    learner, began = Learner(case), SPAWN.Value("d", 0.0)
    child = SPAWN.Process(target=_workers, args=(case, count, 120.0, began), daemon=True)
    child.start()
    me, before, machine = psutil.Process(), 0.0, learner.machine
    while not began.value:
        before = sum(me.cpu_times()[:2])
        time.sleep(0.005)
    limit = time.monotonic() + 110
    while machine.workers < count and time.monotonic() < limit:
        time.sleep(0.02)
    seconds, used = time.monotonic() - began.value, sum(me.cpu_times()[:2]) - before
    assert machine.workers == count, machine.workers
    child.terminate()
    child.join()
    learner.exchange.close()
    return seconds, used


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--join", type=int, metavar="WORKERS", help="measure only how long so many take to join")
    options = parser.parse_args(arguments)
    if options.join:
        for _ in range(options.rounds):
            seconds, used = joining(options.join)
            print(f"{options.join} workers joined in {seconds:.1f} s, {used:.2f} CPU s of the learner", flush=True)
        return
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTS}
    for turn in range(options.rounds):
        at = turn % len(COUNTS)
        for count in COUNTS[at:] + COUNTS[:at]:
            found[count].append(intake(count, options.seconds))
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\nsmall segments, {options.rounds} rounds; ratios to 1 worker in the same round")
    for count in COUNTS:
        ratios = [many[0] / one[0] for many, one in zip(found[count], found[1], strict=True)]
        thrift, rate = (statistics.median(column) for column in zip(*found[count], strict=True))
        print(
            f"  {count:4} workers {thrift:9.0f} for a CPU second x{statistics.median(ratios):5.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}), {rate:9.0f}/s"
        )
