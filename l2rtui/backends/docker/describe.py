"""Descriptions, events and port forwarding for a container, a run or the Engine's own machine."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec

from l2rtui.backends.common.formatting import fields, variables_text, when, with_events
from l2rtui.backends.common.port_listener import carry_to, listen_and_carry
from l2rtui.backends.docker import containers, views
from l2rtui.backends.docker.views import seconds_of
from l2rtui.cloud.docker_engine import DockerEngine
from l2rtui.domain.node import Node
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import KubeEvent, exit_text
from l2rtui.errors import BackendError, NotFoundError
from runtime.base import bounded_json

MAX_EVENTS: Final = 300
_HISTORY_SECONDS: Final = 24 * 3600.0
"""The Engine keeps the last 256 events of all containers together, whatever their age."""
_REASONS: Final = {
    "create": "Created",
    "start": "Started",
    "die": "Died",
    "kill": "Signalled",
    "stop": "Stopped",
    "destroy": "Removed",
    "oom": "OOMKilled",
    "restart": "Restarted",
    "pause": "Paused",
    "unpause": "Unpaused",
}
"""Actions that are shown; commands inside a container and file copies are not."""


async def describe(
    engine: DockerEngine, target: PodView | RunView | Node, info: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the description of one object, its events last. Raises NotFoundError for a deleted object."""
    match target:
        case PodView():
            lines = await _pod(engine, target)
        case RunView():
            lines = await _run(engine, target)
        case _:
            lines = _node(target, info)
    return with_events(lines, await events(engine, target))


async def events(engine: DockerEngine, target: PodView | RunView | Node | None) -> tuple[KubeEvent, ...]:
    """Return the events of our containers that the Engine still has, newest last."""
    now = time.time()
    filters: dict[str, Any] = {"type": ["container"], **views.ALL}
    if isinstance(target, PodView):
        filters["container"] = [target.uid]
    elif isinstance(target, RunView):
        filters |= views.of_run(target.uid)
    raw = bytearray()
    # With `until` the stream ends. Nine digits: the Engine compares nanoseconds.
    stream = engine.stream("/events", since=f"{now - _HISTORY_SECONDS:.0f}", until=f"{now:.9f}", filters=filters)
    async with aclosing(stream) as blocks:
        async for block in blocks:
            raw += block
    decoded = (_event(line) for line in raw.splitlines())
    return tuple(event for event in decoded if event is not None)[-MAX_EVENTS:]


