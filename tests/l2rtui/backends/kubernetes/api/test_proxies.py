"""Proxies by kubectl's rules, and a SOCKS proxy that really carries requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.http import Connection
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.sockets import environment_proxy
from l2rtui.errors import ConfigError
from tests.l2rtui.backends.kubernetes.api_server import Server, certificate, serving

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("no_proxy", "server", "is_direct"),
    [
        ("10.0.0.0/8", "https://10.1.2.3:6443", True),
        ("10.0.0.0/8", "https://11.1.2.3:6443", False),
        ("10.0.0.0/8", "https://cluster.example.org", False),  # names are not resolved
        ("10.0.0.0/8 , .example.org", "https://api.example.org", True),
        (".example.org", "https://example.org", False),
        ("*.example.org", "https://api.example.org", True),
        ("example.org", "https://example.org:6443", True),
        ("example.org", "https://api.EXAMPLE.org:6443", True),
        ("example.org", "https://notexample.org", False),
        ("example.org:443", "https://example.org", True),
        ("example.org:443", "https://example.org:6443", False),
        ("10.1.2.3", "https://10.1.2.3:6443", True),
        ("10.1.2.3:6443", "https://10.1.2.3:6443", True),
        ("0.1.2.3", "https://10.1.2.3", False),  # an address is not a suffix
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("fd00::1", "https://[fd00::1]:6443", True),
        ("[fd00::1]:443", "https://[fd00::1]:6443", False),
        ("10.0.0.0/99, /, :, [", "https://10.1.2.3", False),  # invalid rules are ignored
        ("*", "https://anything", True),
        ("", "https://127.0.0.1:6443", True),  # loopback is never proxied
        ("", "https://localhost:6443", True),
        ("", "https://[::1]:6443", True),
        ("", "https://cluster", False),
    ],
)
def test_no_proxy_means_what_it_means_to_kubectl(no_proxy, server, is_direct):
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert environment_proxy(server, environ) == ("" if is_direct else PROXY)


@pytest.mark.parametrize(
    ("environ", "server", "proxy"),
    [
        ({"https_proxy": PROXY}, "https://cluster", PROXY),
        ({"https_proxy": "http://other", "HTTPS_PROXY": PROXY}, "https://cluster", PROXY),
        ({"HTTPS_PROXY": "proxy:3128"}, "https://cluster", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://cluster", ""),
        ({"HTTP_PROXY": PROXY}, "http://cluster", PROXY),
        ({"ALL_PROXY": PROXY}, "https://cluster", ""),  # Go does not know it
        ({"HTTPS_PROXY": PROXY, "no_proxy": "cluster"}, "https://cluster", ""),
        ({"HTTPS_PROXY": "socks5://proxy"}, "https://cluster", "socks5://proxy"),
    ],
)
def test_the_proxy_comes_from_the_environment(environ, server, proxy):
    assert environment_proxy(server, environ) == proxy


async def test_the_proxy_of_the_kubeconfig_is_not_subject_to_no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    async with socks_proxy() as proxy, serving(Server()) as server:
        api = Connection(Access("c", "k", server.base, User(), proxy_url=proxy.url))
        await api.request("GET", "/api/v1/configmaps")
        await api.close()
    assert len(proxy.targets) == 1


def test_a_proxy_of_another_kind_is_a_sentence_without_its_password():
    with pytest.raises(ConfigError, match=r"The proxy ftp://p is of a kind that is not supported") as caught:
        Connection(Access("c", "k", "https://k:6443", User(), proxy_url="ftp://me:secret@p"))
    assert "secret" not in f"{caught.value} {caught.value.hint}"


class SocksProxy:
    """SOCKS 5 proxy (RFC 1928, 1929) that forwards every tunnel to the loopback, whatever the requested name."""

    def __init__(self, password: str = "") -> None:
        self.url = ""
        self.targets: list[tuple[str, int]] = []
        self._password = password
        self._tasks: set[asyncio.Task] = set()

    async def serve(self, reader, writer):
        try:
            await self._tunnel(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has closed
        finally:
            writer.transport.abort()

    async def _tunnel(self, reader, writer):
        _, count = await reader.readexactly(2)
        await reader.readexactly(count)
        writer.write(b"\x05\x02" if self._password else b"\x05\x00")
        if self._password:
            _, length = await reader.readexactly(2)
            await reader.readexactly(length)
            given = await reader.readexactly((await reader.readexactly(1))[0])
            writer.write(b"\x01\x00" if given.decode() == self._password else b"\x01\x01")
            if given.decode() != self._password:
                return
        _, _, _, kind = await reader.readexactly(4)
        host = await reader.readexactly(4 if kind == 1 else (await reader.readexactly(1))[0])
        port = int.from_bytes(await reader.readexactly(2))
        self.targets.append((".".join(map(str, host)) if kind == 1 else host.decode(), port))
        onward, back = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        try:
            await asyncio.wait(
                [asyncio.ensure_future(copy(reader, back)), asyncio.ensure_future(copy(onward, writer))],
                return_when=asyncio.ALL_COMPLETED,
            )
        finally:
            back.transport.abort()


async def copy(reader, writer):
    """Forward bytes until either side ends, and pass the end on."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


