"""What the Engine knows of a container, a run or itself, what has happened to them, and a way to their ports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from l2rtui.backends.base import KubeEvent
from l2rtui.backends.describing import fields, when
from l2rtui.backends.docker import books, labels, views
from l2rtui.backends.docker.engine import Engine, MissingError
from l2rtui.backends.forwarding import forwarded
from l2rtui.domain.keyscan import hides_value
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import exit_text
from l2rtui.errors import BackendError, NotFoundError

MOST_EVENTS: Final = 300
_LOOK_BACK_SECONDS: Final = 24 * 3600.0
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
"""What is told of; commands beside the process and copies of files are not."""


async def describe(engine: Engine, target: PodView | RunView | Node, info: Mapping[str, Any]) -> tuple[str, ...]:
    """All that is known of one object, its events last.

    Raises:
        NotFoundError: it is gone.
    """
    match target:
        case PodView():
            lines = await _pod(engine, target)
        case RunView():
            lines = await _run(engine, target)
        case _:
            lines = _node(target, info)
    found = await events(engine, target)
    told = [
        f"  {when(one.time)} {one.level} {one.reason} {one.object}" + (f": {one.message}" if one.message else "")
        for one in found
    ]
    return (*lines, "", "events:", *(told or ["  none are kept"]))


async def events(engine: Engine, target: PodView | RunView | Node | None) -> tuple[KubeEvent, ...]:
    """What the Engine remembers of our containers, newest last."""
    now = time.time()
    filters: dict[str, Any] = {"type": ["container"], **labels.ALL}
    if isinstance(target, PodView):
        filters["container"] = [target.uid]
    elif isinstance(target, RunView):
        filters |= labels.of_run(target.uid)
    raw = bytearray()
    stream = engine.stream("/events", since=f"{now - _LOOK_BACK_SECONDS:.0f}", until=f"{now:.9f}", filters=filters)
    async with aclosing(stream) as blocks:
        async for block in blocks:
            raw += block
    found = (_event(json.loads(line)) for line in raw.splitlines() if line.strip())
    return tuple(one for one in found if one is not None)[-MOST_EVENTS:]


async def forward(engine: Engine, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
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
            there = asyncio.create_task(_pump(reader, outer))
            try:
                await _pump(inner, writer)
            finally:
                there.cancel()
                await asyncio.gather(there, return_exceptions=True)
        finally:
            outer.close()

    async with aclosing(forwarded(pod.name, local, remote, carry)) as news:
        async for sentence in news:
            yield sentence


# --- inside ----------------------------------------------------------------------------------------------------
async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction until its end, and tell the other side of it."""
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _inspected(engine: Engine, pod: PodView) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = await engine.ask("GET", f"/containers/{pod.uid}/json")
    except MissingError as error:
        raise NotFoundError(f"The pod {pod.name} is gone.", "Look at the pods again.") from error
    return found


async def _pod(engine: Engine, view: PodView) -> list[str]:
    one = await _inspected(engine, view)
    state, config, host = one["State"], one["Config"], one["HostConfig"]
    ended = "" if state["Status"] == "running" else exit_text(int(state["ExitCode"]))
    lines = [f"pod {view.name}"]
    lines += fields(
        ("container", one["Id"][:12]),
        ("image", f"{config['Image']} ({one['Image'].removeprefix('sha256:')[:12]})"),
        ("command", " ".join((one["Path"], *one["Args"]))),
        ("user", config.get("User", "")),
        ("created", one["Created"]),
        ("state", f"{state['Status']} {ended} {state.get('Error') or ''}".strip()),
        ("restarts", f"{one.get('RestartCount', 0)} ({host['RestartPolicy']['Name']})"),
        ("address", _address(one)),
        ("network", host["NetworkMode"]),
        ("slots", ", ".join(str(slot) for slot in view.slots)),
        ("gpus", ", ".join(str(each) for device in host["DeviceRequests"] or () for each in device["DeviceIDs"])),
        ("memory", f"{host['Memory']} bytes" if host["Memory"] else ""),
        ("shm", f"{host['ShmSize']} bytes"),
        ("grace", f"{config['StopTimeout']} s" if config.get("StopTimeout") is not None else ""),
    )
    lines += [
        f"  mount {each['Destination']} from {each.get('Name') or each.get('Source') or each['Type']}"
        + ("" if each["RW"] else ", read only")
        for each in one["Mounts"]
    ]
    return [*lines, *_variables(config["Env"])]


async def _run(engine: Engine, view: RunView) -> list[str]:
    look = await books.look(engine)
    network = look.network(view.name)
    if network["Labels"][labels.RUN_ID] != view.uid:
        raise NotFoundError(f"The run {view.name} is gone; another has its name.", "Look at the runs again.")
    lines = [f"run {view.name}"]
    lines += fields(
        ("network", network["Name"]),
        ("created", network["Created"]),
        ("owner", view.owner),
        ("kind", view.kind),
        ("seed", str(view.seed)),
        ("sets", ", ".join(f"{one.name} ({one.role}) x {one.replicas}" for one in view.sets)),
    )
    lines += [f"Pod {views.name_of(one)}: {one['State']['Status']}" for one in look.of_run(view.uid)]
    return lines


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
    for one in env:
        name, _, value = one.partition("=")
        yield f"  env {name}={'(hidden)' if value and hides_value(name) else value}"


def _address(container: Mapping[str, Any]) -> str:
    """Where its ports are reached from this machine; empty while it does not run."""
    if container["State"]["Status"] != "running":
        return ""
    if container["HostConfig"]["NetworkMode"] == "host":
        return "127.0.0.1"
    networks = container["NetworkSettings"]["Networks"].values()
    return next((str(one["IPAddress"]) for one in networks if one["IPAddress"]), "")


def _event(raw: Mapping[str, Any]) -> KubeEvent | None:
    reason = _REASONS.get(raw["Action"])
    if reason is None:
        return None
    about = raw["Actor"]["Attributes"]
    code = int(about.get("exitCode") or 0)
    message = ""
    if raw["Action"] == "die":
        message = exit_text(code)
    elif raw["Action"] == "kill":
        message = f"signal {about.get('signal', '?')}"
    elif raw["Action"] == "create":
        message = f"from {about.get('image', '?')}"
    is_bad = code != 0 or raw["Action"] == "oom"
    level = "Warning" if is_bad else "Normal"
    return KubeEvent(raw["timeNano"] / 1e9, level, reason, f"Pod {about.get('name', '?')}", message)
