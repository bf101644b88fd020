"""Log streams: the logs of a selection of pods, read into a log pane at a bounded rate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

from msgspec import Struct
from textual.worker import Worker

from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import L2RError, NotFoundError
from l2rtui.services.logs import merged, weight_of
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.log_pane import LogPane

BACKLOG_LINES: Final = 2_000
_BATCH_WEIGHT: Final = 64
"""Weight of pending lines at which they are handed over at the latest."""


class LogSelection(Struct, frozen=True):
    """Pods whose logs are shown as one, and the part of the logs.

    Attributes:
        key: Identity: a new key starts another log; the same key with more pods adds these to it.
        title: Text for the title of the pane. run: prefix that the names of the pods share.
        since_seconds: Only lines of the last so many seconds; None means all that the backend has.
    """

    key: str
    title: str
    run: str
    pods: tuple[PodView, ...]
    is_merged: bool = False
    is_previous: bool = False
    since_seconds: float | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two selections of the same log."""
        return self.key, self.is_previous, self.since_seconds


NO_LOG: Final = LogSelection("", "", "", ())


class LogStream:
    """Reader of one selection at a time into a pane."""

    def __init__(self, ctx: AppContext, pane: LogPane) -> None:
        self._ctx = ctx
        self._pane = pane
        self._reader = _Reader(ctx, pane, NO_LOG)

    @property
    def selection(self) -> LogSelection:
        """Pods whose log is shown."""
        return self._reader.selection

    @property
    def is_open(self) -> bool:
        """True while more lines are expected: the log is being read, or one of its pods is followed."""
        return self._reader.is_open

    def stop(self) -> None:
        """Close all streams."""
        self._reader.stop()

    def show(self, selection: LogSelection) -> None:
        """Show this log; new pods are added to a log that is already shown."""
        if selection.identity != self.selection.identity:
            self._reader.stop()
            empty = "Loading…" if selection.pods else ""
            self._pane.restart(run=selection.run, is_merged=selection.is_merged, empty=empty)
            self._reader = _Reader(self._ctx, self._pane, selection)
            self._reader.start()
        else:
            self._reader.selection = selection
            self._reader.follow_new()


class _Reader:
    """Streams of one selection: the backlog, sorted over all pods, and then one stream for each pod name.

    A replaced pod keeps its name. If the backend's stream continues across replacements, that is enough. If it ends
    with the pod, the next pod of that name gets a stream from where the last one ended.
    """

    def __init__(self, ctx: AppContext, pane: LogPane, selection: LogSelection) -> None:
        self.selection = selection
        self._ctx = ctx
        self._pane = pane
        self._workers: list[Worker[None]] = []
        self._has_backlog = False
        self._is_stopped = False
        self._followed: set[str] = set()  # uids
        self._open: set[str] = set()  # names of pods
        self._last_time: dict[str, float] = {}  # time of the newest line, by pod name
        self._errors: set[str] = set()

    @property
    def is_open(self) -> bool:
        """True while the backlog is being read or a pod is followed."""
        return not self._has_backlog or bool(self._open)

    def start(self) -> None:
        """Read the backlog, then follow."""
        self._work(self._begin())

    def stop(self) -> None:
        """Close all streams; lines that were not handed over are dropped."""
        self._is_stopped = True
        for worker in self._workers:
            worker.cancel()

    def follow_new(self) -> None:
        """Open a stream for each pod name that has none."""
        if not self._has_backlog or self.selection.is_previous:
            return
        for pod in self.selection.pods:
            if pod.uid not in self._followed and pod.name not in self._open:
                self._followed.add(pod.uid)
                self._open.add(pod.name)
                self._work(self._follow(pod))

    async def _begin(self) -> None:
        selection = self.selection
        since = None if selection.since_seconds is None else self._ctx.clock() - selection.since_seconds
        query = LogQuery(tail=BACKLOG_LINES, since=since, previous=selection.is_previous)
        await self._read(selection.pods, query)
        self._has_backlog = True
        if selection.pods and not self._is_stopped:
            # Not earlier: a log is known to be empty only after all of it was read.
            what = "of the previous process was kept" if selection.is_previous else "has been written yet"
            self._pane.empty_text = f"Nothing {what}."
            self._pane.refresh()
        self.follow_new()

    async def _follow(self, pod: PodView) -> None:
        await self._read((pod,), LogQuery(follow=True, since=self._last_time.get(pod.name)))
        self._open.discard(pod.name)
        self.follow_new()

    async def _read(self, pods: Sequence[PodView], query: LogQuery) -> None:
        """Pass lines to the pane: a few in each round of the event loop, a burst in turns."""
        batch: list[LogLine] = []
        weight = 0

        def hand_over() -> None:
            nonlocal weight
            weight, unread = 0, batch.copy()
            batch.clear()
            if unread and not self._is_stopped:  # the pane may show another log by now
                self._pane.extend(unread)

        loop = asyncio.get_running_loop()
        try:
            async with aclosing(self._ctx.turns.paced(merged(self._ctx.backend, pods, query))) as lines:
                async for line in lines:
                    self._last_time[line.pod] = line.time
                    batch.append(line)
                    weight += weight_of(line)
                    if len(batch) == 1:
                        loop.call_soon(hand_over)
                    # The pane's own work belongs to the turn: cutting, wrapping or filtering lines may take longer
                    # than reading them.
                    if weight >= _BATCH_WEIGHT:
                        hand_over()
        except NotFoundError:
            pass  # the pod was deleted while its log was opened: the next snapshot shows that
        except L2RError as error:
            if (text := str(error)) not in self._errors:  # backlog and following fail with the same error
                self._errors.add(text)
                self._pane.extend([LogLine(self._ctx.clock(), pods[0].name, text, is_mark=True)])

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        self._workers = [worker for worker in self._workers if not worker.is_finished]
        what = f"the log of {self.selection.title}"
        self._workers.append(self._ctx.background.start(work, group="log", what=what))
