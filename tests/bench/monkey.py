"""Ten thousand random keys on a live app, seeded: no traceback, and nothing is created or deleted without a yes.

The in-memory cluster has faults during the test; on this machine a run's processes are real; and on a real cluster
(KUBECONFIG's, in a separate namespace) connections are cut, refused and frozen, and pods are deleted. A key that
could answer a question with yes is never pressed on one, so no change can have been confirmed.

    python -m tests.bench monkey
    python -m tests.bench.monkey --keys 2000 --seed 3 --backend kubernetes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from l2rtui.backends.base import Backend
from l2rtui.config import Settings, user_name

if TYPE_CHECKING:
    from tests.cluster.faults import Proxy

SIZES = ((124, 34), (80, 24), (160, 45))
SPEC = """\
kind: learner-workers
name: {name}
learner: {{slots: 0, command: [sh, -c, 'echo ready; exec sleep 3600']}}
workers: [{{name: w, replicas: 2, restart: Always, command: [sh, -c, 'while :; do echo turn; sleep 0.2; done']}}]
"""


def main(arguments: list[str]) -> int:
    """Press keys and print the results; return 1 on a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000, help="in all, shared by the backends")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--backend", choices=("demo", "local", "both", "kubernetes"), default="both")
    options = parser.parse_args(arguments)
    backends = ["demo", "local"] if options.backend == "both" else [options.backend]
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"XDG_STATE_HOME": f"{home}/state", "XDG_CONFIG_HOME": f"{home}/config"}
        os.environ |= {"TEXTUAL_ANIMATIONS": "none", "EDITOR": "true", "VISUAL": "true"}
        os.environ["DOCKER_HOST"] = f"unix://{home}/none.sock"  # `b` in the list of images builds one
        (Path(home) / "manifests").mkdir()
        (Path(home) / "manifests" / "one.yaml").write_text(SPEC.format(name="one"), "utf-8")
        os.chdir(home)
        problems = [
            asyncio.run(round_on(name, options.keys // len(backends), options.seed + number, Path(home)))
            for number, name in enumerate(backends)
        ]
    return int(any(problems))


async def round_on(name: str, count: int, seed: int, home: Path) -> str:
    """Press keys on one backend; return the problem, or an empty text."""
    settings = Settings(backend=name, notify=False)
    if name != "kubernetes":
        return await press(settings, count, seed, None)
    from tests.cluster.conftest import IMAGE, kubectl
    from tests.cluster.faults import proxied

    namespace, direct = f"monkey-{uuid.uuid4().hex[:8]}", os.environ["KUBECONFIG"]
    settings = replace(settings, namespaces=(namespace,), image=IMAGE)
    await asyncio.to_thread(kubectl, "create", "namespace", namespace)
    try:
        async with proxied(direct, home) as (proxy, through):
            os.environ["KUBECONFIG"] = through
            return await press(settings, count, seed, Trouble(proxy, namespace, direct))
    finally:
        os.environ["KUBECONFIG"] = direct
        await asyncio.to_thread(kubectl, "delete", "namespace", namespace, "--wait=false")


class Trouble:
    """Faults on a real cluster, one at a time."""

    def __init__(self, proxy: Proxy, namespace: str, kubeconfig: str) -> None:
        self._proxy = proxy
        self._kubectl = ("kubectl", "--kubeconfig", kubeconfig, "-n", namespace)
        self._now: asyncio.Task[None] | None = None

    def upset(self, chance: random.Random) -> None:
        """Start the next fault, if the last one has ended."""
        if self._now is None or self._now.done():
            work = chance.choice((self._cut, self._refuse, self._freeze, self._delete))
            self._now = asyncio.create_task(work())

    async def end(self) -> None:
        """Wait until all faults have ended."""
        if self._now is not None:
            await self._now

    async def books(self) -> list[tuple[object, ...]]:
        """Objects seen by kubectl that no key may have changed; pods come and go with the faults."""
        kinds = "replicasets,jobs,configmaps,secrets,services,leases"
        items = json.loads(await self._run("get", kinds, "-o", "json"))["items"]
        return sorted(
            (one["kind"], one["metadata"]["name"], one["metadata"]["uid"], str(one.get("spec", {}).get("replicas")))
            for one in items
        )

    async def _cut(self) -> None:
        self._proxy.cut()

    async def _refuse(self) -> None:
        await self._proxy.refuse()
        await asyncio.sleep(1.0)
        await self._proxy.open()

    async def _freeze(self) -> None:
        self._proxy.freeze()
        await asyncio.sleep(1.0)
        self._proxy.thaw()

    async def _delete(self) -> None:
        names = (await self._run("get", "pods", "-o", "name")).split()
        if names:
            await self._run("delete", names[0], "--grace-period=1", "--wait=false")

    async def _run(self, *words: str) -> str:
        done = await asyncio.create_subprocess_exec(*self._kubectl, *words, stdout=subprocess.PIPE)
        told, _ = await done.communicate()
        return told.decode()


async def press(settings: Settings, count: int, seed: int, trouble: Trouble | None) -> str:
    """Press keys; return the problem, or an empty text."""
    from l2rtui.backends.registry import make_backend
    from l2rtui.ui.app import L2RApp
    from tests.l2rtui.ui.monkey import Monkey

    name = settings.backend
    backend = make_backend(name, settings)
    if name != "demo":
        await launch(backend)
    before = await trouble.books() if trouble else await books(backend)
    chance, began = random.Random(seed), time.monotonic()
    problem, monkey = "", Monkey(chance)
    monkey.guard(backend)
    app = L2RApp(settings, lambda: backend)
    monkey.keep(app)
    app.ctx.cancel_seconds = 0.0
    async with app.run_test(size=chance.choice(SIZES)) as pilot:
        while not app.cluster.health.is_connected:
            await pilot.pause(0.02)
        for number in range(count):
            await monkey.press(app, pilot)
            if number % 500 == 499:
                await pilot.resize_terminal(*chance.choice(SIZES))
            if number % 10 == 0 and name == "demo":
                monkey.upset(backend)
            if number % 20 == 0 and trouble is not None:
                trouble.upset(chance)
            if problem := monkey.problem(app):
                break
        if name == "demo":
            backend.outage = ""  # type: ignore[attr-defined]
    if trouble is not None:
        await trouble.end()
    after = await trouble.books() if trouble else await books(make_backend(name, settings))
    if not problem and name != "demo" and after != before:
        problem = f"the books differ: {before} and {after}"
    if name != "demo":
        await end(make_backend(name, settings))
    seconds = time.monotonic() - began
    rate = f"{monkey.pressed:,} keys in {seconds:.0f} s on {name}, seed {seed}"
    print(f"{rate}: {problem or 'no traceback, nothing created or deleted'}", flush=True)
    if problem:
        print(f"the last keys: {' '.join(monkey.last)}")
    return problem


async def launch(backend: Backend) -> None:
    """Start a run whose processes are real."""
    from l2rtui.services import launcher
    from l2rtui.services.spec import spec_file

    Path("mine.yaml").write_text(SPEC.format(name="mine"), "utf-8")
    prepared = await launcher.prepare(backend, spec_file.load("mine.yaml"))
    async for _ in launcher.launch(backend, prepared):
        pass
    await launcher.wait_running(backend, ["mine"], 60.0)


async def books(backend: Backend) -> list[tuple[object, ...]]:
    """Runs with their sets, and pods with their processes: the state that no key may have changed."""
    snapshot = await backend.snapshot()
    runs = [(run.uid, run.name, *((one.name, one.replicas) for one in run.sets)) for run in snapshot.runs.values()]
    pods = [
        (pod.uid, pod.pid, pod.restarts) for pod in snapshot.pods.values() if pod.owner == user_name() and pod.run
    ]
    return sorted(map(tuple, [*runs, *pods]), key=str)


async def end(backend: Backend) -> None:
    """Destroy the run."""
    from l2rtui.services import launcher

    for run in (await backend.snapshot()).runs.values():
        async for _ in launcher.destroy(backend, run, grace_seconds=1.0, purge=True):
            pass
    await backend.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
