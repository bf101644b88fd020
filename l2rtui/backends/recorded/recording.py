"""File of a recording: a header, then one JSON line for each batch of changes, log line and outage.

    {"l2rtui_recording": 1, "version": "0.4.0", "time": 1750000000.0, "backend": "local", "location": "lab"}
    ["changes", 0.12, true, [["PodChanged", {"pod": {"uid": "…", …}}], …]]
    ["line", 0.58, "uid of the pod", 1750000000.5, "racing-sac-learner-0", "text", false, ""]
    ["failure", 17.0, "The API server does not answer."]
    ["end", 360.2, "the file has reached its limit"]

The first number is the time in seconds since the header's time. Rows are encoded field by field; a reader skips
unknown fields and kinds of lines, so that files of other versions can be shown. Texts come from outside and may
contain secrets: each is redacted before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec

from l2rtui import __version__
from l2rtui.domain.change import Change
from l2rtui.domain.log import LogLine
from l2rtui.domain.secret import redact
from l2rtui.errors import BackendError, UsageError
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
