"""Objects joined into rows: seats that stay, slots that follow, and unknown values."""

from __future__ import annotations

import json

import msgspec
import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.decode import UndecodedObject
from l2rtui.backends.kubernetes.api.structs import (
    ConfigMapStruct,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    ObjectMeta,
    PodStruct,
)
from l2rtui.backends.kubernetes.state.joiner import Joiner, Unseen
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices, SlotRule
from l2rtui.backends.kubernetes.state.views import node_view, pod_view
from l2rtui.domain.change import NodeGone, PodChanged, apply
from l2rtui.domain.ledger import DeviceUsage, SlotState
from l2rtui.domain.node import CPU
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role

NOW = 1_790_000_000.0
OURS = {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.RUN_ID: "r1", labels.RUN: "run", labels.SET: "w",
        labels.ROLE: "worker", labels.GPU: "2", labels.HOST: "n"}  # fmt: skip
OWNER = {"kind": "ReplicaSet", "name": "rs", "uid": "rs1", "controller": True}
SEATS = json.dumps([[4, [0]], [5, [1]]])


def made(raw, kind):
    return msgspec.json.decode(msgspec.json.encode(raw), type=kind)


def node(name="n", ready="True", **more):
    status = {"capacity": {"cpu": "8", "memory": "4Gi", "nvidia.com/gpu": "4"},
              "conditions": [{"type": "Ready", "status": ready, "message": "kubelet is gone"}]}  # fmt: skip
    meta = {"name": name, "labels": {"a": "b"}, "creationTimestamp": "2026-09-20T12:00:00Z"}
    return made({"metadata": meta, "status": status, **more}, NodeStruct)


def pod(name, age=0, phase="Running", *, ours=True, terminating=False, on="n", **env):
    meta = {"name": name, "namespace": "ml", "uid": f"u-{name}", "resourceVersion": str(age),
            "creationTimestamp": f"2026-09-21T12:00:{age:02}Z", "labels": OURS if ours else {},
            "annotations": {labels.SEATS: SEATS} if ours else {},
            "ownerReferences": [OWNER]}  # fmt: skip
    if terminating:
        meta["deletionTimestamp"] = "2026-09-21T13:00:00Z"
    variables = [{"name": key, "value": value} for key, value in env.items()]
    return made(
        {
            "metadata": meta,
            "spec": {"nodeName": on, "containers": [{"name": "c", "env": variables}]},
            "status": {"phase": phase},
        },
        PodStruct,
    )


class World:
    def __init__(self, *, is_use_known=True, is_derived=False):
        self.join = Joiner(SlotRule(), lambda: NOW)
        self.join.set_visibility(run_namespaces=["ml"], is_use_known=is_use_known, is_derived=is_derived)
        self.snapshot = EMPTY_SNAPSHOT
        self.pods = {}

    def put(self, *pods):
        for pod in pods:
            self.join.put_pod(self.pods.get(pod.metadata.name), pod)
            self.pods[pod.metadata.name] = pod
        return self.look()

    def drop(self, name):
        self.join.put_pod(self.pods.pop(name), None)
        return self.look()

    def look(self):
        self.changes = self.join.changes()
        self.snapshot = apply(self.snapshot, self.changes)
        return {pod.name: pod for pod in self.snapshot.pods.values()}


@pytest.fixture
def world():
    result = World()
    result.join.put_node(None, node())
    result.look()
    return result


def test_pods_of_a_controller_sit_in_the_order_of_their_age(world):
    rows = world.put(pod("b", 2), pod("a", 1))
    assert (rows["a"].index, rows["a"].devices, rows["b"].index, rows["b"].devices) == (
        4, (DeviceUsage(2, 0),), 5, (DeviceUsage(2, 1),),
    )  # fmt: skip
    assert (rows["a"].run, rows["a"].set_name, rows["a"].role) == ("run", "w", Role.WORKER)
    assert rows["a"].controller == "ReplicaSet rs"


def test_a_pod_keeps_its_seat_and_its_successor_takes_the_one_that_is_left(world):
    world.put(pod("a", 1), pod("b", 2))
    world.put(pod("a", 1, terminating=True))
    rows = world.put(pod("c", 3))
    assert (rows["b"].index, rows["c"].index) == (5, 4)
    assert (rows["a"].index, rows["a"].devices, rows["c"].devices) == (4, (), (DeviceUsage(2, 0),))
    assert world.snapshot.ledger.problems == ()
    rows = world.drop("a")
    assert (rows["b"].index, rows["c"].index) == (5, 4)


