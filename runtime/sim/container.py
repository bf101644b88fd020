"""A simulator as a container beside us, on a Docker Engine: the same interface as a subprocess.

The Engine is nobody's child, so nothing that dies with us takes the container along. What can be done is done: a
forked keeper waits for our end and removes the container, the container removes itself when its simulator ends, and
it carries the run's labels, by which the app's leak check finds one that was left all the same.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Final

from runtime import contract
from runtime.sim import keeper
from runtime.sim.engine import Engine, EngineError
from runtime.sim.errors import StartError
from runtime.sim.handle import Addresses, Handle, own_address
from runtime.sim.health import Cause, Ended, Failure
from runtime.sim.ports import PortLease
from runtime.sim.spec import SimulatorSpec

LABEL_PREFIX: Final = "l2rtui/"
LABEL_SIMULATOR: Final = LABEL_PREFIX + "simulator"
"""Value: the mark of this very start."""
_RUN_LABELS: Final = {"run": contract.ENV_RUN, "run-id": contract.ENV_RUN_ID, "pod": contract.ENV_POD}
INSPECT_SECONDS: Final = 0.5
"""Between two looks at the container's state."""


class SimulatorContainer(Handle):
    """One started container."""

    def __init__(self, spec: SimulatorSpec) -> None:
        """Start it. Raises StartError, and PortsError where no ports are free."""
        self.mark = uuid.uuid4().hex
        self.name = f"l2r-simulator-{self.mark[:12]}"
        self._engine = Engine(spec.socket)
        self._shares_network = spec.network == "host"
        # Even in a network of its own its ports are ours alone: poses of all simulators come to us.
        self._lease = None if spec.fixed_ports else PortLease.take()
        self._looked = float("-inf")
        self._failure: Failure | None = None
        self._is_stopping = False
        self._last_words: list[str] = []
        try:
            self.addresses = Addresses.of(self._lease.ports if self._lease else None)
            self._keeper = self._start_keeper()
            try:
                self._id = self._engine.create(self.name, self._body(spec))
                self._engine.start(self._id)
                if not self._shares_network:
                    self.addresses = self._own_addresses()
            except EngineError as error:
                self._remove()
                raise StartError(str(error)) from error
        except BaseException:
            if self._lease is not None:
                self._lease.close()
            raise

    @property
    def pid(self) -> int:
        """Of the simulator, as the node sees it."""
        return int(self._engine.inspect(self._id)["State"]["Pid"])

    def ended(self) -> Failure | None:
        """Say how it ended; None while it runs."""
        now = time.monotonic()
        if self._failure is None and not self._is_stopping and now - self._looked >= INSPECT_SECONDS:
            self._looked = now
            try:
                state = self._engine.inspect(self._id)["State"]
            except EngineError as error:
                if error.status == 404:
                    self._failure = Failure(Cause.KILLED, "the simulator's container was removed by somebody else")
                return self._failure
            if state["Status"] in ("exited", "dead"):
                self._last_words = self._read_tail(20)
                self._failure = Ended.of_code(
                    int(state["ExitCode"]), out_of_memory=bool(state["OOMKilled"])
                ).failure()
        return self._failure

    def signal(self, number: int) -> None:
        """Signal the container's first process."""
        with contextlib.suppress(EngineError):
            self._engine.signal(self._id, number)

    def stop(self, grace_seconds: float) -> int:
        """End and remove it; 1 where the Engine could not."""
        self._is_stopping = True
        if not self._last_words:
            self._last_words = self._read_tail(20)
        with contextlib.suppress(EngineError):
            if grace_seconds > 0 and self._failure is None:
                self._engine.stop(self._id, grace_seconds)
        left = self._remove()
        if self._lease is not None:
            self._lease.close()
        return left

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its output."""
        return (self._last_words or self._read_tail(lines))[-lines:]

    def _read_tail(self, lines: int) -> list[str]:
        try:
            return self._engine.logs(self._id, lines).decode("utf-8", "replace").splitlines()
        except EngineError:
            return []

    def _body(self, spec: SimulatorSpec) -> dict[str, Any]:
        """What the Engine is asked for."""
        labels = {LABEL_SIMULATOR: self.mark}
        for name, variable in _RUN_LABELS.items():
            if os.environ.get(variable):
                labels[LABEL_PREFIX + name] = os.environ[variable]
        host: dict[str, Any] = {
            "NetworkMode": spec.network,
            "Binds": list(spec.mounts),
            "Init": True,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": str(spec.log_bytes), "max-file": "1"}},
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 4096,
        }
        if spec.gpu:
            request = {"Driver": "nvidia", "DeviceIDs": spec.gpu.split(","), "Capabilities": [["gpu"]]}
            host["DeviceRequests"] = [request]
        if spec.memory_bytes:
            host["Memory"] = spec.memory_bytes
        command = list(spec.argv(self.addresses.ports))
        if not command and spec.arguments:
            command = list(spec.arguments)
        variables = {**spec.env, "L2R_SIM": self.mark}
        return {
            "Image": spec.image,
            **({"Cmd": command} if command else {}),
            **({"User": spec.user} if spec.user else {}),
            **({"WorkingDir": spec.folder} if spec.folder else {}),
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Labels": labels,
            "HostConfig": host,
        }

    def _own_addresses(self) -> Addresses:
        """Where a container with a network of its own is reached."""
        networks = self._engine.inspect(self._id)["NetworkSettings"]["Networks"]
        address = next((str(each["IPAddress"]) for each in networks.values() if each.get("IPAddress")), "")
        if not address:
            raise EngineError(0, f"the container {self.name} has no address in its network")
        return Addresses.of(self._lease.ports if self._lease else None, address, own_address(address))

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        """Start the process that removes the container when we are no more."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(keeper.__file__)), self._engine.path, self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def _remove(self) -> int:
        """Remove the container; the keeper does it again, in case we are ended before we have."""
        left = 0
        try:
            self._engine.remove(self.name)
        except EngineError:
            left = 1
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(keeper.REMOVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        return left
