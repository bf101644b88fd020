"""Interface of a running simulator of any kind: addresses, end, signals, stop, log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.sim.launchers.failures import Failure
from runtime.sim.launchers.ports import PortSet
from runtime.sim.wire import protocol


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of a simulator's channels, and the address to which it sends poses."""

    control: int
    action: int
    pose: int
    camera_base: int | None
    """Port of the first camera, followed by the others; None for the lab's own ports."""
    host: str = "127.0.0.1"
    pose_target: str = "127.0.0.1"
    """Target address of its poses: the address of this process from the simulator's side."""

    @classmethod
    def of(cls, ports: PortSet | None, host: str = "127.0.0.1", pose_target: str = "127.0.0.1") -> Addresses:
        """Return the addresses of a leased port set, or of the lab's own ports."""
        if ports is None:
            return cls(protocol.CONTROL_PORT, protocol.ACTION_PORT, protocol.POSE_PORT, None, host, pose_target)
        return cls(ports.control, ports.action, ports.pose, ports.camera, host, pose_target)

    @property
    def ports(self) -> Mapping[str, int]:
        """Values of a command's placeholders."""
        camera = self.camera_base or protocol.CAMERA_PORTS["CameraFrontRGB"]
        return {"control": self.control, "action": self.action, "pose": self.pose, "camera": camera}

    def camera_port(self, name: str) -> int:
        """Return the port of a camera of the first car."""
        return protocol.camera_port(name, self.camera_base)


class SimulatorHandle:
    """One started simulator. The defaults are for a simulator whose process is not ours: they do nothing."""

    addresses: Addresses

    def ended(self) -> Failure | None:
        """Return its end as a failure; None while it is running. Does not wait."""
        return None

    def signal(self, number: int) -> None:
        """Send it a signal; no effect after its end."""

    def stop(self, grace_seconds: float) -> int:  # noqa: ARG002  (there is nothing to wait for)
        """Stop it and release its ports; return how many of its processes could not be ended."""
        return 0

    def tail(self, lines: int = 20) -> list[str]:  # noqa: ARG002  (there are none)
        """Return the last lines of its output; empty if the output goes elsewhere."""
        return []


class ExternalSimulator(SimulatorHandle):
    """Simulator that is started and supervised elsewhere; its end is only noticed on the wire."""

    def __init__(self, host: str) -> None:
        target = "127.0.0.1" if host in ("127.0.0.1", "localhost") else own_address(host)
        self.addresses = Addresses.of(None, host, target)


def own_address(peer: str) -> str:
    """Return the address of this process as a peer sees it."""
    # connect() of a UDP socket chooses the route and sends nothing; the port does not matter.
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((peer, 9))
        return str(sock.getsockname()[0])
