"""One list of one kind, in pages, at one revision: what a watch begins with, and all that a single look needs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from l2rtui.backends.kubernetes.client import PAGE, Api
from l2rtui.backends.kubernetes.decode import Decoder, Page, Unread
from l2rtui.backends.kubernetes.errors import ApiError, Asked, from_status
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.structs import KubeObject, Meta, ObjectList

T = TypeVar("T", bound=KubeObject)
_AT_ONCE = 2
"""Pages that are on their way or being read: one more would only lie in memory."""


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
    answers = _Answers(api, scope, decoder, page_seconds)
    answers.ask({"resourceVersion": at_least} if at_least else {"limit": str(PAGE)})
    is_continued = False
    try:
        while answers.are_coming:
            try:
                page = await answers.page()
            except ApiError as error:
                if not (error.is_gone and is_continued):
                    raise
                yield None
                answers.ask({})  # the list takes longer than revisions are kept: all in one answer
                is_continued = False
                continue
            is_continued = True
            for part in decoder.parts(page, PAGE):
                yield part
                await asyncio.sleep(0)  # a long answer, read in one go, would hold up everybody else
    finally:
        await answers.close()


class _Answers(Generic[T]):
    """The pages of a list that have been asked for, and not been read yet."""

    def __init__(self, api: Api, scope: Scope, decoder: Decoder[T], page_seconds: float) -> None:
        self._api = api
        self._scope = scope
        self._decoder = decoder
        self._seconds = page_seconds
        self._asked: deque[asyncio.Task[bytes]] = deque()

    @property
    def are_coming(self) -> bool:
        """Whether there is one more to wait for."""
        return bool(self._asked)

    def ask(self, query: dict[str, str]) -> None:
        """Ask for one more."""
        query = {**self._scope.query, **query}
        answer = self._api.request(
            "GET", self._scope.path, query=query, timeout_seconds=self._seconds, on_start=self._begun
        )
        self._asked.append(asyncio.create_task(answer))

    async def page(self) -> ObjectList[T] | ObjectList[msgspec.Raw]:
        """The next one; what follows it has been asked for by then.

        Raises:
            ApiError: the server refuses, or what it sends is no list.
        """
        try:
            page = self._decoder.page(await self._asked[0])
        except msgspec.DecodeError as error:
            raise from_status(
                Asked("GET", self._scope.path), 502, "", f"the answer is no list ({error})"
            ) from error
        finally:
            self._asked.popleft()
        if not self._asked and (more := page.metadata.continue_):
            self._ask_on(more)
        return page

    async def close(self) -> None:
        """Nobody wants them any more."""
        for one in self._asked:
            one.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    def _begun(self, head: bytes) -> None:
        """The server reads the next page while this one is on the wire, and while we decode it."""
        if len(self._asked) < _AT_ONCE and (more := self._decoder.goes_on(head)):
            self._ask_on(more)

    def _ask_on(self, more: str) -> None:
        self.ask({"limit": str(PAGE), "continue": more})


def key_of(meta: Meta) -> str:
    """Key of an object among those of its kind."""
    return f"{meta.namespace}/{meta.name}"