def forward(engine: DockerEngine, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
    """Forward connections to the container's address in its run's network; see ``Inspector.forward``."""

    async def address() -> str:
        # Read for each connection: a restart may change the address.
        if not (current := _address(await _inspected(engine, pod))):
            raise BackendError("it has no address while it does not run.")
        return current

    return listen_and_carry(pod.name, local, remote, carry_to(address, remote))


# --- inside ----------------------------------------------------------------------------------------------------
async def _inspected(engine: DockerEngine, pod: PodView) -> Mapping[str, Any]:
    if (details := await containers.inspect(engine, pod.uid)) is None:
        raise NotFoundError(f"The pod {pod.name} is gone.", "Look at the pods again.")
    return details


async def _pod(engine: DockerEngine, view: PodView) -> list[str]:
    details = await _inspected(engine, view)
    state, config, host = details["State"], details["Config"], details["HostConfig"]
    ended = "" if state["Status"] == "running" else exit_text(int(state["ExitCode"]))
    lines = [f"pod {view.name}"]
    lines += fields(
        ("container", details["Id"][:12]),
        ("image", f"{config['Image']} ({details['Image'].removeprefix('sha256:')[:12]})"),
        ("command", " ".join((details["Path"], *details["Args"]))),
        ("user", config.get("User", "")),
        ("created", when(seconds_of(details["Created"]))),
        ("state", f"{state['Status']} {ended} {state.get('Error') or ''}".strip()),
        ("restarts", f"{details.get('RestartCount', 0)} ({host['RestartPolicy']['Name']})"),
        ("address", _address(details)),
        ("network", host["NetworkMode"]),
        ("slots", ", ".join(str(slot) for slot in view.slots)),
        ("gpus", ", ".join(str(gpu) for request in host["DeviceRequests"] or () for gpu in request["DeviceIDs"])),
        ("memory", format_bytes(host["Memory"]) if host["Memory"] else ""),
        ("shm", format_bytes(host["ShmSize"])),
        ("grace", f"{config['StopTimeout']} s" if config.get("StopTimeout") is not None else ""),
    )
    lines += [
        f"  mount {mount['Destination']} from {mount.get('Name') or mount.get('Source') or mount['Type']}"
        + ("" if mount["RW"] else ", read only")
        for mount in details["Mounts"]
    ]
    # Split at the first equals sign: a value may contain more of them.
    pairs = (variable.partition("=") for variable in config["Env"])
    return [*lines, *variables_text((name, value) for name, _, value in pairs)]


async def _run(engine: DockerEngine, view: RunView) -> list[str]:
    scanned = await containers.scan(engine)
    network = scanned.network_of(view.name)
    if network["Labels"][views.RUN_ID] != view.uid:
        raise NotFoundError(f"The run {view.name} is gone; another has its name.", "Look at the runs again.")
    lines = [f"run {view.name}"]
    lines += fields(
        ("network", network["Name"]),
        ("created", when(seconds_of(network["Created"]))),
        ("owner", view.owner),
        ("kind", view.kind),
        ("seed", str(view.seed)),
        ("sets", ", ".join(f"{row.name} ({row.role}) x {row.replicas}" for row in view.sets)),
    )
    rows = scanned.containers_of(view.uid)
    return [*lines, *(f"Pod {views.name_of(container)}: {container['State']['Status']}" for container in rows)]


def _node(node: Node, info: Mapping[str, Any]) -> list[str]:
    lines = [f"node {node.name}"]
    lines += fields(
        ("engine", f"Docker {info.get('ServerVersion', '?')}"),
        ("system", f"{info.get('OperatingSystem', '?')}, kernel {info.get('KernelVersion', '?')}"),
        ("cores", f"{node.cpu_cores:g}"),
        ("memory", format_bytes(node.memory_bytes)),
        ("gpus", str(sum(not gpu.is_cpu for gpu in node.gpus))),
        ("runtimes", ", ".join(sorted(info.get("Runtimes", {})))),
        ("files", str(info.get("DockerRootDir", ""))),
    )
    return lines


def _address(container: Mapping[str, Any]) -> str:
    """Return the container's address, reachable from this machine; empty while it is not running."""
    if container["State"]["Status"] != "running":
        return ""
    if container["HostConfig"]["NetworkMode"] == "host":
        return "127.0.0.1"
    networks = container["NetworkSettings"]["Networks"].values()
    return next((str(network["IPAddress"]) for network in networks if network["IPAddress"]), "")


class _Actor(msgspec.Struct, rename="pascal"):
    attributes: dict[str, str]


class _Event(msgspec.Struct, rename={"action": "Action", "actor": "Actor", "time": "timeNano"}):
    action: str
    actor: _Actor
    time: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


def _event(line: bytes | bytearray) -> KubeEvent | None:
    """Return an event of the Engine; None for other kinds and for a damaged line."""
    try:
        event = bounded_json.decode(line, _Event)
        attributes = event.actor.attributes
        code = int(attributes.get("exitCode") or 0)
    except ValueError:
        return None
    if (reason := _REASONS.get(event.action)) is None:
        return None
    message = {
        "die": exit_text(code),
        "kill": f"signal {attributes.get('signal', '?')}",
        "create": f"from {attributes.get('image', '?')}",
    }.get(event.action, "")
    level = "Warning" if code != 0 or event.action == "oom" else "Normal"
    return KubeEvent(event.time / 1e9, level, reason, f"Pod {attributes.get('name', '?')}", message)
