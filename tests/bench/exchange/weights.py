"""Weights of 20 MB from one learner to 8 workers, until each has them in its policy and has acknowledged them."""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event, Semaphore

import numpy as np

from runtime.base.addresses import parse
from runtime.base.launch_context import LaunchContext
from runtime.base.metrics import Console
from runtime.exchange.learner_client import LearnerClient
from runtime.exchange.policy_store import BF2, F4
from runtime.exchange.transport import shared_memory
from runtime.rl.algos.actor import ActorShape, NumpyActor
from tests.bench.exchange.ends import SMALL, Case, Learner
from tests.bench.exchange.segments import free_port

SPAWN = multiprocessing.get_context("spawn")
WORKERS = 8
SHAPE = ActorShape(33, 2, (2_200, 2_200))
"""4.9 million weights, 19.7 MB."""


class Silence(Console):
    """Prints nothing: messages about eight joining workers are not results."""

    def say(self, sentence: str) -> None:
        del sentence


def _worker(endpoint: str, index: int, form: str, got: Semaphore, stop: Event) -> None:
    """Take every new version; with `form` one of the codecs, as if on another host."""
    if form != "shelf":
        shared_memory.host_identity = lambda: ""
    pod = f"w-{index}"
    context = LaunchContext(
        "bench",
        "bench",
        pod,
        "worker",
        index,
        1,
        parse(endpoint),
        "bench",
        None,
        1.0,
        environment="bench",
    )
    with LearnerClient(context, NumpyActor(SHAPE), SMALL, 0 if form == F4 else 1, Silence()) as peer:
        seen = 0
        while peer.session.done is None and not stop.is_set():
            peer.exchange(0.2)
            peer.use_newest_weights(in_place=True)  # as a worker does
            if peer.policy_version > seen:
                seen = peer.policy_version
                got.release()


def ours(form: str, seconds: float) -> float:
    """Broadcasts a second."""
    case = Case(f"tcp://127.0.0.1:{free_port()}", floats=SHAPE.size)
    learner = Learner(case)
    got, stop = SPAWN.Semaphore(0), SPAWN.Event()
    children = [
        SPAWN.Process(target=_worker, args=(case.endpoint, index, form, got, stop)) for index in range(WORKERS)
    ]
    for child in children:
        child.start()
    arenas = [np.full(SHAPE.size, value, dtype=np.float32) for value in (0.5, 0.25)]
    version = 0

    def broadcast() -> None:
        nonlocal version
        version += 1
        learner.exchange.publish(version, arenas[version % 2], version)
        for _ in range(WORKERS):
            assert got.acquire(timeout=60)

    found = _repeat(broadcast, seconds)
    stop.set()
    learner.exchange.finish("done", 0.0, 10.0)
    learner.exchange.close()
    for child in children:
        child.join()
    return found


def _repeat(broadcast: Callable[[], None], seconds: float) -> float:
    for _ in range(3):  # all workers have joined, and memory is touched
        broadcast()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        broadcast()
        count += 1
    return count / (time.perf_counter() - began)


def _raw_worker(port: int, floats: int, got: Semaphore) -> None:
    mine = memoryview(np.zeros(floats, dtype=np.float32)).cast("B")
    with socket.create_connection(("127.0.0.1", port)) as stream:
        at = 0
        while count := stream.recv_into(mine[at:]):
            at += count
            if at == len(mine):
                at = 0
                got.release()


def raw(seconds: float) -> float:
    """A thread for each of 8 connections pushes the float32 values unchanged."""
    data = memoryview(np.full(SHAPE.size, 0.5, dtype=np.float32)).cast("B")
    got = SPAWN.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        children = [SPAWN.Process(target=_raw_worker, args=(port, SHAPE.size, got)) for _ in range(WORKERS)]
        for child in children:
            child.start()
        streams = [server.accept()[0] for _ in range(WORKERS)]

        def broadcast() -> None:
            threads = [threading.Thread(target=stream.sendall, args=(data,)) for stream in streams]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for _ in range(WORKERS):
                assert got.acquire(timeout=60)

        found = _repeat(broadcast, seconds)
        for stream in streams:
            stream.close()
        for child in children:
            child.join()
    return found


CONTENDERS: dict[str, Callable[[float], float]] = {
    "raw TCP push, float32": raw,
    "exchange, shared memory": lambda seconds: ours("shelf", seconds),
    "exchange, TCP bfloat16": lambda seconds: ours(BF2, seconds),
    "exchange, TCP float32": lambda seconds: ours(F4, seconds),
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    names = list(CONTENDERS)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(CONTENDERS[name](options.seconds))
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\n{4 * SHAPE.size / 1e6:.1f} MB to {WORKERS} workers, {options.rounds} rounds; ratios to raw TCP")
    for name in names:
        ratio = [ours / raw for ours, raw in zip(found[name], found["raw TCP push, float32"], strict=True)]
        rate = statistics.median(found[name])
        print(
            f"  {name:24} {rate:7.1f}/s {1e3 / rate:7.1f} ms x{statistics.median(ratio):5.2f} "
            f"({min(ratio):.2f} to {max(ratio):.2f})"
        )
