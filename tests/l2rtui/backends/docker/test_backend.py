"""Launch, scale, kill and destroy with a fake Engine: objects created, refusals, roll-backs, and verified
deletion.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from l2rtui.backends.common.liveness import LivenessTiming
from l2rtui.backends.docker import containers, views
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.placement import place
from l2rtui.domain.plan import ScalePlan, plan_pod
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.domain.status import Phase
from l2rtui.errors import BackendError, NotFoundError, RefusedError, UsageError
from runtime.base.docker_client import DockerEndpoint
from tests.l2rtui.backends.docker.conftest import launched, plan_of, run_spec


async def receipt_of(backend, run):
    *_, receipt = [item async for item in backend.destroy(run, grace_seconds=0.0)]
    assert isinstance(receipt, Receipt)
    return receipt


async def test_a_launch_creates_everything_before_it_starts_the_first(backend, fake):
    plan = await launched(backend)
    (network,) = fake.networks.values()
    assert network["Name"] == "l2rtui-run"
    assert network["Labels"][views.RUN_ID] == plan.runs[0].uid
    calls = [f"{method} {path.rpartition('/')[2]}" for method, path in fake.requests if method == "POST"]
    assert calls == ["POST create"] * 4 + ["POST start"] * 3
    snapshot = await backend.snapshot()
    assert [(pod.name, pod.phase, pod.owner) for pod in snapshot.pods.values()] == [
        (name, Phase.RUNNING, "me") for name in ("run-learner-0", "run-w-0", "run-w-1")
    ]
    assert {pod.ip for pod in snapshot.pods.values()} == {"127.0.0.1"}
    assert await backend.spec("run") == run_spec()


async def test_one_token_for_all_containers_in_a_file_of_their_user(backend, fake):
    await launched(backend)
    tokens = set()
    for container, files in fake.files.items():
        member, token = files["/run/l2r/token"]
        tokens.add(token)
        assert (member.mode, member.uid) == (0o400, 1000)
        assert token.decode() not in str(fake.containers[container])
    assert len(tokens) == 1


async def test_a_volume_of_root_is_handed_to_the_container_s_user_and_another_is_not(backend, fake):
    mounts = (
        Mount("/new", claim="new"),
        Mount("/shared", host_path="/srv"),
        Mount("/kept", claim="kept", read_only=True),
    )
    spec = run_spec()
    learner = replace(spec.sets[0], pod=PodSettings(mounts=mounts))
    await launched(backend, replace(spec, sets=(learner, *spec.sets[1:])))
    files = fake.files[fake.by_name("run-learner-0")["Id"]]
    assert (files["/new"][0].uid, files["/new"][0].mode) == (1000, 0o770)
    assert not {"/shared", "/kept"} & files.keys()


async def test_a_launch_that_fails_half_way_leaves_nothing(backend, fake):
    plan = await plan_of(backend, run_spec())
    fake.fail("POST", "/containers/create", 500, "no space left on device")
    with pytest.raises(BackendError, match="no space left"):
        [done async for done in backend.launch(plan)]
    assert (fake.containers, fake.networks) == ({}, {})


async def test_a_foreign_container_of_the_same_name_is_refused_and_nothing_is_left(backend, fake):
    fake.create("run-w-1", {"Image": "img:1", "HostConfig": {"NetworkMode": "bridge"}})
    plan = await plan_of(backend, run_spec())
    with pytest.raises(RefusedError, match="A container named run-w-1 exists"):
        [done async for done in backend.launch(plan)]
    assert [body["Name"] for body in fake.containers.values()] == ["/run-w-1"]
    assert fake.networks == {}


async def test_an_image_that_is_not_there_names_the_command_that_brings_it(backend, fake):
    plan = await plan_of(backend, run_spec(image="none:1"))
    with pytest.raises(BackendError, match="docker pull none:1"):
        [done async for done in backend.launch(plan)]
    assert fake.networks == {}


async def test_a_container_that_does_not_start_is_told_in_its_step(backend, fake):
    plan = await plan_of(backend, run_spec())
    fake.fail("POST", "/start", 500, "exec: learn: not found")
    errors = [done.error async for done in backend.launch(plan)]
    assert "not found" in errors[1]
    assert errors[2:] == ["", ""]


async def test_nobody_else_can_hold_the_lock_of_launches(backend, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "_LOCK_SECONDS", 0.0)
    # Every user can open the folder of the Engine's socket, and lock it.
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        await launched(backend)
    finally:
        os.close(descriptor)
    lock = tmp_path / "state" / "l2rtui" / "docker.lock"
    assert lock.stat().st_mode & 0o077 == 0
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BackendError, match="Another l2rtui has held"):
            await launched(backend, run_spec("other"))


async def test_of_two_users_that_launch_at_once_one_gets_the_slot(backend, fake, monkeypatch):
    plan = await plan_of(backend, run_spec("late"))
    before = await backend.snapshot()
    await launched(backend)

    async def outdated():
        return before

    # As seen by another user who looked before the first launch had created anything.
    monkeypatch.setattr(backend, "snapshot", outdated)
    with pytest.raises(RefusedError, match=r"was taken by run-learner-0 at the same time, so late-learner-0"):
        [done async for done in backend.launch(plan)]
    assert not [body for body in fake.containers.values() if body["Name"].startswith("/late")]
    assert len(fake.networks) == 1


async def test_a_name_is_taken_once(backend):
    plan = await plan_of(backend, run_spec())
    other = await plan_of(backend, run_spec("run"))
    await launched(backend)
    for refused in (plan, other):
        with pytest.raises(RefusedError):
            [done async for done in backend.launch(refused)]


async def test_a_kill_replaces_the_container_with_the_same_plan_and_token(backend, fake):
    await launched(backend)
    pod = (await backend.snapshot()).select("run/w/0")[0]
    token = fake.files[pod.uid]["/run/l2r/token"][1]
    await backend.kill([pod], grace_seconds=0.5)
    assert ("POST", f"/containers/{pod.uid}/stop") in fake.requests
    (after,) = (await backend.snapshot()).select("run/w/0")
    assert (after.name, after.slots, after.ready) == (pod.name, pod.slots, True)
    assert after.uid != pod.uid
    assert fake.files[after.uid]["/run/l2r/token"][1] == token
    with pytest.raises(NotFoundError):
        await backend.kill([pod])


async def test_a_set_is_scaled_down_and_up(backend, fake, monkeypatch):
    await launched(backend)
    await backend.scale(ScalePlan("run", "w", 1, (), ("run-w-1",)))
    spec = await backend.spec("run")
    assert spec.sets[1].replicas == 1
    snapshot = await backend.snapshot()
    free = place([run_spec("other", 1)], snapshot.ledger).seats[-1]
    seat = type(free)("run", "w", 1, free.slots)
    await backend.scale(ScalePlan("run", "w", 2, (plan_pod(spec, spec.sets[1], seat, snapshot.nodes),), ()))
    assert (await backend.spec("run")).sets[1].replicas == 2
    # A slot taken by another user after this snapshot: nothing of the scale is left.
    monkeypatch.setattr(backend, "snapshot", lambda: asyncio.sleep(0, snapshot))
    late = plan_pod(spec, spec.sets[1], type(free)("run", "w", 2, free.slots), snapshot.nodes)
    with pytest.raises(RefusedError, match="was taken by run-w-1 at the same time"):
        await backend.scale(ScalePlan("run", "w", 3, (late,), ()))
    assert (await backend.spec("run")).sets[1].replicas == 2
    assert len({files["/run/l2r/token"][1] for files in fake.files.values()}) == 1


async def test_the_receipt_counts_what_there_was_and_proves_that_it_is_gone(backend, fake):
    await launched(backend)
    (run,) = (await backend.snapshot()).runs.values()
    receipt = await receipt_of(backend, run)
    assert (receipt.objects, receipt.left) == (4, ())
    assert (fake.containers, fake.networks) == ({}, {})
    with pytest.raises(NotFoundError):
        await receipt_of(backend, run)


async def test_the_receipt_names_what_the_engine_does_not_remove(backend, fake):
    plan = await launched(backend)
    (run,) = (await backend.snapshot()).runs.values()
    stuck = fake.by_name("run-w-1")["Id"]
    fake.fail("DELETE", f"/containers/{stuck}", 500, "device or resource busy", times=100)
    receipt = await receipt_of(backend, run)
    assert [(item.kind, item.name) for item in receipt.left] == [
        ("Pod", "run-w-1"), ("Network", f"l2rtui-{plan.runs[0].spec.name}"),
    ]  # fmt: skip
    assert all("device or resource busy" in item.reason for item in receipt.left)
    assert list(fake.containers) == [stuck]


async def test_a_network_that_is_let_go_of_late_is_asked_for_again(backend, fake):
    await launched(backend)
    (run,) = (await backend.snapshot()).runs.values()
    fake.fail("DELETE", "/networks/", 403, "network has active endpoints")
    # If nothing disappears, it stops and reports the remaining objects; the next destroy finishes the work.
    receipt = await receipt_of(backend, run)
    assert [item.kind for item in receipt.left] == ["Network"]
    assert (await receipt_of(backend, run)).left == ()


async def test_a_container_without_its_run_is_a_leak(backend, fake):
    await launched(backend)
    assert (await backend.leaks()).leaks == ()
    fake.networks.clear()
    assert {(leak.run, leak.name) for leak in (await backend.leaks()).leaks} == {
        ("run", name) for name in ("run-learner-0", "run-w-0", "run-w-1")
    }


async def test_the_watch_follows_events(backend, fake):
    await launched(backend)
    snapshot = EMPTY_SNAPSHOT
    async with asyncio.timeout(30), aclosing(backend.watch()) as batches:
        async for changes in batches:
            snapshot = apply(snapshot, changes)
            if snapshot.select("run/w/0")[0].exit_code == 3:
                break
            fake.end("run-w-0", 3)
            fake.event("die", "run-w-0", exitCode="3")


async def test_an_engine_that_hangs_is_reported_while_the_watch_waits_for_it(fake):
    timing = LivenessTiming(quiet=0.1, answer=0.1, silent=0.3, again=0.05)
    backend = DockerBackend(Settings(), endpoint=DockerEndpoint(fake.url), liveness=timing)
    try:
        async with asyncio.timeout(30), aclosing(backend.watch()) as batches:
            before = snapshot = apply(EMPTY_SNAPSHOT, await anext(batches))
            assert snapshot.silent_since is None
            began = time.time()
            fake.running.clear()
            while snapshot.silent_since is None:
                snapshot = apply(snapshot, await anext(batches))
            assert began - 10 < snapshot.silent_since <= time.time()
            assert snapshot.nodes.keys() == before.nodes.keys()
            fake.running.set()
            while snapshot.silent_since is not None:
                snapshot = apply(snapshot, await anext(batches))
    finally:
        await backend.close()


async def test_foreign_containers_and_broken_records_do_not_hide_the_rest(backend, fake):
    await launched(backend)
    fake.create("other", {"Image": "img:1", "HostConfig": {"NetworkMode": "bridge"}})
    fake.by_name("run-w-0")["Config"]["Labels"][views.POD] = "{"
    next(iter(fake.networks.values()))["Labels"][views.RECORD] = "{"
    snapshot = await backend.snapshot()
    assert {pod.name for pod in snapshot.pods.values()} == {"run-learner-0", "run-w-1"}
    assert snapshot.problems == ("The record of the container run-w-0 cannot be read",)
    (run,) = snapshot.runs.values()
    assert run.reason == "Corrupt"


async def test_no_engine_is_a_sentence(tmp_path):
    backend = DockerBackend(Settings(), endpoint=DockerEndpoint(f"unix://{tmp_path}/none.sock"))
    with pytest.raises(BackendError, match=r"none\.sock cannot be reached: No such file or directory"):
        await backend.snapshot()
    await backend.close()


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"DOCKER_HOST": "tcp://other:2376"}, "DOCKER_HOST is tcp://other:2376"),
        ({"DOCKER_HOST": "ssh://me@other"}, "an Engine of this machine"),
    ],
)
def test_an_engine_elsewhere_is_refused(monkeypatch, environ, sentence):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=sentence):
        DockerBackend(Settings())


async def test_a_container_that_fails_again_and_again_is_shown_with_its_last_words(backend, fake):
    await launched(backend)
    fake.write("run-w-0", "TypeError: no wheels\n")
    fake.write("run-w-0", '{"l2r":"worker","time":1}\n')
    fake.by_name("run-w-0")["RestartCount"] = 1
    fake.end("run-w-0", 1, Status="restarting")
    (pod,) = [pod for pod in (await backend.snapshot()).pods.values() if pod.name == "run-w-0"]
    assert (pod.reason, pod.exit_code, pod.message) == ("CrashLoopBackOff", 1, "TypeError: no wheels")
    fake.restart("run-w-0")
    (pod,) = [pod for pod in (await backend.snapshot()).pods.values() if pod.name == "run-w-0"]
    assert pod.status.sentence == "running, 2 restarts, last ended with exit 1: TypeError: no wheels"


async def test_the_last_words_are_found_by_who_first_looks_when_the_next_process_runs(backend, fake):
    await launched(backend)
    fake.write("run-w-0", "TypeError: no wheels\n")
    fake.end("run-w-0", 1, Status="restarting")
    fake.restart("run-w-0")
    fake.write("run-w-0", "waiting for the learner\n")
    (pod,) = [pod for pod in (await backend.snapshot()).pods.values() if pod.name == "run-w-0"]
    assert pod.status.sentence == "running, 1 restart: TypeError: no wheels"
