"""Launching on a real API server: the lab's own YAML, races for slots, waves, interruptions, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.actions.diagnose import probe_binding
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.node import Gpu, SlotId
from l2rtui.domain.placement import Placement, Seat
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError
from tests.cluster.conftest import IMAGE, eventually, kubectl, kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NODES = ("phortx1", "phortx2", "phortx3")
LAB = "manifests/worker-pods.yaml"
VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {name: %(ns)s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {namespace: %(ns)s, name: l2r-persistent-claim}
  hostPath: {path: /tmp/%(ns)s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: l2r-persistent-claim, namespace: %(ns)s}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  resources: {requests: {storage: 1Gi}}
  volumeName: %(ns)s
"""
SPEC = """\
kind: job
name: j
image: %s
job: {name: w, replicas: %d, slots: 1, restart: Always, command: [sleep, "600"], grace_seconds: 1}
"""
SLOW = """\
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: slow}
spec:
  replicas: 6
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}, annotations: {l2r.fake/start: "%s"}}
    spec:
      containers:
        - {name: c, image: i, env: [{name: NVIDIA_VISIBLE_DEVICES, value: "0"}]}
"""


@pytest.fixture
def volume(namespace):
    kubectl("apply", "-f", "-", stdin=VOLUME % {"ns": namespace})
    eventually(
        "the claim is bound",
        lambda: kubectl_json("-n", namespace, "get", "pvc")["items"][0]["status"].get("phase") == "Bound",
    )
    yield
    kubectl("delete", "pv", namespace, "--wait=false")


@pytest.fixture
def spec(tmp_path):
    def _spec(replicas=1, image="any:1"):
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC % (image, replicas))
        return str(path)

    return _spec


@pytest.fixture
async def backend(namespace, kubeconfig):
    made = KubernetesBackend(Settings(namespaces=(namespace,)), kubeconfig)
    yield made
    await made.close()


def free_gpus(cli, count, nodes=NODES):
    """GPUs of which every slot is free: other users use the cluster, too."""
    slots = cli.json("slots")
    states = Counter((one["node"], one["gpu"]) for one in slots if one["state"] == "free")
    found = [f"{node}/{gpu}" for (node, gpu), free in states.items() if free == 4 and node in nodes]
    return ",".join(found[:count])


def left(namespace):
    text = kubectl(
        "-n", namespace, "get", "all,cm,secret,lease", "-l", "app.kubernetes.io/managed-by=l2rtui", "-o", "name"
    )
    return text.split()


def variables(pod):
    return {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}


def test_twelve_seeds_of_the_labs_own_yaml_run_where_they_were_placed(cli, namespace, volume):
    pins = free_gpus(cli, 12)

    planned = list(yaml.safe_load_all(cli.run("plan", "-f", LAB, "--seeds", "0-11", "--on", pins, "-o", "yaml")))
    cli.run("launch", "-f", LAB, "--seeds", "0-11", "--on", pins, "--wait", "--yes")

    pods = kubectl_json("-n", namespace, "get", "pods")["items"]
    assert Counter(pod["status"]["phase"] for pod in pods) == {"Running": 48}
    where = Counter((pod["spec"]["nodeName"], variables(pod)["NVIDIA_VISIBLE_DEVICES"]) for pod in pods)
    assert where == {tuple(pin.split("/")): 4 for pin in pins.split(",")}
    for pod in pods:
        assert pod["metadata"]["labels"][labels.HOST] == pod["spec"]["nodeName"]
        assert variables(pod)["CUDA_VISIBLE_DEVICES"] == "0"  # the setting's default: the runtime shows one GPU
    mine = [one for one in cli.json("slots") if (one["run"] or "").startswith("worker-pods-s")]
    assert len(mine) == 48
    assert len({one["pod"] for one in mine}) == 48
    assert {f"{one['node']}/{one['gpu']}" for one in mine} == set(pins.split(","))
    made = {
        (one["kind"], one["metadata"]["name"])
        for one in kubectl_json("-n", namespace, "get", "rs,cm,secret,svc", "-l", labels.RUN)["items"]
    }
    assert made == {(one["kind"], one["metadata"]["name"]) for one in planned}

    cli.run("destroy", "worker-pods", "--yes", "--all-matching")
    assert left(namespace) == []


