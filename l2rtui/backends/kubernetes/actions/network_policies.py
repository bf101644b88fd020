"""Network policies of a launch: whether the user may create them, their steps in a plan, and their preflight
check.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests.network_policy import KIND, needs_policy, network_policy
from l2rtui.backends.kubernetes.rights import Right, role_hint
from l2rtui.domain.plan import LaunchPlan, PlanStep, RunPlan, StepVerb
from l2rtui.domain.preflight import Finding, Severity

_DETAIL: Final = "who reaches its pods: its own pods alone"


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
        sentence = (
            "pods of the run are reached by its own pods alone, where the cluster's network enforces policies"
        )
        return (Finding(Severity.OK, "network", sentence),)
    sentence = f"you may not create networkpolicies in {context.namespace}: other pods reach those of the run"
    return (Finding(Severity.WARNING, "network", sentence, role_hint([Right("create", KIND)])),)


async def _is_wanted(context: ClusterContext, plan: LaunchPlan) -> bool:
    """Return whether policies are created: a user without the permission launches without them."""
    is_needed = context.settings.network_policy and any(map(needs_policy, plan.runs))
    return is_needed and await context.api.can("create", KIND, context.namespace)
