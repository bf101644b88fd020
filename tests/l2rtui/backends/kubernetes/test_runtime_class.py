"""RuntimeClass of pods with a GPU: set if the default runtime has no GPUs, and only then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes.actions import capacity_checks
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.gpu_binding import by_node, may_need_class
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec

CLASS = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
PLAIN = Node("n", (Gpu("n", 0),), kubelet_version="v1.32.1")
K3S = replace(PLAIN, kubelet_version="v1.28.5+k3s1")
RKE2 = replace(PLAIN, kubelet_version="v1.30.1+rke2r1")
REPORTS = replace(PLAIN, runtimes=("runc", "nvidia"))
K3S_WITHOUT = replace(K3S, runtimes=("runc",))
NO_GPU = Node("n", (Gpu("n", 0, is_cpu=True),), kubelet_version="v1.28.5+k3s1")
AMD = Node("n", (Gpu("n", 0, resource="amd.com/gpu"),), kubelet_version="v1.28.5+k3s1")


@pytest.mark.parametrize(
    ("node", "setting", "runtime_class", "result"),
    [
        (K3S, "auto", CLASS, "nvidia"),
        (RKE2, "auto", CLASS, "nvidia"),
        (REPORTS, "auto", CLASS, "nvidia"),
        (REPORTS, "auto", {"handler": "other"}, ""),
        (K3S_WITHOUT, "auto", CLASS, ""),
        (PLAIN, "auto", CLASS, ""),
        (K3S, "auto", None, ""),
        (K3S, "none", CLASS, ""),
        (PLAIN, "gpu", None, "gpu"),
        (NO_GPU, "auto", CLASS, ""),
        (NO_GPU, "gpu", None, ""),
        (AMD, "auto", CLASS, ""),
    ],
)
def test_the_class_is_chosen_where_it_is_needed_and_cannot_break(node, setting, runtime_class, result):
    assert by_node([node], setting, runtime_class).get("n", "") == result


def test_the_class_is_asked_for_only_where_it_could_matter():
    assert [may_need_class([node]) for node in (K3S, REPORTS, PLAIN, NO_GPU)] == [True, True, False, False]


def planned(**settings):
    part = SetSpec("w", Role.WORKER, ("run",), pod=PodSettings(**settings))
    spec = RunSpec(Kind.JOB, "r", "r", (part,), image="i")
    placement = place((spec,), build_ledger([K3S], []))
    return plan_launch((spec,), placement, {"n": K3S}, owner="anna", uids=["1" * 32])


def pod_of(plan):
    server = ServerFacts(runtime_classes={"n": "nvidia"})
    return render.run_objects(plan.runs[0], namespace="ml", token="t", server=server)[-1]["spec"]["template"][
        "spec"
    ]


def test_pods_with_a_gpu_get_it_and_a_spec_may_say_otherwise():
    assert pod_of(planned())["runtimeClassName"] == "nvidia"
    assert pod_of(planned(binding=Binding.DEVICE_PLUGIN))["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod_of(planned(binding=Binding.CPU))
    assert pod_of(planned(templates=('{"spec":{"runtimeClassName":"kata"}}',)))["runtimeClassName"] == "kata"
    assert "runtimeClassName" not in pod_of(planned(templates=('{"spec":{"runtimeClassName":null}}',)))


@pytest.mark.parametrize(
    ("node", "setting", "why"),
    [
        (K3S, "auto", "the default runtime of v1.28.5+k3s1 has no GPU"),
        (REPORTS, "auto", "n has a runtime of that name"),
        (PLAIN, "nvidia", "the setting runtime_class says so"),
    ],
)
def test_the_plan_says_why(node, setting, why):
    server = ServerFacts(runtime_classes={"n": "nvidia"})
    (finding,) = capacity_checks.explain_runtime(planned(), {"n": node}, server, setting)
    assert finding.severity is Severity.OK
    assert finding.sentence == f"pods with a GPU get runtimeClassName nvidia on n: {why}"


def test_the_plan_warns_of_k3s_without_the_class():
    (finding,) = capacity_checks.explain_runtime(planned(), {"n": K3S}, ServerFacts(), "auto")
    assert finding.severity is Severity.WARNING
    assert "no RuntimeClass nvidia can be seen" in finding.sentence
    assert not list(capacity_checks.explain_runtime(planned(), {"n": PLAIN}, ServerFacts(), "auto"))
    assert not list(capacity_checks.explain_runtime(planned(), {"n": K3S}, ServerFacts(), "none"))
    assert not list(
        capacity_checks.explain_runtime(planned(binding=Binding.CPU), {"n": K3S}, ServerFacts(), "auto")
    )
