"""Networks and containers of runs on an Engine: list, create, start, stop, remove.

The Engine stores all state. A run is a labelled network that carries its spec; its pods are labelled containers
that carry their plans. The number of replicas of a set is the number of its containers: the Engine removes none on
its own.

Destroy stops and removes everything, then verifies by the Engine's own lists that nothing with the run's label is
left. ``Receipt.objects`` counts the network and each container. Volumes that the spec names existed before and are
kept.
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
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct

from l2rtui.backends.common import workdirs
from l2rtui.backends.common.refusals import SlotTakenError, lock_file
from l2rtui.backends.docker import container_config, views
from l2rtui.cloud.docker_engine import DockerEngine, DockerError, DockerMissingError
from l2rtui.config import state_dir
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.receipt import DestroyProgress, Leak, LeakReport, Leftover, Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import BackendError, NotFoundError, RefusedError
from runtime.base.docker_client import CONFLICT

_LOCK_SECONDS: Final = 60.0
_UNFINISHED: Final = frozenset({"created", "running", "restarting", "paused"})
_STOP_MARGIN_SECONDS: Final = 60.0
"""Extra time after a grace period for the Engine's response: it kills the process and writes its log first."""


class EngineScan(Struct, frozen=True):
    """Networks and inspected containers of all runs, oldest first, as decoded JSON of the Engine."""

    networks: tuple[Mapping[str, Any], ...]
    containers: tuple[Mapping[str, Any], ...]

    def network_of(self, run: str) -> Mapping[str, Any]:
        """Return the network of a run by the run's name. Raises NotFoundError."""
        for network in self.networks:
            if network["Labels"].get(views.RUN) == run:
                return network
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")

    def containers_of(self, uid: str) -> tuple[Mapping[str, Any], ...]:
        """Return the containers of one launch."""
        return tuple(row for row in self.containers if row["Config"]["Labels"].get(views.RUN_ID) == uid)


async def scan(engine: DockerEngine) -> EngineScan:
    """List the networks and inspect every container of all runs."""
    networks, summaries = await asyncio.gather(
        engine.request_json("GET", "/networks", filters=views.ALL),
        engine.request_json("GET", "/containers/json", all=1, filters=views.ALL),
    )
    # A summary has no exit code, restart count or times. A container that was removed meanwhile gives None.
    details = await engine.request_each([f"/containers/{summary['Id']}/json" for summary in summaries])
    containers = sorted(filter(None, details), key=lambda container: str(container["Created"]))
    return EngineScan(tuple(sorted(networks, key=lambda network: str(network["Created"]))), tuple(containers))


@contextlib.asynccontextmanager
async def launch_lock() -> AsyncIterator[None]:
    """Hold the lock under which this user's launches take slots and names, one at a time.

    Raises BackendError if another process has held it for a minute, or the file cannot be created.
    """
    # A file of this user: any user could lock a shared file forever. `refuse_shared_slots` later resolves conflicts
    # between concurrent launches of several users.
    path = state_dir() / "docker.lock"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BackendError(f"{path} cannot be locked: {error.strerror}.") from error
    try:
        await lock_file(descriptor, path, _LOCK_SECONDS)
        yield
    finally:
        os.close(descriptor)  # also unlocks


async def refuse_shared_slots(engine: DockerEngine, made: Collection[str], allowed: Collection[SlotId]) -> None:
    """Refuse if another user's launch has taken a slot of containers that were just created but not started.

    Each of two concurrent launches checks after it has created its containers, so at least the later one sees both.
    The container that was created first keeps the slot.

    Args:
        made: Names of the created containers. allowed: Slots that may be shared.

    Raises:
        SlotTakenError: The message names the slot and its holder.
    """
    holders: dict[SlotId, Mapping[str, Any]] = {}
    for container in (await scan(engine)).containers:  # oldest first
        try:
            plan = views.plan_of(container)
        except BackendError:  # a broken record of another run, which the snapshot reports
            continue
        for slot in plan.seat.slots if container["State"]["Status"] in _UNFINISHED else ():
            holder = holders.setdefault(slot, container)
            name = views.name_of(container)
            if holder is not container and name in made and slot not in allowed:
                sentence = f"Slot {slot} was taken by {views.name_of(holder)} at the same time"
                raise SlotTakenError(f"{sentence}, so {name} cannot sit there.", [slot])


