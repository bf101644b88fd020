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

from l2rtui.backends.kubernetes import labels, leases
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.placement import Placement, Seat
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError

LAB = Path(__file__).parents[2] / "manifests" / "worker-pods.yaml"
SEEDS, PODS = "0-11", 48


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


async def races(count: int, namespace: str) -> None:
    """Let two people launch on one slot at once, again and again."""
    people = [KubernetesBackend(Settings(namespaces=(namespace,))) for _ in range(2)]
    winners: list[int] = []
    start = time.perf_counter()
    for number in range(count):
        snapshot = await people[0].snapshot()
        slot = next(one for one in snapshot.ledger.free() if one.node != "phortx0")

        async def one(person: KubernetesBackend, name: str) -> bool:
            each = SetSpec("w", Role.WORKER, ("sleep", "600"), restart=RestartPolicy.ALWAYS)
            spec = RunSpec(Kind.JOB, name, name, (each,), image="any:1")
            placed = Placement((Seat(name, "w", 0, (slot,)),))  # noqa: B023  (used within the round)
            plan = plan_launch([spec], placed, snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])  # noqa: B023
            try:
                async with aclosing(person.launch(plan)) as steps:
                    return all([not done.error async for done in steps])
            except RefusedError:
                return False

        await asyncio.gather(*(one(person, f"r{number}-{who}") for who, person in enumerate(people)))
        api = await people[0].api()
        sets = await api.list("ReplicaSet", namespace, labels=f"{labels.RUN} in (r{number}-0,r{number}-1)")
        winners.append(len(sets))
        for made in sets:
            found = made["metadata"]["labels"]
            await api.delete("ConfigMap", namespace, labels.run_object(found[labels.RUN]), propagation="Background")
            await leases.release(api, namespace, [found[labels.RUN_ID]], [(slot.node, slot.gpu)])
    for person in people:
        await person.close()
    over, nobody = sum(one > 1 for one in winners), sum(one == 0 for one in winners)
    seconds = time.perf_counter() - start
    print(f"{count} races for a last slot in {seconds:.0f} s: {over} over-commits, {nobody} without a winner")


def main(arguments: list[str]) -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--races", type=int, default=1000)
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
        namespace = "b-races"
        kubectl("create", "namespace", namespace)
        try:
            asyncio.run(races(options.races, namespace))
        finally:
            kubectl("delete", "namespace", namespace)


if __name__ == "__main__":
    main(sys.argv[1:])
