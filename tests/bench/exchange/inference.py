"""Remote inference: from an observation to the action that the learner's policy returns for it, on loopback.

A learner process answers with an MLP 64x64; workers are separate processes that ask, draw and ask again. For
comparison, in the same round: an echo of the same size over a plain socket and over ZeroMQ, and the same policy in
the worker itself. A round trip is mostly the time to wake a process, so only the ratios to the plain socket can be
compared between machines.

    python -m tests.bench.exchange inference [--rounds 5] [--seconds 2] [--workers 1 8] [--over ipc tcp curve]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq

from runtime.base.addresses import parse
from runtime.exchange.inference.server import InferenceServer
from runtime.exchange.inference.wire import AnswerChannel, QuestionChannel, RemotePolicy, Shapes, proof_of
from runtime.exchange.transport import curve_keys
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.roles.remote_inference import NumpyPolicy
from tests.fakes.faults import free_port

SHAPE = ActorShape(33, 2, (64, 64), head="gaussian", activation="tanh")
PROOF = proof_of("bench", "bench")
WARM = 200
PLAIN = "tcp, plain socket echo"


def shapes(copies: int) -> Shapes:
    """Shapes known to both ends: the observations of the racing environment."""
    return Shapes(np.dtype(np.float32), SHAPE.obs_dim, SHAPE.answer_floats, copies)


def key_pair(over: str) -> tuple[Any, Any]:
    return curve_keys.from_token("bench") if over == "curve" else (None, None)


class FirstWeights:
    """Weights with a single version."""

    def version(self) -> int:
        return 1

    def read(self, into: Any) -> int:
        into[:] = np.random.default_rng(0).standard_normal(SHAPE.size, dtype=np.float32) * 0.1
        return 1


def answer(endpoint: str, over: str, copies: int, ready: Connection) -> None:
    """Act as the process of inference until the other end of `ready` stops it."""
    network = NumpyPolicy(SHAPE, shapes(copies).batch_rows)
    with AnswerChannel(parse(endpoint), shapes(copies).question_bytes, key_pair(over)[0]) as channel:
        server = InferenceServer(channel, network, shapes(copies), PROOF, FirstWeights())
        ready.send("")
        server.serve(ready.poll)
        ready.recv()
        ready.send(server.counts())


def ask(endpoint: str, over: str, copies: int, index: int, seconds: float, found: Connection) -> None:
    """Act as a worker: record the duration of each action."""
    rng = np.random.default_rng(index)
    drawing = NumpyActor(SHAPE)
    obs = rng.standard_normal((copies, SHAPE.obs_dim), dtype=np.float32)
    took: list[float] = []
    with QuestionChannel(
        parse(endpoint), f"w{index}".encode(), shapes(copies).answer_bytes, key_pair(over)[1]
    ) as channel:
        remote = RemotePolicy(channel, shapes(copies), PROOF)
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end or len(took) < 2 * WARM:
            said = remote.outputs(obs, lambda: True)
            assert said is not None
            drawing.draw_with_log_prob(said[0], rng)
            took.append(time.perf_counter() - began)
    found.send(took[WARM:])


def echo(address: str) -> None:
    """Send everything back: ZeroMQ's own cost."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind(address)
        while True:
            router.send_multipart(router.recv_multipart())


def raw(address: str, seconds: float) -> list[float]:
    """Round trips with the size of a question."""
    process = mp.Process(target=echo, args=(address,), daemon=True)
    process.start()
    took: list[float] = []
    message = bytes(32 + SHAPE.obs_dim * 4)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(address)
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end or len(took) < 2 * WARM:
            dealer.send(message)
            dealer.recv()
            took.append(time.perf_counter() - began)
    process.terminate()
    process.join()
    return took[WARM:]


def plain_echo(port: int) -> None:
    """Send everything back over one plain socket."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := stream.recv(1 << 16):
            stream.sendall(received)


def plain(seconds: float) -> list[float]:
    """Round trips with the size of a question over TCP: the lower bound for any exchange on this machine."""
    took: list[float] = []
    message = bytes(32 + SHAPE.obs_dim * 4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = mp.Process(target=plain_echo, args=(server.getsockname()[1],), daemon=True)
        process.start()
        stream, _ = server.accept()
        with stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end or len(took) < 2 * WARM:
                stream.sendall(message)
                stream.recv(1 << 16)
                took.append(time.perf_counter() - began)
        process.join()
    return took[WARM:]


def local(copies: int, seconds: float) -> list[float]:
    """The same policy in the worker itself."""
    rng, actor = np.random.default_rng(0), NumpyActor(SHAPE)
    obs = rng.standard_normal((copies, SHAPE.obs_dim), dtype=np.float32)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        actor.draw_with_log_prob(actor.outputs(obs), rng)
        took.append(time.perf_counter() - began)
    return took


def remote(
    endpoint: str, over: str, workers: int, copies: int, seconds: float
) -> tuple[list[float], dict[str, Any]]:
    """All times of all workers, and the learner's counts."""
    here, there = mp.Pipe()
    learner = mp.Process(target=answer, args=(endpoint, over, copies, there))
    learner.start()
    here.recv()
    pipes = [mp.Pipe() for _ in range(workers)]
    asking = [
        mp.Process(target=ask, args=(endpoint, over, copies, index, seconds, pipe[1]))
        for index, pipe in enumerate(pipes)
    ]
    for each in asking:
        each.start()
    took = [each for pipe, _ in pipes for each in pipe.recv()]
    for each in asking:
        each.join()
    here.send("")
    tally = here.recv()
    learner.join()
    return took, tally


def line(name: str, took: Sequence[float]) -> tuple[float, float]:
    p50, p95 = (float(each) * 1e6 for each in np.quantile(took, (0.5, 0.95)))
    print(f"  {name:34} p50 {p50:7.0f} us   p95 {p95:7.0f} us   {len(took):7} actions", flush=True)
    return p50, p95


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--copies", type=int, default=1, help="of the environment in each worker")
    parser.add_argument("--over", choices=("ipc", "tcp", "curve"), nargs="+", default=["ipc", "tcp", "curve"])
    options = parser.parse_args(arguments)
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(options.rounds):
        print(f"round {number + 1}", flush=True)
        found.setdefault("in the worker itself", []).append(
            line("in the worker itself", local(options.copies, options.seconds / 2))
        )
        found.setdefault(PLAIN, []).append(line(PLAIN, plain(options.seconds / 2)))
        for over in options.over:
            with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
                is_ipc = over == "ipc"
                address = f"ipc://{folder}/echo" if is_ipc else f"tcp://127.0.0.1:{free_port()}"
                if over != "curve":
                    name = f"{over}, raw echo"
                    found.setdefault(name, []).append(line(name, raw(address, options.seconds / 2)))
                for workers in options.workers:
                    endpoint = f"ipc://{folder}" if is_ipc else f"tcp://127.0.0.1:{free_port()}"
                    took, tally = remote(endpoint, over, workers, options.copies, options.seconds)
                    name = f"{over}, {workers} worker{'s' * (workers > 1)}"
                    found.setdefault(name, []).append(line(name, took))
                    print(f"    {tally['rows'] / max(1, tally['batches']):.2f} rows a batch", flush=True)
    print(f"medians of {options.rounds} rounds; ratios of p50 to the plain socket's in the same round")
    for name, pairs in found.items():
        p50, p95 = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(pair[0] / base[0] for pair, base in zip(pairs, found[PLAIN], strict=True))
        print(f"  {name:34} p50 {p50:7.0f} us   p95 {p95:7.0f} us   x{ratio:5.2f}")
