"""Recordings: their contents, the rows and times of a replay, and invalid files."""

from __future__ import annotations

import asyncio
import stat
from contextlib import aclosing

import msgspec
import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.recorded.backend import Player, ReplayBackend
from l2rtui.backends.recorded.recording import (
    BackendRecorder,
    ChangesEntry,
    EndEntry,
    LineEntry,
    OutageEntry,
    entries,
    header_line,
    read_header,
)
from l2rtui.domain.change import apply
from l2rtui.domain.log import LogQuery
from l2rtui.domain.plan import LaunchPlan, ScalePlan
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView
from l2rtui.errors import BackendError, NotFoundError, RefusedError, UsageError

BEGAN = 1_750_000_000.0


class Clock:
    """Seconds that pass when a test requests it."""

    def __init__(self) -> None:
        self.seconds = BEGAN

    def __call__(self) -> float:
        return self.seconds


async def recorded(path, clock, *, hours: float = 0.0) -> FakeBackend:
    """Record the demo cluster: its first rows, lines of a learner, and a pod that dies an hour later."""
    backend, recorder = FakeBackend(clock), BackendRecorder(path, clock)
    source = recorder.of(backend)
    async with aclosing(source.watch()) as batches:
        snapshot = apply(EMPTY_SNAPSHOT, await anext(batches))
        async with aclosing(source.logs(learner(snapshot), LogQuery(tail=5))) as lines:
            assert [line async for line in lines]
        clock.seconds += 3600.0 * hours
        backend.put_pod(replace(learner(snapshot), message="token=abcdefghijkl was refused"))
        await anext(batches)
    recorder.close()
    return backend


def learner(snapshot) -> PodView:
    return next(pod for pod in snapshot.pods.values() if pod.name.endswith("learner-0"))


async def test_a_replay_shows_the_rows_and_the_lines_that_were_seen(tmp_path):
    path, clock = tmp_path / "a.jsonl", Clock()
    backend = await recorded(path, clock)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replay = ReplayBackend(path, 100_000)
    async with aclosing(replay.watch()) as batches:
        shown = apply(EMPTY_SNAPSHOT, await anext(batches))
        while "[hidden]" not in learner(shown).message:
            shown = apply(shown, await anext(batches))
    seen = await backend.snapshot()
    assert (shown.nodes, shown.runs, shown.pods.keys()) == (seen.nodes, seen.runs, seen.pods.keys())
    assert [pod for uid, pod in shown.pods.items() if pod != seen.pods[uid]] == [learner(shown)]
    assert "abcdefghijkl" not in path.read_text()
    lines = [line async for line in replay.logs(learner(shown), LogQuery(tail=3))]
    true = [line async for line in backend.logs(learner(shown), LogQuery(tail=3))]
    assert [line.text for line in lines] == [line.text for line in true]
    await replay.close()


async def test_a_replay_keeps_the_times_and_runs_faster(tmp_path):
    path, clock = tmp_path / "a.jsonl", Clock()
    await recorded(path, clock, hours=1.0)
    now = [50.0]
    player = Player(path, 100.0, lambda: now[0])
    assert player.now() == BEGAN
    task = asyncio.create_task(player.run())
    async with aclosing(player.states()) as states:
        first = await anext(states)
    assert "[hidden]" not in learner(first).message
    now[0] += 20.0
    assert player.now() == BEGAN + 2000.0
    assert not player.end
    task.cancel()
    later = Player(path, 100_000.0)
    await later.run()
    assert later.end == "the app was left"
    assert later.now() == BEGAN + 3600.0  # the replay stops at the end: nothing grows old there


async def test_an_outage_of_the_recorded_watch_is_one_of_the_replay(tmp_path):
    path, clock = tmp_path / "a.jsonl", Clock()
    backend, recorder = FakeBackend(clock), BackendRecorder(path, clock)
    source = recorder.of(backend)
    batches = source.watch()
    await anext(batches)
    backend.outage = "The API server does not answer."
    backend.advance(1)
    with pytest.raises(BackendError, match="does not answer"):
        await anext(batches)
    recorder.close()
    assert [type(entry) for entry in entries(path)] == [ChangesEntry, OutageEntry, EndEntry]
    replay = ReplayBackend(path, 100_000)
    await replay.player.run()
    replay._start = lambda: None
    with pytest.raises(BackendError, match="The API server does not answer"):
        await anext(replay.watch())


async def test_two_readers_of_a_log_are_recorded_once(tmp_path):
    path, clock = tmp_path / "a.jsonl", Clock()
    recorder = BackendRecorder(path, clock)
    source = recorder.of(FakeBackend(clock))
    async with aclosing(source.watch()) as batches:
        pod = learner(apply(EMPTY_SNAPSHOT, await anext(batches)))
    for tail in (5, 8):
        async with aclosing(source.logs(pod, LogQuery(tail=tail))) as lines:
            assert len([line async for line in lines]) == tail
    recorder.close()
    assert sum(isinstance(entry, LineEntry) for entry in entries(path)) == 8


