"""CPU slots on the screen: rows of the grid, counts apart from those of GPUs, and place mode."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Phase
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.state.snapshot_index import PodCounts
from l2rtui.ui.widgets.cluster_tables import NodeTable, node_row
from l2rtui.ui.widgets.grid.lines import lay_out
from l2rtui.ui.widgets.pod_table import slot_text
from l2rtui.ui.widgets.status_bar import left_of, slots_of

SPEC = """kind: learner-workers
name: race
workers: [{replicas: 2}]
evaluator: {}
train: {environment: racing}
"""


def workstation(name="box", gpus=1, cpus=16):
    cards = tuple(Gpu(name, index, f"GPU-{index}") for index in range(gpus))
    return Node(name, cards, cpu_cores=2.0, cpu=Gpu(name, CPU, slots=cpus, is_cpu=True))


def worker(name, gpu, slot):
    return PodView(name, name, "box", devices=(DeviceUsage(gpu, slot),), phase=Phase.RUNNING, ready=True)


def read(line):
    return "".join(span.text for span in line)


@pytest.mark.parametrize("width", [40, 78, 158])
@pytest.mark.parametrize("cpus", [1, 8, 16, 64])
@pytest.mark.parametrize("gpus", [1, 8])
def test_each_slot_has_its_cell_and_the_cpu_a_line_of_its_own(width, cpus, gpus):
    node = workstation(gpus=gpus, cpus=cpus)
    snapshot = ClusterSnapshot({"box": node}, {"w": worker("w", CPU, 0)})
    grid = lay_out(snapshot, width)
    assert set(grid.slots) == set(snapshot.ledger.slots)
    lines = [read(line) for line in grid.lines]
    for slot, cell in grid.slots.items():
        assert lines[cell.y][cell.x] == ("x" if slot == SlotId("box", CPU, 0) else "·")
    of_gpus = {cell.y for slot, cell in grid.slots.items() if slot.gpu != CPU}
    of_cpu = {cell.y for slot, cell in grid.slots.items() if slot.gpu == CPU}
    assert not of_gpus & of_cpu
    assert lines[min(of_cpu)].split()[0] == "cpu"
    assert max(cell.x for cell in grid.slots.values()) < width
    assert f"free {4 * gpus} + {cpus - 1} cpu" in read(grid.legend) or cpus == 1


def test_the_cursor_goes_from_a_gpu_down_to_the_cpu():
    grid = lay_out(ClusterSnapshot({"box": workstation()}), 78)
    assert grid.shape.neighbour(SlotId("box", 0, 0), 0, 1).gpu == CPU
    assert grid.shape.neighbour(SlotId("box", 0, 3), 1, 0) == SlotId("box", CPU, 0)


def test_steps_up_and_down_keep_the_column_and_enter_the_cpu_from_its_side_alone():
    nodes = {name: replace(workstation(), name=name) for name in ("box", "cab")}
    nodes = {name: moved(node, name) for name, node in nodes.items()}
    shape = lay_out(ClusterSnapshot(nodes), 78).shape
    start = SlotId("box", 0, 0)
    column = shape.slots[start].x
    assert shape.neighbour(start, 0, 1, column, skips_cpu=True) == SlotId("cab", 0, 0)
    assert shape.neighbour(SlotId("cab", 0, 0), 0, -1, column, skips_cpu=True) == start
    assert shape.neighbour(SlotId("box", 0, 3), 1, 0, skips_cpu=True) == SlotId("box", CPU, 0)
    cpu = shape.neighbour(start, 0, 1, column)
    assert cpu.gpu == CPU
    assert shape.neighbour(cpu, 0, 1, column) == SlotId("cab", 0, 0), "not the slot nearest to the CPU's own column"


def moved(node, name):
    """A node under another name, with its devices."""
    gpus = tuple(replace(gpu, node=name) for gpu in node.gpus)
    return replace(node, gpus=gpus, cpu=replace(node.cpu, node=name))


def test_counts_of_gpus_stay_what_they_are():
    snapshot = ClusterSnapshot({"box": workstation()}, {"w": worker("w", CPU, 0), "l": worker("l", 0, 0)})
    health = ConnectionStatus("local", is_connected=True)
    groups = left_of(snapshot, health, PodCounts(), slots_of(snapshot.ledger))
    assert "slots 1/4  free 3  cpu 1/16" in "".join(map(read, groups))
    row = node_row(snapshot.nodes["box"], list(snapshot.ledger.slots.values()))
    cells = {column.key: cell.text for column, cell in zip(NodeTable.COLUMNS, row.cells, strict=True)}
    assert (cells["slots"], cells["free"], cells["busy"]) == ("4+16", "3+15", "1+1")
    assert [slot_text(pod) for pod in snapshot.pods.values()] == ["cpu.0", "0.0"]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "race.yaml").write_text(SPEC, "utf-8")
    monkeypatch.chdir(tmp_path)
    backend = FakeBackend(is_empty=True, owner=user_name())
    backend.put_node(workstation())
    return backend


def staged(one):
    return {pod: " ".join(map(str, seat.slots)) for pod, seat in one.app.screen.draft.seats.items()}


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_place_mode_fills_the_gpu_and_the_cpu(desk, cluster, size):
    async with desk(backend=cluster, ready=False, size=size) as one:
        await one.press("P")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        assert "cpu " in one.words()
        await one.press("a")
        wanted = {
            "race-learner-0": "box/0.0",
            "race-w-0": "box/cpu.0",
            "race-w-1": "box/cpu.1",
            "race-eval-0": "box/cpu.2",
        }
        await one.until(lambda: staged(one) == wanted)
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(one.cluster.snapshot.pods) == 4)
    pods = (await cluster.snapshot()).pods.values()
    assert {pod.name: " ".join(map(str, pod.slots)) for pod in pods} == wanted
    assert [part.pod.binding for part in (await cluster.spec("race")).sets] == ["env", "cpu", "cpu"]


async def test_a_worker_is_put_on_a_slot_of_either_kind(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await one.press("P")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        await one.press("space", "right", "space", "down", "space", "right", "space")
        await one.until(lambda: len(staged(one)) == 4)
        slots = staged(one)
        assert [slots[f"race-{pod}"] for pod in ("learner-0", "w-0")] == ["box/0.0", "box/0.1"]
        assert all("box/cpu." in slots[f"race-{pod}"] for pod in ("w-1", "eval-0"))
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(one.cluster.snapshot.pods) == 4)
    pods = (await cluster.snapshot()).pods.values()
    assert {pod.name: " ".join(map(str, pod.slots)) for pod in pods} == slots
