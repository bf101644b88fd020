"""Sources of downloads: HTTP, S3 and files, each read from an offset, with a version that detects changes.

A source's URL is displayed without user, password and query, because these may contain secrets.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from runtime.base.errors import FailedError, SetupError
from runtime.base.object_store import TRANSIENT_STATUS, ObjectBody, S3Store, StoreError

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


def parse(text: str) -> Source:
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
