"""The simulator that a pod of Kubernetes has in a container of its own, beside its worker.

A spec says it where it says every simulator: ``train.environment_options.simulator``, here of kind ``sidecar``. All
of it goes to the worker, which drives the simulator; what the container is made of is read here as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from l2rtui.domain.workload import Role, RunSpec, SetSpec

REFERENCE: Final = ("l2r-runtime", "simulator")
"""The reference simulator, in the image that workers run."""
LAB_PORTS: Final = {"control": "16000", "action": "7077", "pose": "7078", "camera": "8008"}
"""A pod has a network of its own, so every simulator has the ports that all clients know."""
DEFAULT_GRACE_SECONDS: Final = 3.0
_ROLES: Final = (Role.WORKER, Role.EVALUATOR)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A simulator's container.

    Attributes:
        command: argv, complete.
        image: Empty for that of the worker.
        user: Number of the user that it runs as; 0 for that of the pod.
        folder: Working folder; empty for the image's own.
        cpu_cores: What it asks for, None for nothing. memory_bytes: its limit, None for none.
        grace_seconds: Between SIGTERM and SIGKILL, whenever it is ended.
    """

    command: tuple[str, ...]
    image: str = ""
    user: int = 0
    folder: str = ""
    env: tuple[tuple[str, str], ...] = ()
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS


def sidecar_of(run: RunSpec, one: SetSpec) -> Sidecar | None:
    """The simulator beside each process of a set; None without one.

    Raises:
        ValueError: it is described wrongly; names the field.
    """
    if one.role not in _ROLES or one.template:
        return None
    return _read(run.train, evaluates=any(each.role is Role.EVALUATOR for each in run.sets))


def socket_problem(run: RunSpec, one: SetSpec) -> str:
    """Say that no mount brings a set the Docker Engine's socket with which it starts simulators; else nothing.

    Only in a container of its own does a process need that; on its machine it finds the socket where it is.
    """
    said = json.loads(run.train).get("environment_options")
    said = said.get("simulator") if isinstance(said, dict) else None
    if one.role not in _ROLES or one.template or not isinstance(said, dict) or said.get("kind") != "container":
        return ""
    socket = str(said.get("socket", "the Engine's socket"))
    is_there = any(mount.host_path and socket.startswith(mount.path.rstrip("/")) for mount in one.pod.mounts)
    return "" if is_there else f"it would start simulators with {socket}, which no mount brings it"


@lru_cache(maxsize=64)
def _read(train: str, *, evaluates: bool) -> Sidecar | None:
    """The container of which training settings speak; None where their simulators are of another kind.

    Raises:
        ValueError: it is described wrongly; names the field.
    """
    settings = json.loads(train)
    options = settings.get("environment_options")
    said = options.get("simulator") if isinstance(options, dict) else None
    if not isinstance(said, dict) or said.get("kind") != "sidecar":
        return None
    image, command = _text(said, "image"), _words(said, "command")
    if image and not command:
        raise ValueError(f"{_FIELD}.image needs a command beside it: what an image starts by itself is not known")
    if said.get("mounts"):
        raise ValueError(f"{_FIELD}.mounts: a sidecar has the mounts of its pod: write them under pod.mounts")
    for name in ("num_envs", *(("eval_episodes",) if evaluates else ())):
        if settings.get(name) != 1:
            raise ValueError(f"train.{name} must be 1: there is one simulator beside a worker or an evaluator")
    user = _text(said, "user")
    if user and not (user.isdecimal() and 0 < int(user) < 2**31):
        raise ValueError(f"{_FIELD}.user is {user!r}: of a sidecar it is a number other than 0")
    memory, cores = _number(said, "memory_bytes"), _number(said, "cpu_cores")
    return Sidecar(
        command=_filled(command) if command else _reference(said, options.get("track")),
        image=image,
        user=int(user or 0),
        folder=_text(said, "folder"),
        env=_variables(said),
        cpu_cores=cores or None,
        memory_bytes=int(memory) or None,
        grace_seconds=_number(said, "grace_seconds", DEFAULT_GRACE_SECONDS),
    )


_FIELD: Final = "train.environment_options.simulator"


def _reference(said: dict[str, Any], track: Any) -> tuple[str, ...]:
    pace = "--fast" if said.get("fast", True) else "--realtime"
    map_file = ("--menu", "--track", track) if isinstance(track, str) and track.endswith(".json") else ()
    return (*REFERENCE, pace, *map_file, *_words(said, "arguments"))


def _filled(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the names of ports filled in; it sees the GPU of its pod, so that has no name."""
    try:
        return tuple(word.format_map({**LAB_PORTS, "gpu": ""}) for word in command)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        names = ", ".join(f"{{{name}}}" for name in LAB_PORTS)
        raise ValueError(f"{_FIELD}.command has a placeholder {error}; there are {names}") from None


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name, "")
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{_FIELD}.{name} is {value!r}: it must be a text")
    return value


def _words(said: dict[str, Any], name: str) -> tuple[str, ...]:
    value = said.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and "\0" not in one for one in value):
        raise ValueError(f"{_FIELD}.{name} is {value!r}: it must be a list of texts")
    return tuple(value)


def _number(said: dict[str, Any], name: str, default: float = 0.0) -> float:
    value = said.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"{_FIELD}.{name} is {value!r}: it must be a number from 0")
    return value


def _variables(said: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    value = said.get("env", {})
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError(f"{_FIELD}.env is {value!r}: it must be an object of texts")
    return tuple(value.items())
