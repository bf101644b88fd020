"""Limits, alerts and checks of a run as variables of its learner, and the deadline for its supervisor."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.domain.plan import PodPlan, gpu_count
from l2rtui.domain.workload import Role, RunSpec, SetSpec
from runtime.base import contract
from runtime.base.alert_rules import rules_text

_GRACES = 2.0
"""Number of grace periods by which the supervisor's deadline is later than the learner's: the learner ends itself
and writes a checkpoint.
"""


def watch_variables(spec: RunSpec, part: SetSpec, pods: Sequence[PodPlan]) -> dict[str, str]:
    """Return limits, alerts and checks of a learner as variables; empty for other processes.

    Args:
        pods: Pods of the whole run, for its number of GPUs.
    """
    if part.role is not Role.LEARNER:
        return {}
    limits = spec.limits.text(gpu_count(pods)) if spec.limits is not None else ""
    is_alike = all(_surroundings(other) == _surroundings(part) for other in spec.sets if other.role is Role.WORKER)
    values = {
        contract.ENV_LIMITS: limits,
        contract.ENV_ALERTS: rules_text(spec.alerts),
        contract.ENV_TRY_ENVIRONMENT: "" if is_alike else "0",
    }
    return {name: value for name, value in values.items() if value}


def _surroundings(part: SetSpec) -> tuple[object, ...]:
    """Return the settings of a set that its environment can depend on."""
    pod = part.pod
    return part.env, part.template, pod.image, pod.secrets, pod.mounts, pod.templates, pod.security, pod.user


def backstop_seconds(spec: RunSpec, pods: Sequence[PodPlan]) -> float | None:
    """Return the seconds after which the supervisor of a run ends it; None for a run without such a limit.

    A learner ends the run on its own, so the supervisor waits longer and only ends a hung learner.
    """
    deadline = spec.limits.deadline_seconds(gpu_count(pods)) if spec.limits is not None else None
    if deadline is None:
        return None
    learner = next((part for part in spec.sets if part.role is Role.LEARNER), None)
    return deadline + (_GRACES * learner.grace_seconds if learner is not None else 0.0)
