"""Two contexts in one view: time from a change in one to its painted cell, alone and beside another that goes away.

API servers in this process, the whole app without a terminal, and a node of the second that is cordoned and
uncordoned. Milliseconds from the change until the table has drawn the state, and ratios to one context alone.

    python -m tests.bench contexts
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import quantiles

from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp
from l2rtui.ui.state.app_context import ContextOpener
from tests.fakes.kubernetes_objects import ObjectServer, serving

DEADLINE_SECONDS = 60.0
LIMIT_MILLISECONDS = 250.0
CONTEXTS = ("first", "second", "silent")


def node(is_cordoned: bool = False) -> dict[str, object]:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}
    return {
        "kind": "Node",
        "metadata": {"name": "n0", "labels": {}},
        "spec": {"unschedulable": is_cordoned},
        "status": status,
    }


def kubeconfig(bases: dict[str, str]) -> str:
    return json.dumps(
        {
            "current-context": "second",
            "contexts": [{"name": name, "context": {"cluster": name}} for name in bases],
            "clusters": [{"name": name, "cluster": {"server": base}} for name, base in bases.items()],
        }
    )


async def swallow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Read requests and answer none: a server that hangs, and whose kernel goes on."""
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


class NodeCells:
    """The app over some contexts, and what its table of nodes has drawn."""

    def __init__(self, app: L2RApp, server: ObjectServer) -> None:
        self._app, self._server = app, server
        self._lines: dict[int, str] = {}
        self._drawn = asyncio.Event()

    def observe(self) -> None:
        """Note each line that the table draws."""
        table = self._app.cluster.panes.nodes
        render = table.render_line

        def render_line(y: int):
            strip = render(y)
            self._lines[y] = strip.text
            self._drawn.set()
            return strip

        table.render_line = render_line  # type: ignore[method-assign]

    async def until(self, *texts: str) -> None:
        """Return once some line has all of these texts."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not any(all(text in line for text in texts) for line in self._lines.values()):
                self._drawn.clear()
                await self._drawn.wait()

    async def latencies(self, name: str, rounds: int, rng: random.Random) -> list[float]:
        """Return milliseconds from a change of a node of the second context to its drawn state, each."""
        milliseconds = []
        for number in range(rounds):
            word = "cordoned" if number % 2 == 0 else "ready"
            began = time.perf_counter()
            self._server.objects.pop(("Node", "", "n0"))
            self._server.put(node(is_cordoned=word == "cordoned"))
            async with self._server._changed:
                self._server._changed.notify_all()
            await self.until(name, word)
            milliseconds.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(
                rng.uniform(0.05, 0.25)
            )  # else every change falls into the same phase of the period
        return milliseconds


async def view(
    text: str, server: ObjectServer, rounds: int, kill: Callable[[], object] | None = None
) -> list[list[float]]:
    """Measure in a view of these contexts; with ``kill`` once more after it was called."""
    opener = ContextOpener(lambda context, _: Settings(context=context), KubernetesBackend)
    app = L2RApp(Settings(), lambda: opener.open(text, None)[1], opener=opener)
    name = "second:n0" if "," in text else "n0"
    cells, rng = NodeCells(app, server), random.Random(7)
    async with app.run_test(size=(160, 45)) as pilot:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while app.screen is not app.cluster or not app.cluster.health.is_connected:
                await pilot.pause(0.01)
        cells.observe()
        await pilot.press("4")
        await cells.until(name, "ready")
        results = [await cells.latencies(name, rounds, rng)]
        if kill is not None:
            await kill()  # type: ignore[misc]
            results.append(await cells.latencies(name, rounds, rng))
    return results


async def measure(rounds: int) -> dict[str, list[float]]:
    """Return milliseconds by what stands beside the context that is measured."""
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the fake servers' watches, cut at each end
    os.environ["SSL_CERT_FILE"] = os.devnull  # the library makes a TLS context for http:// too
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        servers = {name: ObjectServer() for name in CONTEXTS[:2]}
        await first.enter_async_context(serving(servers["first"]))
        await stack.enter_async_context(serving(servers["second"]))
        silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
        stack.callback(silent.close)
        for server in servers.values():
            server.put(node())
        bases = {name: server.base for name, server in servers.items()}
        bases["silent"] = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder) / "kubeconfig"
        path.write_text(kubeconfig(bases))
        os.environ["KUBECONFIG"], os.environ["XDG_STATE_HOME"] = str(path), folder
        server = servers["second"]
        (alone,) = await view("second", server, rounds)
        (hanging,) = await view("silent,second", server, rounds)
        live, killed = await view("first,second", server, rounds, first.aclose)
        return {"alone": alone, "beside one": live, "one killed": killed, "one hangs": hanging}


def main(words: list[str]) -> None:
    """Print percentiles of each view, and their ratio to one context alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench contexts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    results = asyncio.run(measure(parser.parse_args(words).rounds))
    base = quantiles(results["alone"], n=20)[18]
    for label, values in results.items():
        cuts = quantiles(values, n=20)
        verdict = "" if cuts[18] <= LIMIT_MILLISECONDS else f"   above {LIMIT_MILLISECONDS:.0f} ms"
        print(
            f"{label:<11} p50 {cuts[9]:6.1f} ms   p95 {cuts[18]:6.1f} ms   max {max(values):6.1f} ms"
            f"   p95 over alone {cuts[18] / base:.2f}{verdict}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
