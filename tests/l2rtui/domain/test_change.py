"""Changes: the exact difference between two snapshots."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.domain.change import (
    NodeChanged,
    NodeGone,
    PodChanged,
    PodGone,
    ProblemsChanged,
    RunGone,
    apply,
    difference,
)
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import Gpu, GpuUse, Node, Taint
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, ContextHealth, PodView, RunView
from l2rtui.domain.status import Phase

NAMES = st.sampled_from("abcd")


def _by(key, values):
    return values.map(lambda found: MappingProxyType({getattr(one, key): one for one in found}))


SNAPSHOTS = st.builds(
    ClusterSnapshot,
    nodes=_by("name", st.lists(st.builds(Node, NAMES, ready=st.booleans()), max_size=4)),
    pods=_by("uid", st.lists(st.builds(PodView, NAMES, NAMES, restarts=st.integers(0, 2)), max_size=4)),
    runs=_by("uid", st.lists(st.builds(RunView, NAMES, NAMES, NAMES, is_terminating=st.booleans()), max_size=4)),
    revision=st.integers(0, 3),
    problems=st.lists(NAMES, max_size=2).map(tuple),
    silent_since=st.none() | st.integers(0, 2).map(float),
    contexts=st.lists(st.builds(ContextHealth, NAMES, st.booleans()), max_size=2).map(tuple),
)


def _content(snapshot):
    rows = dict(snapshot.nodes), dict(snapshot.pods), dict(snapshot.runs)
    return *rows, snapshot.problems, snapshot.silent_since, snapshot.contexts


@given(SNAPSHOTS, SNAPSHOTS)
def test_the_difference_leads_from_one_to_the_other(old, new):
    assert _content(apply(old, difference(old, new))) == _content(new)


@given(SNAPSHOTS, SNAPSHOTS)
def test_the_revision_grows_exactly_when_something_differs(old, new):
    after = apply(old, difference(old, new))
    if _content(old) == _content(new):
        assert after is old
        assert difference(old, new) == ()
    else:
        assert after.revision == old.revision + 1


@given(SNAPSHOTS)
def test_everything_can_be_built_from_nothing(snapshot):
    assert _content(apply(EMPTY_SNAPSHOT, difference(EMPTY_SNAPSHOT, snapshot))) == _content(snapshot)


def test_going_twice_or_without_having_been_changes_nothing():
    assert apply(EMPTY_SNAPSHOT, [PodGone("x"), NodeGone("x"), RunGone("x")]) is EMPTY_SNAPSHOT


def test_the_newest_of_two_changes_counts_and_snapshots_do_not_change():
    first = apply(EMPTY_SNAPSHOT, [PodChanged(PodView("u", "p")), PodChanged(PodView("u", "p", restarts=1))])
    assert first.pods["u"].restarts == 1
    second = apply(first, [ProblemsChanged(("cannot list pods",))])
    assert (first.problems, second.problems) == ((), ("cannot list pods",))
    assert second.pods == first.pods


def _holding(uid, node, slot, **state):
    return PodView(uid, uid, node, devices=(DeviceUsage(0, slot),), phase=Phase.RUNNING, **state)


def test_the_ledger_of_a_changed_snapshot_is_the_one_that_would_be_built_anew():
    nodes = [Node(name, (Gpu(name, 0),)) for name in "ab"]
    first = apply(
        EMPTY_SNAPSHOT,
        [*map(NodeChanged, nodes), PodChanged(_holding("p", "a", 0)), PodChanged(_holding("q", "b", 1))],
    )
    untouched = first.ledger.nodes["b"]
    steps = [
        [PodChanged(_holding("p", "a", 3))],
        [PodGone("p"), PodGone("never-there")],
        [NodeChanged(Node("a", (Gpu("a", 0),), ready=False)), PodChanged(_holding("r", "a", 2))],
    ]
    snapshot = first
    for changes in steps:  # the ledgers in between are not needed
        snapshot = apply(snapshot, changes)
    assert snapshot.ledger.nodes["b"] is untouched
    assert dict(snapshot.ledger.slots) == dict(dataclasses.replace(snapshot, basis=None).ledger.slots)
    moved = apply(snapshot, [PodChanged(_holding("q", "a", 1))])
    assert dict(moved.ledger.slots) == dict(dataclasses.replace(moved, basis=None).ledger.slots)
    gone = apply(moved, [NodeGone("a")])
    assert dict(gone.ledger.slots) == dict(dataclasses.replace(gone, basis=None).ledger.slots)
    assert gone.ledger.problems == dataclasses.replace(gone, basis=None).ledger.problems


def test_what_moves_no_slot_leaves_the_ledger_as_it_is():
    node, pod = Node("a", (Gpu("a", 0),), cpu_used=1.0), _holding("p", "a", 0)
    first = apply(EMPTY_SNAPSHOT, [NodeChanged(node), PodChanged(pod)])
    known = first.ledger
    small = [
        NodeChanged(replace(node, cpu_used=2.0, gpu_use=(GpuUse(0, 87.0),))),
        PodChanged(replace(pod, seed=7, restarts=1)),
    ]
    second = apply(first, [*small, PodChanged(PodView("other", "other", "a"))])
    assert second is not first
    assert second.ledger is known
    for large in (
        [NodeChanged(replace(node, is_schedulable=False))],
        [NodeChanged(replace(node, labels=(("disk", "ssd"),)))],
        [NodeChanged(replace(node, taints=(Taint("team", "", "NoSchedule"),)))],
        [PodChanged(replace(pod, phase=Phase.SUCCEEDED))],
        [PodChanged(replace(pod, owner="ann"))],
    ):
        third = apply(second, large)
        assert third.ledger is not known
        assert third.ledger == dataclasses.replace(third, basis=None).ledger


def test_nodes_stand_in_the_order_in_which_people_count():
    names = ["phortx10", "phortx2", "1-a", "phortx1", "big", "phortx2-b"]
    snapshot = apply(EMPTY_SNAPSHOT, [NodeChanged(Node(name)) for name in names])
    assert list(snapshot.nodes) == ["1-a", "big", "phortx1", "phortx2", "phortx2-b", "phortx10"]
    assert list(apply(snapshot, [NodeChanged(Node("phortx3"))]).nodes)[4:] == ["phortx2-b", "phortx3", "phortx10"]


def test_a_context_is_live_while_its_rows_are_of_the_present():
    assert [
        health.is_live
        for health in (
            ContextHealth("lab"),
            ContextHealth("lab", has_rows=True),
            ContextHealth("lab", has_rows=True, old_since=5.0),
        )
    ] == [False, True, False]
