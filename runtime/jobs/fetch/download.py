"""One download: into a part file next to its destination, resumed after interruptions, verified, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runtime.base import bounded_json
from runtime.base.atomic_files import sync_folder, write_atomic
from runtime.base.errors import FailedError, InterruptedWorkError
from runtime.base.signals import Stop
from runtime.jobs.fetch.sources import GoneError, Reply, Source

CHUNK_BYTES: Final = 256 * 1024
TRIES: Final = 6
"""Number of consecutive attempts without any data before a download is given up."""
PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each further attempt."""
Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far and the total size, if known."""


@dataclass(slots=True)
class Download:
    """A download to the file `dest`. Raises FailedError, InterruptedWorkError, and OSError of the disk."""

    source: Source
    dest: Path
    sha256: str
    progress: Progress
    stop: Stop
    _part: Path = field(init=False)
    _note: Path = field(init=False)
    _version: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._part = self.dest.with_name(f".part-{self.dest.name}")
        self._note = self.dest.with_name(f".part-{self.dest.name}.json")

    def run(self) -> None:
        """Fetch until the file is complete."""
        self.dest.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._part.open("ab") as part:
                self._recall(part.fileno())
                size = self._fetch(part.fileno())
                os.fsync(part.fileno())
        except BaseException:
            self._tidy()
            raise
        self._check(size)
        # Verified before it gets its name: a file with that name is always complete.
        self._part.replace(self.dest)
        self._note.unlink(missing_ok=True)
        sync_folder(self.dest.parent)

    def _tidy(self) -> None:
        """Remove an empty part file."""
        with contextlib.suppress(OSError):
            if not self._part.stat().st_size:
                self._part.unlink()
                self._note.unlink(missing_ok=True)

    def _recall(self, part: int) -> None:
        """Continue an earlier part if it has the same source and version; otherwise truncate it."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            note = bounded_json.loads(self._note.read_bytes())
            # Without a version (ETag or time) the rest may not belong to this part.
            if note["source"] == self.source.display_url and note["version"]:
                self._version = str(note["version"])
                return
        os.ftruncate(part, 0)

    def _fetch(self, part: int) -> int:
        """Return the size once everything has arrived."""
        fruitless = 0
        while True:
            before = os.fstat(part).st_size
            try:
                if self._attempt(part):
                    return os.fstat(part).st_size
                sentence = f"{self.source.display_url}: the connection was cut"
            except (GoneError, http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and error.filename is not None:
                    raise  # the disk, not the source
                sentence = str(error) or type(error).__name__
            # Only attempts without any data count: a slow but working link is never given up.
            fruitless = 0 if os.fstat(part).st_size > before else fruitless + 1
            if fruitless >= TRIES:
                raise FailedError(f"{sentence}; given up after {TRIES} tries; another fetch continues from here")
            self._pause(PAUSES[min(fruitless, len(PAUSES) - 1)])

    def _attempt(self, part: int) -> bool:
        """Read until the stream ends, and return whether it is complete."""
        here = os.fstat(part).st_size
        reply = self.source.open(here if self._version else 0, self._version)
        with contextlib.closing(reply.stream):
            if reply.offset != here or reply.version != self._version:
                os.ftruncate(part, reply.offset)
                here = reply.offset
                self._version = reply.version
                note = {"source": self.source.display_url, "version": reply.version}
                write_atomic(self._note, json.dumps(note).encode(), is_durable=False)
            return self._copy(reply, part, here)

    def _copy(self, reply: Reply, part: int, here: int) -> bool:
        while chunk := reply.stream.read(CHUNK_BYTES):
            if self.stop.is_set():
                raise self._interrupted(f"at {here} bytes")
            _write(part, chunk, self._part)
            here += len(chunk)
            self.progress(here, reply.total)
        return reply.total is None or here == reply.total

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.stop.is_set():
                raise self._interrupted("between two tries")
            time.sleep(0.05)

    def _interrupted(self, moment: str) -> InterruptedWorkError:
        return InterruptedWorkError(f"{self.source.display_url}: ended by {self.stop.reason} {moment}")

    def _check(self, size: int) -> None:
        """Compare the checksum of the file on disk; remove a wrong file, because continuing it is useless."""
        if not self.sha256:
            return
        with self._part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            self._part.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
            raise FailedError(
                f"{self.source.display_url}: {size} bytes came, with the check sum {digest} instead of "
                f"{self.sha256}; they were removed: is it the right file?"
            )


def _write(file: int, data: bytes, path: Path) -> None:
    """Append all of `data`; a disk error names the file."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
    except OSError as error:
        error.filename = str(path)
        raise
