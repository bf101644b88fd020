"""Limits and alerts of a run as variables of its learner, and the deadline for what supervises the run."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.domain.plan import PodPlan, gpu_count
from l2rtui.domain.workload import Role, RunSpec, SetSpec
from runtime.base import contract
from runtime.base.alert_rules import rules_text

_GRACES = 2.0
"""Grace periods of a learner by which a backstop comes later: the learner ends itself, and writes a checkpoint."""


def watch_variables(spec: RunSpec, part: SetSpec, pods: Sequence[PodPlan]) -> dict[str, str]:
    """Return limits and alerts for a learner; empty for any other process, and where there are none.

    Args:
        pods: Of the whole run, for its number of GPUs.
    """
    if part.role is not Role.LEARNER:
        return {}
    limits = spec.limits.text(gpu_count(pods)) if spec.limits is not None else ""
    values = {contract.ENV_LIMITS: limits, contract.ENV_ALERTS: rules_text(spec.alerts)}
    return {name: value for name, value in values.items() if value}


def backstop_seconds(spec: RunSpec, pods: Sequence[PodPlan]) -> float | None:
    """Return the seconds after which whoever supervises a run ends it; None for a run without such a limit.

    A learner ends the run by itself, so its supervisor waits longer: it ends one that hangs.
    """
    deadline = spec.limits.deadline_seconds(gpu_count(pods)) if spec.limits is not None else None
    if deadline is None:
        return None
    learner = next((part for part in spec.sets if part.role is Role.LEARNER), None)
    return deadline + (_GRACES * learner.grace_seconds if learner is not None else 0.0)