@pytest.mark.smoke
def test_the_plan_is_what_the_server_would_take_and_differs_by_all_of_it(cli, namespace, spec):
    pins = free_gpus(cli, 1)
    text = cli.run("plan", "-f", spec(2), "--on", pins, "-o", "yaml")
    kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert "the server accepts all 3 objects" in cli.run("plan", "-f", spec(2), "--on", pins, "-o", "json")
    assert "+++ plan/ReplicaSet/j-w" in cli.run("plan", "-f", spec(2), "--on", pins, "--diff")
    assert left(namespace) == []


@pytest.mark.smoke
def test_a_name_is_taken_once_and_a_destroyed_run_is_launched_again(cli, namespace, spec):
    pins = free_gpus(cli, 1)
    cli.run("launch", "-f", spec(), "--on", pins, "--wait", "--yes")
    refused = cli.call("launch", "-f", spec(), "--on", pins, "--yes")
    assert refused.returncode == 3
    assert "a run named j exists" in refused.stderr
    cli.run("destroy", "j", "--yes")
    cli.run("relaunch", "--on", pins, "--wait", "--yes")
    (run,) = cli.json("runs")
    assert (run["run"], run["ready"]) == ("j", 1)
    cli.run("destroy", "j", "--yes")
    assert left(namespace) == []


def one_slot(slot, name):
    one = SetSpec("w", Role.WORKER, ("sleep", "600"), restart=RestartPolicy.ALWAYS, grace_seconds=1.0)
    spec = RunSpec(Kind.JOB, name, name, (one,), image="any:1")
    return spec, Placement((Seat(name, "w", 0, (slot,)),))


async def outcome(backend, slot, name, nodes):
    spec, placement = one_slot(slot, name)
    plan = plan_launch([spec], placement, nodes, owner="me", uids=[uuid.uuid4().hex])
    try:
        async with aclosing(backend.launch(plan)) as steps:
            async for done in steps:
                assert done.error == ""
    except RefusedError as error:
        return error.message
    return ""


@pytest.mark.smoke
async def test_of_two_people_who_place_on_the_last_slot_one_wins(backend, namespace, kubeconfig):
    other = KubernetesBackend(Settings(namespaces=(namespace,)), kubeconfig)
    try:
        for number in range(30):
            snapshot = await backend.snapshot()
            slot = next(slot for slot in snapshot.ledger.free() if slot.node == "phortx2")
            names = (f"a{number}", f"b{number}")
            lost = await asyncio.gather(
                outcome(backend, slot, names[0], snapshot.nodes), outcome(other, slot, names[1], snapshot.nodes)
            )
            assert sum(not sentence for sentence in lost) == 1, lost
            assert f"{slot}" in "".join(lost)
            winner = names[[not sentence for sentence in lost].index(True)]
            maps = kubectl_json("-n", namespace, "get", "cm", "-l", labels.RUN)["items"]
            assert [one["metadata"]["labels"][labels.RUN] for one in maps] == [winner]
            api = await backend.api()
            await api.delete("ConfigMap", namespace, labels.run_object(winner), propagation="Background")
            run_id = maps[0]["metadata"]["labels"][labels.RUN_ID]
            await slot_leases.SlotLeases(api, namespace).release([run_id], [(slot.node, slot.gpu)])
    finally:
        await other.close()
    eventually("nothing is left", lambda: left(namespace) == [])


async def test_a_claim_that_outlived_its_launch_counts_no_more(backend, namespace):
    api = await backend.api()
    leases = slot_leases.SlotLeases(api, namespace)
    slot = SlotId("phortx2", 0, 3)
    dead = slot_leases.Claimant("gone", uuid.uuid4().hex, namespace)
    await leases.claim(slot_leases.slots_by_device({dead: [slot]}), seconds=-1.0)
    mine = slot_leases.Claimant("mine", uuid.uuid4().hex, namespace)
    await leases.claim(slot_leases.slots_by_device({mine: [slot]}))
    with pytest.raises(RefusedError, match=r"phortx2/0\.3 was claimed by mine"):
        await leases.claim(slot_leases.slots_by_device({dead: [slot]}))
    await leases.release([mine.run_id], [("phortx2", 0)])
    with pytest.raises(ApiError, match="not found"):
        await api.read("Lease", namespace, labels.slot_lease("phortx2", 0))


