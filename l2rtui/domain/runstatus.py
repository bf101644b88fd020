"""One word, one level and one sentence for the state of a run: what the app and the headless verbs both show."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.domain.snapshot import PodView, RunView, has_finished
from l2rtui.domain.status import Level, Status


def wanted_pods(run: RunView) -> int:
    """How many replicas all sets of a run want."""
    return sum(one.replicas for one in run.sets)


def run_status(run: RunView, pods: Sequence[PodView]) -> Status:
    """Join a run's own reason and the states of its pods.

    Args:
        pods: Those of the run.
    """
    if run.is_terminating:
        return Status("Terminating", Level.WAIT, f"is being destroyed, {_pods(len(pods))} left")
    if run.reason:
        return Status(run.reason, Level.WARN, run.message or run.reason)
    failing = [pod for pod in pods if pod.is_failing]
    if failing:
        others = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        return Status("Degraded", Level.BAD, f"{failing[0].name} {failing[0].status.sentence}{others}")
    ready, wanted = sum(pod.ready for pod in pods), wanted_pods(run)
    if ready >= wanted > 0:
        return Status("Running", Level.OK, f"all {ready} pods run")
    over = sum(pod.phase.is_over for pod in pods)
    if has_finished(run, pods) or (pods and over == len(pods)):
        return Status("Completed", Level.DONE, "has finished")
    if ready + over >= wanted > 0:
        return Status("Running", Level.OK, f"{_pods(ready)} run, {over} have finished")
    return Status("Starting", Level.WAIT, f"{ready} of {_pods(wanted)} ready")


def _pods(number: int) -> str:
    return f"{number} pod{'' if number == 1 else 's'}"
