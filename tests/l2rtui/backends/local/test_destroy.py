"""Every way to destroy ends with a receipt that an independent look at the machine confirms."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import zlib

import psutil
import pytest

from l2rtui.backends.local import process_scan
from l2rtui.backends.local import state_files as files
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.backends.local.state_files import RunRecord, RunStatus
from l2rtui.domain.receipt import DestroyProgress, Leftover, Receipt
from l2rtui.domain.workload import RestartPolicy
from l2rtui.errors import NotFoundError, RefusedError
from runtime.base import cgroups
from tests.fakes.docker_engine import FakeDockerEngine
from tests.fakes.nvml import FakeGpu, FakeNvml


def assert_nothing_left(lab, receipt: Receipt) -> None:
    assert receipt.left == ()
    assert lab.processes() == []
    assert list((lab.state / "runs").iterdir()) == []


async def test_a_run_is_destroyed_and_counted(lab):
    await lab.launch(lab.set("sleep", "600", replicas=3, grace_seconds=60.0))
    run = (await lab.backend.snapshot()).run_named("run")
    items = [item async for item in lab.backend.destroy(run)]
    assert items[0] == DestroyProgress((("Pod", 3), ("Run", 1)))
    receipt = items[-1]
    # Record, supervisor, three pods; and the folder of sockets, if paths are short enough for one.
    assert receipt.objects in (5, 6)
    assert dict(receipt.counted).items() >= {"run": 1, "supervisor": 1, "pod": 3}.items()
    assert receipt.not_seen.startswith("what a daemon of this machine started for it")
    assert receipt.results_location == ""
    assert receipt.seconds < 20, "nobody waits for the grace"
    assert receipt.sentence.startswith("nothing left of run")
    assert_nothing_left(lab, receipt)
    with pytest.raises(NotFoundError):
        [item async for item in lab.backend.destroy(run)]


async def test_deaf_processes_forks_and_escapees_go_too(lab):
    await lab.launch(lab.set("deaf", "fork", "escape", "say", "up", "sleep", "600", grace_seconds=0.2))
    await lab.until_line("up")
    assert_nothing_left(lab, await lab.destroy())


def sleepers(mark):
    """Processes that sleep for exactly this long, whatever else they have changed."""
    return [
        item.pid
        for item in psutil.process_iter(["cmdline", "name"])
        if item.info["name"] == "sleep" and mark in (item.info["cmdline"] or ())
    ]


ESCAPES = {
    "its environment": "env -i sleep {0} & wait",
    "its session too": "env -i setsid sleep {0} & wait",
    "its parent": "(env -i setsid sleep {0} &) ; exec sleep 600",
    "its output": "(env -i setsid sleep {0} </dev/null >/dev/null 2>&1 &) ; exec sleep 600",
    "its hangup": "(env -i nohup setsid sleep {0} </dev/null >/dev/null 2>&1 &) ; exec sleep 600",
    "its name": "(exec -a sshd env -i setsid sleep {0} </dev/null >/dev/null 2>&1 &) ; exec sleep 600",
    "its descriptors": "(env -i setsid bash -c 'exec 0<&- 1>&- 2>&-; sleep {0}; true' &) ; exec sleep 600",
    "its folder": "(cd / && env -i setsid sleep {0} </dev/null >/dev/null 2>&1 &) ; exec sleep 600",
    "two parents": "(env -i setsid bash -c '(setsid sleep {0} >/dev/null 2>&1 &)' &) ; exec sleep 600",
    "with a child": "(env -i setsid bash -c 'sleep {0} & sleep {0}; wait' &) ; exec sleep 600",
}


def may_make_groups() -> bool:
    parent = cgroups.parent_of_runs()
    return parent is not None and os.access(parent, os.W_OK) and os.access(parent / "cgroup.procs", os.W_OK)


def pod_run_uid(lab):
    return files.read(lab.folder().record, RunRecord).uid


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a subreaper")


@linux
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
async def test_what_clears_its_environment_goes_too(lab, escape, request):
    mark = f"{4242 + zlib.crc32(request.node.name.encode()) % 10_000}.5"
    await lab.launch(lab.set(command=("bash", "-c", escape.format(mark))))
    await lab.until(lambda _: sleepers(mark))
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.2))
    assert sleepers(mark) == []


@linux
async def test_what_a_dead_supervisor_has_written_down_goes_too(lab):
    escape = "(env -i setsid sleep 4141.5 </dev/null >/dev/null 2>&1 &) ; exec sleep 600"
    await lab.launch(lab.set(command=("bash", "-c", escape)))
    await lab.until(lambda _: files.read(lab.folder().status, RunStatus).adopted)
    lab.kill_supervisor()
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.2))
    assert sleepers("4141.5") == []


@pytest.mark.skipif(not may_make_groups(), reason="no control group may be created here")
async def test_what_nobody_has_seen_go_astray_goes_too(lab):
    # Its parent ends while no supervisor lives: no process of the run has a tag or a record of it.
    escape = "env -i setsid sleep 4141.75 </dev/null >/dev/null 2>&1 & echo up; wait"
    await lab.launch(lab.set(command=("bash", "-c", escape)))
    await lab.until_line("up")
    pod = await lab.pod(lambda pod: pod.ready)
    group = cgroups.RunGroup.recorded(pod_run_uid(lab), lab.folder().cgroup.read_text())
    lab.kill_supervisor()
    os.kill(pod.pid, signal.SIGKILL)
    await lab.until(lambda _: len(sleepers("4141.75")) == 1)
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.2))
    assert sleepers("4141.75") == []
    assert not group.folder.exists()


@linux
async def test_restarts_do_not_pile_up_what_they_leave(lab):
    escape = "(env -i setsid sleep 4141.25 &) ; (env -i setsid sleep 4141.25 >/dev/null 2>&1 &) ; sleep 0.1; exit 1"
    await lab.launch(lab.set(command=("bash", "-c", escape)))
    await lab.pod(lambda pod: pod.restarts >= 3)
    assert len(sleepers("4141.25")) <= 2
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.2))
    assert sleepers("4141.25") == []


class Living(list):
    """Processes of a GPU as its driver lists them: only living ones."""

    def __iter__(self):
        return (pid for pid in super().__iter__() if psutil.pid_exists(pid))


async def test_processes_on_its_gpus_are_compared_with_those_of_the_run(lab):
    with subprocess.Popen(["sleep", "600"]) as earlier:
        gpu = FakeGpu(pids=[earlier.pid])
        lab.backend = LocalBackend(lab.settings, state=lab.state, nvml=FakeNvml(gpu, FakeGpu()))
        await asyncio.sleep(1.1)  # starts of processes are compared with an error of a second
        await lab.launch(lab.set("sleep", "600"))
        pod = await lab.pod(lambda pod: pod.ready)
        assert [usage.gpu for usage in pod.devices] == [0]
        # As a daemon starts it: no tag, no ancestor in the run.
        with subprocess.Popen(["sleep", "600"]) as stranger:
            gpu.pids = Living([earlier.pid, pod.pid, stranger.pid])
            receipt = await lab.destroy(grace_seconds=0.2)
            earlier.kill()
            stranger.kill()
    assert_nothing_left(lab, receipt)
    assert dict(receipt.counted)["process on a GPU"] == 1
    reason = f"started while the run held GPU 0; if it is the run's, `kill {stranger.pid}` ends it"
    assert receipt.possible == (Leftover("GPU process", f"{stranger.pid} sleep", reason),)
    assert f"; perhaps of run: GPU process {stranger.pid} sleep" in receipt.sentence


async def test_an_ended_process_that_its_driver_still_lists_is_left(lab, monkeypatch):
    monkeypatch.setattr("l2rtui.backends.local.outside._FREE_SECONDS", 0.2)
    gpu = FakeGpu()
    lab.backend = LocalBackend(lab.settings, state=lab.state, nvml=FakeNvml(gpu))
    await lab.launch(lab.set("sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready)
    gpu.pids = [pod.pid]
    receipt = await lab.destroy(grace_seconds=0.2)
    assert [(left.kind, left.name) for left in receipt.left] == [("GPU process", str(pod.pid))]
    gpu.pids = []
    assert_nothing_left(lab, await lab.destroy())


@pytest.fixture
def engine(lab, monkeypatch):
    made = FakeDockerEngine(str(lab.state.parent / "docker.sock"), is_live=True)
    monkeypatch.setenv("DOCKER_HOST", made.url)
    yield made
    made.close()


def start_container(engine, name, **config):
    engine.requests.append(("POST", name))  # its number is the container's id
    engine.create(name, {"Image": "img:1", "HostConfig": {"NetworkMode": "bridge"}, **config})
    engine.set_running(engine.container(name))


async def test_containers_that_started_meanwhile_are_ended_or_named(lab, engine):
    start_container(engine, "earlier")
    engine.container("earlier")["Created"] = "2026-01-01T00:00:00Z"
    await lab.launch(lab.set("sleep", "600"))
    uid = pod_run_uid(lab)
    tags = [f"L2R_LOCAL_RUN={lab.folder().path}", f"L2R_RUN_ID={uid}"]
    start_container(engine, "tagged", Env=tags)
    start_container(engine, "simulator", Labels={"l2rtui/run-id": uid})
    start_container(engine, "of-another", Labels={"l2rtui/run-id": "another"})
    start_container(engine, "of-a-kubelet", Labels={"io.kubernetes.pod.uid": "1"})
    start_container(engine, "unknown", Env=[tags[0]])
    start_container(engine, "gone-meanwhile")
    engine.fail("GET", f"/containers/{engine.container('gone-meanwhile')['Id']}/json", 404, "No such container")
    receipt = await lab.destroy()
    assert_nothing_left(lab, receipt)
    assert dict(receipt.counted)["container"] == 2
    reason = "started while the run existed; if it is the run's, `docker rm -f unknown` ends it"
    assert receipt.possible == (Leftover("Container", "unknown (img:1)", reason),)
    assert {body["Name"] for body in engine.containers.values()} == {
        "/earlier", "/of-another", "/of-a-kubelet", "/unknown", "/gone-meanwhile",
    }  # fmt: skip
    assert "Docker" not in receipt.not_seen


async def test_an_engine_that_answers_nonsense_stops_no_destroy(lab, monkeypatch):
    answers = [
        b"[" * 5000,
        b'[{"Id": 1}]',
        b"{}",
        b'[{"Created": "x"}]',
        b"",
        b"[7]",
        b'[{"Created": 9e9, "Id": []}]',
    ]

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = answers[-1]
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body) if body else b"HTTP/9 ?"
        )
        writer.close()

    path = lab.state.parent / "nonsense.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    async with await asyncio.start_unix_server(answer, path):
        while answers:
            await lab.launch(lab.set("sleep", "600"))
            receipt = await lab.destroy()
            assert_nothing_left(lab, receipt)
            assert ("Docker" in receipt.not_seen) == (answers.pop() != b"{}")


async def test_grace_is_given(lab):
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", grace_seconds=600.0))
    await lab.until_line("up")
    receipt = await lab.destroy(grace_seconds=0.3)
    assert receipt.seconds >= 0.3
    assert_nothing_left(lab, receipt)


async def test_a_second_destroy_hurries_the_first(lab):
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", grace_seconds=600.0))
    await lab.until_line("up")
    run = (await lab.backend.snapshot()).run_named("run")
    patient = asyncio.ensure_future(lab.destroy(grace_seconds=600.0))
    await lab.until(lambda snapshot: all(pod.is_terminating for pod in snapshot.pods_of("run")))
    patient.cancel()
    await asyncio.wait([patient])
    *_, receipt = [item async for item in lab.another().destroy(run, grace_seconds=0.0)]
    assert receipt.seconds < 20, "nobody waits for the grace"
    assert_nothing_left(lab, receipt)


async def test_a_full_disk_stops_no_destroy(lab, monkeypatch):
    await lab.launch(lab.set("sleep", "600", replicas=2))

    def full(*_args: object, **_wishes: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    assert_nothing_left(lab, await lab.destroy(grace_seconds=2.0))


async def test_results_are_kept_unless_purged(lab):
    for purge in (False, True):
        await lab.launch(lab.set("sleep", "600"))
        data = lab.folder().data
        (data / "checkpoints").mkdir()
        (data / "checkpoints" / "1.safetensors").write_bytes(b"weights")
        receipt = await lab.destroy(purge=purge)
        assert_nothing_left(lab, receipt)
        assert bool(receipt.results_location) is not purge
    (results,) = (lab.state / "results").iterdir()
    assert (results / "checkpoints" / "1.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_dead_or_stopped_supervisor_is_replaced(lab, number, monkeypatch):
    monkeypatch.setattr("l2rtui.backends.local.destroy._ANSWER_SECONDS", 0.2)
    await lab.launch(lab.set("escape", "say", "up", "sleep", "600", replicas=2))
    await lab.until_line("up", "run-w-1")
    lab.supervisor().send_signal(number)
    assert_nothing_left(lab, await lab.destroy())


async def test_a_supervisor_that_dies_half_way_is_replaced(lab):
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", replicas=2, grace_seconds=0.5))
    await lab.until_line("up")
    await lab.until_line("up", "run-w-1")
    run = (await lab.backend.snapshot()).run_named("run")
    killed = False
    receipt = None
    supervisor = lab.supervisor()
    async for item in lab.backend.destroy(run):
        if not killed:
            await lab.until(lambda snapshot: snapshot.run_named("run").is_terminating)
            supervisor.kill()
            killed = True
        receipt = item
    assert_nothing_left(lab, receipt)


async def test_without_any_supervisor_the_mark_is_enough(lab, monkeypatch):
    await lab.launch(lab.set("escape", "say", "up", "sleep", "600"))
    await lab.until_line("up")
    lab.kill_supervisor()
    monkeypatch.setattr("sys.executable", "/no/python")
    assert_nothing_left(lab, await lab.destroy())


async def test_destroys_at_once_all_end_with_a_true_receipt(lab):
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", grace_seconds=0.2, replicas=2))
    await lab.until_line("up")
    run = (await lab.backend.snapshot()).run_named("run")
    (lab.folder().data / "metrics.jsonl").write_text("{}")

    async def one():
        return [item async for item in lab.another().destroy(run)][-1]

    for receipt in await asyncio.gather(one(), one(), one()):
        assert_nothing_left(lab, receipt)
        assert receipt.results_location.endswith(f"results/run-{run.uid[:8]}")


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.15])
async def test_destroy_during_launch(lab, delay):
    plan = await lab.plan(lab.set("sleep", "600", replicas=4))

    async def launch():
        return [done async for done in lab.another().launch(plan)]

    task = asyncio.ensure_future(launch())
    await lab.until(lambda snapshot: snapshot.run_named("run"))
    await asyncio.sleep(delay)
    receipt = await lab.destroy()
    await task
    assert_nothing_left(lab, receipt)


async def test_a_finished_and_a_failing_run_are_destroyed(lab):
    await lab.launch(
        lab.set("exit", "0", name="a", restart=RestartPolicy.NEVER), lab.set("exit", "1", name="b"), name="run"
    )
    await lab.pod(lambda pod: pod.restarts > 2, "run-b-0")
    assert_nothing_left(lab, await lab.destroy())


async def test_what_cannot_be_removed_is_named(lab, monkeypatch):
    await lab.launch(lab.set("sleep", "600"))

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    receipt = await lab.destroy()
    assert [leftover.kind for leftover in receipt.left] == ["Folder"]
    assert "Permission denied" in receipt.sentence
    assert lab.processes() == []
    monkeypatch.undo()
    assert (await lab.backend.leaks()).leaks == ()  # it is new: a destroy may be in progress


async def test_what_does_not_die_is_named(lab, monkeypatch):
    await lab.launch(lab.set("sleep", "600"))
    monkeypatch.setattr("l2rtui.backends.local.supervision.supervised_process._KILL_SECONDS", 0.1)
    me = process_scan.identify(os.getpid())
    immortal = process_scan.TaggedProcess(me, "immortal", "", "run", "", "", "")
    monkeypatch.setattr("l2rtui.backends.local.supervision.supervised_process.kill_tagged", lambda _: [immortal])
    receipt = await lab.destroy()
    assert [(leftover.kind, leftover.name) for leftover in receipt.left] == [("Process", f"{me.pid} immortal")]
    assert lab.folder().path.exists()


async def test_a_run_that_is_being_destroyed_takes_no_orders(lab):
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", grace_seconds=30.0))
    await lab.until_line("up")
    run = (await lab.backend.snapshot()).run_named("run")
    stream = lab.backend.destroy(run)
    await anext(stream)
    await stream.aclose()  # the app exits; the supervisor continues
    snapshot = await lab.until(lambda snapshot: snapshot.run_named("run").is_terminating)
    with pytest.raises(RefusedError, match="is being destroyed"):
        await lab.backend.kill(snapshot.pods_of("run"))
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.0))


async def test_leaks_are_found_by_the_mark(lab):
    await lab.launch(lab.set("escape", "say", "up", "sleep", "600"))
    await lab.until_line("up")
    assert (await lab.backend.leaks()).leaks == ()
    lab.kill_supervisor()
    shutil.rmtree(lab.folder().path)
    (lab.state / "runs" / ".new-broken").mkdir()
    os.utime(lab.state / "runs" / ".new-broken")
    leaks = (await lab.backend.leaks()).leaks
    assert [(leak.run, leak.kind) for leak in leaks] == [("run", "Process"), ("run", "Process")]
    assert {int(leak.name.split()[0]) for leak in leaks} == {process.pid for process in lab.processes()}
    # A run of that name launched now does not inherit them.
    await lab.launch(lab.set("sleep", "600"))
    assert len((await lab.backend.leaks()).leaks) == 2
    assert_left = await lab.destroy()
    assert assert_left.left == ()
    assert len(lab.processes()) == 2


async def test_cycles_leave_nothing(lab):
    me = psutil.Process()
    others = me.children(recursive=True)  # of other tests of this process, which start theirs ahead
    await lab.launch(lab.set("sleep", "600"))
    await lab.destroy()
    files, threads = me.num_fds(), me.num_threads()
    for _ in range(20):
        await lab.launch(lab.set("sleep", "600", replicas=2))
        assert_nothing_left(lab, await lab.destroy())
    assert me.num_fds() == files
    assert me.num_threads() <= threads + 8  # the event loop's pool
    assert set(me.children(recursive=True)) <= set(others)
    assert sorted(path.name for path in lab.state.iterdir()) == ["lock", "runs"]
