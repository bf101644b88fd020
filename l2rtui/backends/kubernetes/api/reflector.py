"""Reflector of one kind: list, then watch continuously, resuming where the last watch ended.

The behaviour follows client-go's reflector (tools/cache/reflector.go): resume by revision, list again only when the
revision has expired, use bookmarks, obey Retry-After, back off, notice silence. The official library's informer has
threads, typed objects and a fixed pause of 5 s; its asyncio half has a watch that never lists. The reflector runs
until cancelled; ``stale_seconds`` and ``error`` always tell how current its objects are.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from l2rtui.backends.kubernetes.api.backoff import BackOff, ProbeResult, ServerGate, Timing
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.decode import (
    Bookmark,
    Decoder,
    Deletion,
    GarbledLine,
    LineBuffer,
    UndecodedObject,
    Upsert,
    WatchFailure,
)
from l2rtui.backends.kubernetes.api.errors import NO_ANSWER, ApiError, RequestInfo, status_error
from l2rtui.backends.kubernetes.api.list_pages import ListResult, Scope, iter_pages, key_of
from l2rtui.backends.kubernetes.api.structs import KubeObject, ObjectMeta

T = TypeVar("T", bound=KubeObject)
_STREAMED_LISTS_SINCE = (1, 30)
"""Older servers ignore ``sendInitialEvents`` instead of refusing it (WatchList, KEP-3157)."""
_GARBLED = "Garbled"
"""Our own reason for a line that cannot be decoded."""
_QUICK_RETRIES = 6
_PROBE_SECONDS = 5.0


class Reflector(Generic[T]):
    """Local copy of all objects of a scope, kept up to date by a watch.

    Args:
        on_change: Called with (old, new) of each changed object; None for an object that was added or deleted. An
            object that replaces another of the same name causes two calls.
        gate: Shared by all reflectors of one server.
        on_heard: Called whenever data arrives from the server.

    Attributes:
        items: By ``namespace/name``.
        undecoded: Objects that cannot be decoded, by ``namespace/name``; ``items`` may have an older version.
        settled: Set after the first list, or if listing is not permitted.
        error: Error that prevents watching at the moment; None while the watch is open.
        lost: Number of items of the last list of which not even the metadata can be decoded.
        back_off: Pauses between two attempts.
        lists, watches: Number of requests started. garbage: Number of lines that could not be decoded.
    """

    def __init__(
        self,
        api: Api,
        scope: Scope,
        struct: type[T],
        on_change: Callable[[T | None, T | None], None],
        gate: ServerGate,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_heard: Callable[[], None] = lambda: None,
    ) -> None:
        self.scope = scope
        self.items: dict[str, T] = {}
        self.undecoded: dict[str, UndecodedObject] = {}
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
        self._on_heard = on_heard
        self._silence: asyncio.Timeout | None = None
        self.back_off = BackOff(self._timing, clock=clock)
        self._revision = ""
        # "0": the first list may come from the watch cache, which is cheap for the server; the watch catches up.
        self._at_least = "0"
        self._is_open = False
        self._has_bookmarks = False
        self._opened_at = self._heard_at = self._lost_at = clock()
        self._expired_at = float("-inf")
        self._failures = 0
        self._cut_short = 0

    @property
    def stale_seconds(self) -> float:
        """Possible age of the objects in seconds: 0 while a watch is open and not silent."""
        now = self._clock()
        if not self._is_open:
            return now - self._lost_at
        # Without bookmarks silence is not conclusive: there may have been no changes.
        quiet = now - self._heard_at
        return quiet if self._has_bookmarks and quiet > self._timing.quiet else 0.0

    def adopt_list(self, listing: ListResult[T]) -> None:
        """Start from a list that the caller has already read and reported; call this before run()."""
        self.lists += 1
        self.items, self.undecoded, self.lost = listing.items, listing.undecoded, listing.lost
        self._revision = listing.revision
        self._settle()

    async def run(self) -> None:
        """Follow the objects until cancelled; errors are stored in ``error``."""
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
        """True if it starts with a list that the server streams as watch events."""
        return self._api.has_streamed_lists and self._api.server_version >= _STREAMED_LISTS_SINCE

    def reopen(self) -> None:
        """End the open watch, so that the next one resumes at its revision over another connection.

        After a link has dropped packets, the server's next attempt may be minutes away (TCP doubles the time
        between retries), and a NAT that has forgotten a connection never delivers anything on it again.
        """
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(asyncio.get_running_loop().time())

    # --- one list ----------------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """Read a complete list before adopting it: a list that breaks off half-way changes nothing."""
        self.lists += 1
        listing: ListResult[T] = ListResult()
        async for page in iter_pages(self._api, self.scope, self._decoder, self._timing.page, self._at_least):
            listing.add(page)
        self._take_over(listing)

    def _take_over(self, listing: ListResult[T]) -> None:
        """Replace all objects by a complete list, and report only the differences."""
        before, items = self.items, listing.items
        # The old version of an object that can no longer be decoded stays: its GPUs are still in use.
        for key in listing.undecoded:
            if key in before and key not in items:
                items[key] = before[key]
        self.items, self.undecoded, self._revision = items, listing.undecoded, listing.revision
        self.lost = listing.lost
        for key, old in before.items():
            if key not in items:
                self._on_change(old, None)
        for key, new in items.items():
            self._tell(before.get(key), new)
        self._settle()

    def _tell(self, old: T | None, new: T) -> None:
        if old is None:
            self._on_change(None, new)
        elif old.metadata.uid != new.metadata.uid:  # deleted and created again between two lists
            self._on_change(old, None)
            self._on_change(None, new)
        elif old.metadata.resource_version != new.metadata.resource_version:
            self._on_change(old, new)

    def _settle(self) -> None:
        self.is_listed = True
        self.settled.set()

    # --- one watch ---------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        """Run one watch until the server ends it, the connection breaks or is silent, or an error occurs."""
        seconds = self._timing.watch * (1 + random.random())  # noqa: S311  (spreads load, hides nothing)
        query = {
            **self.scope.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
            "resourceVersion": self._revision,
        }
        initial: ListResult[T] | None = None
        if not self._revision:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            initial = ListResult()
        self.watches += 1
        began, began_with = self._clock(), self._revision
        try:
            # 10 s more than requested: a server ends a watch slightly late.
            await self._follow(query, initial, seconds + 10.0)
        except TimeoutError:
            self._close(self._heard_at)
            return  # silent for too long: the next watch opens another connection
        except ApiError as error:
            # A broken connection of an open watch is not a failure: the next watch resumes at the same revision.
            if error.status != NO_ANSWER or not self._is_open:
                raise
        self._close()
        if self._revision == began_with and self._clock() - began < self._timing.short:
            # The first time, the watch is reopened without a pause: if the server is down, that request fails and
            # the gate waits for it. If the server is up and ends the next watch early as well, back off.
            self._cut_short += 1
            if self._cut_short > 1:
                await asyncio.sleep(self.back_off.pause())
        else:
            self._cut_short = 0

    async def _follow(self, query: dict[str, str], initial: ListResult[T] | None, idle_seconds: float) -> None:
        lines = LineBuffer()
        stream = self._api.stream(self.scope.path, query, idle_timeout_seconds=idle_seconds, on_open=self._open)
        async with self._silence_limit() as silence, contextlib.aclosing(stream):
            async for chunk in stream:
                self._heard_at = self._clock()
                self._on_heard()
                for line in lines.feed(chunk):
                    initial = self._take(line, initial)
                # Armed by the first bookmark: from then on one must arrive every minute.
                if self._has_bookmarks:
                    silence.reschedule(asyncio.get_running_loop().time() + self._timing.dead)

    @contextlib.asynccontextmanager
    async def _silence_limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise TimeoutError in the block at the time for which the yielded timeout is scheduled."""
        async with asyncio.timeout(None) as silence:
            self._silence = silence
            try:
                yield silence
            finally:
                self._silence = None  # a timeout whose block has ended must not be rescheduled

    def _take(self, line: bytes, initial: ListResult[T] | None) -> ListResult[T] | None:
        """Apply one line; return the streamed list as received so far, None once it is complete."""
        match self._decoder.event(line):
            case Upsert(item, meta):
                if initial is not None:
                    initial.put(item, meta)
                else:
                    self._put(item, meta)
            case Deletion(meta):
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
            case WatchFailure(code, reason, message):
                raise status_error(RequestInfo("GET", self.scope.path), code or 500, reason, message)
            case GarbledLine(error):
                # It may have been a change, so the local copy may be wrong: list again, as after 410 Gone.
                self.garbage += 1
                raise status_error(
                    RequestInfo("GET", self.scope.path), 410, _GARBLED, f"a line cannot be read ({error})"
                )
        return initial

    def _put(self, item: T | UndecodedObject, meta: ObjectMeta) -> None:
        key = key_of(meta)
        old = self.items.get(key)
        self._revision = meta.resource_version or self._revision
        if isinstance(item, UndecodedObject):
            self.undecoded[key] = item
            if old is not None and old.metadata.uid != meta.uid:
                del self.items[key]
                self._on_change(old, None)
            else:
                self._on_change(old, old)  # nothing to show except the problem itself
            return
        self.undecoded.pop(key, None)
        self.items[key] = item
        self._tell(old, item)

    def _remove(self, meta: ObjectMeta) -> None:
        key = key_of(meta)
        old = self.items.get(key)
        self._revision = meta.resource_version or self._revision
        # By uid: the event may concern a deleted predecessor of the object with this name.
        if key in self.undecoded and self.undecoded[key].metadata.uid == meta.uid:
            del self.undecoded[key]
            self._on_change(old, old)
        if old is not None and old.metadata.uid == meta.uid:
            del self.items[key]
            self._on_change(old, None)

    # --- what goes wrong ---------------------------------------------------------------------------------------
    def _open(self) -> None:
        self._is_open, self.error = True, None
        self._opened_at = self._heard_at = self._clock()
        self._failures = 0
        self._on_heard()

    def _close(self, at: float | None = None) -> None:
        if self._is_open:
            self._is_open = False
            self._lost_at = self._clock() if at is None else at
            if self._lost_at - self._opened_at >= self._timing.healthy:
                self.back_off.reset()

    async def _recover(self, error: ApiError) -> None:
        """Wait as long as the kind of error requires, and drop the revision if it has expired."""
        self._failures += 1
        now = self._clock()
        if error.is_gone or "resource version" in error.detail.lower():
            # Expired, or newer than this server's (another replica, a restored etcd): list again, without a pause
            # if rare.
            is_rare, self._expired_at = now - self._expired_at > self._timing.relist, now
            # The copy must not go back in time: at least our revision, or the newest if that is ahead.
            self._at_least, self._revision = (self._revision if error.is_gone else ""), ""
            if is_rare and error.reason != _GARBLED:
                return
            await asyncio.sleep(self.back_off.pause())
            return
        if error.is_invalid and not self._revision and self.streams_lists:
            self._api.has_streamed_lists = False  # the feature gate WatchList is off
            return
        self.error = error
        if error.is_denied:
            self.settled.set()
            await asyncio.sleep(self._denied_pause() or self._timing.forbidden * _a_bit_more())
        elif error.is_unauthorized:
            await asyncio.sleep(self._denied_pause() or self.back_off.pause())
        elif error.is_busy:
            pause = error.retry_after_seconds
            await asyncio.sleep(self.back_off.pause() if pause is None else pause * _a_bit_more())
        elif error.status == NO_ANSWER or error.status >= 500:
            if await self._gate.wait():
                # Failures of a past outage are no reason for a long pause in the next.
                self.back_off.reset()
                self._cut_short = 0
            elif self._failures > 2:  # healthy by the probe, but not for this kind
                await asyncio.sleep(self.back_off.pause())
        else:
            await asyncio.sleep(self.back_off.pause())

    def _denied_pause(self) -> float:
        """Return a short pause while a restarted server may not have loaded its RBAC rules yet; otherwise 0."""
        is_new = self.is_listed and self._failures <= _QUICK_RETRIES
        return self._timing.denied * (1 + random.random()) if is_new else 0.0  # noqa: S311  (spreads load)


async def probe(api: Api) -> ProbeResult:
    """Probe the server; any response except a server error counts as healthy, as ``/readyz`` may be forbidden."""
    try:
        await api.request("GET", "/readyz", timeout_seconds=_PROBE_SECONDS)
    except ApiError as error:
        if error.is_refused:
            return ProbeResult.REFUSED
        is_failing = error.is_busy or error.status == NO_ANSWER or error.status >= 500
        return ProbeResult.UNHEALTHY if is_failing else ProbeResult.HEALTHY
    return ProbeResult.HEALTHY


async def responds(api: Api, seconds: float) -> bool:
    """Return True if the server sends any response within this time; ``/version`` is cheap for it."""
    try:
        await api.request("GET", "/version", timeout_seconds=seconds)
    except ApiError as error:
        return error.status != NO_ANSWER
    return True


def _a_bit_more() -> float:
    return 1 + 0.1 * random.random()  # noqa: S311  (spreads load, hides nothing)
