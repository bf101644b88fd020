"""Paged list of one kind at one revision: the start of a watch, or all that a single snapshot needs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from l2rtui.backends.kubernetes.api.client import PAGE, Api
from l2rtui.backends.kubernetes.api.decode import UNDECODABLE, Decoder, ListPage, UndecodedObject
from l2rtui.backends.kubernetes.api.errors import ApiError, RequestInfo, status_error
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import KubeObject, ObjectList, ObjectMeta

T = TypeVar("T", bound=KubeObject)
_MAX_PENDING = 2
"""Number of pages in transfer or being decoded; a third would only occupy memory."""


class Scope(Struct, frozen=True):
    """Selection of objects of one kind: one namespace or all (None), and selectors in kubectl's syntax.

    Attributes:
        api_version: For a kind whose version differs between servers; empty for the usual one.
    """

    kind: str
    namespace: str | None = None
    labels: str = ""
    fields: str = ""
    api_version: str = ""

    @property
    def path(self) -> str:
        """Path of the collection."""
        return KINDS[self.kind].at(self.api_version).path(self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """Query parameters of the selectors."""
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in chosen.items() if value}

    def __str__(self) -> str:
        where = f" in the namespace {self.namespace}" if self.namespace else ""
        return f"{KINDS[self.kind].plural}{where}"


class ListResult(Generic[T]):
    """List that is being assembled from pages or from the events of a streamed list.

    Attributes:
        items, undecoded: By ``namespace/name``.
        revision: ``resourceVersion`` from which a watch continues.
        lost: Number of items of which not even the metadata can be decoded.
    """

    def __init__(self) -> None:
        self.items: dict[str, T] = {}
        self.undecoded: dict[str, UndecodedObject] = {}
        self.revision = ""
        self.lost = 0

    def add(self, page: ListPage[T] | None) -> None:
        """Add a page; None means that the list starts again."""
        if page is None:
            self.items, self.undecoded, self.lost = {}, {}, 0
            return
        for item in page.items:
            self.put(item, item.metadata)
        self.revision = page.revision
        self.lost += page.lost

    def put(self, item: T | UndecodedObject, meta: ObjectMeta) -> None:
        """Add an object, or its newer version."""
        key = key_of(meta)
        self.items.pop(key, None)
        self.undecoded.pop(key, None)
        if isinstance(item, UndecodedObject):
            self.undecoded[key] = item
        else:
            self.items[key] = item

    def remove(self, meta: ObjectMeta) -> None:
        """Remove an object that was deleted while the list was sent."""
        self.items.pop(key_of(meta), None)
        self.undecoded.pop(key_of(meta), None)


async def iter_pages(
    api: Api, scope: Scope, decoder: Decoder[T], page_seconds: float, at_least: str = ""
) -> AsyncGenerator[ListPage[T] | None]:
    """Read a list page by page; None invalidates all pages so far, as their revision has expired.

    Args:
        at_least: Oldest acceptable revision; "0" for any, which the server answers from its watch cache in one
            piece. Empty requests the newest, which the server reads from etcd page by page.

    Raises:
        ApiError: The server refuses, or the response is not a list.
    """
    requests = _PageRequests(api, scope, decoder, page_seconds)
    requests.request_page({"resourceVersion": at_least} if at_least else {"limit": str(PAGE)})
    is_continued = False
    try:
        while requests.has_pending:
            try:
                page = await requests.page()
            except ApiError as error:
                # A first page has no revision that could expire: such an error would repeat.
                if not (error.is_gone and is_continued):
                    raise
                # Reading takes longer than etcd keeps revisions: retry with everything in one response.
                yield None
                requests.request_page({})
                is_continued = False
                continue
            is_continued = True
            for part in decoder.parts(page, PAGE):
                yield part
                await asyncio.sleep(0)  # gives keys and other watches a turn between portions of a long page
    finally:
        await requests.close()


class _PageRequests(Generic[T]):
    """Queue of requested pages of one list that are not decoded yet."""

    def __init__(self, api: Api, scope: Scope, decoder: Decoder[T], page_seconds: float) -> None:
        self._api = api
        self._scope = scope
        self._decoder = decoder
        self._seconds = page_seconds
        self._pending: deque[asyncio.Task[bytes]] = deque()

    @property
    def has_pending(self) -> bool:
        """True while there is a page to wait for."""
        return bool(self._pending)

    def request_page(self, query: dict[str, str]) -> None:
        query = {**self._scope.query, **query}
        answer = self._api.request(
            "GET", self._scope.path, query=query, timeout_seconds=self._seconds, on_start=self._on_first_bytes
        )
        self._pending.append(asyncio.create_task(answer))

    async def page(self) -> ObjectList[T] | ObjectList[msgspec.Raw]:
        """Return the next page, after requesting the one that follows it.

        Raises:
            ApiError: The server refuses, or the response is not a list.
        """
        # It stays in the queue until it has arrived; otherwise close() would not cancel it.
        try:
            page = self._decoder.page(await self._pending[0])
        except UNDECODABLE as error:
            raise status_error(
                RequestInfo("GET", self._scope.path), 502, "", f"the response is not a list ({error})"
            ) from error
        finally:
            self._pending.popleft()
        # Its head did not contain the token (a proxy sent a few bytes first), or a page was already pending.
        if not self._pending and (more := page.metadata.continue_):
            self._request_next(more)
        return page

    async def close(self) -> None:
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    def _on_first_bytes(self, head: bytes) -> None:
        """Request the next page as soon as this one begins: the server reads etcd while this one is in transfer."""
        if len(self._pending) < _MAX_PENDING and (more := self._decoder.continue_token(head)):
            self._request_next(more)

    def _request_next(self, more: str) -> None:
        self.request_page({"limit": str(PAGE), "continue": more})


def key_of(meta: ObjectMeta) -> str:
    """Return the key of an object within its kind: ``namespace/name``."""
    return f"{meta.namespace}/{meta.name}"
