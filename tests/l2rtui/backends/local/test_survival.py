"""Killed supervisors, apps that die, damaged files, reused pids."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from l2rtui.backends.local import run_store, state_files
from l2rtui.backends.local.state_files import ProcessIdentity, RunRecord, RunStatus
from l2rtui.config import user_name
from l2rtui.domain.log import LogQuery
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import RestartPolicy
from l2rtui.errors import BackendError
from tests.l2rtui.backends.local.conftest import wait_gone


async def test_pods_outlive_their_supervisor_and_the_next_one_takes_them_over(lab):
    await lab.launch(lab.set("count", "100000", "0.01"))
    await lab.until_line("count 5")
    before = await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    snapshot = await lab.until(lambda snapshot: snapshot.run_named("run").reason == "Unsupervised")
    assert snapshot.run_named("run").message
    assert snapshot.pods[before.uid].ready
    await lab.backend.adopt("run")
    snapshot = await lab.backend.snapshot()
    assert snapshot.run_named("run").reason == ""
    assert snapshot.pods[before.uid].pid == before.pid
    lines = [line for line in await lab.lines() if line.startswith("count")]
    last = int(lines[-1].split()[1])
    lines = await lab.until_line(f"count {last + 20}")
    assert lines == [f"count {number}" for number in range(len(lines))]


@pytest.mark.parametrize("killed_watchers", [(), (0,)], ids=["alone", "with a watcher"])
async def test_a_killed_supervisor_is_replaced_and_no_line_is_lost(lab, killed_watchers):
    """Without a reader the job would block after 1 MiB; it prints 6 MB, and nobody gives a command."""
    loud = "for n in {0..300}; do echo $n; head -c 20000 /dev/zero | tr '\\0' x; echo; done; sleep 600"
    await lab.launch(lab.set(command=("bash", "-c", loud)))
    before = await lab.pod(lambda pod: pod.ready)
    for _ in range(2):  # the new one has watchers, too
        killed, watchers = lab.supervisor(), sorted(lab.watchers(), key=lambda child: child.pid)
        words = " ".join(watchers[0].cmdline())
        assert "l2rtui" not in words, "pkill -f of the one must spare the others"
        assert not any(word in words for word in killed.cmdline()[3:])
        killed.suspend()  # both at once: it would replace a watcher
        for number in killed_watchers:
            watchers[number].kill()
        killed.kill()
        await lab.until(
            lambda snapshot, pid=killed.pid: (
                not snapshot.run_named("run").reason
                and state_files.read(lab.folder().status, RunStatus).supervisor.pid != pid
            )
        )
        for watcher in watchers:
            wait_gone(watcher)
    lines = await lab.until_line("300")
    assert [line for line in lines if line.isdigit()] == list(map(str, range(301)))
    assert (await lab.pod(lambda pod: pod.ready)).pid == before.pid
    assert (await lab.destroy(grace_seconds=0.2)).left == ()
    assert lab.processes() == []


async def test_a_killed_watcher_is_replaced_at_once(lab):
    await lab.launch(lab.set("sleep"))
    await lab.pod(lambda pod: pod.ready)
    earlier = lab.watchers()
    earlier[0].kill()
    wait_gone(earlier[0])
    deadline = time.monotonic() + 5.0  # a round of the supervisor takes 10 s
    while {child.pid for child in lab.supervisor().children()} <= {child.pid for child in earlier}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert earlier[0].pid not in {child.pid for child in lab.watchers()}


async def test_a_supervisor_that_is_stopped_is_reported_until_it_goes_on(lab):
    await lab.launch(lab.set("sleep"))
    await lab.launch(lab.set("sleep"), name="other")
    await lab.pod(lambda pod: pod.ready)
    supervisor = lab.supervisor()
    began = time.time()
    supervisor.suspend()
    snapshot = await lab.until(lambda snapshot: snapshot.run_named("run").reason == "Silent")
    run = snapshot.run_named("run")
    assert began - 1 <= run.silent_since <= time.time()
    assert f"kill -CONT {supervisor.pid}" in run.message
    assert any("the supervisor of run is stopped" in problem for problem in snapshot.problems)
    assert snapshot.run_named("other").silent_since is None
    later = await lab.backend.snapshot()
    assert later.run_named("run") == run, "its age counts from the first look"
    supervisor.resume()
    snapshot = await lab.until(lambda snapshot: not snapshot.run_named("run").reason)
    assert (snapshot.run_named("run").silent_since, snapshot.problems) == (None, ())


async def test_a_process_that_is_stopped_or_dead_is_shown_as_such_also_under_a_stopped_supervisor(lab):
    await lab.launch(lab.set("sleep"))
    pod = await lab.pod(lambda pod: pod.ready)
    os.kill(pod.pid, signal.SIGSTOP)
    snapshot = await lab.until(lambda snapshot: snapshot.pods[pod.uid].reason == "Stopped")
    assert not snapshot.pods[pod.uid].ready
    assert f"`kill -CONT {pod.pid}` lets it go on" in snapshot.pods[pod.uid].message
    os.kill(pod.pid, signal.SIGCONT)
    await lab.until(lambda snapshot: snapshot.pods[pod.uid].ready)
    lab.supervisor().suspend()
    await lab.until(lambda snapshot: snapshot.run_named("run").reason == "Silent")
    os.kill(pod.pid, signal.SIGKILL)
    snapshot = await lab.until(lambda snapshot: not snapshot.pods[pod.uid].ready)
    assert (snapshot.pods[pod.uid].phase, snapshot.pods[pod.uid].reason) == (Phase.UNKNOWN, "Silent")
    lab.supervisor().resume()


async def test_a_full_disk_is_said_by_those_who_look_and_is_over_when_there_is_room(lab, monkeypatch):
    await lab.launch(lab.set("sleep"))
    await lab.pod(lambda pod: pod.ready)
    monkeypatch.setattr(run_store, "_LEAST_BYTES", 1 << 62)
    run = (await lab.backend.snapshot()).run_named("run")
    assert run.reason == "NoSpace"
    assert run.message.startswith("no space is left on the disk of ")
    monkeypatch.undo()
    assert (await lab.backend.snapshot()).run_named("run").reason == ""


async def test_no_line_is_lost_or_doubled_while_supervisors_die(lab):
    await lab.launch(lab.set("count", "400", "0.003", "sleep", "600"))
    for number in (20, 90, 160):
        await lab.until_line(f"count {number}")
        lab.kill_supervisor()
        await lab.backend.adopt("run")
    assert await lab.until_line("count 399") == [f"count {number}" for number in range(400)]


_KILLED_COPIES = """
import contextlib, os, pathlib, signal, sys
from l2rtui.backends.local.supervision.log_file import LogWriter, log_path

