"""Recording of a backend: its file, and the thread that writes it.

The file is a header, then one JSON line for each batch of changes, log line and outage.

    {"l2rtui_recording": 1, "version": "0.4.0", "time": 1750000000.0, "backend": "local", "location": "lab"}
    ["changes", 0.12, true, [["PodChanged", {"pod": {"uid": "…", …}}], …]]
    ["line", 0.58, "uid of the pod", 1750000000.5, "racing-sac-learner-0", "text", false, ""]
    ["failure", 17.0, "The API server does not answer."]
    ["end", 360.2, "the file has reached its limit"]

The first number is the time in seconds since the header's time. Rows are encoded field by field; a reader skips
unknown fields and kinds of lines, so that files of other versions can be shown. Texts come from outside and may
contain secrets: each is redacted before it is written.

The event loop only puts values into a queue. A log line that arrives while the queue is full is dropped and
counted; changes never are, as later entries build on them.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, TypeVar, get_args

import msgspec

from l2rtui import __version__
from l2rtui.backends.base import Backend
from l2rtui.backends.common.wrapper import WrappedBackend
from l2rtui.domain.change import Change
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.quantity import counted, format_bytes
from l2rtui.domain.secret import redact
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, L2RError, UsageError
from runtime.base import bounded_json

FORMAT: Final = 1
MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""Longest line that is read; a first batch of ten thousand pods has a few megabytes."""
_CHANGES: Final = {kind.__name__: kind for kind in get_args(Change)}
_SHORT: Final = 6
"""Length up to which ``redact`` can find no secret in a text; most texts of a row are that short."""

T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    """First line of a file."""

    l2rtui_recording: int
    version: str
    time: float
    backend: str
    location: str = ""


class ChangesEntry(msgspec.Struct, frozen=True, array_like=True, tag="changes"):
    """Batch of changes.

    Attributes:
        seconds: Time since the header's time.
        is_first: It is the first batch of a watch: earlier rows no longer count.
        rows: Pairs of the name of a change and its fields.
    """

    seconds: float
    is_first: bool
    rows: list[tuple[str, dict[str, Any]]]

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return the changes of known kinds.

        Raises:
            msgspec.ValidationError: A field has the wrong type.
        """
        return tuple(bounded_json.convert(fields, _CHANGES[name]) for name, fields in self.rows if name in _CHANGES)


class LineEntry(msgspec.Struct, frozen=True, array_like=True, tag="line"):
    """Line of the log of a pod; ``seconds`` is when it was read, ``time`` when it was written."""

    seconds: float
    uid: str
    time: float
    pod: str
    text: str
    is_mark: bool = False
    container: str = ""

    @property
    def log_line(self) -> LogLine:
        """Return the line as a backend yields it."""
        return LogLine(self.time, self.pod, self.text, self.is_mark, self.container)


class OutageEntry(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    """Sentence with which a watch has failed; the next batch of changes ends it."""

    seconds: float
    sentence: str


class EndEntry(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """Last line of a file that was closed, and the reason."""

    seconds: float
    reason: str


Entry = ChangesEntry | LineEntry | OutageEntry | EndEntry
_TAGS: Final = ("changes", "line", "failure", "end")
_encoder = msgspec.json.Encoder()
_entry = bounded_json.decoder(Entry)
_header = bounded_json.decoder(Header)
_array = bounded_json.decoder(list[Any])


def header_line(time: float, backend: str, location: str) -> bytes:
    """Encode the first line of a file.

    Args:
        time: Seconds since the epoch.
    """
    return _encoder.encode(Header(FORMAT, __version__, time, backend, redact(location))) + b"\n"


def changes_line(seconds: float, changes: tuple[Change, ...], *, is_first: bool) -> bytes:
    """Encode a batch of changes without its secrets."""
    rows = [(type(change).__name__, _redacted(msgspec.to_builtins(change))) for change in changes]
    return _encoder.encode(ChangesEntry(seconds, is_first, rows)) + b"\n"


def log_line(seconds: float, uid: str, line: LogLine) -> bytes:
    """Encode a line of a log without its secrets."""
    entry = LineEntry(seconds, uid, line.time, line.pod, _redacted_text(line.text), line.is_mark, line.container)
    return _encoder.encode(entry) + b"\n"


def sentence_line(entry: OutageEntry | EndEntry) -> bytes:
    """Encode a failure or an end without its secrets."""
    text = entry.sentence if isinstance(entry, OutageEntry) else entry.reason
    return _encoder.encode(type(entry)(entry.seconds, redact(text))) + b"\n"


def _redacted(value: T) -> T:
    """Redact every text in a tree of lists and dictionaries."""
    if isinstance(value, str):
        return _redacted_text(value)  # type: ignore[return-value]  # a text for a text
    if isinstance(value, dict):
        return {name: _redacted(item) for name, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]  # type: ignore[return-value]
    return value


# Names of nodes, runs and owners repeat with every row of a large cluster.
@lru_cache(maxsize=16_384)
def _redacted_text(text: str) -> str:
    return text if len(text) <= _SHORT else redact(text)


def read_header(path: Path) -> Header:
    """Read the first line of a file.

    Raises:
        UsageError: The file cannot be read, is not a recording, or has a later, incompatible format.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        header: Header = _header(first)
    except bounded_json.UndecodableError:
        sentence = f"{path} is not a recording of l2rtui."
        raise UsageError(sentence, "`l2rtui --record FILE` writes one.") from None
    if header.l2rtui_recording > FORMAT:
        sentence = f"{path} was recorded by l2rtui {header.version}, in a form that this one cannot read."
        raise UsageError(sentence, "Use that version or a later one.")
    return header


def entries(path: Path) -> Iterator[Entry]:
    """Yield the entries after the header of a file, in chronological order.

    Raises:
        BackendError: A line is damaged. The last one may be truncated, for example if the recording program was
            killed.
    """
    with path.open("rb") as file:
        file.readline(MAX_LINE_BYTES)
        for number, text in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=2):
            try:
                yield _entry(text)
            except bounded_json.UndecodableError as error:
                if not text.endswith(b"\n"):
                    return
                if not _is_of_other_kind(text):
                    raise BackendError(f"Line {number} of {path} is damaged: {error}.") from None


def _is_of_other_kind(text: bytes) -> bool:
    """Return True for a line of a kind that only later versions know."""
    try:
        entry = _array(text)
    except bounded_json.UndecodableError:
        return False
    return bool(entry) and isinstance(entry[0], str) and entry[0] not in _TAGS


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
