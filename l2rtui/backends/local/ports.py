"""TCP ports of this machine for processes that others find by name: chosen at the launch, kept for the run."""

from __future__ import annotations

import secrets
import socket

from l2rtui.backends.local import files
from l2rtui.backends.local.layout import Root
from l2rtui.backends.local.peers import LOOPBACK
from l2rtui.backends.local.records import RunRecord
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import pod_name

_PORTS = range(20_000, 30_000)
"""Below what systems give out by themselves (32768 on Linux), so that nobody gets one of these by chance."""


def in_use(root: Root) -> set[int]:
    """Ports that were chosen for other runs, whether or not a process listens there now; with the lock held."""
    found: set[int] = set()
    for path in root.runs.glob("*/run.json"):
        try:
            found.update(files.read(path, RunRecord).ports.values())
        except (OSError, files.CorruptError):  # being removed, or not ours to judge here
            continue
    return found


def choose(run: RunPlan, taken: set[int]) -> dict[str, int]:
    """A port for each replica that others find by name, by name of its pod.

    Raises:
        OSError: there is no free port.
    """
    chosen: dict[str, int] = {}
    for one in run.spec.sets:
        for index in range(one.replicas if one.port else 0):
            chosen[pod_name(run.spec.name, one.name, index)] = _free_port(taken | set(chosen.values()))
    return chosen


def _free_port(taken: set[int]) -> int:
    first = secrets.randbelow(len(_PORTS))
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        if port in taken:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
            try:
                one.bind((LOOPBACK, port))
            except OSError:  # somebody listens there
                continue
        return port
    raise OSError(f"no TCP port from {_PORTS.start} to {_PORTS.stop - 1} is free")
