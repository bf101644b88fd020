"""One look at everything: all kinds listed at the same time, and rows made while the rest is still on its way.

Making ten thousand rows takes half as long as the server needs to read what they are made of from its store. So
each page becomes rows while the server works on the next one, as soon as the nodes are known that the rows are read
against. The server's memory would answer in half the time, but in one piece, and all rows would be made after that.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.decode import Decoder, Unread
from l2rtui.backends.kubernetes.dra_structs import ClaimStruct, SliceStruct
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.join import Join
from l2rtui.backends.kubernetes.lists import Scope, Whole, key_of, pages
from l2rtui.backends.kubernetes.structs import (
    ConfigMapStruct,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    PodStruct,
)
from l2rtui.domain.change import Change

STRUCTS: Final[dict[str, type[Any]]] = {
    "Node": NodeStruct,
    "Pod": PodStruct,
    "ReplicaSet": ControllerStruct,
    "StatefulSet": ControllerStruct,
    "Job": ControllerStruct,
    "ConfigMap": ConfigMapStruct,
    "Event": EventStruct,
    "NodeMetrics": NodeMetricsStruct,
    "ResourceClaim": ClaimStruct,
    "ResourceSlice": SliceStruct,
}
Put = Callable[[Any, Any], None]


@dataclass
class Look:
    """What was found: lists, errors of those that there are not, and what the rows become by them."""

    wholes: dict[Scope, Whole[Any]] = field(default_factory=dict)
    errors: dict[Scope, ApiError] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


async def look(api: Api, scopes: Sequence[Scope], join: Join, page_seconds: float) -> Look:
    """List these scopes into the join.

    Args:
        page_seconds: Longest time for one page of a list.
    """
    found = Look()
    nodes = [scope for scope in scopes if scope.kind == "Node"]

    async def read(scope: Scope) -> None:
        put = putter(join, scope.kind)
        whole: Whole[Any] = Whole()
        try:
            decoder: Decoder[Any] = Decoder(STRUCTS[scope.kind])
            async with aclosing(pages(api, scope, decoder, page_seconds)) as parts:
                async for page in parts:
                    if page is None:
                        _take_back(whole, put)
                    else:
                        _give(page.items, whole, put)
                    whole.add(page)
                    if all(one in found.wholes or one in found.errors for one in nodes):
                        found.changes += join.changes()
            found.wholes[scope] = whole
        except ApiError as error:
            _take_back(whole, put)
            found.errors[scope] = error

    tasks = [asyncio.create_task(read(scope)) for scope in scopes]
    with _no_garbage():
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found.changes += join.changes()
    return found


async def whole_of(api: Api, scope: Scope, page_seconds: float) -> Whole[Any]:
    """One list for itself.

    Raises:
        ApiError: the server refuses, or what it sends is no list.
    """
    whole: Whole[Any] = Whole()
    async with aclosing(pages(api, scope, Decoder(STRUCTS[scope.kind]), page_seconds)) as parts:
        async for page in parts:
            whole.add(page)
    return whole


def putter(join: Join, kind: str) -> Put:
    """Where the join takes objects of a kind."""
    puts: dict[str, Put] = {
        "Node": join.put_node,
        "Pod": join.put_pod,
        "ConfigMap": join.put_run,
        "Event": join.put_event,
        "NodeMetrics": join.put_metrics,
        "ResourceClaim": join.put_claim,
        "ResourceSlice": join.put_slice,
    }
    return puts.get(kind, join.put_controller)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Look for no cycles meanwhile: rows have none, and looking through them all again and again as they come would
    cost a quarter of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _give(items: Sequence[Any], whole: Whole[Any], put: Put) -> None:
    for item in items:
        if not isinstance(item, Unread):
            put(whole.items.get(key_of(item.metadata)), item)


def _take_back(whole: Whole[Any], put: Put) -> None:
    """What a list has brought that broke off: nobody knows whether it is all there is."""
    for item in whole.items.values():
        put(item, None)
