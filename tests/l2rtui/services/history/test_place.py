"""Records in a folder or a bucket: available after the run is deleted, to other users, without delaying any
command.
"""

from __future__ import annotations

import asyncio
import time

import boto3
import msgspec
import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.queue_store import QueueStore
from l2rtui.config import Settings, user_name
from l2rtui.domain.history import HistoryEntry, HistoryRecord, RunOutcome
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import BackendError, ConfigError
from l2rtui.services import launcher
from l2rtui.services.history import place, recorder, sharing
from l2rtui.services.history.store import HistoryStore
from l2rtui.services.monitor import Monitor
from l2rtui.services.queue.keeper import EndRecords
from l2rtui.services.spec.spec_file import LaunchRequest
from tests.fakes.moto_server import moto_server


class Recorded(FakeBackend):
    """In-memory cluster whose runs are recorded in the history."""

    name = "local"


@pytest.fixture(params=["folder", "s3"])
def url(request, tmp_path, monkeypatch):
    if request.param == "folder":
        yield str(tmp_path / "shared")
        return
    with moto_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setattr(place, "PLACE_SECONDS", 20.0)  # boto3 is imported during this, on a machine under load
        client = boto3.client("s3")
        client.create_bucket(Bucket="lab")
        client.close()
        yield "s3://lab/history"


def cluster(url):
    backend = Recorded(is_empty=True, owner=user_name())
    backend.history_to = url
    backend.put_node(Node("n1", (Gpu("n1", 0, slots=4),), cpu_cores=8))
    return backend


async def launch(backend):
    sets = (SetSpec("learner", Role.LEARNER, ("true",)), SetSpec("w", Role.WORKER, ("true",)))
    spec = RunSpec(Kind.LEARNER_WORKERS, "e", "e", sets, image="lab/rl@sha256:ab")
    prepared = await launcher.prepare(backend, LaunchRequest(spec), seeds=(4,))
    assert [step async for step in launcher.launch(backend, prepared) if step.error] == []
    return next(iter((await backend.snapshot()).runs.values()))


def only_record():
    with HistoryStore() as store:
        (entry,) = store.entries()
        return store.get(entry.run_id)


async def destroy(backend, run):
    return [item async for item in launcher.destroy(backend, run, grace_seconds=0)][-1]


async def test_a_colleague_has_the_record_after_the_destroy(url, user):
    backend = cluster(url)
    run = await launch(backend)
    launched = only_record()
    user("bob")
    assert await sharing.receive(backend) == 1
    assert only_record().launch == launched.launch
    user("ada")
    receipt = await destroy(backend, run)
    user("bob")
    assert await sharing.receive(backend) == 1
    assert (only_record().entry.state, only_record().ending.receipt) == (RunOutcome.DESTROYED, receipt.sentence)
    user("carl")
    assert (await sharing.receive(backend), await sharing.receive(backend)) == (1, 0)
    assert only_record().launch == launched.launch
    assert recorder.take_warnings() == []


async def test_a_place_that_hangs_or_fails_delays_and_breaks_nothing(tmp_path, user, monkeypatch):
    monkeypatch.setattr(place, "PLACE_SECONDS", 0.3)
    shared = tmp_path / "shared"
    shared.mkdir()
    backend = cluster(str(shared))
    with monkeypatch.context() as patch:
        patch.setattr(place, "open_store", lambda _: time.sleep(30))
        began = time.monotonic()
        run = await launch(backend)
        assert time.monotonic() - began < 10
        assert any("did not answer within" in text for text in recorder.take_warnings())
        with pytest.raises(BackendError, match="did not answer"):
            await sharing.receive(backend)
    backend.history_to = str(tmp_path / "file" / "deep")
    (tmp_path / "file").write_text("")
    assert (await destroy(backend, run)).left == ()
    assert any("cannot be used" in text for text in recorder.take_warnings())
    assert only_record().ending is not None
    # Once it answers, the next look adds the missing records.
    monkeypatch.setattr(place, "PLACE_SECONDS", 20.0)
    backend.history_to = str(shared)
    await sharing.receive(backend)
    assert [path.name for path in shared.iterdir()] == [f"{run.uid}.ended.json.gz"]


async def test_what_is_no_record_of_its_name_is_left_out(tmp_path, user):
    backend = cluster(str(tmp_path))
    other = HistoryRecord(HistoryEntry("r", "b" * 32, owner="x"))
    await place.leave(backend, [other])
    (tmp_path / f"{'c' * 32}.ended.json.gz").write_bytes((tmp_path / f"{'b' * 32}.launched.json.gz").read_bytes())
    (tmp_path / f"{'d' * 32}.ended.json.gz").write_bytes(b"no record")
    (tmp_path / f"{'e' * 32}.ended.json.gz").write_bytes(b"x" * 200_000)
    assert await sharing.receive(backend) == 1
    assert replace(only_record().entry, context="") == other.entry
    assert only_record().entry.context != ""  # has the machine's name, so that it is not mistaken


async def until_forgotten(ends, store):
    async with asyncio.timeout(20):
        while store.read().unrecorded:
            await ends.look()
            await asyncio.sleep(0.01)


async def test_the_keeper_records_an_end_and_forgets_what_is_gone(tmp_path, user):
    shared = tmp_path / "shared"
    backend, store = cluster(str(shared)), QueueStore(tmp_path / "queue")
    monitor = Monitor(backend)
    watching = asyncio.create_task(monitor.run())
    ends = EndRecords(store, backend, monitor)
    run, never = await launch(backend), "f" * 32
    store.change(lambda file: msgspec.structs.replace(file, unrecorded=(run.uid, never)))
    await monitor.answered()
    async with asyncio.timeout(20):
        while run.uid in store.read().unrecorded and never in store.read().unrecorded:
            await ends.look()
            await asyncio.sleep(0.01)
    assert store.read().unrecorded == (run.uid,)  # it runs
    assert [path.name for path in shared.iterdir()] == [f"{run.uid}.launched.json.gz"]
    for pod in (await backend.snapshot()).pods_of(run.name):
        backend.put_pod(replace(pod, phase=Phase.SUCCEEDED, ready=False, exit_code=0))
    await until_forgotten(ends, store)
    assert [path.name for path in shared.iterdir()] == [f"{run.uid}.ended.json.gz"]
    assert only_record().entry.state is RunOutcome.DONE

    # The end of a destroyed run is already recorded.
    await destroy(backend, run)
    run = await launch(backend)
    store.change(lambda file: msgspec.structs.replace(file, unrecorded=(run.uid,)))
    assert store.read().needs_keeper
    await destroy(backend, run)
    await until_forgotten(ends, store)
    assert not store.read().needs_keeper
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("value", ["shared/folder", "s3://", "gs://lab/x", "s3://A B"])
def test_what_is_no_place_is_said(value):
    with pytest.raises(ConfigError, match="neither a bucket nor the full path"):
        Settings(history_to=value)