CALLS = ("fstat", "open", "pread", "pwrite", "read", "splice", "write", "ftruncate", "replace")

def copy(folder, pipe, kill_at, max_bytes):
    steps = 0
    def counted(call):
        def step(*args, **keywords):
            nonlocal steps
            steps += 3
            if steps - 3 <= kill_at < steps:
                if kill_at == steps - 1:  # after it
                    with contextlib.suppress(OSError):
                        call(*args, **keywords)
                elif kill_at == steps - 2 and call.__name__ == "write":  # in the middle of it
                    call(args[0], args[1][:len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **keywords)
        return step
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    log = LogWriter(folder, 0, max_bytes)
    try:
        while log.copy(pipe, 65_536):
            pass
    except BlockingIOError:
        os._exit(0)

def forked(*args):
    if not (pid := os.fork()):
        copy(*args)
    return os.waitpid(pid, 0)[1]

root, kills = pathlib.Path(sys.argv[1]), 0
for max_bytes in (1 << 20, 3000):  # the second is rotated by each chunk
    for kill_at in range(1000):
        folder = root / f"{max_bytes}-{kill_at}"
        folder.mkdir()
        fifo = folder / "fifo"
        os.mkfifo(fifo)
        process = os.open(fifo, os.O_RDWR)
        os.write(process, b"".join(b"line %d\\n" % n for n in range(100)) + b"half ")
        pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        status = forked(folder, pipe, kill_at, max_bytes)
        again = forked(folder, pipe, kill_at // 2, max_bytes)  # its successor is killed, too
        os.write(process, b"line\\n" + b"".join(b"line %d\\n" % n for n in range(100, 150)))
        assert forked(folder, pipe, -1, max_bytes) == 0
        names = ("0.log.1", "0.log")
        text = b"".join((folder / name).read_bytes() for name in names if (folder / name).exists())
        lines = [line[28:].decode() for line in text.splitlines()]
        wanted = [f"line {n}" for n in range(100)] + ["half line"] + [f"line {n}" for n in range(100, 150)]
        assert lines == wanted, (max_bytes, kill_at, lines)
        kills += bool(status) + bool(again)
        os.close(process), os.close(pipe)
        if not status:
            break
print(kills)
"""


@pytest.mark.skipif(not hasattr(os, "splice"), reason="only Linux moves output in one system call")
@pytest.mark.process
def test_a_supervisor_killed_at_any_step_of_a_copy_neither_loses_nor_repeats_a_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_COPIES, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


async def test_an_unfinished_line_is_not_lost_with_the_supervisor(lab):
    await lab.launch(lab.set("part", "hel", "sleep", "1", "say", "lo", "sleep", "600"))
    log = lab.folder().log_dir("run-w-0") / "0.log"
    await lab.until(lambda _: log.read_bytes().endswith(b" hel"))
    assert await lab.lines() == ["hel"]
    lab.kill_supervisor()
    await lab.backend.adopt("run")
    assert await lab.until_line("hello") == ["hello"]


async def test_a_process_that_ends_unseen_counts_as_failed(lab):
    await lab.launch(lab.set("sleep", "600", restart=RestartPolicy.ON_FAILURE))
    before = await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    psutil.Process(before.pid).kill()
    unseen = await lab.pod(lambda pod: not pod.ready)
    assert (unseen.phase, unseen.reason) == (Phase.UNKNOWN, "Unsupervised")
    await lab.backend.adopt("run")
    after = await lab.pod(lambda pod: pod.ready and pod.restarts == 1)
    assert (after.uid, after.exit_code) == (before.uid, None)
    assert "restart 1, exit code unknown" in await lab.lines()


async def test_a_process_that_is_taken_over_is_restarted_when_it_ends(lab):
    await lab.launch(lab.set("escape", "say", "up", "sleep", "600"))
    await lab.until_line("up")
    lab.kill_supervisor()
    await lab.backend.adopt("run")
    before = await lab.pod(lambda pod: pod.ready)
    psutil.Process(before.pid).kill()
    await lab.pod(lambda pod: pod.ready and pod.restarts == 1)
    await lab.until(lambda _: len(lab.processes()) == 5)


async def test_a_kill_starts_the_missing_supervisor(lab):
    await lab.launch(lab.set("sleep", "600"))
    before = await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    await lab.backend.kill([before])
    await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)
    assert len(lab.processes()) == 4


async def test_a_finished_run_can_be_killed_into_life_again(lab):
    await lab.launch(lab.set("exit", "0", restart=RestartPolicy.NEVER))
    before = await lab.pod(lambda pod: pod.phase.is_over)
    await lab.until(lambda _: not lab.processes())
    await lab.backend.kill([before])
    await lab.pod(lambda pod: pod.phase.is_over and pod.uid != before.uid)


async def test_there_is_never_a_second_supervisor(lab):
    await lab.launch(lab.set("sleep", "600"))
    done = subprocess.run(
        [sys.executable, "-m", "l2rtui.backends.local.supervision.supervisor", str(lab.folder().path)],
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (3, b"")
    assert len(lab.processes()) == 4


async def test_everything_is_found_again_by_another_app(lab):
    await lab.launch(lab.set("sleep", "600", replicas=2))
    views = await lab.until(lambda snapshot: sum(pod.ready for pod in snapshot.pods.values()) == 2)
    again = await lab.another().snapshot()
    assert (again.pods, again.runs) == (views.pods, views.runs)


async def test_the_app_can_die_at_once_and_its_run_lives(lab, tmp_path):
    program = f"""
import asyncio, os, pathlib, uuid
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.workload import *

async def main():
    backend = LocalBackend(Settings(), state=pathlib.Path({str(lab.state)!r}))
    snapshot = await backend.snapshot()
    spec = RunSpec(Kind.JOB, "run", "run", (SetSpec("w", Role.JOB, ("sleep", "600")),))
    placement = place([spec], snapshot.ledger)
    plan = plan_launch([spec], placement, snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])
    async for done in backend.launch(plan):
        pass
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, start_new_session=True)
    assert done.returncode == -9
    await lab.pod(lambda pod: pod.ready)
    assert not (await lab.destroy()).left
    assert not lab.processes()


