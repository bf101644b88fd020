"""Restart policy, back-off and SIGTERM/SIGKILL escalation of one pod, in virtual time and without processes."""

from __future__ import annotations

import errno
import os
import selectors
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.state_files import DesiredPod, ProcessIdentity, RunRecord
from l2rtui.backends.local.supervision import supervised_pod, supervised_process
from l2rtui.backends.local.supervision.log_file import log_path
from l2rtui.backends.local.supervision.supervised_pod import SupervisedPod, SupervisionContext
from l2rtui.backends.local.supervision.supervised_process import SupervisedProcess
from l2rtui.domain.placement import Seat
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from tests.leaks import close_files_below

BASE_SECONDS = 10.0
GRACE_SECONDS = 30.0


class FakeProcess:
    """A process that ends when a test says so."""

    pipe = pidfd = None

    def __init__(self) -> None:
        self.proc = ProcessIdentity(1, "never")
        self.signals: list[int] = []
        self.exit_code: int | None = None
        self.is_gone = False

    def signal_group(self, number: int) -> None:
        self.signals.append(number)

    def close(self, mark: str = "") -> None:
        """Nothing is open."""


class World:
    """One pod, its processes in the order of their starts, and two clocks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.date, self.seconds = 1_000_000.0, 50.0
        self.processes: list[FakeProcess] = []
        self.folder = StateFolder(folder).run("run")
        monkeypatch.setattr(SupervisedProcess, "start", self._start)

    def _start(self, *_: object) -> FakeProcess:
        self.processes.append(FakeProcess())
        return self.processes[-1]

    def pod(self, restart: RestartPolicy = RestartPolicy.ALWAYS, command: str = "sh") -> SupervisedPod:
        spec = SetSpec("w", Role.WORKER, (command,), restart=restart, grace_seconds=GRACE_SECONDS)
        plan = PodPlan("run-w-0", spec, 0, "", Seat("run", "w", 0, ()), ())
        desired = DesiredPod("uid", plan, self.date)
        record = RunRecord(
            uid="run-uid",
            spec=RunSpec(Kind.LEARNER_WORKERS, "run", "run", (spec,)),
            owner="me",
            node="node",
            boot="",
            cwd="/",
            created=self.date,
            endpoint="ipc:///nowhere",
            socket_dir="/nowhere",
            pods=(desired,),
            backoff_seconds=BASE_SECONDS,
            log_max_bytes=1 << 20,
        )
        context = SupervisionContext(
            self.folder,
            record,
            {"PATH": os.environ["PATH"]},
            1.0,
            "/",
            selectors.DefaultSelector(),
            changed=lambda: None,
            report_problem=pytest.fail,
            now=lambda: self.date,
            monotonic=lambda: self.seconds,
        )
        return SupervisedPod.new(context, desired)

    def advance(self, pod: SupervisedPod, seconds: float) -> None:
        self.date += seconds
        self.seconds += seconds
        pod.run_due()

    def end(self, pod: SupervisedPod, code: int | None) -> None:
        """The process has ended, and none of its children is left."""
        self.processes[-1].exit_code = code
        pod.handle_exit()
        pod.run_due()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(tmp_path, monkeypatch)
    close_files_below(tmp_path)


def test_each_failure_doubles_the_back_off_up_to_its_limit(world):
    pod = world.pod()
    pod.start()
    for wait in (0, 10, 20, 40, 80, 160, 300, 300):
        started = len(world.processes)
        world.end(pod, 1)
        if wait:
            assert pod.record.reason == "CrashLoopBackOff"
            assert pod.record.next_start == world.date + wait
            world.advance(pod, wait - 0.001)
            assert len(world.processes) == started
            world.advance(pod, 0.001)
        assert len(world.processes) == started + 1
        assert (pod.record.phase, pod.record.reason) == (Phase.RUNNING, "")
    assert pod.record.restarts == 8


def test_failures_are_forgotten_after_a_long_run(world):
    pod = world.pod()
    pod.start()
    world.end(pod, 1)
    world.end(pod, 1)
    world.advance(pod, BASE_SECONDS)
    world.advance(pod, 60 * BASE_SECONDS)
    world.end(pod, 1)
    assert (pod.record.failures, len(world.processes)) == (1, 4), "it starts again at once"


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        (RestartPolicy.NEVER, 0, Phase.SUCCEEDED),
        (RestartPolicy.NEVER, 1, Phase.FAILED),
        (RestartPolicy.NEVER, None, Phase.FAILED),
        (RestartPolicy.ON_FAILURE, 0, Phase.SUCCEEDED),
    ],
)
def test_a_pod_that_is_not_restarted_is_over(world, policy, code, phase):
    pod = world.pod(policy)
    pod.start()
    world.end(pod, code)
    assert (pod.is_over, pod.record.phase, len(world.processes)) == (True, phase, 1)
    assert pod.record.message == ("" if code is not None else supervised_process.UNKNOWN_EXIT)
    assert pod.record.ended == (None if code is None else world.date)


def test_the_log_has_a_mark_between_two_processes(world):
    pod = world.pod()
    pod.start()
    world.end(pod, 7)
    assert b"restart 1, exit 7" in log_path(world.folder.log_dir(pod.name), 1).read_bytes()


def test_a_pod_that_has_never_run_stays_pending_in_its_back_off(world):
    pod = world.pod(command="no-such-command")
    pod.start()
    pod.run_due()
    assert (pod.record.phase, pod.record.reason, pod.record.restarts) == (Phase.PENDING, "StartError", 1)
    assert pod.record.exit_code == supervised_process.START_ERROR_CODE
    assert not world.processes


def test_a_clock_that_is_set_back_delays_a_start_by_no_more_than_the_longest_back_off(world):
    pod = world.pod()
    pod.start()
    world.end(pod, 1)
    world.end(pod, 1)
    world.date -= 86_400
    pod.run_due()
    world.advance(pod, 30 * BASE_SECONDS)
    assert len(world.processes) == 3


def test_sigkill_follows_sigterm_once_and_after_the_grace_period(world):
    pod = world.pod()
    pod.start()
    pod.stop(None)
    (process,) = world.processes
    assert process.signals == [signal.SIGTERM]
    world.advance(pod, GRACE_SECONDS - 0.001)
    assert process.signals == [signal.SIGTERM]
    world.date -= 86_400
    world.advance(pod, 0.001)
    world.advance(pod, GRACE_SECONDS)
    assert process.signals == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(("second", "deadline"), [(5.0, 15.0), (600.0, 30.0)])
def test_a_second_stop_shortens_the_grace_period_and_never_prolongs_it(world, second, deadline):
    pod = world.pod()
    pod.start()
    pod.stop(GRACE_SECONDS)
    world.advance(pod, 10.0)
    pod.stop(second)
    assert pod.record.kill_at == world.seconds - 10.0 + deadline
    assert world.processes[0].signals == [signal.SIGTERM]


def test_a_stopped_pod_is_not_restarted_but_replaced_under_another_uid(world):
    pod = world.pod(RestartPolicy.NEVER)
    pod.start()
    pod.stop(None)
    world.end(pod, 143)
    assert (pod.process, len(world.processes)) == (None, 1)
    replacement = pod.replacement()
    assert replacement.record.uid != pod.record.uid
    assert (replacement.record.wish, replacement.record.plan) == (pod.record.wish, pod.record.plan)
    assert len(world.processes) == 2


@pytest.mark.parametrize(("code", "phase"), [(143, Phase.SUCCEEDED), (137, Phase.SUCCEEDED), (1, Phase.FAILED)])
def test_a_pod_that_ends_with_its_run_has_done_its_work_when_a_signal_ended_it(world, code, phase):
    pod = world.pod()
    pod.start()
    pod.finish()
    pod.finish()
    assert world.processes[0].signals == [signal.SIGTERM]
    world.end(pod, code)
    assert (pod.is_over, pod.record.phase, pod.record.kill_at) == (True, phase, None)


def test_a_pod_in_its_back_off_is_not_started_again_when_its_run_ends(world):
    pod = world.pod()
    pod.start()
    world.end(pod, 1)
    world.end(pod, 1)
    pod.finish()
    world.advance(pod, 100 * BASE_SECONDS)
    assert (pod.is_over, pod.record.phase, len(world.processes)) == (True, Phase.FAILED, 2)


def test_the_last_words_of_a_process_stay_while_the_next_one_runs(world):
    pod = world.pod()
    pod.start()
    log = log_path(world.folder.log_dir("run-w-0"), 0)
    stamped = "2026-11-20T12:00:00.123456Z "
    log.write_text(
        f'{stamped}Traceback (most recent call last):\n{stamped}TypeError: no wheels\n{stamped}{{"l2r":"worker"}}\n'
    )
    world.end(pod, 1)
    assert (pod.record.phase, pod.record.restarts, pod.record.exit_code) == (Phase.RUNNING, 1, 1)
    assert pod.record.message == "TypeError: no wheels"
    world.end(pod, 0)
    assert pod.record.message == ""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("MemoryError", "OutOfMemory"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.0 GiB", "OutOfMemory"),
        ("ValueError: the memory of a policy has 3 columns", ""),
        ("ImportError: _core.so: failed to map segment from shared object", "OutOfMemory"),
        ("bash: line 1: xmalloc: cannot allocate 16 bytes: Cannot allocate memory", "OutOfMemory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "OutOfGpuMemory"),
        ("RuntimeError: can't start new thread", "ThreadLimit"),
        ("libgomp: Thread creation failed: Resource temporarily unavailable", "ThreadLimit"),
        ("bash: fork: retry: Resource temporarily unavailable", "ThreadLimit"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", ""),
        ("OSError: [Errno 24] Too many open files: 'x'", "FileLimit"),
        ("EOFError: EOF when reading a line", "NoInput"),
        ("_curses.error: nocbreak() returned ERR", "NoInput"),
        ("OSError: [Errno 28] No space left on device", "NoSpace"),
    ],
)
def test_memory_and_limits_are_named_as_the_cause(world, line, reason):
    pod = world.pod(RestartPolicy.NEVER)
    pod.start()
    log = log_path(world.folder.log_dir("run-w-0"), 0)
    log.write_text(f"2026-11-20T12:00:00.123456Z {line}\n")
    world.end(pod, 1)
    assert (pod.record.phase, pod.record.reason) == (Phase.FAILED, reason)
    assert pod.record.message.endswith(line)
    assert pod.record.message.startswith(line) == (not reason)


@pytest.mark.parametrize(
    ("code", "counts", "reason"),
    [(137, (4, 4, 5), "OOMKilled"), (None, (4, 4, 5), "OOMKilled"), (137, (4, 5, 5), ""), (1, (4, 4, 5), "")],
)
def test_a_kill_of_the_kernel_for_want_of_memory_is_told_from_others(
    world, monkeypatch, tmp_path, code, counts, reason
):
    counter = tmp_path / "vmstat"
    monkeypatch.setattr(supervised_pod, "_COUNTS", counter)
    first, second, now = counts
    counter.write_text(f"pgfree 7\noom_kill {first}\n")
    pod = world.pod(RestartPolicy.NEVER)
    pod.start()
    counter.write_text(f"pgfree 8\noom_kill {second}\n")
    for _ in range(2):  # a kill that two looks have seen is over
        pod._context.oom_kills.look()
    counter.write_text(f"pgfree 9\noom_kill {now}\n")
    world.end(pod, code)
    assert (pod.record.phase, pod.record.reason) == (Phase.FAILED, reason)
    assert pod.record.message.startswith("the kernel killed it, as memory ran out") == bool(reason)


def test_a_pod_that_is_started_again_says_its_cause_in_its_message(world):
    pod = world.pod()
    pod.start()
    for serial in range(2):
        log = log_path(world.folder.log_dir("run-w-0"), serial)
        log.write_text("2026-11-20T12:00:00.123456Z MemoryError\n")
        world.end(pod, 1)
    assert (pod.record.phase, pod.record.reason) == (Phase.RUNNING, "CrashLoopBackOff")
    assert pod.record.message == "memory ran out, or its limit (`ulimit -v`): MemoryError"


def test_a_process_that_cannot_be_started_for_want_of_processes_names_the_limit(world, monkeypatch):
    error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    monkeypatch.setattr(SupervisedProcess, "start", Mock(side_effect=error))
    pod = world.pod(RestartPolicy.NEVER)
    pod.start()
    assert (pod.record.phase, pod.record.reason) == (Phase.FAILED, "StartError")
    assert pod.record.message.startswith("the limit of processes and threads is reached (`ulimit -u`): sh cannot")


def test_a_log_that_cannot_be_written_is_a_problem_until_it_can_be_again(world):
    pod = world.pod()
    pod.start()
    said: list[str] = []
    pod._context.report_problem, pod._context.withdraw_problem = said.append, said.remove
    process = world.processes[-1]
    process.pipe = 1
    process.copy_output = Mock(side_effect=[OSError(errno.ENOSPC, "No space left on device"), True, True])
    pod.copy_output()
    assert said == ["the log of run-w-0 cannot be written: No space left on device; lines are lost"]
    pod.copy_output()
    pod.copy_output()
    assert said == []
