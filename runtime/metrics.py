"""What a process says: metric records and plain sentences on standard output, records and curves on disk.

Saying something must never end a training run: a closed pipe or a full disk makes the process silent, no more.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FILE_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of `metrics.jsonl` at which it becomes `metrics.jsonl.1`, over the one before: about a week of seconds."""
SENTENCES_PER_MINUTE: Final = 120
"""Plain sentences beyond this are counted and not printed: a stranger at the port must not fill the log."""

_print_lock = threading.Lock()


def record(kind: str, fields: Mapping[str, Any]) -> str:
    """Return the metric record as its line, without the line's end. Values that are no number become null."""
    plain = {"l2r": kind, "time": round(time.time(), 3), **fields}  # contract.METRIC_PREFIX: its kind comes first
    return json.dumps(_finite(plain), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN, and six digits are enough for a chart."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: each if name == "time" else _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


class Console:
    """Standard output, from any thread, one whole line at a time."""

    def __init__(self) -> None:
        self._spoken: deque[float] = deque()
        self._held_back = 0

    def record(self, line: str) -> None:
        """Print a metric record."""
        self._print(line)

    def say(self, sentence: str) -> None:
        """Print a sentence for people, with the time of day; too many of them are counted instead."""
        with _print_lock:
            line = self._line(sentence)
        if line is not None:
            self._print(line)

    def _line(self, sentence: str) -> str | None:
        now = time.monotonic()
        while self._spoken and now - self._spoken[0] > 60.0:
            self._spoken.popleft()
        if len(self._spoken) >= SENTENCES_PER_MINUTE:
            self._held_back += 1
            return None
        self._spoken.append(now)
        more = f" ({self._held_back} sentences were held back)" if self._held_back else ""
        self._held_back = 0
        return f"{time.strftime('%H:%M:%S')} {sentence}{more}"

    @staticmethod
    def _print(line: str) -> None:
        with _print_lock, contextlib.suppress(OSError, ValueError):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class _AppendFile:
    """A file that takes each piece whole or not at all; one that a disk refuses is left out."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._file.seek(0, os.SEEK_END)

    def append(self, piece: bytes) -> None:
        """Add one piece at the end."""
        with contextlib.suppress(OSError):
            end = self.size
            if self._file.write(piece) < len(piece):  # the disk is full now: half a piece spoils what follows it
                self._file.truncate(end)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()


class RecordFile:
    """`metrics.jsonl`: every record of the learner, for curves that outlive the log; bounded by one rotation."""

    def __init__(self, path: Path, limit_bytes: int = FILE_LIMIT) -> None:
        self._path = path
        self._limit = limit_bytes
        self._file = _AppendFile(path)

    def append(self, line: str) -> None:
        """Add one record."""
        if self._file.size > self._limit:
            self._rotate()
        self._file.append(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        """Begin a new file; where that cannot be, go on in the old one."""
        with contextlib.suppress(OSError):
            if self._path.exists():  # not there if the last try came only half-way
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            fresh = _AppendFile(self._path)
            self._file.close()
            self._file = fresh


class Curves:
    """TensorBoard files: every number of a record as a scalar over env steps.

    An event file (TFRecords of `Event` messages) is written here, since tensorboardX's own writer leaves that to a
    thread: when a full disk ends the thread, whoever adds the next points waits for it for ever.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}"  # TensorBoard reads them in this order
        self._file = _AppendFile(folder / name)
        self._append(Event(wall_time=now, file_version="brain.Event:2"))

    def add(self, kind: str, fields: Mapping[str, Any], env_steps: int) -> None:
        """Add the numbers of one record."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in fields.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        self._append(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Any) -> None:
        """Add an Event as a TFRecord: its length, its bytes, each followed by its masked CRC-32C."""
        from tensorboardX.record_writer import masked_crc32c

        parts = struct.pack("<Q", event.ByteSize()), event.SerializeToString()
        self._file.append(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))


class Rate:
    """How fast a counter rises, per second, between two looks at it."""

    def __init__(self, now: float, count: int) -> None:
        self._then = now
        self._count = count

    def look(self, now: float, count: int) -> float:
        """Return the rate since the last look."""
        passed = now - self._then
        rate = (count - self._count) / passed if passed > 0 else 0.0
        self._then, self._count = now, count
        return rate
