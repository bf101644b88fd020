"""Recorder of all data of a backend: a thread writes it to disk while the app continues.

The event loop only puts values into a queue. A log line that arrives while the queue is full is dropped and
counted; changes never are, as later entries build on them.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO, Final

from l2rtui.backends.base import Backend
from l2rtui.backends.common.wrapper import WrappedBackend
from l2rtui.backends.recorded.recording import (
    EndEntry,
    OutageEntry,
    changes_line,
    header_line,
    log_line,
    sentence_line,
)
from l2rtui.domain.change import Change
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.quantity import counted, format_bytes
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import L2RError, UsageError

_log = logging.getLogger(__name__)
MAX_BYTES: Final = 512 * 1024 * 1024
"""Size at which a recording ends: a day of twelve runs, one followed log and its workers needs a tenth of that."""
MAX_QUEUED_LINES: Final = 20_000
MAX_KNOWN_LINES: Final = 4_096
"""Number of newest lines of a pod that are remembered: several streams of the app may read the same log."""


class BackendRecorder:
    """File that a thread writes, from the first batch of a backend until ``close``.

    Args:
        path: A file that does not exist yet.
        clock: Seconds since the epoch.
        max_bytes: Size at which the recording ends.

    Raises:
        UsageError: The file exists, or cannot be created.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries = 0
        self._dropped = 0
        self._problem = ""
        self._began = clock()
        self._current: object = None
        self._lines: dict[str, dict[tuple[float, str], None]] = {}
        self._file = _created(path)
        # Encoders, not encoded bytes: the thread does that work too.
        self._queue: queue.SimpleQueue[Callable[[], bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._thread.start()

    @property
    def summary(self) -> str:
        """Sentence on the file: its size, and missing parts."""
        dropped = f" {counted(self._dropped, 'log line')} came too fast and were left out." if self._dropped else ""
        problem = f" It ended early: {self._problem}." if self._problem else ""
        what = f"{counted(self._entries, 'line')}, {format_bytes(self._bytes)}"
        return f"Recorded to {self._path}: {what}.{problem}{dropped} `l2rtui --replay {self._path}` shows it."

    def of(self, backend: Backend) -> Backend:
        """Return a backend that forwards to the given one and records its data."""
        return _RecordedBackend(backend, self)

    def take_changes(self, source: Backend, changes: tuple[Change, ...], *, is_first: bool) -> None:
        """Record a batch of a watch."""
        if is_first:
            if self._current is None:
                name, location, began = source.name, source.location or "", self._began
                self._queue.put(lambda: header_line(began, name, location))
            self._current = source
        # While the app switches contexts, both watches are open: the old one is no longer recorded.
        if self._current is source:
            seconds = self._seconds()
            self._queue.put(lambda: changes_line(seconds, changes, is_first=is_first))

    def take_failure(self, source: Backend, sentence: str) -> None:
        """Record that a watch has failed."""
        if self._current is source:
            failure = OutageEntry(self._seconds(), sentence)
            self._queue.put(lambda: sentence_line(failure))

    def take_line(self, uid: str, line: LogLine) -> None:
        """Record a line of a log, once for all streams that read it."""
        if self._current is None or self._problem:
            return
        lines = self._lines.setdefault(uid, {})
        key = (line.time, line.text)
        if key in lines:
            return
        if self._queue.qsize() > MAX_QUEUED_LINES:
            self._dropped += 1
            return
        lines[key] = None
        if len(lines) > MAX_KNOWN_LINES:
            del lines[next(iter(lines))]
        seconds = self._seconds()
        self._queue.put(lambda: log_line(seconds, uid, line))

    def close(self) -> None:
        """Write the remaining entries, and end the file."""
        if self._thread.is_alive():
            end = EndEntry(self._seconds(), "the app was left")
            self._queue.put(lambda: sentence_line(end))
            self._queue.put(None)
            self._thread.join()

    def _seconds(self) -> float:
        return round(max(0.0, self._clock() - self._began), 3)

    # --- in the thread -----------------------------------------------------------------------------------------
    def _write_all(self) -> None:
        while (encode := self._queue.get()) is not None:
            if not self._problem:
                self._write(encode)
        try:
            self._file.close()
        except OSError as error:  # a full disk: unwritten data is flushed once more
            self._problem = self._problem or error.strerror or str(error)

    def _write(self, encode: Callable[[], bytes]) -> None:
        try:
            text = encode()
            if self._bytes + len(text) > self._max_bytes:
                self._problem = f"the file has reached its limit of {format_bytes(self._max_bytes)}"
                text = sentence_line(EndEntry(self._seconds(), self._problem))
            self._file.write(text)
            if self._queue.empty():  # entries recorded so far survive a kill of the app
                self._file.flush()
        except OSError as error:
            self._problem = error.strerror or str(error)
        else:
            self._bytes += len(text)
            self._entries += 1
        if self._problem:
            _log.warning("the recording %s ended: %s", self._path, self._problem)


def _created(path: Path) -> IO[bytes]:
    """Create a file that only its user may read: it shows other users' runs."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except FileExistsError:
        raise UsageError(f"{path} exists.", "Name a new file to record to.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


class _RecordedBackend(WrappedBackend):
    """The given backend; what its watch and its logs yield goes to the recorder as well."""

    def __init__(self, backend: Backend, recorder: BackendRecorder) -> None:
        super().__init__(backend)
        self._recorder = recorder

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        is_first = True
        try:
            async with aclosing(self._backend.watch()) as batches:
                async for changes in batches:
                    self._recorder.take_changes(self._backend, changes, is_first=is_first)
                    is_first = False
                    yield changes
        except L2RError as error:
            self._recorder.take_failure(self._backend, str(error))
            raise

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        async with aclosing(self._backend.logs(pod, query)) as lines:
            async for line in lines:
                # Otherwise lines of the previous process would be mixed with the current one's.
                if not (line.is_seam or query.previous):
                    self._recorder.take_line(pod.uid, line)
                yield line