async def test_dead_claims_are_swept_and_live_ones_stay(backend, namespace):
    api = await backend.api()
    leases = slot_leases.SlotLeases(api, namespace)
    dead, live = (slot_leases.Claimant(name, uuid.uuid4().hex, namespace) for name in ("dead", "live"))
    await leases.claim(slot_leases.slots_by_device({dead: [SlotId("n", 0, 1)]}), seconds=-1.0)
    await leases.claim(slot_leases.slots_by_device({live: [SlotId("n", 0, 2)]}))
    assert await leases.sweep() == 1
    claims = slot_leases.claims_of(await api.read("Lease", namespace, labels.slot_lease("n", 0)))
    assert list(claims) == ["2"]


@pytest.mark.smoke
def test_waves_start_a_few_at_a_time(cli, namespace, tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW % "1.5")
    launch = cli.start("launch", "-f", str(path), "--on", free_gpus(cli, 2), "--wave", "2", "--yes")
    most = 0
    while launch.poll() is None:
        pods = kubectl_json("-n", namespace, "get", "pods")["items"]
        most = max(most, sum(pod["status"]["phase"] != "Running" for pod in pods))
    out, err = launch.communicate()
    assert launch.returncode == 0, out + err
    assert most <= 2
    assert len(kubectl_json("-n", namespace, "get", "pods")["items"]) == 6
    cli.run("destroy", "slow", "--yes")


def start_slow(cli, namespace, tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW % "600")
    launch = cli.start("launch", "-f", str(path), "--on", free_gpus(cli, 2), "--wave", "2", "--yes")
    eventually("the first wave", lambda: len(kubectl_json("-n", namespace, "get", "pods")["items"]) == 2)
    return launch


@pytest.mark.smoke
def test_ctrl_c_in_the_middle_takes_everything_back(cli, namespace, tmp_path):
    launch = start_slow(cli, namespace, tmp_path)
    os.kill(launch.pid, signal.SIGINT)
    _, err = launch.communicate(timeout=150)
    assert launch.returncode == 130
    assert "nothing is left" in err
    assert left(namespace) == []


def test_a_launcher_that_is_killed_leaves_a_run_that_is_shown_and_can_be_destroyed(cli, namespace, tmp_path):
    launch = start_slow(cli, namespace, tmp_path)
    launch.kill()
    launch.communicate()
    (run,) = cli.json("runs")
    assert (run["run"], run["pods"]) == ("slow", 2)
    cli.run("destroy", "slow", "--yes")
    assert left(namespace) == []


@pytest.mark.smoke
def test_a_set_grows_and_shrinks_by_its_seats(cli, namespace, spec):
    cli.run("launch", "-f", spec(3, IMAGE), "--on", free_gpus(cli, 2), "--wait", "--yes")

    def pods(count):
        return eventually(
            f"{count} pods",
            lambda: (
                (found := [pod for pod in cli.json("pods") if pod["run"] == "j"])
                and len(found) == count
                and all(pod["ready"] for pod in found)
                and found
            ),
        )

    cli.run("scale", "j/w", "6")  # within the two GPUs of the launch
    found = pods(6)
    assert len({slot for pod in found for slot in pod["slots"]}) == 6
    assert {pod["index"] for pod in found} == set(range(6))
    cli.run("scale", "j/w", "1")
    (last,) = pods(1)
    assert last["index"] == 0
    spec_kept = json.loads(kubectl_json("-n", namespace, "get", "cm", "l2r-j")["data"][labels.SPEC_KEY])
    assert spec_kept["sets"][0]["replicas"] == 1
    claimed = kubectl_json("-n", namespace, "get", "leases")["items"]
    assert sum(len(slot_leases.claims_of(one)) for one in claimed) == 1
    cli.run("destroy", "j", "--yes")
    assert left(namespace) == []


