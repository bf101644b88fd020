"""Several workers in one pod (`workers_per_pod`): plans, manifests, rows, logs, kills, and reports of pods."""

from __future__ import annotations

import json
from contextlib import aclosing, nullcontext

import msgspec
import pytest
import yaml

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.scale import kill
from l2rtui.backends.kubernetes.api.structs import PodStruct
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.backends.kubernetes.state.joiner import Joiner
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.backends.kubernetes.state.own_reports import PodReport, WorkerState, parse_report, pod_of
from l2rtui.backends.kubernetes.streams.logs import read
from l2rtui.domain.change import apply
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.log import LogQuery
from l2rtui.domain.node import Gpu, Node, Resource
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import shared_pods
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role, with_binding, without_shared_pods
from l2rtui.errors import BackendError, SpecError
from l2rtui.services.spec.encode import to_document
from l2rtui.services.spec.spec_file import load
from tests.l2rtui.backends.kubernetes.log_server import BEGIN, Pod, Process
from tests.l2rtui.backends.kubernetes.log_server import serving as serving_log
from tests.l2rtui.backends.kubernetes.state.test_joiner import node as node_struct
from tests.l2rtui.backends.kubernetes.streams.test_exec import SUCCESS, client, failure, outputs

SPEC = """\
kind: learner-workers
name: r
train: {environment: racing}
learner: {slots: 0}
workers:
  - replicas: 8
    workers_per_pod: 4
    restart: Always
    grace_seconds: 5
    resources: {cpu: 0.5, memory: 1Gi}
    pod: {binding: device-plugin}
"""


def loaded(tmp_path, text=SPEC):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return load(str(path)).spec


def counting(gpus=8):
    return Node(
        "g-1",
        tuple(Gpu("g-1", index, slots=4) for index in range(gpus)),
        resources=(Resource("nvidia.com/gpu", gpus, gpus),),
    )


def planned(spec, gpus=8):
    nodes = {"g-1": counting(gpus)}
    placement = place([spec], build_ledger(nodes.values(), []))
    return plan_launch([spec], placement, nodes, owner="me", uids=["u" * 32])


# --- specs and plans ---------------------------------------------------------------------------------------------
def test_a_pod_of_four_workers_takes_one_gpu(tmp_path):
    spec = loaded(tmp_path)
    plan = planned(spec)
    pods = [pod for pod in plan.runs[0].pods if pod.set_spec.role is Role.WORKER]
    assert [(pod.name, pod.seat.resource, pod.seat.units) for pod in pods] == [
        ("r-w-0", "nvidia.com/gpu", 1),
        ("r-w-1", "nvidia.com/gpu", 1),
    ]
    assert [finding.sentence for finding in shared_pods(plan)] == ["4 workers share each of its 2 pods"]
    assert loaded(tmp_path, yaml.safe_dump(to_document(spec))) == spec


def test_the_refusal_counts_pods(tmp_path):
    (conflict,) = planned(loaded(tmp_path), gpus=1).conflicts
    assert "r/w: 1 of 2 pods of 4 workers lacks" in conflict


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("replicas: 8", "replicas: 6", "replicas is 6, the number of workers; .* write a multiple of 4"),
        ("workers_per_pod: 4", "workers_per_pod: 0", "workers_per_pod"),
        ("workers_per_pod: 4", "workers_per_pod: 65", "workers_per_pod"),
        (
            "{environment: racing}",
            "{environment: l2r, num_envs: 1, environment_options: {simulator: {kind: sidecar}}}",
            "serves one: leave workers_per_pod out",
        ),
    ],
)
def test_what_does_not_fit_together_gets_a_sentence(tmp_path, old, new, sentence):
    with pytest.raises(SpecError, match=sentence):
        loaded(tmp_path, SPEC.replace(old, new))


def test_a_set_grows_and_shrinks_by_whole_pods(tmp_path):
    workers = loaded(tmp_path).set_named("w")
    assert "choose a multiple of 4" in workers.scale_problem(6)
    assert (workers.scale_problem(4), workers.scale_problem(0)) == ("", "")


@pytest.mark.parametrize("binding", [Binding.ENV, Binding.CPU, Binding.SHARED])
def test_other_bindings_give_each_worker_a_pod(tmp_path, binding):
    spec = with_binding(loaded(tmp_path), binding)
    assert (spec.set_named("w").num_pods, spec.set_named("w").scale_problem(6)) == (8, "")


def test_without_a_device_plugin_workers_are_processes_on_slots(tmp_path):
    workers = without_shared_pods(loaded(tmp_path)).set_named("w")
    assert (workers.num_pods, workers.pod.binding, workers.workers_per_pod) == (8, Binding.ENV, 4)


