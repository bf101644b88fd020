"""Which simulator a worker drives, and how it is looked after: one frozen value, made of a mapping in the spec."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from runtime.sim.errors import SpecError

KINDS: Final = {
    "reference": "this project's reference simulator, as a subprocess",
    "command": "a command of yours, as a subprocess",
    "container": "a container beside this process, on a Docker Engine",
    "sidecar": "a container beside this process in its pod of Kubernetes, which `l2rtui launch` writes",
    "external": "one that already runs, and that somebody else looks after",
}
PLACEHOLDERS: Final = ("control", "action", "pose", "camera", "gpu")


@dataclass(frozen=True, slots=True)
class SimulatorSpec:
    """How a simulator is started, watched and stopped. Times are in seconds."""

    kind: str = "reference"
    """reference, command, container, sidecar or external."""
    # --- reference, command and sidecar ---
    command: tuple[str, ...] = ()
    """argv of a command, never a shell line; ``{control}``, ``{action}``, ``{pose}``, ``{camera}`` and ``{gpu}``
    stand for its ports and its GPU."""
    arguments: tuple[str, ...] = ()
    """More arguments of the reference simulator, for example ``["--fault", "hang@20"]``."""
    fast: bool = True
    """Reference simulator in lock-step instead of real time."""
    lockstep: bool = False
    """A command, container, sidecar or external simulator is ours, started with ``--fast``."""
    user: str = ""
    """Run it as this user; needs root, and the lab's simulator refuses to be root."""
    folder: str = ""
    """Working folder of a command."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of the worker's."""
    gpu: str = ""
    """GPU that it sees; empty for those that the worker sees."""
    fixed_ports: bool = False
    """It cannot be told its ports and has those of the lab; then there is one in a network namespace."""
    # --- container and sidecar ---
    image: str = ""
    """Of a sidecar: empty for that of the worker, and then without a command it is the reference simulator."""
    memory_bytes: int = 0
    """Memory limit of the container; 0 for none."""
    cpu_cores: float = 0.0
    """CPU cores that a sidecar asks for; 0 for none."""
    # --- container ---
    network: str = "host"
    """Docker network. With ``host`` it shares the worker's ports, else it is reached at its own address."""
    socket: str = ""
    """The Docker Engine's socket. Whoever may use it is root on the node, so it is named on purpose or not."""
    mounts: tuple[str, ...] = ()
    """``SOURCE:TARGET[:ro]``, absolute paths. A sidecar has the mounts of its pod."""
    # --- external ---
    host: str = "127.0.0.1"
    # --- signs of life ---
    start_seconds: float = 60.0
    """From the start to the first answer on the control port. The lab's needs 15 on an idle GPU."""
    heartbeat_seconds: float = 2.0
    """Between two heartbeats."""
    hung_seconds: float = 30.0
    """Without an answer on the control port: hung. The lab's can take that long under load."""
    pose_seconds: float = 10.0
    """Without a pose: hung."""
    call_seconds: float = 30.0
    """For a call of the control port."""
    settle_seconds: float = 0.0
    """After a change of level, place or sensor. The lab's needs 3, ours nothing."""
    # --- restarts ---
    restarts: int = 10
    """Failures within ``window_seconds`` after which the worker ends."""
    window_seconds: float = 600.0
    backoff_seconds: float = 0.5
    """Before the first restart; doubled with each further one."""
    longest_backoff_seconds: float = 30.0
    restart_minutes: float = 0.0
    """Start it anew between two episodes after so many minutes, for one that degrades; 0 for never."""
    # --- stop ---
    grace_seconds: float = 3.0
    """From SIGTERM to SIGKILL."""
    log_bytes: int = 4 * 1024 * 1024
    """Size of its log, in two files."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> SimulatorSpec:
        """Check ``given`` and fill in the defaults. SpecError names the option and what it may be."""
        known = {each.name: each for each in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise SpecError(f"a simulator has no option {name!r}; known are {', '.join(known)}")
            values[name] = _checked(name, value, str(known[name].type))
        made = cls(**values)
        made.check()
        return made

    @property
    def is_reference(self) -> bool:
        """Whether it is the reference simulator, started by our own command."""
        return self.kind == "reference" or (self.kind == "sidecar" and not self.command)

    @property
    def is_alone(self) -> bool:
        """Whether there is one such simulator for a process, however many it wants."""
        return self.kind in ("sidecar", "external")

    def check(self) -> None:
        """Raise SpecError where options do not fit together."""
        if self.kind not in KINDS:
            raise SpecError(f"simulator: kind is {self.kind!r}; it may be {', '.join(KINDS)}")
        if self.kind == "command" and not self.command:
            raise SpecError("simulator: kind command needs a command, a list of words")
        if self.kind == "container":
            if not self.image:
                raise SpecError("simulator: kind container needs an image")
            if not self.socket:
                raise SpecError(
                    "simulator: kind container needs socket, the path of the Docker Engine's socket, for example "
                    "/var/run/docker.sock; whoever may use it is root on the node, so it is never assumed "
                    "(on Kubernetes kind sidecar is a container beside the worker without that)"
                )
        if self.kind == "sidecar":
            self._check_sidecar()
        for mount in self.mounts:
            parts = mount.split(":")
            if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]):
                raise SpecError(f"simulator: {mount!r} is no mount; write /SOURCE:/TARGET or /SOURCE:/TARGET:ro")
            if len(parts) == 3 and parts[2] != "ro":
                raise SpecError(f"simulator: {mount!r}: after the target only :ro may stand")

    def _check_sidecar(self) -> None:
        if self.image and not self.command:
            raise SpecError(
                "simulator: kind sidecar with an image needs a command: it is started anew where it hangs, and "
                "Kubernetes tells nobody what an image would start by itself"
            )
        if self.mounts:
            raise SpecError("simulator: a sidecar has the mounts of its pod: write them under pod.mounts")
        if self.user and not (self.user.isdigit() and int(self.user)):
            raise SpecError(f"simulator: user is {self.user!r}; of a sidecar it is a number other than 0")

    def argv(self, ports: Mapping[str, int], host: str = "127.0.0.1") -> tuple[str, ...]:
        """The command with its ports filled in. Raises SpecError for a placeholder that there is not."""
        if self.command:
            values = {**{name: str(port) for name, port in ports.items()}, "gpu": self.gpu}
            try:
                return tuple(word.format_map(values) for word in self.command)
            except (KeyError, ValueError, IndexError, AttributeError) as error:
                names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
                raise SpecError(f"simulator: command has a placeholder {error}; known are {names}") from error
        if self.kind != "reference":
            return ()
        options = {
            "--host": host,
            "--port": ports["control"],
            "--action-port": ports["action"],
            "--pose-port": ports["pose"],
            "--camera-port": ports["camera"],
        }
        words = [str(word) for pair in options.items() for word in pair]
        pace = "--fast" if self.fast else "--realtime"
        return (sys.executable, "-m", "runtime", "simulator", *words, pace, *self.arguments)


_WORDS: Final = {
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number from 0",
    "float": "a number from 0",
    "tuple[str, ...]": "a list of texts",
    "Mapping[str, str]": "an object of texts",
}


def _checked(name: str, value: Any, declared: str) -> Any:
    """Return the value as the option takes it."""
    good, made = False, value
    if declared == "str":
        good = isinstance(value, str) and "\0" not in value
    elif declared == "bool":
        good = isinstance(value, bool)
    elif declared in ("int", "float"):
        kinds = (int,) if declared == "int" else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value < 1e12
    elif declared.startswith("tuple"):
        good = isinstance(value, list | tuple) and all(isinstance(each, str) and "\0" not in each for each in value)
        made = tuple(value) if good else value
    elif isinstance(value, Mapping):
        good = all(isinstance(each, str) and "\0" not in each for pair in value.items() for each in pair)
    if not good:
        raise SpecError(f"simulator: {name} is {value!r}; it must be {_WORDS[declared]}")
    return made
