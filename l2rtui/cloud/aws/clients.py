"""Calls of AWS services: in threads, since boto3 blocks, and with its errors converted to sentences.

boto3 itself finds credentials and region (environment, profile, instance metadata) and the address of a service
(``AWS_ENDPOINT_URL``): none of that is repeated here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from l2rtui.errors import BackendError
from runtime.base.installation import install_hint

_log = logging.getLogger(__name__)

_MISSING = ("NotFound", "NoSuchEntity", "does not exist", "RepositoryNotFound")


class CloudError(BackendError):
    """A service has refused a call; ``code`` is its error code, such as ``ExpiredToken``."""

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code

    @property
    def is_missing(self) -> bool:
        """True if the resource of the call does not exist."""
        # Each service has its own code for this, and some only say it in the message.
        return any(word in self.code or word in self.message for word in _MISSING)


class Cloud:
    """Clients of one AWS account in one region.

    Args:
        region: Empty for the region of the environment or the profile.
        profile: Profile of the AWS configuration; empty for the default one.
        repeats: Number of retries of a failed call. read_seconds: Timeout of a response.
    """

    def __init__(self, region: str = "", profile: str = "", *, repeats: int = 6, read_seconds: int = 60) -> None:
        self._wanted = region
        self._repeats = repeats
        self._read_seconds = read_seconds
        self._profile = profile
        self.clients: dict[str, Any] = {}
        self._session: Any = None
        # boto3: sessions, which create clients, are not thread-safe; clients are.
        self._lock = threading.Lock()

    async def region(self) -> str:
        """Return the region of every call."""
        return str((await asyncio.to_thread(self._client, "sts")).meta.region_name)

    async def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call one operation by its boto3 name: ``call("eks", "describe_cluster", name=…)``.

        Raises:
            CloudError: The service refuses or does not respond, or there are no credentials.
        """
        return await asyncio.to_thread(self._call, service, operation, arguments)

    async def find(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Call one operation like `call`; return None if its resource does not exist."""
        try:
            return await self.call(service, operation, **arguments)
        except CloudError as error:
            if error.is_missing:
                return None
            raise

    async def list_all(self, service: str, operation: str, key: str, **arguments: Any) -> list[Any]:
        """Return every item of a list, over all its pages; ``key`` is the field of the items, such as
        ``Stacks``.
        """
        return await asyncio.to_thread(self._list, service, operation, key, arguments)

    def _call(self, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        _log.debug("call of %s: %s", service, operation)
        with _translated_errors(service, operation):
            return dict(getattr(self._client(service), operation)(**arguments))

    def _list(self, service: str, operation: str, key: str, arguments: dict[str, Any]) -> list[Any]:
        with _translated_errors(service, operation):
            client = self._client(service)
            # Some lists of old services come in one piece and have no paginator.
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**arguments).get(key) or ())
            pages = client.get_paginator(operation).paginate(**arguments)
            return [item for page in pages for item in page.get(key) or ()]

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self.clients:
                self.clients[service] = self._make(service)
            return self.clients[service]

    def _make(self, service: str) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise missing_library() from None
        with _translated_errors(service, "connect"):
            # One session for all services: credentials of a profile (SSO, an assumed role) are resolved once.
            if self._session is None:
                self._session = boto3.session.Session(
                    profile_name=self._profile or None, region_name=self._wanted or None
                )
            # Adaptive: a cluster needs many calls of a few services, and EC2 throttles each account (token
            # buckets).
            retries: Any = {"mode": "adaptive", "max_attempts": self._repeats}
            config = Config(
                retries=retries, connect_timeout=min(10, self._read_seconds), read_timeout=self._read_seconds
            )
            return self._session.client(service, config=config)


@contextlib.contextmanager
def _translated_errors(service: str, operation: str) -> Iterator[None]:
    """Raise boto3's errors as CloudError."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise missing_library() from None
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise describe_error(service, operation, error) from error


def missing_library() -> BackendError:
    """Return the error for an installation without boto3."""
    sentence = "This needs Amazon's library for Python, which is not installed."
    return BackendError(sentence, install_hint("aws"))


def describe_error(service: str, operation: str, error: BaseException) -> CloudError:
    """Convert Amazon's error to ours; its text names the operation and the reason, and contains no credentials."""
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return CloudError("There are no AWS credentials.", "Log in: `aws configure` or `aws sso login`.", kind)
    if kind == "NoRegionError":
        return CloudError("No AWS region is chosen.", "Set AWS_REGION, or name it in the file.", kind)
    # Only ClientError has a response; the others never reached the service.
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return CloudError(f"Amazon's service {service} cannot be asked: {error}.", code=kind)
    reason = answer.get("Error") or {}
    code, text = str(reason.get("Code", "")), str(reason.get("Message", "")).rstrip(".")
    hint = ""
    if code in ("ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId"):
        hint = "Log in again: `aws configure` or `aws sso login`."
    # The permission in the notation of IAM policies: eks:DescribeCluster for describe_cluster.
    elif "AccessDenied" in code or "Unauthorized" in code:
        hint = f"Ask for the permission {service}:{operation.replace('_', ' ').title().replace(' ', '')}."
    return CloudError(f"Amazon's {service} refuses {operation}: {text or code}.", hint, code)
