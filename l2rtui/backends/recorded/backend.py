"""Backend that replays a recording; every call that would change something, or needs other data, is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from l2rtui.backends.base import AttachedProcess
from l2rtui.backends.recorded.player import Player
from l2rtui.domain.change import Change, difference
from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.plan import LaunchPlan, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.receipt import DestroyProgress, Leak, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import RefusedError


class ReplayBackend:
    """Cluster of a recording.

    Args:
        path: File that ``l2rtui --record`` has written.
        speed: Seconds of the recording per second.

    Raises:
        UsageError: The file is not a recording.
    """

    name = "replay"
    adopt = records = contexts = inspector = renderer = reservations = results = kept_results = queue = None
    secrets = volumes = None
    history_to = ""

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self.player = Player(path, speed)
        self._task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Return the time of the recording, seconds since the epoch."""
        return self.player.now()

    @property
    def location(self) -> str:
        """File, position in UTC, and speed."""
        player = self.player
        moment = datetime.fromtimestamp(player.now(), UTC)
        speed = "" if player.speed == 1.0 else f" x{player.speed:g}"
        end = " · ended" if player.end else ""
        return f"{player.path.name} {moment:%Y-%m-%d %H:%M:%S}{speed}{end}"

    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (nothing is changed in any)
        """Return the place where a change would act."""
        return f"on the recording {self.player.path.name}"

    # --- observation -------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Return the state at this moment of the replay; the first state before that."""
        self._start()
        async with aclosing(self.player.states()) as states:
            return await anext(states)

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes at the times at which they happened.

        Raises:
            BackendError: The recorded watch has failed at this moment.
        """
        self._start()
        latest, is_first = EMPTY_SNAPSHOT, True
        async with aclosing(self.player.states()) as states:
            async for state in states:
                changes = difference(latest, state)
                if changes or is_first:
                    latest, is_first = state, False
                    yield changes

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.player.run(), name="replay")

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield the recorded lines of a pod; a log that was not opened was not recorded."""
        async with aclosing(self.player.lines(pod.uid, query)) as lines:
            async for line in lines:
                yield line

    async def leaks(self) -> tuple[Leak, ...]:
        """Return no leak: a recording only has rows."""
        return ()

    async def denied(self) -> Mapping[str, str]:
        """Return the refusals, by action."""
        return dict.fromkeys(("launch", "kill", "scale", "destroy", "exec", "forward"), "this is a recording")

    async def doctor(self) -> tuple[Finding, ...]:
        """Return what was recorded, its time, and the recording version."""
        header = self.player.header
        sentence = f"of the backend {header.backend}, by l2rtui {header.version}"
        return (Finding(Severity.OK, self.player.path.name, sentence),)

    async def close(self) -> None:
        """Stop the replay."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # --- actions that a recording does not support -------------------------------------------------------------
    def _refuse(self, what: str) -> NoReturn:
        raise RefusedError(f"{what} is not possible: this is a recording.")

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:  # noqa: ARG002
        """Refuse a plan."""
        self._refuse("A plan")

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:  # noqa: ARG002
        """Refuse a launch."""
        self._refuse("A launch")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def spec(self, run: str) -> RunSpec:
        """Refuse to read a spec: it may contain confidential data, so it is not recorded."""
        self._refuse(f"The spec of {run}")

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:  # noqa: ARG002
        """Refuse to scale."""
        self._refuse(f"Scaling {plan.run}")

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:  # noqa: ARG002
        """Refuse to kill."""
        self._refuse("Killing pods")

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,  # noqa: ARG002
        purge: bool = False,  # noqa: ARG002
        force: bool = False,  # noqa: ARG002
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Refuse to destroy."""
        self._refuse(f"Destroying {run.name}")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:  # noqa: ARG002
        """Refuse a terminal."""
        self._refuse(f"A command in {pod.name}")

    @asynccontextmanager
    async def attach(self, pod: PodView) -> AsyncIterator[AttachedProcess]:
        """Refuse a terminal."""
        self._refuse(f"The input of {pod.name}")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:  # noqa: ARG002
        """Refuse a command."""
        self._refuse(f"A command in {pod.name}")
