"""One fetch: the digits, or a download, verified and optionally unpacked.

A download goes into a part file next to its destination, resumes after interruptions, and is renamed once
verified.

Sources of downloads: HTTP, S3 and files, each read from an offset, with a version that detects changes.

A source's URL is displayed without user, password and query, because these may contain secrets.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

from runtime.base import bounded_json
from runtime.base.atomic_files import sync_folder, write_atomic
from runtime.base.errors import FailedError, InterruptedWorkError, SetupError
from runtime.base.metrics import Console, record
from runtime.base.object_store import TRANSIENT_STATUS, ObjectBody, S3Store, StoreError
from runtime.base.signals import Stop
from runtime.jobs.fetch.unpack import MAX_RATIO, is_archive, unpack

TIMEOUT_SECONDS: Final = 30.0
"""A server that sends nothing for this long is considered gone."""
_REFUSED: Final = "the service says {}; are the bucket, the key and the rights right?"


class GoneError(Exception):
    """The source cannot be read at the moment; another attempt may help."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Bytes of a source, starting at `offset`; `total` is the whole size if known."""

    stream: IO[bytes] | ObjectBody
    offset: int
    total: int | None
    version: str
    """Changes when the source does; empty if unknown."""


class Source(Protocol):
    """Something to read from."""

    @property
    def display_url(self) -> str:
        """Its address, for display."""

    @property
    def name(self) -> str:
        """The last part of its path."""

    def open(self, offset: int, version: str) -> Reply:
        """Read from `offset` if the source still is `version`, otherwise from the start.

        Raises GoneError if another attempt may help, FailedError if not.
        """


def source_of(text: str) -> Source:
    """Return the source for the URL or path `text`. Raises SetupError."""
    try:
        url = urllib.parse.urlsplit(text)
        host = url.hostname or ""
        port = f":{url.port}" if url.port else ""
    except ValueError as error:
        raise SetupError(f"the source is not a valid address: {error}") from error
    display_url = f"{url.scheme}://{host}{port}{url.path}"
    name = urllib.parse.unquote(url.path).rsplit("/", 1)[-1]
    if url.scheme in {"http", "https"} and host:
        return _HttpSource(text, display_url, name)
    if url.scheme == "s3" and host and name:
        return _S3Source(url.netloc, url.path.lstrip("/"), display_url, name)
    if url.scheme in {"", "file"}:
        path = Path(urllib.parse.unquote(url.path) if url.scheme else text)
        return _FileSource(path, str(path), path.name)
    raise SetupError(f"the source {display_url} must be http(s)://HOST/PATH, s3://BUCKET/KEY, a path, or digits")


@dataclass(frozen=True, slots=True)
class _HttpSource:
    _url: str
    display_url: str
    name: str

    def open(self, offset: int, version: str) -> Reply:
        """Request the rest; a server without ranges, or with another file now, sends all of it."""
        request = urllib.request.Request(  # noqa: S310  (parse saw the scheme)
            self._url, headers={"Accept-Encoding": "identity"}
        )
        if offset and version:
            request.add_header("Range", f"bytes={offset}-")
            request.add_header("If-Range", version)
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310  (parse saw the scheme)
        except urllib.error.HTTPError as error:
            with error:
                # The source's file became shorter than the local part.
                if error.code == 416:  # the local part does not belong to the current file
                    return self.open(0, "")
                sentence = f"{self.display_url}: the server answers {error.code} {error.reason}"
                raise (GoneError if error.code in TRANSIENT_STATUS else FailedError)(sentence) from error
        except OSError as error:
            raise GoneError(f"{self.display_url}: {getattr(error, 'reason', error)}") from error
        headers = answer.headers
        etag = headers.get("ETag", "")
        # A weak ETag allows byte differences, so it cannot prove that a part fits.
        version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
        begins = re.match(r"bytes (\d+)-\d*/(\d+|\*)", headers.get("Content-Range", ""))
        if answer.status == 206 and begins:
            total = None if begins[2] == "*" else int(begins[2])
            return Reply(answer, int(begins[1]), total, version)
        length = headers.get("Content-Length")
        return Reply(answer, 0, int(length) if length and length.isdigit() else None, version)


@dataclass(frozen=True, slots=True)
class _S3Source:
    _bucket: str
    _key: str
    display_url: str
    name: str

    def open(self, offset: int, version: str) -> Reply:
        """Request the rest of the object, if it has not changed."""
        try:
            stream = S3Store(f"s3://{self._bucket}").open(self._key, offset, version)
        except FileNotFoundError as error:
            raise FailedError(f"{self.display_url}: {_REFUSED.format('NoSuchKey')}") from error
        except StoreError as error:
            if isinstance(error.__cause__, ImportError):
                raise FailedError(f"{self.display_url}: boto3 is not installed here; pip install boto3") from error
            sentence = _REFUSED.format(error.code) if error.code else str(error.__cause__ or error)
            raise (GoneError if error.is_transient else FailedError)(f"{self.display_url}: {sentence}") from error
        return Reply(stream.body, stream.offset, stream.total, stream.version)


@dataclass(frozen=True, slots=True)
class _FileSource:
    _path: Path
    display_url: str
    name: str

    def open(self, offset: int, version: str) -> Reply:
        """Continue reading, if the file has not changed."""
        try:
            stream = self._path.open("rb")
            facts = self._path.stat()
        except OSError as error:
            raise FailedError(f"{self.display_url} cannot be read: {error.strerror}") from error
        now = f"{facts.st_size}-{facts.st_mtime_ns}"
        start = offset if version == now else 0
        stream.seek(start)
        return Reply(stream, start, facts.st_size, now)


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
    source = source_of(text)
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
        self.seen, self._total = size, total
        now = time.monotonic()
        if now - self._said < SAY_SECONDS:
            return
        self._said = now
        self._record("running")
        share = f" of {total / 1e6:.1f} MB, {100 * size / total:.0f} %" if total else ""
        self._console.say(f"fetching {self._shown}: {size / 1e6:.1f} MB{share}")

    def end(self, state: str, size: int, detail: str) -> None:
        self.seen = size
        self._record(state)
        seconds = time.monotonic() - self._began
        if detail:
            self._console.say(f"fetched {self._shown}: {size / 1e6:.1f} MB in {seconds:.1f} s; {detail}")

    def _record(self, state: str) -> None:
        fields = {"source": self._shown, "state": state, "bytes": self.seen, "total_bytes": self._total}
        self._console.record(record("fetch", fields))
