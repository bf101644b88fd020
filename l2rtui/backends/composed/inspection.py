"""Descriptions, events and ports in several contexts, and the choice of other contexts and namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from l2rtui.backends.base import ContextMember, Inspector
from l2rtui.backends.composed.member import SNAPSHOT_SECONDS, ComposedContext
from l2rtui.domain.event import KubeEvent
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.errors import BackendError, L2RError, NotFoundError

T = TypeVar("T")


def owner_of(members: Sequence[ComposedContext], row: PodView | RunView | Node) -> ComposedContext:
    """Return the context of a row.

    Raises:
        NotFoundError: it is shown no more.
    """
    for member in members:
        if member.rows.context == row.context:
            return member
    raise NotFoundError(f"No context that is shown has {row.name}.")


async def answers(
    members: Sequence[ComposedContext], ask: Callable[[ComposedContext], Awaitable[T]]
) -> list[tuple[ComposedContext, T | str]]:
    """Return the answer of each context, or the reason why it has none; a slow one delays this and nothing else."""

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
    """Inspector that asks the context of a row, or all of them."""

    def __init__(self, members: Sequence[ComposedContext]) -> None:
        self._members = members

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return the description that its own context has."""
        member = owner_of(self._members, target)
        return await _inspector(member).describe(member.rows.original(target))

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return the events of an object, or of all contexts, each object under its context; newest last."""
        if target is not None:
            member = owner_of(self._members, target)
            return await _inspector(member).events(member.rows.original(target))
        events: list[KubeEvent] = []
        for member, answer in await answers(self._members, lambda member: _inspector(member).events()):
            context = member.rows.context
            if isinstance(answer, str):
                # A list without a word of it would read as "nothing happened there".
                events.append(KubeEvent(0.0, "Warning", "NoAnswer", f"Context {context}", answer))
            else:
                events += (replace(event, object=_qualified(event.object, member)) for event in answer)
        return tuple(sorted(events, key=lambda event: event.time))

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str]:
        """Carry connections to a port of a pod of any of the contexts."""
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
    """Contexts of the kubeconfig, and the namespaces of all that are shown."""

    def __init__(self, members: Sequence[ComposedContext]) -> None:
        self._members = members

    @property
    def current(self) -> str:
        """Names of those that are shown, as ``--context`` takes them."""
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
        """Return the namespaces of every context that lists them, sorted; BackendError where none does."""

        async def listed(member: ComposedContext) -> tuple[str, ...]:
            contexts = member.backend.contexts
            return await contexts.namespaces() if contexts is not None else ()

        lists = [answer for _, answer in await answers(self._members, listed)]
        names = {name for answer in lists if not isinstance(answer, str) for name in answer}
        if not names and (reasons := [answer for answer in lists if isinstance(answer, str)]):
            raise BackendError(reasons[0])
        return tuple(sorted(names))

    async def open(self) -> None:
        """Connect to none yet: each is connected to by its own watch, and one that is away is shown as away."""

    def member(self, row: PodView | RunView | Node) -> ContextMember | None:
        """Return the context of a row; None where it is shown no more."""
        return next((member.member for member in self._members if member.rows.context == row.context), None)
