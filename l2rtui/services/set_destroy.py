"""Destroy of one set of a run with a receipt; the rest of the run continues.

A set is scaled to 0 replicas, which every backend can do; its controllers and slot claims are removed with the
pods. The receipt is based on snapshots of the machine or API server itself, and two in a row must be empty.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from l2rtui.backends.base import Backend
from l2rtui.domain.receipt import DestroyProgress, Leftover, Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.services import launcher
from l2rtui.services.history import journal

MAX_OVERTIME_SECONDS: Final = 60.0
"""Time after their grace period until pods are reported as left."""
_POLL_SECONDS: Final = 0.5


async def destroy_set(
    backend: Backend,
    run: RunView,
    set_name: str,
    *,
    grace_seconds: float | None = None,
    max_overtime_seconds: float = MAX_OVERTIME_SECONDS,
) -> AsyncGenerator[DestroyProgress | Receipt, None]:
    """Stop all replicas of a set permanently; the last item is the Receipt, named RUN/SET.

    Raises:
        NotFoundError: the run or the set does not exist.
        RefusedError: the run needs the set; nothing was changed.
    """
    name, began = f"{run.name}/{set_name}", time.monotonic()
    pods = {pod.uid: pod for pod in (await backend.snapshot()).pods_of(run.name, set_name)}
    await launcher.scale(backend, run.name, set_name, 0, grace_seconds)
    set_spec = (await backend.spec(run.name)).set_named(set_name)
    grace = grace_seconds if grace_seconds is not None else set_spec.grace_seconds if set_spec is not None else 0.0
    until = began + grace + max_overtime_seconds
    # Two empty snapshots in a row: a controller may create one more pod between deletion and its own end.
    empty = 0
    while True:
        remaining = (await backend.snapshot()).pods_of(run.name, set_name)
        # Replacements that appear during this also count as destroyed objects.
        pods |= {pod.uid: pod for pod in remaining}
        yield DestroyProgress((("Pod", len(remaining)),))
        empty = 0 if remaining else empty + 1
        if empty == 2 or (remaining and time.monotonic() > until):
            break
        await asyncio.sleep(_POLL_SECONDS)
    left = tuple(Leftover("Pod", pod.name, pod.status.sentence) for pod in remaining)
    outcome = "left" if left else "done"
    journal.record("destroy", name, outcome, left=[leftover.name for leftover in left], objects=len(pods))
    yield Receipt(name, len(pods), left, time.monotonic() - began)
