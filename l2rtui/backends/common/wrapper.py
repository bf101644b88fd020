# ruff: noqa: D102  (the protocol has the docstrings)
"""Base of backends that change a few methods of another backend and forward the rest, method by method.

The forwards are written out so that a type checker proves that a wrapper has the whole protocol.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from l2rtui.backends.base import Backend

if TYPE_CHECKING:
    from l2rtui.backends.base import (
        AttachedProcess,
        Contexts,
        Inspector,
        Renderer,
        Reservations,
        ResultStore,
        RunRecords,
        SecretStore,
        VolumeStore,
    )
    from l2rtui.backends.queue_store import QueueStore
    from l2rtui.domain.change import Change
    from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
    from l2rtui.domain.plan import LaunchPlan, ScalePlan, StepDone
    from l2rtui.domain.preflight import Finding
    from l2rtui.domain.receipt import DestroyProgress, LeakReport, Receipt
    from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
    from l2rtui.domain.workload import RunSpec


class WrappedBackend(Backend):
    """Forward everything to the wrapped backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name

    @property
    def location(self) -> str | None:
        return self._backend.location

    @property
    def queue(self) -> QueueStore | None:
        return self._backend.queue

    def acts_on(self, namespaces: Collection[str] = ()) -> str:
        return self._backend.acts_on(namespaces)

    @property
    def contexts(self) -> Contexts | None:
        return self._backend.contexts

    @property
    def inspector(self) -> Inspector | None:
        return self._backend.inspector

    @property
    def renderer(self) -> Renderer | None:
        return self._backend.renderer

    @property
    def volumes(self) -> VolumeStore | None:
        return self._backend.volumes

    @property
    def secrets(self) -> SecretStore | None:
        return self._backend.secrets

    @property
    def reservations(self) -> Reservations | None:
        return self._backend.reservations

    @property
    def results(self) -> Callable[[str], Awaitable[Path | None]] | None:
        return self._backend.results

    @property
    def kept_results(self) -> ResultStore | None:
        return self._backend.kept_results

    @property
    def history_to(self) -> str:
        return self._backend.history_to

    @property
    def records(self) -> RunRecords | None:
        return self._backend.records

    @property
    def adopt(self) -> Callable[[str], Awaitable[None]] | None:
        return self._backend.adopt

    async def snapshot(self) -> ClusterSnapshot:
        return await self._backend.snapshot()

    def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        return self._backend.watch()

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        return await self._backend.check(plan)

    def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        return self._backend.launch(plan)

    async def spec(self, run: str) -> RunSpec:
        return await self._backend.spec(run)

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        await self._backend.scale(plan, grace_seconds)

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        await self._backend.kill(pods, grace_seconds)

    def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt, None]:
        return self._backend.destroy(run, grace_seconds=grace_seconds, purge=purge, force=force)

    async def leaks(self) -> LeakReport:
        return await self._backend.leaks()

    def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        return self._backend.logs(pod, query)

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        return await self._backend.exec(pod, argv)

    def attach(self, pod: PodView) -> AbstractAsyncContextManager[AttachedProcess]:
        return self._backend.attach(pod)

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        return await self._backend.capture(pod, argv)

    async def denied(self) -> Mapping[str, str]:
        return await self._backend.denied()

    async def doctor(self) -> tuple[Finding, ...]:
        return await self._backend.doctor()

    async def close(self) -> None:
        await self._backend.close()
