"""The lean transport against servers that answer byte by byte, close, lie, or speak another protocol."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl

import pytest
from aiohttp import web

from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.http import Connection
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from tests.l2rtui.backends.kubernetes.api_server import Server, certificate, serving

OK = b"HTTP/1.1 200 OK\r\n"


@contextlib.asynccontextmanager
async def answering(*answers, pieces=None, tls=None):
    """Serve raw answers, one a request; an empty one closes the connection. Yield a connection and the requests."""
    left, requests, writers = list(answers), [], []

    async def serve(reader, writer):
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                requests.append((len(writers), await reader.readuntil(b"\r\n\r\n")))
                answer = left.pop(0)
                size = pieces or len(answer) or 1
                for at in range(0, len(answer), size):
                    writer.write(answer[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(0)
                if not answer or b"Connection: close" in answer or answer.startswith(b"HTTP/1.0"):
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        api = Connection(Access("c", "k", f"http://127.0.0.1:{port}", User("u")))
        yield api, requests
        assert api.session is None
        await api.close()
        for writer in writers:
            writer.close()


def chunked(body, size):
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in parts)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\nTrailer: x\r\n\r\n"


def gzipped(body):
    packed = gzip.compress(body)
    return OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


BODY = json.dumps({"items": [{"n": number, "line": "a\r\nb"} for number in range(20)]}).encode()


@pytest.mark.parametrize("pieces", [None, 1, 7])
@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
        chunked(BODY, 1),
        chunked(BODY, 100),
        chunked(BODY, len(BODY)),
        gzipped(BODY),
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    ],
    ids=["length", "chunks of a byte", "chunks", "one chunk", "gzip", "after 100"],
)
async def test_a_body_comes_whole_however_it_is_sent_and_the_connection_is_used_again(answer, pieces):
    async with answering(answer, answer, pieces=pieces) as (api, requests):
        assert await api.request("GET", "/a") == BODY
        assert await api.request("GET", "/b") == BODY
        assert [connection for connection, _ in requests] == [1, 1]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.0 200 OK\r\n\r\n" + BODY, OK + b"Connection: close\r\n\r\n" + BODY], ids=["1.0", "close"]
)
async def test_a_body_may_end_with_the_connection(answer):
    async with answering(answer, answer) as (api, requests):
        assert [await api.request("GET", "/a") for _ in range(2)] == [BODY, BODY]
        assert [connection for connection, _ in requests] == [1, 2]


async def test_a_connection_that_the_server_closed_meanwhile_is_opened_again_once():
    first = OK + b"Content-Length: 2\r\n\r\n{}"
    async with answering(first, b"", first, b"", b"") as (api, requests):
        assert [await api.request("GET", "/a"), await api.request("GET", "/b")] == [b"{}", b"{}"]
        assert [connection for connection, _ in requests] == [1, 1, 2]
        with pytest.raises(ApiError, match="the connection was cut"):
            await api.request("GET", "/c")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (OK + b"Content-Length: 9\r\nConnection: close\r\n\r\n{}", "the connection was cut"),
        (OK + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n9\r\n{}", "the connection was cut"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "its answer is broken"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n", "its answer is broken"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * (1 << 17), "its answer is broken"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!", "its answer is broken"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 soon\r\n\r\n", "its answer is not HTTP"),
        (OK + b"X: " + b"x" * (1 << 20) + b"\r\n\r\n", "its answer is not HTTP"),
    ],
    ids=[
        "short",
        "short chunk",
        "no size",
        "long chunk",
        "endless size",
        "no gzip",
        "SSH",
        "no status",
        "long head",
    ],
)
async def test_a_broken_answer_is_a_sentence(answer, sentence):
    async with answering(answer) as (api, _):
        with pytest.raises(ApiError, match=sentence) as caught:
            await api.request("GET", "/a")
        assert caught.value.is_unreachable


async def test_a_login_with_a_line_break_is_not_sent():
    async with answering() as (api, requests):
        forger = Connection(Access("c", "k", api.server, User("u", token="t\r\nImpersonate-User: root")))
        with pytest.raises(ApiError, match="has a line break"):
            await forger.request("GET", "/a")
        assert requests == []


async def test_certificates_are_checked_against_the_name_unless_the_kubeconfig_says_otherwise(tmp_path):
    authority, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority, key)
    async with answering(*3 * [OK + b"Content-Length: 2\r\n\r\n{}"], tls=tls) as (api, _):
        server, ca = api.server.replace("http:", "https:"), authority.read_bytes()
        other = server.replace("127.0.0.1", "localhost")
        for access, fault in (
            (Access("c", "k", server, User(), ca=ca), ""),
            (Access("c", "k", other, User(), ca=ca), "not trusted"),
            (Access("c", "k", other, User(), ca=ca, tls_server_name="127.0.0.1"), ""),
            (Access("c", "k", server, User()), "not trusted"),
            (Access("c", "k", server, User(), is_insecure=True), ""),
        ):
            trying = Connection(access)
            with pytest.raises(ApiError, match=fault) if fault else contextlib.nullcontext():
                assert await trying.request("GET", "/a") == b"{}"
            await trying.close()


async def test_reads_are_lean_until_something_needs_the_session():
    async def answer(request):
        return web.json_response({"by": request.headers["User-Agent"]})

    async with serving(Server(on_request=answer)) as server:
        api = Connection(Access("c", "k", server.base, User("u")))
        review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        await asyncio.gather(*(api.request("GET", f"/{number}") for number in range(9)))
        await api.request("POST", review, body={})
        assert api.session is None
        await api.request("POST", "/api/v1/pods", body={})
        session = api.session
        assert session is not None
        assert await api.request("GET", "/") == await api.request("GET", "/")
        assert api.session is session
        await api.close()
