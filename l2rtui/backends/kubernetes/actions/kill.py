"""Kill: ask for the deletion of pods, each by its uid, so that none that came in its place is hit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.inventory import is_refusal, wait_longer
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError

_AT_ONCE = 16
_TRIES = 5


async def kill(api: Api, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
    """Stop these pods: SIGTERM, grace, SIGKILL. Returns when the server has taken note of each.

    Args:
        grace_seconds: None means the pod's own. At least 1 is asked for: a grace of 0 would take the pod out of the
            API while its process may live on.

    Raises:
        NotFoundError: some were gone already; the others are stopped.
        ApiError: the server refused or failed; names the first pod, the others are stopped where it did not.
    """
    grace = None if grace_seconds is None else max(1, math.ceil(grace_seconds))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: PodView) -> bool:
        async with gate:
            return await _kill(api, pod, grace)

    outcomes = await asyncio.gather(*(one(pod) for pod in pods), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    gone = [pod.name for pod, was_there in zip(pods, outcomes, strict=True) if not was_there]
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        raise NotFoundError(f"{', '.join(gone)} {verb} gone.", "Look at the pods again.")


async def _kill(api: Api, pod: PodView, grace: int | None) -> bool:
    """Whether the pod was there. A lost answer is asked for again: what was deleted by it is no surprise then."""
    pause, was_asked = 0.2, False
    for left in reversed(range(_TRIES)):
        try:
            await api.delete("Pod", pod.namespace or api.namespace, pod.name, uid=pod.uid, grace_seconds=grace)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                return was_asked
            if left == 0 or is_refusal(error) or error.is_invalid:
                raise
            was_asked = was_asked or error.is_unreachable
            pause = await wait_longer(pause)
        else:
            return True
    raise AssertionError  # pragma: no cover  (the last round returns or raises)
