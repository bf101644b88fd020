"""The Docker Engine's HTTP interface over its Unix socket: requests, streams, and errors in our words.

aiohttp speaks it without a client library: the Engine's own Python library blocks, and is a thread for each stream.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from l2rtui.errors import BackendError, NotFoundError, UsageError

REQUEST_SECONDS: Final = 60.0
_USUAL = "/var/run/docker.sock"
_BLOCK = 1 << 16


class EngineError(BackendError):
    """The Engine refused or does not answer; ``status`` is 0 where there was no answer."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status


def socket_path(environ: Mapping[str, str] | None = None) -> str:
    """Where the Engine listens: DOCKER_HOST, the usual place, or that of a rootless Engine.

    Raises:
        UsageError: DOCKER_HOST names another machine.
    """
    environ = os.environ if environ is None else environ
    host = environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host.removeprefix("unix://")
    if host:
        raise UsageError(
            f"DOCKER_HOST is {host}: the docker backend speaks to an Engine of this machine alone.",
            "Run l2rtui on that machine, or forward its socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST.",
        )
    own = Path(environ.get("XDG_RUNTIME_DIR", ""), "docker.sock")
    return str(own) if not Path(_USUAL).exists() and own.is_absolute() and own.exists() else _USUAL


class Engine:
    """One Engine; the connection is made at the first request."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, target: str, /, *, body: Any = None, seconds: float = REQUEST_SECONDS, **query: Any
    ) -> Any:
        """One request; its answer as JSON, None where there is none.

        Raises:
            NotFoundError: what it names is not there.
            EngineError: it was refused, or the Engine does not answer.
        """
        raw = await self.raw(method, target, body=body, seconds=seconds, **query)
        return json.loads(raw) if raw.strip() else None

    async def raw(
        self, method: str, target: str, /, *, body: Any = None, seconds: float = REQUEST_SECONDS, **query: Any
    ) -> bytes:
        """One request; its answer as it is. A body of bytes is a tar archive, any other is sent as JSON."""
        async with self._answer(method, target, body, query, aiohttp.ClientTimeout(seconds)) as answer:
            return await answer.read()

    async def stream(self, path: str, /, **query: Any) -> AsyncGenerator[bytes, None]:
        """The blocks of an answer that goes on until the Engine, or the caller, has enough."""
        timeout = aiohttp.ClientTimeout(None, sock_connect=REQUEST_SECONDS)
        async with self._answer("GET", path, None, query, timeout) as answer:
            async for block in answer.content.iter_chunked(_BLOCK):
                yield block

    async def hijacked(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a command's streams: the connection itself becomes them, both ways."""
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        try:
            reader, writer = await asyncio.open_unix_connection(self.path)
            writer.write(head.encode() + text)
            answer = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._unreachable(error) from error
        status = int(answer.split(b" ", 2)[1])
        if status not in (101, 200):
            writer.close()
            raise EngineError(status, f"The Docker Engine refused POST {path} with {status}.")
        return reader, writer

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any, query: Mapping[str, Any], limit: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.path, limit=0))
        sent: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {}
        if body is not None and not sent:
            sent = {"json": body}
        params = {key: json.dumps(value) if isinstance(value, dict) else str(value) for key, value in query.items()}
        try:
            async with self._session.request(
                method, f"http://docker{path}", params=params, timeout=limit, **sent
            ) as answer:
                if answer.status >= 400:
                    raise _refusal(answer.status, method, path, await answer.read())
                yield answer
        except TimeoutError as error:
            raise EngineError(0, f"The Docker Engine at {self.path} does not answer.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> EngineError:
        why = getattr(error, "strerror", "") or str(error)
        if isinstance(error, PermissionError) or "Permission denied" in str(error):
            return EngineError(
                0,
                f"You may not use the Docker Engine at {self.path}.",
                "Ask to be put into the group `docker`, or run an Engine of your own (rootless).",
            )
        return EngineError(
            0,
            f"The Docker Engine at {self.path} cannot be reached: {why}.",
            "Start it, or set DOCKER_HOST=unix:///PATH.",
        )


def _refusal(status: int, method: str, path: str, raw: bytes) -> BackendError:
    try:
        message = str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        message = raw.decode("utf-8", "replace")[:300]
    sentence = f"The Docker Engine refused {method} {path}: {message.strip().rstrip('.')}."
    if status == 404:
        return MissingError(sentence)
    return EngineError(status, sentence)


class MissingError(EngineError, NotFoundError):
    """What a request names is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(404, message)
