"""The app in a browser, over the browser's protocol: accepted and refused clients, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from tests.e2e.serving import DEADLINE_SECONDS, origin, serving

pytestmark = pytest.mark.process


@pytest.fixture
async def server():
    async with serving() as (process, address):
        yield process, address


@pytest.fixture
async def browser():
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(DEADLINE_SECONDS)
    ) as session:
        yield session


async def status(browser, url, **headers):
    async with browser.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def refused(browser, url, **headers):
    """The status with which a WebSocket was refused."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        await browser.ws_connect(url, headers=headers)
    return error.value.status


async def first_frame(socket, text=b"Slots"):
    seen = b""
    while text not in seen:
        message = await asyncio.wait_for(socket.receive(), DEADLINE_SECONDS)
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), (message, seen[-500:])
        if message.type is aiohttp.WSMsgType.BINARY:
            seen += message.data
    return seen


async def gone(pids):
    async with asyncio.timeout(DEADLINE_SECONDS):
        while any(psutil.pid_exists(pid) for pid in pids):
            await asyncio.sleep(0.05)


async def test_without_the_token_nothing_is_there(server, browser):
    _, address = server
    for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/?token=wrong", "/?token="):
        assert (await status(browser, origin(address) + path))[0] == 403, path
    assert await refused(browser, origin(address) + "/ws", Origin=origin(address)) == 403


async def test_the_token_opens_one_browser_once(server, browser):
    _, address = server
    async with browser.get(address) as answer:
        assert answer.status == 200
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert urlsplit(address).query.partition("=")[2] not in cookie
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    page = await status(browser, origin(address) + "/")
    assert page[0] == 200
    assert f"ws://{urlsplit(address).netloc}/ws" in page[1]
    assert (await status(browser, origin(address) + "/static/js/textual.js"))[0] == 200
    assert (await status(browser, address))[0] == 200  # the same browser, from its history
    async with aiohttp.ClientSession() as other:
        assert (await status(other, address))[0] == 403


async def test_the_app_is_behind_the_websocket(server, browser):
    process, address = server
    await status(browser, address)
    async with browser.ws_connect(
        f"{origin(address)}/ws?width=100&height=30", headers={"Origin": origin(address)}
    ) as socket:
        await first_frame(socket)
        await socket.send_json(["stdin", "?"])
        await first_frame(socket, b"Destroy the run")
        apps = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert apps
    await gone(apps)  # the tab was closed


async def test_a_connection_that_names_its_tab_finds_its_app_again(server, browser):
    process, address = server
    await status(browser, address)
    tab, headers = f"{origin(address)}/ws/tab-1", {"Origin": origin(address)}
    children = psutil.Process(process.pid).children
    async with browser.ws_connect(f"{tab}?width=100&height=30", headers=headers) as socket:
        await first_frame(socket)
        await socket.send_json(["stdin", "?"])
        await first_frame(socket, b"Destroy the run")
        apps = [app.pid for app in children()]
    async with browser.ws_connect(f"{tab}?width=120&height=40", headers=headers) as socket:
        assert b"\x1b[?1049h" in await first_frame(socket, b"Destroy the run")
        assert [app.pid for app in children()] == apps
        # A second connection of the same tab takes the app over, since the first may be a lost network's.
        async with browser.ws_connect(f"{tab}?width=90&height=25", headers=headers) as newer:
            await first_frame(newer, b"Destroy the run")
            while (await asyncio.wait_for(socket.receive(), DEADLINE_SECONDS)).type is aiohttp.WSMsgType.BINARY:
                pass  # messages in transit
            assert socket.closed
            await newer.send_json(["stdin", "\x1b"])
            await first_frame(newer)
            assert [app.pid for app in children()] == apps
            await newer.send_json("no envelope of the page")
            while not newer.closed:
                await asyncio.wait_for(newer.receive(), DEADLINE_SECONDS)
    assert await refused(browser, f"{origin(address)}/ws/a_b", **headers) == 403


FOREIGN = (
    ({"Host": "evil.example"}, 421),
    ({"Host": "evil.example:80"}, 421),
    ({"Host": "127.0.0.1.evil.example"}, 421),
    ({"Host": "[bad"}, 421),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://127.0.0.1:1"}, 403),  # another server of the same machine
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
)


async def test_names_and_pages_of_others_are_refused_with_a_session_too(server, browser):
    _, address = server
    async with browser.get(address) as answer:
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
    browser.cookie_jar.clear()  # from here on the test sends it explicitly
    assert (await status(browser, origin(address) + "/", Cookie=cookie))[0] == 200
    for headers, expected in FOREIGN:
        sent = {"Cookie": cookie, **headers}
        assert (await status(browser, origin(address) + "/", **sent))[0] == expected, headers
        sent = {"Origin": origin(address), **sent}
        assert await refused(browser, origin(address) + "/ws", **sent) == expected, headers
    assert await refused(browser, origin(address) + "/ws", Cookie=cookie) == 403  # no origin: not a browser's page
    # The far end of a tunnel may have another port: the page's addresses use it.
    page = await status(browser, origin(address) + "/", Host="localhost:9000", Cookie=cookie)
    assert page[0] == 200
    assert "ws://localhost:9000/ws" in page[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_its_end_is_the_end_of_every_app(server, browser, number):
    process, address = server
    await status(browser, address)
    async with browser.ws_connect(f"{origin(address)}/ws", headers={"Origin": origin(address)}) as socket:
        await first_frame(socket)
        apps = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert apps
        process.send_signal(number)
        code = await asyncio.wait_for(process.wait(), DEADLINE_SECONDS)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    await gone(apps)


async def test_a_taken_port_is_a_sentence(server):
    _, address = server
    port = str(urlsplit(address).port)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "l2rtui", "serve", "--backend", "demo", "--port", port),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
    assert process.returncode == 2
    assert b"Take another with --port" in told


async def test_it_listens_on_the_loopback_address_alone(server):
    process, address = server
    doors = [one for one in psutil.Process(process.pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert [(one.laddr.ip, one.laddr.port) for one in doors] == [("127.0.0.1", urlsplit(address).port)]


async def test_a_thousand_idle_connections_keep_nobody_out_and_fill_no_log():
    # The connections alone are eight times as many as the server's descriptors.
    async with serving(descriptors=128) as (process, address), contextlib.AsyncExitStack() as stack:
        host, port = urlsplit(address).hostname, urlsplit(address).port
        session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)))
        assert (await status(session, address))[0] == 200
        strangers = []
        for number in range(1000):
            reader, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
            if number % 2:
                writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half")
            strangers.append(reader)
        began = time.monotonic()
        assert (await status(session, origin(address) + "/"))[0] == 200
        assert time.monotonic() - began < 9.0, "they are cut off after ten seconds in any case"
        # All but the newest are cut off at once, and these when their time is over.
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(asyncio.gather(*(reader.read() for reader in strangers[:900])), DEADLINE_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(strangers[-1].read(), DEADLINE_SECONDS)
        assert (await status(session, origin(address) + "/"))[0] == 200
        process.send_signal(signal.SIGTERM)
        _, said = await process.communicate()
        assert len((said or b"").splitlines()) <= 10