def test_a_pod_that_is_being_stopped_holds_its_slot_until_somebody_else_sits_there(world):
    rows = world.put(pod("a", 1, terminating=True))
    assert rows["a"].devices == (DeviceUsage(2, 0),)


def test_the_seats_of_the_controller_win_over_those_that_its_pods_were_made_with(world):
    world.put(pod("a", 1))
    meta = {"name": "rs", "namespace": "ml", "uid": "rs1", "labels": OURS,
            "annotations": {labels.SEATS: json.dumps([[9, [3]]])}}  # fmt: skip
    world.join.put_controller(None, made({"metadata": meta}, ControllerStruct))
    rows = world.look()
    assert (rows["a"].index, rows["a"].devices) == (9, (DeviceUsage(2, 3),))


def test_only_what_differs_is_told_again(world):
    world.put(pod("a", 1), pod("b", 2))
    world.put(pod("a", 1, phase="Failed"))
    assert [type(change) for change in world.changes] == [PodChanged]
    world.join.put_node(node(), node())
    assert world.look()
    assert world.changes == ()


def test_a_pod_that_is_not_bound_yet_holds_what_it_is_pinned_to(world):
    waiting = made({"metadata": {"name": "w", "uid": "u"}, "status": {"phase": "Pending"},
                    "spec": {"nodeSelector": {labels.HOSTNAME: "n"}, "containers": [
                        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "1"}]}]}}, PodStruct)  # fmt: skip
    world.put(waiting)
    assert [item.state for item in world.snapshot.ledger.of_gpu("n", 1)].count(SlotState.BUSY) == 1


def test_a_pod_that_cannot_be_decoded_makes_its_node_unknown(world):
    world.join.set_undecoded_pods([UndecodedObject(ObjectMeta(name="odd", namespace="ml", uid="u"), "odd", "n")])
    rows = world.look()
    assert (rows["odd"].reason, rows["odd"].message) == ("Unreadable", "odd")
    # It may use any GPU; CPU slots are counted only by plans.
    assert {slot.gpu for slot in world.snapshot.ledger.free()} == {CPU}
    world.join.set_undecoded_pods([])
    assert "odd" not in world.look()
    assert len([slot for slot in world.snapshot.ledger.free() if slot.gpu != CPU]) == 16


def test_a_node_shows_its_metrics_its_state_and_goes(world):
    world.join.put_metrics(None, made({"metadata": {"name": "n"}, "usage": {"cpu": "1500m", "memory": "1Gi"}},
                                      NodeMetricsStruct))  # fmt: skip
    world.look()
    row = world.snapshot.nodes["n"]
    assert (row.cpu_used, row.memory_used_bytes, row.cpu_cores, row.memory_bytes) == (1.5, 1 << 30, 8.0, 4 << 30)
    assert row.created == 1789905600.0
    world.put(pod("a", 1))
    world.join.put_node(node(), node(ready="Unknown"))
    rows = world.look()
    assert (world.snapshot.nodes["n"].ready, world.snapshot.nodes["n"].message) == (False, "kubelet is gone")
    assert rows["a"].reason == "NodeLost"
    world.join.put_node(node(ready="Unknown"), None)
    world.look()
    assert NodeGone("n") in world.changes


def test_nodes_that_may_not_be_listed_are_known_from_their_pods_and_never_free():
    world = World(is_use_known=False, is_derived=True)
    world.put(pod("s", ours=False, NVIDIA_VISIBLE_DEVICES="2"))
    world.put(pod("odd", ours=False, NVIDIA_VISIBLE_DEVICES="999999999"))  # must not create a thousand million GPUs
    row = world.snapshot.nodes["n"]
    assert (len(row.gpus), row.is_use_known) == (3, False)
    assert world.snapshot.ledger.free() == ()
    world.drop("s")
    world.drop("odd")
    assert not world.snapshot.nodes


