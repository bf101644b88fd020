"""Two contexts in one view: time from a change in one to its row, before and after the other's server is killed.

Two API servers in this process, a watch over both, and nodes that come to the second; the first is
killed half-way. Milliseconds, and the ratio of both halves.

    python -m tests.bench contexts
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from statistics import quantiles

from l2rtui.backends.composed.backend import ComposedBackend
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.change import NodeChanged
from tests.fakes.kubernetes_objects import ObjectServer, serving

PAUSE_SECONDS = 0.02
CONTEXTS = ("first", "second")


def node(number: int) -> dict[str, object]:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}
    return {"kind": "Node", "metadata": {"name": f"n{number}", "labels": {}}, "status": status}


def kubeconfig(servers: dict[str, ObjectServer]) -> str:
    return json.dumps(
        {
            "contexts": [{"name": name, "context": {"cluster": name}} for name in servers],
            "clusters": [{"name": name, "cluster": {"server": server.base}} for name, server in servers.items()],
        }
    )


async def latencies(rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds from a change in the second context to its batch, before and after the first one's end."""
    os.environ["SSL_CERT_FILE"] = os.devnull  # the library makes a TLS context for http:// too
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        servers = {name: ObjectServer() for name in CONTEXTS}
        await first.enter_async_context(serving(servers["first"]))
        await stack.enter_async_context(serving(servers["second"]))
        for server in servers.values():
            server.put(node(0))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder) / "kubeconfig"
        path.write_text(kubeconfig(servers))
        members = {name: KubernetesBackend(Settings(context=name), str(path)) for name in CONTEXTS}
        composed = ComposedBackend(members)
        stack.push_async_callback(composed.close)
        batches = await stack.enter_async_context(aclosing(composed.watch()))
        names: set[str] = set()

        async def until(name: str) -> None:
            while name not in names:
                names.update(change.node.name for change in await anext(batches) if isinstance(change, NodeChanged))

        async def measure(begin: int) -> list[float]:
            seconds = []
            for number in range(begin, begin + rounds):
                began = time.perf_counter()
                servers["second"].put(node(number))
                async with servers["second"]._changed:
                    servers["second"]._changed.notify_all()
                await until(f"second:n{number}")
                seconds.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_SECONDS)
            return seconds

        for name in CONTEXTS:
            await until(f"{name}:n0")
        before = await measure(1)
        await first.aclose()
        return before, await measure(rounds + 1)


def main(words: list[str]) -> None:
    """Print percentiles of both halves, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench contexts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    halves = asyncio.run(latencies(parser.parse_args(words).rounds))
    p95 = []
    for label, seconds in zip(("both live", "one killed"), halves, strict=True):
        cuts = quantiles([1000 * value for value in seconds], n=20)
        p95.append(cuts[18])
        print(f"{label:<11} p50 {cuts[9]:6.1f} ms   p95 {cuts[18]:6.1f} ms   max {1000 * max(seconds):6.1f} ms")
    print(f"p95 after the kill over before: {p95[1] / p95[0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
