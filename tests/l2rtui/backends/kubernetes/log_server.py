"""A kubelet's logs by script: a real HTTP server that serves one pod, repeats whole seconds, and cuts on
request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp import web

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User

SECOND = 1_000_000_000
BEGIN = 1_750_000_000 * SECOND


def stamp(nanoseconds: int) -> str:
    """RFC 3339 with as many digits as needed, as written by Go."""
    seconds, rest = divmod(nanoseconds, SECOND)
    digits = f"{rest:09d}".rstrip("0")
    return (
        datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + (f".{digits}" if digits else "") + "Z"
    )


@dataclass
class Process:
    """One process of a container: its lines with their times, and its end."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    ended: dict | None = None


@dataclass
class Pod:
    """One pod with its containers, and its faults.

    Attributes:
        cuts: Share of chunks after which a stream is cut. errors: answers with which the next log requests fail.
        mute: Follows send nothing and never end.
        opened: Queries of the log requests.
    """

    containers: dict[str, list[Process]] = field(default_factory=lambda: {"main": [Process()]})
    phase: str = "Running"
    is_there: bool = True
    cuts: float = 0.0
    errors: list[web.Response] = field(default_factory=list)
    mute: bool = False
    opened: list[dict[str, str]] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    base: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def main(self) -> list[Process]:
        return self.containers["main"]

    def write(self, text: str, at: int, container: str = "main") -> None:
        self.containers[container][-1].lines.append((at, text))
        self.wake()

    def end(self, code: int, reason: str = "Error", container: str = "main") -> None:
        self.containers[container][-1].ended = {
            "exitCode": code,
            "reason": reason,
            "finishedAt": stamp(BEGIN + 90 * SECOND),
        }
        self.wake()

    def restart(self, container: str = "main") -> None:
        self.containers[container].append(Process())
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def status(self, name: str) -> dict:
        *before, now = self.containers[name]
        state = {"terminated": now.ended} if now.ended else {"running": {"startedAt": stamp(BEGIN)}}
        last = {"terminated": before[-1].ended} if before else {}
        return {"name": name, "restartCount": len(before), "state": state, "lastState": last}

    async def look(self, _: web.Request) -> web.Response:
        if not self.is_there:
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        spec = {"containers": [{"name": name} for name in self.containers], "restartPolicy": "Always"}
        status = {"phase": self.phase, "containerStatuses": [self.status(name) for name in self.containers]}
        return web.json_response({"metadata": {"name": "p", "uid": "u"}, "spec": spec, "status": status})

    async def log(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.opened.append(query)
        if self.errors:
            return self.errors.pop(0)
        if not self.is_there:
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        processes = self.containers[query["container"]]
        if query.get("previous") and len(processes) < 2:
            return web.json_response({"kind": "Status", "reason": "BadRequest"}, status=400)
        process = processes[-2 if query.get("previous") else -1]
        response = web.StreamResponse()
        await response.prepare(request)
        await self._send(request, response, process, query)
        return response

    async def _send(self, request, response, process, query) -> None:
        since = 0
        if "sinceTime" in query:
            since = int(datetime.fromisoformat(query["sinceTime"]).timestamp()) * SECOND
        follow = query.get("follow") == "true"
        place = max(0, len(process.lines) - int(query["tailLines"])) if "tailLines" in query else 0
        while follow and self.mute:
            await asyncio.sleep(3600)
        while True:
            changed = self.changed
            result = [line for line in process.lines[place:] if line[0] >= since]
            place = len(process.lines)
            data = "".join(f"{stamp(at)} {text}\n" for at, text in result).encode("utf-8", "surrogateescape")
            while data:
                size = self.dice.randint(1, 60)
                await response.write(data[:size])
                data = data[size:]
                if self.dice.random() < self.cuts:
                    # Half of the cuts look like an end; without follow, only an incomplete last line reveals a cut.
                    if not follow or self.dice.random() < 0.5:
                        request.transport.abort()
                    return
            if not follow or process.ended or not self.is_there:
                return
            await changed.wait()

    def api(self) -> Api:
        return Api(Access("test", "test", self.base, User("tester"), "ml"))


@asynccontextmanager
async def serving(pod: Pod) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ml/pods/p", pod.look)
    app.router.add_get("/api/v1/namespaces/ml/pods/p/log", pod.log)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pod.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = pod.api()
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()