def test_a_run_is_a_config_map_with_what_keeps_its_controllers_from_making_pods(world):
    spec = {
        "experiment": "e",
        "kind": "learner-workers",
        "seed": 3,
        "sets": [{"name": "w", "role": "worker", "replicas": 2}],
    }
    meta = {"name": "l2r-run", "namespace": "ml", "uid": "c", "labels": OURS, "annotations": {labels.OWNER: "me@x"}}
    world.join.put_run(None, made({"metadata": meta, "data": {"spec.json": json.dumps(spec)}}, ConfigMapStruct))
    owned = made(
        {"metadata": {"name": "rs", "uid": "rs1", "labels": OURS}, "spec": {"replicas": 2}}, ControllerStruct
    )
    world.join.put_controller(None, owned)
    world.look()
    run = world.snapshot.runs["r1"]
    assert (run.name, run.experiment, run.owner, run.seed, run.namespace) == ("run", "e", "me@x", 3, "ml")
    assert [(item.name, item.role, item.replicas) for item in run.sets] == [("w", Role.WORKER, 2)]
    refused = {"involvedObject": {"uid": "rs1", "kind": "ReplicaSet"}, "metadata": {"name": "e"}, "type": "Warning",
               "reason": "FailedCreate", "message": "exceeded quota: q"}  # fmt: skip
    world.join.put_event(None, made(refused, EventStruct))
    world.look()
    assert world.snapshot.runs["r1"].reason == "FailedCreate"
    world.join.put_run(made({"metadata": meta}, ConfigMapStruct), None)
    world.look()
    assert not world.snapshot.runs


def test_a_run_whose_spec_cannot_be_read_is_still_shown(world):
    meta = {"name": "l2r-run", "uid": "c", "labels": OURS}
    world.join.put_run(None, made({"metadata": meta, "data": {"spec.json": "{"}}, ConfigMapStruct))
    world.look()
    assert (world.snapshot.runs["r1"].reason, world.snapshot.runs["r1"].name) == ("Unreadable", "run")