async def test_a_pid_that_is_used_again_is_never_taken_for_ours(lab):
    await lab.launch(lab.set("sleep", "600", restart=RestartPolicy.NEVER))
    before = await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    psutil.Process(before.pid).kill()
    await lab.pod(lambda pod: not pod.ready)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as foreign_process:
        status = state_files.read(lab.folder().status, RunStatus)
        # As if the kernel had since given our pids to this process.
        status.pods[0].proc = ProcessIdentity(foreign_process.pid, before.uid)
        status.supervisor = ProcessIdentity(foreign_process.pid, status.supervisor.start)
        state_files.write_atomic(lab.folder().status, status, sync=False)
        snapshot = await lab.backend.snapshot()
        assert snapshot.run_named("run").reason == "Unsupervised"
        assert not snapshot.pods[before.uid].ready
        await lab.backend.adopt("run")
        await lab.pod(lambda pod: pod.phase is Phase.FAILED)
        assert not (await lab.destroy(grace_seconds=0.0)).left
        assert foreign_process.poll() is None
        foreign_process.kill()


async def test_a_rotten_status_is_written_anew_by_the_living_supervisor(lab):
    await lab.launch(lab.set("sleep", "600"))
    before = await lab.pod(lambda pod: pod.ready)
    lab.folder().status.write_bytes(b'{"half": ')
    snapshot = await lab.backend.snapshot()
    assert any("status.json cannot be read" in problem for problem in snapshot.problems)
    await lab.backend.kill([before])
    await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)
    snapshot = await lab.backend.snapshot()
    assert snapshot.problems == ()
    assert not (await lab.destroy()).left


