"""Destroy: stop and remove everything, then verify by the Engine's own lists that nothing with the run's label is
left.

``Receipt.objects`` counts the network and each container. Volumes that the spec names existed before and are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from msgspec import Struct

from l2rtui.backends.docker import containers, labels, views
from l2rtui.cloud.docker_engine import DockerEngine, DockerError, DockerMissingError
from l2rtui.domain.receipt import DestroyProgress, Leak, Leftover, Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import NotFoundError

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
    existing = (await containers.scan(engine)).containers_of(run.uid)
    stops = [asyncio.create_task(containers.stop_container(engine, pod, grace_seconds)) for pod in existing]
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


async def leaks(engine: DockerEngine) -> tuple[Leak, ...]:
    """List containers whose run has no network."""
    scanned = await containers.scan(engine)
    uids = {network["Labels"][labels.RUN_ID] for network in scanned.networks}
    return tuple(
        Leak(container["Config"]["Labels"].get(labels.RUN, ""), "Pod", views.name_of(container), "its run is gone")
        for container in scanned.containers
        if container["Config"]["Labels"].get(labels.RUN_ID) not in uids
    )


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
                await containers.remove_container(engine, item["Id"])
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
    pods = await engine.request_json("GET", "/containers/json", all=1, filters=labels.of_run(uid))
    return _Remaining(pods, await engine.request_json("GET", "/networks", filters=labels.of_run(uid)))