async def create_run(engine: DockerEngine, run: RunPlan) -> None:
    """Create the network of a run and its containers, without starting them."""
    marks = {**views.of_plan(run), views.RECORD: msgspec.json.encode(run.spec).decode()}
    name = views.network_name(run.spec.name)
    body = {"Name": name, "CheckDuplicate": True, "Driver": "bridge", "Labels": marks}
    await engine.request_json("POST", "/networks/create", body=body)
    token = secrets.token_hex(32).encode()
    for pod in run.pods:
        await create_container(engine, run, pod, token)


async def create_container(engine: DockerEngine, run: RunPlan, pod: PodPlan, token: bytes) -> str:
    """Create one container with its files; return its id.

    Raises RefusedError if a container of this name exists, BackendError if the Engine refuses it.
    """
    body = container_config.container_body(run, pod, secrets.token_hex(16))
    try:
        created = await engine.request_json("POST", "/containers/create", body=body, name=pod.name)
    except DockerMissingError as error:
        image = container_config.image_of(run.spec, pod.set_spec)
        raise BackendError(f"The Engine has no image {image}.", f"Run `docker pull {image}`.") from error
    except DockerError as error:
        if error.status == CONFLICT:
            hint = "Choose another name with --name."
            raise RefusedError(f"A container named {pod.name} exists.", hint) from error
        raise
    container = str(created["Id"])
    # A new volume belongs to root. Kubernetes changes that by fsGroup; here an archive with that folder does.
    root_only = [
        path
        for path in container_config.volumes_of(pod)
        if container_config.user_of(pod) and await _is_root_only(engine, container, path)
    ]
    workdir = workdirs.workdir_of(run.spec, pod.set_spec)
    archive = await asyncio.to_thread(container_config.initial_files, pod, token, root_only, workdir)
    await engine.request("PUT", f"/containers/{container}/archive", body=archive, path="/")
    return container


async def _is_root_only(engine: DockerEngine, container: str, path: str) -> bool:
    """Return whether only root can write to a folder of a container, as in a new volume."""
    # The first block of the archive is the folder's own header; a volume may have terabytes after it.
    async with aclosing(engine.stream(f"/containers/{container}/archive", path=path)) as blocks:
        head = b""
        async for block in blocks:
            head += block
            if len(head) >= tarfile.BLOCKSIZE:
                break
    folder = tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    return folder.uid == 0 and not folder.mode & stat.S_IWOTH


async def inspect(engine: DockerEngine, container: str) -> Mapping[str, Any] | None:
    """Return the Engine's details of a container; None if it no longer exists."""
    with contextlib.suppress(DockerMissingError):
        return dict(await engine.request_json("GET", f"/containers/{container}/json"))
    return None


async def start_container(engine: DockerEngine, container: str) -> str:
    """Start a container; return the reason if it did not start, otherwise empty."""
    try:
        await engine.request("POST", f"/containers/{container}/start")
    except DockerError as error:
        return error.message
    return ""


async def stop_container(engine: DockerEngine, container: Mapping[str, Any], grace_seconds: float | None) -> None:
    """Send SIGTERM, after the grace SIGKILL, and remove the container; a missing container is not an error."""
    grace = views.plan_of(container).set_spec.grace_seconds if grace_seconds is None else grace_seconds
    seconds = math.ceil(grace)  # the Engine accepts whole seconds
    with contextlib.suppress(DockerMissingError):
        path = f"/containers/{container['Id']}/stop"
        await engine.request("POST", path, seconds=seconds + _STOP_MARGIN_SECONDS, t=seconds)
    await remove_container(engine, str(container["Id"]))


async def remove_container(engine: DockerEngine, container: str) -> None:
    """Remove a container with its anonymous volumes, running or not."""
    try:
        await engine.request("DELETE", f"/containers/{container}", force=1, v=1)
    except DockerError as error:
        if error.status not in (404, CONFLICT):  # already removed, or being removed by the Engine itself
            raise


async def read_token(engine: DockerEngine, containers: Sequence[Mapping[str, Any]]) -> bytes:
    """Read the token of a run from one of its containers; create a new one if no container is left to share it
    with.
    """
    for container in containers:
        with contextlib.suppress(DockerError):
            path = f"/containers/{container['Id']}/archive"
            packed = await engine.request("GET", path, path=container_config.TOKEN_FILE)
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                if (member := archive.extractfile(archive.getmembers()[0])) is not None:
                    return member.read()
    return secrets.token_hex(32).encode()


