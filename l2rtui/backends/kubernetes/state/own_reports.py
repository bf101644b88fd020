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
from l2rtui.backends.kubernetes.api.structs import PodStruct
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
