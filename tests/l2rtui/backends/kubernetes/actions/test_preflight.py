"""Preflight, capacity, rights and diagnosis against an API server in memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import diagnose as diagnosis
from l2rtui.backends.kubernetes.actions.diagnose import denied, diagnose
from l2rtui.backends.kubernetes.actions.diff import differences
from l2rtui.backends.kubernetes.actions.preflight import check_plan
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.config import Settings
from l2rtui.domain.containers import Mount
from l2rtui.domain.kinds import Binding
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Resources
from tests.fakes.kubernetes_objects import Failure


async def findings(cluster, plan=None):
    results = await check_plan(cluster.context, plan or await cluster.plan(pins="n1/0.0-1"))
    return {finding.subject: finding for finding in results}


async def problems(cluster, plan=None):
    results = await findings(cluster, plan)
    return {subject: item.sentence for subject, item in results.items() if item.severity is not Severity.OK}


def with_pods(plan, **settings):
    """The plan with other settings of its pods."""
    runs = []
    for run in plan.runs:
        sets = tuple(replace(item, pod=replace(item.pod, **settings)) for item in run.spec.sets)
        pods = tuple(replace(pod, set_spec=sets[0]) for pod in run.pods)
        runs.append(replace(run, spec=replace(run.spec, sets=sets), pods=pods))
    return replace(plan, runs=tuple(runs))


def with_resources(plan, resources):
    runs = []
    for run in plan.runs:
        sets = tuple(replace(item, resources=resources) for item in run.spec.sets)
        pods = tuple(replace(pod, set_spec=sets[0]) for pod in run.pods)
        runs.append(replace(run, spec=replace(run.spec, sets=sets), pods=pods))
    return replace(plan, runs=tuple(runs))


async def test_a_plan_that_fits_is_all_right_and_nothing_is_made(cluster, server):
    before = server.names()
    results = await findings(cluster)
    assert {item.severity for subject, item in results.items() if subject != "r"} == {Severity.OK}
    assert "server accepts all" in results["dry run"].sentence
    assert server.names() == before


async def test_missing_rights_refuse_what_the_launch_needs_and_warn_of_the_rest(cluster, server):
    server.denied |= {("create", "secrets"), ("delete", "services"), ("delete", "secrets")}
    results = await findings(cluster)
    assert results["right to create secrets"].severity is Severity.REFUSAL
    assert results["right to delete secrets"].severity is Severity.WARNING


async def test_an_object_that_the_server_refuses_is_a_refusal_with_its_words(cluster, server):
    server.failures.append(Failure("POST", "ReplicaSet", 422, "Invalid"))
    assert (await problems(cluster))["ReplicaSet r-w"] == "no"


async def test_a_name_that_is_there_already_is_said(cluster, server):
    server.runs_controllers = False
    plan = await cluster.plan(pins="n1/0.0-1")
    server.put({"kind": "ReplicaSet", "metadata": {"name": "r-w"}, "spec": {}})
    assert (await problems(cluster, plan))["ReplicaSet r-w"] == "ReplicaSet r-w is there already"


async def test_a_name_that_is_there_already_is_said_with_the_field_managers_that_wrote_it(cluster, server):
    server.runs_controllers = False
    plan = await cluster.plan(pins="n1/0.0-1")
    writers = [{"manager": "kubectl-create"}, {"manager": "helm"}, {"manager": "kubectl-create"}]
    server.put({"kind": "ReplicaSet", "metadata": {"name": "r-w", "managedFields": writers}, "spec": {}})
    sentence = "ReplicaSet r-w is there already, written by kubectl-create and helm"
    assert (await problems(cluster, plan))["ReplicaSet r-w"] == sentence


async def test_a_server_that_fails_during_a_dry_run_is_a_warning(cluster, server):
    server.failures.append(Failure("POST", "ReplicaSet", 500, "InternalError"))
    assert (await problems(cluster))["ReplicaSet r-w"].startswith("ReplicaSets could not be tried")


@pytest.mark.parametrize(("image", "sentence"), [("", "names no image"), ("no image", "is no image name")])
async def test_an_image_that_cannot_be_one_is_refused(cluster, image, sentence):
    plan = await cluster.plan(pins="n1/0.0-1")
    runs = tuple(replace(run, spec=replace(run.spec, image=image)) for run in plan.runs)
    assert sentence in (await problems(cluster, replace(plan, runs=runs)))["r/w"]


async def test_a_node_that_takes_no_pods_is_refused_with_the_reason(cluster, server):
    plan = await cluster.plan(pins="n1/0.0-1")
    node = server.get("Node", "n1", "")
    node["spec"] = {"unschedulable": True, "taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
    await cluster.context.snapshot()
    results = [
        item.sentence for item in await check_plan(cluster.context, plan) if item.severity is Severity.REFUSAL
    ]
    assert "node n1 is cordoned" in results
    assert any("taint team=x:NoSchedule" in sentence for sentence in results)


async def test_a_node_that_has_lost_the_label_of_a_set_is_refused(cluster, server):
    plan = with_pods(await cluster.plan(pins="n1/0.0-1"), node_selector=(("disk", "ssd"),))
    server.get("Node", "n1", "")["metadata"]["labels"] = {"disk": "hdd"}
    await cluster.context.snapshot()
    assert (await problems(cluster, plan))["n1"] == "node n1 has no label disk=ssd, which the set w needs"


async def test_without_leases_a_plan_warns_that_slots_are_not_claimed(cluster, server):
    server.denied.add(("update", "leases"))
    assert "you may not use Leases in ml" in (await problems(cluster))["claims"]


async def test_a_binding_mode_whose_resource_no_node_offers_is_refused(cluster):
    plan = with_pods(await cluster.plan(pins="n1/0.0-1"), binding=Binding.DEVICE_PLUGIN)
    assert "node n1 offers no nvidia.com/gpu" in (await problems(cluster, plan))["r"]


async def test_secrets_and_accounts_that_are_not_there_are_refused(cluster, server):
    server.put({"kind": "Secret", "metadata": {"name": "aws"}})
    plan = with_pods(
        await cluster.plan(pins="n1/0.0-1"), secrets=("aws",), pull_secrets=("reg",), service_account="me"
    )
    results = await findings(cluster, plan)
    assert results["Secret aws"].severity is Severity.OK
    assert "no Secret reg in ml, which the pods need to pull its image" in results["Secret reg"].sentence
    assert "no ServiceAccount me in ml" in results["ServiceAccount me"].sentence
    server.denied.add(("get", "secrets"))
    assert (await findings(cluster, plan))["Secret aws"].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("modes", "phase", "sentence"),
    [
        (["ReadWriteMany"], "Bound", ""),
        (["ReadWriteOnce"], "Bound", ""),
        (["ReadWriteMany"], "Pending", "it is Pending: pods wait"),
        (["ReadWriteOncePod"], "Bound", "it is ReadWriteOncePod, and 2 pods would mount it"),
        (None, "", "there is no PersistentVolumeClaim data in ml"),
    ],
)
async def test_a_volume_claim_must_be_there_and_fit(cluster, server, modes, phase, sentence):
    if modes:
        claim = {"spec": {"accessModes": modes}, "status": {"phase": phase}}
        server.put({"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, **claim})
    plan = with_pods(await cluster.plan(pins="n1/0.0-1"), mounts=(Mount("/data", claim="data"),))
    results = (await problems(cluster, plan)).get("claim data", "")
    assert sentence in results
    assert bool(sentence) == bool(results)


@pytest.mark.parametrize(
    ("storage", "sentence"),
    [
        (None, "its StorageClass fast does not exist: pods wait until it is given a volume"),
        ({"provisioner": "csi.example"}, "it is Pending: pods wait until it gets a volume"),
        ({"provisioner": "csi.example", "volumeBindingMode": "WaitForFirstConsumer"}, ""),
        (
            {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"},
            "pods wait unless a free volume of the class fast is on their node",
        ),
    ],
)
async def test_a_claim_without_a_volume_says_when_it_gets_one(cluster, server, storage, sentence):
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "fast"}
    server.put(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": spec,
            "status": {"phase": "Pending"},
        }
    )
    if storage:
        server.put({"kind": "StorageClass", "metadata": {"name": "fast"}, **storage})
    plan = with_pods(await cluster.plan(pins="n1/0.0-1"), mounts=(Mount("/data", claim="data"),))
    assert (await problems(cluster, plan)).get("claim data", "").startswith(sentence)
    assert bool(sentence) == ("claim data" in await problems(cluster, plan))


async def test_the_server_is_not_asked_about_a_name_that_every_backend_refuses(cluster, server):
    plan = await cluster.plan("Ünï.cöde run", pins="n1/0.0-1")
    server.requests.clear()
    await problems(cluster, plan)
    assert not [
        kind for method, kind, _ in server.requests if method == "POST" and kind != "SelfSubjectAccessReview"
    ]


async def test_nodes_of_two_architectures_need_an_image_for_both(cluster, server):
    amd = {"metadata": {"labels": {labels.ARCHITECTURE: "amd64"}}}
    await cluster.context.api.patch("Node", None, "n1", amd)
    first = server.get("Node", "n1", "")
    own = {labels.GPUS: "2", labels.HOSTNAME: "n2", labels.ARCHITECTURE: "arm64"}
    server.put({**first, "kind": "Node", "metadata": {"name": "n2", "labels": own}})
    both = await problems(cluster, await cluster.plan(pins="n1/0.0,n2/0.0"))
    assert both["architecture"] == "the pods go to nodes of amd64 and arm64: the image must have a build for each"
    assert "architecture" not in await problems(cluster, await cluster.plan(pins="n1/0.0-1"))


async def test_a_claim_for_one_node_is_refused_on_two(cluster, server):
    second = {**server.get("Node", "n1", ""), "metadata": {"name": "n2", "labels": {labels.GPUS: "2"}}}
    server.put({**second, "kind": "Node"})
    claim = {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}}
    server.put({"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, **claim})
    plan = with_pods(await cluster.plan(pins="n1/0.0,n2/0.0"), mounts=(Mount("/data", claim="data"),))
    assert "pods on n1, n2 would mount it" in (await problems(cluster, plan))["claim data"]


@pytest.mark.parametrize(
    ("hard", "used", "sentence"),
    [
        ({"pods": "4"}, {"pods": "2"}, ""),
        ({"pods": "3"}, {"pods": "2"}, "it leaves 1 of pods, and the plan needs 2"),
        ({"requests.cpu": "8"}, {"requests.cpu": "500m"}, "of requests.cpu, and the plan needs 8"),
        ({"limits.memory": "3Gi"}, {}, "of limits.memory"),
        ({"count/replicasets.apps": "0"}, {}, "it leaves 0 of count/replicasets.apps"),
        ({"unknown": "0"}, {}, ""),
    ],
)
async def test_a_quota_must_leave_room(cluster, server, hard, used, sentence):
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {}, "status": {"hard": hard, "used": used}}
    server.put(quota)
    plan = with_resources(await cluster.plan(pins="n1/0.0-1"), Resources(4.0, 2 * 2**30))
    results = (await problems(cluster, plan)).get("quota q", "")
    assert sentence in results
    assert bool(sentence) == bool(results)


async def test_room_counts_what_pods_of_all_namespaces_request(cluster, other, server):
    busy = {"resources": {"requests": {"cpu": "10", "memory": "1Gi"}}, "name": "c"}
    done = {"resources": {"requests": {"cpu": "99"}}, "name": "c"}
    server.put(
        {"kind": "Pod", "metadata": {"name": "x"}, "spec": {"nodeName": "n1", "containers": [busy]}}, "other"
    )
    ended = {"spec": {"nodeName": "n1", "containers": [done]}, "status": {"phase": "Succeeded"}}
    server.put({"kind": "Pod", "metadata": {"name": "y"}, **ended}, "other")
    fits = with_resources(await cluster.plan(pins="n1/0.0-1"), Resources(3.0, None))
    assert "n1" not in await problems(cluster, fits)
    large = with_resources(fits, Resources(4.0, 40 * 2**30))
    sentences = [item.sentence for item in await check_plan(cluster.context, large) if item.subject == "n1"]
    assert "8 CPU cores are requested, and 6 are not spoken for" in sentences[0]
    assert "80" in sentences[1]
    server.denied.add(("list", "pods"))
    cluster.context.api = other.api  # permissions are cached for a minute
    assert "n1" not in await problems(cluster, large)


async def test_actions_that_are_not_permitted_name_the_missing_rights(context, other, server):
    assert await denied(context.api, "ml") == {}
    server.denied |= {("delete", "pods"), ("get", "pods/exec")}
    assert await denied(other.api, "ml") == {
        "kill": "in ml you may not delete pods",
        "destroy": "in ml you may not delete pods",
        "exec": "in ml you may not get pods/exec",
    }


async def test_differences_are_those_to_what_is_there(cluster, server):
    plan = await cluster.plan(pins="n1/0.0-1")
    assert any(line.startswith("+++ plan/ReplicaSet/r-w") for line in await differences(cluster.context, plan))
    server.runs_controllers = False
    await cluster.launch(pins="n1/1.0-1")
    server.get("ReplicaSet", "r-w")["spec"]["replicas"] = 9
    lines = await differences(cluster.context, plan)
    assert any('"replicas": 9' in line and line.startswith("-") for line in lines)


async def test_an_object_with_a_field_that_may_not_be_changed_is_compared_with_what_a_launch_would_create(
    cluster, server
):
    server.runs_controllers = False
    await cluster.launch(pins="n1/1.0-1")
    live = server.get("ReplicaSet", "r-w")
    live["metadata"]["annotations"]["somebody"] = "else"
    lines = await differences(cluster.context, await cluster.plan(pins="n1/0.0-1"))
    start = lines.index("--- there/ReplicaSet/r-w")
    assert lines[start - 1] == (
        "# ReplicaSet/r-w cannot be changed into this. A launch creates it anew, and only where none is: "
        "after `l2rtui destroy r`, or with another --name."
    )
    changed = [line.strip() for line in lines[start + 2 :] if line.startswith(("-", "+"))]
    assert any("run-id" in line for line in changed)
    assert not any(text in line for line in changed for text in ("somebody", "ownerReferences", '"name": "r-w'))
    assert live["spec"] == server.get("ReplicaSet", "r-w")["spec"], "nothing is sent for real"


async def test_an_object_that_could_not_be_created_either_is_refused_with_its_own_cause(cluster, server):
    server.runs_controllers = False
    await cluster.launch(pins="n1/1.0-1")
    plan = await cluster.plan(pins="n1/0.0-1")
    server.failures.append(Failure("POST", "ReplicaSet", 422, "Invalid"))
    with pytest.raises(ApiError, match=r"r-w.*field is immutable"):
        await differences(cluster.context, plan)


async def test_a_diagnosis_names_rights_claims_and_the_binding(server):
    server.denied |= {("create", "jobs"), ("create", "leases"), ("list", "nodes")}
    api = server.api()
    results = {item.subject: item for item in await diagnose(ClusterContext(api, Settings()))}
    await api.close()
    assert results["rights"].sentence == "in ml you may not create jobs"
    assert "you may not use Leases in ml" in results["claims"].sentence
    assert "not probed" in results["binding env"].sentence


async def test_a_diagnosis_names_a_namespace_that_is_being_deleted(server):
    server.put({"kind": "Namespace", "metadata": {"name": "ml"}, "status": {"phase": "Terminating"}})
    api = server.api()
    results = {item.subject: item for item in await diagnose(ClusterContext(api, Settings()))}
    await api.close()
    assert results["namespace"].sentence == "The namespace ml is being deleted, with all that is in it"
    assert results["namespace"].severity is Severity.REFUSAL


async def test_a_diagnosis_shows_what_is_used_of_each_quota(server):
    hard = {"pods": "10", "requests.nvidia.com/gpu": "4", "requests.memory": "8Gi", "services.loadbalancers": "0"}
    used = {"pods": "3", "requests.nvidia.com/gpu": "4", "requests.memory": "2Gi", "services.loadbalancers": "0"}
    server.put(
        {"kind": "ResourceQuota", "metadata": {"name": "a"}, "spec": {}, "status": {"hard": hard, "used": used}}
    )
    status = {"hard": {"count/jobs.batch": "2"}, "used": {"count/jobs.batch": "1"}}
    server.put(
        {"kind": "ResourceQuota", "metadata": {"name": "b"}, "spec": {"scopes": ["BestEffort"]}, "status": status}
    )
    server.put({"kind": "ResourceQuota", "metadata": {"name": "c"}, "spec": {}})
    api = server.api()
    results = {item.subject: item for item in await diagnose(ClusterContext(api))}
    server.denied.add(("list", "resourcequotas"))
    denied_api = server.api()
    without = [
        item for item in await diagnose(ClusterContext(denied_api)) if "quota" in item.subject + item.sentence
    ]
    await api.close()
    await denied_api.close()
    assert results["quota a"].sentence == (
        "pods 3 of 10, requests.memory 2Gi of 8Gi, requests.nvidia.com/gpu 4 of 4, "
        "services.loadbalancers 0 of 0 used in ml"
    )
    assert results["quota a"].severity is Severity.WARNING
    assert results["quota a"].hint == "No requests.nvidia.com/gpu left: destroy runs, or ask for more."
    assert results["quota b"].sentence == "count/jobs.batch 1 of 2 used in ml, for some pods only"
    assert results["quota b"].severity is results["quota c"].severity is Severity.OK
    assert results["quota c"].sentence == "limits nothing yet"
    assert [item.subject for item in without] == ["optional rights"]
    assert "you may not list resourcequotas: quotas are neither shown" in without[0].sentence


async def test_optional_rights_are_named_with_what_is_lost_where_the_server_has_their_kinds(server):
    server.denied |= {("create", "networkpolicies"), ("create", "podgroups"), ("list", "secrets")}
    server.missing_groups |= {"scheduling.x-k8s.io", "scheduling.volcano.sh"}
    api = server.api()
    results = [item for item in await diagnose(ClusterContext(api)) if item.subject == "optional rights"]
    assert [item.sentence for item in results] == [
        "in ml you may not create networkpolicies: runs are launched without network policies"
    ]
    server.missing_groups -= {"scheduling.volcano.sh"}
    later = server.api()
    results = [item for item in await diagnose(ClusterContext(later)) if item.subject == "optional rights"]
    assert results[-1].sentence == "in ml you may not create podgroups: needed for queue of volcano or coscheduling"
    await api.close()
    await later.close()


async def test_a_probe_that_does_not_run_is_reported_and_removed(server, monkeypatch):
    monkeypatch.setattr(diagnosis, "PROBE_SECONDS", 0.0)
    api = server.api()
    results = {item.subject: item for item in await diagnose(ClusterContext(api, Settings(image="i:1")))}
    await api.close()
    assert results["binding env"].sentence == "not known: the probe on n1 is Pending"
    assert server.names("Pod") == []


async def test_fields_of_pods_are_named_and_owned_ones_refuse(cluster):
    plan = await cluster.plan(pins="n1/0.0-1")
    high = with_pods(plan, templates=('{"spec":{"priorityClassName":"high"}}',))
    sentences = [item.sentence for item in await check_plan(cluster.context, high)]
    assert "pod.template sets spec.priorityClassName" in sentences
    elsewhere = with_pods(plan, templates=('{"spec":{"nodeName":"n2"}}',))
    (refused,) = [
        item for item in await check_plan(cluster.context, elsewhere) if item.severity is Severity.REFUSAL
    ]
    assert "pod.template cannot set spec.nodeName" in refused.sentence


def _selects(pod):
    pod["spec"]["nodeSelector"]["team"] = "a"


def _hides(pod):
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def _reschedules(pod):
    pod["spec"]["schedulerName"] = "other"


def _relabels(pod):
    del pod["metadata"]["labels"][labels.HOST]


@pytest.mark.parametrize(
    ("policy", "severity", "sentence"),
    [
        (_selects, Severity.REFUSAL, "adds the node selector team=a, which n1 does not meet"),
        (_hides, Severity.WARNING, "sets NVIDIA_VISIBLE_DEVICES of main to 'none' instead of '0'"),
        (_reschedules, Severity.WARNING, "sends its pods to the scheduler other"),
        (_relabels, Severity.WARNING, "changes the label l2rtui.io/host"),
    ],
)
async def test_what_a_policy_changes_of_the_place_of_a_pod_is_said(cluster, server, policy, severity, sentence):
    server.mutations.append(lambda item: policy(item) if item["kind"] == "Pod" else None)
    finding = (await findings(cluster))["Pod r-w"]
    assert finding.severity is severity
    assert sentence in finding.sentence


async def test_a_node_selector_of_a_policy_that_the_node_meets_is_no_finding(cluster, server):
    server.objects["Node", "", "n1"]["metadata"]["labels"]["team"] = "a"
    server.mutations.append(lambda item: _selects(item) if item["kind"] == "Pod" else None)
    assert "Pod r-w" not in await findings(cluster)
