"""States of pods from public reports: the newest and correct cause is named."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes.api.structs import ControllerStruct
from l2rtui.backends.kubernetes.state.own_reports import container_names, newest_process
from l2rtui.backends.kubernetes.state.pod_reason import NO_REASON, explain, explain_controller
from l2rtui.domain.status import Phase, exit_text, pod_status
from tests.l2rtui.backends.kubernetes.state.test_pod_reason import (
    NOW,
    PINNED,
    decoded,
    event,
    pod,
    unscheduled,
    waiting,
)

STARTED = "2025-06-15T14:06:40Z"  # an hour before NOW
TWO = {"containers": [{"name": "train"}, {"name": "istio-proxy"}], "restartPolicy": "Never"}


def running(name, *, ready=True):
    return {"name": name, "ready": ready, "state": {"running": {"startedAt": STARTED}}}


def ended(name, code, reason="Error"):
    return {"name": name, "ready": False, "state": {"terminated": {"exitCode": code, "reason": reason}}}


# --- openshift/console#107, skypilot-org/skypilot#10801, derailed/k9s#2520 ---------------------------------------
def test_a_pod_in_its_init_container_says_which_and_since_when():
    spec = {"initContainers": [{"name": "fetch-data"}], "containers": [{"name": "train"}]}
    status = {
        "phase": "Pending",
        "startTime": STARTED,
        "initContainerStatuses": [running("fetch-data", ready=False)],
    }
    status |= {"containerStatuses": [waiting("PodInitializing", name="train")["containerStatuses"][0]]}
    assert explain(pod(status, spec), (), NOW) == ("PodInitializing", "init container fetch-data runs for 3600 s")
    assert explain(pod(status, spec), (), NOW - 3595) == NO_REASON
    status["initContainerStatuses"] = [ended("fetch-data", 2)]
    assert explain(pod(status, spec), (), NOW)[1] == "init container fetch-data ended with exit 2"


# --- istio/istio#11045, argoproj/argo-workflows#7214 -------------------------------------------------------------
def test_a_container_that_ended_beside_a_sidecar_is_named():
    status = {"phase": "Running", "containerStatuses": [ended("train", 1), running("istio-proxy")]}
    reason, sentence = explain(pod(status, TWO), (), NOW)
    assert reason == "Error"
    assert sentence.startswith("container train: it ended with exit 1 while istio-proxy runs on (1/2 ready)")
    status["containerStatuses"][0] = ended("train", 0, "Completed")
    assert explain(pod(status, TWO), (), NOW)[0] == "Completed"
    assert explain(pod(status, TWO | {"restartPolicy": "Always"}), (), NOW) == NO_REASON


# --- kubernetes/kubernetes#61051 ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (137, "killed by SIGKILL (exit 137)"),
        (192, "killed by signal 64 (exit 192)"),
        (193, "exit 193"),
        (255, "exit 255"),
        (3221225477, "exit 3221225477"),
        (128, "exit 128"),
    ],
)
def test_a_code_beyond_the_signals_is_a_code(code, text):
    assert exit_text(code) == text
    assert text in pod_status(Phase.FAILED, exit_code=code).sentence


# --- PaddlePaddle/PaddleSeg#3640 ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('Usage of EmptyDir volume "dshm" exceeds the limit "512Mi". ', "its own limit of the volume dshm (512Mi)"),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ",
            "its own limit of ephemeral storage (10Gi)",
        ),
        (
            'Container train exceeded its local ephemeral storage limit "1Gi". ',
            "its own limit of ephemeral storage (1Gi)",
        ),
        ("The node was low on resource: memory. ", "its node had too little left"),
    ],
)
def test_a_pod_that_went_over_its_own_limit_is_told_that(message, words):
    reason, sentence = explain(pod({"phase": "Failed", "reason": "Evicted", "message": message}), (), NOW)
    assert reason == "Evicted"
    assert words in sentence


# --- aws-samples/bottlerocket-images-cache#7, GH200 nodes --------------------------------------------------------
@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", 'failed to pull and unpack image "i": no match for platform in manifest: not found'),
        ("ErrImagePull", "no matching manifest for linux/arm64/v8 in the manifest list entries"),
        ("RunContainerError", "exec /usr/bin/python: exec format error"),
    ],
)
def test_an_image_of_another_architecture_is_not_missing(reason, message):
    sentence = explain(pod(waiting(reason, message)), (), NOW)[1]
    assert "has no build for its node's architecture" in sentence


@pytest.mark.parametrize("reason", ["SignatureValidationFailed", "PostStartHookError", "SomethingNew"])
def test_an_unknown_reason_has_its_own_message(reason):
    assert explain(pod(waiting(reason, "the policy says no")), (), NOW) == (reason, "the policy says no.")
    assert reason in explain(pod(waiting(reason)), (), NOW)


# --- skypilot-org/skypilot#10460, kubernetes/kubernetes#42867 ----------------------------------------------------
MISSING = 'MountVolume.SetUp failed for volume "x" : configmap "x" not found'


def at(seconds, reason, message=""):
    from datetime import UTC, datetime

    return event(reason, message, datetime.fromtimestamp(NOW - seconds, UTC).isoformat())


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([(600, "FailedMount", MISSING), (300, "Pulling", "")], "its image is being pulled for 300 s"),
        ([(300, "FailedMount", MISSING), (600, "Pulling", "")], "there is no configmap x to mount"),
        ([(300, "FailedMount", MISSING), (300, "Pulling", "")], "there is no configmap x to mount"),
        ([(600, "FailedCreatePodSandBox", "cni"), (300, "Pulled", "")], "its node has not started it for 3600 s"),
        ([(600, "FailedMount", MISSING), (300, "FailedCreatePodSandBox", "cni")], "its node cannot set it up: cni"),
        ([(600, "FailedAttachVolume", "busy"), (300, "SuccessfulAttachVolume", "")], "its node has not started it"),
        ([(300, "FailedMount", "PersistentVolumeClaim is not bound")], "its claim cannot be mounted"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_newest_event_counts(events, words, order):
    status = waiting("ContainerCreating") | {"startTime": STARTED}
    assert words in explain(pod(status), [at(*item) for item in events][::order], NOW)[1]


def test_a_controller_that_makes_pods_again_has_no_trouble():
    controller = decoded(ControllerStruct, {"metadata": {"name": "c"}})
    failed, made = at(600, "FailedCreate", "exceeded quota: q"), at(300, "SuccessfulCreate", "Created pod: p")
    assert explain_controller(controller, [failed, made]) == NO_REASON
    assert explain_controller(controller, [failed])[0] == "FailedCreate"


# --- the scheduler's own messages --------------------------------------------------------------------------------
@pytest.mark.parametrize("selector", [PINNED, {}])
def test_what_the_scheduler_says_of_preemption_is_no_cause(selector):
    text = (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity. "
        "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
    )
    sentence = explain(unscheduled(text, **selector), (), NOW)[1]
    assert "reemption" not in sentence
    assert "Insufficient nvidia.com/gpu" in sentence
    assert "Wait until something ends there" in sentence


def test_the_hint_of_a_claim_does_not_depend_on_its_case():
    text = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    assert "claim exists and waits for a volume" in explain(unscheduled(text), (), NOW)[1]


# --- kubectl debug -----------------------------------------------------------------------------------------------
def test_an_ephemeral_container_has_a_log():
    debugged = pod(
        {"phase": "Running", "ephemeralContainerStatuses": [running("debugger")]},
        {"ephemeralContainers": [{"name": "debugger"}]},
    )
    assert container_names(debugged) == ("main", "debugger")
    assert newest_process(debugged, "debugger").is_running
    over = pod(
        {"phase": "Running", "ephemeralContainerStatuses": [ended("debugger", 1)]},
        {"ephemeralContainers": [{"name": "debugger"}]},
    )
    assert newest_process(over, "debugger").is_final
