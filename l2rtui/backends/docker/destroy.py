"""Destroy: stop everything, then prove by asking the Engine for the run's mark that nothing is left.

``Receipt.objects`` counts the network and each container. Volumes that the spec names were there before and stay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from l2rtui.backends.base import DestroyProgress, Leak, Leftover, Receipt
from l2rtui.backends.docker import books, labels, views
from l2rtui.backends.docker.engine import Engine, EngineError
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import NotFoundError

_ROUND_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


async def destroy(
    engine: Engine, run: RunView, grace_seconds: float | None
) -> AsyncGenerator[DestroyProgress | Receipt]:
    """Remove a run; the last item is the receipt.

    Raises:
        NotFoundError: nothing carries its mark.
    """
    began = time.monotonic()
    containers, networks = await _left(engine, run.uid)
    if not containers and not networks:
        raise NotFoundError(f"The run {run.name} is gone.", "See `l2rtui runs`.")
    objects = len(containers) + len(networks)
    yield _progress(len(containers), len(networks))
    found = (await books.look(engine)).of_run(run.uid)
    work = [asyncio.create_task(books.stop(engine, one, grace_seconds)) for one in found]
    try:
        while any(not task.done() for task in work):
            await asyncio.wait(work, timeout=_ROUND_SECONDS)
            containers, networks = await _left(engine, run.uid)
            yield _progress(len(containers), len(networks))
        errors = [str(result) for result in await asyncio.gather(*work, return_exceptions=True) if result]
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        containers, networks = await _left(engine, run.uid)
        if not containers and not networks:
            break
        errors += await _sweep(engine, containers, networks)
        if time.monotonic() > until or (errors and not await _is_less(engine, run.uid, containers, networks)):
            break
    containers, networks = await _left(engine, run.uid)
    why = errors[-1] if errors else "the Engine does not remove it"
    left = [Leftover("Pod", one["Names"][0].removeprefix("/"), why) for one in containers]
    left += [Leftover("Network", one["Name"], why) for one in networks]
    yield Receipt(run.name, objects, tuple(left), time.monotonic() - began)


async def leaks(engine: Engine) -> tuple[Leak, ...]:
    """Containers whose run has no network any more."""
    look = await books.look(engine)
    known = {network["Labels"][labels.RUN_ID] for network in look.networks}
    return tuple(
        Leak(one["Config"]["Labels"].get(labels.RUN, ""), "Pod", views.name_of(one), "its run is gone")
        for one in look.containers
        if one["Config"]["Labels"].get(labels.RUN_ID) not in known
    )


async def _sweep(engine: Engine, containers: list[Any], networks: list[Any]) -> list[str]:
    """Remove what is still there, whatever it does; what the Engine has against it."""
    errors: list[str] = []
    for one in containers:
        try:
            await books.remove(engine, one["Id"])
        except EngineError as error:
            errors.append(error.message)
    if not containers:
        for one in networks:
            try:
                await engine.raw("DELETE", f"/networks/{one['Id']}")
            except EngineError as error:
                if error.status != 404:
                    errors.append(error.message)
    return errors


async def _is_less(engine: Engine, uid: str, containers: list[Any], networks: list[Any]) -> bool:
    """Whether something went since then; after a pause for the Engine."""
    await asyncio.sleep(_ROUND_SECONDS)
    now = await _left(engine, uid)
    return len(now[0]) + len(now[1]) < len(containers) + len(networks)


async def _left(engine: Engine, uid: str) -> tuple[list[Any], list[Any]]:
    containers = await engine.ask("GET", "/containers/json", all=1, filters=labels.of_run(uid))
    networks = await engine.ask("GET", "/networks", filters=labels.of_run(uid))
    return list(containers), list(networks)


def _progress(containers: int, networks: int) -> DestroyProgress:
    return DestroyProgress(tuple((kind, n) for kind, n in (("Pod", containers), ("Run", networks)) if n))
