"""Store of named files: a folder (local or on a volume), or an S3 bucket through Amazon's library.

A file appears under its name only when complete: a folder gets it by a rename, a bucket shows an object after
CompleteMultipartUpload. So readers need no lock. The remains of a killed writer have no final name;
`ObjectStore.sweep` removes them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from runtime.base.atomic_files import TEMPORARY_PREFIX, ByteProgress, copy_atomic, replacement

PART_BYTES: Final = 32 * 1024 * 1024
"""Size of a part of an upload; there can be at most 10,000 parts, so an object may have 312 GiB."""
PARTS_AT_ONCE: Final = 4
_BUCKET_URL: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")
_MISSING: Final = ("404", "NoSuchKey")
_CHANGED: Final = ("PreconditionFailed", "InvalidRange", "412", "416")
"""Errors of a conditional range request if the object was replaced after the first part."""
TRANSIENT_STATUS: Final = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes of temporary server errors (RFC 9110, 15.5 and 15.6)."""


class StoreError(OSError):
    """The store cannot be used, perhaps only temporarily; the message names it.

    Attributes:
        operation: Failed call of the S3 API, as boto3 names it; empty if no call was made.
        code: The service's own error code. is_transient: A retry may succeed.
    """

    def __init__(self, message: str, operation: str = "", code: str = "", *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.operation = operation
        self.code = code
        self.is_transient = is_transient


class ObjectStore(Protocol):
    """Files by name under one root. Every method raises OSError; FileNotFoundError if a file is missing."""

    url: str

    def names(self, *, is_recursive: bool = False) -> list[str]:
        """Return the sorted names of all files directly under the root, or at any depth with their folders."""

    def read(self, name: str, most_bytes: int = -1) -> bytes:
        """Return the content of a small file; for untrusted files limit the size with `most_bytes`."""

    def put(self, name: str, source: Path, progress: ByteProgress = lambda _: None) -> None:
        """Copy a file into the store; after an error it does not appear there."""

    def fetch(self, name: str, target: Path, progress: ByteProgress = lambda _: None) -> None:
        """Copy a file from the store to `target`, which appears only when complete."""

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is not an error."""

    def sweep(self) -> None:
        """Remove the remains of killed writers. Only the single writer of a store may call it."""


def open_store(url: str, *parts: str) -> ObjectStore:
    """Return the store that `url` names, ``s3://BUCKET[/PREFIX]`` or a folder, with `parts` appended.

    Raises StoreError: The URL is invalid, or the library for it is not installed.
    """
    if url.startswith("s3://"):
        return S3Store("/".join([url.rstrip("/"), *parts]))
    if "://" in url:
        raise StoreError(f"{url} is not a place for checkpoints; use s3://BUCKET/PREFIX or a folder")
    return FolderStore(Path(url, *parts))


def split_bucket_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix (empty, or ending in a slash) of ``s3://BUCKET[/PREFIX]``. Raises StoreError."""
    if (match := _BUCKET_URL.fullmatch(url)) is None:
        raise StoreError(f"{url} is not the name of a bucket; use s3://BUCKET/PREFIX")
    prefix = (match[2] or "").strip("/")
    return match[1], f"{prefix}/" if prefix else ""


class FolderStore:
    """Files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self._folder = folder

    def names(self, *, is_recursive: bool = False) -> list[str]:
        """Return the sorted names of all files; empty if the folder does not exist yet."""
        if is_recursive:
            return sorted(
                os.path.relpath(os.path.join(folder, name), self._folder)  # noqa: PTH118  (thousands of names)
                for folder, _, names in os.walk(self._folder)
                for name in names
            )
        try:
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())
        except FileNotFoundError:
            return []

    def read(self, name: str, most_bytes: int = -1) -> bytes:
        """Return the content of a file."""
        with (self._folder / name).open("rb") as file:
            return file.read(most_bytes)

    def put(self, name: str, source: Path, progress: ByteProgress = lambda _: None) -> None:
        """Copy a file into the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy_atomic(source, self._folder / name, progress)

    def fetch(self, name: str, target: Path, progress: ByteProgress = lambda _: None) -> None:
        """Copy a file from the folder."""
        copy_atomic(self._folder / name, target, progress)

    def remove(self, name: str) -> None:
        """Unlink a file."""
        (self._folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove unfinished copies."""
        for name in self.names():
            if name.startswith(TEMPORARY_PREFIX):
                self.remove(name)


class ObjectStream(Struct, frozen=True):
    """Content of an object from `offset` on; `total` is the total size, `version` the ETag."""

    body: ObjectBody
    offset: int
    total: int
    version: str


class S3Store:
    """Objects under one prefix of a bucket.

    boto3 handles parallel parts, retries, and credentials from the environment, a file, pod identity or the
    instance. The server verifies the SHA-256 of every uploaded part. ``AWS_ENDPOINT_URL_S3`` names another server
    than Amazon's.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._bucket, self._prefix = split_bucket_url(url)
        try:
            # Here, not above: importing boto3 takes half a second, and most processes copy nothing.
            import boto3
            from boto3.s3.transfer import TransferConfig
            from botocore.config import Config
        except ImportError as error:
            raise StoreError(f"{url} needs the package boto3, which is not installed here") from error
        with self._translate_errors("open"):
            self._client: Any = boto3.client(
                "s3",
                config=Config(retries={"mode": "standard", "max_attempts": 6}, connect_timeout=10, read_timeout=60),
            )
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def names(self, *, is_recursive: bool = False) -> list[str]:
        """Return the names of the objects under the prefix, sorted."""
        folders = {} if is_recursive else {"Delimiter": "/"}
        with self._translate_errors("list", "list_objects_v2"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, **folders
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def read(self, name: str, most_bytes: int = -1) -> bytes:
        """Return the content of a small object."""
        with self._translate_errors("read", "get_object", name):
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"]
            data: bytes = body.read(None if most_bytes < 0 else most_bytes)
        return data

    def open(self, name: str, offset: int = 0, version: str = "") -> ObjectStream:
        """Open an object from `offset` on if it is still `version`, otherwise from the start."""
        request: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + name}
        if offset and version:
            # Without the condition, the rest of a new object could be appended to the start of an old one.
            request |= {"Range": f"bytes={offset}-", "IfMatch": version}
        try:
            with self._translate_errors("read", "get_object", name):
                response = self._client.get_object(**request)
        except StoreError as error:
            if error.code in _CHANGED and "Range" in request:
                return self.open(name)
            raise
        body = ObjectBody(response["Body"])
        if ranged := re.match(r"bytes (\d+)-\d*/(\d+)", response.get("ContentRange", "")):
            return ObjectStream(body, int(ranged[1]), int(ranged[2]), response["ETag"])
        return ObjectStream(body, 0, int(response["ContentLength"]), response["ETag"])

    def put(self, name: str, source: Path, progress: ByteProgress = lambda _: None) -> None:
        """Upload a file in parts, each with its SHA-256."""
        with self._translate_errors("write", "put_object", name):
            self._client.upload_file(
                str(source),
                self._bucket,
                self._prefix + name,
                ExtraArgs={"ChecksumAlgorithm": "SHA256"},
                Config=self._transfer,
                Callback=progress,
            )

    def fetch(self, name: str, target: Path, progress: ByteProgress = lambda _: None) -> None:
        """Download an object in parts."""
        with replacement(target) as temporary, self._translate_errors("read", "get_object", name):
            self._client.download_file(
                self._bucket, self._prefix + name, str(temporary), Config=self._transfer, Callback=progress
            )

    def remove(self, name: str) -> None:
        """Delete an object."""
        with self._translate_errors("delete", "delete_object", name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def sweep(self) -> None:
        """Abort incomplete uploads under this prefix: their parts are invisible and cost money."""
        with self._translate_errors("list", "list_multipart_uploads"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            uploads = [upload for page in pages for upload in page.get("Uploads", ())]
        for upload in uploads:
            with self._translate_errors("clear", "abort_multipart_upload", upload["Key"]):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )

    @contextlib.contextmanager
    def _translate_errors(self, verb: str, operation: str = "", name: str = "") -> Iterator[None]:
        """Convert the library's exceptions to one sentence; they never contain a key."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

        target = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except ClientError as error:
            reason = error.response.get("Error", {})
            code = str(reason.get("Code", ""))
            if code in _MISSING:
                raise FileNotFoundError(f"there is no {target}") from error
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise StoreError(
                f"cannot {verb} {target}: {code} {reason.get('Message', '')}".rstrip(),
                operation,
                code,
                is_transient=status in TRANSIENT_STATUS,
            ) from error
        except (BotoCoreError, Boto3Error, OSError) as error:
            if isinstance(error, FileNotFoundError | StoreError):
                raise
            # A connection may recover; missing credentials or a missing region will not.
            is_transient = not isinstance(error, NoCredentialsError | NoRegionError)
            raise StoreError(f"cannot {verb} {target}: {error}", operation, is_transient=is_transient) from error


class ObjectBody(Struct, frozen=True):
    """Bytes of an object as they arrive. A broken connection raises a transient StoreError."""

    _stream: Any

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end."""
        from botocore.exceptions import BotoCoreError

        try:
            return bytes(self._stream.read(size))
        except (BotoCoreError, OSError) as error:
            raise StoreError(str(error), "get_object", is_transient=True) from error

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
