"""Launch and scale: claim slots under the lock, write the desired state, and let a supervisor apply it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import msgspec

from l2rtui.backends.common import workdirs
from l2rtui.backends.common.node_info import node_name
from l2rtui.backends.common.refusals import pod_exists, refuse_taken_slots, run_exists
from l2rtui.backends.local import environment, process_scan, run_folders, state_files, volume_store
from l2rtui.backends.local.environment import LOOPBACK, working_folder
from l2rtui.backends.local.paths import STAGED, RunFolder, StateFolder
from l2rtui.backends.local.state_files import DesiredPod, RunRecord
from l2rtui.backends.local.supervision import client
from l2rtui.config import Settings
from l2rtui.domain.plan import LaunchPlan, PlanStep, PodPlan, RunPlan, ScalePlan, StepDone
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import name_problem, pod_name
from l2rtui.errors import BackendError, RefusedError

_PORTS = range(20_000, 30_000)
"""Below the ephemeral ports (from 32768 on Linux), which the system gives to any program."""
_FIRST_START_SECONDS = 30.0


def in_use(root: StateFolder) -> set[int]:
    """Return the ports of other runs, whether or not a process listens there now; call it with the lock held."""
    used: set[int] = set()
    # Includes ports whose process is down: after its restart peers must find it at the same port.
    for path in root.runs.glob("*/run.json"):
        if record := state_files.read_valid(path, RunRecord):  # otherwise removed, or reported elsewhere
            used.update(record.ports.values())
    return used


def choose(run: RunPlan, used: set[int]) -> dict[str, int]:
    """Choose a port for each replica that others find by name; the key is the name of its pod.

    Raises:
        OSError: No port is free.
    """
    chosen: dict[str, int] = {}
    for spec in run.spec.sets:
        for index in range(spec.replicas if spec.port else 0):
            chosen[pod_name(run.spec.name, spec.name, index)] = _free_port(used | set(chosen.values()))
    return chosen


def _free_port(used: set[int]) -> int:
    # From a random start: a concurrent launch of another state folder then rarely tries the same port.
    first = secrets.randbelow(len(_PORTS))
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        if port in used:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:  # in use
                continue
        return port
    raise OSError(f"no TCP port from {_PORTS.start} to {_PORTS.stop - 1} is free")


async def write_records(root: StateFolder, settings: Settings, plan: LaunchPlan, snapshot: ClusterSnapshot) -> None:
    """Write the record of every run of a plan; call it with the lock held and a snapshot that was made under it.

    Raises:
        RefusedError: A slot is no longer free, or a name is taken; nothing was written.
        BackendError: The state folder cannot be written; written files were removed.
    """
    pods = [pod for run in plan.runs for pod in run.pods]
    refuse_taken_slots(pods, snapshot, plan.overcommitted)
    for run in plan.runs:
        names = (run.spec.name, *(set_spec.name for set_spec in run.spec.sets))
        if problem := next(filter(None, map(name_problem, names)), ""):
            raise RefusedError(f"{problem}.")  # a name becomes a folder
        # The folder, not the snapshot, which leaves out runs of other nodes on a shared file system.
        if root.run(run.spec.name).path.exists():
            raise run_exists(run.spec.name)
    await client.finish_in_thread(_write_all, root, settings, plan.runs)


async def start_supervisors(root: StateFolder, plan: LaunchPlan) -> AsyncIterator[StepDone]:
    """Start the supervisors of written runs and report each step as it is done."""
    steps = iter(plan.steps())
    # Together: each start waits for a Python interpreter, and a launch of many seeds would wait for one at a time.
    starts = [
        asyncio.ensure_future(client.finish_in_thread(client.start_supervisor, root.run(run.spec.name), run.uid))
        for run in plan.runs
    ]
    try:
        for run, started in zip(plan.runs, starts, strict=True):
            folder = root.run(run.spec.name)
            try:
                await started
            except BackendError as error:
                sentence = str(error)
                # The protocol requires one result per step; the other runs of the plan continue.
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


async def scale(root: StateFolder, state_record: RunRecord, plan: ScalePlan) -> None:
    """Write the new number of replicas; call it with the lock held.

    Raises:
        RefusedError: The set was scaled after the plan was made.
        BackendError: The state folder cannot be written.
    """
    folder = root.run(plan.run)
    removed = set(plan.removed)
    staying = tuple(desired for desired in state_record.pods if desired.plan.name not in removed)
    names = {desired.plan.name for desired in staying}
    if double := next((pod.name for pod in plan.added if pod.name in names), ""):
        raise pod_exists(plan.run, plan.set_name, double)
    added = tuple(DesiredPod(str(uuid4()), pod, time.time()) for pod in plan.added)
    record = msgspec.structs.replace(
        state_record, spec=state_record.spec.with_replicas(plan.set_name, plan.replicas), pods=(*staying, *added)
    )
    try:
        await client.finish_in_thread(state_files.write_atomic, folder.record, record, sync=True)
    except OSError as error:
        raise client.unwritable_error(root, error) from error


async def _first_start(folder: RunFolder, pod: PodPlan, step: PlanStep) -> StepDone:
    """Wait until a pod has its process, or cannot get one."""
    until = time.monotonic() + _FIRST_START_SECONDS
    while time.monotonic() < until:
        status = client.read_status(folder)
        has_ended = status is not None and not process_scan.is_alive(status.supervisor)
        if has_ended:  # it may have written more between the two checks: a short job ends quickly
            status = client.read_status(folder)
        records = status.pods if status else []
        record = next((record for record in records if record.plan.name == pod.name), None)
        if record is not None and record.reason == "StartError":
            return StepDone(step, record.message)
        if record is not None and (record.started is not None or record.phase.is_over):
            return StepDone(step)
        # A destroy removes the folder while we wait.
        if not folder.record.exists():
            return StepDone(step, "the run was destroyed meanwhile")
        if has_ended:
            return StepDone(step, f"its supervisor has ended, see {folder.supervisor_log}")
        await asyncio.sleep(client.POLL_SECONDS)
    return StepDone(step, f"it got no process within {_FIRST_START_SECONDS:g} s, see {folder.supervisor_log}")


def _write_all(root: StateFolder, settings: Settings, runs: Sequence[RunPlan]) -> None:
    written: list[RunFolder] = []
    try:
        used_ports = in_use(root)
        for run in runs:
            run_ports = choose(run, used_ports)
            used_ports |= set(run_ports.values())
            _write(root, settings, run, run_ports)
            written.append(root.run(run.spec.name))
    except (OSError, BackendError) as error:
        # All or nothing: a partly written plan would hold slots that no launch reports.
        for folder in written:
            run_folders.remove(folder.path, *run_folders.socket_dirs(folder))
        raise client.unwritable_error(root, error) if isinstance(error, OSError) else error from error


def _write_programs(staged: RunFolder, run: RunPlan) -> None:
    for set_spec in run.spec.sets:
        program = set_spec.program
        if program is not None:
            path = staged.program(set_spec.name, program.name)
            path.parent.mkdir(mode=0o700, parents=True)
            if program.text:
                path.write_text(program.text, encoding="utf-8")


def _write(root: StateFolder, settings: Settings, run: RunPlan, run_ports: dict[str, int]) -> None:
    """Build the folder under another name; a rename then publishes it complete."""
    now = time.time()
    folder = root.run(run.spec.name)
    staged = RunFolder(root.runs / f"{STAGED}{run.uid}")
    try:
        for path in (staged.path, staged.requests, staged.pipes, staged.data):
            path.mkdir(mode=0o700)
        # bind() creates a socket file, but not its folder.
        inner = environment.socket_folders(run)
        socket_dir = run_folders.make_socket_dir(folder, run.uid, max(inner, key=len, default=""))
        if socket_dir == folder.sockets:
            staged.sockets.mkdir(mode=0o700)
        for name in inner:
            ((staged.sockets if socket_dir == folder.sockets else socket_dir) / name).mkdir(mode=0o700)
        _write_programs(staged, run)
        if run.spec.workdir is not None:
            workdirs.unpack(run.spec.workdir, staged.workdir)
        # O_EXCL with the mode: the token is never readable by others, not even briefly.
        descriptor = os.open(staged.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            state_files.write_all(descriptor, secrets.token_hex(32).encode())
        finally:
            os.close(descriptor)
        record = RunRecord(
            uid=run.uid,
            spec=run.spec,
            owner=run.owner,
            node=node_name(),
            boot=process_scan.boot_id(),
            cwd=str(folder.workdir / workdirs.TREE) if run.spec.workdir is not None else working_folder(),
            created=now,
            endpoint=f"ipc://{socket_dir}",
            socket_dir=str(socket_dir),
            pods=tuple(DesiredPod(str(uuid4()), pod, now) for pod in run.pods),
            backoff_seconds=settings.backoff_seconds,
            log_max_bytes=settings.log_max_bytes,
            ports=run_ports,
            volume=volume_store.prepare(root, run.spec),
        )
        state_files.write_atomic(staged.record, record, sync=True)
        # From here on readers see the complete run.
        staged.path.rename(folder.path)
    except (OSError, BackendError):
        run_folders.remove(staged.path, *run_folders.socket_dirs(folder))
        raise
