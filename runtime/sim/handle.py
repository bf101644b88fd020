"""What every kind of simulator has in common for whoever looks after it: addresses, an end, a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from runtime.sim import protocol
from runtime.sim.health import Failure
from runtime.sim.ports import PortSet


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a simulator is reached, and where it sends to."""

    control: int
    action: int
    pose: int
    camera_base: int | None
    """Port of the first camera, the others follow; None for the lab's own ports."""
    host: str = "127.0.0.1"
    pose_target: str = "127.0.0.1"
    """Where the simulator is to send poses: our address as it sees it."""

    @classmethod
    def of(cls, ports: PortSet | None, host: str = "127.0.0.1", pose_target: str = "127.0.0.1") -> Addresses:
        """Addresses of a leased port set, or of the lab's own ports."""
        if ports is None:
            lab = (protocol.CONTROL_PORT, protocol.ACTION_PORT, protocol.POSE_PORT)
            return cls(*lab, None, host, pose_target)
        return cls(ports.control, ports.action, ports.pose, ports.camera, host, pose_target)

    @property
    def ports(self) -> Mapping[str, int]:
        """What a command line can name in braces."""
        camera = self.camera_base or protocol.CAMERA_PORTS["CameraFrontRGB"]
        return {"control": self.control, "action": self.action, "pose": self.pose, "camera": camera}

    def camera_port(self, name: str) -> int:
        """Port of a camera of the first car."""
        if self.camera_base is None:
            return protocol.CAMERA_PORTS[name]
        return self.camera_base + list(protocol.CAMERA_PORTS).index(name)


class Handle(Protocol):
    """One started simulator."""

    addresses: Addresses

    def ended(self) -> Failure | None:
        """Say how it ended; None while it runs. Returns at once."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal; one that has ended does not mind."""
        ...

    def stop(self, grace_seconds: float) -> int:
        """End it and let go of what it held; how many of its processes could not be ended."""
        ...

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its output."""
        ...


class External(Handle):
    """A simulator that somebody else looks after, for example the sidecar of our pod."""

    def __init__(self, host: str) -> None:
        target = "127.0.0.1" if host in ("127.0.0.1", "localhost") else own_address(host)
        self.addresses = Addresses.of(None, host, target)

    def ended(self) -> Failure | None:
        """Nothing: its end shows on the wire alone."""
        return None

    def signal(self, number: int) -> None:
        """Nothing: it is not ours."""
        del number

    def stop(self, grace_seconds: float) -> int:
        """Nothing: it is not ours."""
        del grace_seconds
        return 0

    def tail(self, lines: int = 20) -> list[str]:
        """Nothing: its output goes elsewhere."""
        del lines
        return []


def own_address(peer: str) -> str:
    """Our address as a peer sees it; nothing is sent for that."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((peer, 9))
        address: str = sock.getsockname()[0]
        return address
