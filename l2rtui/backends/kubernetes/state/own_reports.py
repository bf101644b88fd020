"""Reports of our own pods, read from their logs: their visible GPUs, and the workers that share a pod.

The API knows neither: a device plugin chooses the GPU, and a supervisor in the pod restarts its workers. Both are
metric records (``runtime.base.contract``). They come from inside a run and are untrusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import ContainerStatus, PodStruct, Terminated, epoch
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import CRASH_LOOP, Phase, exit_text
from runtime.base.contract import GPU_RECORD, WORKER_NAME, WORKERS_RECORD
from runtime.base.metrics import MAX_COUNT, integer, number, parse_record, text

MOST_WORKERS: Final = 64
_TAIL_LINES: Final = 1_000
"""Last lines that contain a supervisor's newest record, which it writes every ten seconds."""
_HEAD_BYTES: Final = 64 * 1024
"""Size of the beginning of a log in which a process names its GPUs."""
_AT_ONCE: Final = 16


class WorkerState(Struct, frozen=True):
    """One worker of a pod; ``state`` is ``running``, ``waiting`` or ``ended``."""

    state: str
    restarts: int = 0
    exit_code: int | None = None
    started: float | None = None


class PodReport(Struct, frozen=True):
    """Newest report of a pod: UUIDs of its GPUs, and its workers by number."""

    uuids: tuple[str, ...] = ()
    workers: tuple[WorkerState, ...] = ()


def parse_report(log: str) -> PodReport | None:
    """Return the newest report in a part of a log; None without one."""
    for line in reversed(log.split("\n")):
        record = parse_record(line)
        if record is None or record["l2r"] not in (GPU_RECORD, WORKERS_RECORD):
            continue
        uuids, workers = record.get("uuids"), record.get("workers")
        return PodReport(
            tuple(text(item) for item in uuids[:MOST_WORKERS]) if isinstance(uuids, list) else (),
            tuple(map(_worker, workers[:MOST_WORKERS])) if isinstance(workers, list) else (),
        )
    return None


def _worker(item: Any) -> WorkerState:
    fields = item if isinstance(item, dict) else {}
    return WorkerState(
        text(fields.get("state")) or "running",
        max(0, integer(fields.get("restarts"), MAX_COUNT) or 0),
        integer(fields.get("exit_code"), 255),
        number(fields.get("started"), MAX_COUNT),
    )


def worker_rows(pod: PodView, workers: int, report: PodReport | None) -> Iterable[PodView]:
    """Yield a row for each worker of a pod; the first one gets the pod's devices, so that they count once.

    Args:
        pod: Row of the pod, whose index counts pods.
    """
    states = report.workers if report is not None else ()
    for worker in range(workers):
        row = replace(
            pod,
            uid=WORKER_NAME.format(pod.uid, worker),
            name=WORKER_NAME.format(pod.name, worker),
            index=pod.index * workers + worker,
            worker=worker,
        )
        if worker:
            row = replace(row, devices=(), requests=(), flags=())
        if worker < len(states) and pod.phase is Phase.RUNNING:
            row = _with_state(row, states[worker])
        yield row


def _with_state(row: PodView, state: WorkerState) -> PodView:
    row = replace(
        row,
        restarts=row.restarts + state.restarts,
        exit_code=row.exit_code if state.exit_code is None else state.exit_code,
        started=state.started or row.started,
        ready=row.ready and state.state == "running",
    )
    if state.state == "waiting":
        return replace(row, reason=CRASH_LOOP, message="the supervisor of its pod starts it again after a pause")
    if state.state == "ended":
        phase = Phase.FAILED if state.exit_code else Phase.SUCCEEDED
        return replace(row, phase=phase, message=exit_text(state.exit_code or 0) if state.exit_code else "")
    return row


def pod_of(row: PodView) -> PodView:
    """Return the row of the pod in which a worker runs; any other row is returned unchanged."""
    if row.worker is None:
        return row
    suffix = WORKER_NAME.format("", row.worker)
    return replace(row, uid=row.uid.removesuffix(suffix), name=row.name.removesuffix(suffix), worker=None)


async def read_reports(
    api: Api, pods: Sequence[tuple[PodStruct, bool]], seconds: float
) -> dict[str, PodReport | None]:
    """Read the reports of pods by uid, within a timeout; None for a pod without a report.

    Args:
        pods: Pods, and whether each runs several workers: then its newest record counts, otherwise the first ones.
    """
    reports: dict[str, PodReport | None] = {}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(pod: PodStruct, is_shared: bool) -> None:
        meta, containers = pod.metadata, pod.spec.containers
        path = KINDS["Pod"].path(meta.namespace, meta.name, "log")
        part = {"tailLines": str(_TAIL_LINES)} if is_shared else {"limitBytes": str(_HEAD_BYTES)}
        query = {"container": containers[0].name if containers else "", **part}
        async with gate:
            try:
                log = await api.request("GET", path, query=query, timeout_seconds=seconds)
            except ApiError:  # it is not running yet, or its log may not be read
                reports[meta.uid] = None
            else:
                reports[meta.uid] = parse_report(log.decode("utf-8", "replace"))

    tasks = [asyncio.create_task(read(*item)) for item in pods]
    if not tasks:
        return reports
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return reports


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
