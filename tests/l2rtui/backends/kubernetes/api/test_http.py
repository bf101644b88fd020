"""Connections to the API server: none is left after they have been closed, whatever the server does."""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest
from aiohttp import web

from l2rtui.backends.kubernetes.api import http as connection
from l2rtui.backends.kubernetes.api import sockets as tcp
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.http import Connection
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from tests.l2rtui.backends.kubernetes.api_server import Server, certificate, refusal, serving

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
AT_ONCE = 4


class DeafServer:
    """Accepts requests over TLS, and ignores everything else that the client sends, including its close.

    Args:
        chunks: Number of chunks of an answer that it sends; None for not even the head.
        is_cut: Whether it then cuts the connection in the middle of the answer.
    """

    def __init__(self, folder, chunks, *, is_cut=False):
        self.ca, self._key = certificate(folder)
        self._chunks, self._is_cut = chunks, is_cut
        self._writers = []

    async def __aenter__(self):
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.ca, self._key)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.base = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)  # the next turn of the loop closes the sockets

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        if self._chunks is not None:
            writer.write(HEAD + self._chunks * CHUNK)
            await writer.drain()
        if self._is_cut:
            writer.transport.abort()

    async def until_asked(self):
        async with asyncio.timeout(20):
            while len(self._writers) < AT_ONCE:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # the data it sends have arrived

    def connection(self):
        access = Access("test", "test", self.base, User("tester"), ca=self.ca.read_bytes())
        return Connection(access)


@pytest.fixture
def sockets(monkeypatch):
    """All sockets that were created."""
    made = []
    make = tcp.make_socket
    monkeypatch.setattr(tcp, "make_socket", lambda address: made.append(make(address)) or made[-1])
    return made


async def fall_behind(api):
    """Read the beginning of an answer, and then stop reading."""
    async for _ in api.stream("/behind", idle_timeout_seconds=60):
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("chunks", "is_cut"),
    [(None, False), (1, False), (11, False), (11, True)],
    ids=["before the answer", "in its middle", "far behind", "far behind a server that is gone"],
)
async def test_what_was_cancelled_is_closed_though_the_server_says_no_goodbye(tmp_path, sockets, chunks, is_cut):
    async with DeafServer(tmp_path, chunks, is_cut=is_cut) as server:
        api = server.connection()
        readers = [asyncio.create_task(fall_behind(api)) for _ in range(AT_ONCE)]
        await server.until_asked()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await api.close()
        assert [reader.fileno() for reader in sockets] == AT_ONCE * [-1]


async def test_what_is_still_being_opened_is_closed_and_ends_with_an_error(sockets):
    async with await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0) as server:
        writers: list[asyncio.StreamWriter] = []  # the peer does not speak TLS
        port = server.sockets[0].getsockname()[1]
        api = Connection(Access("test", "test", f"https://127.0.0.1:{port}", User("tester")))
        asking = [asyncio.create_task(api.request("GET", "/version")) for _ in range(AT_ONCE)]
        async with asyncio.timeout(20):
            while len(writers) < AT_ONCE:
                await asyncio.sleep(0.01)
        await api.close()
        assert [item.fileno() for item in sockets] == AT_ONCE * [-1]
        assert {type(item) for item in await asyncio.gather(*asking, return_exceptions=True)} == {ApiError}
        for item in writers:
            item.close()
            await item.wait_closed()


async def test_a_request_after_the_end_opens_nothing():
    async with serving(server := Server()):
        api = server.api()
        await api.list("ConfigMap", None)
        await api.close()
        with pytest.raises(ApiError, match="is closed"):  # an unclosed client would warn, and fail the test
            await api.list("ConfigMap", None)


