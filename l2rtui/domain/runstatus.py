"""Status of a run in one word, one level and one sentence, for the app and the headless verbs alike."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import PodView, RunView, has_finished
from l2rtui.domain.status import Level, Status


def replicas_of_run(run: RunView) -> int:
    """Total number of replicas of a run."""
    return sum(worker_set.replicas for worker_set in run.sets)


def run_status(run: RunView, pods: Sequence[PodView]) -> Status:
    """Derive the status from a run's own reason and the states of its pods.

    Args:
        pods: Those of the run.
    """
    if run.is_terminating:
        return Status("Terminating", Level.WAIT, f"is being destroyed, {counted(len(pods), 'pod')} left")
    # The backend's own reason, such as Unsupervised, explains more than the pods that follow from it.
    if run.reason:
        return Status(run.reason, Level.WARN, run.message or run.reason)
    failing = [pod for pod in pods if pod.is_failing]
    if failing:
        others = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        return Status("Degraded", Level.BAD, f"{failing[0].name} {failing[0].status.sentence}{others}")
    ready, replicas = sum(pod.ready for pod in pods), replicas_of_run(run)
    if ready >= replicas > 0:
        return Status("Running", Level.OK, f"all {ready} pods run")
    # Workers that wait for a learner that has succeeded are not missing: the run has done its work.
    over = sum(pod.phase.is_over for pod in pods)
    if has_finished(run, pods) or (pods and over == len(pods)):
        return Status("Completed", Level.DONE, "has finished")
    if ready + over >= replicas > 0:
        return Status("Running", Level.OK, f"{counted(ready, 'pod')} run, {over} have finished")
    return Status("Starting", Level.WAIT, f"{ready} of {counted(replicas, 'pod')} ready")
