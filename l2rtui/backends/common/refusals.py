"""Refusals that every backend raises in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.errors import RefusedError


def run_exists(run: str) -> RefusedError:
    """Return the refusal of a launch whose name is taken."""
    return RefusedError(f"A run named {run} exists.", f"Choose another name, or `l2rtui destroy {run}` first.")


def pod_exists(run: str, set_name: str, pod: str) -> RefusedError:
    """Return the refusal of a scale that would start a replica twice, because the set was scaled meanwhile."""
    return RefusedError(f"{run}/{set_name} has {pod} already.", "Plan again.")


def refuse_conflicts(conflicts: Sequence[str]) -> None:
    """Refuse a plan with replicas that could not be placed.

    Raises:
        RefusedError: names each of them.
    """
    if conflicts:
        raise RefusedError(f"{'; '.join(conflicts)}.", "Plan again.")
