"""Simulator as a sibling container on a Docker Engine, with the interface of a subprocess.

The container is a child of the Engine, so it would survive the worker. Two mechanisms prevent that: a reaper
process waits for the worker's end and removes the container, and the container has the run's labels, by which
`l2rtui leaks` finds it if both are killed.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Final

from runtime.base import contract
from runtime.base.docker_client import (
    CONFLICT,
    REQUEST_SECONDS,
    DockerClient,
    DockerEndpoint,
    EngineError,
    take_frames,
)
from runtime.sim.launchers import container_reaper
from runtime.sim.launchers.simulator_process import (
    Addresses,
    Cause,
    Failure,
    PortLease,
    ProcessEnd,
    SimulatorHandle,
    own_address,
)
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire.errors import StartError

LABEL_PREFIX: Final = "l2rtui/"
LABEL_SIMULATOR: Final = LABEL_PREFIX + "simulator"
"""Its value identifies one start."""
_RUN_LABELS: Final = {"run": contract.ENV_RUN, "run-id": contract.ENV_RUN_ID, "pod": contract.ENV_POD}
INSPECT_SECONDS: Final = 0.5
"""Interval of requests for the container's state."""


class SimulatorContainer(SimulatorHandle):
    """One started container."""

    def __init__(self, spec: SimulatorSpec) -> None:
        """Start it. Raises StartError, or PortsError if no ports are free."""
        self.mark = uuid.uuid4().hex
        self.name = f"l2r-simulator-{self.mark[:12]}"
        self._socket = spec.socket.removeprefix("unix://")
        # Always the socket that the spec names, never DOCKER_HOST or a context: access to an Engine means root on
        # its node.
        self._engine = DockerClient(DockerEndpoint(f"unix://{self._socket}"))
        self._shares_network = spec.network == "host"
        # Leased even if the container has its own network: all simulators' poses come to this process.
        self._lease = PortLease() if spec.fixed_ports else PortLease.acquire()
        self._inspected = float("-inf")
        self._failure: Failure | None = None
        self._is_stopping = False
        self._last_words: list[str] = []
        try:
            self.addresses = Addresses.of(self._lease.ports)
            # Before the container: if this process dies in between, the reaper finds nothing and ends.
            self._reaper = self._start_reaper()
            try:
                body = self._body(spec)
                created = self._engine.request_json("POST", "/containers/create", body=body, name=self.name)
                self._path = f"/containers/{created['Id']}"
                self._engine.request("POST", f"{self._path}/start")
                if not self._shares_network:
                    self.addresses = self._own_addresses()
            except EngineError as error:
                self._remove()
                raise StartError(error.message.rstrip(".")) from error
        except BaseException:
            self._lease.close()
            raise

    @property
    def pid(self) -> int:
        """Pid of the simulator on the node."""
        return int(self._inspect()["State"]["Pid"])

    def ended(self) -> Failure | None:
        """Return its end as a failure; None while it runs."""
        now = time.monotonic()
        if self._failure is None and not self._is_stopping and now - self._inspected >= INSPECT_SECONDS:
            self._inspected = now
            try:
                state = self._inspect()["State"]
            except EngineError as error:
                if error.status == 404:
                    self._failure = Failure(
                        Cause.KILLED, "the simulator's container was removed by another program"
                    )
                return self._failure
            if state["Status"] in ("exited", "dead"):
                self._last_words = self._read_tail(20)
                end = ProcessEnd.of_code(int(state["ExitCode"]), out_of_memory=bool(state["OOMKilled"]))
                self._failure = end.failure()
        return self._failure

    def signal(self, number: int) -> None:
        """Signal the container's first process."""
        with contextlib.suppress(EngineError):
            self._engine.request("POST", f"{self._path}/kill", signal=number)

    def stop(self, grace_seconds: float) -> int:
        """Stop and remove it; return 1 if the Engine could not."""
        self._is_stopping = True
        # The log is deleted with the container, and the last lines are needed afterwards.
        if not self._last_words:
            self._last_words = self._read_tail(20)
        with contextlib.suppress(EngineError):
            if grace_seconds > 0 and self._failure is None:
                seconds = math.ceil(grace_seconds)
                self._engine.request("POST", f"{self._path}/stop", seconds=REQUEST_SECONDS + seconds, t=seconds)
        left = self._remove()
        self._lease.close()
        return left

    def tail(self, lines: int = 20) -> list[str]:
        """Return the last lines of its output."""
        return (self._last_words or self._read_tail(lines))[-lines:]

    def _read_tail(self, lines: int) -> list[str]:
        try:
            raw = bytearray(self._engine.request("GET", f"{self._path}/logs", stdout=1, stderr=1, tail=lines))
        except EngineError:
            return []
        return b"".join(content for _, content in take_frames(raw)).decode("utf-8", "replace").splitlines()

    def _inspect(self) -> dict[str, Any]:
        return dict(self._engine.request_json("GET", f"{self._path}/json"))

    def _body(self, spec: SimulatorSpec) -> dict[str, Any]:
        """Return the body of ``POST /containers/create``."""
        run = {LABEL_PREFIX + name: os.environ.get(variable, "") for name, variable in _RUN_LABELS.items()}
        labels = {LABEL_SIMULATOR: self.mark, **{label: value for label, value in run.items() if value}}
        host: dict[str, Any] = {
            "NetworkMode": spec.network,
            "Binds": list(spec.mounts),
            "Init": True,  # the Engine's own init reaps zombies and passes signals on to a program that is pid 1
            "LogConfig": {"Type": "json-file", "Config": {"max-size": str(spec.log_bytes), "max-file": "1"}},
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 4096,  # a limit against fork bombs
        }
        if spec.gpu:
            request = {"Driver": "nvidia", "DeviceIDs": spec.gpu.split(","), "Capabilities": [["gpu"]]}
            host["DeviceRequests"] = [request]
        if spec.memory_bytes:
            host["Memory"] = spec.memory_bytes
        command = list(spec.argv(self.addresses.ports) or spec.arguments)
        variables = {**spec.env, "L2R_SIM": self.mark}
        optional = {"Cmd": command, "User": spec.user, "WorkingDir": spec.folder}
        return {
            "Image": spec.image,
            **{name: value for name, value in optional.items() if value},
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Labels": labels,
            "HostConfig": host,
        }

    def _own_addresses(self) -> Addresses:
        """Return the addresses of a container with its own network."""
        networks = self._inspect()["NetworkSettings"]["Networks"]
        address = next((str(network["IPAddress"]) for network in networks.values() if network.get("IPAddress")), "")
        if not address:
            raise EngineError(0, f"the container {self.name} has no address in its network")
        return Addresses.of(self._lease.ports, address, own_address(address))

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        """Start the process that removes the container after this one has ended."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(container_reaper.__file__)), self._socket, self.name],
            stdin=subprocess.PIPE,  # its end means the end of this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def _remove(self) -> int:
        """Remove the container. The reaper repeats that, which also covers a kill in the middle of this."""
        left = 0
        try:
            self._engine.request("DELETE", f"/containers/{self.name}", force=1, v=1)
        except EngineError as error:
            left = int(error.status not in (404, CONFLICT))  # removed, or the Engine is removing it
        self._engine.close()
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()
        try:
            self._reaper.wait(container_reaper.REMOVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait()
        return left
