"""Destroy one set of a run, and prove it: a cell of the matrix of seeds and sets; the rest of the run goes on.

A set is taken down to no replicas, which every backend can do; what makes its pods and its claims on slots go with
them. The receipt comes from looks at the machine or server itself, and two in a row must find nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from l2rtui.backends.base import Backend, DestroyProgress, Leftover, Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.services import journal, launcher

LONGEST_SECONDS: Final = 60.0
"""How long pods may outstay their grace until they are named as left."""
_LOOK_SECONDS: Final = 0.5


async def destroy_set(
    backend: Backend,
    run: RunView,
    set_name: str,
    *,
    grace_seconds: float | None = None,
    longest_seconds: float = LONGEST_SECONDS,
) -> AsyncGenerator[DestroyProgress | Receipt, None]:
    """Stop all replicas of a set for good; the last item is the Receipt, named RUN/SET.

    Raises:
        NotFoundError: there is no such run or set.
        RefusedError: the run cannot do without the set; nothing was changed.
    """
    name, began = f"{run.name}/{set_name}", time.monotonic()
    pods = {pod.uid: pod for pod in (await backend.snapshot()).pods_of(run.name, set_name)}
    await launcher.scale(backend, run.name, set_name, 0, grace_seconds)
    one = (await backend.spec(run.name)).set_named(set_name)
    grace = grace_seconds if grace_seconds is not None else one.grace_seconds if one is not None else 0.0
    until = began + grace + longest_seconds
    empty = 0
    while True:
        found = (await backend.snapshot()).pods_of(run.name, set_name)
        pods |= {pod.uid: pod for pod in found}
        yield DestroyProgress((("Pod", len(found)),))
        empty = 0 if found else empty + 1
        if empty == 2 or (found and time.monotonic() > until):
            break
        await asyncio.sleep(_LOOK_SECONDS)
    left = tuple(Leftover("Pod", pod.name, pod.status.sentence) for pod in found)
    journal.record("destroy", name, "left" if left else "done", left=[one.name for one in left], objects=len(pods))
    yield Receipt(name, len(pods), left, time.monotonic() - began)
