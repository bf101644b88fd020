"""Calls of Amazon's services: in threads, since the SDK blocks, and with its errors as sentences.

The SDK itself reads where the credentials and the region are (environment, profile, instance), and where a service
is asked (``AWS_ENDPOINT_URL``): nothing of that is repeated here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from l2rtui.errors import BackendError

_MISSING = ("NotFound", "NoSuchEntity", "does not exist", "RepositoryNotFound")


class CloudError(BackendError):
    """A service refuses a call.

    Attributes:
        code: The service's own word for why.
    """

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code

    @property
    def is_missing(self) -> bool:
        """What was asked for is not there."""
        return any(word in self.code or word in self.message for word in _MISSING)


class Cloud:
    """One account in one region.

    Args:
        region: Empty for the region of the environment or the profile.
        profile: Empty for the usual one.
    """

    def __init__(self, region: str = "", profile: str = "") -> None:
        self._wanted = region
        self._profile = profile
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._lock = threading.Lock()  # making a client is not safe in two threads at once; using one is

    async def region(self) -> str:
        """The region that is worked in."""
        return str((await asyncio.to_thread(self._client, "sts")).meta.region_name)

    async def ask(self, service: str, operation: str, **words: Any) -> dict[str, Any]:
        """Call one operation, as boto3 names it: ``ask("eks", "describe_cluster", name=…)``.

        Raises:
            CloudError: the service refuses or does not answer, or there are no credentials.
        """
        return await asyncio.to_thread(self._call, service, operation, words)

    async def all(self, service: str, operation: str, key: str, **words: Any) -> list[Any]:
        """Every item of a list, over all its pages.

        Args:
            key: Where the items stand in an answer, such as ``Stacks``.
        """
        return await asyncio.to_thread(self._list, service, operation, key, words)

    async def download(self, bucket: str, key: str, path: Path, progress: Callable[[int], None]) -> None:
        """Fetch an object to a file, in parts.

        Args:
            progress: Called with the bytes since its last call; in other threads.
        """
        await asyncio.to_thread(self._download, bucket, key, path, progress)

    def _download(self, bucket: str, key: str, path: Path, progress: Callable[[int], None]) -> None:
        import botocore.exceptions
        from boto3.exceptions import Boto3Error

        try:
            self._client("s3").download_file(bucket, key, str(path), Callback=progress)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, Boto3Error) as error:
            raise _sentence("s3", "get_object", error) from error

    def _call(self, service: str, operation: str, words: dict[str, Any]) -> dict[str, Any]:
        import botocore.exceptions

        try:
            answer: dict[str, Any] = getattr(self._client(service), operation)(**words)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise _sentence(service, operation, error) from error
        return answer

    def _list(self, service: str, operation: str, key: str, words: dict[str, Any]) -> list[Any]:
        import botocore.exceptions

        try:
            client = self._client(service)
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**words).get(key) or ())
            pages = client.get_paginator(operation).paginate(**words)
            return [item for page in pages for item in page.get(key) or ()]
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise _sentence(service, operation, error) from error

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._make(service)
            return self._clients[service]

    def _make(self, service: str) -> Any:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise BackendError(
                "This needs Amazon's library for Python, which is not installed.",
                "Install it: `pip install 'l2rtui[aws]'`.",
            ) from None
        try:
            if self._session is None:
                self._session = boto3.session.Session(
                    profile_name=self._profile or None, region_name=self._wanted or None
                )
            config = Config(retries={"mode": "adaptive", "max_attempts": 6}, connect_timeout=10, read_timeout=60)
            return self._session.client(service, config=config)
        except BotoCoreError as error:
            raise _sentence(service, "connect", error) from error


def _sentence(service: str, operation: str, error: Exception) -> CloudError:
    """Amazon's error as ours; its text names the operation and the reason, and holds no credentials."""
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return CloudError("There are no AWS credentials.", "Log in: `aws configure` or `aws sso login`.", kind)
    if kind == "NoRegionError":
        return CloudError("No AWS region is chosen.", "Set AWS_REGION, or name it in the file.", kind)
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return CloudError(f"Amazon's service {service} cannot be asked: {error}.", code=kind)
    said = answer.get("Error") or {}
    code, text = str(said.get("Code", "")), str(said.get("Message", "")).rstrip(".")
    hint = ""
    if code in ("ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId"):
        hint = "Log in again: `aws configure` or `aws sso login`."
    elif "AccessDenied" in code or "Unauthorized" in code:
        hint = f"Ask for the permission {service}:{operation.replace('_', ' ').title().replace(' ', '')}."
    return CloudError(f"Amazon's {service} refuses {operation}: {text or code}.", hint, code)
