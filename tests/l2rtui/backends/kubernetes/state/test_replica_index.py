"""Replica indices of pods: kept while a pod lives, given to its successor, and equal for every client."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import ObjectMeta, PodStatus, PodStruct
from l2rtui.backends.kubernetes.state.views import PlannedReplica, ReplicaIndexer, read_planned_replicas

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = tuple(PlannedReplica(index, (index,)) for index in range(3))


def pod(uid, age, *, phase="Running", is_terminating=False):
    """A pod created ``age`` seconds after the first."""
    meta = ObjectMeta(
        name=uid,
        uid=uid,
        creation_timestamp=BEGIN + timedelta(seconds=age),
        deletion_timestamp=BEGIN if is_terminating else None,
    )
    return PodStruct(metadata=meta, status=PodStatus(phase=phase))


def indices(replicas):
    return {uid: replica.index for uid, replica in replicas.items()}


@pytest.mark.parametrize("text", ["", "{", "3", "[[0]]", '[["x", [1]]]', "[[0, 1]]"])
def test_an_annotation_that_cannot_be_read_plans_nothing(text):
    assert read_planned_replicas(ObjectMeta(annotations={labels.SEATS: text})) == ()


def test_an_annotation_plans_indices_with_their_slots():
    text = json.dumps([[0, [0, 1]], [1, []]])
    assert read_planned_replicas(ObjectMeta(annotations={labels.SEATS: text})) == (
        PlannedReplica(0, (0, 1)),
        PlannedReplica(1),
    )


def test_pods_are_numbered_by_age_whatever_their_order():
    pods = [pod("c", 2), pod("a", 0), pod("b", 1)]
    assert indices(ReplicaIndexer().assign("rs", PLAN, pods)) == {"a": 0, "b": 1, "c": 2}


def test_a_pod_keeps_its_index_and_a_new_one_takes_the_lowest_that_is_free():
    indexer = ReplicaIndexer()
    indexer.assign("rs", PLAN, [pod("a", 0), pod("b", 1), pod("c", 2)])
    assert indices(indexer.assign("rs", PLAN, [pod("c", 2), pod("b", 1)])) == {"b": 1, "c": 2}
    assert indices(indexer.assign("rs", PLAN, [pod("d", 9), pod("c", 2), pod("b", 1)])) == {"b": 1, "c": 2, "d": 0}


@pytest.mark.parametrize("over", [{"is_terminating": True}, {"phase": "Failed"}])
def test_a_pod_that_is_over_shares_its_index_with_its_successor(over):
    indexer = ReplicaIndexer()
    indexer.assign("rs", PLAN, [pod("a", 0), pod("b", 1), pod("c", 2)])
    alone = indexer.assign("rs", PLAN, [pod("a", 0, **over), pod("b", 1), pod("c", 2)])
    assert (alone["a"].index, alone["a"].has_successor) == (0, False)
    both = indexer.assign("rs", PLAN, [pod("a", 0, **over), pod("b", 1), pod("c", 2), pod("d", 9)])
    assert (both["a"].index, both["a"].has_successor) == (0, True)
    assert (both["d"].index, both["d"].has_successor) == (0, False)


def test_a_new_pod_rather_takes_a_free_index_than_that_of_a_terminating_pod():
    indexer = ReplicaIndexer()
    indexer.assign("rs", PLAN[:2], [pod("a", 0), pod("b", 1)])
    replicas = indexer.assign("rs", PLAN, [pod("a", 0, is_terminating=True), pod("b", 1), pod("c", 9)])
    assert indices(replicas) == {"a": 0, "b": 1, "c": 2}


def test_a_smaller_plan_leaves_the_youngest_without_an_index_and_none_at_all_forgets():
    indexer = ReplicaIndexer()
    pods = [pod("a", 0), pod("b", 1), pod("c", 2)]
    indexer.assign("rs", PLAN, pods)
    assert indices(indexer.assign("rs", PLAN[:2], pods)) == {"a": 0, "b": 1}
    assert indexer.assign("rs", (), pods) == {}
    assert indices(indexer.assign("rs", PLAN, pods[1:])) == {"b": 0, "c": 1}
