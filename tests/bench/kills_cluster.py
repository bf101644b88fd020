"""Random kills on a cluster's real node: the promises of tests/bench/kills.py, with pods and the API server.

    KUBECONFIG=… python -m tests.bench.kills_cluster [--strikes 100] [--seed 1] [--only kill server]

Needs root on the machine of the node, whose pods are containers of Docker, and the image of the `cluster` tests.
A random process in a random container is killed, or given no more memory or descriptors; one that trains is
stopped; a pod is deleted by force; the volume is full; or the API server stops for some seconds. A receipt is
compared with the objects that kubectl lists and the containers that Docker lists.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from tests.bench import kills
from tests.bench.kills import Printing, PromiseError, Training, World
from tests.cluster.conftest import NODE_IMAGE, kubectl, new_namespace
from tests.cluster.kinds import NODE, claim

POD: Final = f"""\
image: {NODE_IMAGE}
pod:
  binding: cpu
  node_selector: {{{{kubernetes.io/hostname: {NODE}}}}}
  mounts: [{{{{path: /l2r, claim: {{name}}}}}}]
"""
TRAIN: Final = kills.TRAIN + POD
LOUD: Final = """\
kind: job
name: {name}
job: {{slots: 0, restart: Always, grace_seconds: 2, command: [python3, -S, -u, /l2r/printer.py]}}
"""
KINDS: Final = "pods,services,jobs,replicasets,statefulsets,configmaps,secrets,leases,networkpolicies"
FROZEN_SECONDS: Final = 12.0
GONE_SECONDS: Final = 60.0
"""Time for the kubelet to end the containers of pods that were deleted by force."""


class PodTraining(Training):
    """PPO whose learner and workers are pods."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world, TRAIN)
        assert isinstance(world, Cluster)
        self._namespace = world.namespace

    def has_gone_on(self, since: float) -> bool:
        # A learner whose volume is full goes on; its records are in its log.
        return super().has_gone_on(since) or self._are_newer(self._logged(), since)

    def _logged(self) -> list[dict[str, Any]]:
        selector = f"l2rtui.io/run={self.name},l2rtui.io/role=learner"
        text = kubectl("-n", self._namespace, "logs", "-l", selector, "--tail=40", check=False)
        return self._read(text.encode())


