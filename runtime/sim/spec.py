"""Settings of a worker's simulator, validated and created from a mapping in the spec of the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta

from runtime.base.setting import read_fields
from runtime.sim.wire.errors import SimulatorSpecError

KINDS: Final = {
    "reference": "this project's reference simulator, as a subprocess",
    "command": "a command of yours, as a subprocess",
    "container": "a separate container on a Docker Engine",
    "sidecar": "a separate container in this process's Kubernetes pod, added by `l2rtui launch`",
    "external": "an already running simulator that is managed elsewhere",
}
Text = Annotated[str, Meta(pattern=r"\A[^\0]*\Z", extra={"sentence": "it must be a text without NUL"})]
Whole = Annotated[int, Meta(ge=0, lt=10**12)]
Amount = Annotated[float, Meta(ge=0.0, lt=1e12)]
PLACEHOLDERS: Final = ("control", "action", "pose", "camera", "gpu")


@dataclass(frozen=True, slots=True)
class SimulatorSpec:
    """Start, supervision and stop of a simulator. Times are in seconds."""

    kind: Text = "reference"
    """reference, command, container, sidecar or external."""
    # --- reference, command and sidecar ---
    command: tuple[Text, ...] = ()
    """argv of a command, never a shell line; ``{control}``, ``{action}``, ``{pose}``, ``{camera}`` and ``{gpu}``
    are placeholders for its ports and its GPU.
    """
    arguments: tuple[Text, ...] = ()
    """More arguments of the reference simulator, for example ``["--fault", "hang@20"]``."""
    fast: bool = True
    """Reference simulator in lock-step instead of real time."""
    lockstep: bool = False
    """A command, container, sidecar or external simulator is our reference simulator, started with ``--fast``."""
    user: Text = ""
    """Run it as this user; needs root. The lab's simulator refuses to run as root."""
    folder: Text = ""
    """Working folder of a command."""
    env: Mapping[Text, Text] = field(default_factory=dict)
    """Variables in addition to the worker's."""
    gpu: Text = ""
    """GPU that it sees; empty for the worker's GPUs."""
    fixed_ports: bool = False
    """Its ports cannot be set and are the lab's; only one such simulator fits into a network namespace."""
    # --- container and sidecar ---
    image: Text = ""
    """For a sidecar: empty for the worker's image; without a command that is the reference simulator."""
    memory_bytes: Whole = 0
    """Memory limit of the container; 0 for none."""
    cpu_cores: Amount = 0.0
    """CPU cores that a sidecar requests; 0 for none."""
    # --- container ---
    network: Text = "host"
    """Docker network. With ``host`` it shares the worker's ports, otherwise it has its own address."""
    socket: Text = ""
    """The Docker Engine's socket. Access to it means root on the node, so it must be named explicitly."""
    mounts: tuple[Text, ...] = ()
    """``SOURCE:TARGET[:ro]``, absolute paths. A sidecar has the mounts of its pod."""
    # --- external ---
    host: Text = "127.0.0.1"
    # --- signs of life ---
    start_seconds: Amount = 60.0
    """Timeout from the start to the first response on the control port. The lab's needs 15 on an idle GPU."""
    heartbeat_seconds: Amount = 2.0
    """Interval of heartbeats."""
    hung_seconds: Amount = 30.0
    """Time without a response on the control port that counts as a hang. The lab's can take that long under
    load.
    """
    pose_seconds: Amount = 10.0
    """Time without a pose that counts as a hang."""
    call_seconds: Amount = 30.0
    """Timeout of a call of the control port."""
    settle_seconds: Amount = 0.0
    """Pause after a change of level, place or sensor. The lab's needs 3, ours none."""
    # --- restarts ---
    restarts: Whole = 10
    """Number of failures within ``window_seconds`` after which the worker ends."""
    window_seconds: Amount = 600.0
    backoff_seconds: Amount = 0.5
    """Pause before the first restart; doubled with each further one."""
    longest_backoff_seconds: Amount = 30.0
    restart_minutes: Amount = 0.0
    """Restart it between two episodes after this many minutes, if it degrades; 0 for never."""
    # --- stop ---
    grace_seconds: Amount = 3.0
    """Time from SIGTERM to SIGKILL."""
    log_bytes: Whole = 4 * 1024 * 1024
    """Size of its log, in two files."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> SimulatorSpec:
        """Check options and add the defaults. Raises SimulatorSpecError with the option and its allowed values."""
        values, mistakes = read_fields(cls, options, "simulator")
        if mistakes:
            raise SimulatorSpecError("\n".join(mistakes))
        made = cls(**values)
        made.check()
        return made

    @property
    def is_reference(self) -> bool:
        """True for the reference simulator, started by our own command."""
        return self.kind == "reference" or (self.kind == "sidecar" and not self.command)

    @property
    def is_alone(self) -> bool:
        """True for kinds of which a process has at most one."""
        return self.kind in ("sidecar", "external")

    def check(self) -> None:
        """Raise SimulatorSpecError if options contradict each other."""
        if self.kind not in KINDS:
            raise SimulatorSpecError(f"simulator: kind is {self.kind!r}; it may be {', '.join(KINDS)}")
        if self.kind == "command" and not self.command:
            raise SimulatorSpecError("simulator: kind command needs a command, a list of words")
        if self.kind == "container":
            if not self.image:
                raise SimulatorSpecError("simulator: kind container needs an image")
            if not self.socket:
                raise SimulatorSpecError(
                    "simulator: kind container needs socket, the path of the Docker Engine's socket, for example "
                    "/var/run/docker.sock; whoever may use it is root on the node, so it is never assumed "
                    "(on Kubernetes kind sidecar is a container beside the worker without that)"
                )
        if self.kind == "sidecar":
            self._check_sidecar()
        for mount in self.mounts:
            parts = mount.split(":")
            if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]):
                sentence = f"simulator: {mount!r} is not a mount; write /SOURCE:/TARGET or /SOURCE:/TARGET:ro"
                raise SimulatorSpecError(sentence)
            if len(parts) == 3 and parts[2] != "ro":
                raise SimulatorSpecError(f"simulator: {mount!r}: after the target only :ro may stand")

    def _check_sidecar(self) -> None:
        if self.image and not self.command:
            raise SimulatorSpecError(
                "simulator: kind sidecar with an image needs a command: it is restarted if it hangs, and "
                "Kubernetes tells nobody what an image would start by itself"
            )
        if self.mounts:
            raise SimulatorSpecError("simulator: a sidecar has the mounts of its pod: write them under pod.mounts")
        if self.user and not (self.user.isdigit() and int(self.user)):
            raise SimulatorSpecError(f"simulator: user is {self.user!r}; of a sidecar it is a number other than 0")

    def argv(self, ports: Mapping[str, int], host: str = "127.0.0.1") -> tuple[str, ...]:
        """Return the command with its ports filled in. Raises SimulatorSpecError for an unknown placeholder."""
        if self.command:
            values = {**{name: str(port) for name, port in ports.items()}, "gpu": self.gpu}
            try:
                return tuple(word.format_map(values) for word in self.command)
            # format_map can fail in many ways
            except (KeyError, ValueError, IndexError, AttributeError) as error:
                names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
                sentence = f"simulator: command has a placeholder {error}; known are {names}"
                raise SimulatorSpecError(sentence) from error
        if self.kind != "reference":
            return ()
        options = {"port": "control", "action-port": "action", "pose-port": "pose", "camera-port": "camera"}
        addresses = [word for option, name in options.items() for word in (f"--{option}", str(ports[name]))]
        pace = "--fast" if self.fast else "--realtime"
        return (sys.executable, "-m", "runtime", "simulator", "--host", host, *addresses, pace, *self.arguments)
