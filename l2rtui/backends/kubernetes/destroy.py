"""Destroy: first what makes pods, then the pods, then all else, the run's own object last; and then count.

Nothing of what we asked for counts as done. Every round looks at the server anew and asks again for whatever is
still there, so a lost answer, a race with a launch that is still creating, or a destroy that was killed need no
care of their own: the next round goes on. The run's ConfigMap stays until all it owns is gone, so whatever happens
in between is seen by everybody as a run that is being destroyed.

The receipt is two full counts in a row that find nothing. A list that fails is no proof, nor is a pod that left the
API while its node could not answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import Final

from l2rtui.backends.base import DestroyProgress, Leftover, Receipt
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.inventory import (
    CONTROLLERS,
    FOLLOWERS,
    Count,
    Found,
    Inventory,
    is_refusal,
    wait_longer,
)
from l2rtui.backends.kubernetes.receipt import kept_claims, leftover, node_troubles, spec_of, was_alive
from l2rtui.backends.kubernetes.release import Claims
from l2rtui.backends.kubernetes.structs import PodStruct
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import NotFoundError

Numbers = tuple[tuple[str, int], ...]

OVERTIME_SECONDS: Final = 75.0
"""So much longer than the grace a pod may stay before the receipt lists it: a kubelet looks for ended containers
that it has not yet removed once a minute, and keeps their pod until then."""
REST_SECONDS: Final = 30.0
"""How long what has no processes may take to go."""
FORCED_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 1.0
"""Between the two last counts: a controller that was about to make one more pod has made it by then."""
_ROUND_SECONDS: Final = (0.2, 0.4, 0.8, 1.5)
_DEFAULT_GRACE_SECONDS: Final = 30.0
_AT_ONCE: Final = 8
_TRIES: Final = 5


async def destroy(
    api: Api,
    run: RunView,
    *,
    grace_seconds: float | None = None,
    purge: bool = False,
    force: bool = False,
    claims_namespace: str = "",
    overtime_seconds: float = OVERTIME_SECONDS,
) -> AsyncGenerator[DestroyProgress | Receipt, None]:
    """Remove a run; see ``Backend.destroy``.

    Args:
        purge: Also delete claims on volumes that the run itself made; others are kept either way.
        force: Take pods that outstay their grace out of the API. Their processes may live on; the receipt says so.
        claims_namespace: Where the Leases are; empty for the run's own namespace.

    Raises:
        NotFoundError: there is nothing of this run.
        ApiError: the server cannot be asked.
    """
    work = _Destroy(api, run, grace_seconds, claims_namespace, overtime_seconds, purge=purge, force=force)
    began = time.monotonic()
    last: Numbers = ()
    async with aclosing(work.rounds()) as rounds:
        async for numbers in rounds:
            if numbers != last:
                last = numbers
                yield DestroyProgress(numbers)
    left = await work.left()
    yield Receipt(run.name, work.objects, left, time.monotonic() - began, work.kept)


class _Destroy:
    """One destroy."""

    def __init__(
        self,
        api: Api,
        run: RunView,
        grace_seconds: float | None,
        claims_namespace: str,
        overtime_seconds: float,
        *,
        purge: bool,
        force: bool,
    ) -> None:
        self.kept = ""
        self._api = api
        self._run = run
        self._namespace = run.namespace or api.namespace
        # A grace of 0 would take a pod out of the API before its process has ended.
        self._grace = None if grace_seconds is None else max(1, math.ceil(grace_seconds))
        self._overtime = overtime_seconds
        self._is_purging = purge
        self._is_forcing = force
        self._inventory = Inventory(api, self._namespace, run.name, run.uid)
        self._claims = Claims(api, claims_namespace or self._namespace, run.uid)
        self._refusals: dict[tuple[str, str], str] = {}
        self._forced: set[str] = set()
        self._is_refused = False
        self._final = Count()

    @property
    def objects(self) -> int:
        """How many objects the run had."""
        return len(self._inventory.seen) + self._claims.number

    async def rounds(self) -> AsyncGenerator[Numbers, None]:
        """Ask and look until nothing is there, or nothing more can be hoped for; the numbers of each look."""
        count = await self._inventory.in_full()
        claims = await self._claims.count()
        if count.is_empty and not claims and not self._claims.trouble:
            raise NotFoundError(f"The run {self._run.name} is gone.", "Look at the runs again.")
        await self._mark(count)
        yield count.numbers
        async with aclosing(self._until_gone(self._limit(count))) as looks:
            async for numbers in looks:
                yield numbers
        if self._is_forcing:
            await self._force()
            async with aclosing(self._until_gone(FORCED_SECONDS)) as looks:
                async for numbers in looks:
                    yield numbers
        async with aclosing(self._finish()) as looks:
            async for numbers in looks:
                yield numbers

    async def left(self) -> tuple[Leftover, ...]:
        """What is left, each with its reason; empty is the proof."""
        pods = [one.pod for one in self._inventory.seen.values() if one.pod is not None]
        troubles = await node_troubles(self._api, (pod.spec.node_name or "" for pod in pods))
        now = time.time()
        left = [
            leftover(one, troubles=troubles, refusals=self._refusals, now=now) for one in self._rest(self._final)
        ]
        left += [Leftover(kind, "all of its kind", gap) for kind, gap in self._final.gaps.items()]
        there = {uid for _, uid in self._final.found}
        left += [_container(pod, troubles, self._forced) for pod in pods if self._is_doubtful(pod, troubles, there)]
        for (node, gpu), number in (await self._claims.count()).items():
            reason = f"{number} kept while its pods may hold the slots" if left else f"{number} not given up"
            left.append(Leftover("Lease", labels.claim_lease(node, gpu), reason))
        if self._claims.trouble:
            left.append(Leftover("Lease", "claims on slots", self._claims.trouble))
        kept = "is kept until all else is gone" if left else "could not be removed in time"
        return (
            *left,
            *(
                Leftover(one.kind, one.meta.name, self._refusals.get(one.key, f"{kept}: destroy again"))
                for one in self._final.of("ConfigMap")
                if one not in self._rest(self._final)
            ),
        )

    # --- rounds ---------------------------------------------------------------------------------------------
    async def _until_gone(self, seconds: float) -> AsyncGenerator[Numbers, None]:
        """Delete pods and what makes them, until a look finds none."""
        until, pauses = time.monotonic() + seconds, _pauses()
        while True:
            count = await self._inventory.by_label()
            yield count.numbers
            targets = count.of(*CONTROLLERS, "Pod")
            if (not targets and not count.gaps) or self._is_refused or time.monotonic() > until:
                return
            await self._delete(targets)
            await asyncio.sleep(next(pauses))

    async def _finish(self) -> AsyncGenerator[Numbers, None]:
        """Delete all else, the run's own object last, until two full looks in a row find nothing."""
        until, pauses, empty, is_released = 0.0, _pauses(), 0, False
        best: tuple[bool, float] = False, -math.inf
        while True:
            count = await self._inventory.by_label()
            if not count.gaps and not self._rest(count):
                count = await self._inventory.in_full()
            yield count.numbers
            rest = self._rest(count)
            has_pods = any(one.kind == "Pod" for one in rest) or "Pod" in count.gaps
            is_released = is_released or (not has_pods and await self._claims.release())
            if (step := (is_released, -len(count.found))) > best:  # it goes on, however slowly
                best, until = step, time.monotonic() + REST_SECONDS
            if rest or count.gaps or not is_released:
                empty = 0
                await self._delete(rest)
            elif own := count.of("ConfigMap"):
                await self._delete(own)
            else:
                empty += 1
            is_stuck = bool(rest) and all(one.is_going and one.kind in (*CONTROLLERS, "Pod") for one in rest)
            if empty == 2 or is_stuck or self._is_refused or time.monotonic() > until:
                break
            await asyncio.sleep(_SETTLE_SECONDS if empty else next(pauses))
        self._final = count if empty == 2 else await self._inventory.in_full()

    def _rest(self, count: Count) -> tuple[Found, ...]:
        """All that must go before the run's own object may; claims on volumes hold results and are kept."""
        name = labels.run_object(self._run.name)
        return tuple(
            one
            for one in count.found.values()
            if (one.kind, one.meta.name) != ("ConfigMap", name)
            and (self._is_purging or one.kind != "PersistentVolumeClaim")
        )

    async def _delete(self, targets: Iterable[Found]) -> None:
        """Ask for the deletion of what is not going yet, or not as soon as is wanted now."""
        targets = tuple(targets)
        standing = {one.meta.uid for one in targets if one.kind in CONTROLLERS and not one.is_going}
        gate = asyncio.Semaphore(_AT_ONCE)

        async def ask(one: Found) -> None:
            async with gate:
                await self._ask(one, self._grace)

        await asyncio.gather(*(ask(one) for one in targets if self._is_due(one, standing)))

    def _is_due(self, one: Found, standing: set[str]) -> bool:
        if one.is_going:
            granted = one.meta.deletion_grace_period_seconds
            return one.kind == "Pod" and self._grace is not None and granted is not None and granted > self._grace
        # The pod of a controller that stands would only be replaced.
        owner = one.meta.controller
        return one.kind != "Pod" or owner is None or owner.uid not in standing

    async def _ask(self, one: Found, grace: int | None) -> None:
        is_pod = one.kind == "Pod"
        try:
            await self._api.delete(
                one.kind,
                one.meta.namespace or self._namespace,
                one.meta.name,
                uid=one.meta.uid,
                propagation="Foreground" if one.kind in CONTROLLERS else "" if is_pod else "Background",
                grace_seconds=grace if is_pod else None,
            )
        except ApiError as error:
            if error.is_not_found or error.is_conflict:  # gone, or another of that name: the next look tells
                return
            if one.kind in FOLLOWERS and is_refusal(error):  # it goes with its Service
                return
            self._refusals[one.key] = error.message
            self._is_refused = self._is_refused or is_refusal(error)

    async def _force(self) -> None:
        for pod in (await self._inventory.by_label(("Pod",))).of("Pod"):
            self._forced.add(pod.meta.uid)
            await self._ask(pod, 0)

    # --- before and after -----------------------------------------------------------------------------------
    async def _mark(self, count: Count) -> None:
        """Let everybody see that this run is being destroyed, and remember where its results lie."""
        name = labels.run_object(self._run.name)
        mine = next((one for one in count.of("ConfigMap") if one.meta.name == name), None)
        if mine is None:
            return
        stamp = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body = {"metadata": {"uid": mine.meta.uid, "annotations": {labels.TERMINATING: stamp}}}
        pause = 0.1
        for _ in range(_TRIES):
            try:
                self.kept = kept_claims(spec_of(await self._api.patch("ConfigMap", self._namespace, name, body)))
            except ApiError as error:
                if error.is_not_found or error.is_conflict or is_refusal(error):
                    return  # the deletions themselves tell what is wrong
                pause = await wait_longer(pause)
            else:
                return

    def _limit(self, count: Count) -> float:
        """How long pods may take, in seconds."""
        graces = [_DEFAULT_GRACE_SECONDS] if count.gaps else [0.0]
        for one in count.of("Pod"):
            wanted = one.pod.spec.termination_grace_period_seconds if one.pod else None
            graces.append(float(_DEFAULT_GRACE_SECONDS if wanted is None else wanted))
        return (max(graces) if self._grace is None else float(self._grace)) + self._overtime

    def _is_doubtful(self, pod: PodStruct, troubles: Mapping[str, str], there: set[str]) -> bool:
        """Whether a pod left the API without its node's word that its processes have ended."""
        if pod.metadata.uid in there:
            return False
        is_unheard = bool(troubles.get(pod.spec.node_name or "")) or pod.metadata.uid in self._forced
        return is_unheard and was_alive(pod)


def _container(pod: PodStruct, troubles: Mapping[str, str], forced: set[str]) -> Leftover:
    if pod.metadata.uid in forced:
        reason = f"taken out of the API by force: it may still run on {pod.spec.node_name}"
    else:
        reason = f"nobody can tell whether it has ended: {troubles[pod.spec.node_name or '']}"
    return Leftover("Container", pod.metadata.name, reason)


def _pauses() -> Iterator[float]:
    return chain(_ROUND_SECONDS, repeat(_ROUND_SECONDS[-1]))
