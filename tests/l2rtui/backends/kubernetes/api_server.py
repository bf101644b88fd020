"""Scripted API server: a real HTTP server on the loopback that lists, watches, streams and fails as a test
specifies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Stream = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]
Watch = Callable[["Server", web.Request, web.StreamResponse], Awaitable[None]]


def config_map(name: str, version: int, uid: str = "", **data: str) -> dict:
    return {
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "ml", "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        "data": data,
    }


def status(code: int, reason: str, message: str = "no") -> dict:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


@dataclass
class Server:
    """ConfigMaps, and the answers to requests for them.

    Attributes:
        objects: Result of a list. version: its revision.
        on_list: Replacement answers to the next lists, first to last; on_watch: behaviour of the next watches, the
            last one repeats. Both get the query.
        on_stream: Behaviour of websockets (exec, port-forward), or the answer that refuses them.
        protocols: Subprotocols of websockets that it speaks.
        on_request: Answers all requests except for ConfigMaps and pods' streams.
        requests: Queries and times of all requests for ConfigMaps.
        streams: Path and query of all websockets.
    """

    objects: list[dict] = field(default_factory=list)
    version: int = 10
    on_list: list[web.Response | dict] = field(default_factory=list)
    on_watch: list[Watch | web.Response] = field(default_factory=list)
    on_stream: Stream | web.Response | None = None
    protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    on_request: Answer | None = None
    requests: list[tuple[float, dict[str, str]]] = field(default_factory=list)
    streams: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    probes: int = 0
    tokens: list[str] = field(default_factory=list)
    is_well: bool = True
    base: str = ""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def lists(self) -> list[dict[str, str]]:
        return [query for _, query in self.requests if "watch" not in query]

    @property
    def watches(self) -> list[dict[str, str]]:
        return [query for _, query in self.requests if "watch" in query]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((asyncio.get_running_loop().time(), query))
        self.tokens.append(request.headers.get("Authorization", ""))
        async with self.arrived:
            self.arrived.notify_all()
        if "watch" not in query:
            answer = self.on_list.pop(0) if self.on_list else None
            if isinstance(answer, web.Response):
                return _again(answer)
            meta = {"resourceVersion": str(self.version)}
            return web.json_response(answer or {"metadata": meta, "items": self.objects})
        act = (self.on_watch.pop(0) if len(self.on_watch) > 1 else self.on_watch[0]) if self.on_watch else stay
        if isinstance(act, web.Response):
            return _again(act)
        response = web.StreamResponse()
        await response.prepare(request)
        await act(self, request, response)
        return response

    async def probe(self, _: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(text="ok") if self.is_well else web.Response(status=503)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return await self.on_request(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.streams.append((request.path, list(request.query.items())))
        if isinstance(self.on_stream, web.Response):
            return _again(self.on_stream)
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        await self.on_stream(socket, request)
        await socket.close()
        return socket

    async def until(self, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for a condition that requests make true."""
        async with asyncio.timeout(seconds), self.arrived:
            await self.arrived.wait_for(is_so)

    def api(self, **kwargs: object) -> Api:
        return Api(Access("test", "test", self.base, User("tester")), **kwargs)


def _again(answer: web.Response) -> web.Response:
    """Copy a response, since a response can be sent only once."""
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)


async def stay(server: Server, request: web.Request, response: web.StreamResponse) -> None:
    """Keep the watch open until the client disconnects."""
    await asyncio.Event().wait()


def send(*events: dict | bytes, then: Watch | None = stay) -> Watch:
    """Send these lines, then continue with ``then``; None ends the watch."""

    async def act(server: Server, request: web.Request, response: web.StreamResponse) -> None:
        for event in events:
            await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
        if then is not None:
            await then(server, request, response)

    return act


async def cut(server: Server, request: web.Request, response: web.StreamResponse) -> None:
    """Reset the connection."""
    request.transport.abort()


def event(kind: str, item: dict) -> dict:
    return {"type": kind, "object": item}


def refusal(code: int, reason: str, message: str = "no", **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(status(code, reason, message), status=code, headers=named)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=127.0.0.1")
    now, address = datetime.now(UTC), x509.IPAddress(ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    key_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate_path, key_path = folder / "ca.pem", folder / "key.pem"
    certificate_path.write_bytes(made.public_bytes(Encoding.PEM))
    key_path.write_bytes(key_text)
    return certificate_path, key_path


@asynccontextmanager
async def serving(server: Server, port: int = 0) -> AsyncIterator[Server]:
    app = web.Application()
    app.router.add_get("/api/v1/configmaps", server.handle)
    app.router.add_get(
        "/api/v1/namespaces/{namespace}/pods/{name}/{subresource:exec|attach|portforward}", server.stream
    )
    if server.on_request is not None:
        app.router.add_route("*", "/{path:.*}", server.answer)
    else:
        app.router.add_get("/readyz", server.probe)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    await site.start()
    server.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
