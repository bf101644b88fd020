"""The Engine's books: what is there, how it is claimed, made, stopped and removed. There are no others.

A run is a labelled network that carries its spec; its pods are labelled containers that carry their plans. How many
containers a set has is how many it shall have: the Engine removes none by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import os
import secrets
import stat
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2rtui.backends.claiming import lock
from l2rtui.backends.docker import labels, render, views
from l2rtui.backends.docker.engine import Engine, EngineError, MissingError
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.02
_AT_ONCE = 16
_CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Look:
    """What is there: networks and inspected containers, oldest first, as the Engine writes them."""

    networks: tuple[Mapping[str, Any], ...]
    containers: tuple[Mapping[str, Any], ...]

    def network(self, run: str) -> Mapping[str, Any]:
        """The network of a run by its name.

        Raises:
            NotFoundError: there is no such run.
        """
        for network in self.networks:
            if network["Labels"].get(labels.RUN) == run:
                return network
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")

    def of_run(self, uid: str) -> tuple[Mapping[str, Any], ...]:
        """The containers of one launch."""
        return tuple(one for one in self.containers if one["Config"]["Labels"].get(labels.RUN_ID) == uid)


async def look(engine: Engine) -> Look:
    """Look at everything of ours."""
    networks, listed = await asyncio.gather(
        engine.ask("GET", "/networks", filters=labels.ALL),
        engine.ask("GET", "/containers/json", all=1, filters=labels.ALL),
    )
    gate = asyncio.Semaphore(_AT_ONCE)

    async def inspect(container: str) -> Mapping[str, Any] | None:
        async with gate:
            try:
                found: Mapping[str, Any] = await engine.ask("GET", f"/containers/{container}/json")
            except MissingError:  # it went meanwhile
                return None
            return found

    found = await asyncio.gather(*(inspect(one["Id"]) for one in listed))
    containers = sorted(filter(None, found), key=lambda one: str(one["Created"]))
    return Look(tuple(sorted(networks, key=lambda one: str(one["Created"]))), tuple(containers))


@contextlib.asynccontextmanager
async def claiming(engine: Engine) -> AsyncIterator[None]:
    """Hold the lock under which slots and names are claimed: one launch at a time for everybody at this Engine.

    It is a lock on the folder of the Engine's socket, which whoever may use the Engine can open.

    Raises:
        BackendError: somebody has held it for a minute, or the folder cannot be opened.
    """
    folder = Path(engine.path).parent
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BackendError(f"{folder} cannot be locked: {error.strerror}.") from error
    try:
        await lock(descriptor, folder, _LOCK_SECONDS)
        yield
    finally:
        os.close(descriptor)  # which also unlocks


async def create_run(engine: Engine, run: RunPlan) -> None:
    """Make the network of a run, and its containers, which do not run yet."""
    await engine.ask(
        "POST",
        "/networks/create",
        body={
            "Name": labels.network_name(run.spec.name),
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Labels": {
                labels.RUN: run.spec.name,
                labels.RUN_ID: run.uid,
                labels.OWNER: run.owner,
                labels.RECORD: views.encoded(run.spec),
            },
        },
    )
    token = secrets.token_hex(32).encode()
    for pod in run.pods:
        await create(engine, run, pod, token)


async def create(engine: Engine, run: RunPlan, pod: PodPlan, token: bytes) -> str:
    """Make one container with its files; give its id.

    Raises:
        RefusedError: there is a container of this name.
        BackendError: the Engine refuses it.
    """
    try:
        made = await engine.ask(
            "POST", "/containers/create", body=render.container(run, pod, secrets.token_hex(16)), name=pod.name
        )
    except EngineError as error:
        if error.status == _CONFLICT:
            raise RefusedError(
                f"A container named {pod.name} exists.", "Choose another name with --name."
            ) from error
        if error.status == 404:
            image = render.image_of(run.spec, pod.set_spec)
            raise BackendError(f"The Engine has no image {image}.", f"Run `docker pull {image}`.") from error
        raise
    container = str(made["Id"])
    of_root = [
        path for path in render.volumes_of(pod) if render.user_of(pod) and await _is_roots(engine, container, path)
    ]
    packed = render.files(pod, token, of_root)
    await engine.raw("PUT", f"/containers/{container}/archive", body=packed, path="/")
    return container


async def _is_roots(engine: Engine, container: str, path: str) -> bool:
    """Whether a folder can be written to by root alone, as that of a new volume."""
    async with aclosing(engine.stream(f"/containers/{container}/archive", path=path)) as blocks:
        head = b""
        async for block in blocks:
            head += block
            if len(head) >= tarfile.BLOCKSIZE:
                break
    folder = tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    return folder.uid == 0 and not folder.mode & stat.S_IWOTH


async def start(engine: Engine, container: str) -> str:
    """Start one; why it did not, empty when it did."""
    try:
        await engine.raw("POST", f"/containers/{container}/start")
    except EngineError as error:
        return error.message
    return ""


async def stop(engine: Engine, container: Mapping[str, Any], grace_seconds: float | None) -> None:
    """SIGTERM, the grace, SIGKILL, and away with it; one that is gone already does not matter."""
    grace = views.plan_of(container).set_spec.grace_seconds if grace_seconds is None else grace_seconds
    whole = math.ceil(grace)
    with contextlib.suppress(MissingError):
        await engine.raw("POST", f"/containers/{container['Id']}/stop", seconds=whole + 60.0, t=whole)
    await remove(engine, str(container["Id"]))


async def remove(engine: Engine, container: str) -> None:
    """Remove one with its nameless volumes, whatever it does."""
    try:
        await engine.raw("DELETE", f"/containers/{container}", force=1, v=1)
    except EngineError as error:
        if error.status not in (404, _CONFLICT):  # gone, or being removed by the Engine itself
            raise


async def token_of(engine: Engine, containers: Sequence[Mapping[str, Any]]) -> bytes:
    """The token of a run, out of one of its containers; a new one where none is left to share it with."""
    for container in containers:
        with contextlib.suppress(EngineError):
            packed = await engine.raw("GET", f"/containers/{container['Id']}/archive", path=render.TOKEN_FILE)
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                member = archive.extractfile(archive.getmembers()[0])
                if member is not None:
                    return member.read()
    return secrets.token_hex(32).encode()
