"""Remote inference while its learner idles and while it learns.

Askers send the observations of 16 environments each and ask again as soon as they have an answer. The learner does
nothing else, or updates SAC from batches of 256, as if it never lacked data. Updates a second show the cost of
answers.

    python -m tests.bench.exchange inference_learning [--askers 12] [--rows 16] [--rounds 3] [--seconds 6]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np

from runtime.base.addresses import parse
from runtime.exchange.inference.process import InferenceProcess, InferenceProgram
from runtime.exchange.inference.wire import QuestionChannel, RemotePolicy, proof_of
from runtime.exchange.policy_store import PolicyStore
from runtime.rl.algos.actor import ActorShape
from runtime.rl.roles.launch_context import THREAD_VARIABLES
from runtime.rl.roles.remote_inference import InferenceSetup, NetworkSetup, shapes_of

CASES = {
    "vector": ActorShape(4, 2, (128, 128)),
    "84x84x4": ActorShape(
        84 * 84 * 4, 2, (128, 128), images=((84, 84, 4),), convolutions=((32, 8, 4), (64, 4, 2), (64, 3, 1))
    ),
}
PROOF = proof_of("bench", "bench")
BATCH = 256


def learn(shape: ActorShape, device: str, commands: Connection, *, is_learning: bool) -> float:
    """Update SAC until the other end sends a message; return the updates a second, 0 if it does not learn."""
    import torch

    from runtime.base.methods import SACConfig
    from runtime.rl.algos.off_policy.sac import SAC
    from runtime.rl.buffers.replay import Batch

    if not is_learning:
        commands.recv()
        return 0.0
    sac, rng = SAC(shape, SACConfig(hidden=shape.hidden, batch_size=BATCH), 1, device), np.random.default_rng(0)
    obs, next_obs = (torch.from_numpy(observations(shape, BATCH, seed)).to(device) for seed in (1, 2))
    action = torch.from_numpy(rng.uniform(-1, 1, (BATCH, shape.act_dim)).astype(np.float32)).to(device)
    reward, terminated = torch.rand(BATCH, device=device), torch.zeros(BATCH, device=device)
    began, updates = time.perf_counter(), 0
    while not commands.poll():
        sac.update(Batch(obs, action, reward, next_obs, terminated))
        updates += 1
    commands.recv()
    return updates / (time.perf_counter() - began)


def serve(case: str, options: argparse.Namespace, folder: str, commands: Connection, learning: bool) -> None:
    """Act as the learner until the other end of `commands` stops it."""
    import torch

    torch.set_num_threads(1)
    shape = CASES[case]
    network = NetworkSetup(shape, options.device, "float32", captures=True, threads=1, max_rows=options.rows)
    policies = PolicyStore(1, "")
    shared = policies.share(shape.size)
    setup = InferenceSetup(os.getpid(), f"ipc://{folder}", None, PROOF, network, (), shared)
    argv = [sys.executable, "-m", "runtime", "inference"]
    inference = InferenceProcess(InferenceProgram(argv, msgspec.json.encode(setup), [shared.descriptor]), print)
    inference.start()
    policies.publish(1, np.zeros(shape.size, np.float32))
    commands.send(learn(shape, options.device, commands, is_learning=learning))
    inference.close()
    policies.close()


def observations(shape: ActorShape, rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal((rows, shape.obs_space.vector), dtype=np.float32)
    if not shape.images:
        return vector
    return shape.obs_space.pack(vector, [rng.integers(0, 256, (rows, *shape.images[0]), dtype=np.uint8)])


def ask(case: str, rows: int, folder: str, index: int, seconds: float, times: Connection) -> None:
    """Act as a worker: ask once, wait for the others, and record the duration of each answer."""
    shape = CASES[case]
    obs, shapes = observations(shape, rows, index), shapes_of(shape, rows)
    taken: list[float] = []
    with QuestionChannel(parse(f"ipc://{folder}"), f"w{index}".encode(), shapes.answer_bytes) as channel:
        remote = RemotePolicy(channel, shapes, PROOF)
        assert remote.outputs(obs, lambda: True) is not None
        times.send("ready")
        times.recv()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            assert remote.outputs(obs, lambda: True) is not None
            taken.append(time.perf_counter() - began)
    times.send(taken)


def measure(case: str, options: argparse.Namespace, *, learning: bool) -> tuple[float, float, float, float]:
    """Return p50 and p95 in milliseconds, rows answered a second, and updates a second."""
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
        here, there = mp.Pipe()
        learner = mp.Process(target=serve, args=(case, options, folder, there, learning))
        learner.start()
        there.close()  # so that a failing learner closes the pipe, instead of an endless wait
        pipes = [mp.Pipe() for _ in range(options.askers)]
        askers = [
            mp.Process(target=ask, args=(case, options.rows, folder, index, options.seconds, pipe[1]))
            for index, pipe in enumerate(pipes)
        ]
        for process in askers:
            process.start()
        for pipe, _ in pipes:
            while not pipe.poll(1):
                if not learner.is_alive():
                    for process in askers:
                        process.kill()
                    raise RuntimeError(f"the learner ended with {learner.exitcode} before it answered")
            pipe.recv()
        for pipe, _ in pipes:
            pipe.send("go")
        taken = np.array([duration for pipe, _ in pipes for duration in pipe.recv()])
        here.send("stop")
        updates = here.recv()
        for process in (*askers, learner):
            process.join()
    p50, p95 = np.quantile(taken, (0.5, 0.95)) * 1e3
    return float(p50), float(p95), len(taken) * options.rows / options.seconds, updates


def rows(arguments: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the title and the figures of each row, medians of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--askers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=16, help="environments of each asker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    options = parser.parse_args(arguments)
    # As in a run, where a launcher limits every process: libraries that take every core they see stall one another.
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")
    mp.set_start_method("spawn", force=True)
    for case in options.cases:
        for learning in (False, True):
            rounds = [measure(case, options, learning=learning) for _ in range(options.rounds)]
            p50, p95, answered, updates = (statistics.median(column) for column in zip(*rounds, strict=True))
            figures = {"p50 ms": p50, "p95 ms": p95, "rows/s": answered}
            state = "beside SAC that learns" if learning else "idle"
            title = f"{case}, {options.askers} askers of {options.rows} rows, {options.device}, {state}"
            yield title, {**figures, "updates/s": updates} if learning else figures


def main(arguments: Sequence[str]) -> None:
    for title, figures in rows(arguments):
        print(f"{title:60} {'   '.join(f'{name} {value:.5g}' for name, value in figures.items())}", flush=True)
