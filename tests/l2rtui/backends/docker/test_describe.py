"""Descriptions, events and ports of containers, runs and the Engine itself."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing

import pytest

from l2rtui.domain.snapshot import RunView
from l2rtui.errors import NotFoundError
from tests.l2rtui.backends.docker.conftest import launched


async def pod_of(backend, selector="run/w/0"):
    return (await backend.snapshot()).select(selector)[0]


async def test_a_pod_is_described_without_its_secrets(backend, fake):
    await launched(backend)
    body = fake.by_name("run-w-0")
    body["Config"]["Env"] += ["WANDB_API_KEY=hunter2", "COLOUR=red"]
    body["Mounts"] = [{"Type": "volume", "Name": "data", "Destination": "/l2r", "RW": False}]
    body["HostConfig"]["DeviceRequests"] = [{"DeviceIDs": ["GPU-1"]}]
    text = "\n".join(await backend.describe(await pod_of(backend)))
    for part in (
        "pod run-w-0", "img:1 (000000000000)", "restarts:    0 (unless-stopped)", "network:     l2rtui-run",
        "gpus:        GPU-1", "mount /l2r from data, read only", "env COLOUR=red", "env WANDB_API_KEY=(hidden)",
        "Started  Pod run-w-0",
    ):  # fmt: skip
        assert part in text
    assert "hunter2" not in text


async def test_a_run_and_the_node_are_described(backend, fake):
    await launched(backend)
    snapshot = await backend.snapshot()
    (run,) = snapshot.runs.values()
    text = "\n".join(await backend.describe(run))
    assert "sets:        learner (learner) x 1, w (worker) x 2" in text
    assert "Pod run-w-1: running" in text
    (node,) = snapshot.nodes.values()
    text = "\n".join(await backend.describe(node))
    assert "node my" in text
    assert "engine:      Docker 27.0" in text


async def test_what_is_gone_is_said_to_be(backend, fake):
    await launched(backend)
    pod = await pod_of(backend)
    with pytest.raises(NotFoundError, match="another has its name"):
        await backend.describe(RunView("other", "run", "run"))
    fake.containers.clear()
    with pytest.raises(NotFoundError, match="The pod run-w-0 is gone"):
        await backend.describe(pod)


async def test_events_of_one_pod_of_a_run_and_of_all(backend, fake):
    await launched(backend)
    fake.event("die", "run-w-0", exitCode="3")
    fake.event("oom", "run-w-1")
    fake.event("exec_create", "run-w-0")  # not shown
    history = await backend.events(await pod_of(backend))
    assert [(event.reason, event.level, event.message) for event in history] == [
        ("Started", "Normal", ""), ("Died", "Warning", history[1].message),
    ]  # fmt: skip
    assert "3" in history[1].message
    (run,) = (await backend.snapshot()).runs.values()
    assert [event.reason for event in await backend.events(run)][-2:] == ["Died", "OOMKilled"]
    assert await backend.events() == await backend.events(run)


async def test_a_port_leads_into_the_container_and_a_stopped_one_says_why(backend, fake):
    await launched(backend)
    pod = await pod_of(backend)

    async def echo(reader, writer):
        writer.write(await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    remote = server.sockets[0].getsockname()[1]
    async with server, aclosing(backend.forward(pod, 0, remote)) as sentences:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", await anext(sentences))[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"there and back")
        writer.write_eof()
        assert await reader.read() == b"there and back"
        writer.close()
        fake.end("run-w-0")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert "no address while it does not run" in await anext(sentences)
        writer.close()
