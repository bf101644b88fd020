"""Several contexts as one backend.

Each context has its own watch and its own health. If one is unreachable, a sentence says so and its rows stay as
they were, while the others stay current. The backend of a row's context performs actions on that row. An action
that concerns the slots of a whole cluster (launch, scale) needs one context and is refused here.

Descriptions, events and port forwarding find their context by the row's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NoReturn, TypeVar

from msgspec.structs import replace

from l2rtui.backends.base import AttachedProcess, Backend, ContextMember, Inspector
from l2rtui.backends.composed.member import SNAPSHOT_SECONDS, ComposedContext, facts, short_names
from l2rtui.config import Settings
from l2rtui.domain.change import Change, apply
from l2rtui.domain.log import CommandOutput, KubeEvent, LogLine, LogQuery
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding
from l2rtui.domain.receipt import DestroyProgress, Leak, LeakReport, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, L2RError, NotFoundError, RefusedError

T = TypeVar("T")


def owner_of(members: Sequence[ComposedContext], row: PodView | RunView | Node) -> ComposedContext:
    """Return the context of a row.

    Raises:
        NotFoundError: The context is no longer shown.
    """
    for member in members:
        if member.rows.context == row.context:
            return member
    raise NotFoundError(f"No context that is shown has {row.name}.")


async def answers(
    members: Sequence[ComposedContext], ask: Callable[[ComposedContext], Awaitable[T]]
) -> list[tuple[ComposedContext, T | str]]:
    """Return the result of each context, or the reason for its failure; a slow context only delays this call."""

    async def answer(member: ComposedContext) -> T | str:
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                return await ask(member)
        except L2RError as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {SNAPSHOT_SECONDS:.0f} s"

    return list(zip(members, await asyncio.gather(*map(answer, members)), strict=True))


class ComposedInspector:
    """Inspector that queries the context of a row, or all contexts."""

    def __init__(self, members: Sequence[ComposedContext]) -> None:
        self._members = members

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return the description from the row's own context."""
        member = owner_of(self._members, target)
        return await _inspector(member).describe(member.rows.original(target))

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return the events of an object, or of all contexts with qualified object names; newest last."""
        if target is not None:
            member = owner_of(self._members, target)
            return await _inspector(member).events(member.rows.original(target))
        events: list[KubeEvent] = []
        for member, answer in await answers(self._members, lambda member: _inspector(member).events()):
            context = member.rows.context
            if isinstance(answer, str):
                # Without an entry for the failure, the list would read as "nothing happened there".
                events.append(KubeEvent(0.0, "Warning", "NoAnswer", f"Context {context}", answer))
            else:
                events += (replace(event, object=_qualified(event.object, member)) for event in answer)
        return tuple(sorted(events, key=lambda event: event.time))

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str]:
        """Forward connections to a port of a pod in any of the contexts."""
        member = owner_of(self._members, pod)
        async with aclosing(_inspector(member).forward(member.rows.original(pod), local, remote)) as sentences:
            async for sentence in sentences:
                yield sentence


def _inspector(member: ComposedContext) -> Inspector:
    if member.backend.inspector is None:
        raise BackendError(f"The context {member.rows.context} has no descriptions and events.")
    return member.backend.inspector


def _qualified(kind_and_name: str, member: ComposedContext) -> str:
    kind, _, name = kind_and_name.rpartition(" ")
    return f"{kind} {member.rows.prefix}{name}".lstrip()


class ComposedContexts:
    """Contexts of the kubeconfig, and the namespaces of all contexts that are shown."""

    def __init__(self, members: Sequence[ComposedContext]) -> None:
        self._members = members

    @property
    def current(self) -> str:
        """Names of the shown contexts, in the format of ``--context``."""
        return ",".join(member.settings.context for member in self._members)

    @property
    def members(self) -> tuple[ContextMember, ...]:
        """Contexts that are shown."""
        return tuple(member.member for member in self._members)

    def names(self) -> tuple[str, ...]:
        """Return the names of all contexts of the kubeconfig."""
        contexts = next((member.backend.contexts for member in self._members if member.backend.contexts), None)
        return contexts.names() if contexts is not None else ()

    @property
    def namespace(self) -> str:
        """Return nothing: each context has its own."""
        return ""

    async def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of every context that lists them, sorted; BackendError if none does."""

        async def listed(member: ComposedContext) -> tuple[str, ...]:
            contexts = member.backend.contexts
            return await contexts.namespaces() if contexts is not None else ()

        lists = [answer for _, answer in await answers(self._members, listed)]
        names = {name for answer in lists if not isinstance(answer, str) for name in answer}
        if not names and (reasons := [answer for answer in lists if isinstance(answer, str)]):
            raise BackendError(reasons[0])
        return tuple(sorted(names))

    async def open(self) -> None:
        """Do nothing: each context's own watch connects, and an unreachable context is shown as such."""

    def member(self, row: PodView | RunView | Node) -> ContextMember | None:
        """Return the context of a row; None if it is no longer shown."""
        return next((member.member for member in self._members if member.rows.context == row.context), None)


