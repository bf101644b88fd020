"""Earlier looks at idle GPUs, and GPU-hours of the history."""

from __future__ import annotations

import pytest

from l2rtui.config import state_dir
from l2rtui.domain.history import HistoryEntry, HistoryRecord, LaunchFacts
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import CPU, Gpu, GpuUse, Node
from l2rtui.domain.owners import IdleTime
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import Phase
from l2rtui.services import owners
from l2rtui.services.history.store import HistoryStore
from l2rtui.services.owners import DAYS, gpu_hours

NOW = 10_000_000.0
NODE = Node("n", (Gpu("n", 0, slots=4),), cpu=Gpu("n", CPU, "", "CPU", is_cpu=True), gpu_use=(GpuUse(0, 1.0),))
POD = PodView("p", "p", "n", "ada", "r", devices=(DeviceUsage(0, 0),), phase=Phase.RUNNING)
SNAPSHOT = ClusterSnapshot({"n": NODE}, {"p": POD}, {"r": RunView("r", "r", "r", "ada")})


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def look(now, place="lab", snapshot=SNAPSHOT):
    idle = owners.idle_gpus(place, now)
    idle.take(snapshot, now)
    owners.remember(place, idle, now)
    return dict(idle.long_idle(now, 0.0))


def test_looks_that_follow_each_other_make_a_span_and_a_long_gap_ends_it():
    assert look(NOW) == {("n", 0): IdleTime(0.0, is_least=True)}
    assert look(NOW + 600.0) == {("n", 0): IdleTime(600.0, is_least=True)}
    assert look(NOW + 600.0, "elsewhere") == {("n", 0): IdleTime(0.0, is_least=True)}
    assert look(NOW + 1200.0) == {("n", 0): IdleTime(1200.0, is_least=True)}
    assert look(NOW + 1200.0 + owners.MAX_GAP_SECONDS + 1.0) == {("n", 0): IdleTime(0.0, is_least=True)}
    assert look(NOW) == {("n", 0): IdleTime(0.0, is_least=True)}  # a clock that was set back


@pytest.mark.parametrize("data", [b"{", b'{"lab": 3}', b"\xff", b'{"lab": {"time": 1e999, "spans": []}}'])
def test_a_file_that_cannot_be_read_is_as_good_as_none(data):
    state_dir().mkdir(parents=True)
    (state_dir() / "gpu-idle.json").write_bytes(data)
    assert look(NOW) == {("n", 0): IdleTime(0.0, is_least=True)}
    assert look(NOW + 60.0) == {("n", 0): IdleTime(60.0, is_least=True)}


def test_a_folder_that_cannot_be_written_is_no_error():
    state_dir().parent.mkdir(parents=True, exist_ok=True)
    state_dir().write_text("")  # a file where the folder should be
    assert look(NOW) == {("n", 0): IdleTime(0.0, is_least=True)}


def record(run, owner, hours, *slots, ended=True, days=1.0, backend="local"):
    started = NOW - days * 86_400.0
    end = started + hours * 3600.0 if ended else None
    entry = HistoryEntry(run, f"{run:0>32}", owner=owner, backend=backend, started=started, ended=end)
    return HistoryRecord(entry, LaunchFacts(placement=(("pod", slots),)))


def test_gpu_hours_are_those_of_the_gpus_of_recorded_runs():
    assert gpu_hours(SNAPSHOT, "local", NOW) == {}
    records = [
        record("a", "ada", 2.0, "n/0.0", "n/0.1", "n/cpu.0", "n/1.0"),  # two GPUs
        record("b", "ada", 1.0, "n/0.0", "no slot"),
        record("c", "bob", 3.0, "n/cpu.0"),
        record("r", "eve", 0.0, "n/0.0", ended=False),  # it exists: until now
        record("d", "eve", 0.0, "n/0.0", ended=False),  # its end is unknown
        record("e", "ada", 5.0, "n/0.0", days=DAYS + 1.0),
        record("f", "ada", 5.0, "n/0.0", backend="docker"),
    ]
    with HistoryStore() as history:
        history.put(records)
    assert gpu_hours(SNAPSHOT, "local", NOW) == pytest.approx({"ada": 5.0, "bob": 0.0, "eve": 24.0})