# --- manifests ---------------------------------------------------------------------------------------------------
def test_the_pod_starts_a_supervisor_with_the_resources_of_all(tmp_path):
    (run,) = planned(loaded(tmp_path)).runs
    (group,) = [group for group in render.run_groups(run) if group.set_spec.role is Role.WORKER]
    controller = render.controller(run, group, ServerFacts())
    pod = controller["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == [
        *("l2r-runtime", "supervise", "--workers", "4", "--restart", "Always", "--grace", "5"),
        *("--", "l2r-runtime", "worker"),
    ]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": str(4 << 30)}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": str(4 << 30)}
    assert {item["name"]: item.get("value") for item in container["env"]}["L2R_CPUS"] == "0.5"
    assert pod["terminationGracePeriodSeconds"] == 7
    assert controller["spec"]["replicas"] == 2
    assert controller["metadata"]["annotations"][labels.WORKERS] == "4"
    assert "2 x pod of 4 workers" in next(
        step.detail for step in render.planned_steps(planned(loaded(tmp_path))) if step.kind == "ReplicaSet"
    )


# --- rows --------------------------------------------------------------------------------------------------------
OURS = {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.RUN_ID: "r1", labels.RUN: "r", labels.SET: "w",
        labels.ROLE: "worker"}  # fmt: skip
NOTES = {labels.SEATS: json.dumps([[0, []], [1, []]]), labels.WORKERS: "4", labels.BINDING: "device-plugin"}


def own_pod(name="p", phase="Running", notes=NOTES):
    owner = {"kind": "ReplicaSet", "name": "rs", "uid": "rs1", "controller": True}
    created = f"2026-09-21T12:00:0{len(name)}Z"
    meta = {"name": name, "namespace": "ml", "uid": f"u-{name}", "creationTimestamp": created,
            "labels": OURS, "annotations": notes, "ownerReferences": [owner]}  # fmt: skip
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "True" if phase == "Running" else "False"}],
        "containerStatuses": [{"name": "main", "restartCount": 1, "ready": phase == "Running"}],
    }
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    document = {"metadata": meta, "spec": {"nodeName": "n", "containers": [container]}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(document), type=PodStruct)


class Rows:
    def __init__(self, **node_fields):
        self.join = Joiner(SlotRule(), lambda: 0.0)
        self.join.set_visibility(run_namespaces=["ml"], is_use_known=True, is_derived=False)
        self.join.put_node(None, node_struct(**node_fields))
        self.snapshot = EMPTY_SNAPSHOT

    def now(self):
        self.snapshot = apply(self.snapshot, self.join.changes())
        return sorted(self.snapshot.pods.values(), key=lambda row: row.index)


def test_each_worker_is_a_row_and_the_pod_counts_once():
    rows = Rows()
    first, second = own_pod(), own_pod("pp")
    rows.join.put_pod(None, first)
    rows.join.put_pod(None, second)
    made = rows.now()
    assert [(row.name, row.uid, row.index, row.worker) for row in made] == [
        (f"{pod}.{number}", f"u-{pod}.{number}", 4 * place + number, number)
        for place, pod in enumerate(("p", "pp"))
        for number in range(4)
    ]
    assert all(row.ready and row.restarts == 1 for row in made)
    assert rows.snapshot.ledger.nodes["n"].counts["nvidia.com/gpu"].free == 2
    assert (pod_of(made[3]).name, pod_of(made[3]).uid) == ("p", "u-p")
    assert [row.name for row in rows.snapshot.select("r/w/5")] == []  # its run is not listed here
    rows.join.put_pod(first, None)
    assert [row.name for row in rows.now()] == [f"pp.{number}" for number in range(4)]


def test_a_report_tells_of_each_worker_and_of_no_other_pod():
    rows = Rows()
    rows.join.put_pod(None, own_pod())
    rows.now()
    assert [(pod.metadata.uid, is_shared) for pod, is_shared in rows.join.reporting_pods()] == [("u-p", True)]
    states = (
        WorkerState("running", 2, 137, 5.0),
        WorkerState("waiting", 6, 1),
        WorkerState("ended", 0, 3),
        WorkerState("ended", 0, 0),
    )
    rows.join.set_reports({"u-p": PodReport(workers=states), "u-gone": PodReport(workers=states)})
    first, second, third, fourth = rows.now()
    assert (first.restarts, first.exit_code, first.started, first.ready) == (3, 137, 5.0, True)
    assert (second.reason, second.is_failing, second.ready, second.restarts) == ("CrashLoopBackOff", True, False, 7)
    assert (third.phase, fourth.phase) == (Phase.FAILED, Phase.SUCCEEDED)
    rows.join.set_reports({"u-p": None})
    assert rows.now()[0] == first, "a report that cannot be read leaves the one before"


