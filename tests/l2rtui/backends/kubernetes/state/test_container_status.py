"""The newest process of a container, from the status of its pod."""

from __future__ import annotations

import json

import msgspec
import pytest

from l2rtui.backends.kubernetes.api.structs import PodStruct
from l2rtui.backends.kubernetes.state.own_reports import (
    container_names,
    ended_at,
    ending_text,
    newest_process,
)

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def ended(code, **more):
    return {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:10Z", **more}}


def pod(state=None, *, last=None, restarts=0, policy="Always", phase="Running", init=None, **meta):
    status = {"name": "c", "restartCount": restarts, "state": state, "lastState": last}
    kind = "initContainers" if init is not None else "containers"
    statuses = "initContainerStatuses" if init is not None else "containerStatuses"
    return msgspec.json.decode(
        json.dumps(
            {
                "metadata": {"name": "p", **meta},
                "spec": {"restartPolicy": policy, kind: [{"name": "c", **(init or {})}]},
                "status": {"phase": phase, statuses: [status] if state is not None else []},
            }
        ).encode(),
        type=PodStruct,
    )


def test_names_of_init_containers_come_first():
    spec = {"containers": [{"name": "b"}], "initContainers": [{"name": "a"}]}
    both = msgspec.convert({"metadata": {}, "spec": spec, "status": {}}, PodStruct)
    assert container_names(both) == ("a", "b")


def test_a_container_without_a_status_has_not_started_or_never_will():
    waiting = newest_process(pod(), "c")
    assert (waiting.number, waiting.is_running, waiting.ending, waiting.is_final) == (0, False, None, False)
    assert newest_process(pod(phase="Failed"), "c") is None


def test_a_running_process_is_numbered_by_its_restarts_and_knows_the_one_before():
    process = newest_process(pod(RUNNING, last=ended(3), restarts=2), "c")
    assert (process.number, process.is_running, process.ending, process.is_final) == (2, True, None, False)
    assert process.previous.exit_code == 3


def test_while_a_container_backs_off_its_newest_process_is_the_one_that_has_ended():
    process = newest_process(pod({"waiting": {"reason": "CrashLoopBackOff"}}, last=ended(1), restarts=4), "c")
    assert (process.number, process.ending.exit_code, process.previous) == (4, 1, None)


@pytest.mark.parametrize(
    ("code", "more", "is_final"),
    [
        (0, {}, False),
        (0, {"policy": "OnFailure"}, True),
        (1, {"policy": "OnFailure"}, False),
        (1, {"policy": "Never"}, True),
        (1, {"phase": "Failed"}, True),
        (1, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, True),
        (0, {"init": {}}, True),
        (1, {"init": {}}, False),
        (0, {"init": {"restartPolicy": "Always"}}, False),
    ],
    ids=["always", "on failure, well", "on failure, ill", "never", "the pod is over", "deleted", "init, well",
         "init, ill", "sidecar"],
)  # fmt: skip
def test_no_process_follows_where_nothing_restarts_the_container(code, more, is_final):
    assert newest_process(pod(ended(code), **more), "c").is_final == is_final


def test_an_end_is_described_by_its_code_and_any_reason_that_adds_to_it():
    killed = newest_process(pod(ended(137, reason="OOMKilled")), "c").ending
    assert ending_text(killed) == "killed by SIGKILL (exit 137), OOMKilled"
    assert "Error" not in ending_text(newest_process(pod(ended(1, reason="Error")), "c").ending)
    assert ending_text(None) == "the end of the last one is unknown"
    assert (ended_at(killed), ended_at(None)) == (1767225610.0, 0.0)
