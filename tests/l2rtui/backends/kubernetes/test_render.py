"""Plans as manifests: compared as a whole with reviewed files, and rule by rule if there is a choice.

After an intended change: ``L2R_WRITE_GOLDEN=1 pytest tests/unit/kubernetes/test_render.py``, and review the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.diff import plan_manifests
from l2rtui.backends.kubernetes.manifests import gpu_binding, render
from l2rtui.backends.kubernetes.manifests.gpu_binding import CudaIndex
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.containers import Mount, PodSettings, Security, Toleration
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import parse_pins, place
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Resources, RestartPolicy, Role, RunSpec, SetSpec, with_binding, with_seeds
from l2rtui.errors import RefusedError
from l2rtui.services.spec import spec_file
from runtime.base.alert_rules import AlertRule
from runtime.base.limits import Limits

GOLDEN = Path("tests/l2rtui/backends/kubernetes/golden")
UUIDS = {"n1": Node("n1", tuple(Gpu("n1", index, f"GPU-{index}", slots=2) for index in range(4)))}
NUMBERS = {
    name: Node(name, tuple(Gpu(name, index, slots=4) for index in range(8))) for name in ("phortx1", "phortx2")
}

RACING = RunSpec(
    Kind.LEARNER_WORKERS,
    "racing",
    "racing",
    (
        SetSpec(
            "learner",
            Role.LEARNER,
            ("l2r-runtime", "learner"),
            restart=RestartPolicy.ALWAYS,
            resources=Resources(2, 2**31),
            pod=PodSettings(
                mounts=(Mount("/l2r", claim="data", sub_path="racing"), Mount("/in", claim="data", read_only=True)),
                ports=(6006,),
                pull_secrets=("regcred",),
                secrets=("aws",),
                service_account="trainer",
                shm_bytes=2**30,
            ),
        ),
        SetSpec("w", Role.WORKER, ("l2r-runtime", "worker"), replicas=3, restart=RestartPolicy.ALWAYS),
        SetSpec("eval", Role.EVALUATOR, ("l2r-runtime", "evaluator"), slots=0, restart=RestartPolicy.NEVER),
    ),
    seed=7,
    image="registry.example/l2r:1",
    env=(("A", "1"), ("CUDA_VISIBLE_DEVICES", "theirs")),
    train='{"environment":"racing"}',
)


def planned(spec, nodes=UUIDS, pins=""):
    specs = spec if isinstance(spec, tuple) else (spec,)
    placement = place(specs, build_ledger(nodes.values(), []), pins=parse_pins(pins) if pins else ())
    assert placement.conflicts == ()
    uids = [f"{number:032x}" for number in range(1, len(specs) + 1)]
    return plan_launch(specs, placement, nodes, owner="anna@lab", uids=uids)


def objects(plan, **facts):
    return [
        manifest
        for run in plan.runs
        for manifest in render.run_objects(run, namespace="ml", token="secret", server=ServerFacts(**facts))
    ]


def workers(**settings):
    item = SetSpec("w", Role.WORKER, ("w",), restart=RestartPolicy.ALWAYS, pod=PodSettings(**settings))
    return RunSpec(Kind.JOB, "r", "r", (item,), image="i")


def template(plan, **facts):
    return objects(plan, **facts)[-1]["spec"]["template"]["spec"]


def env(pod):
    return {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("racing", lambda: planned(RACING)),
        (
            "worker-pods",
            lambda: planned(
                with_seeds(spec_file.load("manifests/worker-pods.yaml").spec, (0, 1)),
                NUMBERS,
                "phortx1/3,phortx2/0",
            ),
        ),
    ],
)
def test_a_run_is_these_objects(name, plan):
    text = yaml.safe_dump_all(objects(plan()), sort_keys=False, width=110)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("L2R_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_the_spec_comes_back_out_of_its_config_map():
    from l2rtui.backends.kubernetes.actions.run_object import decode_spec

    config_map = objects(planned(RACING))[0]
    assert decode_spec(config_map) == RACING


def test_two_sets_and_two_runs_never_select_each_others_pods():
    made = objects(planned(with_seeds(RACING, (0, 1))))
    sets = [item for item in made if item["kind"] == "ReplicaSet"]
    assert len(sets) == 4  # three workers of each run are on two GPUs of two slots
    for item in sets:
        selector = item["spec"]["selector"]["matchLabels"].items()
        matching = [other for other in sets if selector <= other["spec"]["template"]["metadata"]["labels"].items()]
        assert matching == [item]
    names = [(item["kind"], item["metadata"]["name"]) for item in made]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("restart", "kind", "policy", "backoff"),
    [
        ("Always", "ReplicaSet", None, None),
        ("OnFailure", "Job", "OnFailure", render.MAX_RETRIES),
        ("Never", "Job", "Never", 0),
    ],
)
def test_what_ends_is_a_job_and_what_never_ends_a_replica_set(restart, kind, policy, backoff):
    spec = workers()
    spec = replace(spec, sets=(replace(spec.sets[0], restart=RestartPolicy(restart)),))
    made = objects(planned(spec))[-1]
    assert made["kind"] == kind
    assert made["spec"]["template"]["spec"].get("restartPolicy") == policy
    assert made["spec"].get("backoffLimit") == backoff
    assert "completions" not in made["spec"]


def test_seats_are_told_to_the_pods_in_order():
    made = [item for item in objects(planned(RACING)) if item["kind"] == "ReplicaSet"]
    seats = [json.loads(item["metadata"]["annotations"][labels.SEATS]) for item in made]
    assert seats == [[[0, [1]]], [[1, [0]], [2, [1]]]]
    assert [item["metadata"]["labels"].get(labels.SLOT) for item in made] == ["1", None]


@pytest.mark.parametrize(
    ("nodes", "cuda", "nvidia", "visible"),
    [
        (UUIDS, CudaIndex.ZERO, "GPU-0", "GPU-0"),
        (NUMBERS, CudaIndex.SAME, "3", "3"),
        (NUMBERS, CudaIndex.ZERO, "3", "0"),
    ],
)
def test_both_variables_name_the_gpu_by_uuid_or_as_the_probe_found(nodes, cuda, nvidia, visible):
    plan = planned(workers(), nodes, "" if nodes is UUIDS else "phortx2/3")
    pod = template(plan, cuda=cuda)
    assert (env(pod)["NVIDIA_VISIBLE_DEVICES"], env(pod)["CUDA_VISIBLE_DEVICES"]) == (nvidia, visible)
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "n1" if nodes is UUIDS else "phortx2"}
    (sentences,) = gpu_binding.explain(plan.runs[0], cuda)
    assert sentences.severity is (Severity.WARNING if cuda is CudaIndex.SAME else Severity.OK)


def test_a_pod_without_a_gpu_sees_none():
    for spec in (
        with_binding(workers(), Binding.CPU),
        replace(workers(), sets=(replace(workers().sets[0], slots=0),)),
    ):
        pod = template(planned(spec))
        assert (env(pod)["NVIDIA_VISIBLE_DEVICES"], env(pod)["CUDA_VISIBLE_DEVICES"]) == ("none", "")
        assert "nodeSelector" not in pod
        assert "tolerations" not in pod


@pytest.mark.parametrize(
    ("mode", "limits"),
    [
        ("device-plugin", {"nvidia.com/gpu": "1"}),
        ("shared", {"nvidia.com/gpu.shared": "1"}),
        ("hami", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
    ],
)
def test_modes_that_ask_the_cluster_set_no_variables(mode, limits):
    plan = planned(workers(binding=Binding(mode)))
    made = objects(plan)[-1]
    pod = made["spec"]["template"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == limits
    assert not {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & set(env(pod["spec"]))
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n1"}
    assert pod["metadata"]["annotations"].get(labels.HAMI_GPU_UUID) == ("GPU-0" if mode == "hami" else None)
    assert (labels.GPU in made["metadata"]["labels"]) is (mode == "hami")
    assert [finding.severity for finding in gpu_binding.explain(plan.runs[0], CudaIndex.SAME)] == [Severity.OK]


@pytest.mark.parametrize(
    ("version", "api", "has_exactly"),
    [((1, 34), "v1", True), ((1, 33), "v1beta2", True), ((1, 32), "v1beta1", False)],
)
def test_pods_of_a_gpu_share_one_dra_claim(version, api, has_exactly):
    spec = workers(binding=Binding.DRA)
    plan = planned(replace(spec, sets=(replace(spec.sets[0], replicas=2),)))
    claims = [item for item in objects(plan, version=version) if item["kind"] == "ResourceClaim"]
    (claim,) = claims
    assert claim["apiVersion"] == f"resource.k8s.io/{api}"
    (request,) = claim["spec"]["devices"]["requests"]
    assert ("exactly" in request) is has_exactly
    assert 'uuid == "GPU-0"' in json.dumps(request).replace('\\"', '"')
    pod = template(plan, version=version)
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    kinds = [(step.kind, step.name) for step in render.with_objects(plan).steps()]
    assert ("ResourceClaim", claim["metadata"]["name"]) in kinds


@pytest.mark.parametrize(("mode", "nodes"), [("dra", UUIDS), ("dra", NUMBERS), ("hami", NUMBERS)])
def test_a_mode_that_cannot_be_had_is_refused(mode, nodes):
    with pytest.raises(RefusedError, match=r"needs Kubernetes 1\.32|by its UUID"):
        objects(planned(workers(binding=Binding(mode)), nodes))


def test_pods_meet_restricted_unless_the_spec_asks_otherwise():
    pod = template(planned(workers()))
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["automountServiceAccountToken"] is False
    assert {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]} == {"/run/l2r", "/l2r", "/tmp"}
    for level, context in (("baseline", {"allowPrivilegeEscalation": False}), ("privileged", {"privileged": True})):
        pod = template(planned(workers(security=Security(level))))
        assert "securityContext" not in pod
        assert pod["containers"][0]["securityContext"] == context


def test_what_the_spec_says_of_pods_reaches_them():
    pod = template(
        planned(
            workers(
                image="other:2",
                pull_policy="Always",
                node_selector=(("disk", "ssd"),),
                tolerations=(Toleration(), Toleration("a", "b", "NoExecute")),
                mounts=(Mount("/sim", host_path="/opt/sim"), Mount("/fast", in_memory=True, size_bytes=5)),
                host_network=True,
                ports=(8000,),
            )
        ),
        hostnames={"n1": "host-of-n1"},
    )
    container = pod["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("other:2", "Always")
    assert container["ports"] == [{"containerPort": 8000, "protocol": "TCP"}]
    assert pod["nodeSelector"] == {"disk": "ssd", "kubernetes.io/hostname": "host-of-n1"}
    assert pod["tolerations"] == [
        {"operator": "Exists"},
        {"operator": "Equal", "key": "a", "value": "b", "effect": "NoExecute"},
        {"operator": "Exists", "key": "nvidia.com/gpu", "effect": "NoSchedule"},
    ]
    assert {"name": "mount-0", "hostPath": {"path": "/opt/sim"}} in pod["volumes"]
    assert {"name": "mount-1", "emptyDir": {"medium": "Memory", "sizeLimit": "5"}} in pod["volumes"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_the_steps_of_a_plan_are_its_objects_in_order():
    plan = planned(with_seeds(RACING, (0, 1)))
    steps = render.with_objects(plan, ["l2r-claim-n1-0"]).steps()
    made = objects(plan)
    maps = [item for item in made if item["kind"] == "ConfigMap"]
    rest = [item for item in made if item["kind"] != "ConfigMap"]
    names = [(item["kind"], item["metadata"]["name"]) for item in (*maps, *rest)]
    names.insert(2, ("Lease", "l2r-claim-n1-0"))
    assert [(step.kind, step.name) for step in steps] == names
    assert render.with_objects(LaunchPlan(())).steps() == ()


def test_what_is_printed_of_a_plan_holds_no_key():
    printed = plan_manifests(planned(RACING), namespace="ml", server=ServerFacts())
    assert [item["kind"] for item in printed] == [item["kind"] for item in objects(planned(RACING))]
    assert [set(item) for item in printed if item["kind"] == "Secret"] == [
        {"apiVersion", "kind", "metadata", "type"}
    ]
    # The key is only in the Secret, so that no other output can contain it.
    (run,) = planned(RACING).runs
    sent = render.run_objects(run, namespace="ml", token="k3y-of-th1s-run", server=ServerFacts())
    assert [item["kind"] for item in sent if "k3y-of-th1s-run" in yaml.safe_dump(item)] == ["Secret"]
    (secret,) = (item for item in sent if item["kind"] == "Secret")
    assert secret.pop("stringData") == {"token": "k3y-of-th1s-run"}
    assert "k3y-of-th1s-run" not in yaml.safe_dump(secret)


def test_a_device_of_a_plugin_is_requested_by_its_name():
    card = {"n1": Node("n1", (Gpu("n1", 0, slots=1, resource="nvidia.com/mig-1g.5gb"),))}
    spec = workers(binding=Binding.DEVICE_PLUGIN, device="nvidia.com/mig-1g.5gb")
    container = template(planned(spec, card))["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/mig-1g.5gb": "1"}
    (finding,) = gpu_binding.explain(planned(spec, card).runs[0], CudaIndex.SAME)
    assert "nvidia.com/mig-1g.5gb by the device plugin" in finding.sentence


def test_variables_bind_no_device_of_a_plugin():
    card = {"n1": Node("n1", (Gpu("n1", 0, slots=1, resource="amd.com/gpu"),))}
    with pytest.raises(RefusedError, match=r"n1/0 is of amd\.com/gpu, which only its device plugin allocates"):
        objects(planned(workers(), card, "n1/0"))


def test_a_job_has_a_deadline_behind_its_learners_own_and_a_replicaset_none():
    made = objects(planned(replace(RACING, limits=Limits(wall=60, gpu_hours=1))))
    # One minute, twice the grace period in which the learner ends, and the start of its replacement.
    deadlines = [(item["kind"], item["spec"].get("activeDeadlineSeconds")) for item in controllers(made)]
    assert set(deadlines) == {("Job", 80 + render.LEARNER_RESTART_SECONDS), ("ReplicaSet", None)}
    assert all(not item["spec"].get("activeDeadlineSeconds") for item in controllers(objects(planned(RACING))))


def test_limits_and_alerts_are_variables_of_the_learner_alone():
    rule = AlertRule(("failed",), "webhook", url_from="HOOK")
    made = controllers(objects(planned(replace(RACING, limits=Limits(idle=60), alerts=(rule,)))))
    named = {item["metadata"]["labels"][labels.ROLE]: env(item["spec"]["template"]["spec"]) for item in made}
    assert json.loads(named["learner"]["L2R_LIMITS"])["idle"] == 60
    assert json.loads(named["learner"]["L2R_ALERTS"])[0]["url_from"] == "HOOK"
    assert not {"L2R_LIMITS", "L2R_ALERTS"} & {*named["worker"], *named["evaluator"]}


@pytest.mark.parametrize(("variables", "value"), [((("A", "1"),), None), ((("A", "2"),), "0")])
def test_a_learner_tries_the_environment_unless_its_workers_differ(variables, value):
    pod, own = RACING.sets[0].pod, (("A", "1"),)
    sets = (replace(part, pod=pod, env=variables if part.role is Role.WORKER else own) for part in RACING.sets)
    made = controllers(objects(planned(replace(RACING, sets=tuple(sets)))))
    (learner,) = [item for item in made if item["metadata"]["labels"][labels.ROLE] == "learner"]
    assert env(learner["spec"]["template"]["spec"]).get("L2R_TRY_ENVIRONMENT") == value


def controllers(made):
    return [item for item in made if item["kind"] in ("Job", "ReplicaSet")]
