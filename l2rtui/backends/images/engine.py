"""The Docker Engine through its SDK: build and push as async streams, and what it keeps.

The SDK blocks, so each stream is read by a thread of its own. A stream that is closed early stops that thread at
its next message, which closes the connection: the Engine then stops building or pushing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.backends.images.credentials import Login
from l2rtui.domain.imageref import ImageRef, parse_image
from l2rtui.errors import BackendError

LABEL_REVISION: Final = "org.opencontainers.image.revision"
LABEL_DIRTY: Final = "io.l2rtui.dirty"
LABEL_OURS: Final = "io.l2rtui.image"
_ANSWER_SECONDS = 600
_KNOCK_SECONDS = 10.0
_USUAL: Final = "unix:///var/run/docker.sock"
_END: Final = object()

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image that the Engine keeps.

    Attributes:
        digests: What registries call it: ``NAME@sha256:…``; empty before it was pushed.
        created: RFC 3339, as the Engine writes it.
    """

    name: str
    id: str
    size_bytes: int
    created: str
    revision: str
    is_dirty: bool
    digests: tuple[str, ...]


class Engine:
    """One Docker Engine: that of ``DOCKER_HOST``, else this machine's."""

    def __init__(self) -> None:
        self._client: Any = None

    async def open(self) -> None:
        """Connect.

        Raises:
            BackendError: the SDK is not installed, or no Engine answers.
        """
        self._client = await asyncio.to_thread(_connect)

    async def close(self) -> None:
        """Let go of connections."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    def build(
        self,
        folder: str,
        dockerfile: str,
        tag: str,
        args: Mapping[str, str],
        labels: Mapping[str, str],
        network: str,
    ) -> AsyncGenerator[Message, None]:
        """Build an image; the messages are the Engine's own."""

        def messages() -> Iterable[Message]:
            found: Iterable[Message] = self._client.api.build(
                path=folder,
                dockerfile=dockerfile,
                tag=tag,
                buildargs=dict(args),
                labels=dict(labels),
                network_mode=network or None,
                rm=True,
                forcerm=True,
                decode=True,
            )
            return found

        return _threaded(messages)

    def push(self, image: ImageRef, login: Login | None) -> AsyncGenerator[Message, None]:
        """Push one tag; the messages are the Engine's own."""
        # An empty login keeps the SDK from looking for one: where logins are kept is decided in one place.
        auth: dict[str, str] = {}
        if login is not None:
            auth = {"identitytoken": login.secret} if login.is_token else {}
            auth = auth or {"username": login.user, "password": login.secret}
            auth["serveraddress"] = image.registry

        def messages() -> Iterable[Message]:
            found: Iterable[Message] = self._client.api.push(
                image.name, tag=image.tag, stream=True, decode=True, auth_config=auth
            )
            return found

        return _threaded(messages)

    async def tag(self, image_id: str, image: ImageRef) -> None:
        """Give an image a further name."""
        await asyncio.to_thread(_told, lambda: self._client.api.tag(image_id, image.name, image.tag))

    async def find(self, name: str) -> LocalImage | None:
        """The image with this name, or None."""
        found = await asyncio.to_thread(_told, lambda: _inspected(self._client, name))
        return None if found is None else _local(found, name)

    async def images(self) -> list[LocalImage]:
        """What l2rtui has built here, one item for each name, newest first."""
        wanted = {"label": LABEL_OURS}

        def look() -> list[dict[str, Any]]:
            summaries = self._client.api.images(filters=wanted)
            return [found for one in summaries if (found := _inspected(self._client, one["Id"]))]

        details = await asyncio.to_thread(_told, look)
        named = [_local(one, name) for one in details for name in one.get("RepoTags") or ()]
        return sorted(named, key=lambda one: one.created, reverse=True)


def _connect() -> Any:
    try:
        from docker.client import DockerClient
        from docker.errors import DockerException
    except ImportError:
        raise BackendError(
            "Building and pushing images needs Docker's library for Python, which is not installed.",
            "Install it: `pip install 'l2rtui[docker]'`.",
        ) from None
    try:
        _knock(os.environ.get("DOCKER_HOST") or _USUAL)
        client = DockerClient.from_env(timeout=_ANSWER_SECONDS)
        client.ping()
    except (DockerException, OSError) as error:
        raise BackendError(
            f"No Docker Engine answers here: {_reason(error)}.", "Start Docker, or set DOCKER_HOST."
        ) from error
    return client


def _knock(host: str) -> None:
    """See whether somebody listens: the library would leave the socket of a refused connection open."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.settimeout(_KNOCK_SECONDS)
            knocking.connect(host.removeprefix("unix://"))


def _inspected(client: Any, name: str) -> dict[str, Any] | None:
    from docker.errors import ImageNotFound

    try:
        found: dict[str, Any] = client.api.inspect_image(name)
    except ImageNotFound:
        return None
    return found


def _told(call: Callable[[], Any]) -> Any:
    """Call the Engine and tell its refusals as sentences."""
    from docker.errors import DockerException

    try:
        return call()
    except (DockerException, OSError) as error:
        raise BackendError(f"The Docker Engine refuses: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    text = str(getattr(error, "explanation", None) or error).strip()
    return text.rstrip(".") or type(error).__name__


def _local(found: Mapping[str, Any], name: str) -> LocalImage:
    labels = (found.get("Config") or {}).get("Labels") or {}
    with contextlib.suppress(ValueError):
        wanted = parse_image(name).name
        digests = tuple(one for one in found.get("RepoDigests") or () if one.partition("@")[0] == wanted)
        return LocalImage(
            name,
            str(found.get("Id", "")),
            int(found.get("Size") or 0),
            str(found.get("Created", "")),
            str(labels.get(LABEL_REVISION, "")),
            labels.get(LABEL_DIRTY) == "true",
            digests,
        )
    raise BackendError(f"The Docker Engine has an image with the name {name!r}, which is none.")


async def _threaded(make: Callable[[], Iterable[Message]]) -> AsyncGenerator[Message, None]:
    """Read a blocking stream in a thread and give its items as they come."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Any] = asyncio.Queue()
    is_stopped = threading.Event()

    def put(item: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        try:
            stream: Iterator[Message] = iter(make())
            for item in stream:
                if is_stopped.is_set():
                    break
                put(item)
            if is_stopped.is_set() and (close := getattr(stream, "close", None)):
                close()
        except Exception as error:  # noqa: BLE001  (it is raised again where it is awaited)
            put(error)
        put(_END)

    threading.Thread(target=read, name="docker-stream", daemon=True).start()
    try:
        while (item := await queue.get()) is not _END:
            if isinstance(item, Exception):
                raise BackendError(f"The Docker Engine failed: {_reason(item)}.") from item
            yield item
    finally:
        is_stopped.set()
