"""The cluster as a stream of changes: one reflector for each kind, joined into rows, in a few batches a second.

A look at everything goes through the same join, so both give the same rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes import dcgm
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.decode import Unread
from l2rtui.backends.kubernetes.devices import SlotRule
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.join import Join
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.lists import Scope
from l2rtui.backends.kubernetes.look import STRUCTS, look, putter, whole_of
from l2rtui.backends.kubernetes.pace import Gate, Timing
from l2rtui.backends.kubernetes.sight import (
    View,
    find_view,
    missing,
    scopes,
    unread_problems,
    view_problems,
)
from l2rtui.backends.kubernetes.structs import NodeMetricsStruct
from l2rtui.backends.kubernetes.watch import Reflector, probe
from l2rtui.domain.change import Change, ProblemsChanged, apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot

_BATCH_SECONDS = 0.1
"""Shortest time between two batches: faster than people read, and slow enough to join a burst."""
_CLOCK_SECONDS = 5.0
_STALE_SECONDS = 3.0
"""A watch that is open again within this time has not been missed by anybody."""
_LOOK_SECONDS = 1.0
_METRICS_SECONDS = 30.0
_NO_METRICS_SECONDS = 300.0
_SAMPLES_SECONDS = 10.0
_LOOK_SAMPLES_SECONDS = 2.0
"""For all exporters of a cluster: somebody waits for the look, and the API server may not reach them at all."""
_METRICS: Final = Scope("NodeMetrics")


class Feed:
    """What happens in one cluster.

    Args:
        rule: Slots of a device.
        timing: Waits of the watches.
    """

    def __init__(
        self,
        api: Api,
        rule: SlotRule,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._rule = rule
        self._timing = timing or Timing()
        self._clock = clock
        self._reflectors: list[Reflector[Any]] = []
        self._view: View | None = None

    @property
    def stale_seconds(self) -> float:
        """How old the oldest of what is shown may be; 0 while every watch is open."""
        return max((one.stale_seconds for one in self._reflectors if one.is_listed), default=0.0)

    async def snapshot(self) -> ClusterSnapshot:
        """Look once at everything: one list of each kind, all at the same time.

        Raises:
            ApiError: pods cannot be listed at all.
        """
        view, verbs = await asyncio.gather(find_view(self._api), self._metrics_verbs())
        join = self._join(view)
        wanted = scopes(view)
        if verbs & {"list", "watch"}:
            wanted.append(_METRICS)
        found = await look(self._api, wanted, join, self._timing.page)
        problems: list[str] = []
        unread: list[Unread] = []
        for scope in wanted:
            if (error := found.errors.get(scope)) is not None:
                if scope.kind == "Pod":
                    raise error
                problems.append(missing(scope, error))
                continue
            whole = found.wholes[scope]
            if scope.kind == "Pod":
                unread += whole.unread.values()
            problems += unread_problems(scope, whole.unread, whole.lost)
        join.set_unread_pods(unread)
        if self._api.has_exporters and (exporters := join.exporters()):
            samples = await dcgm.read(self._api, exporters, _LOOK_SAMPLES_SECONDS)
            self._api.has_exporters = bool(samples)
            join.set_samples(samples)
        problems += view_problems(view)
        last = ProblemsChanged(tuple(dict.fromkeys(problems)))
        return apply(EMPTY_SNAPSHOT, [*found.changes, *join.changes(), last])

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Give changes as they happen, for ever; the first batch builds everything.

        What may be seen is asked anew now and then. When that differs, all is read again, and rows that are out of
        sight go.
        """
        self._view = await find_view(self._api)
        before: Join | None = None
        while True:
            join = self._join(self._view)
            async with contextlib.aclosing(self._watch(self._view, join, before)) as batches:
                async for batch in batches:
                    yield batch
            before = join

    # --- inside ------------------------------------------------------------------------------------------------
    async def _watch(self, view: View, join: Join, before: Join | None) -> AsyncGenerator[tuple[Change, ...]]:
        """Give changes until the user may see more, or less, than this view."""
        wake = asyncio.Event()
        gate = Gate(lambda: probe(self._api), self._timing)
        self._reflectors = [self._reflector(scope, join, wake, gate) for scope in scopes(view)]
        early = await self._begin(join)
        metrics, samples = self._follow_metrics(join, wake, gate), self._follow_samples(join, wake)
        others = (metrics, samples, self._follow_rights(view))
        async with _running([*(one.run() for one in self._reflectors), *others], wake) as check:
            await self._settled()
            problems: tuple[str, ...] = ()
            is_first, ticked = True, time.monotonic()
            while self._view == view:
                wake.clear()
                check()
                began = time.monotonic()
                if began - ticked >= _CLOCK_SECONDS:
                    join.watch_the_clock()
                    ticked = began
                changes = self._changes(join, view)
                if is_first:
                    changes = (*early, *changes, *(join.gone_since(before) if before is not None else ()))
                    early = ()
                known, problems = problems, self._problems(view)
                if is_first or known != problems:
                    changes = (*changes, ProblemsChanged(problems))
                if changes or is_first:
                    is_first = False
                    yield changes
                await asyncio.sleep(max(0.0, _BATCH_SECONDS - (time.monotonic() - began)))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):  # staleness grows without an event
                        await wake.wait()

    def _join(self, view: View) -> Join:
        join = Join(self._rule, self._clock)
        self._set_view(join, view)
        return join

    @staticmethod
    def _set_view(join: Join, view: View, *, is_listed: bool = True) -> None:
        is_use_known = view.is_cluster_wide and is_listed
        join.set_view(homes=view.homes, is_use_known=is_use_known, is_derived=not view.has_nodes)

    def _reflector(self, scope: Scope, join: Join, wake: asyncio.Event, gate: Gate) -> Reflector[Any]:
        put = putter(join, scope.kind)

        def changed(old: Any, new: Any) -> None:
            if old is not new:
                put(old, new)
            wake.set()

        return Reflector(self._api, scope, STRUCTS[scope.kind], changed, gate, self._timing)

    async def _begin(self, join: Join) -> tuple[Change, ...]:
        """Read everything page by page where the server cannot stream lists, and let each watch begin there.

        What cannot be read is left to its reflector, which tries again in its own time.
        """
        if any(one.streams_lists for one in self._reflectors):
            return ()
        found = await look(self._api, [one.scope for one in self._reflectors], join, self._timing.page)
        for one in self._reflectors:
            if (whole := found.wholes.get(one.scope)) is not None:
                one.begin_with(whole)
        return tuple(found.changes)

    async def _settled(self) -> None:
        """Wait until everything has been listed, or until something keeps us from it for a while."""
        while not all(one.settled.is_set() for one in self._reflectors):
            if any(one.error is not None and one.stale_seconds > _STALE_SECONDS for one in self._reflectors):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await asyncio.gather(*(one.settled.wait() for one in self._reflectors))

    def _changes(self, join: Join, view: View) -> tuple[Change, ...]:
        pods = [one for one in self._reflectors if one.scope.kind == "Pod"]
        # Slots of pods that have not been listed yet are not free: nobody knows.
        self._set_view(join, view, is_listed=all(one.is_listed for one in pods))
        join.set_unread_pods(unread for one in pods for unread in one.unread.values())
        return join.changes()

    def _problems(self, view: View) -> tuple[str, ...]:
        """What cannot be read now, one sentence each; the same ones while nothing changes."""
        found: dict[str, None] = {}
        stale: dict[str, list[Reflector[Any]]] = {}
        for one in self._reflectors:
            if one.error is not None and (one.error.is_forbidden or one.error.status in (404, 405)):
                found[missing(one.scope, one.error)] = None
            elif one.stale_seconds > _STALE_SECONDS:
                why = one.error.message if one.error is not None else f"{self._api.server} is silent."
                stale.setdefault(why, []).append(one)
            found.update(dict.fromkeys(unread_problems(one.scope, one.unread, one.lost)))
        for why, reflectors in stale.items():
            since = min(self._clock() - one.stale_seconds for one in reflectors)
            kinds = ", ".join(dict.fromkeys(str(one.scope) for one in reflectors))
            moment = time.strftime("%H:%M", time.localtime(since))
            are = "shown" if all(one.is_listed for one in reflectors) else "not read yet, or shown"
            found[f"{kinds} are {are} as of {moment}: {why}"] = None
        found.update(dict.fromkeys(view_problems(view)))
        return tuple(found)

    async def _follow_rights(self, view: View) -> None:
        """Ask once a minute for rights that are missing, until they are there; or for the view that is left."""
        while self._view == view:
            await asyncio.sleep(self._timing.forbidden)
            if view.is_whole and not any(one.error and one.error.is_forbidden for one in self._reflectors):
                continue
            self._api.forget_rights()
            with contextlib.suppress(ApiError):  # the watches say what is wrong
                self._view = await find_view(self._api)

    # --- CPU, GPUs and memory in use ----------------------------------------------------------------------------
    async def _metrics_verbs(self) -> frozenset[str]:
        """What may be done with node metrics on this server; nothing where nobody measures."""
        try:
            group = await self._api.get_json(f"/apis/{KINDS['NodeMetrics'].api_version}")
        except ApiError:
            return frozenset()
        resources = group.get("resources") if isinstance(group, dict) else None
        found = (one for one in resources or () if isinstance(one, dict) and one.get("name") == "nodes")
        return frozenset(verb for one in found for verb in one.get("verbs") or ())

    async def _follow_metrics(self, join: Join, wake: asyncio.Event, gate: Gate) -> None:
        """Watch node metrics, or ask twice a minute where they cannot be watched, which is the usual case."""
        while not (verbs := await self._metrics_verbs()):  # noqa: ASYNC110  (nobody tells when it is installed)
            await asyncio.sleep(_NO_METRICS_SECONDS)
        if "watch" in verbs:
            await self._reflector(_METRICS, join, wake, gate).run()
        known: dict[str, NodeMetricsStruct] = {}
        while True:
            with contextlib.suppress(ApiError):  # what was measured last stays, as with `kubectl top`
                newest: dict[str, NodeMetricsStruct] = (
                    await whole_of(self._api, _METRICS, self._timing.page)
                ).items
                for key in {*known, *newest}:
                    join.put_metrics(known.get(key), newest.get(key))
                known = newest
                wake.set()
            await asyncio.sleep(_METRICS_SECONDS)

    async def _follow_samples(self, join: Join, wake: asyncio.Event) -> None:
        """Ask exporters as often as node metrics are asked for; seldom while none of them gives an answer."""
        await self._settled()
        known: dcgm.Samples = {}
        while True:
            exporters = join.exporters()
            samples = await dcgm.read(self._api, exporters, _SAMPLES_SECONDS)
            is_silent = bool(exporters) and not samples and not known
            known = samples
            join.set_samples(samples)
            wake.set()
            await asyncio.sleep(_NO_METRICS_SECONDS if is_silent else _METRICS_SECONDS)


@contextlib.asynccontextmanager
async def _running(
    coroutines: Sequence[Coroutine[Any, Any, None]], wake: asyncio.Event
) -> AsyncIterator[Callable[[], None]]:
    """Run these beside the caller, who gets a function that raises what one of them has died of.

    Not a task group: that one may cancel its owner at any await, and the owner here is a generator, whose consumer
    would be the one to be cancelled.
    """
    tasks = [asyncio.create_task(one) for one in coroutines]
    for task in tasks:
        task.add_done_callback(lambda _: wake.set())

    def check() -> None:
        for task in tasks:
            if task.done():
                task.result()

    try:
        yield check
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
