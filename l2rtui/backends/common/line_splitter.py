"""Lines of a byte stream in arbitrary chunks, with bounded line length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_LINE_BYTES: Final = 16_384
"""Longest text of a line; a longer line is truncated, and its length is appended."""
_STAMP_BYTES = 40
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\S{1,30} ")
"""Timestamp that servers put before a line; the carriage returns of a progress bar come after it."""


class LineSplitter:
    """Splits a byte stream into lines; buffers at most one line of the maximum length."""

    def __init__(self, limit: int = MAX_LINE_BYTES + _STAMP_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield complete lines without line feeds; the rest is buffered."""
        first, *others = chunk.split(b"\n")
        self._append(first)
        for part in others:
            yield self._pop_line()
            self._append(part)

    def flush(self) -> bytes:
        """Return the last line if it has no line feed; otherwise empty."""
        return self._pop_line()

    def _append(self, part: bytes) -> None:
        # Only the last state of a progress bar is visible; a line of all states would lose it at the length limit.
        if b"\r" in part.rstrip(b"\r") or (self._rest.endswith(b"\r") and part.strip(b"\r")):
            joined = bytes(self._rest) + part
            stamp = _STAMP.match(joined)
            at = joined.rfind(b"\r", 0, len(joined.rstrip(b"\r")))
            self._rest.clear()
            self._cut = 0
            part = (stamp[0] if stamp else b"") + joined[at + 1 :]
        room = self._limit - len(self._rest)
        self._rest += part[:room]
        self._cut += max(0, len(part) - room)

    def _pop_line(self) -> bytes:
        line = bytes(self._rest) + (f" [{self._cut} more bytes]".encode() if self._cut else b"")
        self._rest.clear()
        self._cut = 0
        return line
