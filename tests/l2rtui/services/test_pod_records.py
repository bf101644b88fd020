"""Records of pods: read by the kind of the record, and only their form is trusted."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from l2rtui.domain.log import LogLine
from l2rtui.domain.metrics import PodMetrics
from l2rtui.services import pod_records
from l2rtui.services.logs import ReadingTurns
from l2rtui.services.pod_records import after, read


def line(kind: str, **fields: object) -> str:
    return json.dumps({"l2r": kind, "time": 1.0, **fields}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "step", "rank"),
    [
        (line("step", name="train", state="running", exit_code=None), "train running", None),
        (line("elastic", state="training", nodes=2, rank=4, world_size=8, round=1), "training", 4),
        (line("elastic", rank=5, world_size=8, epoch=3, step=120, loss=0.1), "epoch 3", 5),
        (line("ps", role="worker", index=1, global_step=12000), "step 12,000", None),
        (line("fetch", source="s3://x", state="running", bytes=30, total_bytes=120), "fetch running 25%", None),
        (line("fetch", source="s3://x", state="done", bytes=30, total_bytes=None), "fetch done", None),
        (line("worker", env_steps_per_second=3.0), "", None),
        (line("elastic", rank="x", world_size=True, state=3, epoch=[]), "", None),
    ],
)
def test_each_kind_says_what_it_is_at(text, step, rank):
    news = read(text)
    assert (news.step, news.rank) == (step, rank)
    assert (news.round == 1) is ('"round":1' in text)
    assert news.is_worth_following is bool(step or rank is not None)


def test_a_worker_tells_of_its_simulators():
    text = line(
        "worker", simulator_state="lost", simulator_restarts=2, simulator_fps=99.5, simulator_error="it hangs"
    )
    news = read(text)
    assert (news.simulator, news.simulator_restarts, news.simulator_fps, news.simulator_error) == (
        "lost",
        2,
        99.5,
        "it hangs",
    )


def test_the_record_that_counts_a_restart_tells_when_it_was():
    first, second, third = (
        read(line("worker", time=float(10 * turn), simulator_restarts=restarts))
        for turn, restarts in ((1, 1), (2, 2), (3, 2))
    )
    assert first.simulator_restarted == 0.0
    before = after(first, second)
    assert (before.simulator_restarted, after(before, third).simulator_restarted) == (20.0, 20.0)


def test_a_worker_tells_of_its_gpu_where_its_driver_does():
    news = read(line("worker", gpu_percent=45.0, gpu_memory_bytes=3e9))
    assert (news.gpu_percent, news.gpu_memory_bytes, news.is_worth_following) == (45.0, 3e9, True)
    odd = read(line("worker", gpu_percent="all", gpu_memory_bytes=True))
    assert (odd.gpu_percent, odd.gpu_memory_bytes, odd.is_worth_following) == (None, None, False)


@pytest.mark.parametrize("text", ["", "INFO x", '{"l2r":"learner"}', '{"l2r":3}', '{"l2r":"step"', "[]"])
def test_other_lines_are_no_news(text):
    assert read(text) is None


def test_the_first_rank_of_a_pod_stands_for_all_of_its_processes():
    first = PodMetrics("elastic", rank=4, world_size=8)
    assert after(first, PodMetrics("elastic", rank=5, world_size=8)).rank == 4
    assert after(first, PodMetrics("elastic", rank=5, world_size=6)).rank == 5, "another round"
    assert after(None, first) is first


def test_the_interval_of_a_writer_is_the_longest_of_the_latest():
    times = (1.0, 11.0, 71.0, 81.0, 91.0)
    record, intervals = None, []
    for moment in times:
        record = after(record, PodMetrics("evaluator", time=moment))
        intervals.append(record.interval_seconds)
    assert intervals == [0.0, 10.0, 60.0, 48.0, pytest.approx(38.4)]
    assert after(record, PodMetrics("worker", time=101.0)).interval_seconds == 0.0, "another writer"
    assert after(record, PodMetrics("evaluator", time=90.0)).interval_seconds == pytest.approx(30.72)


class Logs:
    """A backend that has one log."""

    def __init__(self, *lines: LogLine) -> None:
        self.lines = lines
        self.given = 0

    async def logs(self, *_):
        for one in self.lines:
            self.given += 1
            yield one


def said(text: str, *, is_seam: bool = False) -> LogLine:
    return LogLine(1.0, "p", text, is_seam=is_seam)


async def found(*lines: LogLine, is_watched: bool = False) -> tuple[list[str], int]:
    logs = Logs(*lines)
    records = pod_records.follow(logs, SimpleNamespace(name="p"), ReadingTurns(), is_watched=is_watched)
    return [one.step if isinstance(one, PodMetrics) else str(one.value) async for one in records], logs.given


async def test_of_what_was_written_the_newest_counts_and_then_all():
    run = [line("step", name=name, state="running") for name in ("a", "b", "c")]
    lines = [said(run[0]), said(run[1]), said("", is_seam=True), said("INFO"), said(run[2])]
    assert (await found(*lines))[0] == ["b running", "c running", "ended"]


async def test_a_pod_that_is_over_tells_its_last():
    assert (await found(said(line("step", name="a", state="done"))))[0] == ["a done", "ended"]


async def test_a_pod_without_anything_to_say_is_not_listened_to():
    many = [said("INFO")] * (pod_records.SILENT_LINES + 100)
    assert await found(said("", is_seam=True), *many) == (["read"], pod_records.SILENT_LINES + 2)
    quiet = line("worker", env_steps_per_second=3.0)
    assert (await found(said("", is_seam=True), *[said(quiet)] * 5))[1] == 2


async def test_a_pod_that_is_watched_is_listened_to_although_no_screen_shows_its_values():
    quiet = line("worker", env_steps_per_second=3.0)
    lines = [said("", is_seam=True), *[said(quiet)] * 5]
    assert await found(*lines, is_watched=True) == (["read", *[""] * 5, "ended"], 6)