async def test_processes_without_a_status_are_taken_over_by_their_mark(lab):
    await lab.launch(lab.set("count", "100000", "0.01"))
    await lab.until_line("count 3")
    before = await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    lab.folder().status.write_bytes(b"\xff")
    await lab.backend.adopt("run")
    after = await lab.pod(lambda pod: pod.ready)
    assert (after.pid, after.uid) == (before.pid, before.uid)
    await lab.until_line("count 30")


async def test_a_rotten_record_is_healed_by_the_living_supervisor(lab):
    await lab.launch(lab.set("sleep", "600"))
    before = await lab.pod(lambda pod: pod.ready)
    lab.folder().record.write_bytes(b"[]")
    snapshot = await lab.backend.snapshot()
    assert any("run.json cannot be read" in problem for problem in snapshot.problems)
    assert snapshot.run_named("run").reason == "Corrupt"
    assert snapshot.pods[before.uid].slots == before.slots
    lab.supervisor().send_signal(signal.SIGUSR1)
    await lab.until(lambda snapshot: snapshot.run_named("run").reason == "")
    assert (await lab.pod(lambda pod: pod.ready)).pid == before.pid


async def test_a_run_without_record_and_supervisor_is_seen_refused_and_destroyed(lab):
    await lab.launch(lab.set("escape", "say", "up", "sleep", "600"))
    await lab.until_line("up")
    before = await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    lab.folder().record.write_bytes(b"")
    run = (await lab.backend.snapshot()).run_named("run")
    assert run.reason == "Corrupt"
    with pytest.raises(BackendError, match="record of run cannot be read"):
        await lab.backend.kill([before])
    receipt = await lab.destroy()
    assert receipt.left == ()
    assert not lab.processes()
    assert not lab.folder().path.exists()


@pytest.mark.parametrize("is_supervised", [True, False], ids=["supervised", "lost"])
async def test_the_record_of_a_newer_version_is_left_as_it_is(lab, is_supervised):
    await lab.launch(lab.set("sleep", "600"))
    before = await lab.pod(lambda pod: pod.ready)
    if not is_supervised:
        lab.kill_supervisor()
    record = state_files.read(lab.folder().record, RunRecord)
    state_files.write_atomic(lab.folder().record, msgspec.structs.replace(record, format=99), sync=False)
    text = lab.folder().record.read_bytes()
    if is_supervised:
        lab.supervisor().send_signal(signal.SIGUSR1)
        await lab.until(lambda _: "newer" in state_files.read(lab.folder().status, RunStatus).problem)
    snapshot = await lab.backend.snapshot()
    assert any("format 99" in problem for problem in snapshot.problems)
    run = snapshot.run_named("run")
    assert (run.reason, run.owner) == ("Newer", user_name())
    assert psutil.pid_exists(before.pid)
    assert lab.folder().record.read_bytes() == text
    assert list(lab.folder().path.glob("*.corrupt-*")) == []
    assert (await lab.destroy()).left == ()
    assert not lab.processes()


