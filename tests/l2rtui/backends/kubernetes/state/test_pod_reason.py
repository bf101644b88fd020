"""Each reason why a pod does not run gets Kubernetes' own word and a sentence with the next step."""

from __future__ import annotations

import json

import msgspec
import pytest

from l2rtui.backends.kubernetes.api.structs import ControllerStruct, EventStruct, NodeStruct, PodStruct
from l2rtui.backends.kubernetes.state.pod_reason import (
    NO_REASON,
    events_by_uid,
    explain,
    explain_controller,
    needs_previous_log,
    with_log,
)

NOW = 1_750_000_000.0
"""2025-06-15T15:06:40Z."""


def decoded(kind, value):
    return msgspec.json.decode(json.dumps(value), type=kind)


def pod(status=None, spec=None, **meta):
    spec = {"nodeName": "phortx1", "containers": [{"name": "main"}]} | (spec or {})
    return decoded(
        PodStruct,
        {"metadata": {"name": "p", "uid": "u"} | meta, "spec": spec, "status": status or {"phase": "Pending"}},
    )


def waiting(reason, message="", last=None, restarts=0, name="main"):
    state = {"name": name, "image": "lab/worker:7", "restartCount": restarts}
    state["state"] = {"waiting": {"reason": reason, "message": message}}
    if last:
        state["lastState"] = {"terminated": last}
    return {"phase": "Pending", "containerStatuses": [state]}


def event(reason, message, at="2025-06-15T15:06:00Z", **more):
    return decoded(EventStruct, {"reason": reason, "message": message, "lastTimestamp": at} | more)


def unscheduled(message, **spec):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod({"phase": "Pending", "conditions": [condition]}, {"nodeName": None} | spec)


PINNED = {"nodeSelector": {"kubernetes.io/hostname": "phortx1"}}


def test_a_pod_that_runs_has_nothing_to_explain():
    running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    assert explain(pod(running), (), NOW) == NO_REASON
    assert explain(pod(), (), NOW) == NO_REASON


@pytest.mark.parametrize(
    ("policy", "end", "expected"),
    [
        (
            "Always",
            {"exitCode": 1, "reason": "Error"},
            ("Error", "ended with exit 1, and its node starts the next"),
        ),
        ("Always", {"exitCode": 0, "reason": "Completed"}, ("", "")),
        ("OnFailure", {"exitCode": 1}, ("Error", "its node starts the next one")),
        ("OnFailure", {"exitCode": 0}, ("", "")),
        ("Never", {"exitCode": 1}, ("", "")),
        ("Always", {"exitCode": 137, "reason": "OOMKilled"}, ("OOMKilled", "it took more memory than its limit")),
        ("Always", {"exitCode": 255, "message": "exec /x: exec format error"}, ("Error", "node's architecture")),
    ],
)
def test_a_process_that_ended_a_moment_ago_does_not_run(policy, end, expected):
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"terminated": end}}]}
    reason, sentence = explain(pod(status, {"restartPolicy": policy}), (), NOW)
    assert reason == expected[0]
    assert expected[1] in sentence


def test_a_pinned_pod_is_asked_about_its_own_node_alone():
    text = "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't match Pod's node affinity."
    reason, sentence = explain(unscheduled(text, **PINNED), (), NOW)
    assert reason == "Unschedulable"
    assert sentence.startswith("phortx1 does not take it: Insufficient cpu. Wait until")


def test_a_pinned_pod_says_that_its_node_is_cordoned():
    text = "0/4 nodes are available: 1 node(s) were unschedulable, 3 node(s) didn't match Pod's node affinity."
    _, sentence = explain(unscheduled(text, **PINNED), (), NOW)
    assert sentence == "phortx1 is cordoned. Uncordon it, or choose another node."


def test_a_node_that_is_not_there_is_named():
    text = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity."
    _, sentence = explain(unscheduled(text, **PINNED), (), NOW)
    assert "no node has the hostname phortx1" in sentence


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0/1 nodes are available: 1 node(s) had taint {gpu: }, that the pod didn't tolerate.", "toleration"),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", "Uncordon"),
        ('persistentvolumeclaim "results" not found', "Make the claim"),
        ("0/4 nodes are available: 4 pod has unbound immediate PersistentVolumeClaims.", "waits for a volume"),
    ],
)
def test_what_the_scheduler_misses_gets_a_next_step(text, hint):
    assert hint in explain(unscheduled(text), (), NOW)[1]


def test_an_event_stands_in_for_a_missing_condition():
    failed = event("FailedScheduling", "0/1 nodes are available: 1 Insufficient memory.")
    assert "Insufficient memory" in explain(pod(None, {"nodeName": None}), [failed], NOW)[1]


