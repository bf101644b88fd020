"""Descriptions, events and port forwarding in several contexts, and switching of contexts and namespaces."""

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
