"""Descriptions, events and port forwarding: of a container, a run or the Engine's own machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from l2rtui.backends.common.formatting import fields, when
from l2rtui.backends.common.port_listener import listen_and_carry
from l2rtui.backends.docker import containers, labels, views
from l2rtui.cloud.docker_engine import DockerEngine
from l2rtui.domain.event import KubeEvent
from l2rtui.domain.node import Node
from l2rtui.domain.secret import is_secret_variable
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import exit_text
from l2rtui.errors import BackendError, NotFoundError

MAX_EVENTS: Final = 300
_HISTORY_SECONDS: Final = 24 * 3600.0
"""The Engine keeps the last 256 events of all containers together, whatever their age."""
_BLOCK: Final = 1 << 16
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
"""Actions that are shown; commands inside a container and copies of files are not."""


async def describe(
    engine: DockerEngine, target: PodView | RunView | Node, info: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return everything that is known of one object, its events last. Raises NotFoundError where it is gone."""
    match target:
        case PodView():
            lines = await _pod(engine, target)
        case RunView():
            lines = await _run(engine, target)
        case _:
            lines = _node(target, info)
    history = [
        f"  {when(event.time)} {event.level} {event.reason} {event.object}"
        + (f": {event.message}" if event.message else "")
        for event in await events(engine, target)
    ]
    return (*lines, "", "events:", *(history or ["  none are kept"]))


async def events(engine: DockerEngine, target: PodView | RunView | Node | None) -> tuple[KubeEvent, ...]:
    """Return the events of our containers that the Engine still has, newest last."""
    now = time.time()
    filters: dict[str, Any] = {"type": ["container"], **labels.ALL}
    if isinstance(target, PodView):
        filters["container"] = [target.uid]
    elif isinstance(target, RunView):
        filters |= labels.of_run(target.uid)
    raw = bytearray()
    # With `until` the stream ends by itself. Nine digits: the Engine compares nanoseconds.
    stream = engine.stream("/events", since=f"{now - _HISTORY_SECONDS:.0f}", until=f"{now:.9f}", filters=filters)
    async with aclosing(stream) as blocks:
        async for block in blocks:
            raw += block
    decoded = (_event(json.loads(line)) for line in raw.splitlines() if line.strip())
    return tuple(event for event in decoded if event is not None)[-MAX_EVENTS:]


def forward(engine: DockerEngine, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
    """Carry connections to the container's address in its run's network; see ``Inspector.forward``."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = _address(await _inspected(engine, pod))  # anew each time: a restart may change it
        if not address:
            raise BackendError("it has no address while it does not run.")
        try:
            inner, outer = await asyncio.open_connection(address, remote)
        except OSError as error:
            raise BackendError(f"{address}:{remote} does not answer ({error.strerror or error}).") from error
        try:
            sending = asyncio.create_task(_pump(reader, outer))
            try:
                await _pump(inner, writer)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            outer.close()

    return listen_and_carry(pod.name, local, remote, carry)


# --- inside ----------------------------------------------------------------------------------------------------
async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction until its end, and pass that end on: a half-closed connection stays one."""
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


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
        ("created", details["Created"]),
        ("state", f"{state['Status']} {ended} {state.get('Error') or ''}".strip()),
        ("restarts", f"{details.get('RestartCount', 0)} ({host['RestartPolicy']['Name']})"),
        ("address", _address(details)),
        ("network", host["NetworkMode"]),
        ("slots", ", ".join(str(slot) for slot in view.slots)),
        ("gpus", ", ".join(str(gpu) for request in host["DeviceRequests"] or () for gpu in request["DeviceIDs"])),
        ("memory", f"{host['Memory']} bytes" if host["Memory"] else ""),
        ("shm", f"{host['ShmSize']} bytes"),
        ("grace", f"{config['StopTimeout']} s" if config.get("StopTimeout") is not None else ""),
    )
    lines += [
        f"  mount {mount['Destination']} from {mount.get('Name') or mount.get('Source') or mount['Type']}"
        + ("" if mount["RW"] else ", read only")
        for mount in details["Mounts"]
    ]
    return [*lines, *_variables(config["Env"])]


async def _run(engine: DockerEngine, view: RunView) -> list[str]:
    scanned = await containers.scan(engine)
    network = scanned.network_of(view.name)
    if network["Labels"][labels.RUN_ID] != view.uid:
        raise NotFoundError(f"The run {view.name} is gone; another has its name.", "Look at the runs again.")
    lines = [f"run {view.name}"]
    lines += fields(
        ("network", network["Name"]),
        ("created", network["Created"]),
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
        ("memory", f"{node.memory_bytes} bytes"),
        ("gpus", str(sum(not gpu.is_cpu for gpu in node.gpus))),
        ("runtimes", ", ".join(sorted(info.get("Runtimes", {})))),
        ("files", str(info.get("DockerRootDir", ""))),
    )
    return lines


def _variables(env: list[str]) -> Iterator[str]:
    for variable in env:
        name, _, value = variable.partition("=")
        yield f"  env {name}={'(hidden)' if value and is_secret_variable(name) else value}"


def _address(container: Mapping[str, Any]) -> str:
    """Return the address of its ports from this machine; empty while it does not run."""
    if container["State"]["Status"] != "running":
        return ""
    if container["HostConfig"]["NetworkMode"] == "host":
        return "127.0.0.1"
    networks = container["NetworkSettings"]["Networks"].values()
    return next((str(network["IPAddress"]) for network in networks if network["IPAddress"]), "")


def _event(raw: Mapping[str, Any]) -> KubeEvent | None:
    if (reason := _REASONS.get(raw["Action"])) is None:
        return None
    attributes = raw["Actor"]["Attributes"]
    code = int(attributes.get("exitCode") or 0)
    message = {
        "die": exit_text(code),
        "kill": f"signal {attributes.get('signal', '?')}",
        "create": f"from {attributes.get('image', '?')}",
    }.get(raw["Action"], "")
    level = "Warning" if code != 0 or raw["Action"] == "oom" else "Normal"
    return KubeEvent(raw["timeNano"] / 1e9, level, reason, f"Pod {attributes.get('name', '?')}", message)
