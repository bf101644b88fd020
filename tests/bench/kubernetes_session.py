"""Cost of the official library as the session: its import, and 10,000 pods listed through it beside bare aiohttp.

Interleaved in one run, CPU seconds of each process and the least of the rounds. The typed list is read once, with a
tenth of the pods, as it takes seconds. With ``--before``, another checkout and this one by turns, on the cluster
of $KUBECONFIG: `l2rtui pods` from start to end, and the app from start to the row of its last node.

    python -m tests.bench kubernetes_session
    python -m tests.bench.kubernetes_session --before ../before --row NODE
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.startup import Terminal

PODS = 10_000
POD = {
    "metadata": {"name": "p", "namespace": "ml", "labels": {"app": "a"}, "annotations": {"x/y": "z" * 300}},
    "spec": {
        "nodeName": "n",
        "containers": [
            {"name": "main", "image": "i", "env": [{"name": f"E{i}", "value": "v" * 20} for i in range(10)]}
        ],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
SERVER = """
import json, sys
from aiohttp import web

POD = json.loads(sys.argv[1])
PAGE = 500
pages = {}

async def answer(request):
    if not request.path.endswith("/pods"):
        return web.json_response({"major": "1", "minor": "31"})
    start, total = int(request.query.get("continue") or 0), int(sys.argv[2])
    if (start, total) not in pages:
        meta = POD["metadata"]
        items = [POD | {"metadata": meta | {"name": f"p-{i}", "uid": f"u-{i}"}} for i in range(start, start + PAGE)]
        more = {"continue": str(start + PAGE)} if start + PAGE < total else {}
        page = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"} | more, "items": items}
        pages[start, total] = json.dumps(page).encode()
    return web.Response(body=pages[start, total], content_type="application/json")

app = web.Application()
app.router.add_route("*", "/{path:.*}", answer)
say = lambda *_: print("ready", flush=True)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[3]), print=say, access_log=None)
"""
MEASURED = """
import asyncio, resource
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
async def twice():
    session = connect()
    await read(session)  # connections are opened and the server's pages are made
    began = cpu()
    await read(session)
    print(cpu() - began)
    await session.close()
asyncio.run(twice())
"""
SESSION = """
from l2rtui.backends.kubernetes.api import list_pages, structs
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.decode import Decoder
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
def connect():
    return Api(Access("c", "k", {base!r}, User("u", token="t")))
async def read(api):
    pages = list_pages.iter_pages(api, list_pages.Scope("Pod"), Decoder(structs.PodStruct), 60.0)
    assert sum([len(page.items) async for page in pages]) == {pods}
"""
BARE = """
import aiohttp, msgspec
from l2rtui.backends.kubernetes.api import structs
from l2rtui.backends.kubernetes.api.decode import Decoder
def connect():
    return aiohttp.ClientSession(headers={{"Authorization": "Bearer t"}}, read_bufsize=1 << 18)
async def read(session):
    decoder, more, count = Decoder(structs.PodStruct), "", 0
    while True:
        query = {{"limit": "500", "continue": more}}
        async with session.get({base!r} + "/api/v1/pods", params=query) as response:
            page = decoder.page(await response.read())
        count += sum(len(part.items) for part in decoder.parts(page, 500))
        if not (more := page.metadata.continue_):
            break
    assert count == {pods}
"""
TYPED = """
from kubernetes.aio.client import ApiClient, Configuration, CoreV1Api
def connect():
    return ApiClient(Configuration({base!r}))
async def read(client):
    more, count = None, 0
    while True:
        page = await CoreV1Api(client).list_pod_for_all_namespaces(limit=500, _continue=more)
        count += len(page.items)
        if not (more := page.metadata._continue):
            break
    assert count == {pods}
"""
IMPORTS = {
    "aiohttp and yaml": "import aiohttp, yaml",
    "… and kubernetes.aio.client": "import aiohttp, yaml, kubernetes.aio.client",
    "… as the backend imports it": (
        "import gc; gc.disable(); import aiohttp, yaml, kubernetes.aio.client; gc.freeze(); gc.enable()"
    ),
    "… and CoreV1Api": "from kubernetes.aio.client import CoreV1Api; CoreV1Api",
}


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--before", type=Path, help="another checkout to compare with, on the cluster of $KUBECONFIG"
    )
    parser.add_argument("--row", default="", help="what only a row of the app shows, such as a node's name")
    options = parser.parse_args(arguments)
    rounds = options.rounds
    if options.before is not None:
        compare(options.before, options.row, rounds)
        return 0
    imports = {name: min(cpu_seconds(code) for _ in range(rounds)) for name, code in IMPORTS.items()}
    for name, seconds in imports.items():
        print(f"import {name:34} {seconds:6.2f} s CPU")
    lists: dict[str, list[float]] = {}
    with serving(PODS, 18471) as base:
        for _ in range(rounds):
            for name, code in {"bare aiohttp": BARE, "the session": SESSION}.items():
                lists.setdefault(name, []).append(printed(code.format(base=base, pods=PODS) + MEASURED))
    with serving(PODS // 10, 18472) as base:
        lists["the typed client"] = [10 * printed(TYPED.format(base=base, pods=PODS // 10) + MEASURED)]
    bare = min(lists["bare aiohttp"])
    for name, seconds in lists.items():
        print(f"{PODS:,} pods by {name:24} {min(seconds):6.2f} s CPU, {min(seconds) / bare:5.2f} of bare aiohttp")
    return 0


def compare(before: Path, row: str, rounds: int) -> None:
    """Measure the rows of two checkouts by turns, and print wall and CPU seconds of each."""
    trees = {"before": before.resolve(), "now": Path(__file__).resolve().parents[2]}
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as home:
        for turn in range(rounds + 1):
            for name, tree in list(trees.items())[:: 1 if turn % 2 else -1]:
                env = {**os.environ, "PYTHONPATH": str(tree), "TERM": "xterm-256color"}
                env |= {"XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home}
                for what, measured in (("pods", command(env)), ("app", app(env, row.encode()))):
                    if turn:  # the first turn compiles and fills the caches
                        times.setdefault((what, name), []).append(measured)
    for (what, name), pairs in sorted(times.items()):
        walls, busy = zip(*pairs, strict=True)
        print(
            f"{what:5} {name:7} wall: least {min(walls):5.2f} s, median {statistics.median(walls):5.2f} s; "
            f"CPU: least {min(busy):5.2f} s, median {statistics.median(busy):5.2f} s"
        )


def command(env: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of `l2rtui pods`."""
    began = time.monotonic()
    words = [sys.executable, "-m", "l2rtui", "pods", "--backend", "kubernetes"]
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"`l2rtui pods` gave {process.returncode}.")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def app(env: dict[str, str], row: bytes) -> tuple[float, float]:
    """Wall and CPU seconds from the start of the app until its terminal has got a row."""
    began = time.monotonic()
    terminal = Terminal(["-m", "l2rtui", "--backend", "kubernetes"], env)
    try:
        terminal.read(60.0, until=row)
        if row not in terminal.screen:
            raise SystemExit(f"The app did not draw {row.decode()} within 60 s.")
        return time.monotonic() - began, terminal.cpu()
    finally:
        terminal.close()


@contextmanager
def serving(pods: int, port: int) -> Iterator[str]:
    """Serve so many pods from another process; yields its base URL."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(POD), str(pods), str(port)], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def cpu_seconds(code: str) -> float:
    """CPU seconds of a fresh interpreter that runs the code."""
    process = subprocess.Popen([sys.executable, "-c", code])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def printed(code: str) -> float:
    """The number that the code prints in a fresh interpreter."""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
