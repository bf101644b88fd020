"""Fields of pods added by a spec: merged into the rendered pod, and refused by name if a run owns them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes.actions import capacity_checks
from l2rtui.backends.kubernetes.manifests import pod_patch, render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.containers import PodSettings, Security
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Queue, QueueSystem, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError, SpecError
from l2rtui.services.spec import spec_file

NODES = {"n1": Node("n1", (Gpu("n1", 0, "GPU-a", slots=2),))}
NO_DEVICE = [
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"},
    {"name": "CUDA_VISIBLE_DEVICES", "value": ""},
]


def planned(*patches: dict[str, Any], restart: RestartPolicy = RestartPolicy.ALWAYS, **settings: Any) -> LaunchPlan:
    templates = tuple(map(json.dumps, patches))
    part = SetSpec("w", Role.WORKER, ("run",), restart=restart, pod=PodSettings(templates=templates, **settings))
    spec = RunSpec(Kind.JOB, "r", "r", (part,), image="i")
    placement = place((spec,), build_ledger(NODES.values(), []))
    return plan_launch((spec,), placement, NODES, owner="anna", uids=["1" * 32])


def controller(plan: LaunchPlan) -> dict[str, Any]:
    return render.run_objects(plan.runs[0], namespace="ml", token="t", server=ServerFacts())[-1]


def template(*patches: dict[str, Any], **settings: Any) -> dict[str, Any]:
    pod: dict[str, Any] = controller(planned(*patches, **settings))["spec"]["template"]
    return pod


def refusal(patch: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        template(patch, **settings)
    return caught.value.message


def container(name: str, **fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, **fields}]}}


# --- merged fields --------------------------------------------------------------------------------------
def test_fields_that_l2rtui_does_not_know_reach_the_pod() -> None:
    pod = template(
        {
            "metadata": {"labels": {"team": "rl"}, "annotations": {"cost": "7"}},
            "spec": {
                "runtimeClassName": "nvidia",
                "priorityClassName": "high",
                "schedulerName": "other",
                "affinity": {"podAntiAffinity": {}},
                "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}],
                "imagePullSecrets": [{"name": "registry"}],
                "securityContext": {"fsGroup": 7},
                "volumes": [{"name": "scratch", "emptyDir": {}}],
                "containers": [{"name": "main", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
            },
        }
    )
    spec = pod["spec"]
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert pod["metadata"]["labels"]["l2rtui.io/run"] == "r"
    assert pod["metadata"]["annotations"]["cost"] == "7"
    assert (spec["runtimeClassName"], spec["priorityClassName"], spec["schedulerName"]) == (
        "nvidia",
        "high",
        "other",
    )
    assert (spec["affinity"], spec["imagePullSecrets"]) == ({"podAntiAffinity": {}}, [{"name": "registry"}])
    assert spec["securityContext"] == {**template()["spec"]["securityContext"], "fsGroup": 7}
    assert [volume["name"] for volume in spec["volumes"]] == ["token", "mount-0", "mount-1", "scratch"]
    assert {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]} >= {"/run/l2r", "/scratch"}
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "n1"}


def test_a_later_patch_wins() -> None:
    first, second = ({"spec": {"priorityClassName": name}} for name in ("low", "high"))
    assert template(first, second)["spec"]["priorityClassName"] == "high"


def test_a_selector_beside_that_of_the_node_is_added() -> None:
    selector = template({"spec": {"nodeSelector": {"zone": "a"}}})["spec"]["nodeSelector"]
    assert selector == {"kubernetes.io/hostname": "n1", "zone": "a"}


def test_an_added_container_gets_the_gpu_of_the_slot_and_passes_pod_security() -> None:
    main, added = template(container("log", image="l", env=[{"name": "A", "value": "1"}]))["spec"]["containers"]
    assert main["name"] == "main"
    assert added["env"] == [
        {"name": "A", "value": "1"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-a"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "GPU-a"},
    ]
    assert added["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_an_added_container_sees_no_gpu_where_the_plugin_chooses() -> None:
    added = template(container("log", image="l"), binding=Binding.DEVICE_PLUGIN)["spec"]["containers"][1]
    assert added["env"] == NO_DEVICE


def test_an_added_container_has_the_security_that_the_spec_says() -> None:
    added = template(container("log", image="l"), security=Security.BASELINE)["spec"]["containers"][1]
    assert "securityContext" not in added
    own = {"runAsUser": 7}
    assert (
        template(container("log", image="l", securityContext=own))["spec"]["containers"][1]["securityContext"]
        == own
    )


def test_an_imported_template_is_patched_as_well() -> None:
    imported = {"metadata": {}, "spec": {"containers": [{"name": "theirs", "image": "t"}]}}
    plan = planned({"spec": {"priorityClassName": "high"}})
    run = plan.runs[0]
    part = replace(run.spec.sets[0], template=json.dumps(imported))
    pods = tuple(replace(pod, set_spec=part) for pod in run.pods)
    run = replace(run, spec=replace(run.spec, sets=(part,)), pods=pods)
    manifest = render.run_objects(run, namespace="ml", token="", server=ServerFacts())[-1]
    assert manifest["spec"]["template"]["spec"]["priorityClassName"] == "high"


# --- refused fields -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("patch", "field", "reason"),
    [
        ({"metadata": {"labels": {"l2rtui.io/run": "x"}}}, "metadata.labels.l2rtui.io/run", "counted"),
        ({"metadata": {"labels": {"l2rtui.io/new": "x"}}}, "metadata.labels.l2rtui.io/new", "counted"),
        ({"metadata": {"labels": None}}, "metadata.labels.app.kubernetes.io/name", "counted"),
        ({"metadata": {"$patch": "delete"}}, "metadata.labels.app.kubernetes.io/name", "counted"),
        ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "x"}}}, "managed-by", "counted"),
        ({"metadata": {"annotations": {"nvidia.com/use-gpuuuid": "GPU-b"}}}, "use-gpuuuid", "counted"),
        ({"spec": {"nodeName": "n2"}}, "spec.nodeName", "--on"),
        ({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n2"}}}, "spec.nodeSelector", "--on"),
        ({"spec": {"nodeSelector": {"$patch": "replace", "zone": "a"}}}, "spec.nodeSelector", "--on"),
        ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy", "`restart`"),
        ({"spec": {"hostname": "x"}}, "spec.hostname", "by this name"),
        ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, "spec.resourceClaims[gpu]", "pod.binding"),
        ({"spec": {"volumes": [{"name": "token", "emptyDir": {}}]}}, "spec.volumes[token]", "exchange"),
        ({"spec": None}, "spec.nodeSelector", "--on"),
        (container("main", command=["other"]), "spec.containers[main].command", "`command`"),
        (container("main", args=["more"]), "spec.containers[main].args", "`command`"),
        (container("main", **{"$patch": "delete"}), "spec.containers[main]", "own processes"),
        ({"spec": {"containers": [{"$patch": "replace"}]}}, "spec.containers[main]", "own processes"),
        (
            container("main", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            "spec.containers[main].env[NVIDIA_VISIBLE_DEVICES]",
            "pod.binding",
        ),
        (
            container("more", image="m", env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "7"}]),
            "spec.containers[more].env[CUDA_VISIBLE_DEVICES]",
            "pod.binding",
        ),
        (container("main", env=[{"name": "L2R_SEED", "value": "9"}]), "env[L2R_SEED]", "part in the run"),
        (
            container("main", resources={"limits": {"nvidia.com/gpu": 8}}),
            "spec.containers[main].resources.limits.nvidia.com/gpu",
            "pod.binding",
        ),
        (container("more", resources={"requests": {"amd.com/gpu": 1}}), "requests.amd.com/gpu", "pod.binding"),
        (container("main", resources={"claims": [{"name": "x"}]}), "resources.claims", "pod.binding"),
        (
            {
                "spec": {
                    "initContainers": [{"name": "i", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]}]
                }
            },
            "spec.initContainers[i].env[NVIDIA_VISIBLE_DEVICES]",
            "pod.binding",
        ),
    ],
)
def test_a_field_that_the_run_owns_is_refused_by_name(patch: dict[str, Any], field: str, reason: str) -> None:
    sentence = refusal(patch)
    assert field in sentence
    assert reason in sentence


def test_claims_and_amounts_that_are_no_gpu_are_the_users_own() -> None:
    claims = [{"name": "camera", "resourceClaimName": "c"}]
    resources = {"limits": {"example.com/camera": "1"}}
    spec = template({"spec": {"resourceClaims": claims}}, container("main", resources=resources))["spec"]
    assert spec["resourceClaims"] == claims
    assert spec["containers"][0]["resources"] == resources


def test_a_field_that_stays_as_it_is_may_be_written() -> None:
    same = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}}
    assert template(same) == template()


def test_a_malformed_patch_is_refused_with_its_field() -> None:
    assert refusal({"spec": {"containers": [{"image": "x"}]}}).startswith(
        "pod.template: spec.containers: an element"
    )


# --- in a spec file -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ("{kind: Pod}", "a pod template has no field kind"),
        ("{spec: 7}", "spec is not a mapping"),
        ("{metadata: {name: x}}", "metadata.name cannot be set"),
        ("{metadata: {labels: 7}}", "metadata.labels is not a mapping"),
        ("{metadata: {labels: {a: b}, annotations: {team: 7}}}", "metadata.annotations.team is 7, and it must be"),
        ("{spec: {containers: [{image: x}]}}", "spec.containers: an element has no name"),
    ],
)
def test_a_wrong_template_is_told_from_the_spec(tmp_path: Any, patch: str, sentence: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"kind: job\nname: j\nimage: i\njob: {{command: [x]}}\npod: {{template: {patch}}}\n")
    with pytest.raises(SpecError, match=sentence):
        spec_file.load(str(path))


def test_templates_of_the_run_come_before_those_of_a_set(tmp_path: Any) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "kind: job\nname: j\nimage: i\npod: {template: {spec: {a: 1}}}\n"
        "job: {command: [x], pod: {template: [{spec: {a: 2}}, {spec: {b: 3}}]}}\n"
    )
    templates = spec_file.load(str(path)).spec.sets[0].pod.templates
    assert list(map(json.loads, templates)) == [{"spec": {"a": 1}}, {"spec": {"a": 2}}, {"spec": {"b": 3}}]


# --- messages of the plan -------------------------------------------------------------------------------
def test_the_plan_names_the_fields() -> None:
    patch = {"metadata": {"labels": {"team": "rl"}}, "spec": {"priorityClassName": "high", "tolerations": []}}
    (finding,) = capacity_checks.check_templates(plan := planned(patch), [controller(plan)])
    assert finding.severity is Severity.OK
    assert finding.sentence == "pod.template sets metadata.labels.team, spec.priorityClassName, spec.tolerations"


def test_the_plan_warns_of_a_container_that_would_keep_a_job_alive() -> None:
    patch = {"spec": {"containers": [{"name": "log", "image": "l"}], **{f"field{n}": n for n in range(9)}}}
    plan = planned(patch, restart=RestartPolicy.NEVER)
    told, warning = capacity_checks.check_templates(plan, [controller(plan), controller(plan)])
    assert told.sentence.endswith(" and 2 more")
    assert warning.severity is Severity.WARNING
    assert "its Job ends when log ends as well" in warning.sentence
    always = planned(patch)
    assert len(list(capacity_checks.check_templates(always, [controller(always)]))) == 1


def test_fields_that_the_server_leaves_out_are_named() -> None:
    sent = {"kind": "Pod", "spec": {"runtimeClass": "x", "empty": {}, "list": [{"a": 1, "b": [1]}], "same": 1}}
    created = {"spec": {"list": [{"b": [1]}, {"more": 1}], "same": 1}}
    finding = capacity_checks.check_dropped("Pod p", sent, created)
    assert finding is not None
    assert finding.sentence == "the server does not know spec.runtimeClass, spec.list[0].a, and leaves it out"
    assert capacity_checks.check_dropped("Pod p", sent, sent) is None
    assert capacity_checks.check_dropped("Job j", {"kind": "Job"}, {}) is None
    assert list(pod_patch.dropped_fields({"a": [1, 2]}, {"a": [1]})) == []


# --- together with a queue ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("queue", "patch", "field"),
    [
        (
            Queue(QueueSystem.KUEUE, "team"),
            {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "other"}}},
            "metadata.labels.kueue.x-k8s.io/queue-name",
        ),
        (Queue(QueueSystem.VOLCANO), {"spec": {"schedulerName": "other"}}, "spec.schedulerName"),
        (
            Queue(QueueSystem.VOLCANO),
            {"metadata": {"annotations": {"scheduling.k8s.io/group-name": None}}},
            "metadata.annotations.scheduling.k8s.io/group-name",
        ),
    ],
)
def test_the_queue_of_a_run_is_its_own(queue: Queue, patch: dict[str, Any], field: str) -> None:
    plan = planned(patch)
    run = replace(plan.runs[0], spec=replace(plan.runs[0].spec, queue=queue))
    with pytest.raises(RefusedError, match="see `queue`") as caught:
        render.run_objects(run, namespace="ml", token="t", server=ServerFacts())
    assert field in caught.value.message


def test_a_patch_is_a_way_to_a_queue_as_well() -> None:
    patch = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "spec": {"schedulerName": "volcano"}}
    assert template(patch)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
