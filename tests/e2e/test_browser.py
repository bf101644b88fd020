"""`l2rtui serve` in a real Chromium: immediate keys, no other host, an icon, a reload, an end that is reported."""

from __future__ import annotations

import contextlib
import http.server
import threading
from urllib.parse import urlsplit

import psutil
import pytest

from tests.e2e.chromium import PROGRAM, chromium
from tests.e2e.serving import origin, serving

pytestmark = [
    pytest.mark.browser,
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("browser"),  # a browser is a dozen processes: never two of them in parallel
    pytest.mark.skipif(not PROGRAM, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]

HELP = "Destroy the run"
"""Text of the help screen that no other screen has."""
REPORT_MOUSE = b"\x1b[?1003h"
"""Sequence sent to a terminal when the app starts on it."""
# A page of another program on this machine that tries several attacks.
ATTACK = """
new Promise(done => {{
  const socket = new WebSocket("ws://{host}/ws?width=80&height=24");
  socket.onopen = () => done("open");
  socket.onerror = () => fetch("http://{host}/", {{credentials: "include"}})
    .then(() => done("fetched"), () => done("refused"));
}})
"""


@pytest.fixture
async def served():
    """Open the app in a tab; yields the server's process, its address and the page, after the first frame."""
    async with serving() as (process, address), chromium() as page:
        await page.open(address)
        await page.until_output("Slots")
        yield process, address, page


def apps_of(process):
    return {child.pid for child in psutil.Process(process.pid).children(recursive=True)}


@pytest.mark.slow
async def test_the_page_takes_keys_at_once_and_asks_no_other_host(served):
    _, address, page = served
    assert await page.value("location.href") == f"{origin(address)}/", "the token stays in the address"
    assert "l2rtui" not in await page.value("document.cookie"), "scripts can read the cookie"
    before = await page.picture()
    await page.press("?")
    await page.until_output(HELP)
    assert await page.picture() != before
    hosts = {urlsplit(url).netloc for url in page.requests if not url.startswith("data:")}
    assert hosts == {urlsplit(address).netloc}
    assert await page.value("document.fonts.check('16px \"Roboto Mono\"')")
    assert [face for face in await page.value("[...document.fonts].map(face => face.status)") if face == "loaded"]
    assert not [url for url, status in page.answers.items() if status >= 400]


async def test_the_app_has_the_focus_as_in_a_terminal(served):
    """A pane's own key works without a click: the app knows that its window has the focus."""
    _, _, page = served
    await page.press("3")
    await page.press(".")
    await page.until_output("pod▲")
    assert '["focus"]' in page.typed


async def test_the_page_has_an_icon_and_a_title(served):
    _, address, page = served
    icon = await page.value("document.querySelector('link[rel=icon]').href")
    assert icon.startswith(origin(address))
    kind, text = await page.value(
        f"fetch('{icon}').then(async answer => [answer.headers.get('Content-Type'), await answer.text()])"
    )
    assert kind == "image/svg+xml"
    assert text.startswith("<svg")
    assert await page.value("document.title") == "l2rtui"


@pytest.mark.slow
async def test_a_reload_finds_the_same_app_as_it_was_left(served):
    process, _, page = served
    await page.press("?")
    await page.until_output(HELP)
    apps = apps_of(process)
    await page.reload()
    # Output for the old page may arrive after the reload, so only output after the new terminal's modes counts.
    await page.until(
        lambda: HELP.encode() in page.output.partition(REPORT_MOUSE)[2],
        "the help painted anew, and nobody pressed a key, in a terminal that reports the mouse",
    )
    assert apps_of(process) == apps
    page.output = b""
    await page.press("Escape")  # back from the help, by the keyboard of the new page
    await page.until_output("Slots")
    assert apps_of(process) == apps


@pytest.mark.slow
async def test_a_duplicate_of_a_tab_has_an_app_of_its_own(served):
    process, _, page = served
    apps = apps_of(process)
    second = await page.duplicate()
    await second.until_page("document.body.classList.contains('-first-byte')")
    assert len(apps_of(process) - apps) == 1
    name = "sessionStorage.getItem('l2rtui-tab')"
    assert await second.value(name) != await page.value(name)
    page.output = b""
    await second.press("?")
    await second.until_output(HELP)
    assert HELP.encode() not in page.output
    await page.press("?")
    await page.until_output(HELP)
    second.output = b""
    await second.reload()
    await second.until_output(HELP)  # and its reload finds the same one again
    assert len(apps_of(process)) == 2


@pytest.mark.slow
async def test_the_end_of_an_app_is_said_and_enter_opens_another(served):
    process, _, page = served
    (app,) = apps_of(process)
    psutil.Process(app).kill()
    await page.until_page("document.body.classList.contains('-closed')")
    assert "Runs go on" in await page.value("document.querySelector('.closed-dialog').innerText")
    page.output = b""
    await page.until_page("document.activeElement.tagName == 'BUTTON'")
    await page.press("Enter")
    await page.until_output("Slots")
    assert app not in apps_of(process)


async def test_another_page_of_this_machine_gets_nothing(served):
    _, address, page = served
    with _other_program() as elsewhere:
        await page.open(elsewhere)
        await page.until_page(f"location.href == '{elsewhere}' && document.readyState == 'complete'")
        assert await page.value(ATTACK.format(host=urlsplit(address).netloc)) == "refused"


@contextlib.contextmanager
def _other_program():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, *_):
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()
