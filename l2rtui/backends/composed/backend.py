"""Several contexts as one backend that is only looked at.

Each context has its own watch and its own health: one that is away is a sentence, and its rows stay as they were;
the rows of the others go on. Changes need one context, so every call that would change something is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NoReturn

from l2rtui.backends.base import Backend
from l2rtui.backends.composed.member import ComposedContext, facts
from l2rtui.backends.composed.qualified import short_names
from l2rtui.domain.change import Change, apply
from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.plan import LaunchPlan, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding
from l2rtui.domain.receipt import DestroyProgress, Leak, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, L2RError, NotFoundError, RefusedError

SNAPSHOT_SECONDS: Final = 15.0
"""Longest wait for a context in a list that is printed once: a server behind a firewall never refuses."""


class ComposedBackend:
    """Nodes, slots, runs and pods of several contexts.

    Args:
        members: Backends by the name of their context, in the order of the rows; closed with this one.
    """

    name = "composed"
    adopt = contexts = inspector = renderer = results = secrets = volumes = None

    def __init__(self, members: Mapping[str, Backend]) -> None:
        names = short_names(tuple(members))
        self._members = tuple(
            ComposedContext(name, backend) for name, backend in zip(names, members.values(), strict=True)
        )

    @property
    def location(self) -> str:
        """Names of the contexts."""
        return ", ".join(member.rows.context for member in self._members)

    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (nothing is changed in any)
        """Return the contexts that are shown."""
        return f"on the contexts {self.location}"

    # --- observation -------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Return the present rows of every context that answers; the others are problems of the snapshot.

        Raises:
            L2RError: none of them answers; that of the first.
        """
        answers = await asyncio.gather(*(self._listed(member) for member in self._members))
        errors = [answer for answer in answers if isinstance(answer, L2RError)]
        if len(errors) == len(answers):
            raise errors[0]
        changes = [change for answer in answers if not isinstance(answer, L2RError) for change in answer]
        return apply(EMPTY_SNAPSHOT, [*changes, facts(self._members)])

    async def _listed(self, member: ComposedContext) -> tuple[Change, ...] | L2RError:
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                changes = await member.snapshot()
        except L2RError as error:
            member.fail(str(error))
            return error
        except TimeoutError:
            member.fail(f"no answer within {SNAPSHOT_SECONDS:.0f} s")
            return BackendError(f"The context {member.rows.context} gave no answer.", "Try again.")
        return changes

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes of all contexts as they happen; the first batch comes with the first that answers.

        Raises:
            BackendError: none of them has answered, and each has failed.
        """
        pending: list[Change] = []
        news = asyncio.Event()

        def report(changes: tuple[Change, ...]) -> None:
            pending.extend(changes)
            news.set()

        watches = [asyncio.create_task(member.watch(report)) for member in self._members]
        for watch in watches:
            watch.add_done_callback(lambda _: news.set())
        last, has_yielded = None, False
        try:
            while True:
                await news.wait()
                news.clear()
                for watch in watches:
                    if watch.done():
                        watch.result()  # it never ends but by a defect, which must not look like a quiet cluster
                if not has_yielded and all(member.problem for member in self._members):
                    raise BackendError("; ".join(facts(self._members).problems))
                if not has_yielded and all(member.problem or not member.has_answered for member in self._members):
                    continue  # only failures so far: the others may answer
                batch, problems = tuple(pending), facts(self._members)
                pending.clear()
                if batch or problems != last:
                    last, has_yielded = problems, True
                    yield (*batch, problems)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield lines of a pod of any of the contexts."""
        member = next((member for member in self._members if member.rows.context == pod.context), None)
        if member is None:
            raise NotFoundError(f"No context that is shown has the pod {pod.name}.")
        async with aclosing(member.backend.logs(member.rows.original(pod), query)) as lines:
            async for line in lines:
                yield line

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(member.backend.close() for member in self._members))

    # --- what needs one context --------------------------------------------------------------------------------
    def _refuse(self, what: str) -> NoReturn:
        contexts = " or ".join(f"`--context {member.rows.context}`" for member in self._members)
        raise RefusedError(f"{what} needs one context.", f"Name it: {contexts}.")

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:  # noqa: ARG002
        """Refuse a plan: its slots and objects are of one cluster."""
        self._refuse("A plan")

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:  # noqa: ARG002
        """Refuse a launch."""
        self._refuse("A launch")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def spec(self, run: str) -> RunSpec:
        """Refuse to read a spec by a name that several contexts may have."""
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

    async def leaks(self) -> tuple[Leak, ...]:
        """Refuse to search for leaks."""
        self._refuse("A search for leaks")

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:  # noqa: ARG002
        """Refuse a terminal."""
        self._refuse(f"A command in {pod.name}")

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:  # noqa: ARG002
        """Refuse a command."""
        self._refuse(f"A command in {pod.name}")

    async def denied(self) -> Mapping[str, str]:
        """Return the refusals, by action."""
        reason = "several contexts are only shown"
        return dict.fromkeys(("launch", "kill", "scale", "destroy", "exec", "forward"), reason)

    async def doctor(self) -> tuple[Finding, ...]:
        """Refuse a diagnosis."""
        self._refuse("A check")
