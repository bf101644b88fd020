"""Limits and alerts of a run as variables of its learner, and the deadline for its supervisor."""

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
    """Return the limits and alerts of a learner as variables; empty for other processes, or without limits and
    alerts.

    Args:
        pods: Pods of the whole run, for its number of GPUs.
    """
    if part.role is not Role.LEARNER:
        return {}
    limits = spec.limits.text(gpu_count(pods)) if spec.limits is not None else ""
    values = {contract.ENV_LIMITS: limits, contract.ENV_ALERTS: rules_text(spec.alerts)}
    return {name: value for name, value in values.items() if value}


def backstop_seconds(spec: RunSpec, pods: Sequence[PodPlan]) -> float | None:
    """Return the seconds after which the supervisor of a run ends it; None for a run without such a limit.

    A learner ends the run on its own, so the supervisor waits longer and only ends a hung learner.
    """
    deadline = spec.limits.deadline_seconds(gpu_count(pods)) if spec.limits is not None else None
    if deadline is None:
        return None
    learner = next((part for part in spec.sets if part.role is Role.LEARNER), None)
    return deadline + (_GRACES * learner.grace_seconds if learner is not None else 0.0)
