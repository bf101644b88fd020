"""Network policies of a launch: the objects, whether the user may create them, and their preflight check.

Only a run's own pods can reach its pods (networking.k8s.io/v1). The exchange and the rendezvous authenticate their
peers. torch's process groups, simulators and users' programs do not, and any pod of the cluster could reach them.
If no network plugin enforces policies, these have no effect. Still allowed are the kubelet, which probes and
port-forwards use, and Prometheus in the namespace of the setting ``metrics_namespace``, to the learner's status
port.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.backends.kubernetes.manifests.render import run_labels
from l2rtui.backends.kubernetes.rights import Right, role_hint
from l2rtui.domain.plan import LaunchPlan, PlanStep, RunPlan, StepVerb
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import Role
from runtime.base.contract import DATA_PORT

KIND: Final = "NetworkPolicy"
STATUS_PORT: Final = DATA_PORT + 2
"""Port of ``/metrics`` if a spec lets the learner's status server accept remote connections (``L2R_STATUS``)."""
_NAMESPACE: Final = "kubernetes.io/metadata.name"
"""Label of each namespace with its name, set by the API server since Kubernetes 1.21."""
_LISTENING: Final = frozenset({Role.LEARNER, Role.RENDEZVOUS, Role.PS})


def needs_policy(run: RunPlan) -> bool:
    """Return whether processes of a run accept connections from each other.

    Imported objects get no policy: their clients are unknown, and they may bring their own policy.
    """
    return any(not item.template and (item.role in _LISTENING or item.port) for item in run.spec.sets)


def network_policy(run: RunPlan, namespace: str, metrics_namespace: str = "") -> dict[str, Any]:
    """Return the policy of a run.

    Args:
        metrics_namespace: Namespace whose pods may read the learner's status port; empty for none.
    """
    own = {"matchLabels": {labels.RUN_ID: run.uid}}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": own}]}]
    if metrics_namespace:
        ingress.append(
            {
                "from": [{"namespaceSelector": {"matchLabels": {_NAMESPACE: metrics_namespace}}}],
                "ports": [{"protocol": "TCP", "port": STATUS_PORT}],
            }
        )
    meta = {"namespace": namespace, "labels": run_labels(run)}
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress}
    return new_object(KIND, labels.run_object(run.spec.name), meta=meta, spec=spec)


_DETAIL: Final = "who reaches its pods: only its own pods"


async def with_steps(context: ClusterContext, plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with a step for each policy that launch() will create, after the claims on slots."""
    if not await _is_wanted(context, plan):
        return plan
    steps = list(plan.objects)
    first = next(
        (number for number, step in enumerate(steps) if step.kind not in ("ConfigMap", "Lease")), len(steps)
    )
    steps[first:first] = [
        PlanStep(StepVerb.CREATE, KIND, labels.run_object(run.spec.name), _DETAIL)
        for run in plan.runs
        if needs_policy(run)
    ]
    return replace(plan, objects=tuple(steps))


async def runs_with_policy(context: ClusterContext, plan: LaunchPlan) -> tuple[RunPlan, ...]:
    """Return the runs for which a launch creates a policy: from the plan's steps, or without steps by asking the
    server.
    """
    if not plan.objects:
        return tuple(filter(needs_policy, plan.runs)) if await _is_wanted(context, plan) else ()
    planned = {step.name for step in plan.objects if step.kind == KIND}
    return tuple(run for run in plan.runs if labels.run_object(run.spec.name) in planned)


def policy_of(context: ClusterContext, run: RunPlan) -> dict[str, Any]:
    """Return the network policy of a run according to the settings."""
    return network_policy(run, context.namespace, context.settings.metrics_namespace)


async def check(context: ClusterContext, plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return findings on which pods will be able to reach the pods of a plan."""
    if not any(map(needs_policy, plan.runs)):
        return ()
    if not context.settings.network_policy:
        sentence = (
            "the setting network_policy is off: every pod that reaches this cluster's network reaches the run"
        )
        return (Finding(Severity.OK, "network", sentence),)
    if await context.api.can("create", KIND, context.namespace):
        sentence = "only the run's own pods reach its pods, if the cluster's network enforces policies"
        return (Finding(Severity.OK, "network", sentence),)
    sentence = f"you may not create networkpolicies in {context.namespace}: other pods reach those of the run"
    return (Finding(Severity.WARNING, "network", sentence, role_hint([Right("create", KIND)])),)


async def _is_wanted(context: ClusterContext, plan: LaunchPlan) -> bool:
    """Return whether policies are created: a user without the permission launches without them."""
    is_needed = context.settings.network_policy and any(map(needs_policy, plan.runs))
    return is_needed and await context.api.can("create", KIND, context.namespace)
