"""Records attached to runs on a cluster: other users get them, bounded, and only for their own run."""

from __future__ import annotations

import base64
import gzip
import json
import random

import pytest
from msgspec.structs import replace

from l2rtui.backends.base import RunPlace
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.cli.main import main
from l2rtui.config import Settings
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.services import launcher
from l2rtui.services.history import completion, sharing
from l2rtui.services.history import place as travelling
from l2rtui.services.history.store import HistoryStore
from l2rtui.services.spec.spec_file import LaunchRequest
from tests.fakes.kubernetes_objects import Failure, ObjectServer, serving

TOKEN = "abcDEF123456"
PLACE = RunPlace("r", "a" * 32, "ml")
ENTRY = HistoryEntry("r", "a" * 32, owner="ada", context="hers")


@pytest.fixture
async def server():
    async with serving(ObjectServer()) as running:
        node = {"metadata": {"name": "n1", "labels": {labels.GPUS: "2"}}, "spec": {}}
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8", "pods": "9"}}
        running.put({"kind": "Node", **node, "status": status})
        yield running


@pytest.fixture
async def backend(server, tmp_path, monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    config = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.base}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    made = KubernetesBackend(Settings(namespaces=("ml",), image="default:1"), str(path))
    yield made
    await made.close()


async def launch(backend):
    sets = (SetSpec("w", Role.WORKER, ("w",), replicas=2, restart=RestartPolicy.ALWAYS),)
    spec = RunSpec(Kind.JOB, "r", "r", sets, env=(("API_TOKEN", TOKEN),))
    prepared = await launcher.prepare(backend, LaunchRequest(spec))
    assert [step async for step in launcher.launch(backend, prepared) if step.error] == []
    return next(iter((await backend.snapshot()).runs.values()))


def only_record():
    with HistoryStore() as store:
        (entry,) = store.entries()
        return store.get(entry.run_id)


async def test_a_colleague_has_the_record_of_a_run_and_its_end(backend, server, user):
    run = await launch(backend)
    ours = only_record()
    travelling = server.get("ConfigMap", labels.run_object("r"))["binaryData"][labels.RECORD_KEY]
    assert TOKEN not in gzip.decompress(base64.b64decode(travelling)).decode()

    user("bob")
    assert await sharing.receive(backend) == 1
    theirs = only_record()
    assert theirs.launch == ours.launch
    assert (theirs.entry.owner, theirs.entry.context, theirs.entry.state) == (ours.entry.owner, "lab", "running")
    assert await sharing.receive(backend) == 0

    # The first user who sees the end records it for all.
    for (kind, _, _), item in server.objects.items():
        if kind == "Pod":
            item["status"] = {**item.get("status", {}), "phase": "Succeeded"}
    user("ada")
    assert await completion.complete_ended(backend) == 1
    user("bob")
    assert await sharing.receive(backend) == 1
    assert only_record().entry.state is RunOutcome.DONE

    # Data that a destroy removes are in both histories.
    user("ada")
    items = [item async for item in launcher.destroy(backend, run, grace_seconds=0)]
    assert items[-1].left == ()
    assert await backend.records.list() == {}
    user("bob")
    assert await sharing.receive(backend) == 0
    assert only_record().ending is not None


async def test_a_record_is_attached_to_its_own_launch_alone(backend, user):
    run = await launch(backend)
    other = RunPlace("r", "b" * 32, "ml")
    assert not await backend.records.put(other, b"x")
    assert not await backend.records.put(replace(other, run="gone"), b"x")
    own = RunPlace("r", run.uid, "ml")
    assert await backend.records.put(own, b"of somebody else")
    assert await backend.records.list() == {own: b"of somebody else"}
    user("bob")
    assert await sharing.receive(backend) == 0


async def test_a_launch_succeeds_where_records_may_not_be_written(backend, server, user):
    server.failures.append(Failure("PATCH", "ConfigMap", 403, "Forbidden", times=9))
    await launch(backend)
    assert only_record().entry.run == "r"
    assert await backend.records.list() == {}


def noise(count):
    rng = random.Random(0)
    return "".join(f"{rng.getrandbits(240):x}\n" for _ in range(count))


@pytest.mark.parametrize(("lines", "kept_diff", "kept_logs"), [(1, 1, 1), (4_000, 0, 1), (40_000, 0, 0)])
def test_a_record_is_bounded_and_says_what_is_missing(lines, kept_diff, kept_logs):
    tree = SourceState(diff=noise(min(lines, 4_000)))
    logs = (("w-0", (noise(lines if lines > 4_000 else 1),)),)
    record = HistoryRecord(ENTRY, LaunchFacts(source=tree), Ending(RunOutcome.DONE, 1.0, logs=logs))
    packed = travelling.encode(record)
    assert len(packed) <= travelling.MAX_RECORD_BYTES
    read = sharing.record_of(PLACE, packed)
    assert (bool(read.launch.source.diff), bool(read.ending.logs)) == (bool(kept_diff), bool(kept_logs))
    assert ("too long" in read.launch.source.problem) is not bool(kept_diff)
    assert ("too long" in read.ending.note) is not bool(kept_logs)


def test_a_record_that_never_fits_does_not_travel():
    assert travelling.encode(HistoryRecord(ENTRY, LaunchFacts(spec=noise(9_000)))) == b""


def test_what_is_no_record_of_the_run_is_ignored():
    good = travelling.encode(HistoryRecord(ENTRY))
    assert sharing.record_of(PLACE, good) == HistoryRecord(ENTRY)
    bomb = gzip.compress(b'{"entry": "' + b" " * (64 << 20))
    for place, packed in (
        (replace(PLACE, run_id="b" * 32), good),
        (PLACE, b"no gzip"),
        (PLACE, gzip.compress(b"[]")),
        (PLACE, bomb),
        (PLACE, good + b"x" * travelling.MAX_RECORD_BYTES),
    ):
        assert sharing.record_of(place, packed) is None


@pytest.mark.usefixtures("user")
def test_a_backend_without_such_records_lists_its_own_history(capsys):
    assert main(["history", "--backend", "demo"]) == 0
    assert "The history is empty" in capsys.readouterr().err