_ROUND_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 60.0


async def destroy(
    engine: DockerEngine, run: RunView, grace_seconds: float | None
) -> AsyncGenerator[DestroyProgress | Receipt]:
    """Remove a run; the last item is the receipt. Raises NotFoundError if nothing has its label."""
    began = time.monotonic()
    objects = left = await _remaining(engine, run.uid)
    if not left.count:
        raise NotFoundError(f"The run {run.name} is gone.", "See `l2rtui runs`.")
    yield left.progress()
    existing = (await scan(engine)).containers_of(run.uid)
    stops = [asyncio.create_task(stop_container(engine, pod, grace_seconds)) for pod in existing]
    try:
        while any(not stop.done() for stop in stops):
            await asyncio.wait(stops, timeout=_ROUND_SECONDS)
            yield (await _remaining(engine, run.uid)).progress()
        errors = [str(result) for result in await asyncio.gather(*stops, return_exceptions=True) if result]
    finally:
        for stop in stops:
            stop.cancel()
        await asyncio.gather(*stops, return_exceptions=True)
    errors += await _remove_all(engine, run.uid)
    # Listed again: the receipt states the Engine's current list, not the expected effect of the requests above.
    left = await _remaining(engine, run.uid)
    reason = errors[-1] if errors else "the Engine does not remove it"
    leftovers = [Leftover("Pod", pod["Names"][0].removeprefix("/"), reason) for pod in left.pods]
    leftovers += [Leftover("Network", network["Name"], reason) for network in left.networks]
    yield Receipt(run.name, objects.count, tuple(leftovers), time.monotonic() - began)


async def leaks(engine: DockerEngine) -> LeakReport:
    """List containers whose run has no network."""
    scanned = await scan(engine)
    uids = {network["Labels"][views.RUN_ID] for network in scanned.networks}
    leaks = (
        Leak(container["Config"]["Labels"].get(views.RUN, ""), "Pod", views.name_of(container), "its run is gone")
        for container in scanned.containers
        if container["Config"]["Labels"].get(views.RUN_ID) not in uids
    )
    return LeakReport(tuple(leaks))


async def _remove_all(engine: DockerEngine, uid: str) -> list[str]:
    """Remove until nothing is left, no progress is made, or time runs out; return the Engine's refusals."""
    errors: list[str] = []
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        left = await _remaining(engine, uid)
        if not left.count:
            return errors
        errors += await _remove_once(engine, left)
        # After a refusal, continue only while objects disappear. The Engine refuses to remove a network until the
        # last container has left it, which resolves with time; a stuck mount does not.
        if time.monotonic() > deadline or (errors and not await _has_shrunk(engine, uid, left.count)):
            return errors


async def _remove_once(engine: DockerEngine, left: _Remaining) -> list[str]:
    errors: list[str] = []
    # The Engine refuses to remove a network with containers in it.
    for item in left.pods or left.networks:
        try:
            if left.pods:
                await remove_container(engine, item["Id"])
            else:
                await engine.request("DELETE", f"/networks/{item['Id']}")
        except DockerMissingError:
            pass
        except DockerError as error:
            errors.append(error.message)
    return errors


async def _has_shrunk(engine: DockerEngine, uid: str, before: int) -> bool:
    """Wait a moment; return whether fewer objects are left than before."""
    await asyncio.sleep(_ROUND_SECONDS)
    return (await _remaining(engine, uid)).count < before


class _Remaining(Struct, frozen=True):
    """Objects of a run that the Engine still lists."""

    pods: list[Any]
    networks: list[Any]

    @property
    def count(self) -> int:
        return len(self.pods) + len(self.networks)

    def progress(self) -> DestroyProgress:
        counts = (("Pod", len(self.pods)), ("Run", len(self.networks)))
        return DestroyProgress(tuple((kind, count) for kind, count in counts if count))


async def _remaining(engine: DockerEngine, uid: str) -> _Remaining:
    pods = await engine.request_json("GET", "/containers/json", all=1, filters=views.of_run(uid))
    return _Remaining(pods, await engine.request_json("GET", "/networks", filters=views.of_run(uid)))
