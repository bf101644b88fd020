"""Simulators as second containers of workers' pods on a real kubelet: trained with, killed, hung, and deleted."""

from __future__ import annotations

import json
from operator import itemgetter

import pytest

from tests.cluster.conftest import NODE_IMAGE, eventually, kubectl, kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SPEC = "manifests/l2r-sidecar.yaml"
RUN = "l2r-sidecar"
SMALL = {
    "image": NODE_IMAGE,
    "workers.w.replicas": 2,
    "train.warmup_steps": 100,
    "train.environment_options.simulator.pose_seconds": 4,
}
KINDS = "pods,services,replicasets,jobs,configmaps,secrets,leases"
_SIMULATORS = (
    "for p in /proc/[0-9]*; do [ ${p#/proc/} != 1 ] && grep -qz '^simulator$' $p/cmdline && echo ${p#/proc/}; done"
)


def words(*more):
    sets = [f"{key}={value}" for key, value in SMALL.items()]
    return ["launch", "-f", SPEC, *(word for one in sets for word in ("--set", one)), *more, "--yes"]


def inside(namespace, pod, script):
    """Run a line of shell in the simulator's container."""
    return kubectl("-n", namespace, "exec", pod, "-c", "simulator", "--", "sh", "-c", script, check=False)


def signalled(namespace, pod, signal):
    """Signal only the simulator in its container; the shell that started it has another name."""
    inside(namespace, pod, f"kill -{signal} $({_SIMULATORS})")


def record(namespace, pod):
    """The newest metric record of a worker."""
    lines = kubectl("-n", namespace, "logs", pod, "-c", "main", "--tail=20", check=False).splitlines()
    records = [line for line in lines if line.startswith('{"l2r":"worker"')]
    return json.loads(records[-1]) if records else None


def metrics(cli):
    done = cli.call("metrics", RUN, "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def grown(cli, before):
    now = metrics(cli)
    return now if now and all(now[key] > value for key, value in before.items()) else None


def test_sac_trains_over_simulators_beside_its_workers(cli, namespace, image):
    before = kubectl("-n", namespace, "get", KINDS, "-o", "name")
    launched = cli.json(*words("--on", "phortx0/0-3", "--wait"))
    assert {pod["phase"] for pod in launched["pods"]} == {"Running"}
    pods = kubectl_json("-n", namespace, "get", "pods", "-l", "l2rtui.io/role=worker")["items"]
    assert [[row["name"] for row in pod["spec"]["containers"]] for pod in pods] == [["main", "simulator"]] * 2
    set_by_slot = {slot["id"]: slot["set"] for slot in cli.json("slots") if slot["run"] == RUN}
    assert sorted(set_by_slot.values()) == ["eval", "learner", "w", "w"], (
        "a slot for each pod, and none for a simulator"
    )

    first = eventually("updates", lambda: grown(cli, {"env_steps": 0, "updates": 0}), 240)
    eventually("more of both", lambda: grown(cli, {key: first[key] for key in ("env_steps", "updates")}))

    killed, hung = (pod["metadata"]["name"] for pod in pods)
    signalled(namespace, killed, "KILL")
    signalled(namespace, hung, "STOP")
    result = eventually(
        "another simulator", lambda: (row := record(namespace, killed)) and row["simulator_restarts"] and row, 180
    )
    assert result["simulator_error"] == "the simulator was killed by SIGKILL, which we did not send"
    result = eventually(
        "another one in place of one that hangs",
        lambda: (row := record(namespace, hung)) and row["simulator_restarts"] and row,
        180,
    )
    assert "hangs" in result["simulator_error"]
    assert inside(namespace, hung, "cat /run/l2r-simulator/state") == "2 running\n"
    then = metrics(cli)
    eventually("training to go on", lambda: grown(cli, {key: then[key] for key in ("env_steps", "updates")}), 120)
    pods = kubectl_json("-n", namespace, "get", "pods")["items"]
    assert {row["restartCount"] for pod in pods for row in pod["status"]["containerStatuses"]} == {0}

    receipt = cli.json("destroy", RUN, "--yes")
    assert (receipt["left"], receipt["leftovers"]) == (0, [])
    assert kubectl("-n", namespace, "get", KINDS, "-o", "name") == before


def test_workers_that_are_done_end_with_their_simulators(cli, namespace, image):
    del image
    cli.json(*words("--on", "phortx0/0-3", "--set", "train.total_env_steps=200"))

    def done():
        jobs = kubectl_json("-n", namespace, "get", "jobs")["items"]
        # A Job counts succeeded pods before all have; only its condition says that it is complete.
        are_complete = all(
            "Complete" in map(itemgetter("type"), job["status"].get("conditions", ())) for job in jobs
        )
        return len(jobs) == 3 and are_complete and jobs

    jobs = eventually("every Job to be complete", done, 240)
    assert {job["metadata"]["name"]: job["status"]["succeeded"] for job in jobs} == {
        f"{RUN}-learner": 1,
        f"{RUN}-w": 2,
        f"{RUN}-eval": 1,
    }
    assert cli.json("destroy", RUN, "--yes")["left"] == 0
