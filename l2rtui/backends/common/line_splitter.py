"""Lines of a stream of bytes that may be cut anywhere, and whose lines may have no end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_LINE_BYTES: Final = 16_384
"""Longest text of a line; the rest is cut, and its length is appended."""
_STAMP_BYTES = 40


class LineSplitter:
    """Splits a stream of bytes into lines; buffers at most one line of the longest length."""

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
        """Return the line that no line feed has ended; empty if there is none."""
        return self._pop_line()

    def _append(self, part: bytes) -> None:
        room = self._limit - len(self._rest)
        self._rest += part[:room]
        self._cut += max(0, len(part) - room)

    def _pop_line(self) -> bytes:
        line = bytes(self._rest) + (f" [{self._cut} more bytes]".encode() if self._cut else b"")
        self._rest.clear()
        self._cut = 0
        return line
