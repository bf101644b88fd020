"""Supervised simulators as real processes: each failure named correctly, and no leftovers, whichever process is
killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from runtime.base import contract
from runtime.sim.control.supervisor import SimulatorSupervisor
from runtime.sim.launchers import shim
from runtime.sim.launchers.process import SimulatorProcess
from runtime.sim.launchers.simulator_process import Cause, PortLease
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire.errors import BudgetError, LostError, SimulatorSpecError, StartError
from tests.runtime.sim.conftest import ROOT, carrying, eventually

pytestmark = pytest.mark.process

QUICK = {
    "heartbeat_seconds": 0.5,
    "hung_seconds": 1.5,
    "grace_seconds": 0.5,
    "start_seconds": 60.0,
    "restarts": 1,
    "backoff_seconds": 0.01,
}


class Watched:
    """A supervisor and the marks of all processes that it has started."""

    def __init__(
        self, folder: Path, pose_time: Callable[[], float | None] = lambda: None, **options: object
    ) -> None:
        self.handles: list[SimulatorProcess] = []
        self.folder = folder
        spec = SimulatorSpec.from_mapping({**QUICK, **options})
        self.supervisor = SimulatorSupervisor(spec, self.start, pose_time)

    def start(self, spec: SimulatorSpec) -> SimulatorProcess:
        self.handles.append(SimulatorProcess(spec, self.folder))
        return self.handles[-1]

    def until_lost(self, seconds: float = 60.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self.supervisor.check()
            except LostError as error:
                return str(error)
            time.sleep(0.02)
        raise AssertionError("it was never lost")

    def survivors(self) -> list[int]:
        return [pid for handle in self.handles for pid in carrying(f"{shim.MARK}={handle.mark}")]


def a_fault(kind: str) -> dict[str, object]:
    return {"arguments": ["--track", "harbour", "--fault", kind]}


NAMED = {
    "crash@0.1": (Cause.CRASHED, "crashed with SIGSEGV"),
    "killed@0.1": (Cause.KILLED, "killed by SIGKILL, which we did not send"),
    "exit@0.1": (Cause.EXITED, "exited with code 3"),
    "hang@0.1": (Cause.HUNG, "hangs: no answer on its control port"),
    "deaf@0.1": (Cause.HUNG, "hangs: no answer on its control port"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_each_failure_is_named_rightly_and_leaves_nothing(tmp_path, kind):
    cause, words = NAMED[kind]
    watched = Watched(tmp_path, **a_fault(kind))
    watched.supervisor.start()

    assert words in watched.until_lost()
    assert watched.supervisor.last_failure.cause is cause
    assert watched.supervisor.state == "lost"
    assert watched.supervisor.stop() == 0
    assert watched.survivors() == []


@pytest.mark.parametrize("kind", ["ignore-sigterm", "grandchild"])
def test_whatever_does_not_want_to_end_is_ended_within_the_grace(tmp_path, kind):
    watched = Watched(tmp_path, **a_fault(kind))
    watched.supervisor.start()
    assert len(watched.survivors()) >= 3, "shim, guard and simulator run"
    began = time.monotonic()

    assert watched.supervisor.stop() == 0
    assert time.monotonic() - began < QUICK["grace_seconds"] + 20.0, "it would run for good"
    assert watched.survivors() == []
    assert watched.supervisor.state == "stopped"


def test_one_that_never_listens_is_given_up_within_the_deadline(tmp_path):
    watched = Watched(tmp_path, arguments=["--fault", "refuse"], start_seconds=2.0, restarts=1)
    with pytest.raises(BudgetError, match=r"more than 1 failures.*not ready within 2 s"):
        watched.supervisor.start()

    assert watched.supervisor.state == "given up"
    assert len(watched.handles) == 2
    assert watched.survivors() == []


@pytest.mark.slow
def test_one_that_is_slow_is_not_taken_for_one_that_hangs(tmp_path):
    watched = Watched(tmp_path, **a_fault("slow@0"), hung_seconds=8.0)
    watched.supervisor.start()
    time.sleep(9.0)  # longer than its allowed silence

    watched.supervisor.check()
    assert watched.supervisor.stop() == 0


def test_a_garbled_control_port_is_no_simulator(tmp_path):
    watched = Watched(tmp_path, **a_fault("garbage@0"), restarts=0)
    with pytest.raises(BudgetError, match="does not answer like a simulator"):
        watched.supervisor.start()
    assert watched.survivors() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ["MISSING/ArrivalSim.sh", "-OpenGL"]}, "No such file or directory: MISSING/ArrivalSim.sh"),
        ({"command": ["true"]}, "exited with code 0"),
        ({"command": ["sh", "-c", "kill -ABRT $$"]}, "crashed with SIGABRT"),
        (
            {"command": ["true"], "user": "nobody-of-that-name"},
            "the user 'nobody-of-that-name' does not exist here",
        ),
    ],
    ids=["missing", "ends", "aborts", "no user"],
)
def test_a_command_that_cannot_be_is_named(tmp_path, options, words):
    missing = str(tmp_path / "missing")
    options = {**options, "command": [word.replace("MISSING", missing) for word in options["command"]]}
    watched = Watched(tmp_path, kind="command", **options, restarts=0)
    with pytest.raises(BudgetError) as caught:
        watched.supervisor.start()

    assert words.replace("MISSING", missing) in str(caught.value)
    assert watched.survivors() == []


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "nonsense"},
        {"kind": "command"},
        {"kind": "container", "image": "x"},
        {"restarts": -1},
        {"fast": 1},
        {"command": "a shell line"},
        {"colour": "red"},
        {"mounts": ["relative:/x"]},
        {"env": {"A": 1}},
    ],
    ids=str,
)
def test_a_simulator_that_is_described_wrongly_is_refused(options):
    with pytest.raises(SimulatorSpecError):
        SimulatorSpec.from_mapping(options)


def test_an_unknown_placeholder_is_refused(tmp_path):
    spec = SimulatorSpec.from_mapping({"kind": "command", "command": ["x", "{colour}"]})
    with pytest.raises(SimulatorSpecError, match=r"\{control\}"):
        SimulatorProcess(spec, tmp_path)


def test_it_runs_as_another_user_in_its_own_session_without_a_shell_or_our_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv(contract.ENV_TOKEN_FILE, "/secret")
    monkeypatch.setenv(contract.ENV_RUN_ID, "the-run")
    command = ["sleep", "600"]
    spec = SimulatorSpec.from_mapping({"kind": "command", "command": command, "user": "nobody", "folder": "/"})
    handle = SimulatorProcess(spec, tmp_path)
    try:
        pid = eventually(lambda: handle.ended() or handle.pid, "a start")
        process = psutil.Process(pid)
        assert process.cmdline() == command
        assert process.username() == "nobody"
        assert os.getsid(pid) == pid
        assert process.environ()[contract.ENV_RUN_ID] == "the-run", "found by the run's leak check"
        assert contract.ENV_TOKEN_FILE not in process.environ()
        eventually(lambda: process.num_fds() == 3, "no descriptor of ours, once its loader is done")
        assert set(Path(f"/proc/{pid}/status").read_text().partition("Groups:")[2].split("\n")[0].split()) <= {
            str(Path(f"/proc/{pid}").stat().st_gid)
        }
    finally:
        assert handle.stop(1.0) == 0


def test_its_log_is_bounded_and_its_last_lines_are_at_hand(tmp_path):
    script = "import sys\nfor i in range(200000): print('line', i)\nprint('the last words', flush=True)"
    options = {"kind": "command", "command": [sys.executable, "-c", script], "log_bytes": 100_000}
    handle = SimulatorProcess(SimulatorSpec.from_mapping(options), tmp_path)
    eventually(handle.ended, "its end")
    handle.stop(0.1)

    assert handle.tail(2)[-1] == "the last words"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100_000 + 65_536
    for path in (handle.log.with_name(handle.log.name + ".1"), handle.log):
        path.unlink(missing_ok=True)
    assert list(tmp_path.iterdir()) == []


def test_a_start_is_given_up_when_nobody_wants_it_any_more(tmp_path):
    watched = Watched(tmp_path, arguments=["--fault", "refuse"])
    answers = iter([True] * 5)
    with pytest.raises(StartError, match="no longer needed"):
        watched.supervisor.start(lambda: next(answers, False))
    assert watched.survivors() == []


def test_a_simulator_outlives_the_thread_that_started_it(tmp_path):
    watched = Watched(tmp_path)
    thread = threading.Thread(target=watched.supervisor.start)
    thread.start()
    thread.join()
    pid = eventually(lambda: watched.handles[-1].ended() or watched.handles[-1].pid, "a start")
    time.sleep(0.3)  # the death signal of the thread would have arrived immediately

    watched.supervisor.check()
    assert psutil.pid_exists(pid)
    assert watched.supervisor.stop() == 0


def test_restart_gives_another_one_on_ports_of_its_own_and_counts(tmp_path):
    watched = Watched(tmp_path, **a_fault("crash@0.1"), restarts=5)
    watched.supervisor.start()
    watched.until_lost()
    watched.supervisor.restart()

    assert watched.supervisor.restarts == 1
    assert watched.supervisor.last_error == "the simulator crashed with SIGSEGV"
    assert watched.handles[0].mark != watched.handles[1].mark
    watched.supervisor.stop()
    assert watched.survivors() == []


def test_one_that_cannot_be_watched_any_more_is_lost_and_another_is_watched(tmp_path):
    answers = iter([None, {}])

    def pose_time() -> float | None:
        answer = next(answers, None)
        return None if answer is None else answer["time"]

    watched = Watched(tmp_path, pose_time)
    watched.supervisor.start()
    sentence = watched.until_lost()

    assert sentence.startswith("the watch of the simulator failed: KeyError: 'time', test_process.py line ")
    assert watched.supervisor.last_failure.cause is Cause.UNWATCHED
    assert watched.supervisor.state == "lost"
    watched.supervisor.restart()
    watched.handles[-1].signal(signal.SIGSEGV)
    eventually(lambda: watched.supervisor.state == "lost", "a watch of the second")
    assert watched.supervisor.last_error == "the simulator crashed with SIGSEGV"
    assert watched.supervisor.stop() == 0
    assert watched.survivors() == []


def test_a_watch_that_fails_again_and_again_spends_the_budget_and_says_why(tmp_path):
    watched = Watched(tmp_path, dict[str, float]().popitem, restarts=1)
    watched.supervisor.start()
    watched.until_lost()
    watched.supervisor.restart()
    watched.until_lost()
    with pytest.raises(
        BudgetError, match=r"given up after more than 1 failures.*; last: the watch of the simulator"
    ):
        watched.supervisor.restart()
    assert watched.survivors() == []


# --- kill of any process --------------------------------------------------------------------------------


class Killed:
    """A worker process with a separate mark, to be killed with its shim and simulator in any order."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = f"L2R_RUN_ID={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        options = {**QUICK, "restarts": 50, "arguments": list(arguments)}
        command = [sys.executable, "-m", "tests.runtime.sim.worker_under_test", str(folder), json.dumps(options)]
        environ = {**os.environ, name: value}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environ)
        self.pids = {"worker": self.process.pid, **self.line("shim")}

    def line(self, key: str) -> dict[str, int]:
        """The next output line that has this key."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            said = json.loads(text)
            if key in said:
                return {name: said[name] for name in ("shim", "simulator") if name in said} or said
        raise AssertionError("the worker ended")

    def kill(self, who: str) -> None:
        try:
            os.kill(self.pids[who], signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended with the previous one, as intended
        if who == "worker":
            self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("order", itertools.permutations(["worker", "shim", "simulator"]), ids="-".join)
def test_kill_9_in_any_order_leaves_nothing(tmp_path, order):
    killed = Killed(tmp_path, "--fault", "grandchild", "--fault", "ignore-sigterm")
    try:
        for who in order:
            killed.kill(who)
        deadline = shim.ORPHAN_GRACE_SECONDS + 2.0
        eventually(lambda: not carrying(killed.mark), "no survivors", deadline + 1.0)
    finally:
        killed.close()


@pytest.mark.parametrize("who", ["shim", "simulator"])
def test_kill_9_of_shim_or_simulator_and_the_worker_goes_on_with_another(tmp_path, who):
    killed = Killed(tmp_path, "--fault", "grandchild")
    try:
        first = killed.pids
        killed.kill(who)
        lost = killed.line("lost")["lost"]
        assert ("supervisor was killed" if who == "shim" else "killed by SIGKILL") in str(lost)
        second = killed.line("shim")
        assert second["simulator"] != first["simulator"]
        gone = [pid for pid in (first["shim"], first["simulator"]) if psutil.pid_exists(pid)]
        assert [pid for pid in gone if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE] == []
    finally:
        killed.close()
    eventually(lambda: not carrying(killed.mark), "no survivors", 5.0)


def test_a_worker_that_is_stopped_by_sigterm_takes_its_simulator_along(tmp_path):
    killed = Killed(tmp_path)
    killed.process.terminate()
    killed.process.wait()
    eventually(lambda: not carrying(killed.mark), "no survivors", 5.0)
    killed.close()


# --- many of them ---------------------------------------------------------------------------------------

FAULTS = {None: None, "ignore-sigterm": None, "grandchild": None, **{kind: NAMED[kind][0] for kind in NAMED}}


def cycle(folder: Path, rng: random.Random) -> tuple[str | None, Cause | None, Cause | None, int, int, list[int]]:
    """Start one with a random fault, wait for it, stop it; return the fault, expected and actual cause, its port,
    leftovers.
    """
    kind = rng.choice(list(FAULTS))
    expected = FAULTS[kind]
    watched = Watched(folder, **(a_fault(kind) if kind else {}), restarts=0)
    port = 0
    try:
        watched.supervisor.start()
        port = watched.supervisor.addresses.control
        if expected is not None:
            watched.until_lost()
    except BudgetError:  # it was lost before it was ready
        if expected is None:
            raise
        expected = Cause.NOT_READY if expected is Cause.HUNG else expected
    left = watched.supervisor.stop()
    failure = watched.supervisor.last_failure
    return kind, expected, failure.cause if failure else None, port, left, watched.survivors()


def test_cycles_with_random_faults_leave_no_process_no_descriptor_and_name_each_failure(tmp_path):
    cycle(tmp_path, random.Random(0))
    me = psutil.Process()
    before, threads = me.num_fds(), me.num_threads()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda number: cycle(tmp_path, random.Random(number)), range(12)))

    assert [(kind, cause) for kind, expected, cause, *_ in results if cause is not expected] == []
    assert [left for *_, left, _ in results if left] == []
    assert [pids for *_, pids in results if pids] == []
    assert me.num_fds() == before
    eventually(lambda: me.num_threads() <= threads + 4, "no thread is left")


def test_port_sets_never_clash_and_come_back_when_their_owner_dies():
    leases = [PortLease.acquire(lambda _: 0) for _ in range(8)]
    try:
        used = [port for lease in leases for port in range(lease.ports.base, lease.ports.base + 80)]
        assert len(used) == len(set(used))
        script = (
            "from runtime.sim.launchers.simulator_process import PortLease as P\n"
            "p = P.acquire(); print(p.ports.base, flush=True); input()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        assert child.stdout is not None
        base = int(child.stdout.readline())
        count = (32_000 - 20_000) // 80
        with contextlib.closing(PortLease.acquire(lambda _: (base - 20_000) // 80)) as other:
            assert other.ports.base != base
        child.kill()
        child.communicate()
        with contextlib.closing(PortLease.acquire(lambda _: (base - 20_000) // 80)) as again:
            assert again.ports.base == base
        assert count == 150
    finally:
        for lease in leases:
            lease.close()


def test_the_mark_has_the_name_that_the_contract_gives_it():
    assert shim.MARK == contract.ENV_SIMULATOR
