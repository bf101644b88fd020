"""Owners: slots, GPUs and idle holders by user and project; values without a measurement are unknown."""

from __future__ import annotations

import dataclasses

import pytest

from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import CPU, Gpu, GpuUse, Node
from l2rtui.domain.owners import HOLDER_SECONDS, LONG_SECONDS, IdleGpu, IdleGpus, IdleTime, holdings, project_of
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Phase

NOW = 100_000.0


def node(*uses, gpus=3, name="n"):
    cpu = Gpu(name, CPU, "", "CPU", slots=8, is_cpu=True)
    devices = tuple(Gpu(name, index, slots=4) for index in range(gpus))
    return Node(name, devices, cpu=cpu, gpu_use=tuple(GpuUse(gpu, percent) for gpu, percent in uses))


def pod(name, *gpus, owner="ada", created=0.0, **fields):
    usages = tuple(DeviceUsage(gpu, slot) for slot, gpu in enumerate(gpus))
    fields = {"phase": Phase.RUNNING, "devices": usages, **fields}
    return PodView(name, name, "n", owner, run=name[0], created=created, **fields)


def cluster(*pods, nodes=None):
    nodes = (node(),) if nodes is None else nodes
    return ClusterSnapshot({own.name: own for own in nodes}, {own.uid: own for own in pods})


def test_slots_and_gpus_are_counted_by_owner_and_project_the_largest_first():
    snapshot = cluster(
        pod("a0", 0, 0, CPU),
        pod("a1", 1),
        pod("b0", 1, owner="bob"),
        pod("c0", 2, owner="bob", labels=(("project", "vision"),)),
        pod("d0", 2, phase=Phase.SUCCEEDED),
        PodView("x", "x", "n", "eve", phase=Phase.RUNNING),
    )
    rows = [
        (row.owner, row.project, row.pods, row.runs, row.slots, row.cpu_slots, row.gpus)
        for row in holdings(snapshot, {}, NOW)
    ]
    assert rows == [("ada", "", 2, 1, 3, 1, 2), ("bob", "", 1, 1, 1, 0, 1), ("bob", "vision", 1, 1, 1, 0, 1)]


@pytest.mark.parametrize(
    ("labels", "namespace", "project"),
    [
        ((("project", "a"), ("app.kubernetes.io/part-of", "b")), "c", "a"),
        ((("app.kubernetes.io/part-of", "b"),), "c", "b"),
        ((("project", ""),), "c", "c"),
        ((), "", ""),
    ],
)
def test_a_project_is_a_label_or_else_the_namespace(labels, namespace, project):
    assert project_of(pod("p", labels=labels, namespace=namespace)) == project


def test_a_gpu_that_rests_for_half_an_hour_is_idle_and_one_that_nobody_measures_is_unknown():
    snapshot = cluster(pod("a0", 0, 1, 2), nodes=[node((0, 1.0), (1, 60.0))])
    (row,) = holdings(snapshot, {("n", 0): IdleTime(HOLDER_SECONDS + 60.0, is_least=True)}, NOW)
    assert row.idle == (IdleGpu("n", 0, HOLDER_SECONDS + 60.0, ("a0",), is_least=True),)
    assert row.idle[0].time.text == "≥31m"
    assert (row.idle_gpus, row.unknown_gpus) == (1, 1)


def test_a_gpu_that_was_not_watched_for_so_long_is_unknown_unless_it_was_claimed_a_moment_ago():
    resting = [node((0, 1.0), (1, None))]
    (row,) = holdings(cluster(pod("a0", 0), nodes=resting), {("n", 0): IdleTime(60.0)}, NOW)
    assert (row.idle_gpus, row.unknown_gpus) == (None, 1)
    (row,) = holdings(cluster(pod("a0", 0, created=NOW - 60.0), nodes=resting), {}, NOW)
    assert (row.idle_gpus, row.unknown_gpus) == (0, 0)
    (row,) = holdings(cluster(pod("a0", 1), nodes=resting), {}, NOW)
    assert row.idle_gpus is None


