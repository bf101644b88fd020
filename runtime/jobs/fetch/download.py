"""One fetch: the digits, or a download, verified and optionally unpacked.

A download goes into a part file next to its destination, resumes after interruptions, and is renamed once
verified.
"""

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
from runtime.base.errors import FailedError, InterruptedWorkError, SetupError
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.jobs.fetch import sources
from runtime.jobs.fetch.sources import GoneError, Reply, Source
from runtime.jobs.fetch.unpack import MAX_RATIO, is_archive, unpack

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


SAY_SECONDS: Final = 2.0
DIGITS: Final = "digits"


def fetch(
    text: str,
    dest: Path,
    console: Console,
    stop: Stop,
    *,
    is_folder: bool,
    sha256: str,
    unpacks: bool,
    max_ratio: int = MAX_RATIO,
) -> None:
    """Fetch the source `text` to `dest`. Raises SetupError, FailedError, InterruptedWorkError and OSError."""
    if text == DIGITS:
        from runtime.jobs.datasets.cifar import write_digits

        if sha256:
            raise SetupError("the digits are made here; they have no check sum to compare")
        teller = _ProgressReporter(console, DIGITS)
        teller.end("done", write_digits(dest), f"training and test pictures are in {dest}")
        return
    source = sources.parse(text)
    teller = _ProgressReporter(console, source.display_url)
    into = unpacks and is_archive(source.name)
    if (is_folder or into) and not source.name:
        raise SetupError(f"the source {source.display_url} ends without a name; give a file's name as DEST")
    file = dest / (f".fetched-{source.name}" if into else source.name) if is_folder or into else dest
    try:
        if sha256 and not into and _has_sum(file, sha256):
            teller.end("done", file.stat().st_size, f"{file} is there already")
            return
        Download(source, file, sha256, teller.tell, stop).run()
        size = file.stat().st_size
        if into:
            try:
                names = unpack(file, dest, source.name, stop, max_ratio)
            finally:
                file.unlink(missing_ok=True)
            teller.end("done", size, f"unpacked to {dest}: {', '.join(names[:8])}")
        else:
            teller.end("done", size, f"it is {file}")
    except (FailedError, OSError):
        teller.end("failed", teller.seen, "")
        raise


def _has_sum(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


class _ProgressReporter:
    """Prints a download's progress every few seconds."""

    def __init__(self, console: Console, display_url: str) -> None:
        self._console = console
        self._shown = display_url
        self._began = self._said = time.monotonic()
        self.seen = 0
        self._total: int | None = None

    def tell(self, size: int, total: int | None) -> None:
        """Record `size` bytes of `total`."""
        self.seen, self._total = size, total
        now = time.monotonic()
        if now - self._said < SAY_SECONDS:
            return
        self._said = now
        self._record("running")
        share = f" of {total / 1e6:.1f} MB, {100 * size / total:.0f} %" if total else ""
        self._console.say(f"fetching {self._shown}: {size / 1e6:.1f} MB{share}")

    def end(self, state: str, size: int, detail: str) -> None:
        """Print how it ended."""
        self.seen = size
        self._record(state)
        seconds = time.monotonic() - self._began
        if detail:
            self._console.say(f"fetched {self._shown}: {size / 1e6:.1f} MB in {seconds:.1f} s; {detail}")

    def _record(self, state: str) -> None:
        fields = {"source": self._shown, "state": state, "bytes": self.seen, "total_bytes": self._total}
        self._console.record(record("fetch", fields))
