"""A bucket as a place for checkpoints: multipart uploads with check sums, seen only when they are complete.

Amazon's own library does the work (parts at once, retries, credentials from environment, file, pod identity or
instance). An object appears when CompleteMultipartUpload has answered; an upload that is cut off leaves parts that
cost money and that nobody sees, so the next writer of the same place ends them. The server checks the SHA-256 of
every part on its way in.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from runtime.places import PlaceError, Progress

PART_BYTES: Final = 32 * 1024 * 1024
PARTS_AT_ONCE: Final = 4
_URL: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


class S3Place:
    """The objects under one prefix of a bucket. `AWS_ENDPOINT_URL_S3` names another server than Amazon's."""

    def __init__(self, url: str) -> None:
        if (match := _URL.fullmatch(url)) is None:
            raise PlaceError(f"{url} is not the name of a bucket; use s3://BUCKET/PREFIX")
        try:
            import boto3
            from boto3.s3.transfer import TransferConfig
            from botocore.config import Config
        except ImportError:
            raise PlaceError(f"{url} needs the package boto3, which is not installed here") from None
        self.url = url
        self._bucket, prefix = match[1], (match[2] or "").strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        with self._told("open"):
            self._client: Any = boto3.client(
                "s3", config=Config(retries={"mode": "standard", "max_attempts": 6}, read_timeout=60)
            )
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def names(self) -> list[str]:
        """Names of the objects directly under the prefix, sorted."""
        with self._told("list"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def read(self, name: str) -> bytes:
        """Return a small object."""
        with self._told("read", name):
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        return data

    def put(self, name: str, source: Path, progress: Progress = lambda _: None) -> None:
        """Upload it in parts, each with its SHA-256."""
        with self._told("write", name):
            self._client.upload_file(
                str(source),
                self._bucket,
                self._prefix + name,
                ExtraArgs={"ChecksumAlgorithm": "SHA256"},
                Config=self._transfer,
                Callback=progress,
            )

    def fetch(self, name: str, target: Path, progress: Progress = lambda _: None) -> None:
        """Download it in parts to a temporary name beside `target`, which it then takes."""
        temporary = target.with_name(f".tmp-{target.name}")
        try:
            with self._told("read", name):
                self._client.download_file(
                    self._bucket, self._prefix + name, str(temporary), Config=self._transfer, Callback=progress
                )
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Delete it."""
        with self._told("delete", name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def sweep(self) -> None:
        """End uploads under this prefix that somebody began and did not complete."""
        with self._told("list"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            begun = [each for page in pages for each in page.get("Uploads", ())]
        for each in begun:
            with self._told("clear", each["Key"]):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=each["Key"], UploadId=each["UploadId"])

    @contextlib.contextmanager
    def _told(self, verb: str, name: str = "") -> Iterator[None]:
        """Turn the library's exceptions into one sentence; they never hold a key."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        what = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except ClientError as error:
            answer = error.response.get("Error", {})
            if answer.get("Code") in {"404", "NoSuchKey"}:
                raise FileNotFoundError(f"there is no {what}") from None
            raise PlaceError(
                f"cannot {verb} {what}: {answer.get('Code', '')} {answer.get('Message', '')}".rstrip()
            ) from None
        except (BotoCoreError, Boto3Error, OSError) as error:
            if isinstance(error, FileNotFoundError | PlaceError):
                raise
            raise PlaceError(f"cannot {verb} {what}: {error}") from None
