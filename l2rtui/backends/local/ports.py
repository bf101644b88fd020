"""TCP ports of this machine for processes that others find by name: chosen at launch, kept for the run."""

from __future__ import annotations

import secrets
import socket

from l2rtui.backends.local import state_files
from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.peer_env import LOOPBACK
from l2rtui.backends.local.records import RunRecord
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import pod_name

_PORTS = range(20_000, 30_000)
"""Below the ephemeral ports (from 32768 on Linux), which the system gives to any program."""


def in_use(root: StateFolder) -> set[int]:
    """Return the ports of other runs, whether or not a process listens there now; call it with the lock held."""
    used: set[int] = set()
    # Includes ports whose process is down: after its restart peers must find it at the same port.
    for path in root.runs.glob("*/run.json"):
        if record := state_files.read_valid(path, RunRecord):  # otherwise removed, or reported elsewhere
            used.update(record.ports.values())
    return used


def choose(run: RunPlan, used: set[int]) -> dict[str, int]:
    """Choose a port for each replica that others find by name; the key is the name of its pod.

    Raises:
        OSError: No port is free.
    """
    chosen: dict[str, int] = {}
    for spec in run.spec.sets:
        for index in range(spec.replicas if spec.port else 0):
            chosen[pod_name(run.spec.name, spec.name, index)] = _free_port(used | set(chosen.values()))
    return chosen


def _free_port(used: set[int]) -> int:
    # From a random start: a concurrent launch of another state folder then rarely tries the same port.
    first = secrets.randbelow(len(_PORTS))
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        if port in used:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:  # in use
                continue
        return port
    raise OSError(f"no TCP port from {_PORTS.start} to {_PORTS.stop - 1} is free")