def test_nodes_and_pods_have_their_address_and_labels():
    blank = NodeDevices("n", ())
    status = {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.7"}]}
    assert (
        node_view(
            made({"metadata": {"name": "n"}, "status": status}, NodeStruct), blank, None, is_use_known=True
        ).ip
        == "10.0.0.7"
    )
    assert node_view(node(), blank, None, is_use_known=True).ip == ""
    raw = {"metadata": {"name": "p", "labels": {"team": "rl"}}, "status": {"podIP": "10.1.0.4"}}
    row = pod_view(made(raw, PodStruct), blank, None, (), NOW)
    assert (row.ip, row.labels) == ("10.1.0.4", (("team", "rl"),))


def test_a_pod_that_is_over_ended_with_its_last_container():
    states = [
        {"name": name, "state": {"terminated": {"exitCode": 0, "finishedAt": f"2026-01-01T00:00:{second}Z"}}}
        for name, second in (("a", 10), ("b", 20))
    ]
    node_devices = NodeDevices("n", ())
    for phase, second in (("Succeeded", 20), ("Failed", 20), ("Running", None)):
        raw = {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": states}}
        row = pod_view(made(raw, PodStruct), node_devices, None, (), NOW)
        assert row.ended == (None if second is None else 1_767_225_600.0 + second)


def test_reservations_show_on_their_node_until_they_are_over_or_gone():
    moment = [NOW]
    joiner = Joiner(SlotRule(), lambda: moment[0])
    joiner.set_visibility(run_namespaces=["ml"], is_use_known=True, is_derived=False)
    joiner.put_node(None, node())
    entries = [{"owner": "somebody", "until": NOW + 60, "note": "x", "slots": ["0.0", "9.9"]}]
    meta = {
        "name": labels.reservations_object("n"),
        "namespace": "ml",
        "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.APP_COMPONENT: labels.RESERVATIONS},
        "annotations": {labels.HOST: "n"},
    }
    item = made({"metadata": meta, "data": {labels.RESERVATIONS_KEY: json.dumps(entries)}}, ConfigMapStruct)
    joiner.put_run(None, item)
    snapshot = apply(EMPTY_SNAPSHOT, joiner.changes())
    assert (snapshot.ledger.count(SlotState.RESERVED), dict(snapshot.runs)) == (1, {})
    moment[0] = NOW + 61
    joiner.recheck_waiting_pods()
    snapshot = apply(snapshot, joiner.changes())
    assert snapshot.ledger.count(SlotState.RESERVED) == 0
    moment[0] = NOW
    joiner.recheck_waiting_pods()
    assert apply(snapshot, joiner.changes()).nodes["n"].reservations
    joiner.put_run(item, None)
    assert apply(snapshot, joiner.changes()).nodes["n"].reservations == ()


def lost_world(*, is_patient, created="2026-09-20T12:00:00Z", **annotations):
    """A run of two replicas and its ReplicaSet."""
    moment = [NOW]
    join = Joiner(SlotRule(), lambda: moment[0], is_patient=is_patient)
    join.set_visibility(run_namespaces=["ml"], is_use_known=True, is_derived=False)
    part = {"name": "w", "role": "worker", "replicas": 2, "restart": "Always"}
    meta = {"name": "l2r-run", "namespace": "ml", "uid": "c", "labels": OURS, "annotations": annotations}
    data = {"spec.json": json.dumps({"experiment": "e", "kind": "job", "sets": [part]})}
    join.put_run(None, made({"metadata": {**meta, "creationTimestamp": created}, "data": data}, ConfigMapStruct))
    own = {"name": "run-w", "uid": "rs1", "labels": OURS, "annotations": {labels.SEATS: SEATS}}
    controller = made({"metadata": own, "spec": {"replicas": 2}, "status": {"replicas": 2}}, ControllerStruct)
    join.put_controller(None, controller)
    snapshot = apply(EMPTY_SNAPSHOT, join.changes())
    assert snapshot.runs["r1"].reason == ""
    join.put_controller(controller, None)
    return join, moment, snapshot


def test_a_run_whose_controller_is_gone_is_lost_and_says_what_makes_it_again():
    join, _, snapshot = lost_world(is_patient=False)
    run = apply(snapshot, join.changes()).runs["r1"]
    assert run.reason == "Lost"
    assert "its ReplicaSet run-w was deleted" in run.message
    assert "`l2rtui scale run/w 2` makes it again" in run.message


def test_a_watch_says_it_when_it_has_lasted_for_a_moment():
    join, moment, snapshot = lost_world(is_patient=True)
    snapshot = apply(snapshot, join.changes())
    assert snapshot.runs["r1"].reason == "", "a scale may be about to say that there are fewer replicas"
    moment[0] += 5.0
    join.recheck_waiting_pods()
    assert apply(snapshot, join.changes()).runs["r1"].reason == "Lost"


def test_controllers_of_a_run_in_waves_come_one_after_the_other():
    join, _, snapshot = lost_world(is_patient=False, **{labels.WAVE: "4"})
    assert apply(snapshot, join.changes()).runs["r1"].reason == ""


def test_pods_of_a_node_that_does_not_answer_are_unknown(world):
    world.put(pod("a", 1), pod("b", 2, phase="Succeeded"))
    world.join.put_node(node(), node(ready="Unknown"))
    rows = world.look()
    assert (rows["a"].phase, rows["a"].ready, rows["a"].reason) == (Phase.UNKNOWN, False, "NodeLost")
    assert rows["b"].phase is Phase.SUCCEEDED, "what has ended stays ended"
    assert rows["a"].slots, "it may still use its slot"


def test_pods_of_a_node_that_was_removed_are_unknown_once_all_nodes_are_known(world):
    world.put(pod("a", 1))
    world.join.put_node(node(), None)
    assert world.look()["a"].phase is Phase.RUNNING, "it may be a node that is not listed yet"
    world.join.set_nodes_complete(is_complete=True)
    row = world.look()["a"]
    assert (row.phase, row.ready, row.reason) == (Phase.UNKNOWN, False, "NodeLost")
    assert "n was removed from the cluster" in row.message
    assert world.snapshot.ledger.problems == ("a names the node n, which is not in the cluster",)
    world.join.put_node(None, node())
    assert world.look()["a"].phase is Phase.RUNNING


def test_rows_that_cannot_be_seen_any_more_are_of_then(world):
    world.put(pod("a", 1), pod("b", 2, phase="Succeeded"))
    world.join.set_unseen({None: Unseen(NOW - 60, "the login is refused")}, {})
    rows = world.look()
    assert (rows["a"].phase, rows["a"].reason, rows["b"].phase) == (Phase.UNKNOWN, "Unseen", Phase.SUCCEEDED)
    assert rows["a"].message.startswith("not seen since ")
    world.join.set_unseen({}, {})
    assert world.look()["a"].phase is Phase.RUNNING
