"""Launching on a cluster: twelve seeds of the lab's YAML against `kubectl apply`, and races for a last slot.

Both make the same objects in a namespace of their own, turn by turn; wall time of the whole command, and until
the last of 48 pods runs. The races count launches that won the same slot: anything but one winner is a failure.

    KUBECONFIG=… python -m tests.bench.kubernetes_launch [--rounds 3] [--races 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import aclosing
from pathlib import Path

import yaml

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Placement, Seat
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError

LAB = Path(__file__).parents[2] / "manifests" / "worker-pods.yaml"
SEEDS, PODS = "0-11", 48
LANES = 6
"""Races under way at the same time."""


def kubectl(*words: str, stdin: str | None = None) -> str:
    """Run kubectl; its output."""
    return subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True, check=True).stdout


def l2rtui(namespace: str, *words: str) -> str:
    """Run l2rtui on the cluster; its output."""
    env = {**os.environ, "L2RTUI_BACKEND": "kubernetes", "L2RTUI_NAMESPACES": namespace}
    argv = [sys.executable, "-m", "l2rtui", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


def until_running(namespace: str) -> None:
    """Wait until all pods run."""
    while True:
        found = kubectl("-n", namespace, "get", "pods", "--field-selector=status.phase=Running", "-o", "name")
        if len(found.split()) == PODS:
            return
        time.sleep(0.1)


def launches(rounds: int, yaml_file: str) -> None:
    """Time both ways of making the same objects."""
    times: dict[str, list[tuple[float, float]]] = {"l2rtui launch": [], "kubectl apply": []}
    for number in range(rounds):
        for how, found in times.items():
            namespace = f"b-launch-{number}-{'l' if how.startswith('l') else 'k'}"
            kubectl("create", "namespace", namespace)
            try:
                words, text = planned(namespace, yaml_file)
                start = time.perf_counter()
                if how.startswith("l"):
                    l2rtui(namespace, "launch", *words, "--yes")
                else:
                    kubectl("apply", "-f", "-", stdin=text)
                command = time.perf_counter() - start
                until_running(namespace)
                found.append((command, time.perf_counter() - start))
            finally:
                kubectl("delete", "namespace", namespace)
    for how, found in times.items():
        command, running = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{how:14} {command:6.2f} s, 48 pods Running after {running:6.2f} s")
    ours, theirs = (statistics.median(one[0] for one in found) for found in times.values())
    print(f"launch / apply  {ours / theirs:.2f}")


def planned(namespace: str, yaml_file: str) -> tuple[tuple[str, ...], str]:
    """The words of the launch and its objects; others may be using the cluster meanwhile, so more than one try."""
    for _ in range(4):
        words = ("-f", yaml_file, "--seeds", SEEDS, "--on", free_gpus(namespace))
        with contextlib.suppress(subprocess.CalledProcessError):
            return words, l2rtui(namespace, "plan", *words, "-o", "yaml")
    raise SystemExit("There are no twelve GPUs of which every slot stays free.")


def free_gpus(namespace: str) -> str:
    """Twelve GPUs of which every slot is free."""
    free: dict[str, int] = {}
    for slot in json.loads(l2rtui(namespace, "slots", "-o", "json")):
        key = f"{slot['node']}/{slot['gpu']}"
        free[key] = free.get(key, 0) + (slot["state"] == "free" and slot["node"] != "phortx0")
    return ",".join([key for key, count in free.items() if count == 4][:12])


class Races:
    """Races of two people for one slot each, several at the same time on slots of their own."""

    def __init__(self, people: list[KubernetesBackend], namespace: str) -> None:
        self.winners: list[int] = []
        self._people = people
        self._namespace = namespace
        self._free: list[SlotId] = []
        self._look = asyncio.Lock()
        self._snapshot = EMPTY_SNAPSHOT
        self._begun = 0

    async def run(self, count: int, seconds: float) -> None:
        """Go on until there were so many, or the time is over."""
        until = time.perf_counter() + seconds

        async def lane() -> None:
            while self._begun < count and time.perf_counter() < until:
                self._begun += 1
                await self._race(self._begun, await self._slot())

        await asyncio.gather(*(lane() for _ in range(LANES)))

    async def _slot(self) -> SlotId:
        """A free slot; a look for every two dozen races, since each launch looks for itself as well."""
        async with self._look:
            while not self._free:
                self._snapshot = await self._people[0].snapshot()
                self._free = [one for one in self._snapshot.ledger.free() if one.node != "phortx0"][::-1][:24]
            return self._free.pop()

    async def _race(self, number: int, slot: SlotId) -> None:
        names = [f"r{number}-{who}" for who in range(len(self._people))]
        pairs = zip(self._people, names, strict=True)
        won = await asyncio.gather(*(self._launch(person, name, slot) for person, name in pairs))
        api = await self._people[0].api()
        sets = await api.list("ReplicaSet", self._namespace, labels=f"{labels.RUN} in ({','.join(names)})")
        self.winners.append(max(len(sets), sum(won)))
        for made in sets:
            found = made["metadata"]["labels"]
            name = labels.run_object(found[labels.RUN])
            await api.delete("ConfigMap", self._namespace, name, propagation="Background")
            await slot_leases.SlotLeases(api, self._namespace).release(
                [found[labels.RUN_ID]], [(slot.node, slot.gpu)]
            )

    async def _launch(self, person: KubernetesBackend, name: str, slot: SlotId) -> bool:
        one = SetSpec("w", Role.WORKER, ("sleep", "600"), restart=RestartPolicy.ALWAYS)
        spec = RunSpec(Kind.JOB, name, name, (one,), image="any:1")
        placed = Placement((Seat(name, "w", 0, (slot,)),))
        plan = plan_launch([spec], placed, self._snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])
        try:
            async with aclosing(person.launch(plan)) as steps:
                return all([not done.error async for done in steps])
        except RefusedError:
            return False


async def races(count: int, namespace: str, seconds: float) -> None:
    """Let two people launch on one slot at once, again and again."""
    people = [KubernetesBackend(Settings(namespaces=(namespace,))) for _ in range(2)]
    work, start = Races(people, namespace), time.perf_counter()
    await work.run(count, seconds)
    for person in people:
        await person.close()
    over, nobody = sum(one > 1 for one in work.winners), sum(one == 0 for one in work.winners)
    spent = time.perf_counter() - start
    number = len(work.winners)
    print(f"{number} races for a last slot in {spent:.0f} s: {over} over-commits, {nobody} without a winner")


def main(arguments: list[str]) -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="end the races after so long")
    options = parser.parse_args(arguments)
    if options.rounds:
        document = yaml.safe_load(LAB.read_text())
        pod = document["spec"]["template"]["spec"]
        pod.pop("volumes")  # what a claim waits for is not what is measured
        pod["containers"][0].pop("volumeMounts")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(document, file)
            file.flush()
            launches(options.rounds, file.name)
    if options.races:
        namespace = f"b-races-{uuid.uuid4().hex[:6]}"
        kubectl("create", "namespace", namespace)
        try:
            asyncio.run(races(options.races, namespace, options.seconds))
        finally:
            kubectl("delete", "namespace", namespace, "--wait=false")


if __name__ == "__main__":
    main(sys.argv[1:])
