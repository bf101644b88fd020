"""Silence: seconds until a server that is stopped is noticed to be silent, and until it is live again.

An API server, a proxy before the Docker Engine, or the supervisor of a run here is stopped (SIGSTOP) at a random
moment of its watch and goes on (SIGCONT), round after round; what counts is the snapshot of the app's own watch.

    python -m tests.bench.silence local docker [--rounds 50]
    KUBECONFIG=… L2R_CLUSTER_DIR=… python -m tests.bench.silence kubernetes    # nobody else may need that cluster
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from l2rtui.backends.base import Backend
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from runtime.base.docker_endpoint import DockerEndpoint, find_endpoint

DEADLINE_SECONDS = 120.0
PHASE_SECONDS = 8.0
"""A round begins at a random moment of this length: requests that look for silence come every few seconds."""
SLEEPER = RunSpec(Kind.JOB, "sleeper", "sleeper", (SetSpec("job", Role.JOB, ("sleep", "86400")),))
FORWARDING = """
import asyncio, contextlib, sys
async def carry(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
async def serve(reader, writer):
    far_reader, far_writer = await asyncio.open_unix_connection(sys.argv[2])
    await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
async def main():
    async with await asyncio.start_unix_server(serve, sys.argv[1]) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@dataclass(frozen=True)
class Case:
    """What is stopped, and how the snapshot shows it."""

    backend: Backend
    pid: int
    is_silent: Callable[[ClusterSnapshot], bool]


def is_answered_by_nobody(snapshot: ClusterSnapshot) -> bool:
    return snapshot.silent_since is not None


@asynccontextmanager
async def kubernetes() -> AsyncIterator[Case]:
    """Stop the API server of the test cluster."""
    pid = int((Path(os.environ["L2R_CLUSTER_DIR"]) / "pid" / "apiserver").read_text())
    assert "kube-apiserver" in psutil.Process(pid).cmdline()[0]
    backend = KubernetesBackend(Settings(), os.environ["KUBECONFIG"])
    try:
        yield Case(backend, pid, is_answered_by_nobody)
    finally:
        await backend.close()


@asynccontextmanager
async def docker() -> AsyncIterator[Case]:
    """Stop a proxy before the Engine, not the Engine: others use it."""
    engine = find_endpoint().socket_path
    assert engine, "the Engine of this machine, by its socket"
    with tempfile.TemporaryDirectory(prefix="l2r-silence-") as folder:
        path = Path(folder) / "engine.sock"
        with subprocess.Popen([sys.executable, "-c", FORWARDING, str(path), engine]) as proxy:
            while not path.exists():
                await asyncio.sleep(0.05)
            backend = DockerBackend(Settings(), endpoint=DockerEndpoint(f"unix://{path}"))
            try:
                yield Case(backend, proxy.pid, is_answered_by_nobody)
            finally:
                await backend.close()
                proxy.kill()


@asynccontextmanager
async def local() -> AsyncIterator[Case]:
    """Stop the supervisor of a run."""
    with tempfile.TemporaryDirectory(prefix="l2r-silence-") as folder:
        backend = LocalBackend(Settings(), state=Path(folder) / "local")
        snapshot = await backend.snapshot()
        seats = place([SLEEPER], snapshot.ledger)
        plan = plan_launch([SLEEPER], seats, snapshot.nodes, owner="bench", uids=[uuid.uuid4().hex])
        async for done in backend.launch(plan):
            assert not done.error, done
        (pod,) = (await backend.snapshot()).pods.values()
        supervisor = psutil.Process(pod.pid).parent()
        assert supervisor is not None

        def is_silent(snapshot: ClusterSnapshot) -> bool:
            run = snapshot.run_named(SLEEPER.name)
            return run is not None and run.silent_since is not None

        try:
            yield Case(backend, supervisor.pid, is_silent)
        finally:
            run = (await backend.snapshot()).run_named(SLEEPER.name)
            assert run is not None
            _ = [item async for item in backend.destroy(run)]
            await backend.close()


async def rounds(case: Case, count: int, chance: random.Random) -> tuple[list[float], list[float]]:
    """Return the seconds until each silence was noticed, and until each was over."""
    snapshot = EMPTY_SNAPSHOT

    async def follow() -> None:
        nonlocal snapshot
        async with aclosing(case.backend.watch()) as batches:
            async for batch in batches:
                snapshot = apply(snapshot, batch)

    async def until(is_silent: bool) -> float:
        began = time.monotonic()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while case.is_silent(snapshot) is not is_silent:
                if watch.done():
                    watch.result()
                await asyncio.sleep(0.02)
        return time.monotonic() - began

    watch = asyncio.ensure_future(follow())
    noticed, over = [], []
    try:
        while not snapshot.nodes:
            await asyncio.sleep(0.05)
        for number in range(count):
            await asyncio.sleep(chance.uniform(0.0, PHASE_SECONDS))
            os.kill(case.pid, signal.SIGSTOP)
            try:
                noticed.append(await until(True))
            finally:
                os.kill(case.pid, signal.SIGCONT)
            over.append(await until(False))
            print(
                f"  {number + 1}: noticed after {noticed[-1]:.1f} s, over after {over[-1]:.1f} s", file=sys.stderr
            )
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    return noticed, over


def row(label: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle, late = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{label:<26} p50 {middle:5.1f} s   p95 {late:5.1f} s   max {ordered[-1]:5.1f} s"


async def measure(name: str, count: int, seed: int) -> None:
    async with CASES[name]() as case:
        noticed, over = await rounds(case, count, random.Random(seed))
    print(row(f"{name}, {count} rounds: noticed", noticed))
    print(row("over after it goes on", over), flush=True)


CASES = {"local": local, "docker": docker, "kubernetes": kubernetes}


def main(words: list[str]) -> None:
    """Print percentiles for each that is named; without names of what needs no cluster."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.silence", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], default=["local"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(words)
    for name in options.names:
        asyncio.run(measure(name, options.rounds, options.seed))


if __name__ == "__main__":
    main(sys.argv[1:])