class PodPrinting(Printing):
    """A pod that prints 20 kB lines; its beats are on its volume."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.mark = name, ""
        folder = world.runs / name / "data"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "printer.py").write_text(kills.PRINTER.format(beats="/l2r/beats"))
        self._beats = folder / "beats"
        self.spec = world.home / f"{name}.yaml"
        self.spec.write_text((LOUD + POD).format(name=name))


class Cluster(World):
    """A namespace of its own; the volumes of its runs are folders on a small disk."""

    def __init__(self, home: Path, namespace: str, *, seed: int, within: float) -> None:
        super().__init__(home, seed=seed, within=within)
        self.namespace = namespace
        self.environ |= {"L2RTUI_NAMESPACES": namespace, "KUBECONFIG": os.environ["KUBECONFIG"]}
        self.kinds = (PodTraining, PodPrinting)
        self._claims = contextlib.ExitStack()

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "l2rtui", "--backend", "kubernetes", *words]

    def launch(self, kind: type[Training | Printing]) -> None:
        name = f"{kind.__name__.lower()}-{self._count + 1}"
        folder = self.runs / name / "data"
        folder.mkdir(parents=True, exist_ok=True)
        self._claims.enter_context(claim(self.namespace, name, folder))
        super().launch(kind)

    def look(self, *words: str) -> Any:
        done = self.command(*words, "-o", "json")
        if done.returncode and self._is_silence(done.stderr):  # the commands say it, and rows are not known
            return [
                {"run": run.name, "level": "bad", "reason": "no answer of the API server"} for run in self.living
            ]
        if done.returncode:
            raise PromiseError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    @staticmethod
    def _is_silence(text: str) -> bool:
        return any(words in text for words in ("No answer", "did not answer"))

    def processes(self, run: Training | Printing | None = None) -> list[psutil.Process]:
        found = []
        for container in self._containers(run):
            done = subprocess.run(
                ["docker", "inspect", "-f", "{{.State.Pid}}", container],
                capture_output=True,
                text=True,
                check=False,
            )
            with contextlib.suppress(psutil.Error, ValueError):
                process = psutil.Process(int(done.stdout))
                found += [process, *process.children(recursive=True)]
        return [process for process in found if process.pid and process.is_running()]

    def _containers(self, run: Training | Printing | None = None) -> list[str]:
        argv = ["docker", "ps", "-q", "--filter", f"label=io.kubernetes.pod.namespace={self.namespace}"]
        form = '{{.ID}} {{.Label "io.kubernetes.container.name"}} {{.Label "io.kubernetes.pod.name"}}'
        done = subprocess.run([*argv[:2], *argv[3:], "--format", form], capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()]
        return [row[0] for row in rows if row[1] != "POD" and (run is None or row[2].startswith(f"{run.name}-"))]

    def left_of(self, run: Training | Printing) -> list[str]:
        selector = f"l2rtui.io/run={run.name}"
        objects = kubectl("-n", self.namespace, "get", KINDS, "-l", selector, "-o", "name").split()
        end = time.monotonic() + GONE_SECONDS
        while (containers := self._containers(run)) and time.monotonic() < end:
            time.sleep(1.0)
        return [*objects, *(f"container {container}" for container in containers)]

    def results_of(self, run: Training | Printing, _receipt: dict[str, Any]) -> Path | None:
        return self.runs / run.name / "data"


@contextlib.contextmanager
def stop(world: World, victim: psutil.Process) -> Iterator[None]:
    """Stop a process of the training: the API server does not tell that the program of a job is stopped."""
    training = next((run for run in world.living if isinstance(run, Training)), None)
    known = world.processes(training) if training else []
    with kills.stop(world, victim if victim in known or not known else world.random.choice(known)):
        yield


@contextlib.contextmanager
def delete(world: World, victim: psutil.Process) -> Iterator[None]:
    """Delete the pod of a process by force."""
    assert isinstance(world, Cluster)
    pod = victim.environ().get("HOSTNAME", "")
    kubectl("-n", world.namespace, "delete", "pod", pod, "--grace-period=0", "--force", check=False)
    yield


def limit(victim: psutil.Process, *words: str) -> str:
    """Run prlimit on a process as its own user: other users' limits need CAP_SYS_RESOURCE."""
    done = subprocess.run(
        ["prlimit", "--pid", str(victim.pid), *words],
        user=victim.uids().real,
        group=victim.gids().real,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


@contextlib.contextmanager
def lowered(victim: psutil.Process, name: str, value: int) -> Iterator[None]:
    """Lower a soft limit of a process, and restore it."""
    earlier = limit(victim, f"--{name}", "--output", "SOFT", "--noheadings", "--raw")
    limit(victim, f"--{name}={value}:")
    try:
        yield
    finally:
        with contextlib.suppress(psutil.Error):
            limit(victim, f"--{name}={earlier}:")


@contextlib.contextmanager
def starve_of_descriptors(_world: World, victim: psutil.Process) -> Iterator[None]:
    with lowered(victim, "nofile", 3):
        yield


@contextlib.contextmanager
def starve_of_memory(_world: World, victim: psutil.Process) -> Iterator[None]:
    with lowered(victim, "as", victim.memory_info().vms):
        yield


@contextlib.contextmanager
def freeze_server(_world: World, _victim: psutil.Process) -> Iterator[None]:
    """Stop the API server for some seconds, whatever is done meanwhile."""
    (server,) = [process for process in psutil.process_iter() if process.name() == "kube-apiserver"]
    server.suspend()
    thaw = threading.Timer(FROZEN_SECONDS, server.resume)
    thaw.start()
    try:
        yield
    finally:
        thaw.join()


FAULTS: Final[kills.Faults] = {
    **kills.FAULTS,
    **kills.DISK,
    "stop": stop,
    "memory": starve_of_memory,
    "descriptors": starve_of_descriptors,
    "delete": delete,
    "server": freeze_server,
}


def main(arguments: list[str]) -> int:
    """Strike in a namespace of its own."""
    options: argparse.Namespace = kills.arguments_of("tests.bench.kills_cluster", __doc__, FAULTS, arguments)
    with contextlib.ExitStack() as stack:
        namespace = stack.enter_context(new_namespace())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="l2r-kills-")))
        (home / "disk").mkdir()
        size = f"size={kills.DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(home / "disk")], check=True)
        stack.callback(subprocess.run, ["umount", "-l", str(home / "disk")], check=False)
        for folder in (home, home / "disk"):
            folder.chmod(0o777)  # the pods run as another user
        world = Cluster(home, namespace, seed=options.seed, within=options.within)
        return kills.siege(world, options, options.only, FAULTS)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
