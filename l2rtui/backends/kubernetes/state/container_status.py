"""What a pod says of one of its containers: which process it runs or ran, and how the last one ended."""

from __future__ import annotations

from dataclasses import dataclass

from l2rtui.backends.kubernetes.structs import ContainerStatus, PodStruct, Terminated, epoch
from l2rtui.domain.status import Phase, exit_text

_PLAIN = ("Completed", "Error", "")
"""Reasons that say no more than the exit code does."""


@dataclass(frozen=True, slots=True)
class Instance:
    """The newest process of a container.

    Attributes:
        number: How many restarts came before it.
        is_running: Whether it runs. ending: how it ended; None while it runs or before it has begun.
        previous: How the one before it ended, as far as that is kept.
        is_final: No other will follow.
    """

    number: int
    is_running: bool
    ending: Terminated | None
    previous: Terminated | None
    is_final: bool


def container_names(pod: PodStruct) -> tuple[str, ...]:
    """Names of all containers, init containers first."""
    spec = pod.spec
    return tuple(one.name for one in (*(spec.init_containers or ()), *(spec.containers or ())))


def instance(pod: PodStruct, container: str) -> Instance | None:
    """The newest process of a container; None when none has started yet and none will.

    Kubernetes counts a container that waits for its next start under the number of the process that has ended.
    """
    status = next((one for one in (*pod.init_statuses, *pod.statuses) if one.name == container), None)
    is_over = (pod.status.phase or "") in (Phase.SUCCEEDED, Phase.FAILED)
    if status is None or status.state is None:
        return None if is_over else Instance(0, is_running=False, ending=None, previous=None, is_final=False)
    previous = status.last_state.terminated if status.last_state else None
    ending = status.state.terminated
    if status.state.waiting is not None:
        ending, previous = previous, None
    if ending is None and status.state.running is None and is_over:
        return None
    is_final = ending is not None and (is_over or not _restarts(pod, status, ending))
    return Instance(status.restart_count or 0, status.state.running is not None, ending, previous, is_final)


def _restarts(pod: PodStruct, status: ContainerStatus, ending: Terminated) -> bool:
    if pod.metadata.deletion_timestamp is not None:
        return False
    wanted = next((one for one in pod.spec.init_containers or () if one.name == status.name), None)
    policy = pod.spec.restart_policy or "Always"
    if wanted is not None:
        if wanted.restart_policy == "Always":
            return True
        policy = "Never" if policy == "Never" else "OnFailure"
    return policy == "Always" or (policy == "OnFailure" and ending.exit_code != 0)


def ending_text(ending: Terminated | None) -> str:
    """How a process ended, for a mark in a log: ``killed by SIGKILL (exit 137), OOMKilled``."""
    if ending is None:
        return "nobody knows how the last one ended"
    text = exit_text(ending.exit_code if ending.exit_code is not None else 0)
    return text if (ending.reason or "") in _PLAIN else f"{text}, {ending.reason}"


def ended_at(ending: Terminated | None) -> float:
    """When a process ended, seconds since the epoch; 0 when nobody knows."""
    return epoch(ending.finished_at) if ending is not None else 0.0
