"""Kill: delete pods, each by its uid, so that a replacement of the same name is not deleted.

A worker that shares its pod is stopped by the supervisor in the pod, and the other workers continue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.state.own_reports import pod_of
from l2rtui.backends.kubernetes.streams.exec import capture
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, NotFoundError

_AT_ONCE = 16
_TRIES = 5


async def kill(api: Api, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
    """Stop these pods: SIGTERM, grace, SIGKILL. Returns when the server has accepted each deletion.

    Args:
        grace_seconds: None for the pod's own. Values below 1 become 1: a grace of 0 would remove the pod from the
            API while its process may survive.

    Raises:
        NotFoundError: Some pods no longer exist; the others are stopped.
        ApiError: The server refused or failed. The message names the first such pod; the others are stopped.
    """
    grace = None if grace_seconds is None else max(1, math.ceil(grace_seconds))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def kill_one(pod: PodView) -> bool:
        async with gate:
            return await _kill(api, pod, grace)

    async def kill_in(pod: PodView, workers: Sequence[int]) -> bool:
        async with gate:
            return await _kill_workers(api, pod, workers, grace)

    shared: dict[str, tuple[PodView, list[int]]] = {}
    for pod in pods:
        if pod.worker is not None:
            workers_pod = pod_of(pod)
            shared.setdefault(workers_pod.uid, (workers_pod, []))[1].append(pod.worker)
    pods = [pod for pod in pods if pod.worker is None]
    calls = [*(kill_one(pod) for pod in pods), *(kill_in(*item) for item in shared.values())]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    gone = [pod.name for pod, was_there in zip(pods, outcomes, strict=False) if not was_there]
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        raise NotFoundError(f"{', '.join(gone)} {verb} gone.", "Look at the pods again.")


async def _kill_workers(api: Api, pod: PodView, workers: Sequence[int], grace: int | None) -> bool:
    """Tell the supervisor in a pod to restart some of its workers."""
    numbers = ",".join(map(str, sorted(workers)))
    argv = ["l2r-runtime", "supervise", "--kill", numbers, *([] if grace is None else ["--grace", str(grace)])]
    output = await capture(api, pod, argv)
    if output.code:
        why = output.err.decode("utf-8", "replace").strip().removeprefix("l2r-runtime: ") or "it gave no reason"
        raise BackendError(f"Worker {numbers} of {pod.name} was not stopped: {why}.", "Look at the pods again.")
    return True


async def _kill(api: Api, pod: PodView, grace: int | None) -> bool:
    """Delete a pod; return whether it existed. Retried after a lost response."""
    pauses, may_be_deleted = RetryPauses(0.2), False
    for left in reversed(range(_TRIES)):
        try:
            await api.delete("Pod", pod.namespace or api.namespace, pod.name, uid=pod.uid, grace_seconds=grace)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                # After a lost response "not found" most likely means that our own deletion was carried out. The
                # HTTP client itself repeats a deletion after a broken connection; only this flag shows that.
                return may_be_deleted or error.is_repeated
            if left == 0 or error.is_final or error.is_invalid:
                raise
            may_be_deleted = may_be_deleted or error.is_unreachable
            await pauses.wait()
        else:
            return True
    raise AssertionError  # pragma: no cover  (the last round returns or raises)