@pytest.mark.parametrize("number", ["1", "0", "many", "65", ""])
def test_a_pod_without_a_number_of_workers_is_one_row(number):
    rows = Rows()
    rows.join.put_pod(None, own_pod(notes={**NOTES, labels.WORKERS: number}))
    assert [(row.name, row.worker) for row in rows.now()] == [("p", None)]


def test_a_pod_that_names_its_gpu_is_drawn_there():
    rows = Rows()
    nodes = node_struct()
    annotated = msgspec.structs.replace(
        nodes,
        metadata=msgspec.structs.replace(nodes.metadata, annotations={labels.GPU_UUIDS: "GPU-a,GPU-b,GPU-c,GPU-d"}),
    )
    rows.join.put_node(nodes, annotated)
    notes = {key: value for key, value in NOTES.items() if key != labels.WORKERS}
    rows.join.put_pod(None, own_pod(notes=notes))
    (before,) = rows.now()
    assert [usage.gpu for usage in before.devices] == [None]
    assert [is_shared for _, is_shared in rows.join.reporting_pods()] == [False]
    rows.join.set_reports({"u-p": PodReport(("GPU-c",))})
    assert {usage.gpu for usage in rows.now()[0].devices} == {2}
    assert rows.join.reporting_pods() == [], "its GPU stays"


RUNNING = '{"l2r":"workers","uuids":[],"workers":[{"state":"running","restarts":1}]}'
WAITING = '{"l2r":"workers","uuids":["GPU-b"],"workers":[{"state":"waiting","restarts":2,"exit_code":1}]}'


@pytest.mark.parametrize(
    ("log", "report"),
    [
        ("", None),
        ('[0] {"l2r":"worker","time":1}\n{"l2r":"workers","workers":[{', None),
        ('{"l2r":"gpu","uuids":["GPU-a"]}\nnext', PodReport(("GPU-a",))),
        (
            f"{RUNNING}\n{WAITING}\n[0] x",
            PodReport(("GPU-b",), (WorkerState("waiting", 2, 1),)),
        ),
        (
            '{"l2r":"workers","uuids":"x","workers":[3,{"restarts":-4,"exit_code":9999,"started":"now"}]}',
            PodReport((), (WorkerState("running"), WorkerState("running"))),
        ),
    ],
)
def test_the_newest_report_of_a_log_counts_and_is_not_trusted(log, report):
    assert parse_report(log) == report


# --- log and kill ------------------------------------------------------------------------------------------------
LOG = [
    '{"l2r":"workers","time":1,"workers":[]}',
    "[0] zero",
    "[1] one",
    "[1]! restart 1, ended with 137; starts again at once",
    "[1] 50%",
    "[11] eleven",
    "[1] [0] nested",
    "of the pod",
]


async def worker_log(number, query):
    pod = Pod(containers={"main": [Process([(BEGIN + at, text) for at, text in enumerate(LOG)])]})
    async with (
        serving_log(pod) as api,
        aclosing(read(api, PodView(f"u.{number}", f"p.{number}", namespace="ml", worker=number), query)) as lines,
    ):
        return [(line.pod, line.text, line.is_mark) async for line in lines]


async def test_the_log_of_a_worker_has_its_lines_alone():
    assert await worker_log(1, LogQuery()) == [
        ("p.1", "one", False),
        ("p", "restart 1, ended with 137; starts again at once", True),
        ("p.1", "50%", False),
        ("p.1", "[0] nested", False),
        ("p.1", "of the pod", False),
    ]
    assert [text for _, text, _ in await worker_log(0, LogQuery(tail=1))] == ["of the pod"]
    assert [text for _, text, _ in await worker_log(11, LogQuery(tail=5))] == ["eleven", "of the pod"]


@pytest.mark.parametrize(
    ("code", "sentence"), [(0, ""), (1, "Worker 1,2 of p was not stopped: no supervisor answers.")]
)
async def test_a_kill_of_workers_asks_the_supervisor_of_their_pod(code, sentence):
    workers = [PodView(f"u.{number}", f"p.{number}", namespace="ml", worker=number) for number in (2, 1)]
    answer = outputs((2, b"l2r-runtime: no supervisor answers"), (3, failure(code) if code else SUCCESS))
    async with client(answer) as (server, api):
        with pytest.raises(BackendError, match=sentence) if sentence else nullcontext():
            await kill(api, workers, 3.0)
    ((path, query),) = server.streams
    assert path.endswith("/pods/p/exec")
    argv = [value for key, value in query if key == "command"]
    assert argv == ["l2r-runtime", "supervise", "--kill", "1,2", "--grace", "3"]
