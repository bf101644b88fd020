"""A day of ordinary runs in virtual time: no state of learning ever calls one of them faulty.

``recordings`` holds what ``l2rtui --record`` wrote of two runs on two shared cores: PPO on CartPole from its launch
to its end, and the first three minutes of SAC on the racing track, until other work came to those cores. The day is
made of these records at their own pace: the first is repeated as a new run, over and over; the second goes on from
its plateau with records of that plateau, their times and counters moved on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from l2rtui.backends.recorded.recording import ChangesEntry, Entry, LineEntry, entries, read_header
from l2rtui.domain.change import apply
from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.services import pod_records
from l2rtui.services.metrics import Series
from l2rtui.ui.state.learning_states import LearningStates, RecordAges
from runtime.base.metrics import parse_record

RECORDINGS = Path(__file__).parent / "recordings"
DAY_SECONDS = 86_400.0
LOOK_SECONDS = 5.0
PLATEAU_SECONDS = 140.0
"""Time in the recording of SAC from which on its return no longer grows and the logs of all its pods are read."""
TIMES = pytest.mark.parametrize(
    "seconds",
    [pytest.param(DAY_SECONDS / 24, id="hour"), pytest.param(DAY_SECONDS, id="day", marks=pytest.mark.slow)],
)
COUNTERS = ("env_steps", "updates", "policy_version")


class Onlooker:
    """What the app knows of one run, and its state of learning at each look."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._snapshot = EMPTY_SNAPSHOT
        self._series = Series("run")
        self._metrics: RunMetrics | None = None
        self._records: dict[str, PodMetrics] = {}
        self._ages = RecordAges()
        self._states = LearningStates(self._ages)
        self.seen: list[LearningState] = []

    def watch(self, story: Iterable[Entry]) -> None:
        """Take the entries at their times, and look every few seconds."""
        look = 0.0
        for entry in story:
            while look < entry.seconds:
                self._look(look)
                look += LOOK_SECONDS
            if isinstance(entry, ChangesEntry):
                self._snapshot = apply(EMPTY_SNAPSHOT if entry.is_first else self._snapshot, entry.changes)
            elif isinstance(entry, LineEntry):
                self._read(entry)
        self._look(look)

    def _read(self, entry: LineEntry) -> None:
        now = self._began + entry.seconds
        if (metrics := self._series.read_line(entry.text)) is not None:
            self._metrics = metrics
            self._ages.take(dict.fromkeys(self._snapshot.runs, metrics), now)
        elif (record := pod_records.read(entry.text)) is not None:
            self._records[entry.uid] = pod_records.after(self._records.get(entry.uid), record)
            self._ages.take({entry.uid: self._records[entry.uid]}, now)

    def _look(self, seconds: float) -> None:
        self._states.looked = frozenset(self._records)
        self._states.expire()
        for run in self._snapshot.runs.values():
            pods, now = self._snapshot.pods_of(run.name), self._began + seconds
            self.seen.append(self._states.of(run, pods, self._metrics, self._records, now))

    @property
    def faults(self) -> list[LearningState]:
        return [state for state in self.seen if state.is_fault]


def prolonged(story: list[Entry], until: float) -> Iterator[Entry]:
    """The entries, then the lines of the plateau again and again, as if the run had gone on."""
    yield from story
    end = story[-1].seconds
    plateau = [line for line in story if isinstance(line, LineEntry) and line.seconds > PLATEAU_SECONDS]
    records = [(line, record) for line in plateau if (record := parse_record(line.text)) is not None]
    span = end - PLATEAU_SECONDS
    grown = {
        (uid, name): max(values) - min(values)
        for uid in {line.uid for line, _ in records}
        for name in COUNTERS
        if (values := [record[name] for line, record in records if line.uid == uid and record.get(name)])
    }
    for turn in count(1):
        if turn * span + PLATEAU_SECONDS > until:
            return
        for line, record in records:
            later = dict(record, time=record["time"] + turn * span)
            for name in filter(record.get, COUNTERS):
                later[name] = record[name] + turn * grown[line.uid, name]
            text = msgspec.json.encode(later).decode()
            yield msgspec.structs.replace(line, seconds=line.seconds + turn * span, text=text)


def recording(name: str) -> tuple[float, list[Entry]]:
    path = RECORDINGS / f"{name}.jsonl"
    return read_header(path).time, list(entries(path))


@TIMES
def test_a_run_of_a_day_raises_no_false_alarm(seconds):
    began, story = recording("racing-sac")
    onlooker = Onlooker(began)
    onlooker.watch(prolonged(story, seconds))
    assert len(onlooker.seen) > 0.9 * seconds / LOOK_SECONDS
    assert onlooker.faults == []
    assert {state.state for state in onlooker.seen} == {Learning.STARTING, Learning.LIVE}
    assert {state.reason for state in onlooker.seen[round(PLATEAU_SECONDS / LOOK_SECONDS) :]} == {"learns"}


@TIMES
def test_a_day_of_runs_one_after_another_raises_no_false_alarm(seconds):
    began, story = recording("cartpole-ppo")
    looks = 0
    for phase in range(int(seconds / story[-1].seconds)):
        onlooker = Onlooker(began)
        # Looks fall on other moments of each run.
        onlooker.watch(msgspec.structs.replace(entry, seconds=entry.seconds + phase % 50 / 10) for entry in story)
        assert onlooker.faults == []
        states = [*dict.fromkeys(state.state for state in onlooker.seen)]
        assert states[-2:] == [Learning.LIVE, Learning.DONE]
        assert states[:-2] in ([], [Learning.STARTING])
        looks += len(onlooker.seen)
    assert looks > 0.9 * seconds / LOOK_SECONDS


@pytest.mark.parametrize(
    ("silent", "state", "reason"),
    [("learner", Learning.STALLED, "its learner has had no output"), ("w-1", Learning.LIVE, "sends nothing")],
)
def test_the_same_day_names_what_falls_silent_in_it(silent, state, reason):
    """The alarms of the tests above can ring: a pod that prints nothing from noon on is named."""
    began, story = recording("racing-sac")
    onlooker = Onlooker(began)
    day = prolonged(story, DAY_SECONDS / 24)
    half = DAY_SECONDS / 48
    onlooker.watch(
        entry
        for entry in day
        if not (isinstance(entry, LineEntry) and silent in entry.pod and entry.seconds > half)
    )
    assert onlooker.seen[-1].state is state
    assert reason in onlooker.seen[-1].reason
