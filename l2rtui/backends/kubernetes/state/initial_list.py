"""Initial lists: all kinds are listed concurrently, and rows are made while the rest is still being received.

Making ten thousand rows takes half as long as the server needs to read the objects from etcd. So each page becomes
rows while the server works on the next one, once the nodes are known. A list from the server's watch cache would
take half the time, but it arrives in one piece, and all rows would be made after that.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.decode import Decoder, UndecodedObject
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.list_pages import ListResult, Scope, iter_pages, key_of
from l2rtui.backends.kubernetes.api.structs import (
    ConfigMapStruct,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    PodStruct,
)
from l2rtui.backends.kubernetes.state.dra_allocations import ResourceClaimStruct, ResourceSliceStruct
from l2rtui.backends.kubernetes.state.joiner import Joiner
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
    "ResourceClaim": ResourceClaimStruct,
    "ResourceSlice": ResourceSliceStruct,
}
PutMethod = Callable[[Any, Any], None]


@dataclass
class InitialLists:
    """Lists by scope, errors of failed lists, and the resulting row changes."""

    listings: dict[Scope, ListResult[Any]] = field(default_factory=dict)
    errors: dict[Scope, ApiError] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


async def list_all(api: Api, scopes: Sequence[Scope], joiner: Joiner, page_seconds: float) -> InitialLists:
    """List scopes into the joiner, each page within ``page_seconds``."""
    lists = InitialLists()
    nodes = [scope for scope in scopes if scope.kind == "Node"]

    async def read(scope: Scope) -> None:
        put = put_method(joiner, scope.kind)
        listing: ListResult[Any] = ListResult()
        try:
            decoder: Decoder[Any] = Decoder(STRUCTS[scope.kind])
            async with aclosing(iter_pages(api, scope, decoder, page_seconds)) as parts:
                async for page in parts:
                    if page is None:  # the revision has expired: listed objects may be gone by now
                        _withdraw(listing, put)
                    else:
                        _put_items(page.items, listing, put)
                    listing.add(page)
                    # Without its node a pod's GPUs are unknown, and the row would be made twice.
                    if all(node_scope in lists.listings or node_scope in lists.errors for node_scope in nodes):
                        lists.changes += joiner.changes()
            lists.listings[scope] = listing
        except ApiError as error:
            _withdraw(listing, put)
            lists.errors[scope] = error

    # No task group: a failed scope is reported together with the others and must not cancel them.
    tasks = [asyncio.create_task(read(scope)) for scope in scopes]
    with _no_garbage():
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        lists.changes += joiner.changes()
    return lists


async def list_kind(api: Api, scope: Scope, page_seconds: float) -> ListResult[Any]:
    """List one scope; ApiError if the server refuses, or if the response is not a list."""
    listing: ListResult[Any] = ListResult()
    async with aclosing(iter_pages(api, scope, Decoder(STRUCTS[scope.kind]), page_seconds)) as parts:
        async for page in parts:
            listing.add(page)
    return listing


def put_method(joiner: Joiner, kind: str) -> PutMethod:
    """Return the joiner's method for objects of a kind."""
    puts: dict[str, PutMethod] = {
        "Node": joiner.put_node,
        "Pod": joiner.put_pod,
        "ConfigMap": joiner.put_run,
        "Event": joiner.put_event,
        "NodeMetrics": joiner.put_metrics,
        "ResourceClaim": joiner.put_resource_claim,
        "ResourceSlice": joiner.put_resource_slice,
    }
    return puts.get(kind, joiner.put_controller)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Disable the garbage collector: rows have no cycles, and scanning them takes a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _put_items(items: Sequence[Any], listing: ListResult[Any], put: PutMethod) -> None:
    for item in items:
        if not isinstance(item, UndecodedObject):
            put(listing.items.get(key_of(item.metadata)), item)


def _withdraw(listing: ListResult[Any], put: PutMethod) -> None:
    """Remove the objects of an interrupted list, as it may be incomplete."""
    for item in listing.items.values():
        put(item, None)
