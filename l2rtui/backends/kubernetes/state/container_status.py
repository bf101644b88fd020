"""Newest process of a container, read from its pod's status, and how the previous one ended."""

from __future__ import annotations

from msgspec import Struct

from l2rtui.backends.kubernetes.api.structs import ContainerStatus, PodStruct, Terminated, epoch
from l2rtui.domain.status import Phase, exit_text

_PLAIN = ("Completed", "Error", "")
"""Reasons that add nothing to the exit code."""


class ContainerProcess(Struct, frozen=True):
    """The newest process of a container.

    Attributes:
        number: Number of restarts before it.
        is_running: It is running now.
        ending: Its end; None while it is running or before it has started.
        previous: End of the previous process, if the status still has it.
        is_final: No other process will follow.
    """

    number: int
    is_running: bool
    ending: Terminated | None
    previous: Terminated | None
    is_final: bool


def container_names(pod: PodStruct) -> tuple[str, ...]:
    """Return the names of all containers: init containers first, containers of `kubectl debug` last."""
    spec = pod.spec
    parts = (spec.init_containers, spec.containers, spec.ephemeral_containers)
    return tuple(container.name for part in parts for container in part or ())


def newest_process(pod: PodStruct, container: str) -> ContainerProcess | None:
    """Return the newest process of a container; None if none has started and none will."""
    statuses = (*pod.init_statuses, *pod.statuses, *(pod.status.ephemeral_container_statuses or ()))
    status = next((status for status in statuses if status.name == container), None)
    is_over = (pod.status.phase or "") in (Phase.SUCCEEDED, Phase.FAILED)
    if status is None or status.state is None:
        unstarted = ContainerProcess(0, is_running=False, ending=None, previous=None, is_final=False)
        return None if is_over else unstarted
    previous = status.previous_end
    ending = status.state.terminated
    # restartCount increases when the next process starts. While the container waits for it (CrashLoopBackOff), the
    # newest process is the one that has ended, and the status shows that as the last state.
    if status.state.waiting is not None:
        ending, previous = previous, None
    if ending is None and status.state.running is None and is_over:
        return None
    is_final = ending is not None and (is_over or not _restarts(pod, status, ending))
    return ContainerProcess(status.restart_count or 0, status.state.running is not None, ending, previous, is_final)


def _restarts(pod: PodStruct, status: ContainerStatus, ending: Terminated) -> bool:
    is_ephemeral = any(item.name == status.name for item in pod.spec.ephemeral_containers or ())
    if pod.metadata.deletion_timestamp is not None or is_ephemeral:
        return False
    policy = pod.spec.restart_policy or "Always"
    init_containers = pod.spec.init_containers or ()
    init_container = next((init for init in init_containers if init.name == status.name), None)
    # An init container only restarts after failures, unless its own policy makes it a sidecar (KEP-753).
    if init_container is not None:
        if init_container.restart_policy == "Always":
            return True
        policy = "Never" if policy == "Never" else "OnFailure"
    return policy == "Always" or (policy == "OnFailure" and ending.exit_code != 0)


def ending_text(ending: Terminated | None) -> str:
    """Describe the end of a process, for a mark in a log: ``killed by SIGKILL (exit 137), OOMKilled``."""
    if ending is None:
        return "the end of the last one is unknown"
    text = exit_text(ending.exit_code if ending.exit_code is not None else 0)
    return text if (ending.reason or "") in _PLAIN else f"{text}, {ending.reason}"


def ended_at(ending: Terminated | None) -> float:
    """Return the time at which a process ended, seconds since the epoch; 0 if unknown."""
    return epoch(ending.finished_at) if ending is not None else 0.0
