"""The in-memory cluster: identical every time, and changed only by its caller."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.change import apply
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.log import LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import Seat, place
from l2rtui.domain.plan import ScalePlan, plan_launch, plan_pod
from l2rtui.domain.receipt import DestroyProgress, Leak, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView, RunView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

SPEC = RunSpec(Kind.JOB, "r", "r", (SetSpec("job", Role.JOB, ("true",), replicas=2, restart=RestartPolicy.NEVER),))


@pytest.fixture
def backend():
    backend = FakeBackend(is_empty=True)
    backend.put_node(Node("n", (Gpu("n", 0),)))
    return backend


async def planned(backend, *specs):
    snapshot = await backend.snapshot()
    uids = [f"uid-{spec.name}" for spec in specs]
    return plan_launch(specs, place(specs, snapshot.ledger), snapshot.nodes, owner="me", uids=uids)


async def launched(backend, spec=SPEC):
    steps = [done async for done in backend.launch(await planned(backend, spec))]
    backend.advance(1.0)
    return steps


async def phases(backend):
    return [(pod.name, str(pod.phase)) for pod in (await backend.snapshot()).pods.values()]


async def test_the_demo_does_not_contradict_itself():
    backend = FakeBackend()
    snapshot = await backend.snapshot()
    pods = {pod.name: pod for pod in snapshot.pods.values()}

    async def last(name, count):
        return [line.text async for line in backend.logs(pods[name], LogQuery(tail=count))]

    *_, newest = await last("racing-sac-s1-w-3", 5)
    assert newest.startswith("ERROR out of memory"), "a pod that crashes again and again makes no steps"
    for run, workers in (("racing-sac-s0", 4), ("racing-sac-s1", 3), ("lidar-ppo", 7)):
        records = [json.loads(text) for text in await last(f"{run}-learner-0", 9)]
        assert {record["workers"] for record in records} == {workers}
        # Two figures of one run are not one curve under two names.
        shapes = [
            [record[name] > records[0][name] for record in records]
            for name in ("mean_return", "env_steps_per_second", "updates_per_second", "critic_loss")
        ]
        assert len({tuple(shape) for shape in shapes}) == len(shapes)


async def test_two_demo_clusters_are_equal():
    first, second = await FakeBackend().snapshot(), await FakeBackend().snapshot()
    assert (dict(first.nodes), dict(first.pods), dict(first.runs)) == (
        dict(second.nodes), dict(second.pods), dict(second.runs),
    )  # fmt: skip
    assert {state: first.ledger.count(state) for state in SlotState} == {
        SlotState.FREE: 37, SlotState.BUSY: 27, SlotState.OFF: 31, SlotState.FAILED: 1, SlotState.UNKNOWN: 0,
        SlotState.RESERVED: 0,
    }  # fmt: skip
    assert first.ledger.problems == ()


async def test_a_launch_reports_each_step_and_pods_start_as_time_goes_by(backend):
    steps = [done async for done in backend.launch(await planned(backend, SPEC))]
    assert [done.step.name for done in steps] == ["r", "r-job-0", "r-job-1"]
    assert await phases(backend) == [("r-job-0", "Pending"), ("r-job-1", "Pending")]
    backend.advance(1.0)
    assert await phases(backend) == [("r-job-0", "Running"), ("r-job-1", "Running")]
    backend.advance(60.0)
    assert await phases(backend) == [("r-job-0", "Succeeded"), ("r-job-1", "Succeeded")]


async def test_a_slot_that_is_taken_meanwhile_is_refused(backend):
    other = RunSpec(Kind.JOB, "other", "other", SPEC.sets)
    late = await planned(backend, other)
    await launched(backend)
    with pytest.raises(RefusedError, match=r"Slot n/0\.0 is held by r-job-0"):
        await anext(backend.launch(late))
    assert len((await backend.snapshot()).runs) == 1


async def test_a_name_that_is_taken_meanwhile_is_refused(backend):
    await launched(backend)
    again = await planned(backend, SPEC)
    with pytest.raises(RefusedError, match="A run named r exists"):
        await anext(backend.launch(again))


async def test_a_pod_that_is_to_fail_fails_its_step(backend):
    backend.broken_pods["r-job-1"] = "no such command"
    errors = [done.error for done in await launched(backend)]
    assert errors == ["", "", "no such command"]


async def test_a_killed_pod_comes_back_under_a_new_uid(backend):
    await launched(backend)
    victim = (await backend.snapshot()).pods_of("r")[0]
    await backend.kill([victim])
    assert (await backend.snapshot()).pods[victim.uid].is_terminating
    backend.advance(0.6)
    fresh = (await backend.snapshot()).pods_of("r")[0]
    assert (fresh.name, fresh.slots) == (victim.name, victim.slots)
    assert fresh.uid != victim.uid
    with pytest.raises(NotFoundError, match="is gone"):
        await backend.kill([victim])


async def test_scale_starts_and_stops_replicas(backend):
    await launched(backend)
    snapshot, spec = await backend.snapshot(), SPEC.with_replicas("job", 3)
    taken = [Seat("r", "job", pod.index, pod.slots) for pod in snapshot.pods.values()]
    (seat,) = place([spec], snapshot.ledger, existing=taken).seats
    await backend.scale(ScalePlan("r", "job", 3, (plan_pod(spec, spec.sets[0], seat, snapshot.nodes),), ()))
    assert (await backend.spec("r")).sets[0].replicas == 3
    await backend.scale(ScalePlan("r", "job", 1, (), ("r-job-2", "r-job-1")), grace_seconds=0)
    assert await phases(backend) == [("r-job-0", "Running")]
    with pytest.raises(NotFoundError, match="There is no run x"):
        await backend.spec("x")


async def test_destroy_counts_down_and_gives_a_receipt(backend):
    await launched(backend)
    run = (await backend.snapshot()).run_named("r")
    stream = backend.destroy(run)
    assert await anext(stream) == DestroyProgress((("Pod", 2), ("Run", 1)))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    backend.advance(0.6)
    assert await waiting == Receipt("r", 3, (), pytest.approx(0.6))
    assert not (await backend.snapshot()).pods
    with pytest.raises(NotFoundError, match="run r is gone"):
        await anext(backend.destroy(run))


async def test_the_watch_tells_what_changes_and_nothing_else(backend):
    async with aclosing(backend.watch()) as changes:
        snapshot = apply(EMPTY_SNAPSHOT, await anext(changes))
        assert list(snapshot.nodes) == ["n"]
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        assert not waiting.done()
        backend.put_pod(PodView("u", "p", "n", phase=Phase.RUNNING))
        snapshot = apply(snapshot, await waiting)
        assert list(snapshot.pods) == ["u"]
        backend.drop_pod("u")
        assert not apply(snapshot, await anext(changes)).pods


async def test_a_clock_of_its_own_needs_nobody(backend):
    now = 1000.0

    def clock():
        nonlocal now
        now += 0.4
        return now

    live = FakeBackend(clock, is_empty=True)
    live.put_node(Node("n", (Gpu("n", 0),)))
    plan = await planned(live, SPEC)
    async for _ in live.launch(plan):
        pass
    async with asyncio.timeout(60), aclosing(live.watch()) as changes:
        snapshot = EMPTY_SNAPSHOT
        async for batch in changes:
            snapshot = apply(snapshot, batch)
            if snapshot.pods and all(pod.phase is Phase.RUNNING for pod in snapshot.pods.values()):
                break


async def test_an_outage_is_an_error_until_it_ends(backend):
    backend.outage = "the API server does not answer"
    with pytest.raises(BackendError, match="does not answer"):
        await backend.snapshot()
    backend.outage = ""
    assert list((await backend.snapshot()).nodes) == ["n"]


async def test_logs_are_drawn_from_the_time_alone():
    backend = FakeBackend()
    learner = (await backend.snapshot()).pods_of("racing-sac-s0")[0]
    (last,) = [line async for line in backend.logs(learner, LogQuery(tail=1))]
    whole = [line async for line in backend.logs(learner, LogQuery())]
    for count in (0, 1, 40, len(whole)):
        assert [line async for line in backend.logs(learner, LogQuery(tail=count))] == whole[len(whole) - count :]
    record = json.loads(last.text)
    assert (record["l2r"], record["time"]) == ("learner", last.time)
    follower = backend.logs(learner, LogQuery(follow=True, tail=1))
    assert await anext(follower) == last
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    backend.advance(1.0)
    newer = await waiting
    assert json.loads(newer.text)["env_steps"] > record["env_steps"]
    assert newer.time == last.time + 1.0
    backend.drop_pod(learner.uid)
    assert [line async for line in follower] == []


async def test_a_pod_that_restarted_tells_so_and_has_a_log_before():
    backend = FakeBackend()
    (crashing,) = (await backend.snapshot()).select("racing-sac-s1/w/3")
    first = await anext(backend.logs(crashing, LogQuery()))
    assert first.is_mark
    before = [line.text async for line in backend.logs(crashing, LogQuery(previous=True))]
    assert "out of memory" in before[-1]
    healthy = (await backend.snapshot()).pods_of("racing-sac-s0")[0]
    assert [line async for line in backend.logs(healthy, LogQuery(previous=True))] == []


async def test_it_says_what_it_is(backend):
    plan = await planned(backend, SPEC)
    assert "nothing is launched" in (await backend.check(plan))[0].sentence
    assert "invented" in (await backend.doctor())[0].sentence
    with pytest.raises(BackendError, match="no processes"):
        await backend.exec(PodView("u", "p"), ["ls"])
    backend.leaked.append(Leak("r", "Pod", "p", "nobody looks after it"))
    assert [leak.name for leak in (await backend.leaks()).leaks] == ["p"]
    with pytest.raises(NotFoundError):
        await anext(backend.destroy(RunView("u", "r", "r")))
    await backend.close()