async def test_the_size_of_a_file_is_bounded_and_its_end_says_so(tmp_path):
    path, clock = tmp_path / "a.jsonl", Clock()
    recorder = BackendRecorder(path, clock, max_bytes=20)
    async with aclosing(recorder.of(FakeBackend(clock)).watch()) as batches:
        await anext(batches)
    recorder.close()
    assert "It ended early: the file has reached its limit of 20" in recorder.summary
    assert path.stat().st_size < 200


async def test_a_disk_that_is_full_ends_the_recording_and_not_the_app():
    from pathlib import Path

    from l2rtui.backends.recorded import recording as module

    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_created", lambda path: path.open("wb"))
        recorder = BackendRecorder(Path("/dev/full"), clock)
    async with aclosing(recorder.of(FakeBackend(clock)).watch()) as batches:
        assert await anext(batches)
    recorder.close()
    assert "It ended early: No space left on device" in recorder.summary


async def test_lines_that_come_faster_than_the_disk_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("l2rtui.backends.recorded.recording.MAX_QUEUED_LINES", -1)
    path, clock = tmp_path / "a.jsonl", Clock()
    recorder = BackendRecorder(path, clock)
    source = recorder.of(FakeBackend(clock))
    async with aclosing(source.watch()) as batches:
        pod = learner(apply(EMPTY_SNAPSHOT, await anext(batches)))
    assert len([line async for line in source.logs(pod, LogQuery(tail=4))]) == 4
    recorder.close()
    assert "4 log lines came too fast and were left out." in recorder.summary


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a recording"),
        (b"# README\n", "is not a recording"),
        (b'{"l2r": "learner"}\n', "is not a recording"),
        (b'{"l2rtui_recording":2,"version":"9.0","time":0.0,"backend":"x"}\n', "recorded by l2rtui 9.0"),
    ],
)
def test_a_file_that_is_no_recording_is_a_sentence(tmp_path, content, sentence):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read_header(path)


def test_files_that_cannot_be_used_are_sentences(tmp_path):
    with pytest.raises(UsageError, match=r"nosuch cannot be read: No such file"):
        read_header(tmp_path / "nosuch")
    (tmp_path / "a").write_text("mine")
    with pytest.raises(UsageError, match=r"exists\. Name a new file"):
        BackendRecorder(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        BackendRecorder(tmp_path / "no" / "folder")


def test_a_cut_end_is_no_damage_and_other_kinds_are_passed_over(tmp_path):
    path = tmp_path / "a.jsonl"
    known = b'["failure",1.0,"gone"]\n'
    path.write_bytes(header_line(0.0, "x", "") + b'["sound",0.5,{"a":1}]\n' + known + b'["line",2.0,"u')
    assert list(entries(path)) == [OutageEntry(1.0, "gone")]
    path.write_bytes(header_line(0.0, "x", "") + known + b'["line",2.0,"u\n' + known)
    with pytest.raises(BackendError, match=r"Line 3 of .* is damaged"):
        list(entries(path))


async def test_a_damaged_row_ends_the_replay_with_a_sentence(tmp_path):
    path = tmp_path / "a.jsonl"
    row = msgspec.json.encode(ChangesEntry(0.0, True, [("PodGone", {"uid": 7}), ("Unheard", {})]))
    path.write_bytes(header_line(0.0, "x", "") + row + b"\n")
    player = Player(path, 1.0)
    await player.run()
    assert "Expected `str`, got `int`" in player.end


async def test_everything_that_changes_or_looks_further_is_refused(tmp_path):
    path, clock = tmp_path / "a.jsonl", Clock()
    backend = await recorded(path, clock)
    snapshot = await backend.snapshot()
    pod, run = learner(snapshot), next(iter(snapshot.runs.values()))
    replay = ReplayBackend(path)
    with pytest.raises(NotFoundError, match="no log of a previous process"):
        await anext(replay.logs(pod, LogQuery(previous=True)))
    calls = (
        replay.check(LaunchPlan(())),
        anext(replay.launch(LaunchPlan(()))),
        replay.spec(run.name),
        replay.scale(ScalePlan(run.name, "w", 1, (), ())),
        replay.kill((pod,)),
        anext(replay.destroy(run)),
        replay.exec(pod, ["sh"]),
        replay.capture(pod, ["sh"]),
    )
    for call in calls:
        with pytest.raises(RefusedError, match="this is a recording"):
            await call
    assert set(await replay.denied()) == {"launch", "kill", "scale", "destroy", "exec", "forward"}
    assert (await replay.leaks()).leaks == ()
    assert "of the backend demo" in (await replay.doctor())[0].sentence
    assert replay.acts_on() == "on the recording a.jsonl"
    await replay.close()
