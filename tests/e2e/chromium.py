"""A headless Chromium over its DevTools protocol: keys, pictures, and a record of all requests of a page.

The protocol is JSON over a WebSocket (https://chromedevtools.github.io/devtools-protocol/), which aiohttp speaks. A
driver program is not used, since its version would have to match the browser's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

DEADLINE_SECONDS = 90.0
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1400,900"),
    # No requests of the browser itself: only the page's are recorded. Names of other hosts are not resolved, so
    # that a request to one is recorded and nothing leaves this machine.
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class Page:
    """A tab.

    Attributes:
        requests: Address of each request of the page, in order, WebSockets included.
        answers: Address → HTTP status.
        output: Data received through WebSockets since the last navigation or reload.
        typed: Data that the page sent through them.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, browser: _Browser) -> None:
        self._socket = socket
        self._browser = browser
        self._number = 0
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.ensure_future(self._read())
        self.requests: list[str] = []
        self.answers: dict[str, int] = {}
        self.output = b""
        self.typed: list[str] = []

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._pending.pop(event["id"]).set_result(event)
            else:
                self._record(event["method"], event["params"])

    def _record(self, method: str, event: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(event["request"]["url"])
            case "Network.responseReceived":
                self.answers[event["response"]["url"]] = event["response"]["status"]
            case "Network.webSocketCreated":
                self.requests.append(event["url"])
            case "Network.webSocketFrameSent":
                self.typed.append(event["response"]["payloadData"])
            case "Network.webSocketFrameReceived" if event["response"]["opcode"] == 2:
                self.output += base64.b64decode(event["response"]["payloadData"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method; return its result."""
        self._number += 1
        answer = self._pending[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        event = await asyncio.wait_for(answer, DEADLINE_SECONDS)
        assert "error" not in event, event
        return dict(event["result"])

    async def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return result["result"].get("value")

    async def until(self, condition: Callable[[], object], message: str) -> None:
        """Wait until a condition on the record holds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not condition():
                    await asyncio.sleep(0.05)
                return
        raise AssertionError(f"{message}: not within {DEADLINE_SECONDS:g} s; last output {self.output[-2000:]!r}")

    async def until_page(self, expression: str) -> None:
        """Wait until an expression of the page is true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not await self.value(expression):
                    await asyncio.sleep(0.05)
                return
        raise AssertionError(f"{expression}: not within {DEADLINE_SECONDS:g} s")

    async def until_output(self, text: str) -> None:
        """Wait until the app has written a text."""
        await self.until(lambda: text.encode() in self.output, f"{text!r} in the app's output")

    async def open(self, address: str) -> None:
        """Go to an address."""
        self.output = b""
        await self.call("Page.navigate", url=address)

    async def reload(self) -> None:
        """Reload the page, as F5 does."""
        self.output = b""
        await self.call("Page.reload")

    async def duplicate(self) -> Page:
        """Open the page in a second tab with a copy of its session storage, as the browser's own command does."""
        known = {tab["id"] for tab in await self._browser.tabs()}
        # Without a user gesture a browser opens no window.
        await self.call("Runtime.evaluate", expression="void window.open(location.href)", userGesture=True)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (new := [tab for tab in await self._browser.tabs() if tab["id"] not in known]):
                await asyncio.sleep(0.05)
        return await self._browser.page(new[0])

    async def press(self, key: str) -> None:
        """Press a key: a character, or Enter or Escape by name."""
        text, code = {"Enter": ("\r", 13), "Escape": ("", 27)}.get(key, (key, 0))
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, key=key, windowsVirtualKeyCode=code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def picture(self) -> bytes:
        """Return the page as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


class _Browser:
    """Tabs of a browser, by its DevTools port."""

    def __init__(self, session: aiohttp.ClientSession, port: str) -> None:
        self._session = session
        self._port = port

    async def tabs(self) -> list[dict[str, str]]:
        """Return the browser's list of tabs."""
        async with self._session.get(f"http://127.0.0.1:{self._port}/json/list") as answer:
            return [tab for tab in await answer.json() if tab["type"] == "page"]

    async def page(self, tab: dict[str, str]) -> Page:
        """Record and drive a tab."""
        page = Page(await self._session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0), self)
        for domain in ("Page", "Network", "Runtime"):
            await page.call(f"{domain}.enable")
        return page


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Page]:
    """Start a browser with a separate profile and one tab; end it afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = await _devtools_port(Path(profile, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session:
                tabs = _Browser(session, port)
                yield await tabs.page((await tabs.tabs())[0])
        finally:
            browser.terminate()
            browser.wait()


async def _devtools_port(path: Path) -> str:
    """Return the port that the browser chose; it writes a file when it listens."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with contextlib.suppress(FileNotFoundError):
                if lines := path.read_text("utf-8").splitlines():
                    return lines[0]
            await asyncio.sleep(0.05)
