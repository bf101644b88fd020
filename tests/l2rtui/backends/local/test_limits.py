"""Limits of runs on this machine: the supervisor's deadline, with real processes, and the learner's messages."""

from __future__ import annotations

import json

import psutil
import pytest
from msgspec.structs import replace

from l2rtui.backends.local.state_files import DesiredPod, ProcessIdentity, RunRecord, RunStatus
from l2rtui.backends.local.supervision.supervised_pod import Backstop, backstop_of, end_reason
from l2rtui.domain.placement import Seat
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.runstatus import NO_REPORTS, Learning, learning_state
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from runtime.base.alert_rules import AlertRule
from runtime.base.limits import Limits
from tests.fakes.webhook import Webhook


async def launch(lab, limits, *sets, kind=Kind.LEARNER_WORKERS):
    plan = await lab.plan(*sets)
    run = plan.runs[0]
    watched = replace(run, spec=replace(run.spec, limits=limits, kind=kind))
    assert [done.error async for done in lab.backend.launch(replace(plan, runs=(watched,)))]


async def test_a_run_without_a_learner_ends_at_its_limit_with_all_its_pods(lab):
    job = lab.set("say", "runs", "sleep", "600", replicas=2, role=Role.JOB, restart=RestartPolicy.ON_FAILURE)
    await launch(lab, Limits(wall=1.5), job, kind=Kind.JOB)
    for name in ("run-w-0", "run-w-1"):
        pod = await lab.pod(lambda pod: pod.phase.is_over, name)
        assert (pod.phase, pod.message) == (Phase.SUCCEEDED, "ended by limit wall 1.5 s")
    await lab.until(lambda _: not lab.processes())
    snapshot = await lab.backend.snapshot()
    run = snapshot.run_named("run")
    state = learning_state(run, snapshot.pods_of("run"), NO_REPORTS, 0.0)
    assert state.state is Learning.DONE
    assert all(slot.state == "free" for slot in snapshot.ledger.slots.values())
    assert not (await lab.destroy()).left


async def test_a_learner_that_hangs_is_ended_after_its_deadline_and_a_successor_keeps_to_it(lab):
    learner = lab.set("deaf", "say", "up", "sleep", "600", name="learner", role=Role.LEARNER, grace_seconds=0.3)
    await launch(lab, Limits(wall=10), learner, lab.set("sleep", "600"))
    await lab.until_line("up", "run-learner-0")
    before = lab.store.named("run").status.limit_at
    lab.kill_supervisor()
    await lab.backend.adopt("run")
    pod = await lab.pod(lambda pod: pod.phase.is_over, "run-learner-0")
    assert pod.message == "ended by limit wall 10 s"
    assert lab.store.named("run").status.limit_at == before
    snapshot = await lab.backend.snapshot()
    state = learning_state(snapshot.run_named("run"), snapshot.pods_of("run"), NO_REPORTS, 0.0)
    assert (state.state, state.reason) == (Learning.DONE, "has finished, ended by limit wall 10 s")
    await lab.until(lambda _: not lab.processes())


async def test_limits_and_alerts_reach_the_learner_alone(lab):
    learner = lab.set("sleep", "600", name="learner", role=Role.LEARNER)
    await launch(lab, Limits(idle=600), learner, lab.set("sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready, "run-learner-0")
    assert json.loads(psutil.Process(pod.pid).environ()["L2R_LIMITS"]) == {"idle": 600, "gpus": 0}
    pod = await lab.pod(lambda pod: pod.ready)
    assert "L2R_LIMITS" not in psutil.Process(pod.pid).environ()


LIMIT_RULE = ("failed", "limit", "done")


async def launch_watched(lab, hook, limits, *actions):
    learner = lab.set(
        *actions, name="learner", role=Role.LEARNER, grace_seconds=0.3, restart=RestartPolicy.ON_FAILURE
    )
    plan = await lab.plan(learner)
    run = plan.runs[0]
    rules = (AlertRule(LIMIT_RULE, "webhook", url_from="L2RTEST_HOOK"),)
    watched = replace(run, spec=replace(run.spec, limits=limits, alerts=rules))
    assert [done.error async for done in lab.backend.launch(replace(plan, runs=(watched,)))]


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as webhook:
        monkeypatch.setenv("L2RTEST_HOOK", f"{webhook.url}/ok")
        yield webhook


async def test_a_learner_that_dies_again_and_again_is_told_once(lab, hook):
    await launch_watched(lab, hook, None, "sleep", "0.1", "exit", "3")
    await lab.pod(lambda pod: pod.restarts >= 2, "run-learner-0")
    await lab.until(lambda _: hook.texts)
    await lab.pod(lambda pod: pod.restarts >= 4, "run-learner-0")
    assert not (await lab.destroy()).left
    assert hook.texts == ["run: failed: exit 3"]


async def test_a_hung_learner_that_a_limit_ends_is_told_as_that(lab, hook):
    await launch_watched(lab, hook, Limits(wall=1), "deaf", "sleep", "600")
    await lab.until(lambda _: hook.texts)
    await lab.until(lambda _: not lab.processes())
    assert hook.texts == ["run: ended by limit wall 1 s"]


def record(limits, role=Role.LEARNER):
    spec = SetSpec("x", role, ("x",), grace_seconds=10)
    pod = DesiredPod("u", PodPlan("run-x-0", spec, 0, "", Seat("run", "x", 0, ()), ()), 0.0)
    run = RunSpec(Kind.LEARNER_WORKERS, "run", "run", (spec,), limits=limits)
    fields = {"uid": "u", "spec": run, "owner": "me", "node": "n", "boot": "b", "cwd": "/", "created": 0.0}
    places = {"endpoint": "", "socket_dir": "", "pods": (pod,), "backoff_seconds": 1.0, "log_max_bytes": 1}
    return RunRecord(**fields, **places)


def status(limit_at):
    return RunStatus(run="u", supervisor=ProcessIdentity(1, "x"), limit_at=limit_at)


@pytest.mark.parametrize(
    ("limits", "role", "before", "backstop"),
    [
        (None, Role.LEARNER, None, None),
        (Limits(idle=5), Role.LEARNER, None, None),
        (Limits(wall=60), Role.JOB, None, Backstop(160.0, "ended by limit wall 1 min")),
        (Limits(wall=60), Role.LEARNER, None, Backstop(180.0, "ended by limit wall 1 min")),
        (Limits(wall=60), Role.JOB, 130.0, Backstop(130.0, "ended by limit wall 1 min")),
        # Written before a boot, with a clock that has restarted since.
        (Limits(wall=60), Role.JOB, 9e9, Backstop(160.0, "ended by limit wall 1 min")),
    ],
)
def test_the_deadline_stays_that_of_the_first_supervisor(limits, role, before, backstop):
    assert backstop_of(record(limits, role), None if before is None else status(before), 100.0) == backstop


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"l2r":"end","run_id":"u","reason":"ended by limit idle 1 s","limit":true}', "ended by limit idle 1 s"),
        ('{"l2r":"end","run_id":"old","reason":"ended by limit idle 1 s","limit":true}', ""),
        ('{"l2r":"end","run_id":"u","reason":"1000 updates","limit":false}', ""),
        ("{", ""),
    ],
)
def test_the_learners_own_end_is_that_of_this_launch(tmp_path, text, reason):
    assert end_reason(tmp_path, "u") == ""
    (tmp_path / "end.json").write_text(text + "\n")
    assert end_reason(tmp_path, "u") == reason
