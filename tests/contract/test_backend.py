"""Contract of every backend: one set of tests, and a fixture that makes each backend."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from l2rtui.backends.base import Backend
from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.log import LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import Placement, Seat, parse_pins, place
from l2rtui.domain.plan import LaunchPlan, ScalePlan, plan_launch, plan_pod
from l2rtui.domain.receipt import DestroyProgress, Receipt
from l2rtui.domain.secret import Secret, SecretKind
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, RunView
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError
from l2rtui.services import launcher
from l2rtui.services.history.recorder import is_recorded
from l2rtui.services.history.store import HistoryStore
from runtime.base import contract
from runtime.base.docker_client import DockerEndpoint
from tests.cluster.conftest import IMAGE, kubeconfig, namespace
from tests.fakes.docker_engine import FakeDockerEngine

__all__ = ["kubeconfig", "namespace"]  # fixtures

DEADLINE_SECONDS = 60.0
SPEAKS = ("sh", "-c", "echo hello; exec sleep 600")
PINS = {"kubernetes": parse_pins("phortx3/6-7")}
"""Placement of the tests on a machine or cluster that has more than eight slots."""


@pytest.fixture
def fake_engine(tmp_path: Path) -> Iterator[FakeDockerEngine]:
    engine = FakeDockerEngine(str(tmp_path / "docker.sock"), images=(IMAGE,), is_live=True)
    yield engine
    engine.close()


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.process),
        "fake",
        pytest.param("kubernetes", marks=[pytest.mark.cluster, pytest.mark.smoke]),
        "docker on a fake Engine",
        pytest.param("docker", marks=pytest.mark.cluster),  # an Engine comes with the cluster
    ]
)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """A backend without runs and with eight slots for the test."""
    if request.param == "kubernetes":
        made: Backend = KubernetesBackend(Settings(namespaces=(request.getfixturevalue("namespace"),)))
    elif request.param == "docker":
        made = DockerBackend(Settings(slots_per_core=8, max_cpu_slots=8))
    elif request.param == "docker on a fake Engine":
        endpoint = DockerEndpoint(request.getfixturevalue("fake_engine").url)
        made = DockerBackend(Settings(slots_per_core=8, max_cpu_slots=8), endpoint=endpoint)
    elif request.param == "local":
        made = LocalBackend(Settings(slots_per_core=8, max_cpu_slots=8), state=tmp_path / "local")
    else:
        made = fake = FakeBackend(time.time, is_empty=True)
        fake.put_node(Node("n1", (Gpu("n1", 0, "GPU-0", slots=8),), cpu_cores=8, memory_bytes=1 << 34))
    yield made
    for run in (await made.snapshot()).runs.values():
        receipt = [item async for item in made.destroy(run, grace_seconds=0.0, purge=True)][-1]
        assert isinstance(receipt, Receipt)
        assert receipt.left == ()
    await made.close()


def spec(name: str = "run", replicas: int = 2) -> RunSpec:
    sets = (
        SetSpec("learner", Role.LEARNER, SPEAKS, grace_seconds=2.0),
        SetSpec("w", Role.WORKER, SPEAKS, replicas=replicas, grace_seconds=2.0),
    )
    return RunSpec(Kind.LEARNER_WORKERS, name, name, sets, image=IMAGE)


def seats(backend: Backend, one: RunSpec, snapshot: ClusterSnapshot, taken: Iterable[Seat] = ()) -> Placement:
    return place([one], snapshot.ledger, pins=PINS.get(backend.name, ()), existing=taken)


async def plan_of(backend: Backend, one: RunSpec) -> LaunchPlan:
    snapshot = await backend.snapshot()
    plan = plan_launch([one], seats(backend, one, snapshot), snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])
    return await backend.renderer.planned(plan) if backend.renderer is not None else plan


def free_slots(backend: Backend, snapshot: ClusterSnapshot) -> int:
    pins = {(pin.node, pin.gpu) for pin in PINS.get(backend.name, ())}
    return sum(not pins or (slot.node, slot.gpu) in pins for slot in snapshot.ledger.free())


async def launched(backend: Backend, one: RunSpec | None = None) -> ClusterSnapshot:
    one = one or spec()
    async for done in backend.launch(await plan_of(backend, one)):
        assert done.error == ""
    wanted = sum(each.replicas for each in one.sets)
    return await until(backend, lambda snapshot: sum(pod.ready for pod in snapshot.pods_of(one.name)) == wanted)


async def until(backend: Backend, is_true: Callable[[ClusterSnapshot], bool]) -> ClusterSnapshot:
    """Follow the watch until a condition holds; only the watch may report it."""
    snapshot = EMPTY_SNAPSHOT
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for changes in backend.watch():
            snapshot = apply(snapshot, changes)
            if is_true(snapshot):
                return snapshot
    raise AssertionError(snapshot)


async def destroyed(backend: Backend, run: RunView | None) -> tuple[list[DestroyProgress], Receipt]:
    assert run is not None
    *progress, receipt = [item async for item in backend.destroy(run)]
    assert isinstance(receipt, Receipt)
    assert all(isinstance(item, DestroyProgress) for item in progress)
    return progress, receipt


async def test_an_empty_backend_shows_its_nodes(backend):
    snapshot = await until(backend, lambda snapshot: bool(snapshot.nodes))
    assert free_slots(backend, snapshot) == 8
    assert (snapshot.runs, snapshot.problems) == ({}, ())
    assert (await backend.leaks()).leaks == ()
    assert await backend.doctor()


async def test_a_launch_reports_each_step_and_fills_slots(backend):
    plan = await plan_of(backend, spec())
    assert not (await backend.snapshot()).runs
    assert await backend.check(plan)
    assert not (await backend.snapshot()).runs
    steps = [done.step async for done in backend.launch(plan)]
    assert tuple(steps) == plan.steps()
    snapshot = await until(backend, lambda seen: sum(pod.ready for pod in seen.pods_of("run")) == 3)
    run = snapshot.runs[plan.runs[0].uid]
    assert (run.name, run.owner, run.kind, run.reason) == ("run", "me", "learner-workers", "")
    assert {(one.name, one.replicas) for one in run.sets} == {("learner", 1), ("w", 2)}
    for planned in plan.runs[0].pods:
        (pod,) = snapshot.select(f"run/{planned.set_spec.name}/{planned.index}")
        assert pod.slots == planned.seat.slots
        slot = snapshot.ledger.slots[pod.slots[0]]
        assert (slot.state, slot.owner, slot.run, slot.pod) == (SlotState.BUSY, "me", "run", pod.name)
    assert await backend.spec("run") == spec()


async def test_names_and_slots_are_taken_once(backend):
    plan = await plan_of(backend, spec())
    other = await plan_of(backend, spec("other"))
    await launched(backend)
    for refused in (plan, other):
        with pytest.raises(RefusedError):
            [done async for done in backend.launch(refused)]
    assert [run.name for run in (await backend.snapshot()).runs.values()] == ["run"]


async def launched_where_free(backend: Backend, name: str, planned: asyncio.Barrier) -> str:
    """Launch one worker once all have planned; return the sentence of its refusal, empty if it was launched."""
    one = RunSpec(Kind.JOB, name, name, (SetSpec("w", Role.WORKER, SPEAKS, grace_seconds=1.0),), image=IMAGE)
    prepared = await launcher.prepare_runs(backend, [one], pins=PINS.get(backend.name, ()))
    async with planned:
        pass
    while True:
        try:
            async for done in launcher.launch(backend, prepared):
                assert done.error == ""
        except SlotTakenError as error:
            prepared = await launcher.replan(backend, prepared, error)
        except RefusedError as error:
            return str(error)
        else:
            return ""


def learner_of_nodes(name: str = "nodes") -> RunSpec:
    """Return a run whose learner has two nodes, which say where they meet."""
    command = ("sh", "-c", "echo $L2R_INDEX of $L2R_PEERS; exec sleep 600")
    learner = SetSpec(
        "learner", Role.LEARNER, command, replicas=2, grace_seconds=2.0, stable=True, port=contract.RENDEZVOUS_PORT
    )
    return RunSpec(Kind.LEARNER_WORKERS, name, name, (learner,), image=IMAGE)


async def test_the_nodes_of_a_learner_are_one_set_that_is_claimed_whole(backend):
    planned = await plan_of(backend, learner_of_nodes())
    free = free_slots(backend, await backend.snapshot())
    await launched(backend, spec("full", free - 2))  # with its learner all but one
    with pytest.raises(RefusedError):
        async for _ in backend.launch(planned):
            pass
    snapshot = await backend.snapshot()
    (full,) = snapshot.runs.values()
    assert (full.name, free_slots(backend, snapshot)) == ("full", 1), "no half of it"
    await destroyed(backend, full)
    snapshot = await launched(backend, learner_of_nodes())
    (run,) = snapshot.runs.values()
    assert [(view.name, view.replicas) for view in run.sets] == [("learner", 2)]
    pods = snapshot.pods_of("nodes")
    assert [(pod.role, pod.index) for pod in pods] == [(Role.LEARNER, 0), (Role.LEARNER, 1)]
    assert all(pod.name.startswith(f"nodes-learner-{pod.index}") for pod in pods)
    assert free_slots(backend, snapshot) == free - 2
    _, receipt = await destroyed(backend, run)
    assert receipt.left == ()


@pytest.mark.process
async def test_launches_at_once_get_slots_of_their_own_while_any_are_free(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "history"))
    number = free_slots(backend, await backend.snapshot())
    planned = asyncio.Barrier(number + 1)
    names = [f"run{index}" for index in range(number + 1)]
    refused = await asyncio.gather(*(launched_where_free(backend, name, planned) for name in names))
    (sentence,) = filter(None, refused)
    where, free = "", f"0 of {number}"
    if backend.name in PINS:  # its other slots are counted, too
        where, free = (
            f" among {', '.join(map(str, PINS[backend.name]))}",
            sentence.partition("(")[2].partition(" slots")[0],
        )
    told, _, holders = sentence.partition("; ")
    if backend.name in PINS:
        assert " is held by run" in holders
        sentence = told + sentence[sentence.rindex("). ") :]
    assert sentence == (
        f"The launch is refused: 1 of 1 replica does not fit{where} "
        f"({free} slots are free for the whole plan). "
        "Wait with `launch --queue`, scale down, destroy a run, or name other slots with --on."
    )
    snapshot = await until(backend, lambda snapshot: sum(pod.ready for pod in snapshot.pods.values()) == number)
    slots = [slot for pod in snapshot.pods.values() for slot in pod.slots]
    assert (len(slots), len(set(slots))) == (number, number)
    with HistoryStore() as store:  # a lost race leaves no record
        assert len(store.entries()) == (number if is_recorded(backend) else 0)


async def test_a_killed_pod_comes_back_as_another(backend):
    snapshot = await launched(backend)
    before = snapshot.select("run/w/0")[0]
    await backend.kill([before])
    snapshot = await until(
        backend, lambda seen: any(pod.ready and pod.uid != before.uid for pod in seen.select("run/w/0"))
    )
    after = next(pod for pod in snapshot.select("run/w/0") if pod.uid != before.uid)  # the old one may still end
    assert (after.index, after.slots) == (before.index, before.slots)
    await until(backend, lambda seen: before.uid not in seen.pods)  # a cluster replaces it before it has ended
    with pytest.raises(NotFoundError):
        await backend.kill([before])


async def test_a_set_is_scaled(backend):
    snapshot = await launched(backend)
    await backend.scale(ScalePlan("run", "w", 1, (), ("run-w-1",)))
    snapshot = await until(backend, lambda seen: len(seen.pods_of("run", "w")) == 1)
    wanted = (await backend.spec("run")).with_replicas("w", 3)
    taken = [Seat(pod.run, pod.set_name, pod.index, pod.slots) for pod in snapshot.pods_of("run")]
    (seat, other) = seats(backend, wanted, snapshot, taken).seats
    one = wanted.sets[1]
    added = (plan_pod(wanted, one, seat, snapshot.nodes), plan_pod(wanted, one, other, snapshot.nodes))
    await backend.scale(ScalePlan("run", "w", 3, added, ()))
    snapshot = await until(backend, lambda seen: sum(pod.ready for pod in seen.pods_of("run", "w")) == 3)
    assert [one.replicas for one in snapshot.run_named("run").sets] == [1, 3]
    assert await backend.spec("run") == wanted


async def test_logs_are_read_and_followed_to_the_end(backend):
    snapshot = await launched(backend)
    pod = snapshot.select("run/w/0")[0]
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (lines := [line async for line in backend.logs(pod, LogQuery(tail=5))]):
            await asyncio.sleep(0.05)
    assert 0 < len(lines) <= 5
    assert {line.pod for line in lines} == {pod.name}
    assert all(time.time() - 120 < line.time < time.time() + 1 for line in lines)
    assert not [line async for line in backend.logs(pod, LogQuery(since=time.time() + 3600))]

    async def follow():
        return [line async for line in backend.logs(pod, LogQuery(follow=True))]

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    await destroyed(backend, snapshot.run_named("run"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert {line.pod for line in await following} <= {pod.name}


async def test_a_destroy_counts_down_and_ends_with_a_receipt(backend):
    snapshot = await launched(backend)
    run = snapshot.run_named("run")
    progress, receipt = await destroyed(backend, run)
    assert ("Pod", 3) in progress[0].left
    assert (receipt.run, receipt.left) == ("run", ())
    assert receipt.objects >= 4
    snapshot = await backend.snapshot()
    assert (snapshot.runs, snapshot.pods_of("run")) == ({}, ())
    assert free_slots(backend, snapshot) == 8
    assert (await backend.leaks()).leaks == ()
    with pytest.raises(NotFoundError):
        await destroyed(backend, run)


async def test_parts_that_a_backend_lacks_are_none(backend):
    assert backend.location is None or isinstance(backend.location, str)
    assert backend.acts_on().startswith("on ")
    assert set(await backend.denied()) <= {"launch", "kill", "scale", "destroy", "exec", "forward", "reserve"}
    snapshot = await backend.snapshot()
    if backend.results is not None:
        assert await backend.results("nothing") is None
    assert backend.inspector is not None
    assert await backend.inspector.describe(next(iter(snapshot.nodes.values())))
    assert isinstance(await backend.inspector.events(), tuple)
    if backend.volumes is not None:
        assert len({volume.name for volume in await backend.volumes.list()}) == len(await backend.volumes.list())
    if backend.adopt is not None:
        with pytest.raises(NotFoundError):
            await backend.adopt("nothing")


async def test_pods_runs_and_nodes_are_described_with_what_happened_to_them(backend, monkeypatch):
    # The stand-in nodes of the test cluster start nothing; its real kubelet does, and reports it.
    monkeypatch.setitem(PINS, "kubernetes", parse_pins("phortx0/6-7"))
    snapshot = await launched(backend)
    inspector, run, pod = backend.inspector, snapshot.run_named("run"), snapshot.select("run/w/0")[0]
    for target in (run, pod, snapshot.nodes[pod.node]):
        lines = await inspector.describe(target)
        assert target.name in "\n".join(lines)
        assert not any("\n" in line for line in lines)
    async with asyncio.timeout(DEADLINE_SECONDS):
        # A cluster writes its events some moments after their cause.
        while "Started" not in {event.reason for event in await inspector.events(pod)}:
            await asyncio.sleep(0.05)
    events = await inspector.events(pod)
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert all(time.time() - 600 < event.time < time.time() + 60 for event in events)
    assert all(event.level in ("Normal", "Warning") for event in events)
    assert {event.object for event in events} == {f"Pod {pod.name}"}
    of_all = {(event.object, event.reason) for event in await inspector.events()}
    assert {(event.object, event.reason) for event in await inspector.events(run)} <= of_all
    assert (f"Pod {pod.name}", "Started") in of_all
    await destroyed(backend, run)
    for target in (run, pod):
        with pytest.raises(NotFoundError):
            await inspector.describe(target)


async def test_a_port_that_nobody_listens_at_says_so_for_each_connection(backend, monkeypatch):
    monkeypatch.setitem(PINS, "kubernetes", parse_pins("phortx0/6-7"))
    snapshot = await launched(backend)
    pod = snapshot.select("run/w/0")[0]
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(backend.inspector.forward(pod, 0, 9)) as sentences:
        if isinstance(backend, FakeBackend):
            with pytest.raises(BackendError, match="no processes"):
                await anext(sentences)
            return
        address = re.search(r"127\.0\.0\.1:(\d+)", await anext(sentences))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address[1]))
        assert pod.name in await anext(sentences)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("backend", ["fake", "docker on a fake Engine"], indirect=True)
async def test_a_backend_without_a_place_for_secrets_has_no_store(backend):
    assert backend.secrets is None


@pytest.mark.parametrize("backend", ["local", pytest.param("kubernetes", marks=pytest.mark.cluster)], indirect=True)
async def test_a_secret_is_stored_once_and_shows_no_value(backend):
    secret = Secret("contract-test", SecretKind.VARIABLES, (("TOKEN", "hidden-value"),))
    await backend.secrets.keep(secret)
    with pytest.raises(RefusedError):
        await backend.secrets.keep(secret)
    await backend.secrets.keep(secret, replace=True)
    (view,) = [view for view in await backend.secrets.list() if view.name == secret.name]
    assert (view.kind, view.keys) == (SecretKind.VARIABLES, ("TOKEN",))
    assert "hidden-value" not in repr(view)
    await backend.secrets.delete(secret.name)
    with pytest.raises(NotFoundError):
        await backend.secrets.delete(secret.name)


@pytest.mark.process
async def test_a_command_in_a_pod_gives_its_output_and_code(backend, monkeypatch):
    # The stand-in nodes of the test cluster run no processes; its real kubelet does.
    monkeypatch.setitem(PINS, "kubernetes", parse_pins("phortx0/6-7"))
    snapshot = await launched(backend)
    pod = snapshot.select("run/w/0")[0]
    output = await backend.capture(pod, ("sh", "-c", "echo out; echo err >&2; exit 3"))
    if isinstance(backend, FakeBackend):
        assert output.code != 0, "the demo has no processes, and answers for simulators alone"
        return
    assert (output.code, output.out, output.err) == (3, b"out\n", b"err\n")


async def test_what_is_not_there_is_not_found(backend):
    with pytest.raises(NotFoundError):
        await backend.spec("nothing")
    with pytest.raises(NotFoundError):
        await backend.scale(ScalePlan("nothing", "w", 1, (), ()))


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_launch_that_is_left_early_can_be_seen_and_destroyed(backend, steps):
    plan = await plan_of(backend, spec())
    stream = backend.launch(plan)
    for _ in range(steps):
        await anext(stream)
    await stream.aclose()
    run = (await backend.snapshot()).runs[plan.runs[0].uid]
    _, receipt = await destroyed(backend, run)
    assert receipt.left == ()
    assert not (await backend.snapshot()).pods_of("run")