@pytest.mark.parametrize(
    ("prepare", "options", "words"),
    [
        ("", ["-f", LAB], "there is no PersistentVolumeClaim l2r-persistent-claim"),
        ("quota", ["-f", "SPEC"], "it leaves 2 of pods, and the plan needs 3"),
        ("", ["-f", "SPEC", "--set", "image=UP PER"], "'UP PER' is no image name"),
        ("", ["-f", "SPEC", "--set", "image=''"], "it names no image"),
        ("", ["-f", "SPEC", "--set", "pod.pull_secrets=[regcred]"], "there is no Secret regcred"),
        ("", ["-f", "SPEC", "--set", "pod.service_account=robot"], "there is no ServiceAccount robot"),
        ("", ["-f", "SPEC", "--set", "job.resources.cpu=90"], "CPU cores are requested"),
        ("", ["-f", "SPEC", "--binding", "shared"], "offers no nvidia.com/gpu.shared"),
        ("", ["-f", "SPEC", "--binding", "dra"], "names a GPU by its UUID"),
        ("service", ["-f", "SPEC"], "ConfigMap l2r-j is there already"),
        ("taint", ["-f", "SPEC"], "has the taint b-test=x:NoSchedule, which the set w does not tolerate"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_stands_in_the_way_is_said_before_anything_is_made(cli, namespace, spec, prepare, options, words):
    node = "phortx2"
    if prepare == "quota":
        kubectl("-n", namespace, "create", "quota", "small", "--hard=pods=2")
        eventually(
            "usage", lambda: kubectl_json("-n", namespace, "get", "quota", "small").get("status", {}).get("used")
        )
    elif prepare == "service":
        kubectl("-n", namespace, "create", "configmap", "l2r-j")
    elif prepare == "taint":
        kubectl("taint", "node", node, "b-test=x:NoSchedule")
    try:
        path = spec(3)
        pins = free_gpus(cli, 1, (node,))
        words_given = [path if word == "SPEC" else word for word in options]
        done = cli.call("launch", *words_given, "--on", pins, "--yes")
    finally:
        if prepare == "taint":
            kubectl("taint", "node", node, "b-test-")
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert left(namespace) == []


def test_a_missing_right_is_named_before_anything_is_made(cli, namespace, spec):
    researcher = str(Path(os.environ["L2R_CLUSTER_DIR"], "researcher.kubeconfig"))
    kubectl("-n", namespace, "create", "role", "looker", "--verb=get,list,watch", "--resource=pods,configmaps")
    kubectl("-n", namespace, "create", "rolebinding", "looker", "--role=looker", "--user=researcher")
    done = cli.call("launch", "-f", spec(), "--set", "job.slots=0", "--yes", KUBECONFIG=researcher)
    assert done.returncode == 3, done.stderr
    assert f"may not create configmaps in {namespace}" in done.stderr
    assert f"may not create replicasets in {namespace}" in done.stderr


def test_a_restricted_pod_on_a_real_node_can_do_what_it_must(cli, namespace, tmp_path):
    script = "id -u; touch /l2r/x /tmp/x && echo written; touch /x 2>/dev/null || echo closed; "
    script += "wc -c < /run/l2r/token; sleep 600"
    path = tmp_path / "real.yaml"
    path.write_text(
        f"kind: job\nname: real\nimage: {IMAGE}\npod: {{node_selector: {{kubernetes.io/hostname: phortx0}}}}\n"
        f"job: {{command: [sh, -c, {json.dumps(script)}], grace_seconds: 0}}\n"
    )
    cli.run("launch", "-f", str(path), "--wait", "--yes")
    eventually(
        "its output",
        lambda: kubectl("-n", namespace, "logs", "job/real-job").split() == ["1000", "written", "closed", "64"],
    )
    cli.run("destroy", "real", "--yes")
    assert left(namespace) == []


async def test_the_probe_of_the_binding_mode_is_honest(backend, namespace):
    api = await backend.api()
    found = await probe_binding(api, namespace, Gpu("phortx0", 2), IMAGE)
    assert found.severity is Severity.WARNING
    assert (
        found.sentence
        == "no GPU device appears: a pod with NVIDIA_VISIBLE_DEVICES=2 on phortx0 finds no /dev/nvidia*"
    )
    eventually("the probe is gone", lambda: not kubectl_json("-n", namespace, "get", "pods")["items"])