class ComposedBackend:
    """Nodes, slots, runs and pods of several contexts.

    Args:
        members: Backends with their settings by context name, in the order of the rows; closed with this one.
    """

    adopt = records = renderer = reservations = results = kept_results = queue = secrets = volumes = None
    history_to = ""

    def __init__(self, members: Mapping[str, tuple[Backend, Settings]]) -> None:
        names = short_names(tuple(members))
        self._members = tuple(
            ComposedContext(name, *member) for name, member in zip(names, members.values(), strict=True)
        )
        self.name = self._members[0].backend.name
        self.contexts = ComposedContexts(self._members)
        self.inspector = ComposedInspector(self._members)

    @property
    def location(self) -> str:
        """Names of the contexts, for display."""
        return ", ".join(member.rows.context for member in self._members)

    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (a change is of one context)
        """Return the contexts that are shown."""
        return f"on the contexts {self.location}"

    # --- observation -------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Return the current rows of every context that responds; the others become problems of the snapshot.

        Raises:
            L2RError: No context responds; this is the error of the first.
        """
        lists = await asyncio.gather(*(member.snapshot() for member in self._members), return_exceptions=True)
        errors = [answer for answer in lists if isinstance(answer, BaseException)]
        if defect := next((error for error in errors if not isinstance(error, L2RError)), None):
            raise defect
        if len(errors) == len(lists):
            raise errors[0]
        changes = [change for answer in lists if not isinstance(answer, BaseException) for change in answer]
        return apply(EMPTY_SNAPSHOT, [*changes, *facts(self._members)])

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes of all contexts as they happen; the first batch comes with the first response.

        Raises:
            BackendError: No context has responded, and each has failed.
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
                        watch.result()  # it only ends by a defect, which must not look like a quiet cluster
                if not has_yielded and all(member.problem for member in self._members):
                    raise BackendError("; ".join(facts(self._members)[0].problems))
                if not has_yielded and all(member.problem or not member.has_answered for member in self._members):
                    continue  # only failures so far: the others may respond
                batch, now = tuple(pending), facts(self._members)
                pending.clear()
                if batch or now != last:
                    last, has_yielded = now, True
                    yield (*batch, *now)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield lines of a pod of any of the contexts."""
        member = owner_of(self._members, pod)
        async with aclosing(member.backend.logs(member.rows.original(pod), query)) as lines:
            async for line in lines:
                yield line

    async def leaks(self) -> LeakReport:
        """Return leaked objects of every context; a context that does not respond is itself an entry."""
        leaks: list[Leak] = []
        unseen: list[str] = []
        for member, answer in await answers(self._members, lambda member: member.backend.leaks()):
            if isinstance(answer, str):
                # Without it the list would read as "nothing is leaked there".
                leaks.append(Leak("", "Context", member.rows.context, f"nothing is known of it: {answer}"))
            else:
                leaks += map(member.rows.leak, answer.leaks)
                if answer.not_seen:
                    unseen.append(f"{answer.not_seen} of {member.rows.context}")
        return LeakReport(tuple(leaks), ", ".join(unseen))

    async def denied(self) -> Mapping[str, str]:
        """Return actions that need a single context, and actions denied by every context that responds."""
        lists = [answer for _, answer in await answers(self._members, lambda member: member.backend.denied())]
        denials = [answer for answer in lists if not isinstance(answer, str)] or [{}]
        common = {action: reason for action, reason in denials[0].items() if all(action in own for own in denials)}
        reason = f"it needs one context, such as `:ctx {self._members[0].settings.context}`"
        return {**common, "launch": reason, "volumes": reason}

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(member.backend.close() for member in self._members))

    # --- changes of one row ------------------------------------------------------------------------------------
    async def spec(self, run: str) -> RunSpec:
        """Return the spec of a run by its qualified name."""
        context, _, name = run.rpartition(":")  # no run has a colon in its name; a context may
        for member in self._members:
            if member.rows.context == context:
                return await member.backend.spec(name)
        raise NotFoundError(f"There is no run {run}.", "Its name begins with that of its context.")

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop pods of one context.

        Raises:
            RefusedError: They belong to several contexts, or their context is read-only; nothing was stopped.
        """
        if len(names := sorted({pod.context for pod in pods})) > 1:
            raise RefusedError(
                f"These pods are of the contexts {', '.join(names)}.", "Kill those of one at a time."
            )
        for member in {owner_of(self._members, pod) for pod in pods}:
            member.require_writable("Killing pods")
            await member.backend.kill([member.rows.original(pod) for pod in pods], grace_seconds)

    async def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run from its context and verify the removal; the last item is the Receipt."""
        member = owner_of(self._members, run)
        member.require_writable(f"Destroying {run.name}")
        own = member.rows.original(run)
        items = member.backend.destroy(own, grace_seconds=grace_seconds, purge=purge, force=force)
        async with aclosing(items):
            async for item in items:
                yield member.rows.receipt(item) if isinstance(item, Receipt) else item

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in a pod on the caller's own terminal; return its exit code."""
        member = owner_of(self._members, pod)
        member.require_writable(f"A command in {pod.name}")
        return await member.backend.exec(member.rows.original(pod), argv)

    @asynccontextmanager
    async def attach(self, pod: PodView) -> AsyncIterator[AttachedProcess]:
        """Attach to the standard streams of a pod's own process."""
        member = owner_of(self._members, pod)
        member.require_writable(f"The input of {pod.name}")
        async with member.backend.attach(member.rows.original(pod)) as process:
            yield process

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run a command in a pod without input; return its output."""
        member = owner_of(self._members, pod)
        return await member.backend.capture(member.rows.original(pod), argv)

    # --- what needs one context --------------------------------------------------------------------------------
    def _refuse(self, what: str) -> NoReturn:
        contexts = " or ".join(f"`--context {member.settings.context}`" for member in self._members)
        raise RefusedError(f"{what} needs one context.", f"Name it: {contexts}.")

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:  # noqa: ARG002
        """Refuse a plan: its slots and objects must be in one cluster."""
        self._refuse("A plan")

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:  # noqa: ARG002
        """Refuse a launch."""
        self._refuse("A launch")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:  # noqa: ARG002
        """Refuse to scale, as a plan needs the slots of one cluster."""
        self._refuse(f"Scaling {plan.run}")

    async def doctor(self) -> tuple[Finding, ...]:
        """Refuse a diagnosis."""
        self._refuse("A check")
