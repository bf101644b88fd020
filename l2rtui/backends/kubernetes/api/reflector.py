"""One kind of object, followed for ever: list, then watch, and again from where it ended.

The contract is client-go's reflector, which no Python library offers: resume by revision, list again only when the
revision is gone, believe bookmarks, obey Retry-After, back off, notice silence. It never ends by itself and never
pretends: ``stale_since`` and ``problem`` say at any moment how far what it holds can be trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.decode import Bookmark, Decoder, Failed, Garbage, Lines, Put, Removed, Unread
from l2rtui.backends.kubernetes.errors import NO_ANSWER, ApiError, Asked, from_status
from l2rtui.backends.kubernetes.lists import Scope, Whole, key_of, pages
from l2rtui.backends.kubernetes.pace import BackOff, Gate, Pulse, Timing
from l2rtui.backends.kubernetes.structs import KubeObject, Meta

T = TypeVar("T", bound=KubeObject)
_STREAMED_LISTS_SINCE = (1, 30)
"""Older servers ignore the question for a streamed list instead of refusing it."""
_GARBLED = "Garbled"
_QUICK_RETRIES = 6
_PROBE_SECONDS = 5.0


class Reflector(Generic[T]):
    """Holds all objects of a scope as the server last told them.

    Args:
        on_change: Called with (before, now) of each object that changes, None where there is none; an object that
            takes the name of another comes as two calls.
        gate: Shared by all reflectors of one server.

    Attributes:
        items: By ``namespace/name``.
        unread: Objects that cannot be decoded, by ``namespace/name``; an older version may stand in ``items``.
        settled: Set when it has listed once, or knows that it cannot.
        error: What keeps it from watching now; None while all is well.
        lost: Items of the last list of which not even the name can be read.
        lists, watches: How many were begun. garbage: lines that said nothing at all.
    """

    def __init__(
        self,
        api: Api,
        scope: Scope,
        struct: type[T],
        on_change: Callable[[T | None, T | None], None],
        gate: Gate,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scope = scope
        self.items: dict[str, T] = {}
        self.unread: dict[str, Unread] = {}
        self.settled = asyncio.Event()
        self.error: ApiError | None = None
        self.is_listed = False
        self.lists = 0
        self.watches = 0
        self.garbage = 0
        self.lost = 0
        self._api = api
        self._decoder = Decoder(struct)
        self._on_change = on_change
        self._gate = gate
        self._timing = timing or Timing()
        self._clock = clock
        self._back_off = BackOff(self._timing)
        self._revision = ""
        self._at_least = "0"
        self._is_open = False
        self._has_bookmarks = False
        self._opened_at = self._heard_at = self._lost_at = clock()
        self._expired_at = float("-inf")
        self._failures = 0
        self._cut_short = 0

    @property
    def stale_seconds(self) -> float:
        """How old what it holds may be: 0 while a watch is open and the server is heard of."""
        now = self._clock()
        if not self._is_open:
            return now - self._lost_at
        quiet = now - self._heard_at
        return quiet if self._has_bookmarks and quiet > self._timing.quiet else 0.0

    def begin_with(self, whole: Whole[T]) -> None:
        """Take over a list that somebody else has read and told of; to be called before run()."""
        self.lists += 1
        self.items, self.unread, self.lost = whole.items, whole.unread, whole.lost
        self._revision = whole.revision
        self._settle()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        while True:
            try:
                if not self._revision and not self.streams_lists:
                    await self._list()
                await self._watch()
            except ApiError as error:
                self._close()
                await self._recover(error)

    @property
    def streams_lists(self) -> bool:
        """Whether it begins with a list that the server streams as events."""
        return self._api.has_streamed_lists and self._api.server_version >= _STREAMED_LISTS_SINCE

    # --- one list ----------------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """Read everything, then take it over at once: a list that breaks off half-way changes nothing."""
        self.lists += 1
        whole: Whole[T] = Whole()
        async for page in pages(self._api, self.scope, self._decoder, self._timing.page, self._at_least):
            whole.add(page)
        self._take_over(whole)

    def _take_over(self, whole: Whole[T]) -> None:
        """Put a whole list in place of what was known, and tell only what differs."""
        before, known = self.items, whole.items
        for key in whole.unread:  # an old version is better than none: the object holds what it holds
            if key in before and key not in known:
                known[key] = before[key]
        self.items, self.unread, self._revision = known, whole.unread, whole.revision
        self.lost = whole.lost
        for key, old in before.items():
            if key not in known:
                self._on_change(old, None)
        for key, new in known.items():
            self._tell(before.get(key), new)
        self._settle()

    def _tell(self, old: T | None, new: T) -> None:
        if old is None:
            self._on_change(None, new)
        elif old.metadata.uid != new.metadata.uid:
            self._on_change(old, None)
            self._on_change(None, new)
        elif old.metadata.resource_version != new.metadata.resource_version:
            self._on_change(old, new)

    def _settle(self) -> None:
        self.is_listed = True
        self.settled.set()

    # --- one watch ---------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        """Follow until the server ends it, the connection is cut or falls silent, or there is an error."""
        seconds = self._timing.watch * (1 + random.random())  # noqa: S311  (spreads load, hides nothing)
        query = {
            **self.scope.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
            "resourceVersion": self._revision,
        }
        initial: Whole[T] | None = None
        if not self._revision:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            initial = Whole()
        self.watches += 1
        began, began_with = self._clock(), self._revision
        try:
            await self._follow(query, initial, seconds + 10.0)
        except TimeoutError:
            self._close(self._heard_at)
            return  # silent for too long: again, on another connection
        except ApiError as error:
            # A watch that was open and is cut has not failed: it goes on where it was.
            if error.status != NO_ANSWER or not self._is_open:
                raise
        self._close()
        if self._revision == began_with and self._clock() - began < self._timing.short:
            # The first time it asks again at once: a server that is away says so, and then the probe knows when it
            # is back. One that is there, and ends the next one too, is given time.
            self._cut_short += 1
            if self._cut_short > 1:
                await asyncio.sleep(self._back_off.pause())
        else:
            self._cut_short = 0

    async def _follow(self, query: dict[str, str], initial: Whole[T] | None, idle_seconds: float) -> None:
        lines = Lines()
        stream = self._api.stream(self.scope.path, query, idle_timeout_seconds=idle_seconds, on_open=self._open)
        async with asyncio.timeout(None) as silence, contextlib.aclosing(stream):
            async for chunk in stream:
                self._heard_at = self._clock()
                for line in lines.feed(chunk):
                    initial = self._take(line, initial)
                if self._has_bookmarks:
                    silence.reschedule(asyncio.get_running_loop().time() + self._timing.dead)

    def _take(self, line: bytes, initial: Whole[T] | None) -> Whole[T] | None:
        """Act on one line; gives what a streamed list has brought so far, None once it is complete."""
        match self._decoder.event(line):
            case Put(item, meta):
                if initial is not None:
                    initial.put(item, meta)
                else:
                    self._put(item, meta)
            case Removed(meta):
                if initial is not None:
                    initial.remove(meta)
                else:
                    self._remove(meta)
            case Bookmark(revision, is_end_of_initial):
                if initial is not None and is_end_of_initial:
                    initial.revision = revision
                    self._take_over(initial)
                    return None
                if initial is None and revision:
                    self._revision, self._has_bookmarks = revision, True
            case Failed(code, reason, message):
                raise from_status(Asked("GET", self.scope.path), code or 500, reason, message)
            case Garbage(error):
                # It may have been a change, and then what we hold is wrong: look at everything again.
                self.garbage += 1
                raise from_status(Asked("GET", self.scope.path), 410, _GARBLED, f"a line cannot be read ({error})")
        return initial

    def _put(self, item: T | Unread, meta: Meta) -> None:
        key = key_of(meta)
        old = self.items.get(key)
        self._revision = meta.resource_version or self._revision
        if isinstance(item, Unread):
            self.unread[key] = item
            if old is not None and old.metadata.uid != meta.uid:
                del self.items[key]
                self._on_change(old, None)
            else:
                self._on_change(old, old)
            return
        self.unread.pop(key, None)
        self.items[key] = item
        self._tell(old, item)

    def _remove(self, meta: Meta) -> None:
        key = key_of(meta)
        old = self.items.get(key)
        self._revision = meta.resource_version or self._revision
        if key in self.unread and self.unread[key].metadata.uid == meta.uid:
            del self.unread[key]
            self._on_change(old, old)
        if old is not None and old.metadata.uid == meta.uid:
            del self.items[key]
            self._on_change(old, None)

    # --- what goes wrong ---------------------------------------------------------------------------------------
    def _open(self) -> None:
        self._is_open, self.error = True, None
        self._opened_at = self._heard_at = self._clock()
        self._failures = 0

    def _close(self, at: float | None = None) -> None:
        if self._is_open:
            self._is_open = False
            self._lost_at = self._clock() if at is None else at
            if self._lost_at - self._opened_at >= self._timing.healthy:
                self._back_off.reset()

    async def _recover(self, error: ApiError) -> None:
        """Wait as the error asks, and decide whether the revision is still good."""
        self._failures += 1
        now = self._clock()
        if error.is_gone or "resource version" in error.detail.lower():
            # The revision is gone, or ahead of this server's: list again, at once if that is rare.
            is_rare, self._expired_at = now - self._expired_at > self._timing.relist, now
            # What is newer than we have seen is new enough; where the server does not have that, the newest.
            self._at_least, self._revision = (self._revision if error.is_gone else ""), ""
            if is_rare and error.reason != _GARBLED:
                return
            await asyncio.sleep(self._back_off.pause())
            return
        if error.is_invalid and not self._revision and self.streams_lists:
            self._api.has_streamed_lists = False
            return
        self.error = error
        if error.is_forbidden or error.status in (404, 405):
            self.settled.set()
            await asyncio.sleep(self._denied_pause() or self._timing.forbidden * _a_bit_more())
        elif error.is_unauthorized:
            await asyncio.sleep(self._denied_pause() or self._back_off.pause())
        elif error.is_busy:
            pause = error.retry_after_seconds
            await asyncio.sleep(self._back_off.pause() if pause is None else pause * _a_bit_more())
        elif error.status == NO_ANSWER or error.status >= 500:
            if await self._gate.wait():
                self._back_off.reset()  # an outage that is over says nothing of the next one
                self._cut_short = 0
            elif self._failures > 2:  # the server is well, says the probe, but not for this kind
                await asyncio.sleep(self._back_off.pause())
        else:
            await asyncio.sleep(self._back_off.pause())

    def _denied_pause(self) -> float:
        """A server that has just started knows neither its own rules nor its accounts yet; 0 when it should."""
        is_new = self.is_listed and self._failures <= _QUICK_RETRIES
        return self._timing.denied * (1 + random.random()) if is_new else 0.0  # noqa: S311  (spreads load)


async def probe(api: Api) -> Pulse:
    """Ask whether the server is well; any answer but an error of its own counts, as not all may ask."""
    try:
        await api.request("GET", "/readyz", timeout_seconds=_PROBE_SECONDS)
    except ApiError as error:
        if error.is_refused:
            return Pulse.REFUSED
        is_ill = error.is_busy or error.status == NO_ANSWER or error.status >= 500
        return Pulse.ILL if is_ill else Pulse.WELL
    return Pulse.WELL


def _a_bit_more() -> float:
    return 1 + 0.1 * random.random()  # noqa: S311  (spreads load, hides nothing)
