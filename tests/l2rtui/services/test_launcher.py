"""Launch, scale, kill, destroy over the in-memory cluster: refusals, roll-back, and records.

The contract suite and the command line's tests show that these work on real processes.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from msgspec.structs import replace

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import PlacementPolicy, parse_pins
from l2rtui.domain.preflight import Finding, Severity, refusals
from l2rtui.domain.receipt import Leftover, Receipt
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Queue, QueueSystem, Role, RunSpec, SetSpec
from l2rtui.errors import LaunchError, LeftBehindError, NotFoundError, RefusedError
from l2rtui.services import destroyed_specs, launcher
from l2rtui.services.history import journal
from l2rtui.services.spec.spec_file import LaunchRequest


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def backend():
    backend = FakeBackend(is_empty=True)
    for name in ("n1", "n2"):
        backend.put_node(Node(name, tuple(Gpu(name, index, slots=4) for index in range(2)), cpu_cores=8))
    return backend


def wish(workers=4):
    sets = (
        SetSpec("learner", Role.LEARNER, ("true",)),
        SetSpec("w", Role.WORKER, ("true",), replicas=workers),
    )
    return LaunchRequest(RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets))


@asynccontextmanager
async def ticking(backend):
    async def clock():
        while True:
            backend.advance(1)
            await asyncio.sleep(0.001)

    task = asyncio.create_task(clock())
    yield
    task.cancel()


async def launched(backend, **options):
    prepared = await launcher.prepare(backend, wish(), **options)
    done = [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)
    return done


async def test_a_launch_seats_every_replica_and_is_recorded(backend):
    done = await launched(backend)
    snapshot = await launcher.wait_running(backend, ["r"], 5)

    assert [step.step.kind for step in done] == ["Run"] + ["Pod"] * 5
    assert len(snapshot.pods_of("r")) == 5
    assert len(snapshot.ledger.free()) == 16 - 5
    assert next(iter(journal.entries()))["outcome"] == "done"


async def test_pins_policy_and_seeds(backend):
    await launched(backend, seeds=(3, 8), pins=parse_pins("n2/0-1,n1/1"), policy=PlacementPolicy.SPREAD)
    snapshot = await launcher.wait_running(backend, ["r-s3", "r-s8"], 5)

    assert {run.seed for run in snapshot.runs.values()} == {3, 8}
    assert {run.experiment for run in snapshot.runs.values()} == {"r"}
    used = {(slot.node, slot.gpu) for pod in snapshot.pods.values() for slot in pod.slots}
    assert used == {("n2", 0), ("n2", 1), ("n1", 1)}


async def test_too_many_workers_are_refused_and_nothing_is_made(backend):
    prepared = await launcher.prepare(backend, wish(workers=40))

    with pytest.raises(RefusedError, match="25 of 40 replicas do not fit"):
        [step async for step in launcher.launch(backend, prepared)]

    assert not (await backend.snapshot()).runs


async def test_a_name_in_use_is_refused(backend):
    await launched(backend)

    prepared = await launcher.prepare(backend, wish())

    assert [finding.sentence for finding in refusals(prepared.findings)] == ["a run named r exists"]


async def test_the_last_slots_taken_meanwhile_refuse_and_leave_the_winner_alone(backend):
    first = await launcher.prepare(backend, wish(workers=10))
    second = await launcher.prepare(backend, LaunchRequest(wish(workers=10).runs((2,))[0]))
    [step async for step in launcher.launch(backend, first)]

    with pytest.raises(RefusedError):
        [step async for step in launcher.launch(backend, second)]

    assert [run.name for run in (await backend.snapshot()).runs.values()] == ["r"]


async def test_a_launch_that_lost_its_slots_is_placed_on_others_within_the_devices_that_were_named(backend):
    first, second = [
        await launcher.prepare(backend, replace(wish(workers=2), spec=replace(wish(2).spec, name=name)), pins=pins)
        for name, pins in (("a", parse_pins("n2/1")), ("b", parse_pins("n2/0-1")[::-1]))
    ]
    [step async for step in launcher.launch(backend, first)]
    with pytest.raises(SlotTakenError, match=r"Slot n2/1\.0 is held by a-learner-0") as lost:
        [step async for step in launcher.launch(backend, second)]
    again = await launcher.replan(backend, second, lost.value)
    [step async for step in launcher.launch(backend, again)]
    slots = [str(slot) for pod in again.plan.runs[0].pods for slot in pod.seat.slots]
    assert slots == ["n2/1.3", "n2/0.0", "n2/0.1"]
    assert [run.uid for run in again.plan.runs] == [run.uid for run in second.plan.runs]


async def test_slots_that_a_person_named_are_not_replaced_by_others(backend):
    first, second = [
        await launcher.prepare(
            backend, replace(wish(2), spec=replace(wish(2).spec, name=name)), pins=parse_pins("n2/1.0-2")
        )
        for name in "ab"
    ]
    [step async for step in launcher.launch(backend, first)]
    with pytest.raises(SlotTakenError) as lost:
        [step async for step in launcher.launch(backend, second)]
    with pytest.raises(
        SlotTakenError, match=r"Slot n2/1\.0 is held by a-learner-0, so b-learner-0 cannot sit there"
    ):
        await launcher.replan(backend, second, lost.value)


async def test_a_failing_step_takes_the_launch_back(backend):
    backend.broken_pods["r-w-2"] = "no such command"
    prepared = await launcher.prepare(backend, wish())

    async with ticking(backend):
        with pytest.raises(
            LaunchError, match=r"Pod r-w-2 was not started: no such command\. The launch was rolled back"
        ):
            [step async for step in launcher.launch(backend, prepared)]

    snapshot = await backend.snapshot()
    assert (len(snapshot.runs), len(snapshot.pods)) == (0, 0)
    assert list(journal.entries())[-1]["outcome"] == "failed"


async def test_stopping_a_launch_half_way_takes_it_back():
    backend = FakeBackend(asyncio.get_running_loop().time, is_empty=True, step_seconds=0.05)
    backend.put_node(Node("n1", (Gpu("n1", 0, slots=8),)))
    prepared = await launcher.prepare(backend, wish())

    async def go():
        async with aclosing(launcher.launch(backend, prepared)) as steps:
            async for _ in steps:
                started.set()

    started = asyncio.Event()
    task = asyncio.create_task(go())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not (await backend.snapshot()).runs
    assert list(journal.entries())[-1]["outcome"] == "taken back"


async def test_waiting_ends_with_the_name_of_the_pod_that_does_not_run(backend):
    prepared = await launcher.prepare(backend, wish())
    [step async for step in launcher.launch(backend, prepared)]

    with pytest.raises(LaunchError, match=r"Not every worker runs after 0\.05 s: r-learner-0 waits to start"):
        await launcher.wait_running(backend, ["r"], 0.05)


async def test_waiting_for_less_than_a_moment_says_so(backend):
    prepared = await launcher.prepare(backend, wish())
    [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)

    with pytest.raises(LaunchError) as caught:
        await launcher.wait_running(backend, ["r"], launcher.SETTLE_SECONDS / 2)
    assert "they have only just started" in str(caught.value)
    assert "what was launched stays until `l2rtui destroy r`" in str(caught.value)


async def test_scale_up_and_down(backend):
    await launched(backend)

    up = await launcher.scale(backend, "r", "w", 6)
    assert [pod.name for pod in up.added] == ["r-w-4", "r-w-5"]
    backend.advance(5)
    down = await launcher.scale(backend, "r", "w", 1)
    assert down.removed == ("r-w-5", "r-w-4", "r-w-3", "r-w-2", "r-w-1")
    scales = [entry for entry in journal.entries() if entry["verb"] == "scale"]
    assert [(entry["target"], entry["outcome"], entry["replicas"]) for entry in scales] == [
        ("r/w", "asked", 6), ("r/w", "asked", 1),
    ]  # fmt: skip


async def test_slots_in_use_are_taken_by_those_alone_who_ask_for_them(backend):
    prepared = await launcher.prepare_runs(backend, [wish(workers=17).spec])
    assert prepared.plan.overcommitted == ()
    assert refusals(prepared.findings)


async def test_workers_of_a_backend_without_a_device_plugin_have_a_pod_each(backend):
    part = SetSpec(
        "w", Role.WORKER, ("true",), replicas=4, workers_per_pod=2, pod=PodSettings(binding=Binding.DEVICE_PLUGIN)
    )
    spec = RunSpec(Kind.LEARNER_WORKERS, "r", "r", (SetSpec("learner", Role.LEARNER, ("true",)), part))
    assert part.workers_in_pod == 2
    plan = (await launcher.prepare_runs(backend, [spec])).plan
    assert sorted(pod.name for pod in plan.runs[0].pods) == [
        "r-learner-0",
        *(f"r-w-{number}" for number in range(4)),
    ]


async def test_scale_goes_to_nodes_with_the_labels_of_the_set_alone(backend):
    for name, disk in (("n1", "hdd"), ("n2", "ssd")):
        gpus = tuple(Gpu(name, index, slots=4) for index in range(2))
        backend.put_node(Node(name, gpus, cpu_cores=8, labels=(("disk", disk),)))
    pod = PodSettings(node_selector=(("disk", "ssd"),))
    request = wish(workers=4)
    learner, part = request.spec.sets
    request = replace(request, spec=replace(request.spec, sets=(learner, replace(part, pod=pod))))
    checked = await launcher.prepare(backend, request)
    assert {seat.node for run in checked.plan.runs for seat in run.pods if seat.set_spec.name == "w"} == {"n2"}
    assert [step async for step in launcher.launch(backend, checked)]
    backend.advance(5)
    added = (await launcher.scale(backend, "r", "w", 6)).added
    assert [(seat.name, seat.node) for seat in added] == [("r-w-4", "n2"), ("r-w-5", "n2")]
    with pytest.raises(RefusedError, match="node n1 has no label disk=ssd, which the set w needs"):
        await launcher.scale(backend, "r", "w", 9)


async def test_what_was_given_up_a_moment_ago_is_wanted_again(backend):
    await launched(backend)
    await launcher.scale(backend, "r", "w", 1)

    again = await launcher.scale(backend, "r", "w", 3)

    assert [pod.name for pod in again.added] == ["r-w-1", "r-w-2"]
    backend.advance(5)
    snapshot = await backend.snapshot()
    assert [pod.name for pod in snapshot.pods_of("r", "w") if pod.ready] == ["r-w-0", "r-w-1", "r-w-2"]


@pytest.mark.parametrize(
    ("run", "set_name", "replicas", "error", "sentence"),
    [
        ("x", "w", 1, NotFoundError, "There is no run x"),
        ("r", "x", 1, NotFoundError, "r has no set x: it has learner, w"),
        ("r", "w", -1, RefusedError, "cannot be scaled to -1"),
        ("r", "learner", 2, RefusedError, "a learner set has exactly one replica"),
        ("r", "w", 99, RefusedError, "not fit"),
    ],
)
async def test_scaling_that_cannot_be(backend, run, set_name, replicas, error, sentence):
    await launched(backend)

    with pytest.raises(error, match=sentence):
        await launcher.scale(backend, run, set_name, replicas)


async def test_destroy_ends_in_a_receipt_that_is_recorded(backend):
    await launched(backend)
    run = (await backend.snapshot()).run_named("r")
    assert run is not None

    async with ticking(backend):
        items = [item async for item in launcher.destroy(backend, run)]

    assert isinstance(items[-1], Receipt)
    assert items[-1].sentence.startswith("nothing left of r (6 objects, 0 leaks, ")
    assert list(journal.entries())[-1]["verb"] == "destroy"


async def test_kill_brings_back_the_same_replica_under_another_uid(backend):
    await launched(backend)
    before = (await backend.snapshot()).pods_of("r", "w")[1]

    await launcher.kill(backend, [before])
    backend.advance(5)
    after = (await backend.snapshot()).pods_of("r", "w")[1]

    assert after.name == before.name
    assert after.uid != before.uid


async def test_a_process_that_dies_at_once_does_not_count_as_running(backend):
    prepared = await launcher.prepare(backend, wish(workers=1))
    [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)

    async def die():
        await asyncio.sleep(launcher.SETTLE_SECONDS / 2)
        pod = (await backend.snapshot()).pods_of("r", "w")[0]
        backend.put_pod(replace(pod, phase=Phase.FAILED, ready=False, exit_code=2))

    dying = asyncio.create_task(die())
    with pytest.raises(LaunchError, match=r"r-w-0 failed with exit 2\. See `l2rtui logs r-w-0`"):
        await launcher.wait_running(backend, ["r"], 5)
    await dying


async def test_a_process_that_came_back_meanwhile_does_not_count_as_running_before_it_stays(backend):
    prepared = await launcher.prepare(backend, wish(workers=1))
    [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)

    async def crash():
        await asyncio.sleep(launcher.SETTLE_SECONDS / 2)
        pod = (await backend.snapshot()).pods_of("r", "w")[0]
        backend.put_pod(replace(pod, restarts=pod.restarts + 1))  # Running again, as another process

    crashing = asyncio.create_task(crash())
    snapshot = await launcher.wait_running(backend, ["r"], 5)
    await crashing
    assert snapshot.pods_of("r", "w")[0].restarts == 1


async def test_a_pod_that_dies_later_than_a_moment_is_found_by_those_who_wait_longer(backend):
    prepared = await launcher.prepare(backend, wish(workers=1))
    [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)

    async def crash():
        await asyncio.sleep(3 * launcher.SETTLE_SECONDS)
        pod = (await backend.snapshot()).pods_of("r", "w")[0]
        backend.put_pod(replace(pod, restarts=pod.restarts + 1))

    crashing = asyncio.create_task(crash())
    snapshot = await launcher.wait_running(backend, ["r"], 20, settle_seconds=5 * launcher.SETTLE_SECONDS)
    assert crashing.done()
    assert snapshot.pods_of("r", "w")[0].restarts == 1


async def test_what_cannot_be_taken_back_is_named(backend, monkeypatch):
    backend.broken_pods["r-w-2"] = "no such command"
    prepared = await launcher.prepare(backend, wish())

    async def stuck(run, **_):
        yield Receipt(run.name, 3, (Leftover("Pod", "r-w-0", "does not end"),), 1.0)

    monkeypatch.setattr(backend, "destroy", stuck)
    with pytest.raises(LeftBehindError, match=r"1 left of r: Pod r-w-0 \(does not end\)") as caught:
        [step async for step in launcher.launch(backend, prepared)]

    assert caught.value.exit_code == 4


async def test_what_was_destroyed_is_launched_again_with_the_spec_that_it_had(backend):
    await launched(backend)
    snapshot = await launcher.wait_running(backend, ["r"], 5)
    async with ticking(backend):
        async for _ in launcher.destroy(backend, snapshot.run_named("r")):
            pass
    again = await launcher.prepare_runs(backend, destroyed_specs.find())
    assert [run.spec for run in again.plan.runs] == [wish().spec]


async def test_overcommit_waves_and_binding_reach_the_plan(backend):
    assert (await launcher.prepare(backend, wish())).plan.wave == 0, "all pods at once"
    prepared = await launcher.prepare(backend, wish(workers=17), overcommit=True, wave=3, binding=Binding.SHARED)
    assert (prepared.plan.wave, len(prepared.plan.overcommitted)) == (3, 2)
    assert {pod.set_spec.pod.binding for pod in prepared.plan.runs[0].pods} == {Binding.SHARED}
    assert any("is over-committed" in finding.sentence for finding in prepared.findings)


async def test_what_was_changed_in_an_imported_file_is_told_with_the_plan(backend):
    note = Finding(Severity.WARNING, "ReplicaSet x", "it was changed")
    prepared = await launcher.prepare(backend, replace(wish(), notes=(note,)))
    assert note in prepared.findings


async def test_fields_of_kubernetes_are_said_to_be_ignored_elsewhere(backend):
    request = wish()
    learner, workers = request.spec.sets
    patched = replace(workers, pod=replace(workers.pod, templates=('{"spec":{"priorityClassName":"high"}}',)))
    spec = replace(request.spec, sets=(learner, patched))

    prepared = await launcher.prepare(backend, replace(request, spec=spec))

    (ignored,) = [item for item in prepared.findings if "pod.template" in item.sentence]
    assert (ignored.severity, ignored.subject) == (Severity.WARNING, "r/w")
    assert "ignored" in ignored.sentence
    assert not refusals(prepared.findings)


async def test_a_run_that_was_admitted_as_a_whole_is_not_scaled(backend):
    request = wish()
    queue = Queue(QueueSystem.KUEUE, "team")
    prepared = await launcher.prepare(backend, replace(request, spec=replace(request.spec, queue=queue)))
    assert any(item.sentence.startswith("queue is ignored") for item in prepared.findings)
    [step async for step in launcher.launch(backend, prepared)]
    backend.advance(5)

    with pytest.raises(RefusedError, match="the queue team has admitted its pods as a whole"):
        await launcher.scale(backend, "r", "w", 5)
