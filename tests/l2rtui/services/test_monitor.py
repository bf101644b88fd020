"""The monitor: the newest snapshot wins, no change is lost, and no outage ends it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.node import Node
from l2rtui.services import monitor as module
from l2rtui.services.monitor import Monitor


@asynccontextmanager
async def running(backend):
    monitor = Monitor(backend, period_seconds=0.001)
    task = asyncio.create_task(monitor.run())
    try:
        yield monitor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(monitor, condition):
    async with asyncio.timeout(60), aclosing(monitor.updates()) as updates:
        async for snapshot in updates:
            if condition(snapshot):
                return snapshot
    raise AssertionError("the updates ended")


async def test_the_first_snapshot_holds_everything_and_changes_follow():
    backend = FakeBackend()
    async with running(backend) as monitor:
        first = await until(monitor, lambda snapshot: snapshot.nodes)
        assert first == await backend.snapshot()

        backend.put_node(Node("late"))
        second = await until(monitor, lambda snapshot: "late" in snapshot.nodes)

    assert second.revision > first.revision
    assert monitor.heard_at is not None


async def test_an_outage_is_told_and_survived(monkeypatch):
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.001)
    backend = FakeBackend()
    async with running(backend) as monitor:
        before = await until(monitor, lambda snapshot: snapshot.nodes)
        backend.outage = "the cluster does not answer"
        backend.advance(1)
        during = await until(monitor, lambda _: monitor.error)
        assert "does not answer" in monitor.error
        assert during is before

        backend.put_node(Node("meanwhile"))
        backend.outage = ""
        after = await until(monitor, lambda _: not monitor.error)
        assert after.nodes.keys() - before.nodes.keys() == {"meanwhile"}
        assert after.revision == before.revision + 1


async def test_a_burst_collapses_into_the_newest():
    backend = FakeBackend(is_empty=True)
    async with running(backend) as monitor:
        seen = 0
        backend.put_node(Node("first"))
        async with asyncio.timeout(60), aclosing(monitor.updates()) as updates:
            async for snapshot in updates:
                seen += 1
                if len(snapshot.nodes) == 51:
                    break
                for number in range(50):
                    backend.put_node(Node(f"n{number}"))
                    await asyncio.sleep(0)

    assert seen == 2
