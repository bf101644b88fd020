"""The app in a real headless Chromium, driven over its DevTools: it draws, a key reaches it, other pages do not.

    python -m tests.bench.browser [--chromium PATH] [--shot FILE.png]

Needs a Chromium (Debian: `apt-get install chromium`); fails where there is none.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import http.server
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

DEADLINE_SECONDS = 90.0
# Another page of the same machine tries what it can: fetch, a frame, a WebSocket.
ATTACK = """
new Promise(done => {{
  const socket = new WebSocket("ws://{host}/ws?width=80&height=24");
  socket.onopen = () => done("open");
  socket.onerror = () => fetch("http://{host}/", {{credentials: "include"}})
    .then(() => done("fetched"), () => done("refused"));
}})
"""


class Page:
    """One tab over the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method; give its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json(timeout=DEADLINE_SECONDS)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        given = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return given["result"].get("value")

    async def wait_for(self, expression: str) -> float:
        """Seconds until an expression is true."""
        began = time.monotonic()
        while not await self.value(expression):
            assert time.monotonic() - began < DEADLINE_SECONDS, await self.value("document.body.innerHTML")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def type(self, text: str) -> None:
        """Press one key."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, key=text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=text)

    async def shot(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


async def check(chromium: str, shot: Path | None) -> None:
    """Run the whole check; raises AssertionError where something is not so."""
    async with _server() as address, _page(chromium) as page:
        origin = f"http://{urlsplit(address).netloc}"
        await page.call("Page.enable")
        await page.call("Page.navigate", url=address)
        seconds = await page.wait_for("document.body?.classList.contains('-first-byte')")
        print(f"address opened to first byte of the app in the page: {seconds:.1f} s")
        assert await page.value("location.href") == f"{origin}/", "the token stays in the address"
        assert "l2rtui" not in (await page.value("document.cookie")), "scripts can read the cookie"
        await asyncio.sleep(3)  # frames are pictures here: no condition on the text of a canvas
        before = await page.shot()
        await page.type("?")
        began = time.monotonic()
        while await page.shot() == before:
            assert time.monotonic() - began < DEADLINE_SECONDS, "the key changed nothing"
        print(f"a key changed the picture in {time.monotonic() - began:.1f} s")
        if shot is not None:
            shot.write_bytes(await page.shot())
        with _stranger() as elsewhere:
            await page.call("Page.navigate", url=elsewhere)
            await page.wait_for(f"location.href == '{elsewhere}' && document.readyState == 'complete'")
            outcome = await page.value(ATTACK.format(host=urlsplit(address).netloc))
        assert outcome == "refused", outcome
        print("another page of this machine: refused")


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[str]:
    words = (sys.executable, "-m", "l2rtui", "serve", "--backend", "demo", "--port", "0")
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def _page(chromium: str) -> AsyncIterator[Page]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1400,900")
        browser = subprocess.Popen(
            [chromium, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = await _devtools_port(Path(profile, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            browser.terminate()
            browser.wait()


async def _devtools_port(path: Path) -> str:
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError):
            lines = path.read_text("utf-8").splitlines()
            if lines:
                return lines[0]
        await asyncio.sleep(0.05)
    raise AssertionError("Chromium did not open its DevTools")


@contextlib.contextmanager
def _stranger() -> Iterator[str]:
    """A page of this machine on another port, as any other program may serve one."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def main(arguments: list[str]) -> int:
    """Check and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser") or "")
    parser.add_argument("--shot", type=Path)
    options = parser.parse_args(arguments)
    if not options.chromium:
        print("There is no chromium on the PATH; name one with --chromium.", file=sys.stderr)
        return 1
    asyncio.run(check(options.chromium, options.shot))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
