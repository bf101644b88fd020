"""The Backend over one Docker Engine: joins its books, logs and commands."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

from l2rtui.backends.base import (
    Capabilities,
    Captured,
    DestroyProgress,
    KubeEvent,
    Leak,
    LogLine,
    LogQuery,
    Receipt,
    StepDone,
)
from l2rtui.backends.claiming import refuse_taken_slots
from l2rtui.backends.docker import beside, books, checks, inspector, labels, machine, views
from l2rtui.backends.docker import destroy as destruction
from l2rtui.backends.docker.engine import Engine, EngineError, socket_path
from l2rtui.backends.docker.logs import Reader
from l2rtui.config import Settings
from l2rtui.domain.change import Change, difference
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.plan import LaunchPlan, RunPlan, ScalePlan
from l2rtui.domain.preflight import Finding
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_GATHER_SECONDS = 0.1
"""Events come in swarms: one look for all of them."""
_ROUND_SECONDS = 5.0
_MACHINE_SECONDS = 30.0


class DockerBackend:
    """One Engine of this machine as the one node; see ``backends.base.Backend`` for what each method promises."""

    name = "docker"
    capabilities = Capabilities(has_events=True)

    def __init__(self, settings: Settings, *, path: str = "") -> None:
        self._settings = settings
        self._engine = Engine(path or socket_path())
        self._info: dict[str, Any] = {}
        self._gpus: tuple[tuple[Gpu, ...], str] = ((), "")
        self._machine_until = 0.0
        self._ending: set[str] = set()
        """Containers and runs that this process is stopping; the Engine itself shows only that they still run."""
        self._news = asyncio.Event()

    async def snapshot(self) -> ClusterSnapshot:
        """Look once at everything."""
        node = await self._node()
        look = await books.look(self._engine)
        seeds: dict[str, int] = {}
        runs: dict[str, RunView] = {}
        for network in look.networks:
            uid = network["Labels"][labels.RUN_ID]
            replicas = Counter(_set_of(one) for one in look.of_run(uid))
            runs[uid] = views.run_view(network, replicas, is_terminating=uid in self._ending)
            seeds[uid] = runs[uid].seed
        pods: dict[str, PodView] = {}
        problems = [node.message] if node.message else []
        for one in look.containers:
            uid = one["Config"]["Labels"][labels.RUN_ID]
            is_ending = uid in self._ending or one["Id"] in self._ending
            try:
                pods[one["Id"]] = views.pod_view(one, node.name, seeds.get(uid, 0), is_terminating=is_ending)
            except BackendError as error:
                problems.append(error.message.rstrip("."))
        return ClusterSnapshot(
            MappingProxyType({node.name: node}),
            MappingProxyType(pods),
            MappingProxyType(runs),
            problems=tuple(problems),
        )

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Give changes as the Engine tells of them, and every five seconds whatever it tells."""
        listener = asyncio.create_task(self._listen())
        seen, is_first = EMPTY_SNAPSHOT, True
        try:
            while True:
                self._news.clear()
                newest = await self.snapshot()
                changes = difference(seen, newest)
                if changes or is_first:
                    seen, is_first = newest, False
                    yield changes
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _ROUND_SECONDS)
                await asyncio.sleep(_GATHER_SECONDS)
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Find out whether the Engine has the images, and can do what the spec asks for."""
        await self._node()
        return await checks.check_plan(self._engine, self._info, plan)

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
        """Carry out a plan: make every network and container at once, under the lock, then start them in order."""
        if plan.conflicts:
            raise RefusedError(f"{'; '.join(plan.conflicts)}.", "Plan again.")
        for run in plan.runs:
            checks.refuse_impossible(run.spec)
        async with books.claiming(self._engine):
            snapshot = await self.snapshot()
            refuse_taken_slots((pod for run in plan.runs for pod in run.pods), snapshot)
            for run in plan.runs:
                if snapshot.run_named(run.spec.name) is not None:
                    raise RefusedError(
                        f"A run named {run.spec.name} exists.",
                        f"Choose another name, or `l2rtui destroy {run.spec.name}` first.",
                    )
            try:
                for run in plan.runs:
                    await books.create_run(self._engine, run)
            except BackendError:
                await self._take_back(plan)
                raise
        made = {views.name_of(one): one["Id"] for one in (await books.look(self._engine)).containers}
        steps = iter(plan.steps())
        for run in plan.runs:
            yield StepDone(next(steps))
            for pod in run.pods:
                error = "it was removed meanwhile"
                if pod.name in made:
                    error = await books.start(self._engine, made[pod.name])
                yield StepDone(next(steps), error)

    async def spec(self, run: str) -> RunSpec:
        """The spec of a run, with as many replicas as there are containers."""
        look = await books.look(self._engine)
        network = look.network(run)
        spec = views.spec_of(network)
        replicas = Counter(_set_of(one) for one in look.of_run(network["Labels"][labels.RUN_ID]))
        for one in spec.sets:
            spec = spec.with_replicas(one.name, replicas[one.name])
        return spec

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas."""
        if plan.conflicts:
            raise RefusedError(f"{'; '.join(plan.conflicts)}.", "Plan again.")
        async with books.claiming(self._engine):
            look = await books.look(self._engine)
            network = look.network(plan.run)
            containers = look.of_run(network["Labels"][labels.RUN_ID])
            refuse_taken_slots(plan.added, await self.snapshot())
            run, token = _run_plan(network), await books.token_of(self._engine, containers)
            fresh = [await books.create(self._engine, run, pod, token) for pod in plan.added]
        for container in fresh:
            if error := await books.start(self._engine, container):
                raise BackendError(error)
        removed = [one for one in containers if views.name_of(one) in plan.removed]
        await self._stop(removed, self._grace(grace_seconds))

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods and put others in their places; returns when those have been started."""
        look = await books.look(self._engine)
        known = {one["Id"]: one for one in look.containers}
        for pod in pods:
            if pod.uid not in known:
                raise NotFoundError(f"The pod {pod.name} is gone.", "Look at the pods again.")
        chosen = [known[pod.uid] for pod in pods]
        # Whole or not at all: a replica that was stopped and not replaced would be missing for ever.
        work = asyncio.ensure_future(self._replace(look, chosen, self._grace(grace_seconds)))
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
        """Remove a run and prove it; the last item is the Receipt."""
        self._ending.add(run.uid)
        self._news.set()
        try:
            async with aclosing(destruction.destroy(self._engine, run, self._grace(grace_seconds))) as items:
                async for item in items:
                    yield item
        finally:
            self._ending.discard(run.uid)
            self._news.set()

    async def leaks(self) -> tuple[Leak, ...]:
        """Look for containers whose run is gone."""
        return await destruction.leaks(self._engine)

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Lines of one container in the order in which they were written."""
        async with aclosing(Reader(self._engine, pod.uid, pod.name).read(query)) as lines:
            async for line in lines:
                yield line

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in the container, on the caller's own terminal; its exit code."""
        return await beside.attached(self._engine, pod.uid, argv)

    async def capture(self, pod: PodView, argv: Sequence[str]) -> Captured:
        """Run a command in the container without input, and give what it says."""
        return await beside.captured(self._engine, pod.uid, argv)

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """All that the Engine knows of one object, its events last."""
        await self._node()
        return await inspector.describe(self._engine, target, self._info)

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """What the Engine remembers of our containers, newest last."""
        return await inspector.events(self._engine, target)

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str]:
        """Carry connections from a port of the loopback address to one of a container."""
        async with aclosing(inspector.forward(self._engine, pod, local, remote)) as news:
            async for sentence in news:
                yield sentence

    async def doctor(self) -> tuple[Finding, ...]:
        """What works at this Engine."""
        await self._node()
        return checks.diagnose(self._info, self._engine.path, self._gpus)

    async def close(self) -> None:
        """Let go of the connections; runs go on."""
        await self._engine.close()

    # --- inside ------------------------------------------------------------------------------------------------
    async def _node(self) -> Node:
        now = time.monotonic()
        if now >= self._machine_until:
            self._info = await self._engine.ask("GET", "/info")
            name = machine.node_name(self._info)
            self._gpus = await asyncio.to_thread(machine.read_gpus, name, self._settings.slots_per_gpu)
            self._machine_until = now + _MACHINE_SECONDS
        return machine.node(self._info, self._settings, *self._gpus)

    async def _listen(self) -> None:
        """Note that something has happened; where the Engine does not tell, the rounds do."""
        filters = {"type": ["container", "network"], **labels.ALL}
        while True:
            with contextlib.suppress(EngineError):
                async with aclosing(self._engine.stream("/events", filters=filters)) as blocks:
                    async for _ in blocks:
                        self._news.set()
            await asyncio.sleep(_ROUND_SECONDS)

    async def _take_back(self, plan: LaunchPlan) -> None:
        for run in plan.runs:
            gone = RunView(run.uid, run.spec.name, run.spec.experiment)
            with contextlib.suppress(NotFoundError):
                async for _ in destruction.destroy(self._engine, gone, 0.0):
                    pass

    async def _replace(self, look: books.Look, chosen: Sequence[Mapping[str, Any]], grace: float | None) -> None:
        tokens: dict[str, bytes] = {}
        for one in chosen:
            uid = one["Config"]["Labels"][labels.RUN_ID]
            if uid not in tokens:
                tokens[uid] = await books.token_of(self._engine, look.of_run(uid))
        await self._stop(chosen, grace)
        for one in chosen:
            found = one["Config"]["Labels"]
            run = _run_plan(look.network(found[labels.RUN]))
            fresh = await books.create(self._engine, run, views.plan_of(one), tokens[found[labels.RUN_ID]])
            if error := await books.start(self._engine, fresh):
                raise BackendError(error)

    async def _stop(self, containers: Sequence[Mapping[str, Any]], grace: float | None) -> None:
        ids = {one["Id"] for one in containers}
        self._ending |= ids
        self._news.set()
        try:
            await asyncio.gather(*(books.stop(self._engine, one, grace) for one in containers))
        finally:
            self._ending -= ids
            self._news.set()

    def _grace(self, grace_seconds: float | None) -> float | None:
        return self._settings.grace_seconds if grace_seconds is None else grace_seconds


def _run_plan(network: Mapping[str, Any]) -> RunPlan:
    """The run of a network, for making more of its pods."""
    found = network["Labels"]
    return RunPlan(found[labels.RUN_ID], views.spec_of(network), found.get(labels.OWNER, ""), ())


def _set_of(container: Mapping[str, Any]) -> str:
    try:
        return views.plan_of(container).set_spec.name
    except BackendError:
        return ""
