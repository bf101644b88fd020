"""A recording in the app: what was recorded appears, ages are those of its time, and nothing can be changed."""

from __future__ import annotations

from contextlib import aclosing

from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.recorded.backend import ReplayBackend
from l2rtui.backends.recorded.recording import BackendRecorder
from l2rtui.config import Settings, user_name
from l2rtui.domain.change import apply
from l2rtui.domain.log import LogQuery
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT


async def test_a_recording_of_the_app_is_shown_by_the_app(desk, tmp_path):
    path = tmp_path / "demo.jsonl"
    backend = FakeBackend(owner=user_name())
    recorder = BackendRecorder(path, backend.now)
    source = recorder.of(backend)
    async with aclosing(source.watch()) as batches:
        snapshot = apply(EMPTY_SNAPSHOT, await anext(batches))
    learners = [pod for pod in snapshot.pods.values() if pod.name.endswith("learner-0") and pod.ready]
    for pod in learners:
        async with aclosing(source.logs(pod, LogQuery(tail=20))) as lines:
            assert [line async for line in lines]
    recorder.close()
    replay = ReplayBackend(path)
    settings = Settings(backend="replay", readonly=True)
    async with desk(size=(120, 40), backend=replay, settings=settings) as one:
        assert {run.name for run in one.cluster.snapshot.runs.values()} == {
            run.name for run in snapshot.runs.values()
        }
        await one.until(lambda: "demo.jsonl 2025-06-15 15:06:40 · ended" in one.words())
        await one.until(lambda: "steps/s" in one.words())
        assert "READ-ONLY" in one.words()
        await one.press("L")
        await one.until(lambda: any("read" in text or "recording" in text for text in one.says()))
        assert one.top == "ClusterScreen"