@pytest.mark.parametrize(
    ("reason", "message", "fragment"),
    [
        (
            "ErrImagePull",
            "manifest for lab/worker:7 not found: manifest unknown",
            "the image lab/worker:7 does not exist",
        ),
        ("ErrImagePull", "pull access denied: unauthorized", "pull secret"),
        ("ErrImagePull", "dial tcp 1.2.3.4:443: i/o timeout", "does not reach the registry"),
        ("InvalidImageName", "couldn't parse", "is not an image name"),
        ("ErrImageNeverPull", "", "not on the node"),
        ("CreateContainerConfigError", 'secret "aws" not found', "there is no secret aws"),
        ("CreateContainerConfigError", "couldn't find key id in Secret l2r/aws", "has no key id"),
        ("RunContainerError", 'exec: "trian": executable file not found in $PATH', "command is not in the image"),
    ],
)
def test_what_keeps_a_container_from_starting_is_named(reason, message, fragment):
    shown_reason, sentence = explain(pod(waiting(reason, message)), (), NOW)
    assert shown_reason == reason
    assert fragment in sentence


def test_a_pull_that_backs_off_is_explained_by_its_event():
    failed = event("Failed", 'Failed to pull image "lab/worker:7": manifest unknown')
    back_off = waiting("ImagePullBackOff", 'Back-off pulling image "lab/worker:7"')
    assert "does not exist" in explain(pod(back_off), [failed], NOW)[1]


def test_a_crash_loop_tells_exit_count_and_last_words():
    last = {"exitCode": 3, "reason": "Error", "message": "Traceback\nValueError: no learner\n"}
    why = explain(pod(waiting("CrashLoopBackOff", "back-off 40s", last, 4)), (), NOW)
    assert why[0] == "CrashLoopBackOff"
    assert "exit 3 (4 restarts)" in why[1]
    assert why[1].endswith("Its last words: ValueError: no learner")
    assert needs_previous_log(why)
    assert with_log(("CrashLoopBackOff", "ends."), " boom \n") == ("CrashLoopBackOff", "ends. Its last words: boom")


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ({"exitCode": 3, "message": "Traceback\nValueError: no learner\n"}, "ValueError: no learner"),
        ({"exitCode": 137, "reason": "OOMKilled"}, "it took more memory than its limit"),
        ({"exitCode": 1}, ""),
        ({"exitCode": 0, "message": "done"}, ""),
    ],
)
def test_a_pod_that_runs_again_tells_what_its_failed_process_said_last(last, sentence):
    state = {"name": "main", "restartCount": 1, "state": {"running": {}}, "lastState": {"terminated": last}}
    reason, message = explain(pod({"phase": "Running", "containerStatuses": [state]}), (), NOW)
    assert reason == "", "it runs"
    assert message.startswith(sentence)
    assert bool(message) == bool(sentence)


def test_memory_is_named_in_and_after_a_loop():
    last = {"exitCode": 137, "reason": "OOMKilled"}
    assert "more memory than its limit" in explain(pod(waiting("CrashLoopBackOff", "", last, 2)), (), NOW)[1]
    over = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": last}}]}
    assert explain(pod(over), (), NOW)[0] == "OOMKilled"


def test_what_a_container_that_is_complete_has_said_is_kept():
    said = {"exitCode": 0, "reason": "Completed", "message": "ended by limit wall 12 h"}
    over = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": said}}]}
    assert explain(pod(over), (), NOW) == ("", "ended by limit wall 12 h")


def test_the_container_is_named_where_there_are_several():
    two = {"containers": [{"name": "main"}, {"name": "simulator"}]}
    status = waiting("ErrImageNeverPull", name="simulator")
    assert explain(pod(status, two), (), NOW)[1].startswith("container simulator: ")


@pytest.mark.parametrize(
    ("status", "reason", "fragment"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "Evicted",
            "put it out",
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "DeadlineExceeded", "activeDeadlineSeconds"),
        ({"phase": "Failed", "reason": "NodeLost"}, "NodeLost", "went away"),
    ],
)
def test_a_pod_that_was_ended_from_outside_says_by_what(status, reason, fragment):
    shown_reason, sentence = explain(pod(status), (), NOW)
    assert (shown_reason, fragment in sentence) == (reason, True)


def lost_node():
    ready = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    return decoded(NodeStruct, {"metadata": {"name": "phortx1"}, "status": {"conditions": [ready]}})


def test_a_lost_node_is_told_whatever_the_pod_says():
    running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    reason, sentence = explain(pod(running), (), NOW, node=lost_node())
    assert reason == "NodeLost"
    assert "phortx1 does not answer (Ready is Unknown): Kubelet stopped posting node status; whether" in sentence


def test_a_stuck_deletion_names_what_holds_it():
    going = {"deletionTimestamp": "2025-06-15T15:06:52Z", "deletionGracePeriodSeconds": 30}
    assert explain(pod(**going), (), NOW) == ("Terminating", "grace 12 s left")
    sentence = explain(pod(**going, finalizers=["lab/hold"]), (), NOW)[1]
    assert sentence.startswith("the finalizer lab/hold holds it. ")
    assert "--force" in explain(pod(**going), (), NOW, node=lost_node())[1]
    past = going | {"deletionTimestamp": "2025-06-15T15:06:30Z"}
    assert explain(pod(**past), (), NOW)[1] == "is still Terminating 10 s after its grace"


