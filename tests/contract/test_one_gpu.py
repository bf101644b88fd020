"""One GPU and a CPU, on every backend: sets that need no GPU, exact accounts, over-committed slots."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from l2rtui.backends.base import Backend
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import CPU, Gpu, Node
from l2rtui.domain.placement import parse_pins
from l2rtui.domain.preflight import refusals
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, with_binding
from l2rtui.errors import RefusedError
from l2rtui.services import launcher
from runtime.base.docker_endpoint import DockerEndpoint
from tests.cluster.conftest import IMAGE
from tests.fakes.docker_engine import FakeDockerEngine
from tests.fakes.kubernetes_objects import ObjectServer, serving
from tests.fakes.nvml import FakeGpu, FakeNvml

DEADLINE_SECONDS = 60.0
SETTINGS = Settings(slots_per_gpu=4, slots_per_core=64, max_cpu_slots=8)
SPEAKS = ("sh", "-c", "exec sleep 600")


@pytest.fixture
async def api_server() -> AsyncIterator[ObjectServer]:
    """A cluster in memory with one node of one GPU and a taint that keeps pods without a GPU away."""
    async with serving(ObjectServer()) as running:
        size = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        running.put(
            {
                "kind": "Node",
                "metadata": {"name": "box", "labels": {labels.GPUS: "1", labels.HOSTNAME: "box"}},
                "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "allocatable": size,
                    "capacity": size,
                },
            }
        )
        yield running


@pytest.fixture
def engine(tmp_path: Path):
    made = FakeDockerEngine(str(tmp_path / "docker.sock"), images=(IMAGE,), is_live=True)
    made.info["Runtimes"] = {"runc": {}, "nvidia": {}}
    yield made
    made.close()


@pytest.fixture(params=["local", "fake", "kubernetes", "docker"])
async def backend(
    request: pytest.FixtureRequest, tmp_path: Path, api_server: ObjectServer, engine: FakeDockerEngine
) -> AsyncIterator[Backend]:
    """A backend without runs: one node with one GPU of four slots, and a CPU of eight."""
    nvml = FakeNvml(FakeGpu(uuid="GPU-only"))
    if request.param == "kubernetes":
        config = {
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": api_server.base}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        made: Backend = KubernetesBackend(replace(SETTINGS, namespaces=("ml",)), str(path))
    elif request.param == "docker":
        made = DockerBackend(SETTINGS, endpoint=DockerEndpoint(engine.url), nvml=nvml)
    elif request.param == "local":
        made = LocalBackend(SETTINGS, state=tmp_path / "local", nvml=nvml)
    else:
        made = fake = FakeBackend(time.time, is_empty=True)
        cpu = Gpu("box", CPU, slots=8, is_cpu=True)
        fake.put_node(Node("box", (Gpu("box", 0, "GPU-only"),), cpu_cores=8, memory_bytes=1 << 34, cpu=cpu))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.close)
        yield made
        for run in (await made.snapshot()).runs.values():
            receipt = [item async for item in made.destroy(run, grace_seconds=0.0, purge=True)][-1]
            assert isinstance(receipt, Receipt)
            assert receipt.left == ()


def spec(name: str = "run", workers: int = 4) -> RunSpec:
    """The shape of the first example: a learner for the GPU, workers and an evaluator that need none."""
    sets = (
        SetSpec("learner", Role.LEARNER, SPEAKS, grace_seconds=0.0),
        SetSpec("w", Role.WORKER, SPEAKS, replicas=workers, grace_seconds=0.0, may_use_cpu=True),
        SetSpec("eval", Role.EVALUATOR, SPEAKS, grace_seconds=0.0, may_use_cpu=True),
    )
    return RunSpec(Kind.LEARNER_WORKERS, name, name, sets, image=IMAGE)


async def launched(backend: Backend, one: RunSpec, **options) -> ClusterSnapshot:
    prepared = await launcher.prepare_runs(backend, [one], **options)
    assert refusals(prepared.findings) == ()
    steps = [done async for done in launcher.launch(backend, prepared)]
    assert {done.error for done in steps} == {""}
    wanted = sum(part.replicas for part in one.sets)
    return await until(backend, lambda seen: running(seen, one.name) == wanted)


def running(snapshot: ClusterSnapshot, run: str, set_name: str = "") -> int:
    """Number of pods whose process runs; the cluster in memory has no readiness."""
    return sum(pod.phase is Phase.RUNNING for pod in snapshot.pods_of(run, set_name))


async def until(backend: Backend, is_true: Callable[[ClusterSnapshot], bool]) -> ClusterSnapshot:
    snapshot = EMPTY_SNAPSHOT
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for changes in backend.watch():
            snapshot = apply(snapshot, changes)
            if is_true(snapshot):
                return snapshot
    raise AssertionError(snapshot)


def devices(snapshot: ClusterSnapshot, run: str) -> dict[str, list[str]]:
    """Slots of each set of a run, without the name of the node."""
    found: dict[str, list[str]] = {}
    for pod in snapshot.pods_of(run):
        found.setdefault(pod.set_name, []).extend(str(slot).partition("/")[2] for slot in pod.slots)
    return {name: sorted(slots) for name, slots in found.items()}


def busy(snapshot: ClusterSnapshot) -> dict[bool, int]:
    """Number of slots in use, keyed by whether they are CPU slots."""
    return Counter(slot.is_cpu for slot in snapshot.ledger.slots.values() if slot.state is SlotState.BUSY)


@pytest.mark.process
async def test_the_first_example_needs_one_slot_of_the_gpu(backend):
    snapshot = await launched(backend, spec())
    assert devices(snapshot, "run") == {
        "learner": ["0.0"],
        "w": ["cpu.0", "cpu.1", "cpu.2", "cpu.3"],
        "eval": ["cpu.4"],
    }
    assert busy(snapshot) == {False: 1, True: 5}
    assert snapshot.ledger.problems == ()
    (node,) = snapshot.nodes.values()
    assert (len(node.gpus), node.cpu.slots) == (1, 8)
    stored = await backend.spec("run")
    assert [part.pod.binding for part in stored.sets] == [Binding.ENV, Binding.CPU, Binding.CPU]


@pytest.mark.process
async def test_a_scale_goes_on_on_the_cpu_and_gives_its_slots_back(backend):
    await launched(backend, spec(workers=1))
    await launcher.scale(backend, "run", "w", 4)
    snapshot = await until(backend, lambda seen: running(seen, "run", "w") == 4)
    assert busy(snapshot) == {False: 1, True: 5}
    assert {slot.partition(".")[0] for slot in devices(snapshot, "run")["w"]} == {"cpu"}
    await launcher.scale(backend, "run", "w", 1, 0.0)
    snapshot = await until(backend, lambda seen: len(seen.pods_of("run", "w")) == 1)
    assert busy(snapshot) == {False: 1, True: 2}


@pytest.mark.process
async def test_a_scale_shares_slots_where_it_may(backend):
    await launched(backend, spec(workers=7))
    with pytest.raises(RefusedError, match="2 of 9 replicas do not fit"):
        await launcher.scale(backend, "run", "w", 9)
    await launcher.scale(backend, "run", "w", 9, overcommit=True)
    snapshot = await until(backend, lambda seen: running(seen, "run", "w") == 9)
    assert busy(snapshot) == {False: 1, True: 8}
    assert sum(len(slot.sharing) for slot in snapshot.ledger.slots.values()) == 2
    await launcher.scale(backend, "run", "w", 7, 0.0)
    snapshot = await until(backend, lambda seen: len(seen.pods_of("run", "w")) == 7)
    assert busy(snapshot) == {False: 1, True: 8}
    assert not any(slot.sharing for slot in snapshot.ledger.slots.values())


@pytest.mark.process
async def test_a_second_launch_is_refused_where_the_cpu_is_full_and_shares_it_where_it_may(backend):
    await launched(backend, spec(workers=7))
    refused = await launcher.prepare_runs(backend, [spec("two", workers=2)])
    sentences = [finding.sentence for finding in refusals(refused.findings)]
    assert sentences == [
        "2 of 2 replicas do not fit (0 of 8 CPU slots are free for the whole plan)",
        "1 of 1 replica does not fit (0 of 8 CPU slots are free for the whole plan)",
    ]
    snapshot = await launched(backend, spec("two", workers=2), overcommit=True)
    assert devices(snapshot, "two") == {"learner": ["0.1"], "w": ["cpu.0", "cpu.1"], "eval": ["cpu.2"]}
    assert busy(snapshot) == {False: 2, True: 8}
    shared = [str(slot.id).partition("/")[2] for slot in snapshot.ledger.slots.values() if slot.sharing]
    assert shared == ["cpu.0", "cpu.1", "cpu.2"]


@pytest.mark.process
async def test_every_set_is_overcommitted_as_often_as_the_person_says(backend):
    for number in range(3):
        one = with_binding(spec(f"run{number}"), Binding.ENV)  # all six on the four slots of the GPU
        snapshot = await launched(backend, one, overcommit=True)
    on_gpu = Counter(slot for pod in snapshot.pods.values() for slot in pod.slots)
    assert sorted(on_gpu.values()) == [4, 4, 5, 5]
    assert {slot.gpu for slot in on_gpu} == {0}
    assert busy(snapshot) == {False: 4}
    first = next(run for run in snapshot.runs.values() if run.name == "run0")
    receipt = [item async for item in backend.destroy(first, grace_seconds=0.0, purge=True)][-1]
    assert receipt.left == ()
    snapshot = await until(backend, lambda seen: len(seen.runs) == 2 and len(seen.pods) == 12)
    assert busy(snapshot) == {False: 4}


@pytest.mark.process
async def test_slots_that_a_person_names_are_used_for_every_set(backend):
    (node,) = (await backend.snapshot()).nodes
    snapshot = await launched(backend, spec(workers=2), pins=parse_pins(f"{node}/0"))
    assert devices(snapshot, "run") == {"learner": ["0.0"], "w": ["0.1", "0.2"], "eval": ["0.3"]}
    assert [part.pod.binding for part in (await backend.spec("run")).sets] == [Binding.ENV] * 3


@pytest.mark.process
async def test_of_two_plans_for_the_same_cpu_slots_the_later_is_refused(backend):
    late = await launcher.prepare_runs(backend, [spec("late", workers=7)])
    await launched(backend, spec(workers=7))
    with pytest.raises(RefusedError, match=r"Slot [^ ]+/(0|cpu)\.0 (is held by|was claimed by) run"):
        [done async for done in launcher.launch(backend, late)]
    snapshot = await backend.snapshot()
    assert [run.name for run in snapshot.runs.values()] == ["run"]
    assert busy(snapshot) == {False: 1, True: 8}