async def test_too_many_requests_are_waited_out_within_the_time():
    server = Server(on_list=[refusal(429, "TooManyRequests", Retry_After="0.2")] * 2)
    async with serving(server):
        api = server.api()
        began = time.monotonic()
        assert await api.list("ConfigMap", None) == []
        assert time.monotonic() - began >= 0.4
        server.on_list = [refusal(429, "TooManyRequests", Retry_After="9")]
        with pytest.raises(ApiError) as caught:
            await api.request("GET", "/api/v1/configmaps", timeout_seconds=1.0)
        assert (caught.value.is_busy, caught.value.retry_after_seconds) == (True, 9.0)
        await api.close()


async def test_no_answer_and_odd_answers_are_sentences():
    server = Server(on_list=[web.Response(text="<html>")])
    async with serving(server):
        api = server.api()
        with pytest.raises(ApiError, match="is not JSON"):
            await api.list("ConfigMap", None)
    with pytest.raises(ApiError, match="No answer from http://127") as caught:
        await api.get_json("/version")
    assert caught.value.is_refused
    assert caught.value.is_unreachable
    await api.close()


async def test_a_server_that_never_completes_a_handshake_is_said_to_be_silent_as_long_as_it_was(monkeypatch):
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 1.0)

    is_over = asyncio.Event()

    async def ignore(reader, writer):
        await reader.read()
        writer.transport.abort()
        await asyncio.sleep(0)  # the next turn of the loop closes the socket
        is_over.set()

    async with await asyncio.start_server(ignore, "127.0.0.1", 0) as server:
        base = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        api = Connection(Access("test", "test", base, User("tester")))
        with pytest.raises(ApiError, match="nothing came for 1 s"):
            await api.request("GET", "/version", timeout_seconds=30.0)
        await api.close()
        await is_over.wait()


@pytest.mark.parametrize("status", [403, 404, 405])
async def test_a_proxys_page_says_nothing_about_objects_and_permissions(status):
    async def answer(_):
        return web.Response(text="<head><style>h1 {}</style></head><h1>No\n entry</h1>", status=status)

    async with serving(Server(on_request=answer)) as server:
        api = server.api()
        with pytest.raises(ApiError) as caught:
            await api.request("GET", "/api/v1/namespaces/ml/pods/p")
        await api.close()
    error = caught.value
    assert [error.is_forbidden, error.is_not_found, error.is_denied] == [False] * 3
    assert str(error) == (
        "The server did not read pods/p in the namespace ml: No entry. "
        "Is there a proxy or a log-in page before the API server?"
    )


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ('pods is forbidden: User "a" cannot list resource "pods" in API group "" in the namespace "b"', "right"),
        ('forbidden: User "system:anonymous" cannot get path "/api"', "right"),
        ('pods "p" is forbidden: failed quota: q3: must specify requests.cpu', "`resources` in the spec"),
        ('pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1', "larger"),
        ('pods "p" is forbidden: maximum cpu usage per Container is 4, but limit is 8', "A LimitRange"),
        (
            'pods "p" is forbidden: unable to create new content in namespace lab because it is being terminated',
            "another with -n",
        ),
        ('pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', "policy"),
        ('admission webhook "validation.gatekeeper.sh" denied the request: you must have a team label', "policy"),
    ],
)
async def test_a_refused_admission_is_no_missing_right(message, hint):
    async def answer(_):
        return refusal(403, "Forbidden", message)

    async with serving(Server(on_request=answer)) as server:
        api = server.api()
        with pytest.raises(ApiError) as caught:
            await api.request("POST", "/api/v1/namespaces/ml/pods", body={})
        await api.close()
    assert hint in caught.value.hint


async def test_a_busy_load_balancer_that_names_no_time_is_asked_again():
    answers = [web.Response(text="slow down", status=429), web.json_response({"kind": "Pod"})]

    async def answer(_):
        return answers.pop(0)

    async with serving(Server(on_request=answer)) as server:
        api = server.api()
        assert await api.get_json("/api/v1/namespaces/ml/pods/p") == {"kind": "Pod"}
        await api.close()
