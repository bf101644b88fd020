"""Restart policies, back-off, kills, and cleanup of everything that an ended process started."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time

import psutil
import pytest

from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.state_files import PodRecord
from l2rtui.backends.local.supervision.log_file import LogWriter, log_path
from l2rtui.backends.local.supervision.supervised_pod import SupervisedPod, SupervisionContext
from l2rtui.backends.local.supervision.supervised_process import SupervisedProcess
from l2rtui.domain.log import LogQuery
from l2rtui.domain.placement import Seat
from l2rtui.domain.plan import PodPlan, ScalePlan, plan_pod
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Level, Phase
from l2rtui.domain.workload import RestartPolicy, Role
from l2rtui.errors import NotFoundError, RefusedError
from l2rtui.services import launcher
from tests.l2rtui.backends.local.conftest import DEADLINE_SECONDS

ON_FAILURE = RestartPolicy.ON_FAILURE


async def test_pods_run_with_the_contract_in_their_environment(lab):
    names = "L2R_RUN L2R_POD L2R_ROLE L2R_SET L2R_INDEX L2R_SEED L2R_CONFIG CUDA_VISIBLE_DEVICES PYTHONUNBUFFERED"
    done = await lab.launch(
        lab.set("sleep", "600", name="learner", role=Role.LEARNER),
        lab.set(*(word for name in names.split() for word in ("env", name)), "say", "end", "sleep", "600"),
    )
    assert [(step_done.step.kind, step_done.step.name, step_done.error) for step_done in done] == [
        ("Run", "run", ""),
        ("Pod", "run-learner-0", ""),
        ("Pod", "run-w-0", ""),
    ]
    lines = await lab.until_line("end")
    assert lines[:-1] == [
        "L2R_RUN=run",
        "L2R_POD=run-w-0",
        "L2R_ROLE=worker",
        "L2R_SET=w",
        "L2R_INDEX=0",
        "L2R_SEED=0",
        "L2R_CONFIG={}",
        "CUDA_VISIBLE_DEVICES=",
        "PYTHONUNBUFFERED=1",
    ]
    pod = await lab.pod(lambda pod: pod.ready)
    assert pod.phase is Phase.RUNNING
    assert pod.slots
    assert os.getsid(pod.pid) == os.getpgid(pod.pid) == pod.pid
    environ = psutil.Process(pod.pid).environ()
    token = lab.folder().token
    assert environ["L2R_TOKEN_FILE"] == str(token)
    assert (token.stat().st_mode & 0o777, len(token.read_text())) == (0o600, 64)
    assert environ["L2R_ENDPOINT"].startswith("ipc:///")
    assert lab.state.stat().st_mode & 0o777 == 0o700
    learner = await lab.pod(lambda pod: pod.ready, "run-learner-0")
    assert psutil.Process(learner.pid).environ()["L2R_JOINERS"] == "1"
    assert "L2R_JOINERS" not in environ


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        (RestartPolicy.NEVER, 0, Phase.SUCCEEDED),
        (RestartPolicy.NEVER, 3, Phase.FAILED),
        (RestartPolicy.ON_FAILURE, 0, Phase.SUCCEEDED),
    ],
)
async def test_a_pod_that_may_not_restart_is_over_and_its_supervisor_ends(lab, policy, code, phase):
    await lab.launch(lab.set("say", "hello", "exit", str(code), restart=policy))
    pod = await lab.pod(lambda pod: pod.phase.is_over)
    assert (pod.phase, pod.exit_code, pod.restarts) == (phase, code, 0)
    await lab.until(lambda _: not lab.processes())
    snapshot = await lab.backend.snapshot()
    assert snapshot.run_named("run").reason == ""
    assert snapshot.ledger.slots[next(iter(pod.slots))].state == "free"
    assert await lab.lines() == ["hello"]
    assert await lab.lines(LogQuery(follow=True)) == ["hello"]
    receipt = await lab.destroy()
    assert not receipt.left


@pytest.mark.parametrize(("policy", "code"), [(RestartPolicy.ALWAYS, 0), (RestartPolicy.ON_FAILURE, 7)])
async def test_a_pod_is_restarted_as_its_policy_says(lab, tmp_path, policy, code):
    actions = ("once", str(tmp_path / "mark"), "exit", str(code), "else", "say", "again", "sleep", "600")
    await lab.launch(lab.set(*actions, restart=policy))
    pod = await lab.pod(lambda pod: pod.ready and pod.restarts == 1)
    assert pod.exit_code == code
    assert await lab.until_line("again") == [f"restart 1, exit {code}", "again"]


async def test_a_failing_pod_waits_ever_longer(lab):
    started = time.time()
    await lab.launch(lab.set("exit", "1"))
    pod = await lab.pod(lambda pod: pod.restarts == 3)
    # Immediately, then after 0.05 s, then 0.1 s.
    assert time.time() - started > 0.15
    pod = await lab.pod(lambda pod: pod.reason == "CrashLoopBackOff")
    assert pod.status.level is Level.BAD
    assert "starts again in" in pod.message
    assert not pod.ready


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f"ulimit -v 400000; exec {sys.executable} -S -c 'bytearray(1 << 30)'", "OutOfMemory"),
        (f"ulimit -n 10; exec {sys.executable} -S -c 'import os; [os.dup(0) for _ in range(20)]'", "FileLimit"),
    ],
)
async def test_a_process_that_meets_a_limit_names_it_in_its_pod(lab, words, reason):
    await lab.launch(lab.set(command=("bash", "-c", words), restart=RestartPolicy.NEVER))
    pod = await lab.pod(lambda pod: pod.phase.is_over)
    assert (pod.phase, pod.reason, pod.status.word) == (Phase.FAILED, reason, reason)
    assert "ulimit" in pod.status.sentence


async def test_a_command_that_cannot_start_says_why(lab):
    done = await lab.launch(lab.set(command=("no-such-command", "x"), restart=RestartPolicy.NEVER))
    assert done[1].error == "no-such-command cannot be started: no executable file of this name is found"
    pod = await lab.pod(lambda pod: pod.phase.is_over)
    assert (pod.phase, pod.reason, pod.exit_code) == (Phase.FAILED, "StartError", 128)


async def test_a_file_that_is_no_program_says_why(lab, tmp_path):
    path = tmp_path / "script"
    path.write_text("no shebang")
    path.chmod(0o755)
    done = await lab.launch(lab.set(command=(str(path),)))
    assert "Exec format error" in done[1].error
    pod = await lab.pod(lambda pod: pod.reason == "StartError" and pod.restarts > 1)
    assert pod.phase is Phase.PENDING


@pytest.mark.parametrize("ends", [("exit", "1"), ("die", "9"), ("sleep", "600")])
async def test_nothing_of_an_ended_process_lives_beside_the_next(lab, tmp_path, ends):
    actions = ("once", str(tmp_path / "mark"), "fork", "escape", *ends, "else", "say", "again", "sleep", "600")
    await lab.launch(lab.set(*actions))
    if ends[0] == "sleep":
        await lab.until(lambda _: len(lab.processes()) == 6)
        await lab.backend.kill([await lab.pod(lambda pod: pod.ready)])
    await lab.until_line("again")
    pod = await lab.pod(lambda pod: pod.ready)
    assert {process.pid for process in lab.processes()} == {
        pod.pid,
        lab.supervisor().pid,
        *(watcher.pid for watcher in lab.watchers()),
    }


async def test_a_killed_pod_is_replaced_whatever_its_policy(lab):
    await lab.launch(lab.set("say", "hello", "sleep", "600", restart=RestartPolicy.NEVER))
    await lab.until_line("hello")
    before = await lab.pod(lambda pod: pod.ready)
    await lab.backend.kill([before])
    pod = await lab.pod(lambda _: True)  # one reading: between two readings the pod may be replaced
    assert pod.uid != before.uid or pod.is_terminating
    after = await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)
    assert (after.name, after.slots, after.restarts) == (before.name, before.slots, 0)
    assert await lab.until_line("replaced, killed by SIGTERM (exit 143)") is not None
    with pytest.raises(NotFoundError, match="run-w-0 is gone"):
        await lab.backend.kill([before])


async def test_a_deaf_process_is_killed_after_its_grace(lab):
    await lab.launch(lab.set("deaf", "say", "ready", "sleep", "600"))
    await lab.until_line("ready")
    before, began = await lab.pod(lambda pod: pod.ready), time.monotonic()
    await lab.backend.kill([before], grace_seconds=0.3)
    assert (await lab.pod(lambda pod: pod.is_terminating)).uid == before.uid
    await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)
    assert time.monotonic() - began >= 0.3
    assert "replaced, killed by SIGKILL (exit 137)" in await lab.lines()


async def test_a_second_kill_can_only_hurry_the_first(lab):
    await lab.launch(lab.set("deaf", "say", "ready", "sleep", "600", grace_seconds=600.0))
    await lab.until_line("ready")
    before = await lab.pod(lambda pod: pod.ready)
    await lab.backend.kill([before])
    await lab.backend.kill([before], grace_seconds=0.0)
    await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)


async def test_a_stopped_process_can_be_killed(lab):
    await lab.launch(lab.set("say", "ready", "sleep", "600"))
    await lab.until_line("ready")
    before = await lab.pod(lambda pod: pod.ready)
    os.kill(before.pid, signal.SIGSTOP)
    await lab.backend.kill([before], grace_seconds=0.1)
    await lab.pod(lambda pod: pod.ready and pod.uid != before.uid)


async def test_a_set_is_scaled_down_and_up(lab):
    await lab.launch(lab.set("sleep", "600", replicas=3))
    await lab.until(lambda snapshot: sum(pod.ready for pod in snapshot.pods_of("run")) == 3)
    await lab.backend.scale(ScalePlan("run", "w", 1, (), ("run-w-2", "run-w-1")))
    snapshot = await lab.until(lambda snapshot: len(snapshot.pods_of("run")) == 1)
    assert snapshot.run_named("run").sets[0].replicas == 1
    spec = await lab.backend.spec("run")
    assert spec.sets[0].replicas == 1
    slots = snapshot.pods_of("run")[0].slots
    seat = Seat("run", "w", 1, slots)
    with pytest.raises(RefusedError, match="is held by run-w-0"):
        await lab.backend.scale(ScalePlan("run", "w", 2, (plan_pod(spec, spec.sets[0], seat, snapshot.nodes),), ()))
    seat = Seat("run", "w", 1, snapshot.ledger.free()[:1])
    await lab.backend.scale(ScalePlan("run", "w", 2, (plan_pod(spec, spec.sets[0], seat, snapshot.nodes),), ()))
    await lab.until(lambda snapshot: sum(pod.ready for pod in snapshot.pods_of("run")) == 2)
    assert not (await lab.destroy()).left


async def test_two_removed_and_added_again_at_once_are_new_pods(lab):
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", grace_seconds=0.3))
    await lab.until_line("up")
    before = await lab.pod(lambda pod: pod.ready)
    record = lab.store.named("run").record
    plan = record.pods[0].plan
    await lab.backend.scale(ScalePlan("run", "w", 0, (), ("run-w-0",)))
    await lab.backend.scale(ScalePlan("run", "w", 1, (), ()))
    await lab.until(lambda snapshot: not snapshot.pods_of("run"))
    await lab.backend.scale(ScalePlan("run", "w", 1, (plan,), ()))
    after = await lab.pod(lambda pod: pod.ready)
    assert after.uid != before.uid


async def test_a_replica_that_is_wanted_again_while_it_ends_gets_a_slot_of_its_own_and_comes_back(
    lab, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # for the journal
    await lab.launch(lab.set("deaf", "say", "up", "sleep", "600", grace_seconds=1.0, replicas=2))
    await lab.until_line("up", "run-w-1")
    await launcher.scale(lab.backend, "run", "w", 1)
    before = await lab.pod(lambda pod: pod.is_terminating, "run-w-1")
    again = await launcher.scale(lab.backend, "run", "w", 2)
    (added,) = again.added
    used_slots = {pod.slots for pod in (await lab.backend.snapshot()).pods_of("run") if pod.name == "run-w-1"}
    assert used_slots == {before.slots, added.seat.slots}
    with pytest.raises(RefusedError, match=r"Slot .* is held by run-w-1"):
        await lab.backend.scale(again)
    after = await lab.pod(lambda pod: pod.ready and pod.uid != before.uid, "run-w-1")
    assert after.slots == added.seat.slots
    spec = await lab.backend.spec("run")
    seatless = plan_pod(spec, spec.sets[0], Seat("run", "w", 1, ()), {})
    with pytest.raises(RefusedError, match="run/w has run-w-1 already"):
        await lab.backend.scale(ScalePlan("run", "w", 2, (seatless,), ()))
    assert not (await lab.destroy()).left


async def test_a_run_whose_learner_has_succeeded_ends_with_whatever_waits_for_it(lab, tmp_path):
    mark = str(tmp_path / "mark")
    await lab.launch(
        lab.set(
            "once", mark, "exit", "3", "else", "exit", "0", name="learner", role=Role.LEARNER, restart=ON_FAILURE
        ),
        lab.set("sleep", "600"),
        lab.set("deaf", "sleep", "600", name="deaf", grace_seconds=0.2),
        lab.set(name="failing", command=("no-such-command",)),
    )
    await lab.until(lambda snapshot: all(pod.phase.is_over for pod in snapshot.pods.values()))
    await lab.until(lambda _: not lab.processes())
    pods = {pod.set_name: pod for pod in (await lab.backend.snapshot()).pods_of("run")}
    assert {name: pod.phase for name, pod in pods.items()} == {
        "learner": Phase.SUCCEEDED,
        "w": Phase.SUCCEEDED,
        "deaf": Phase.SUCCEEDED,
        "failing": Phase.FAILED,
    }
    assert (pods["w"].exit_code, pods["deaf"].exit_code) == (143, 137)
    assert pods["w"].message == "it was ended with its run"
    assert not (await lab.destroy()).left


async def test_the_end_of_a_run_is_seen_to_by_the_next_supervisor_too(lab):
    await lab.launch(
        lab.set("exit", "0", name="learner", role=Role.LEARNER, restart=ON_FAILURE),
        lab.set("deaf", "sleep", "600", grace_seconds=1.0),
    )
    await lab.pod(lambda pod: pod.phase.is_over, "run-learner-0")
    lab.kill_supervisor()
    await lab.backend.adopt("run")
    assert (await lab.pod(lambda pod: pod.phase.is_over)).phase is Phase.SUCCEEDED
    await lab.until(lambda _: not lab.processes())


async def test_the_other_sets_go_on_when_one_that_is_no_learner_succeeds(lab):
    await lab.launch(
        lab.set("sleep", "600", name="learner", role=Role.LEARNER),
        lab.set("exit", "0", name="eval", role=Role.EVALUATOR, restart=ON_FAILURE),
        lab.set("sleep", "600"),
    )
    await lab.pod(lambda pod: pod.phase is Phase.SUCCEEDED, "run-eval-0")
    lab.kill_supervisor()
    await lab.backend.adopt("run")
    snapshot = await lab.until(lambda snapshot: snapshot.run_named("run").reason == "")
    assert [pod.ready for pod in snapshot.pods_of("run")] == [True, False, True]


def test_a_date_that_is_set_back_does_not_put_off_the_end_of_a_deaf_process(lab, tmp_path):
    seat = Seat("run", "w", 0, ())
    plan = PodPlan("run-w-0", lab.set("deaf", "say", "ready", "sleep", "600"), 0, "", seat, ())
    log = LogWriter(tmp_path / "logs", 0, 1 << 20)
    child = SupervisedProcess.start(
        sys.executable, plan.set_spec.command, dict(os.environ), tmp_path / "pipes" / "0", log
    )
    folder = StateFolder(tmp_path).run("run")
    context = SupervisionContext(folder, None, {}, 1.0, "", selectors.DefaultSelector(), lambda: None, print)
    pod = SupervisedPod(context, PodRecord(uid="u", wish="u", plan=plan, created=time.time()))
    pod.process = child
    deadline = time.monotonic() + DEADLINE_SECONDS
    while b"ready" not in log_path(tmp_path / "logs", 0).read_bytes():
        child.copy_output()
        assert time.monotonic() < deadline
    pod.stop(0.1)
    now = time.time()
    context.now = lambda: now - 3600
    while not pod.poll_exit():
        pod.run_due()
        assert time.monotonic() < deadline
    child.close()
    context.selector.close()


async def test_other_peoples_processes_are_refused(lab):
    with pytest.raises(RefusedError, match="a process of anna that l2rtui did not launch"):
        await lab.backend.kill([PodView("1", "python-77", owner="anna")])
