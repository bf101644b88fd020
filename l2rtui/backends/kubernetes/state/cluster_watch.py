"""Watch of a cluster: one reflector per scope, joined into rows, reported in at most ten batches per second.

The snapshot, which lists everything once, uses the same joiner, so both produce the same rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final

from l2rtui.backends.common.liveness import Liveness, LivenessTiming
from l2rtui.backends.kubernetes.api.backoff import ServerGate, Timing
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.decode import UndecodedObject
from l2rtui.backends.kubernetes.api.errors import NO_ANSWER, ApiError
from l2rtui.backends.kubernetes.api.list_pages import Scope
from l2rtui.backends.kubernetes.api.reflector import Reflector, probe, responds
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import NodeMetricsStruct
from l2rtui.backends.kubernetes.state import dcgm
from l2rtui.backends.kubernetes.state.initial_list import STRUCTS, list_all, list_kind, put_method
from l2rtui.backends.kubernetes.state.joiner import Joiner, Unseen
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.backends.kubernetes.state.own_reports import read_reports
from l2rtui.backends.kubernetes.state.visibility import (
    Visibility,
    find_visibility,
    gone_namespaces,
    missing,
    scopes,
    undecoded_problems,
    visibility_problems,
)
from l2rtui.domain.change import Change, ProblemsChanged, SilenceChanged, apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.domain.status import LOGIN_REFUSED

_BATCH_SECONDS = 0.1
"""Shortest time between two batches: faster than people read, and long enough to collapse a burst."""
_RECHECK_SECONDS = 5.0
"""Interval at which pods whose reason depends on the time are checked again."""
_METRICS_SECONDS = 30.0
_NO_METRICS_SECONDS = 300.0
_SAMPLES_SECONDS = 10.0
_SNAPSHOT_SAMPLES_SECONDS = 2.0
"""For all exporters together: a user waits for the snapshot, and the API server may not be able to reach them."""
_SNAPSHOT_REPORTS_SECONDS = 2.0
_AT_ONCE = 16
_MOST_CONFIG_MAPS = 512
_METRICS: Final = Scope("NodeMetrics")
_SIGHT_SECONDS = 8.0
"""Interval at which login and namespaces are checked: open watches go on after a login was revoked."""
_UNSEEN_SECONDS = 10.0
"""Time without a watch, though the server answers, after which rows are of the past."""


class ClusterWatch:
    """Snapshot and watch of one cluster.

    Args:
        rule: Rule for the slots of a device.
        timing: Timeouts and pauses of the watches.
        clock: Seconds since the epoch.
        liveness: Timeouts of the health check of a quiet server.
    """

    def __init__(
        self,
        api: Api,
        rule: SlotRule,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.time,
        liveness: LivenessTiming | None = None,
        *,
        claims_namespace: str = "",
    ) -> None:
        self._api = api
        self._claims_namespace = claims_namespace
        self._rule = rule
        self._timing = timing or Timing()
        self._clock = clock
        self._liveness_timing = liveness or LivenessTiming()
        self._reflectors: list[Reflector[Any]] = []
        self._visibility: Visibility | None = None
        self._refused_since: float | None = None
        self._gone: tuple[str, ...] = ()
        self._lost_sight: dict[Scope, float] = {}

    @property
    def stale_seconds(self) -> float:
        """Possible age of the oldest objects in seconds; 0 while every watch is open."""
        return max((reflector.stale_seconds for reflector in self._reflectors if reflector.is_listed), default=0.0)

    async def snapshot(self) -> ClusterSnapshot:
        """List everything once, all kinds at the same time; ApiError if pods cannot be listed at all."""
        visibility, verbs, gone = await asyncio.gather(
            self._find_visibility(), self._node_metrics_verbs(), gone_namespaces(self._api)
        )
        joiner = self._make_joiner(visibility)
        listed_scopes = scopes(visibility)
        if visibility.has_nodes and verbs & {"list", "watch"}:
            listed_scopes.append(_METRICS)
        lists = await list_all(self._api, listed_scopes, joiner, self._timing.page)
        problems: list[str] = list(gone)
        undecoded: list[UndecodedObject] = []
        for scope in listed_scopes:
            if (error := lists.errors.get(scope)) is not None:
                if scope.kind == "Pod":
                    raise error
                problems.append(missing(scope, error))
                continue
            listing = lists.listings[scope]
            if scope.kind == "Pod":
                undecoded += listing.undecoded.values()
            problems += undecoded_problems(scope, listing.undecoded, listing.lost)
        joiner.set_undecoded_pods(undecoded)
        nodes = [listing for scope, listing in lists.listings.items() if scope.kind == "Node"]
        joiner.set_nodes_complete(is_complete=any(not (listing.undecoded or listing.lost) for listing in nodes))
        if self._api.has_exporters and (exporters := joiner.exporters()):
            samples = await dcgm.read_samples(self._api, exporters, _SNAPSHOT_SAMPLES_SECONDS)
            # If no exporter has responded, later snapshots of this connection do not wait for them again.
            self._api.has_exporters = bool(samples)
            joiner.set_samples(samples)
        made = [*lists.changes, *joiner.changes()]
        if unread := joiner.unread_config_maps():
            joiner.set_config_maps(await self._config_maps(unread))
        if reporting := joiner.reporting_pods():
            joiner.set_reports(await read_reports(self._api, reporting, _SNAPSHOT_REPORTS_SECONDS))
        problems += visibility_problems(visibility)
        last = ProblemsChanged(tuple(dict.fromkeys(problems)))
        return apply(EMPTY_SNAPSHOT, [*made, *joiner.changes(), last])

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes as they happen, without end; the first batch builds all rows.

        Permissions are checked periodically. When they change, everything is listed again, and rows that may no
        longer be read are removed.
        """
        self._gone = await gone_namespaces(self._api)
        self._visibility = await self._find_visibility()
        previous: Joiner | None = None
        while True:
            joiner = self._make_joiner(self._visibility, is_patient=True)
            async with contextlib.aclosing(self._watch(self._visibility, joiner, previous)) as batches:
                async for batch in batches:
                    yield batch
            previous = joiner

    async def _find_visibility(self) -> Visibility:
        return await find_visibility(self._api, self._claims_namespace)

    # --- inside ------------------------------------------------------------------------------------------------
    async def _watch(
        self, visibility: Visibility, joiner: Joiner, previous: Joiner | None
    ) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes until the user may list more, or less, than this visibility."""
        wake = asyncio.Event()
        gate = ServerGate(lambda: probe(self._api), self._timing)
        liveness = self._make_liveness(wake)
        self._reflectors = [self._reflector(scope, joiner, wake, gate, liveness) for scope in scopes(visibility)]
        early = await self._begin(joiner)
        metrics, samples = self._follow_metrics(joiner, wake, gate, liveness), self._follow_samples(joiner, wake)
        config_maps, reports = self._follow_config_maps(joiner, wake), self._follow_reports(joiner, wake)
        checks = self._follow_permissions(visibility), self._follow_sight(wake), liveness.run()
        others = (metrics, samples, config_maps, reports, *checks)
        async with _running([*(reflector.run() for reflector in self._reflectors), *others], wake) as check:
            await self._settled()
            problems: tuple[str, ...] = ()
            silent_since: float | None = None
            is_first, ticked = True, time.monotonic()
            while self._visibility == visibility:
                # Cleared before the changes are taken: a change that arrives in between triggers the next round.
                wake.clear()
                check()
                began = time.monotonic()
                if began - ticked >= _RECHECK_SECONDS:
                    joiner.recheck_waiting_pods()
                    ticked = began
                if liveness.silent_since is None:  # without an answer every figure is old, and is shown as old
                    joiner.set_unseen(self._unseen("Pod"), self._unseen("ConfigMap"))
                changes = self._changes(joiner, visibility)
                if is_first:
                    gone = joiner.rows_missing_from(previous) if previous is not None else ()
                    changes, early = (*early, *changes, *gone), ()
                reported, problems = problems, self._problems(visibility)
                if is_first or reported != problems:
                    changes = (*changes, ProblemsChanged(problems))
                if is_first or silent_since != liveness.silent_since:
                    silent_since = liveness.silent_since
                    changes = (*changes, SilenceChanged(silent_since))
                if changes or is_first:
                    is_first = False
                    yield changes
                await asyncio.sleep(max(0.0, _BATCH_SECONDS - (time.monotonic() - began)))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timing.tick):
                        await wake.wait()

    def _make_joiner(self, visibility: Visibility, *, is_patient: bool = False) -> Joiner:
        joiner = Joiner(self._rule, self._clock, is_patient=is_patient)
        self._set_visibility(joiner, visibility)
        return joiner

    @staticmethod
    def _set_visibility(joiner: Joiner, visibility: Visibility, *, is_listed: bool = True) -> None:
        is_use_known = visibility.is_cluster_wide and is_listed
        joiner.set_visibility(
            run_namespaces=visibility.run_namespaces, is_use_known=is_use_known, is_derived=not visibility.has_nodes
        )

    def _make_liveness(self, wake: asyncio.Event) -> Liveness:
        """Return the health check of this server, shared by all watches."""

        def changed() -> None:
            if liveness.silent_since is None:
                for reflector in self._reflectors:
                    reflector.reopen()
            wake.set()

        ask = lambda seconds: responds(self._api, seconds)  # noqa: E731  (a closure of one call)
        liveness = Liveness(ask, changed, self._liveness_timing, self._clock)
        return liveness

    def _reflector(
        self, scope: Scope, joiner: Joiner, wake: asyncio.Event, gate: ServerGate, liveness: Liveness
    ) -> Reflector[Any]:
        put = put_method(joiner, scope.kind)

        def changed(old: Any, new: Any) -> None:
            if old is not new:  # the same object twice: only its set of undecoded versions has changed
                put(old, new)
            wake.set()

        struct, heard = STRUCTS[scope.kind], liveness.hear
        return Reflector(self._api, scope, struct, changed, gate, self._timing, on_heard=heard)

    async def _begin(self, joiner: Joiner) -> tuple[Change, ...]:
        """List everything page by page if the server cannot stream lists, so that each watch starts from these
        lists.

        Failed lists are left to their reflectors, which retry with their own back-off.
        """
        if any(reflector.streams_lists for reflector in self._reflectors):
            return ()
        watched = [reflector.scope for reflector in self._reflectors]
        lists = await list_all(self._api, watched, joiner, self._timing.page)
        for reflector in self._reflectors:
            if (listing := lists.listings.get(reflector.scope)) is not None:
                reflector.adopt_list(listing)
        return tuple(lists.changes)

    async def _settled(self) -> None:
        """Wait until everything has been listed, or until an error has lasted for some time."""
        while not all(reflector.settled.is_set() for reflector in self._reflectors):
            if any(
                reflector.error is not None and reflector.stale_seconds > self._timing.stale
                for reflector in self._reflectors
            ):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.tick):
                    await asyncio.gather(*(reflector.settled.wait() for reflector in self._reflectors))

    def _changes(self, joiner: Joiner, visibility: Visibility) -> tuple[Change, ...]:
        pods = [reflector for reflector in self._reflectors if reflector.scope.kind == "Pod"]
        # Until all pods are listed, slots that no pod uses are unknown, not free.
        self._set_visibility(joiner, visibility, is_listed=all(reflector.is_listed for reflector in pods))
        joiner.set_undecoded_pods(undecoded for reflector in pods for undecoded in reflector.undecoded.values())
        nodes = [reflector for reflector in self._reflectors if reflector.scope.kind == "Node"]
        # While nodes are not followed, a new one looks like one that is gone.
        is_complete = bool(nodes) and all(
            item.is_listed and not (item.error or item.undecoded or item.lost) for item in nodes
        )
        joiner.set_nodes_complete(is_complete=is_complete)
        return joiner.changes()

    def _problems(self, visibility: Visibility) -> tuple[str, ...]:
        """Return one sentence for each part that cannot be read now; equal as long as nothing changes."""
        problems: dict[str, None] = {}
        refused = [
            self._clock() - reflector.stale_seconds
            for reflector in self._reflectors
            if reflector.error is not None and reflector.error.is_unauthorized
        ]
        if self._refused_since is not None or refused:
            self._refused_since = min(filter(None, (self._refused_since, *refused)))
            moment = time.strftime("%H:%M", time.localtime(self._refused_since))
            problems[f"{LOGIN_REFUSED}{moment}: log in to the cluster again."] = None
        problems.update(dict.fromkeys(self._gone))
        stale: dict[str, list[Reflector[Any]]] = {}
        for reflector in self._reflectors:
            error = reflector.error
            if error is not None and error.is_denied:
                problems[missing(reflector.scope, error)] = None
            elif reflector.stale_seconds > self._timing.stale:
                cause = error.message if error is not None else f"{self._api.server} is silent."
                stale.setdefault(cause, []).append(reflector)
            problems.update(dict.fromkeys(undecoded_problems(reflector.scope, reflector.undecoded, reflector.lost)))
        # One sentence for all kinds that fail for the same reason: in an outage these are all kinds. It names the
        # minute and not the age; otherwise it would change every second.
        for cause, reflectors in stale.items():
            since = min(self._clock() - reflector.stale_seconds for reflector in reflectors)
            kinds = ", ".join(dict.fromkeys(str(reflector.scope) for reflector in reflectors))
            moment = time.strftime("%H:%M", time.localtime(since))
            are = "shown" if all(reflector.is_listed for reflector in reflectors) else "not read yet, or shown"
            problems[f"{kinds} are {are} as of {moment}: {cause}"] = None
        problems.update(dict.fromkeys(visibility_problems(visibility)))
        return tuple(problems)

    async def _follow_permissions(self, visibility: Visibility) -> None:
        """Check every minute whether missing permissions were granted, or granted ones withdrawn."""
        while self._visibility == visibility:
            await asyncio.sleep(self._timing.forbidden)
            if visibility.is_complete and not any(
                reflector.error and reflector.error.is_forbidden for reflector in self._reflectors
            ):
                continue
            self._api.forget_permissions()
            with contextlib.suppress(ApiError):  # the watches report the problem
                self._visibility = await self._find_visibility()

    def _unseen(self, kind: str) -> dict[str | None, Unseen]:
        """Return the namespaces in which a kind is no longer visible, though the server answers."""
        result: dict[str | None, Unseen] = {}
        for reflector in self._reflectors:
            scope, error = reflector.scope, reflector.error
            is_shut = error is None or error.status != NO_ANSWER
            if scope.kind == kind and is_shut and reflector.is_listed and reflector.stale_seconds > _UNSEEN_SECONDS:
                # To a tenth: it must not differ from one look to the next.
                since = round(self._clock() - reflector.stale_seconds, 0)
                since = self._lost_sight.setdefault(scope, since)
                result[scope.namespace] = Unseen(since, _cause_of(error))
            elif scope in self._lost_sight and reflector.stale_seconds == 0:
                del self._lost_sight[scope]
        return result

    async def _follow_sight(self, wake: asyncio.Event) -> None:
        """Check now and then that the login is still good, and that the namespaces of runs are there."""
        while True:
            await asyncio.sleep(_SIGHT_SECONDS)
            before = self._refused_since, self._gone
            try:
                self._gone = await gone_namespaces(self._api)
                self._refused_since = None
            except ApiError as error:
                if error.is_unauthorized and self._refused_since is None:
                    self._refused_since = self._clock()
            if before != (self._refused_since, self._gone):
                wake.set()

    # --- CPU, GPUs and memory in use ----------------------------------------------------------------------------
    async def _node_metrics_verbs(self) -> frozenset[str]:
        """Return the verbs for node metrics on this server; empty if no metrics server is installed."""
        try:
            group = await self._api.get_json(f"/apis/{KINDS['NodeMetrics'].api_version}")
        except ApiError:
            return frozenset()
        resources = group.get("resources") if isinstance(group, dict) else None
        nodes = (item for item in resources or () if isinstance(item, dict) and item.get("name") == "nodes")
        return frozenset(verb for item in nodes for verb in item.get("verbs") or ())

    async def _follow_metrics(
        self, joiner: Joiner, wake: asyncio.Event, gate: ServerGate, liveness: Liveness
    ) -> None:
        """Watch node metrics, or list them twice a minute: metrics-server, the usual one, has no watch."""
        while not (verbs := await self._node_metrics_verbs()):  # noqa: ASYNC110  (nobody tells when it is installed)
            await asyncio.sleep(_NO_METRICS_SECONDS)
        if "watch" in verbs:
            await self._reflector(_METRICS, joiner, wake, gate, liveness).run()
        metrics: dict[str, NodeMetricsStruct] = {}
        while True:
            with contextlib.suppress(ApiError):  # the last values are kept
                newest = (await list_kind(self._api, _METRICS, self._timing.page)).items
                for key in {*metrics, *newest}:
                    joiner.put_metrics(metrics.get(key), newest.get(key))
                metrics = newest
                wake.set()
            await asyncio.sleep(_METRICS_SECONDS)

    async def _follow_samples(self, joiner: Joiner, wake: asyncio.Event) -> None:
        """Read exporters as often as node metrics; rarely while none of them responds."""
        await self._settled()
        latest: dcgm.Samples = {}
        while True:
            exporters = joiner.exporters()
            samples = await dcgm.read_samples(self._api, exporters, _SAMPLES_SECONDS)
            is_silent = bool(exporters) and not samples and not latest
            latest = samples
            joiner.set_samples(samples)
            wake.set()
            await asyncio.sleep(_NO_METRICS_SECONDS if is_silent else _METRICS_SECONDS)

    async def _follow_config_maps(self, joiner: Joiner, wake: asyncio.Event) -> None:
        """Read the ConfigMaps that may contain the GPU of a new pod, once each: a container reads them only once,
        too.
        """
        await self._settled()
        while True:
            if unread := joiner.unread_config_maps():
                joiner.set_config_maps(await self._config_maps(unread))
                wake.set()
            await asyncio.sleep(_RECHECK_SECONDS)

    async def _follow_reports(self, joiner: Joiner, wake: asyncio.Event) -> None:
        """Read the reports of our own pods from their logs."""
        await self._settled()
        while True:
            if reporting := joiner.reporting_pods():
                joiner.set_reports(await read_reports(self._api, reporting, _SAMPLES_SECONDS))
                wake.set()
            await asyncio.sleep(_RECHECK_SECONDS)

    async def _config_maps(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, str] | None]:
        """Read ConfigMaps; None for one that the user may not read, and for all beyond a limit."""
        read: dict[tuple[str, str], dict[str, str] | None] = dict.fromkeys(keys)
        gate = asyncio.Semaphore(_AT_ONCE)
        denied: set[str] = set()

        async def read_one(namespace: str, name: str) -> None:
            async with gate:
                if namespace in denied:
                    return
                try:
                    data = (await self._api.read("ConfigMap", namespace, name)).get("data") or {}
                    read[namespace, name] = {str(key): str(value) for key, value in data.items()}
                except ApiError as error:
                    if error.is_not_found:
                        read[namespace, name] = {}
                    elif error.is_forbidden:
                        denied.add(namespace)

        await asyncio.gather(*(read_one(*key) for key in keys[:_MOST_CONFIG_MAPS]))
        return read


def _cause_of(error: ApiError | None) -> str:
    if error is None:
        return "its watch brings nothing"
    if error.is_unauthorized:
        return "the login is refused. Log in to the cluster again"
    return error.message.rstrip(".")


@contextlib.asynccontextmanager
async def _running(
    coroutines: Sequence[Coroutine[Any, Any, None]], wake: asyncio.Event
) -> AsyncIterator[Callable[[], None]]:
    """Run coroutines in the background; yield a function that raises the exception of one that has failed.

    Not a task group: it may cancel its owner at any await. The owner here is a generator, so the task of its
    consumer would be cancelled.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
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