def test_gpus_without_an_index_and_nodes_that_are_not_listed_are_counted_and_unknown():
    plugin = pod("a0", devices=(DeviceUsage(None, count=2, resource="amd.com/gpu"),))
    (row,) = holdings(cluster(plugin), {}, NOW)
    assert (row.slots, row.gpus, row.idle_gpus, row.unknown_gpus) == (2, 2, None, 2)
    (row,) = holdings(cluster(pod("a0", 0, CPU), nodes=[]), {}, NOW)
    assert (row.slots, row.cpu_slots, row.gpus, row.unknown_gpus) == (1, 1, 1, 1)
    (row,) = holdings(cluster(pod("a0", 7), nodes=[node()]), {}, NOW)
    assert (row.slots, row.gpus) == (1, 1)


def test_a_cpu_alone_has_no_idle_gpu():
    (row,) = holdings(cluster(pod("a0", CPU)), {}, NOW)
    assert (row.gpus, row.idle_gpus, row.cpu_slots) == (0, 0, 1)


def test_a_held_gpu_that_does_nothing_for_long_is_idle_until_it_works_or_changes_hands():
    idle = IdleGpus()
    resting = cluster(pod("p", 0), pod("q", 2), nodes=[node((0, 1.0), (1, 1.0))])
    idle.take(resting, 1000.0)
    assert not idle.long_idle(1000.0 + LONG_SECONDS - 1)
    # Free GPUs are not idle holders, and without a figure a GPU's state is unknown. So is the idle time before the
    # first look.
    assert dict(idle.long_idle(1000.0 + LONG_SECONDS)) == {("n", 0): IdleTime(LONG_SECONDS, is_least=True)}
    other = dataclasses.replace(resting, pods={"s": pod("s", 0)})
    idle.take(other, 2000.0)
    assert not idle.long_idle(2000.0 + LONG_SECONDS - 1)
    assert dict(idle.long_idle(2000.0 + LONG_SECONDS)) == {("n", 0): IdleTime(LONG_SECONDS)}
    busy = cluster(pod("s", 0), nodes=[node((0, 40.0))])
    idle.take(busy, 3000.0)
    assert not idle.long_idle(9000.0)
    idle.take(other, 9000.0)
    idle.take(other, 9001.0)  # the same nodes: no further check
    idle.take(cluster(nodes=[]), 9100.0)
    assert not idle.long_idle(99_000.0)


def test_a_rest_whose_beginning_was_not_seen_lasts_at_least_since_it_was_seen():
    idle = IdleGpus()
    busy, resting = (cluster(pod("p", 0), nodes=[node((0, load))]) for load in (60.0, 1.0))
    idle.take(busy, 1000.0)
    idle.take(resting, 1060.0)
    assert idle.long_idle(1120.0, 0.0) == {("n", 0): IdleTime(60.0)}
    idle.take(busy, 1180.0)
    idle.look_away()
    idle.take(resting, 5000.0)
    assert idle.long_idle(5060.0, 0.0)["n", 0].text == "≥1m"
    idle.take(cluster(pod("p", 0), nodes=[node((0, None))]), 6000.0)  # its source has no figure for a while
    idle.take(resting, 7000.0)
    assert idle.long_idle(7060.0, 0.0)["n", 0].is_least


def test_a_look_goes_on_from_the_one_before():
    resting = cluster(pod("p", 0), nodes=[node((0, 1.0))])
    first = IdleGpus()
    first.take(resting, 1000.0)
    later = IdleGpus(first.spans)
    later.take(resting, 1000.0 + LONG_SECONDS)
    assert later.long_idle(1000.0 + LONG_SECONDS, 60.0) == {("n", 0): IdleTime(LONG_SECONDS, is_least=True)}
    other = IdleGpus(first.spans)
    other.take(dataclasses.replace(resting, pods={"q": pod("q", 0)}), 2000.0)
    assert not other.long_idle(2000.0)
    gone = IdleGpus(first.spans)
    gone.take(cluster(nodes=[node(name="m")]), 2000.0)
    assert not gone.spans
