"""Backend for one Docker Engine on this machine: containers, logs, commands and events."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from l2rtui.backends.base import AttachedProcess, Inspector
from l2rtui.backends.common.liveness import Liveness, LivenessTiming
from l2rtui.backends.common.nvml import GpuReader, GpuReport
from l2rtui.backends.common.refusals import refuse_conflicts, refuse_taken_slots, run_exists
from l2rtui.backends.common.reservations import ReservationFile
from l2rtui.backends.docker import containers, describe, engine_info, views
from l2rtui.backends.docker.exec import attach_command, attached, capture_command
from l2rtui.backends.docker.logs import ContainerLog
from l2rtui.cloud.docker_engine import DockerEngine, DockerError
from l2rtui.config import Settings, state_dir, user_name
from l2rtui.domain.change import Change, difference
from l2rtui.domain.log import LAST_LINES, CommandOutput, KubeEvent, LogLine, LogQuery, last_words
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan, RunPlan, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding
from l2rtui.domain.receipt import DestroyProgress, LeakReport, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, L2RError, NotFoundError, UsageError
from runtime.base.docker_client import DockerEndpoint

_GATHER_SECONDS: Final = 0.1
"""Events come in bursts: one snapshot for all of them."""
_ROUND_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 5.5
"""Slightly longer than a polling round: while the Engine responds, no extra health check is sent."""
_PING_SECONDS: Final = 3.5
_NODE_SECONDS: Final = 30.0
_LOAD_SECONDS: Final = 5.0
"""Age at which load and GPUs are read again; the rest of a node changes rarely."""


class DockerBackend:
    """One Engine of this machine as the only node; see ``backends.base.Backend`` for the methods.

    Args:
        nvml: The module ``pynvml``, or a replacement; None imports it when it is first needed.
        liveness: Timeouts of the health check of a quiet Engine.

    Raises UsageError where the Engine is on another machine.
    """

    name = "docker"
    location = contexts = renderer = volumes = secrets = adopt = records = results = kept_results = queue = None

    def __init__(
        self,
        settings: Settings,
        *,
        endpoint: DockerEndpoint | None = None,
        nvml: object = None,
        liveness: LivenessTiming | None = None,
    ) -> None:
        self._settings = settings
        self.history_to = settings.history_to
        self._engine = DockerEngine(endpoint)
        _require_local(self._engine.endpoint)
        self._info: dict[str, Any] = {}
        self._gpu_reader = GpuReader(settings.slots_per_gpu, nvml)
        self._load_reader = engine_info.EngineLoad()
        self._load: tuple[float | None, int | None] = (None, None)
        self._gpus = GpuReport()
        self._node_expires = self._load_expires = 0.0
        self._ending: set[str] = set()
        """Containers and runs that this process is stopping; the Engine itself shows only that they still run."""
        self._endings: dict[str, tuple[int, int | None, str]] = {}
        """Restarts, exit code if known, and last words of containers by id, when their process last failed."""
        self._has_news = asyncio.Event()
        path = state_dir() / "docker-reservations.json"
        self.reservations = ReservationFile(path, containers.launch_lock, self.snapshot, user_name())
        self._liveness_timing = liveness or LivenessTiming(quiet=_QUIET_SECONDS, answer=_PING_SECONDS)

    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (there are none here)
        """Return the place of a change, for its confirmation."""
        return "on the Docker Engine of this machine"

    async def snapshot(self) -> ClusterSnapshot:
        """Return the current state of the node and of every run."""
        node = await self._node()
        scanned = await containers.scan(self._engine)
        runs: dict[str, RunView] = {}
        for network in scanned.networks:
            uid = network["Labels"][views.RUN_ID]
            runs[uid] = views.run_view(network, _replicas(scanned, uid), is_terminating=uid in self._ending)
        pods: dict[str, PodView] = {}
        problems = [node.message] if node.message else []
        for container in scanned.containers:
            uid, pod_uid = container["Config"]["Labels"][views.RUN_ID], container["Id"]
            is_ending, seed = not self._ending.isdisjoint((uid, pod_uid)), runs[uid].seed if uid in runs else 0
            try:
                view = views.pod_view(container, node.name, seed, is_terminating=is_ending)
                pods[pod_uid] = await self._with_last_words(view)
            except BackendError as error:
                problems.append(error.message.rstrip("."))
        self._endings = {uid: ending for uid, ending in self._endings.items() if uid in pods}
        tables = (MappingProxyType({node.name: node}), MappingProxyType(pods), MappingProxyType(runs))
        return ClusterSnapshot(*tables, problems=tuple(problems))

    async def _with_last_words(self, view: PodView) -> PodView:
        """Return a row with exit code and last line of the process that failed, which the Engine forgets: when the
        next process runs, only the log still tells of it.
        """
        runs_again = view.ready and view.restarts > 0
        if (view.exit_code or runs_again) and not view.is_terminating:
            ending = self._endings.get(view.uid)
            # The count of restarts grows after an end, not with it.
            counts = (view.restarts, view.restarts - 1) if runs_again else (view.restarts,)
            if ending is None or ending[0] not in counts:
                lines: list[str] = []
                log = ContainerLog(self._engine, view.uid, view.name)
                query = LogQuery(tail=LAST_LINES, previous=runs_again)
                with contextlib.suppress(L2RError):
                    lines = [line.text async for line in log.read(query)]
                self._endings[view.uid] = view.restarts, view.exit_code, last_words(lines)
        if view.uid not in self._endings or not (view.exit_code or view.restarts):
            return view
        _, code, words = self._endings[view.uid]
        return replace(view, exit_code=view.exit_code or code, message=view.message or words)

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes soon after the Engine's events, and also every five seconds."""
        is_changed = asyncio.Event()
        liveness = Liveness(self._responds, is_changed.set, self._liveness_timing)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(liveness.run()),
        ]
        previous, is_first = EMPTY_SNAPSHOT, True
        try:
            while True:
                # Cleared before the snapshot: an event during it leads to another snapshot.
                self._has_news.clear()
                scan = asyncio.create_task(self.snapshot())
                tasks[2:] = [scan]
                # A hung Engine blocks a snapshot for a minute: its silence is reported meanwhile.
                while not await _is_done(scan, is_changed):
                    is_changed.clear()
                    silent = dataclasses.replace(previous, silent_since=liveness.silent_since)
                    if not is_first and (changes := difference(previous, silent)):
                        previous = silent
                        yield changes
                newest = scan.result()
                liveness.hear()
                changes = difference(previous, newest)
                if changes or is_first:
                    previous, is_first = newest, False
                    yield changes
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_news.wait(), _ROUND_SECONDS)
                await asyncio.sleep(_GATHER_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Check that the Engine has the images and supports the settings of the spec."""
        await self._node()
        return (*await engine_info.check_plan(self._engine, self._info, plan), *self.reservations.findings())

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
        """Create every network and container under the lock, then start the containers in the plan's order."""
        refuse_conflicts(plan.conflicts)
        for run in plan.runs:
            engine_info.refuse_impossible(run.spec)
        async with containers.launch_lock():
            snapshot = await self.snapshot()
            pods = [pod for run in plan.runs for pod in run.pods]
            refuse_taken_slots(pods, snapshot, plan.overcommitted)
            for run in plan.runs:
                if snapshot.run_named(run.spec.name) is not None:
                    raise run_exists(run.spec.name)
            # Existing containers hold their slots and names, so starting them needs no lock.
            try:
                for run in plan.runs:
                    await containers.create_run(self._engine, run)
                await containers.refuse_shared_slots(self._engine, {pod.name for pod in pods}, plan.overcommitted)
            except L2RError:
                await self._undo_launch(plan)
                raise
        scanned = await containers.scan(self._engine)
        ids = {views.name_of(container): container["Id"] for container in scanned.containers}
        steps = iter(plan.steps())
        for run in plan.runs:
            yield StepDone(next(steps))
            for pod in run.pods:
                error = "it was removed meanwhile"
                if pod.name in ids:
                    error = await containers.start_container(self._engine, ids[pod.name])
                yield StepDone(next(steps), error)

    async def spec(self, run: str) -> RunSpec:
        """Return the spec of a run, with as many replicas as there are containers."""
        scanned = await containers.scan(self._engine)
        network = scanned.network_of(run)
        spec, replicas = views.spec_of(network), _replicas(scanned, network["Labels"][views.RUN_ID])
        for set_spec in spec.sets:
            spec = spec.with_replicas(set_spec.name, replicas[set_spec.name])
        return spec

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas."""
        refuse_conflicts(plan.conflicts)
        async with containers.launch_lock():
            scanned = await containers.scan(self._engine)
            network = scanned.network_of(plan.run)
            existing = scanned.containers_of(network["Labels"][views.RUN_ID])
            refuse_taken_slots(plan.added, await self.snapshot(), plan.overcommitted)
            run, token = _run_plan(network), await containers.read_token(self._engine, existing)
            created = [await containers.create_container(self._engine, run, pod, token) for pod in plan.added]
            await self._keep_unshared(created, plan)
        for container in created:
            await self._start(container)
        removed = [container for container in existing if views.name_of(container) in plan.removed]
        await self._stop(removed, self._settings.grace(grace_seconds))

    async def _keep_unshared(self, created: Sequence[str], plan: ScalePlan) -> None:
        """Remove the containers of a scale if another user has taken one of its slots at the same time."""
        try:
            names = {pod.name for pod in plan.added}
            await containers.refuse_shared_slots(self._engine, names, plan.overcommitted)
        except L2RError:
            for container in created:
                await containers.remove_container(self._engine, container)
            raise

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods and create replacements on their slots; returns when those have started."""
        scanned = await containers.scan(self._engine)
        by_id = {container["Id"]: container for container in scanned.containers}
        for pod in pods:
            if pod.uid not in by_id:
                raise NotFoundError(f"The pod {pod.name} is gone.", "Look at the pods again.")
        targets = [by_id[pod.uid] for pod in pods]
        # Finished even if cancelled: a replica that was stopped and not replaced would be missing permanently.
        work = asyncio.ensure_future(self._replace(scanned, targets, self._settings.grace(grace_seconds)))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.gather(work, return_exceptions=True)
            raise

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,
        purge: bool = False,  # noqa: ARG002  (results lie in volumes that the spec names, which are the user's)
        force: bool = False,  # noqa: ARG002  (the Engine's SIGKILL follows the grace)
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run and verify the removal; the last item is the Receipt."""
        self._ending.add(run.uid)
        self._has_news.set()
        try:
            removal = containers.destroy(self._engine, run, self._settings.grace(grace_seconds))
            async with aclosing(removal) as items:
                async for item in items:
                    yield item
        finally:
            self._ending.discard(run.uid)
            self._has_news.set()

    async def leaks(self) -> LeakReport:
        """List containers whose run no longer exists."""
        return await containers.leaks(self._engine)

    def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield lines of one container in the order of the Engine."""
        return ContainerLog(self._engine, pod.uid, pod.name).read(query)

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in the container on the caller's terminal; return its exit code."""
        return await attach_command(self._engine, pod.uid, argv)

    def attach(self, pod: PodView) -> AbstractAsyncContextManager[AttachedProcess]:
        """Attach to the standard streams of the container's own process."""
        return attached(self._engine, pod)

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run a command in the container without input and return its output."""
        return await capture_command(self._engine, pod.uid, argv)

    async def denied(self) -> Mapping[str, str]:
        """Permit everything: access to the Engine's socket allows all actions."""
        return {}

    @property
    def inspector(self) -> Inspector:
        """Descriptions, events and port forwarding, implemented by the three methods below."""
        return self

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return the Engine's facts about one object, its events last."""
        await self._node()
        return await describe.describe(self._engine, target, self._info)

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return the events of our containers that the Engine still has, newest last."""
        return await describe.events(self._engine, target)

    def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str]:
        """Forward connections from a port of the loopback address to a port of a container."""
        return describe.forward(self._engine, pod, local, remote)

    async def doctor(self) -> tuple[Finding, ...]:
        """Check the Engine and its GPUs."""
        await self._node()
        findings = engine_info.diagnose(self._info, self._engine.endpoint.label, self._gpus)
        return (*findings, *self.reservations.findings())

    async def close(self) -> None:
        """Close the connections; runs continue."""
        await self._engine.close()
        await asyncio.to_thread(self._gpu_reader.close)

    # --- inside ------------------------------------------------------------------------------------------------
    async def _node(self) -> Node:
        now = time.monotonic()
        if now >= self._node_expires:
            self._info = await self._engine.request_json("GET", "/info")
            self._node_expires = now + _NODE_SECONDS
        if now >= self._load_expires:
            self._gpus = await asyncio.to_thread(self._gpu_reader.read, engine_info.node_name(self._info))
            self._load = self._load_reader.read(self._info)
            self._load_expires = now + _LOAD_SECONDS
        cpu_used, memory_used = self._load
        node = engine_info.node(
            self._info, self._settings, self._gpus, cpu_used=cpu_used, memory_used_bytes=memory_used
        )
        return self.reservations.applied_to(node)

    async def _responds(self, seconds: float) -> bool:
        try:
            await self._engine.request("GET", "/_ping", seconds=seconds)
        except DockerError as error:
            return error.status != 0
        return True

    async def _listen(self) -> None:
        """Record each event; while the event stream is down, the polling rounds of watch() replace it."""
        filters = {"type": ["container", "network"], **views.ALL}
        while True:
            with contextlib.suppress(DockerError):
                async with aclosing(self._engine.stream("/events", filters=filters)) as blocks:
                    async for _ in blocks:
                        self._has_news.set()
            await asyncio.sleep(_ROUND_SECONDS)

    async def _undo_launch(self, plan: LaunchPlan) -> None:
        for run in plan.runs:
            view = RunView(run.uid, run.spec.name, run.spec.experiment)
            with contextlib.suppress(NotFoundError):
                async for _ in containers.destroy(self._engine, view, 0.0):
                    pass

    async def _replace(
        self, scanned: containers.EngineScan, targets: Sequence[Mapping[str, Any]], grace: float | None
    ) -> None:
        # Before anything stops: with its last container a run would lose its token.
        tokens: dict[str, bytes] = {}
        for container in targets:
            uid = container["Config"]["Labels"][views.RUN_ID]
            if uid not in tokens:
                tokens[uid] = await containers.read_token(self._engine, scanned.containers_of(uid))
        await self._stop(targets, grace)
        for container in targets:
            marks, pod = container["Config"]["Labels"], views.plan_of(container)
            run, token = _run_plan(scanned.network_of(marks[views.RUN])), tokens[marks[views.RUN_ID]]
            await self._start(await containers.create_container(self._engine, run, pod, token))

    async def _start(self, container: str) -> None:
        if error := await containers.start_container(self._engine, container):
            raise BackendError(error)

    async def _stop(self, targets: Sequence[Mapping[str, Any]], grace: float | None) -> None:
        ids = {container["Id"] for container in targets}
        self._ending |= ids
        self._has_news.set()
        try:
            await asyncio.gather(*(containers.stop_container(self._engine, target, grace) for target in targets))
        finally:
            self._ending -= ids
            self._has_news.set()


async def _is_done(task: asyncio.Task[Any], news: asyncio.Event) -> bool:
    """Wait for a task or an event; return True if the task has ended."""
    waiter = asyncio.create_task(news.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        waiter.cancel()


def _require_local(endpoint: DockerEndpoint) -> None:
    # GPUs are read by this machine's driver, and ports are forwarded to addresses of containers: neither works for
    # an Engine on another machine.
    if not endpoint.socket_path:
        raise UsageError(
            f"{endpoint.source} is {endpoint.url}: the docker backend only speaks to an Engine of this machine.",
            "Run l2rtui on that machine, or forward its socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST.",
        )


def _run_plan(network: Mapping[str, Any]) -> RunPlan:
    """Return the plan of a run from its network, for creating more of its pods."""
    marks = network["Labels"]
    return RunPlan(marks[views.RUN_ID], views.spec_of(network), marks.get(views.OWNER, ""), ())


def _replicas(scanned: containers.EngineScan, uid: str) -> Counter[str]:
    """Count the containers of each set of a run; containers with an unreadable plan belong to no set."""
    replicas: Counter[str] = Counter()
    for container in scanned.containers_of(uid):
        with contextlib.suppress(BackendError):
            replicas[views.plan_of(container).set_spec.name] += 1
    return replicas
