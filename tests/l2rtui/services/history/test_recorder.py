"""History entries of launches and destroys, and that a failing history stops neither."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.history import RunOutcome
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import LaunchError
from l2rtui.services import launcher
from l2rtui.services.history import recorder
from l2rtui.services.history.launch_facts import hidden_fields, spec_of, spec_text
from l2rtui.services.history.store import HistoryStore, history_path
from l2rtui.services.spec.spec_file import LaunchRequest

TOKEN = "abcDEF123456"


class Recorded(FakeBackend):
    """In-memory cluster whose runs are recorded in the history."""

    name = "local"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    recorder.take_warnings()
    return tmp_path / "l2rtui"


def cluster(kind=Recorded):
    backend = kind(is_empty=True)
    backend.put_node(Node("n1", (Gpu("n1", 0, slots=4),), cpu_cores=8))
    return backend


def spec(**fields):
    sets = (SetSpec("learner", Role.LEARNER, ("true",)), SetSpec("w", Role.WORKER, ("true",), replicas=2))
    return RunSpec(Kind.LEARNER_WORKERS, "e", "e", sets, image="lab/rl@sha256:ab", **fields)


async def launch(backend, wish=None):
    prepared = await launcher.prepare(backend, wish or LaunchRequest(spec()), seeds=(4,))
    steps = [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)
    return steps


async def destroy(backend):
    run = next(iter((await backend.snapshot()).runs.values()))
    return [item async for item in launcher.destroy(backend, run, grace_seconds=0)][-1]


@asynccontextmanager
async def ticking(backend):
    async def clock():
        while True:
            backend.advance(1)
            await asyncio.sleep(0.001)

    task = asyncio.create_task(clock())
    yield
    task.cancel()


def only_record():
    with HistoryStore() as history:
        (entry,) = history.entries()
        return history.get(entry.run_id)


@pytest.mark.process
async def test_a_launch_is_recorded_as_it_was_resolved():
    backend = cluster()
    await launch(backend)
    record = only_record()
    run = next(iter((await backend.snapshot()).runs.values()))
    assert (record.entry.run, record.entry.run_id, record.entry.seed) == ("e-s4", run.uid, 4)
    assert (record.entry.experiment, record.entry.state) == ("e", RunOutcome.RUNNING)
    assert record.entry.image == "lab/rl@sha256:ab"
    assert spec_of(record.launch.spec) == await backend.spec("e-s4")
    assert dict(record.launch.placement)["e-s4-w-0"][0].startswith("n1/0.")
    assert {"l2rtui", "python"} <= dict(record.launch.versions).keys()
    assert Path(sys.argv[0]).name in record.launch.command
    assert record.ending is None


@pytest.mark.process
async def test_a_destroy_adds_the_end_its_logs_and_its_receipt():
    backend = cluster()
    await launch(backend)
    receipt = await destroy(backend)
    record = only_record()
    assert isinstance(receipt, Receipt)
    assert record.entry.state is RunOutcome.DESTROYED
    assert record.entry.ended >= record.entry.started
    assert record.ending.receipt == receipt.sentence
    assert [name for name, lines in record.ending.logs if lines] == ["e-s4-learner-0", "e-s4-w-0", "e-s4-w-1"]
    assert not any("\x1b" in line for _, lines in record.ending.logs for line in lines)


@pytest.mark.process
async def test_a_run_of_which_no_launch_is_known_is_recorded_at_its_end():
    backend = cluster()
    await launch(backend)
    history_path().unlink()
    await destroy(backend)
    record = only_record()
    assert (record.entry.run, record.entry.state, record.launch.spec) == ("e-s4", RunOutcome.DESTROYED, "{}")


@pytest.mark.process
async def test_a_launch_that_was_rolled_back_says_so():
    backend = cluster()
    backend.broken_pods = {"e-s4-w-1": "no such image"}
    async with ticking(backend):  # the roll-back waits for its pods to end
        with pytest.raises(LaunchError):
            await launch(backend)
    record = only_record()
    assert record.entry.state is RunOutcome.TAKEN_BACK
    assert "no such image" in record.ending.note


@pytest.mark.process
async def test_a_run_that_the_keeper_of_the_queue_starts_again_has_the_end_of_its_last_start():
    backend = cluster()
    backend.broken_pods = {"e-w-1": "no such image"}
    starts = [await launcher.prepare_runs(backend, [spec()], uids=["of-its-ticket"]) for _ in range(2)]
    async with ticking(backend):
        with pytest.raises(LaunchError):
            [step async for step in launcher.launch(backend, starts[0])]
    backend.broken_pods = {}
    [step async for step in launcher.launch(backend, starts[1])]
    assert (only_record().entry.state, only_record().ending) == (RunOutcome.RUNNING, None)
    await destroy(backend)
    assert only_record().entry.state is RunOutcome.DESTROYED


async def test_runs_of_the_demo_are_not_recorded():
    backend = cluster(FakeBackend)
    await launch(backend)
    await destroy(backend)
    assert not history_path().exists()


@pytest.mark.process
async def test_a_history_that_cannot_be_written_stops_nothing_and_warns_once(state):
    state.mkdir()
    (state / "history").write_text("a file where the folder should be")
    backend = cluster()
    assert len(await launch(backend)) == 4
    assert (await destroy(backend)).left == ()
    (warning,) = recorder.take_warnings()
    assert "history" in warning
    assert recorder.take_warnings() == []


def test_secrets_of_a_spec_are_hidden_and_named():
    program = "def train():\n    token = tokenizer()\n"
    sets = (
        SetSpec("w", Role.WORKER, ("train", f"--password={TOKEN}"), env=(("API_TOKEN", TOKEN), ("LEVEL", "3"))),
    )
    secret = replace(spec(env=(("X", f"https://me:{TOKEN}@host/"),)), sets=sets)
    text = spec_text(secret)
    assert TOKEN not in text
    assert "LEVEL" in text
    assert list(hidden_fields(text)) == ["env.0.1", "sets.0.command.1", "sets.0.env.0.1"]
    assert list(hidden_fields(spec_text(spec()))) == []
    by_name = replace(spec(), sets=(SetSpec("w", Role.WORKER, (program,), pod=PodSettings(secrets=("aws",))),))
    assert spec_of(spec_text(by_name)) == by_name
    assert spec_of("[]") is None
    assert msgspec.json.decode(text)["name"] == "e"