async def test_who_only_looks_renames_nothing(lab):
    await lab.launch(lab.set("sleep", "600"))
    await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    lab.folder().record.write_bytes(b"[]")
    for _ in range(2):
        run = (await lab.backend.snapshot()).run_named("run")
        assert (run.reason, run.owner) == ("Corrupt", user_name())
    assert lab.folder().record.read_bytes() == b"[]"


async def test_a_folder_that_is_deleted_by_hand_takes_its_processes_along(lab, monkeypatch):
    await lab.launch(lab.set("sleep", "600"))
    supervisor = lab.supervisor()
    lab.folder().path.rename(lab.state / "elsewhere")
    supervisor.send_signal(signal.SIGUSR1)
    await lab.until(lambda _: not lab.processes())


async def test_runs_of_another_machine_are_left_alone(lab):
    await lab.launch(lab.set("sleep", "600"))
    await lab.pod(lambda pod: pod.ready)
    lab.kill_supervisor()
    record = state_files.read(lab.folder().record, RunRecord)
    there = msgspec.structs.replace(record, node="elsewhere", boot="other")
    state_files.write_atomic(lab.folder().record, there, sync=False)
    snapshot = await lab.backend.snapshot()
    assert not snapshot.runs
    assert any("run run was launched on elsewhere" in problem for problem in snapshot.problems)


async def test_followers_hear_of_kills_and_end_with_the_run(lab):
    await lab.launch(lab.set("count", "5", "0.001", "sleep", "600"))
    await lab.until_line("count 4")
    pod = await lab.pod(lambda pod: pod.ready)
    texts = []
    async for line in lab.backend.logs(pod, LogQuery(follow=True, tail=2)):
        texts.append((line.text, line.is_mark))
        if len(texts) == 2:
            await lab.backend.kill([pod])
        if line.text == "count 4" and len(texts) > 2:
            async for _ in lab.backend.destroy((await lab.backend.snapshot()).run_named("run")):
                pass
    assert texts == [
        ("count 3", False),
        ("count 4", False),
        ("replaced, killed by SIGTERM (exit 143)", True),
        *((f"count {number}", False) for number in range(5)),
    ]


@pytest.mark.parametrize("damage", [b"\xa5" * 128, b"", b"[" * 5000], ids=["garbled", "emptied", "nested"])
async def test_a_damaged_lock_hides_no_living_supervisor_and_is_healed(lab, damage):
    await lab.launch(lab.set("sleep", "600"))
    before, supervisor = await lab.pod(lambda pod: pod.ready), lab.supervisor()
    lab.folder().supervisor_lock.write_bytes(damage)
    began = time.monotonic()
    await lab.backend.kill([before])
    await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)
    assert time.monotonic() < began + 15.0, "waits 30 s for an answer of another supervisor"
    assert lab.supervisor().pid == supervisor.pid
    deadline = time.monotonic() + 30.0
    while state_files.read_valid(lab.folder().supervisor_lock, ProcessIdentity) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_rotten_record_of_a_living_supervisor_can_be_destroyed(lab):
    await lab.launch(lab.set("sleep", "600"))
    lab.folder().record.write_bytes(b"[]")
    run = (await lab.backend.snapshot()).run_named("run")
    assert run.reason == "Corrupt"
    receipt = [item async for item in lab.backend.destroy(run)][-1]
    assert receipt.left == ()
    assert not lab.processes()
    assert not lab.folder().path.exists()


async def test_a_record_that_cannot_be_read_for_want_of_descriptors_is_no_damaged_one(lab):
    await lab.launch(lab.set("sleep", "600"))
    before = await lab.pod(lambda pod: pod.ready)
    supervisor = lab.supervisor()
    limit = resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE, (0, limit[1]))
    supervisor.send_signal(signal.SIGUSR1)
    await asyncio.sleep(0.5)  # time for a round, after which nothing may have changed
    resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE, limit)
    await lab.backend.adopt("run")
    assert list(lab.folder().path.glob("*.corrupt-*")) == []
    assert (await lab.pod(lambda pod: pod.ready)).pid == before.pid