@asynccontextmanager
async def socks_proxy(password: str = ""):
    proxy = SocksProxy(password)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        proxy.url = f"socks5://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy


@asynccontextmanager
async def serving_tls(folder):
    """An API server over TLS that answers /version; yields its port and its authority."""

    async def version(_):
        return web.json_response({"major": "1", "minor": "31"})

    app = web.Application()
    app.router.add_get("/version", version)
    runner = web.AppRunner(app)
    await runner.setup()
    authority, key = certificate(folder)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority, key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1], authority.read_bytes()
    finally:
        await runner.cleanup()


async def test_requests_go_through_a_socks_proxy_which_resolves_the_names(tmp_path):
    async with socks_proxy("pass word") as proxy, serving_tls(tmp_path) as (port, authority):
        url = proxy.url.replace("//", "//anna:pass%20word@")
        # The certificate is for 127.0.0.1, and only the proxy knows the name.
        access = Access("c", "k", f"https://api.invalid:{port}", User(), ca=authority, proxy_url=url)
        api = Connection(replace(access, tls_server_name="127.0.0.1"))
        assert (await api.get_json("/version"))["minor"] == "31"
        assert proxy.targets == [("api.invalid", port)]
        await api.close()
        stranger = Connection(access)
        with pytest.raises(ApiError, match="its certificate is not trusted"):
            await stranger.get_json("/version")
        await stranger.close()


async def test_websockets_go_through_it_too():
    async def echo(socket, _):
        await socket.send_bytes(b"\x01hello")

    async with socks_proxy() as proxy, serving(Server(on_stream=echo)) as server:
        api = Connection(Access("c", "k", server.base, User(), proxy_url=proxy.url))
        path = "/api/v1/namespaces/ml/pods/p/exec"
        socket = await api.websocket(path, protocols=("v5.channel.k8s.io",), heartbeat_seconds=None)
        assert await socket.receive_bytes() == b"\x01hello"
        await socket.close()
        await api.close()
    assert len(proxy.targets) == 1


async def test_a_socks_proxy_that_refuses_or_is_away_is_said():
    async with socks_proxy("right") as proxy:
        url = proxy.url.replace("//", "//anna:wrong@")
        api = Connection(Access("c", "k", "https://api.invalid", User(), proxy_url=url))
        with pytest.raises(ApiError, match="the proxy socks5://127") as caught:
            await api.get_json("/version")
        assert "wrong" not in str(caught.value)
        await api.close()
    with socket.socket() as bound:  # no server listens there
        bound.bind(("127.0.0.1", 0))
        url = f"socks5://127.0.0.1:{bound.getsockname()[1]}"
        api = Connection(Access("c", "k", "https://api.invalid", User(), proxy_url=url))
        with pytest.raises(ApiError, match="the proxy socks5://127"):
            await api.get_json("/version")
        await api.close()


async def test_a_proxy_that_refuses_is_named_without_its_password():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    proxy = f"http://anna:secret@127.0.0.1:{port}"
    connection = Connection(Access("test", "test", "https://10.0.0.1:6443", User("anna"), proxy_url=proxy))
    with pytest.raises(ApiError) as caught:
        await connection.get_json("/version")
    await connection.close()
    text = str(caught.value)
    assert f"https://10.0.0.1:6443 through the proxy http://127.0.0.1:{port}" in text
    assert "the connection was refused" in text
    assert "secret" not in text
