"""The Docker Engine for asyncio: the blocking client in threads, with its errors converted to ours.

Threads are daemons and started for each call: a thread pool would wait for a hung Engine when the program exits. A
start costs 0.05 ms, a request 1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

from l2rtui.errors import BackendError, NotFoundError
from runtime.base.docker_client import DockerClient, DockerEndpoint, EngineError, EngineStream, decode_messages
from runtime.base.processes import in_daemon_thread

T = TypeVar("T")

_MAX_REQUESTS: Final = 16
_SCAN_THREADS: Final = 4
_MAX_WAITS: Final = 256
"""Number of requests that last as long as a grace period: they must not delay short ones."""
_SHORT_SECONDS: Final = 60.0
_MAX_BATCH: Final = 1024
"""Number of items that a stream's thread reads ahead of its consumer; the Engine sends a log line by line."""


class DockerError(BackendError):
    """The Engine refused or did not respond; ``status`` is 0 without a response."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status


class DockerMissingError(DockerError, NotFoundError):
    """The object that a request names does not exist."""


class DockerEngine:
    """One Engine; the connection is made at the first request."""

    def __init__(self, endpoint: DockerEndpoint | None = None) -> None:
        with _translated():
            self._client = DockerClient(endpoint)
        self._requests = asyncio.Semaphore(_MAX_REQUESTS)
        self._waits = asyncio.Semaphore(_MAX_WAITS)

    @property
    def endpoint(self) -> DockerEndpoint:
        """Address of the Engine."""
        return self._client.endpoint

    async def request_json(
        self, method: str, path: str, /, *, body: Any = None, seconds: float = _SHORT_SECONDS, **query: Any
    ) -> Any:
        """Send a request; return its response as JSON, None if it is empty.

        Raises DockerMissingError if the object that it names does not exist, DockerError for any other failure.
        """
        return await self._call(self._client.request_json, method, path, body=body, seconds=seconds, **query)

    async def request(
        self, method: str, path: str, /, *, body: Any = None, seconds: float = _SHORT_SECONDS, **query: Any
    ) -> bytes:
        """Send a request; return the bytes of its response. A body of bytes is an archive, others become JSON."""
        return await self._call(self._client.request, method, path, body=body, seconds=seconds, **query)

    async def request_each(self, paths: Sequence[str]) -> list[Any]:
        """Return the JSON of many objects in the order of their paths; None if one does not exist."""
        results: list[Any] = [None] * len(paths)
        # A few threads share one iterator (its next() is a single step of the interpreter): a thread per container
        # would double the time of a snapshot with hundreds of them.
        todo = iter(enumerate(paths))

        def work() -> None:
            for number, path in todo:
                try:
                    results[number] = self._client.request_json("GET", path)
                except EngineError as error:
                    if error.status != 404:
                        raise

        with _translated():
            await asyncio.gather(*(in_daemon_thread(work) for _ in range(min(_SCAN_THREADS, len(paths)))))
        return results

    async def stream(self, path: str, /, **query: Any) -> AsyncGenerator[bytes, None]:
        """Yield blocks of a response that continues until the Engine, or the caller, ends it."""
        opened = await self._opened(lambda: self._client.stream(path, **query))
        async with aclosing(_batches(opened, opened.close)) as batches:
            async for batch in batches:
                yield b"".join(batch)

    async def upgrade(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a command's streams: the connection itself carries them in both directions."""
        connection, early = await self._call(lambda **_: self._client.upgrade(path, body))
        reader, writer = await asyncio.open_connection(sock=connection)
        reader.feed_data(early)  # before the loop can read anything: there was no await since
        return reader, writer

    async def build(self, **options: Any) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the messages of a build, see ``docker.APIClient.build``."""
        # An abandoned build ends at its next message: its connection is inside docker's generator.
        blocks = self._client.build(**options)
        async with aclosing(_batches(decode_messages(blocks), lambda: None)) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    async def push(self, name: str, tag: str, auth: Mapping[str, str]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the messages of a push of one tag; an empty ``auth`` pushes without a login."""
        opened = await self._opened(lambda: self._client.push(name, tag, auth))
        async with aclosing(_batches(decode_messages(opened), opened.close)) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    async def close(self) -> None:
        """Close the connections."""
        await in_daemon_thread(self._client.close)

    async def _call(
        self, call: Callable[..., T], *arguments: str, seconds: float = _SHORT_SECONDS, **options: Any
    ) -> T:
        async with self._requests if seconds <= _SHORT_SECONDS else self._waits:
            with _translated():
                return await in_daemon_thread(lambda: call(*arguments, seconds=seconds, **options))

    async def _opened(self, call: Callable[[], EngineStream]) -> EngineStream:
        with _translated():
            return await in_daemon_thread(call, drop=EngineStream.close)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        kind = DockerMissingError if error.status == 404 else DockerError
        raise kind(error.status, error.message, error.hint) from error


async def _batches(source: Iterable[T], stop: Callable[[], None]) -> AsyncGenerator[list[T], None]:
    """Read a blocking iterable in a thread; yield the items since the last time, as lists."""
    reader = _ThreadReader(source)
    threading.Thread(target=reader.read, name="docker-stream", daemon=True).start()
    try:
        while (batch := await reader.next_batch()) is not None:
            yield batch
    finally:
        reader.stop()
        stop()


class _ThreadReader(Generic[T]):
    """Passes items from a thread that reads them to a coroutine.

    Items are passed in lists: a log of 100,000 lines comes in as many chunks, and a thread switch for each of them
    would take longer than everything else.
    """

    def __init__(self, source: Iterable[T]) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._has_news = asyncio.Event()
        self._room = threading.Condition()
        self._items: list[T] = []
        self._is_stopped = self._is_over = False
        self._failure: BaseException | None = None

    def read(self) -> None:
        """Read to the end; runs in the thread."""
        try:
            for item in self._source:
                with self._room:
                    self._items.append(item)
                    if len(self._items) == 1:  # otherwise the consumer was already woken and has not come yet
                        self._wake()
                    self._room.wait_for(lambda: len(self._items) < _MAX_BATCH or self._is_stopped)
                if self._is_stopped:
                    break
        except BaseException as error:  # noqa: BLE001  (it is raised again where it is awaited)
            self._failure = error
        with self._room:
            self._is_over = True
            self._wake()

    async def next_batch(self) -> list[T] | None:
        """Wait for items; None at the end. Raises the source's error, after the items before it."""
        while True:
            with self._room:
                batch, self._items = self._items, []
                is_over = self._is_over
                self._has_news.clear()  # under the lock; otherwise a wake-up in between would be lost
                self._room.notify()
            if batch:
                return batch
            if is_over:
                if self._failure is not None:
                    with _translated():
                        raise self._failure
                return None
            await self._has_news.wait()

    def stop(self) -> None:
        """Make the thread end at its next item."""
        with self._room:
            self._is_stopped = True
            self._room.notify()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the items are no longer needed
            self._loop.call_soon_threadsafe(self._has_news.set)
