"""Decoding of lists and watch events into structs, item by item: one malformed object does not affect the others.

Pure. A line that is not JSON, or an object that does not match its struct, also becomes a value, so that the caller
can count and show it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from l2rtui.backends.kubernetes.api.structs import (
    KubeObject,
    ObjectList,
    ObjectMeta,
    PartialObject,
    PartialPod,
    StatusStruct,
    WatchEvent,
)

T = TypeVar("T", bound=KubeObject)
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that a server's JSON may raise; the last one for extremely nested JSON."""
# etcd refuses objects above 1.5 MiB by default, so events of a healthy server are far smaller.
_MAX_LINE_BYTES = 64 << 20
_MAX_HEAD_BYTES = 8 << 10
_MAX_TYPED_PAGE_BYTES = 4 << 20
"""A page up to this size is decoded in one call, about 20 ms: a third faster than item by item."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class UndecodedObject(Struct, frozen=True):
    """An object that cannot be decoded, except for its metadata and the node of a bound pod."""

    metadata: ObjectMeta
    error: str
    node: str = ""


class Upsert(Struct, Generic[T], frozen=True):
    """An object was added or modified (ADDED, MODIFIED), with its new state."""

    item: T | UndecodedObject
    meta: ObjectMeta


class Deletion(Struct, frozen=True):
    """An object was deleted (DELETED), with its last metadata."""

    meta: ObjectMeta


class Bookmark(Struct, frozen=True):
    """All events up to this revision have been sent (BOOKMARK); ``is_end_of_initial`` ends a streamed list."""

    revision: str
    is_end_of_initial: bool


class WatchFailure(Struct, frozen=True):
    """The server ended the watch with an error (ERROR)."""

    code: int
    reason: str
    message: str


class GarbledLine(Struct, frozen=True):
    """A line that is not a watch event."""

    error: str


DecodedEvent = Upsert[T] | Deletion | Bookmark | WatchFailure | GarbledLine


class ListPage(Struct, Generic[T], frozen=True):
    """One page of a list; ``lost`` counts items of which not even the metadata can be decoded."""

    items: tuple[T | UndecodedObject, ...]
    revision: str
    lost: int


class LineBuffer:
    """Splits chunks of any size into lines; an incomplete last line is buffered."""

    def __init__(self, longest: int = _MAX_LINE_BYTES) -> None:
        self._rest = bytearray()
        self._longest = longest
        self._is_skipping = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that this chunk completes, without line ends; empty lines are dropped."""
        head, end, tail = chunk.partition(b"\n")
        if not end:
            self._keep(head)
            return
        if self._is_skipping:
            self._is_skipping = False
            # Placeholder for the line that was too long: it decodes to GarbledLine, so the caller lists again.
            yield b"\xff"
        else:
            first = bytes(self._rest) + head if self._rest else head
            self._rest.clear()
            if first.strip():
                yield first
        # One split for all other lines: a burst of ten thousand events costs no Python call per byte or line.
        *lines, rest = tail.split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if self._is_skipping:
            return
        self._rest += part
        if len(self._rest) > self._longest:
            self._rest.clear()
            self._is_skipping = True


class Decoder(Generic[T]):
    """Decoder for lists and watches of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._item = msgspec.json.Decoder(kind)
        self._event = msgspec.json.Decoder(WatchEvent)
        self._meta = msgspec.json.Decoder(PartialObject)
        self._pod = msgspec.json.Decoder(PartialPod)
        self._status = msgspec.json.Decoder(StatusStruct)
        self._raw_list = msgspec.json.Decoder(ObjectList[msgspec.Raw])
        self._typed_list = msgspec.json.Decoder(ObjectList[kind])  # type: ignore[valid-type]  # the caller's

    def page(self, body: bytes) -> ObjectList[T] | ObjectList[msgspec.Raw]:
        """Decode a page; items stay raw if the page is very long or if one of them cannot be decoded.

        Raises:
            UNDECODABLE: The body is not a list.
        """
        # Long pages stay raw, since decoding them in one call would block the event loop for too long.
        if len(body) <= _MAX_TYPED_PAGE_BYTES:
            with contextlib.suppress(*UNDECODABLE):
                return self._typed_list.decode(body)
        return self._raw_list.decode(body)

    def continue_token(self, head: bytes) -> str:
        """Return the ``continue`` token of a page from its first bytes; empty if they do not contain it.

        Servers write the list's metadata before its items, so the next page can be requested while this one is
        still being received.
        """
        # The metadata is completed to a list without items; other fields in the head (kind, apiVersion) stay.
        before, is_found, _ = head[:_MAX_HEAD_BYTES].partition(b'"items":')
        if not is_found:
            return ""
        try:
            return self._raw_list.decode(before + b'"items":[]}').metadata.continue_ or ""
        except UNDECODABLE:
            return ""

    def parts(self, page: ObjectList[T] | ObjectList[msgspec.Raw], size: int) -> Iterator[ListPage[T]]:
        """Yield the items of a page in portions of ``size``, so that the event loop can run in between."""
        revision = page.metadata.resource_version or ""
        items: Sequence[Any] = page.items or ()
        is_raw = bool(items) and isinstance(items[0], msgspec.Raw)
        for first in range(0, max(1, len(items)), size):
            some = items[first : first + size]
            yield self._part(some, revision) if is_raw else ListPage(tuple(some), revision, 0)

    def _part(self, raws: Sequence[msgspec.Raw], revision: str) -> ListPage[T]:
        """Decode some items separately."""
        items: list[T | UndecodedObject] = []
        lost = 0
        for raw in raws:
            try:
                items.append(self._item.decode(raw))
            except UNDECODABLE as error:
                undecoded = self._undecoded(raw, error)
                if undecoded is None:
                    lost += 1
                else:
                    items.append(undecoded)
        return ListPage(tuple(items), revision, lost)

    def event(self, line: bytes) -> DecodedEvent[T]:
        """Decode one line of a watch."""
        try:
            event = self._event.decode(line)
            match event.type:
                case "ADDED" | "MODIFIED":
                    return self._put(event.object)
                case "DELETED":
                    # Only the metadata: the object may not fit its struct, and it no longer exists anyway.
                    return Deletion(self._meta.decode(event.object).metadata)
                case "BOOKMARK":
                    meta = self._meta.decode(event.object).metadata
                    return Bookmark(meta.resource_version, meta.annotation(INITIAL_EVENTS_END) == "true")
                case "ERROR":
                    status = self._status.decode(event.object)
                    return WatchFailure(status.code or 0, status.reason or "", status.message or "")
                case _:
                    return GarbledLine(f"an event of the unknown type {event.type!r}")
        except UNDECODABLE as error:
            return GarbledLine(str(error))

    def _put(self, raw: msgspec.Raw) -> DecodedEvent[T]:
        try:
            item = self._item.decode(raw)
        except UNDECODABLE as error:
            undecoded = self._undecoded(raw, error)
            return GarbledLine(str(error)) if undecoded is None else Upsert(undecoded, undecoded.metadata)
        return Upsert(item, item.metadata)

    def _undecoded(self, raw: msgspec.Raw, error: Exception) -> UndecodedObject | None:
        try:
            metadata = self._meta.decode(raw).metadata
        except UNDECODABLE:
            return None
        node = ""
        with contextlib.suppress(*UNDECODABLE):
            node = self._pod.decode(raw).spec.node_name or ""
        return UndecodedObject(metadata, str(error), node)
