"""Launch and scale: claim under the lock, write what is wanted, and let a supervisor make it so."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import msgspec

from l2rtui.backends.base import StepDone
from l2rtui.backends.claiming import refuse_taken_slots
from l2rtui.backends.local import control, files, folders, peers, ports, processes, volumes
from l2rtui.backends.local.capacity import node_name
from l2rtui.backends.local.environment import working_folder
from l2rtui.backends.local.layout import STAGED, Root, RunFolder
from l2rtui.backends.local.records import PodWish, RunRecord
from l2rtui.config import Settings
from l2rtui.domain.plan import LaunchPlan, PodPlan, RunPlan, ScalePlan, Step
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import name_problem
from l2rtui.errors import BackendError, RefusedError

_FIRST_START_SECONDS = 30.0


async def claim(root: Root, settings: Settings, plan: LaunchPlan, snapshot: ClusterSnapshot) -> None:
    """Write down every run of a plan; call it with the lock held and a snapshot that was taken under it.

    Raises:
        RefusedError: a slot is no longer free, or a name is taken; nothing was written.
        BackendError: the state folder cannot be written; what was written was removed.
    """
    pods = [pod for run in plan.runs for pod in run.pods]
    refuse_taken_slots(pods, snapshot)
    for run in plan.runs:
        names = (run.spec.name, *(one.name for one in run.spec.sets))
        if problem := next(filter(None, map(name_problem, names)), ""):
            raise RefusedError(f"{problem}.")  # a name becomes a folder
        if root.run(run.spec.name).path.exists():
            raise RefusedError(
                f"A run named {run.spec.name} exists.",
                f"Choose another name, or `l2rtui destroy {run.spec.name}` first.",
            )
    await control.settled(_write_all, root, settings, plan.runs)


async def start(root: Root, plan: LaunchPlan) -> AsyncIterator[StepDone]:
    """Start the supervisors of claimed runs and report each step as it comes true."""
    steps = iter(plan.steps())
    starts = [
        asyncio.ensure_future(control.settled(control.start_supervisor, root.run(run.spec.name), run.uid))
        for run in plan.runs
    ]
    try:
        for run, started in zip(plan.runs, starts, strict=True):
            folder = root.run(run.spec.name)
            try:
                await started
            except BackendError as error:
                sentence = str(error)
                for _ in range(1 + len(run.pods)):
                    yield StepDone(next(steps), sentence)
                continue
            yield StepDone(next(steps))
            for pod in run.pods:
                yield await _first_start(folder, pod, next(steps))
    finally:
        for started in starts:
            started.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


async def scale(root: Root, state_record: RunRecord, plan: ScalePlan) -> None:
    """Write down the new wish; with the lock held.

    Raises:
        RefusedError: somebody else has scaled the set since the plan was made.
        BackendError: the state folder cannot be written.
    """
    folder = root.run(plan.run)
    removed = set(plan.removed)
    kept = tuple(wish for wish in state_record.pods if wish.plan.name not in removed)
    names = {wish.plan.name for wish in kept}
    if double := next((pod.name for pod in plan.added if pod.name in names), ""):
        raise RefusedError(f"{plan.run}/{plan.set_name} has {double} already.", "Plan again.")
    added = tuple(PodWish(str(uuid4()), pod, time.time()) for pod in plan.added)
    record = msgspec.structs.replace(
        state_record,
        spec=state_record.spec.with_replicas(plan.set_name, plan.replicas),
        pods=(*kept, *added),
    )
    try:
        await control.settled(files.write_atomic, folder.record, record, sync=True)
    except OSError as error:
        raise control.unwritable(root, error) from error


async def _first_start(folder: RunFolder, pod: PodPlan, step: Step) -> StepDone:
    """Wait until a pod got its process, or cannot get one."""
    until = time.monotonic() + _FIRST_START_SECONDS
    while time.monotonic() < until:
        status = control.read_status(folder)
        has_ended = status is not None and not processes.is_alive(status.supervisor)
        if has_ended:  # it may have written more between the two looks: a short job is over at once
            status = control.read_status(folder)
        found = next((one for one in status.pods if one.plan.name == pod.name), None) if status else None
        if found is not None and found.reason == "StartError":
            return StepDone(step, found.message)
        if found is not None and (found.started is not None or found.phase.is_over):
            return StepDone(step)
        if not folder.record.exists():
            return StepDone(step, "the run was destroyed meanwhile")
        if has_ended:
            return StepDone(step, f"its supervisor has ended, see {folder.diary}")
        await asyncio.sleep(control.POLL_SECONDS)
    return StepDone(step, f"it got no process within {_FIRST_START_SECONDS:g} s, see {folder.diary}")


def _write_all(root: Root, settings: Settings, runs: Sequence[RunPlan]) -> None:
    written: list[RunFolder] = []
    try:
        taken = ports.in_use(root)
        for run in runs:
            chosen = ports.choose(run, taken)
            taken |= set(chosen.values())
            _write(root, settings, run, chosen)
            written.append(root.run(run.spec.name))
    except OSError as error:
        for folder in written:
            folders.remove(folder.path, *folders.socket_dirs(folder))
        raise control.unwritable(root, error) from error


def _write_programs(staged: RunFolder, run: RunPlan) -> None:
    for one in run.spec.sets:
        if one.program is not None:
            path = staged.program(one.name, one.program.name)
            path.parent.mkdir(mode=0o700, parents=True)
            if one.program.text:
                path.write_text(one.program.text, encoding="utf-8")


def _write(root: Root, settings: Settings, run: RunPlan, chosen: dict[str, int]) -> None:
    """Build the folder under another name and publish it whole."""
    now = time.time()
    folder = root.run(run.spec.name)
    staged = RunFolder(root.runs / f"{STAGED}{run.uid}")
    try:
        for path in (staged.path, staged.requests, staged.pipes, staged.data):
            path.mkdir(mode=0o700)
        inner = peers.socket_folders(run)
        socket_dir = folders.make_socket_dir(folder, run.uid, max(inner, key=len, default=""))
        if socket_dir == folder.sockets:
            staged.sockets.mkdir(mode=0o700)
        for name in inner:
            ((staged.sockets if socket_dir == folder.sockets else socket_dir) / name).mkdir(mode=0o700)
        _write_programs(staged, run)
        descriptor = os.open(staged.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            files.write_all(descriptor, secrets.token_hex(32).encode())
        finally:
            os.close(descriptor)
        record = RunRecord(
            uid=run.uid,
            spec=run.spec,
            owner=run.owner,
            node=node_name(),
            boot=processes.boot_id(),
            cwd=working_folder(),
            created=now,
            endpoint=f"ipc://{socket_dir}",
            socket_dir=str(socket_dir),
            pods=tuple(PodWish(str(uuid4()), pod, now) for pod in run.pods),
            backoff_seconds=settings.backoff_seconds,
            log_max_bytes=settings.log_max_bytes,
            ports=chosen,
            volume=volumes.prepare(root, run.spec),
        )
        files.write_atomic(staged.record, record, sync=True)
        staged.path.rename(folder.path)
    except OSError:
        folders.remove(staged.path, *folders.socket_dirs(folder))
        raise
