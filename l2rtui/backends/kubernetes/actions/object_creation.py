"""Creation of a launch's objects: a few requests at a time, retried, never the same object twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import kind_of

AT_ONCE: Final = 8
"""Number of concurrent requests: more gains nothing, and API servers throttle it."""
_RETRIES: Final = 5
# Longer than one request can take, including retries inside the connection.
_SETTLE_SECONDS: Final = 40.0

Manifest = dict[str, Any]


class ObjectCreator:
    """Requests of one launch; ``created`` has the server's response for each created object."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.created: list[Manifest] = []
        self._api = api
        self._namespace = namespace
        self._nonce = uuid.uuid4().hex
        self._requests: set[asyncio.Future[Manifest]] = set()
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object, marked as created by this launch.

        Raises:
            ApiError: The server refused, or repeatedly did not respond.
        """
        meta = manifest["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), labels.LAUNCH: self._nonce}
        created = await self.send(lambda: self._post(manifest))
        # Some servers do not repeat the kind in their response.
        self.created.append({**created, "kind": manifest["kind"]})
        return created

    async def send(self, request: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """Send a request when a lane is free; once sent, it is finished even if the caller is cancelled."""
        async with self._gate:
            task = asyncio.ensure_future(request())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            return await asyncio.shield(task)

    async def wait_idle(self) -> None:
        """Wait until no request is in flight, so that the created objects can be counted."""
        if self._requests:
            await asyncio.wait(set(self._requests), timeout=_SETTLE_SECONDS)

    async def _post(self, manifest: Manifest) -> Manifest:
        """Create an object; retry if the result is unknown."""
        is_unsure = False
        for attempt in range(_RETRIES):
            try:
                return await self._api.create(manifest)
            except ApiError as error:
                # After a lost response, "AlreadyExists" most likely refers to our own object; otherwise to another
                # user's.
                if error.is_taken and is_unsure:
                    return await self._read_own(manifest, error)
                is_unsure = is_unsure or error.is_unreachable or error.status >= 500
                if not (error.is_unreachable or error.status >= 500) or attempt + 1 == _RETRIES:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        raise AssertionError  # the last attempt returns or raises

    async def _read_own(self, manifest: Manifest, conflict: ApiError) -> Manifest:
        """Return the object of this name if this launch has created it."""
        existing = await self._api.read(kind_of(manifest), self._namespace, manifest["metadata"]["name"])
        if (existing["metadata"].get("annotations") or {}).get(labels.LAUNCH) != self._nonce:
            raise conflict
        return existing
