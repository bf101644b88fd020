"""The objects under a prefix of a bucket, as files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from l2rtui.backends.aws.clients import Cloud
from l2rtui.errors import UsageError

_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


class Objects:
    """Reads only.

    Args:
        url: ``s3://BUCKET[/PREFIX]``.

    Raises:
        UsageError: it names no bucket.
    """

    def __init__(self, url: str) -> None:
        if (match := _URL.fullmatch(url)) is None:
            raise UsageError(f"{url} names no bucket.", "Write s3://BUCKET/PREFIX.")
        self._bucket = match[1]
        prefix = (match[2] or "").strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._cloud = Cloud()

    async def names(self) -> list[str]:
        """Paths below the prefix."""
        found = await self._cloud.all("s3", "list_objects_v2", "Contents", Bucket=self._bucket, Prefix=self._prefix)
        return [str(one["Key"]).removeprefix(self._prefix) for one in found]

    async def read(self, name: str) -> bytes:
        """One small object."""
        answer = await self._cloud.ask("s3", "get_object", Bucket=self._bucket, Key=self._prefix + name)
        with answer["Body"] as body:
            data: bytes = await asyncio.to_thread(body.read)
        return data

    async def fetch(self, name: str, target: Path, progress: Callable[[int], None]) -> None:
        """One object to a file, which appears whole."""
        temporary = target.with_name(f".tmp-{target.name}")
        try:
            await self._cloud.download(self._bucket, self._prefix + name, temporary, progress)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
