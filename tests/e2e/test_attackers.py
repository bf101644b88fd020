"""Attackers of the app in a browser: without the token, with another, with a used one, slow, or sending garbage."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from tests.e2e.serving import DEADLINE_SECONDS, origin, serving
from tests.fakes.attackers import Attackers, each, is_root, report

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600 + 3 * each(0))]
PATHS = (
    "/",
    "/?token=",
    "/?token=wrong",
    "/?token=%ED%A0%80%ff%00",
    "/ws",
    "/static/../../etc/passwd",
    "/" + "a" * 9000,
)
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE", "x" * 5000)


def request(port: int, method: str, path: str, **headers: str) -> bytes:
    """Send a raw request, and return the answer."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    with socket.create_connection(("127.0.0.1", port), 60) as stream:
        stream.sendall("\r\n".join(lines).encode("latin-1"))
        stream.shutdown(socket.SHUT_WR)
        answer = b""
        while block := stream.recv(65_536):
            answer += block
        return answer


async def test_nobody_gets_in_and_the_one_who_is_in_stays(tmp_path):
    async with (
        serving() as (process, address),
        aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(DEADLINE_SECONDS)
        ) as browser,
    ):
        port = urlsplit(address).port
        async with browser.get(address) as answer:
            assert answer.status == 200
        async with browser.ws_connect(
            f"{origin(address)}/ws?width=80&height=24", headers={"Origin": origin(address)}
        ) as terminal:
            await asyncio.wait_for(terminal.receive(), DEADLINE_SECONDS)
            server = psutil.Process(process.pid)
            apps = [child.pid for child in server.children(recursive=True)]
            resident = server.memory_info().rss
            number = await asyncio.to_thread(attack, port, address)
            assert number >= 250
            assert [child.pid for child in server.children(recursive=True)] == apps
            assert server.memory_info().rss < resident + 100 * 2**20
            await terminal.send_json(["stdin", "?"])
            await asyncio.wait_for(terminal.receive(), DEADLINE_SECONDS)
            assert not terminal.closed
        assert process.returncode is None
        process.terminate()
        said = await asyncio.wait_for(process.stderr.read(), DEADLINE_SECONDS)
        assert b"Error handling" not in said, "strangers fill no log"
        assert b"Traceback" not in said


def attack(port: int, address: str) -> int:
    """Try everything; return the number of connections. Only refusals may come back."""
    used = urlsplit(address)
    recorded = f"GET /?{used.query} HTTP/1.1\r\nHost: {used.netloc}\r\n\r\n".encode()  # the token was used
    number = 0
    for method in METHODS:
        for path in (*PATHS, f"/?{used.query}"):
            for headers in (
                {"Host": used.netloc},
                {"Host": "evil.example"},
                {"Host": used.netloc, "Upgrade": "websocket", "Connection": "Upgrade", "Origin": "http://evil"},
                {"Host": used.netloc, "Cookie": "l2rtui-00000000=guess; " * 50},
            )[number % 2 :: 2]:
                answer = request(port, method, path, **headers)
                assert answer == b"" or answer.split(b" ", 2)[1][:1] == b"4", (method, path, headers, answer[:200])
                number += 1
    asked = Counter[str]()
    for what, path in (("no token", "/"), ("another token", "/?token=wrong"), ("replay", f"/?{used.query}")):
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda _, path=path: request(port, "GET", path, Host=used.netloc), range(each(10)))
            )
        for answer in answers:
            assert answer == b"" or answer.split(b" ", 2)[1][:1] == b"4", (path, answer[:200])
        asked[f"{what}, HTTP"] += len(answers)
    attackers = Attackers(port, recorded)
    attackers.attack(each(30))
    if is_root():
        attackers.attack_as_another_user(each(10), [], [])
    for answer in attackers.answers.split(b"HTTP/1.1 ")[1:]:
        assert answer.startswith(b"4"), answer[:300]
    report("web app", attackers.done, asked)
    return number + sum(attackers.done.values()) + asked.total()