def test_volumes_and_slow_nodes_are_told_by_events():
    missing = event("FailedMount", 'MountVolume.SetUp failed for volume "token": secret "l2r-run" not found')
    assert "there is no secret l2r-run to mount" in explain(pod(), [missing], NOW)[1]
    sandbox = event("FailedCreatePodSandBox", "failed to set up network")
    assert "cannot set it up" in explain(pod(), [sandbox], NOW)[1]
    old = {"phase": "Pending", "startTime": "2025-06-15T15:00:00Z"}
    assert "being pulled for 40 s" in explain(pod(old), [event("Pulling", "Pulling image")], NOW)[1]
    assert "has not started it for 400 s" in explain(pod(old), (), NOW)[1]


def test_pods_that_were_never_made_are_explained_by_their_controller():
    quota = 'pods "w-x" is forbidden: exceeded quota: lab, requested: pods=1, used: pods=8, limited: pods=8'
    reason, sentence = explain_controller(ControllerStruct(), [event("FailedCreate", quota)])
    assert reason == "FailedCreate"
    assert "lab allows pods=8, pods=8 is used, pods=1 is wanted" in sentence
    condition = {"type": "ReplicaFailure", "status": "True", "message": "pods is forbidden: no"}
    controller = decoded(ControllerStruct, {"status": {"conditions": [condition]}})
    assert "refuses to make its pods" in explain_controller(controller, ())[1]
    assert explain_controller(ControllerStruct(), ()) == NO_REASON


def test_events_are_found_by_what_they_are_about():
    item = event("Killing", "", involvedObject={"uid": "u"})
    assert events_by_uid([item, event("Other", "")]) == {"u": (item,)}


def test_long_texts_are_cut_to_one_line():
    sentence = explain(pod(waiting("CreateContainerError", "x\n" * 1000)), (), NOW)[1]
    assert len(sentence) < 400
    assert "\n" not in sentence


# --- queues, gangs, eviction --------------------------------------------------------------------------------
def put_out(kind, reason, message, phase="Failed"):
    return {"phase": phase, "conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}


def test_a_gate_names_who_holds_the_pod_back():
    spec = {"nodeName": None, "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    gated = pod(spec=spec, labels={"kueue.x-k8s.io/queue-name": "team"})
    assert explain(gated, [], NOW)[1].startswith("the queue team of Kueue has not admitted its run yet")
    other = explain(pod(spec={"nodeName": None, "schedulingGates": [{"name": "example.com/check"}]}), [], NOW)
    assert other == ("SchedulingGated", "something else must release it before it is scheduled: example.com/check.")
    unnamed = explain(pod(spec={"nodeName": None, "schedulingGates": [{}]}), [], NOW)
    assert unnamed[1] == "something else must release it before it is scheduled."


@pytest.mark.parametrize(
    "message",
    [
        "pod group is not ready, 2 Pending, 3 minAvailable; Pending: 2 Unschedulable",
        "pre-filter pod r-w-0 cannot find enough sibling pods, current pods number: 1, minMember of group: 3",
    ],
)
def test_a_gang_that_waits_is_said_to_start_as_a_whole(message):
    reason, sentence = explain(unscheduled(message), [], NOW)
    assert reason == "Unschedulable"
    assert sentence == f"its run starts as a whole, and not all of its pods can: {message}."


@pytest.mark.parametrize("meta", [{}, {"deletionTimestamp": "2025-06-15T15:06:40Z"}])
def test_a_pod_that_makes_room_says_for_whom(meta):
    status = put_out("DisruptionTarget", "PreemptionByScheduler", "default-scheduler: preempting")
    event_of = event("Preempted", "Preempted by pod 7f9a on node phortx1")
    assert explain(pod(status, **meta), [event_of], NOW) == (
        "Preempted",
        "it had to make room for another of higher priority: Preempted by pod 7f9a on node phortx1.",
    )
    assert explain(pod(status, **meta), [], NOW)[1].endswith("default-scheduler: preempting.")


def test_eviction_by_the_api_says_so_and_an_end_of_its_own_says_more():
    drained = put_out("DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting")
    assert explain(pod(drained), [], NOW) == ("EvictionByEvictionAPI", "it was put out: Eviction API: evicting.")
    silent = put_out("DisruptionTarget", "", "")
    assert explain(pod(silent), [], NOW) == ("Evicted", "it was put out: no cause is given.")
    by_kubelet = put_out("DisruptionTarget", "TerminationByKubelet", "full") | {
        "reason": "Evicted",
        "message": "disk",
    }
    assert "its node had too little left" in explain(pod(by_kubelet), [], NOW)[1]
    assert (
        explain(pod(put_out("DisruptionTarget", "EvictionByEvictionAPI", "x", "Succeeded")), [], NOW) == NO_REASON
    )
