"""Objects of a run that are no descendants of its supervisor: containers, processes on its GPUs, and processes that
ssh or systemd-run started.

A daemon starts them for a process of the run, so neither tags nor the kernel show whose they are. A container with
the run's tags among its variables is the run's, and is removed with it. Others that started while the run existed
are only named: they may be anybody's. So are processes in a login of this machine on itself, and in a transient
unit of systemd.

The Docker Engine is asked directly: each destroy pays for this, and the ``docker`` package takes 0.3 s to import.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from l2rtui.backends.common.nvml import GpuReport
from l2rtui.backends.local import process_scan
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.process_scan import ENV_FOLDER
from l2rtui.domain.receipt import Leftover
from runtime.base.bounded_json import loads
from runtime.base.contract import ENV_RUN_ID

_ENGINE_SECONDS = 10.0
"""A busy Engine takes seconds for an answer."""
_MAX_ANSWER_BYTES = 8 << 20
_LIVING = ("created", "running", "restarting", "paused")
"""States of a container that runs or may start. Its process runs some time before the Engine calls it running."""
_MAX_CONTAINERS = 50
"""Number of containers whose variables are read; the newest of those that run come first."""
_OF_OTHERS = ("l2rtui", "io.kubernetes.")
"""Parts of the labels of containers that a run's processes did not start: those of the docker backend, simulators,
and pods of a kubelet.
"""
_CLOCK_SECONDS = 1.0
"""Difference between the clocks of two sources for the time of a start."""
_FREE_SECONDS = 3.0
"""Longest wait until the driver has freed the GPU of a process that has ended."""
_POLL_SECONDS = 0.1
_TRANSIENT_UNIT = re.compile(r"/run-[^/\n]+\.(?:service|scope)\b")
"""Control group of what `systemd-run` starts, in /proc/PID/cgroup."""


# --- containers ------------------------------------------------------------------------------------------------
class Containers(Struct, frozen=True):
    """Containers of a run.

    Attributes:
        is_asked: An Engine of this machine answered. ended: Number of containers with the run's tags, now removed.
        left: Those that could not be removed. possible: Containers that may belong to the run.
    """

    is_asked: bool = False
    ended: int = 0
    left: tuple[Leftover, ...] = ()
    possible: tuple[Leftover, ...] = ()


def end_containers(folder: RunFolder, uid: str, since: float) -> Containers:
    """Remove the containers of a run, and find those that may be its own.

    Args:
        since: Time of the launch, in seconds since the epoch.
    """
    engine = _Engine.find()
    if engine is None:
        return Containers()
    ended, tags = 0, {f"{ENV_FOLDER}={folder.path}", f"{ENV_RUN_ID}={uid}"}
    left: list[Leftover] = []
    possible: list[Leftover] = []
    try:
        for container in _started_since(engine, since - _CLOCK_SECONDS):
            name, labels = _name_of(container), container.get("Labels") or {}
            variables = engine.variables(container["Id"])
            if variables is None:  # it was removed since the list
                continue
            if uid in labels.values() or tags <= set(variables):
                ended += 1
                if refusal := engine.remove(container["Id"]):
                    left.append(Leftover("Container", name, refusal))
            elif container["State"] in _LIVING and not _is_of_others(labels):
                command = f"docker rm -f {name.partition(' ')[0]}"
                reason = f"started while the run existed; if it is the run's, `{command}` ends it"
                possible.append(Leftover("Container", name, reason))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return Containers(False, ended, tuple(left), tuple(possible))
    return Containers(True, ended, tuple(left), tuple(possible))


def _is_of_others(labels: Mapping[str, str]) -> bool:
    return any(part in label for label in labels for part in _OF_OTHERS)


def _started_since(engine: _Engine, since: float) -> list[dict[str, Any]]:
    containers = [item for item in engine.containers() if float(item["Created"]) >= since]
    containers.sort(key=lambda item: (item["State"] not in _LIVING, -float(item["Created"])))
    return containers[:_MAX_CONTAINERS]


def _name_of(container: dict[str, Any]) -> str:
    name = str((container.get("Names") or [container["Id"][:12]])[0]).lstrip("/")
    return f"{name} ({container['Image']})"


class _Engine:
    """The Engine of this machine; only over its Unix socket: an Engine elsewhere has no process here."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def find(cls) -> _Engine | None:
        from runtime.base.docker_client import EngineError, find_endpoint

        try:
            path = find_endpoint().socket_path
        except EngineError:
            return None
        return cls(path) if path else None

    def containers(self) -> Any:
        """Return all containers, also ended ones: the process of a run's container has the run's tags, so it
        may have been killed as a process of the run. Raises OSError, HTTPException or ValueError.
        """
        return self._get("/containers/json?all=1")

    def variables(self, identity: str) -> list[str] | None:
        """Return the environment of a container; None if it is gone. Raises as `containers` does, and TypeError."""
        answer = self._get(f"/containers/{identity}/json", gone={})
        return list(answer["Config"].get("Env") or ()) if answer else None

    def _get(self, path: str, gone: Any = None) -> Any:
        status, body = self._request("GET", path)
        if status == 404 and gone is not None:
            return gone
        if status != 200:
            raise ConnectionError(f"the Engine answers {status}")
        return loads(body)

    def remove(self, identity: str) -> str:
        """Kill and remove a container; return the refusal, empty on success."""
        status, body = self._request("DELETE", f"/containers/{identity}?force=1&v=1")
        return "" if status in (204, 404) else f"the Engine refuses: {body[:200].decode('utf-8', 'replace')}"

    def _request(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("localhost", timeout=_ENGINE_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(_ENGINE_SECONDS)
            connection.sock.connect(self._path)
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read(_MAX_ANSWER_BYTES)
        finally:
            connection.close()


# --- GPUs ------------------------------------------------------------------------------------------------------
def pids_on(report: GpuReport, gpus: Collection[int]) -> set[int]:
    """Return the processes on any of these GPUs."""
    return {process.pid for process in report.processes if process.claim.gpu in gpus}


def still_listed(read: Callable[[], GpuReport], gpus: Collection[int], pids: Collection[int]) -> list[Leftover]:
    """Return the ended processes of a run that the driver still lists on its GPUs, after a short wait."""
    until = time.monotonic() + _FREE_SECONDS
    while listed := pids_on(read(), gpus).intersection(pids):
        if time.monotonic() > until:
            reason = "has ended, and its driver still lists it: see `nvidia-smi`"
            return [Leftover("GPU process", str(pid), reason) for pid in sorted(listed)]
        time.sleep(_POLL_SECONDS)
    return []


def possible_gpu_processes(report: GpuReport, gpus: Collection[int], since: float) -> tuple[Leftover, ...]:
    """Return processes on the GPUs of a run that started while it existed and belong to no run of l2rtui."""
    possible = []
    for process in report.processes:
        gpu, tagged = process.claim.gpu, process_scan.tags_of(process.pid)
        if gpu not in gpus or (tagged is not None and tagged.folder):
            continue
        try:
            candidate = psutil.Process(process.pid)
            started, command = candidate.create_time(), candidate.name()
        except psutil.Error:  # it has ended, or is hidden
            continue
        if started >= since - _CLOCK_SECONDS:
            reason = f"started while the run held GPU {gpu}; if it is the run's, `kill {process.pid}` ends it"
            possible.append(Leftover("GPU process", f"{process.pid} {command}", reason))
    return tuple(possible)


# --- processes that daemons started ----------------------------------------------------------------------------
def possible_processes(since: float) -> tuple[Leftover, ...]:
    """Return untagged processes of this user that ssh or systemd-run started since a time (Linux)."""
    possible = []
    me = psutil.Process()
    own = {me, *me.parents()}  # this command may have come in by ssh, too
    for process in psutil.process_iter() if process_scan.IS_LINUX else ():
        try:
            if (
                process in own
                or process.create_time() < since - _CLOCK_SECONDS
                or process.uids().real != os.getuid()
            ):
                continue
            variables = process.environ()
            starter = _daemon_of(process.pid, variables)
            if not starter or ENV_FOLDER in variables:
                continue
            name = process.name()
        except (psutil.Error, OSError):  # it has ended, or is hidden
            continue
        reason = f"started by {starter} while the run existed; if it is the run's, `kill {process.pid}` ends it"
        possible.append(Leftover("Process", f"{process.pid} {name}", reason))
    return tuple(possible)


def _daemon_of(pid: int, variables: Mapping[str, str]) -> str:
    """Return which of the two daemons started a process, by order of this machine itself; empty for neither."""
    match variables.get("SSH_CONNECTION", "").split():
        case [client, _, server, _] if client == server:
            return "ssh"
    groups = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace")
    return "systemd-run" if _TRANSIENT_UNIT.search(groups) else ""
