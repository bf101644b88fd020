"""One list of one kind, in pages, at one revision: what a watch begins with, and all that a single look needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from l2rtui.backends.kubernetes.client import PAGE, Api
from l2rtui.backends.kubernetes.decode import Decoder, Page, Unread
from l2rtui.backends.kubernetes.errors import ApiError, Asked, from_status
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.structs import KubeObject, Meta

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects of a kind: one namespace or (None) all, and selectors as kubectl takes them.

    Attributes:
        api_version: Of a kind that not all servers serve alike; empty for the usual one.
    """

    kind: str
    namespace: str | None = None
    labels: str = ""
    fields: str = ""
    api_version: str = ""

    @property
    def path(self) -> str:
        """Where they are."""
        return KINDS[self.kind].at(self.api_version).path(self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """What chooses them."""
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in chosen.items() if value}

    def __str__(self) -> str:
        where = f" in the namespace {self.namespace}" if self.namespace else ""
        return f"{KINDS[self.kind].plural}{where}"


class Whole(Generic[T]):
    """A list that is being put together.

    Attributes:
        items, unread: By ``namespace/name``. lost: items of which not even the name can be read.
    """

    def __init__(self) -> None:
        self.items: dict[str, T] = {}
        self.unread: dict[str, Unread] = {}
        self.revision = ""
        self.lost = 0

    def add(self, page: Page[T] | None) -> None:
        """Add a page; None means that the list begins anew."""
        if page is None:
            self.items, self.unread, self.lost = {}, {}, 0
            return
        for item in page.items:
            self.put(item, item.metadata)
        self.revision = page.revision
        self.lost += page.lost

    def put(self, item: T | Unread, meta: Meta) -> None:
        """Add an object, or its newer version."""
        key = key_of(meta)
        self.items.pop(key, None)
        self.unread.pop(key, None)
        if isinstance(item, Unread):
            self.unread[key] = item
        else:
            self.items[key] = item

    def remove(self, meta: Meta) -> None:
        """An object has gone while the list was sent."""
        self.items.pop(key_of(meta), None)
        self.unread.pop(key_of(meta), None)


async def pages(
    api: Api, scope: Scope, decoder: Decoder[T], page_seconds: float, at_least: str = ""
) -> AsyncGenerator[Page[T] | None]:
    """Read a list page by page; None says that what came before is void, as its revision has expired.

    Args:
        at_least: A revision that is new enough, "0" for any: the server answers from its memory, in one piece.
            Empty asks for the newest, which it reads from its store, page by page.

    Raises:
        ApiError: the server refuses, or what it sends is no list.
    """
    query = {**scope.query, "resourceVersion": at_least} if at_least else {**scope.query, "limit": str(PAGE)}

    def ask() -> asyncio.Task[bytes]:
        return asyncio.create_task(api.request("GET", scope.path, query=query, timeout_seconds=page_seconds))

    asked = ask()
    try:
        while True:
            try:
                page = decoder.page(await asked)
            except ApiError as error:
                if not (error.is_gone and "continue" in query):
                    raise
                yield None
                query = dict(scope.query)  # the list takes longer than revisions are kept: all in one answer
                asked = ask()
                continue
            except msgspec.DecodeError as error:
                raise from_status(Asked("GET", scope.path), 502, "", f"the answer is no list ({error})") from error
            more = page.metadata.continue_
            if more:  # the server reads the next page while we decode this one
                query = {**scope.query, "limit": str(PAGE), "continue": more}
                asked = ask()
            yield decoder.items(page)
            if not more:
                return
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


def key_of(meta: Meta) -> str:
    """Key of an object among those of its kind."""
    return f"{meta.namespace}/{meta.name}"
