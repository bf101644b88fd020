"""Output of a process: metric records and sentences on standard output, records on disk, and their parser.

Output must never end a training run: a closed pipe or a full disk only silences the process.

Records come from inside a run and are untrusted: a line that is not a record gives None, and so does a field of an
unexpected type.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtime.base import bounded_json
from runtime.base.contract import METRIC_PREFIX

FILE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of `metrics.jsonl` at which half of its records join `metrics.jsonl.1`: some hours at one per second."""
SENTENCES_PER_MINUTE: Final = 120
"""Sentences beyond this are counted but not printed: an unauthenticated peer must not be able to fill the log."""

_print_lock = threading.Lock()


def record(kind: str, fields: Mapping[str, Any]) -> str:
    """Format a metric record as a line, without its line end. NaN and infinity become null."""
    plain = {"l2r": kind, "time": round(time.time(), 3), **fields}  # contract.METRIC_PREFIX: its kind comes first
    return json.dumps(_finite(plain), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value of JSON, which has no NaN; six digits are enough for a chart."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: field if name == "time" else _finite(field) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class Console:
    """Standard output, from any thread, one complete line at a time."""

    def __init__(self) -> None:
        # Kept, with a descriptor of its own: an environment may put something else into its place, and a socket or
        # shared memory of ours would get the number of a closed one.
        self._stream = sys.stdout
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            if sys.stdout.fileno() == 1:
                self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8", closefd=False)
        self._sentence_times: deque[float] = deque()
        self._num_dropped = 0

    def record(self, line: str) -> None:
        """Print a metric record."""
        self._print(line)

    def say(self, sentence: str) -> None:
        """Print a sentence with the time of day; above the rate limit it is only counted."""
        with _print_lock:
            line = self._line(sentence)
        if line is not None:
            self._print(line)

    def _line(self, sentence: str) -> str | None:
        now = time.monotonic()
        while self._sentence_times and now - self._sentence_times[0] > 60.0:
            self._sentence_times.popleft()
        if len(self._sentence_times) >= SENTENCES_PER_MINUTE:
            self._num_dropped += 1
            return None
        self._sentence_times.append(now)
        more = f" ({self._num_dropped} sentences were held back)" if self._num_dropped else ""
        self._num_dropped = 0
        return f"{time.strftime('%H:%M:%S')} {sentence}{more}"

    def _print(self, line: str) -> None:
        with _print_lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class AppendFile:
    """File to which pieces are appended completely or not at all; pieces are dropped if the disk refuses them."""

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
            # A full disk may accept a part; half a record would also corrupt the next one.
            if self._file.write(piece) < len(piece):
                self._file.truncate(end)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()


class RecordFile:
    """`metrics.jsonl`: records of the learner, for curves that outlive the pod's log.

    A full file joins `metrics.jsonl.1`, of which every second record is dropped then. So the file holds the whole
    run within twice its limit: the newest records are complete, and each level before them has half as many.
    """

    def __init__(self, path: Path, limit_bytes: int = FILE_LIMIT) -> None:
        self._path = path
        self._limit = limit_bytes
        self._file = AppendFile(path)

    def append(self, line: str) -> None:
        """Add one record."""
        if self._file.size > self._limit:
            self._rotate()
        self._file.append(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        """Thin what is there, and start a new file; where that fails, continue in the old one."""
        older = self._path.with_name(self._path.name + ".1")
        thinned = self._path.with_name(self._path.name + ".new")
        with contextlib.suppress(OSError):
            with thinned.open("wb") as file:
                for path in (older, self._path):
                    # The first is missing at the first time, the second if the last attempt failed half way.
                    if path.exists():
                        with path.open("rb") as lines:
                            file.writelines(itertools.islice(lines, 0, None, 2))
            thinned.replace(older)
            self._path.unlink(missing_ok=True)
            fresh = AppendFile(self._path)  # before the old one is closed: if this fails, records go on there
            self._file.close()
            self._file = fresh
        with contextlib.suppress(OSError):
            thinned.unlink(missing_ok=True)


class Rate:
    """Rate of a counter, per second, between two updates."""

    def __init__(self, now: float, count: int) -> None:
        self._last_time = now
        self._count = count

    def update(self, now: float, count: int) -> float:
        """Return the rate since the last update."""
        passed = now - self._last_time
        rate = (count - self._count) / passed if passed > 0 else 0.0
        self._last_time, self._count = now, count
        return rate


MAX_LINE: Final = 65_536
"""Length of the longest line that is parsed; a longer one is not a record."""
MAX_NUMBER: Final = 1e300
"""Largest magnitude of a number that can be scaled and added without becoming infinite."""
MAX_COUNT: Final = 1e15
"""Largest count: every integer up to here is exact as a float, and short enough to be shown in full."""
MAX_TEXT: Final = 200


def parse_record(line: str) -> dict[str, Any] | None:
    """Parse a line as a metric record, with its kind under ``l2r``; None for any other line."""
    # The prefix first: nearly every line of a log is rejected here, before the JSON parser sees it. The record may
    # follow text that another thread or a progress bar has written without a line end.
    at = line.find(METRIC_PREFIX)
    if at < 0 or len(line) - at > MAX_LINE:
        return None
    try:
        record = bounded_json.loads(line[at:])
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("l2r"), str) else None


def number(value: Any, max_abs: float = MAX_NUMBER) -> float | None:
    """Return a finite number as a float; None for anything else."""
    # bool is a subclass of int, and Python's JSON parser reads NaN and Infinity, which records must not contain.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= max_abs
    return float(value) if is_number and math.isfinite(value) else None


def integer(value: Any, max_abs: float = MAX_NUMBER) -> int | None:
    """Return a number without its fraction; None for anything else."""
    result = number(value, max_abs)
    return None if result is None else int(result)


def text(value: Any, max_chars: int = MAX_TEXT) -> str:
    """Return a text, truncated at `max_chars`; empty for anything else."""
    return value[:max_chars] if isinstance(value, str) else ""
