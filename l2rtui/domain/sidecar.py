"""Sidecar container of a Kubernetes pod: the simulator that its worker drives.

A spec describes it like every simulator, in ``train.environment_options.simulator``, here of kind ``sidecar``. The
worker gets the whole description to drive the simulator; this module reads the fields that the container needs.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from l2rtui.domain.workload import Role, RunSpec, SetSpec

REFERENCE: Final = ("l2r-runtime", "simulator")
"""The reference simulator in the worker image."""
LAB_PORTS: Final = {"control": "16000", "action": "7077", "pose": "7078", "camera": "8008"}
"""Default ports of the simulator protocol; a pod has its own network, so they are always free."""
DEFAULT_GRACE_SECONDS: Final = 3.0
_ROLES: Final = (Role.WORKER, Role.EVALUATOR)


class Sidecar(Struct, frozen=True):
    """Container of a simulator.

    Attributes:
        command: Complete argv.
        image: Empty for the worker's image.
        user: Numeric user id; 0 for the user of the pod.
        folder: Working folder; empty for the default of the image.
        cpu_cores: CPU request; None for none. memory_bytes: Memory limit; None for none.
        grace_seconds: Time between SIGTERM and SIGKILL at every stop.
    """

    command: tuple[str, ...]
    image: str = ""
    user: int = 0
    folder: str = ""
    env: tuple[tuple[str, str], ...] = ()
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS


def sidecar_of(run: RunSpec, set_spec: SetSpec) -> Sidecar | None:
    """Return the simulator sidecar for each process of a set; None without one.

    Raises:
        ValueError: Its description is invalid; the message names the field.
    """
    if set_spec.role not in _ROLES or set_spec.template:
        return None
    sidecar = _read(run.train, evaluates=any(other.role is Role.EVALUATOR for other in run.sets))
    if sidecar is not None and set_spec.workers_per_pod > 1:
        raise ValueError(
            f"the simulator sidecar of a worker of {set_spec.name} serves one: leave workers_per_pod out"
        )
    return sidecar


def socket_problem(run: RunSpec, set_spec: SetSpec) -> str:
    """Return a sentence if a set starts simulators through the Docker Engine but does not mount its socket.

    Only a process in a container needs the mount; on the host itself the socket exists.
    """
    simulator = _simulator(json.loads(run.train), "container")
    if simulator is None or set_spec.role not in _ROLES or set_spec.template:
        return ""
    socket = str(simulator.get("socket", "the Engine's socket"))
    is_there = any(mount.host_path and socket.startswith(mount.path.rstrip("/")) for mount in set_spec.pod.mounts)
    return "" if is_there else f"it would start simulators with {socket}, which no mount brings it"


def _simulator(settings: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return the description of the simulator in training settings; None if it is of another kind."""
    options = settings.get("environment_options")
    simulator = options.get("simulator") if isinstance(options, dict) else None
    return simulator if isinstance(simulator, dict) and simulator.get("kind") == kind else None


@lru_cache(maxsize=64)
def _read(train: str, *, evaluates: bool) -> Sidecar | None:
    """Read the container from training settings; None if their simulators are of another kind.

    Raises:
        ValueError: Its description is invalid; the message names the field.
    """
    settings = json.loads(train)
    if (simulator := _simulator(settings, "sidecar")) is None:
        return None
    image, command = _text(simulator, "image"), _words(simulator, "command")
    # The worker replaces placeholders in the command; it cannot change an image's own entrypoint.
    if image and not command:
        raise ValueError(f"{_FIELD}.image needs a command: the command that an image starts is not known")
    if simulator.get("mounts"):
        raise ValueError(f"{_FIELD}.mounts: a sidecar has the mounts of its pod: write them under pod.mounts")
    # Evaluators run their episodes in parallel, with one simulator each.
    for name in ("num_envs", *(("eval_episodes",) if evaluates else ())):
        if settings.get(name) != 1:
            raise ValueError(f"train.{name} must be 1: a worker or evaluator has one simulator sidecar")
    user = _text(simulator, "user")
    if user and not (user.isdecimal() and 0 < int(user) < 2**31):
        raise ValueError(f"{_FIELD}.user is {user!r}: of a sidecar it is a number other than 0")
    track = settings["environment_options"].get("track")
    memory, cores = _number(simulator, "memory_bytes"), _number(simulator, "cpu_cores")
    return Sidecar(
        command=_filled(command) if command else _reference(simulator, track),
        image=image,
        user=int(user or 0),
        folder=_text(simulator, "folder"),
        env=_variables(simulator),
        cpu_cores=cores or None,
        memory_bytes=int(memory) or None,
        grace_seconds=_number(simulator, "grace_seconds", DEFAULT_GRACE_SECONDS),
    )


_FIELD: Final = "train.environment_options.simulator"


def _reference(simulator: dict[str, Any], track: Any) -> tuple[str, ...]:
    pace = "--fast" if simulator.get("fast", True) else "--realtime"
    map_file = ("--menu", "--track", track) if isinstance(track, str) and track.endswith(".json") else ()
    return (*REFERENCE, pace, *map_file, *_words(simulator, "arguments"))


def _filled(command: tuple[str, ...]) -> tuple[str, ...]:
    """Fill in the port placeholders; ``{gpu}`` becomes empty, as the container sees only the GPU of its pod."""
    try:
        return tuple(word.format_map({**LAB_PORTS, "gpu": ""}) for word in command)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        names = ", ".join(f"{{{name}}}" for name in LAB_PORTS)
        raise ValueError(f"{_FIELD}.command has a placeholder {error}; there are {names}") from None


def _text(simulator: dict[str, Any], name: str) -> str:
    value = simulator.get(name, "")
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{_FIELD}.{name} is {value!r}: it must be a text")
    return value


def _words(simulator: dict[str, Any], name: str) -> tuple[str, ...]:
    value = simulator.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise ValueError(f"{_FIELD}.{name} is {value!r}: it must be a list of texts")
    return tuple(value)


def _number(simulator: dict[str, Any], name: str, default: float = 0.0) -> float:
    value = simulator.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"{_FIELD}.{name} is {value!r}: it must be a number from 0")
    return value


def _variables(simulator: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    value = simulator.get("env", {})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"{_FIELD}.env is {value!r}: it must be an object of texts")
    return tuple(value.items())
