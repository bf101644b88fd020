"""Real simulators on separate ports, and a count of leftover processes by their environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.sim.launchers.simulator_process import Addresses, PortLease
from tests.tiers import starts_processes

ROOT = Path(__file__).parents[3]


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait until the condition returns a true value and return it."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return result


def carrying(text: str) -> list[int]:
    """Pids of living processes whose environment contains a text, except ourselves, as reported by the kernel."""
    pids = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state not in "ZX" and text.encode() in (folder / "environ").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


class Simulators:
    """Starts reference simulators by their command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.leases: list[PortLease] = []

    def start(self, *arguments: str) -> dict[str, int]:
        """Start one and return its ports once it reports that it listens."""
        lease = PortLease.acquire()
        self.leases.append(lease)
        ports = Addresses.of(lease.ports).ports
        options = {"port": "control", "action-port": "action", "pose-port": "pose", "camera-port": "camera"}
        argv = [word for option, name in options.items() for word in (f"--{option}", str(ports[name]))]
        log = self.folder / f"simulator-{len(self.started)}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "runtime", "simulator", *argv, *arguments]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        self.started.append(process)
        eventually(lambda: "control at port" in log.read_text() or process.poll() is not None, "a start")
        assert process.poll() is None, log.read_text()
        return dict(ports)

    def close(self) -> None:
        """End them all."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            assert process.wait(60) == 0
        for lease in self.leases:
            lease.close()


@pytest.fixture
@starts_processes
def simulators(tmp_path: Path) -> Iterator[Simulators]:
    started = Simulators(tmp_path)
    yield started
    started.close()
