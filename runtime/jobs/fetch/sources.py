"""Where data comes from: each kind of source gives bytes from an offset on, and says whether it is still the same.

A source is shown without the user, password and query of its address: those are where secrets stand.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

from runtime.commands import FailedError
from runtime.process import UsageError

TIMEOUT_SECONDS: Final = 30.0
"""A server that sends nothing for this long counts as gone."""
_AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)
"""Answers of a server that may be other ones in a moment."""


class GoneError(Exception):
    """The source cannot be read just now; another try may help."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Bytes of a source from `offset` on; `total` is the whole size if it is known."""

    stream: IO[bytes]
    offset: int
    total: int | None
    version: str
    """Changes when the source does; empty if it does not say."""


class Source(Protocol):
    """Something to read from."""

    @property
    def shown(self) -> str:
        """Its address, for people."""
        ...

    @property
    def name(self) -> str:
        """The last part of its path."""
        ...

    def open(self, offset: int, version: str) -> Reply:
        """Read from `offset` on if the source is still `version`, or else from the start.

        Raises GoneError if another try may help, FailedError if not.
        """
        ...


def parse(text: str) -> Source:
    """Return the source written as `text`. Raises UsageError."""
    try:
        url = urllib.parse.urlsplit(text)
        host = url.hostname or ""
        port = f":{url.port}" if url.port else ""
    except ValueError as error:
        raise UsageError(f"the source is no address: {error}") from error
    shown = f"{url.scheme}://{host}{port}{url.path}"
    name = urllib.parse.unquote(url.path).rsplit("/", 1)[-1]
    if url.scheme in {"http", "https"} and host:
        return _Web(text, shown, name)
    if url.scheme == "s3" and host and name:
        return _Bucket(url.netloc, url.path.lstrip("/"), shown, name)
    if url.scheme in {"", "file"}:
        path = Path(urllib.parse.unquote(url.path) if url.scheme else text)
        return _Local(path, str(path), path.name)
    raise UsageError(f"the source {shown} must be http(s)://HOST/PATH, s3://BUCKET/KEY, a path, or digits")


@dataclass(frozen=True, slots=True)
class _Web:
    _url: str
    shown: str
    name: str

    def open(self, offset: int, version: str) -> Reply:
        """Ask for the rest; a server that knows no ranges, or has another file now, sends all of it."""
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
                if error.code == 416:  # the part that is there does not belong to what is there now
                    return self.open(0, "")
                sentence = f"{self.shown}: the server answers {error.code} {error.reason}"
                raise (GoneError if error.code in _AGAIN else FailedError)(sentence) from error
        except OSError as error:
            raise GoneError(f"{self.shown}: {getattr(error, 'reason', error)}") from error
        headers = answer.headers
        etag = headers.get("ETag", "")
        version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
        begins = re.match(r"bytes (\d+)-\d*/(\d+|\*)", headers.get("Content-Range", ""))
        if answer.status == 206 and begins:
            total = None if begins[2] == "*" else int(begins[2])
            return Reply(answer, int(begins[1]), total, version)
        length = headers.get("Content-Length")
        return Reply(answer, 0, int(length) if length and length.isdigit() else None, version)


@dataclass(frozen=True, slots=True)
class _Bucket:
    _bucket: str
    _key: str
    shown: str
    name: str

    def open(self, offset: int, version: str) -> Reply:
        """Ask for the rest of the object, if it is still the same one."""
        try:
            import boto3
            import botocore.exceptions
        except ImportError as error:
            raise FailedError(f"{self.shown}: boto3 is not installed here; pip install boto3") from error
        wanted: dict[str, Any] = {"Bucket": self._bucket, "Key": self._key}
        if offset and version:
            wanted |= {"Range": f"bytes={offset}-", "IfMatch": version}
        try:
            answer = boto3.client("s3").get_object(**wanted)
        except botocore.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") in {"PreconditionFailed", "InvalidRange", "412", "416"}:
                return self.open(0, "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "an error")
            raise (GoneError if status in _AGAIN else FailedError)(
                f"{self.shown}: the service says {code}; are the bucket, the key and the rights right?"
            ) from error
        except botocore.exceptions.BotoCoreError as error:
            is_setup = isinstance(error, botocore.exceptions.NoCredentialsError | botocore.exceptions.NoRegionError)
            raise (FailedError if is_setup else GoneError)(f"{self.shown}: {error}") from error
        begins = re.match(r"bytes (\d+)-\d*/(\d+)", answer.get("ContentRange", ""))
        body: Any = _Body(answer["Body"])
        if begins:
            return Reply(body, int(begins[1]), int(begins[2]), answer["ETag"])
        return Reply(body, 0, int(answer["ContentLength"]), answer["ETag"])


@dataclass(frozen=True, slots=True)
class _Body:
    """An object's bytes; what the client library raises while they come is a cut connection to us."""

    _stream: Any

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        import botocore.exceptions

        try:
            return bytes(self._stream.read(size))
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            raise GoneError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


@dataclass(frozen=True, slots=True)
class _Local:
    _path: Path
    shown: str
    name: str

    def open(self, offset: int, version: str) -> Reply:
        """Read on, if the file has not changed."""
        try:
            stream = self._path.open("rb")
            facts = self._path.stat()
        except OSError as error:
            raise FailedError(f"{self.shown} cannot be read: {error.strerror}") from error
        now = f"{facts.st_size}-{facts.st_mtime_ns}"
        start = offset if version == now else 0
        stream.seek(start)
        return Reply(stream, start, facts.st_size, now)
