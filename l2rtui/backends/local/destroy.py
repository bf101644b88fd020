"""Destroy a run: stop its pods, verify on the machine itself that nothing runs, then remove its folder.

The supervisor stops the pods, so that their last output reaches the logs. A dead supervisor is replaced; one that
does not respond is killed and replaced. Any process that still has the run's tags afterwards gets SIGKILL; see
``supervision.supervised_process``.

``Receipt.objects`` counts the run's record, its supervisor, each pod, the folders of its sockets and own code,
processes that cleared their environment, and containers with the run's tags. ``Receipt.possible`` names containers
and processes that may be the run's, and ``Receipt.not_seen`` the limits of this count.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from l2rtui.backends.common import workdirs
from l2rtui.backends.common.nvml import GpuReport
from l2rtui.backends.local import outside, process_scan, run_folders, state_files
from l2rtui.backends.local.paths import REMOVED, RunFolder, StateFolder
from l2rtui.backends.local.process_scan import TaggedProcess
from l2rtui.backends.local.run_store import RunState, RunStore, corrupt_uid, short_uid
from l2rtui.backends.local.state_files import ProcessIdentity, RunRecord, RunStatus, StopRequest
from l2rtui.backends.local.supervision import client, supervised_process
from l2rtui.backends.local.supervision.watcher import kill_with_watchers
from l2rtui.domain.node import CPU
from l2rtui.domain.receipt import DestroyProgress, Leftover, Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import BackendError, NotFoundError
from runtime.base.cgroups import RunGroup

TagFilter = Callable[[TaggedProcess], bool]

_ANSWER_SECONDS = 3.0
"""Time after which a supervisor that has not read the request is killed."""
_OVERTIME_SECONDS = 10.0
"""Extra time for a supervisor beyond the longest grace period."""
_NOT_SEEN = "what a daemon of this machine started for it ({daemons})"
_DAEMONS = "at, systemd, ssh"
_NOT_SEEN_WITHOUT_GROUP = (
    "processes that cleared their environment and lost their parent while the run had no supervisor (this user may "
    "not create control groups, which would show them)"
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_OWN_CODE = "workdir"
"""Folder, in the results of a run, of the files that it has written beside its own code."""


async def destroy(
    root: StateFolder,
    store: RunStore,
    run: RunView,
    grace_seconds: float | None,
    read_gpus: Callable[[], GpuReport],
    *,
    purge: bool,
) -> AsyncIterator[DestroyProgress | Receipt]:
    """Remove a run; see ``Backend.destroy``.

    Raises:
        NotFoundError: Neither a folder nor a process of this run exists.
    """
    began, began_at = time.monotonic(), time.time()
    folder = root.run(run.name)
    is_of_run = _tag_filter(folder, run.uid)
    state = store.find(run.uid)
    processes = await asyncio.to_thread(process_scan.find_tagged, is_of_run)
    if state is None and not processes:
        raise NotFoundError(f"The run {run.name} is gone.", "Look at the runs again.")
    counted, recorded = _inventory(folder, state, processes)
    gpus = _gpus_of(state)
    pids_on_gpus = outside.pids_on(await asyncio.to_thread(read_gpus), gpus) if gpus else set()
    group = _group_of(folder, run.uid)
    members = group.members() if group is not None else []
    # Not those that started since the scan: they have tags. One that has ended since then counts as ended.
    tags = [process_scan.tags_of(pid) for pid in members]
    untagged = {process.proc for process in tags if process is not None and not process.folder}
    if state is not None:
        async for left in _stop_pods(root, folder, state, grace_seconds, is_of_run):
            yield DestroyProgress(left)
        status = client.read_status(folder) or state.status
        adopted = {process.proc for process in (status.adopted if status is not None else ())}
        recorded |= adopted
        untagged |= adopted
    counted["process without a tag"] = len(untagged)
    pids_on_gpus &= {process.pid for process in recorded}.union(members)
    counted["process on a GPU"] = len(pids_on_gpus)
    leftovers = await client.finish_in_thread(_kill_remaining, is_of_run, recorded, group)
    if pids_on_gpus and not leftovers:
        leftovers = await client.finish_in_thread(outside.still_listed, read_gpus, gpus, pids_on_gpus)
    launched = state.record.created if state is not None and state.record is not None else began_at
    containers = await client.finish_in_thread(outside.end_containers, folder, run.uid, launched)
    counted["container"] = containers.ended
    leftovers.extend(containers.left)
    results = ""
    if not leftovers:
        async with client.lock_state(root):
            # Another run may have taken the name by now: then this run's folder was already removed.
            if store.find(run.uid) is not None:
                leftovers, results = await client.finish_in_thread(_remove, root, folder, run.uid, purge)
            else:
                path = _results_path(root, run.name, run.uid)
                results = str(path) if path.exists() else ""
        # A supervisor that was started at the last moment may have outlived the folder.
        leftovers.extend(await client.finish_in_thread(_kill_remaining, is_of_run, set(), group))
    if group is not None:
        group.remove()
    counted = {kind: number for kind, number in counted.items() if number}
    on_gpus = outside.possible_gpu_processes(await asyncio.to_thread(read_gpus), gpus, launched) if gpus else ()
    by_daemons = await asyncio.to_thread(outside.possible_processes, launched)
    not_seen = _NOT_SEEN.format(daemons=_DAEMONS if containers.is_asked else f"Docker, {_DAEMONS}")
    yield Receipt(
        run.name,
        sum(counted.values()),
        tuple(leftovers),
        time.monotonic() - began,
        results,
        counted=tuple(counted.items()),
        possible=(*on_gpus, *containers.possible, *by_daemons),
        not_seen=not_seen if group is not None else f"{not_seen}; {_NOT_SEEN_WITHOUT_GROUP}",
    )


def _gpus_of(state: RunState | None) -> set[int]:
    """Return the GPUs whose slots a run holds."""
    pods = state.record.pods if state is not None and state.record is not None else ()
    return {slot.gpu for pod in pods for slot in pod.plan.seat.slots if slot.gpu != CPU}


def _tag_filter(folder: RunFolder, uid: str) -> TagFilter:
    """Return the test for processes of this run; without a readable record, only their folder identifies them."""
    path = str(folder.path)
    if uid == corrupt_uid(folder):
        return lambda process: process.folder == path
    return lambda process: process.run_id == uid and process.folder == path


def _inventory(
    folder: RunFolder, state: RunState | None, processes: list[TaggedProcess]
) -> tuple[dict[str, int], set[ProcessIdentity]]:
    """Return the numbers of objects by kind, and every process that is recorded or tagged."""
    recorded = {process.proc for process in processes}
    if state is None:
        return {"process": len(recorded)}, recorded
    records = state.status.pods if state.status else []
    pods = {pod.uid for pod in records}
    names = {pod.plan.name for pod in records}
    if state.record is not None:
        # A desired pod without a record was never started; matched by name, since a replacement has another uid.
        pods |= {desired.uid for desired in state.record.pods if desired.plan.name not in names}
    pods |= {process.pod_id for process in processes if process.pod_id}
    if state.status is not None:
        recorded |= {state.status.supervisor, *(pod.proc for pod in records if pod.proc)}
    supervisors = 1 if state.status is not None else 0
    sockets = len(run_folders.socket_dirs(folder)[:1])
    parts = {"run": 1, "supervisor": supervisors, "pod": len(pods), "folder of sockets": sockets}
    return {**parts, "folder of own code": int(folder.workdir.exists())}, recorded


async def _stop_pods(
    root: StateFolder, folder: RunFolder, state: RunState, grace_seconds: float | None, is_of_run: TagFilter
) -> AsyncIterator[tuple[tuple[str, int], ...]]:
    """Let a supervisor stop every pod; yield the remaining objects whenever they change."""
    graces = [desired.plan.set_spec.grace_seconds for desired in state.record.pods] if state.record else []
    longest = max(graces, default=0.0) if grace_seconds is None else grace_seconds
    request = StopRequest(grace_seconds)
    try:
        await client.finish_in_thread(state_files.write_atomic, folder.destroy_request, request, sync=True)
    except FileNotFoundError:
        return  # another destroy was faster
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise client.unwritable_error(root, error) from error
        await _stop_without_supervisor(folder, is_of_run, longest)
        return
    if state.record is None and client.supervisor_of(folder) is None:
        return  # no supervisor can work without a record
    client.wake(folder)  # it may still handle an earlier request with a longer grace
    until = time.monotonic() + longest + _OVERTIME_SECONDS
    last = _left(state.status)
    yield last
    async for status in _until_ended(folder, state, until):
        left = _left(status)
        if left != last:
            last = left
            yield left


async def _stop_without_supervisor(folder: RunFolder, is_of_run: TagFilter, grace_seconds: float) -> None:
    """Stop every process directly: on a full disk no request can be written, and the run's space is needed."""
    supervisor = client.supervisor_of(folder)
    if supervisor is not None:
        kill_with_watchers(supervisor, folder)  # otherwise it would start them again
    processes = await asyncio.to_thread(process_scan.find_tagged, is_of_run)
    await asyncio.to_thread(supervised_process.terminate_all, processes, grace_seconds)


def _left(status: RunStatus | None) -> tuple[tuple[str, int], ...]:
    pods = status.pods if status else []
    return (("Pod", sum(not pod.phase.is_over for pod in pods)), ("Run", 1))


async def _until_ended(folder: RunFolder, state: RunState, until: float) -> AsyncIterator[RunStatus]:
    """Keep a supervisor running until it has ended in order; yield its status at each poll."""
    requested_at = 0.0
    while time.monotonic() < until and folder.path.exists():
        supervisor = client.supervisor_of(folder)
        status = client.read_status(folder)
        if status is not None and status.is_destroying:
            yield status
            if status.is_ended:
                return
        if supervisor is None:
            try:
                await client.finish_in_thread(client.start_supervisor, folder, state.uid)
            except BackendError:
                return  # the processes are then killed by their tags
            requested_at = time.monotonic()
        elif status is None or not status.is_destroying:
            # It lives but has not read the request: wake it once, then treat it as hung.
            if not requested_at:
                requested_at = time.monotonic()
                client.wake(folder)
            elif time.monotonic() > requested_at + _ANSWER_SECONDS:
                kill_with_watchers(supervisor, folder)
                requested_at = 0.0
        await asyncio.sleep(client.POLL_SECONDS)


def _group_of(folder: RunFolder, uid: str) -> RunGroup | None:
    """Return the control group of a run: the recorded one, or that at the default place."""
    path = state_files.read_line(folder.cgroup)
    if uid == corrupt_uid(folder):
        uid = RunGroup.uid_of(path)
    return RunGroup.recorded(uid, path) or RunGroup.default(uid)


def _kill_remaining(is_of_run: TagFilter, recorded: set[ProcessIdentity], group: RunGroup | None) -> list[Leftover]:
    survivors = supervised_process.kill_remaining(is_of_run, recorded, group)
    return [Leftover("Process", f"{proc.pid} {command}", _refusal(proc)) for proc, command in survivors.items()]


def _refusal(proc: ProcessIdentity) -> str:
    try:
        os.kill(proc.pid, 0)
    except PermissionError:
        return "belongs to another user, and only that user can end it"
    except ProcessLookupError:
        return "ended only now"
    return "does not end on SIGKILL: it sleeps in the kernel"


def _remove(root: StateFolder, folder: RunFolder, uid: str, purge: bool) -> tuple[list[Leftover], str]:
    """Move the results away, delete the rest, and verify the deletion; call it with the lock held.

    Returns:
        Leftovers, and the folder of the results (empty without results).
    """
    results = ""
    target = _results_path(root, folder.name, uid)
    source = folder.data
    try:
        written = [] if purge else _written(folder)
        if not purge and _has_files(folder.data):
            root.results.mkdir(mode=0o700, exist_ok=True)
            folder.data.rename(target)
            results = str(target)
        for source in written:
            place = target / _OWN_CODE / source.relative_to(folder.workdir / workdirs.TREE)
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            source.rename(place)
            results = str(target)
    except OSError as error:
        return [Leftover("Results", str(source), f"cannot be moved to {target}: {error.strerror}")], results
    sockets = run_folders.socket_dirs(folder)
    gone = root.runs / f"{REMOVED}{uid}-{os.getpid()}"
    try:
        # One rename hides the run from every reader; deleting takes many steps and may be interrupted.
        folder.path.rename(gone)
    except OSError as error:
        return [Leftover("Folder", str(folder.path), error.strerror or str(error))], results
    problem = run_folders.remove(gone, *(path for path in sockets if path != folder.sockets))
    left = [path for path in (gone, *sockets) if path.exists()]
    return [Leftover("Folder", str(path), problem or "is still there") for path in left], results


def _written(folder: RunFolder) -> list[Path]:
    """Return the files that a run has written beside its own code. Raises OSError."""
    record = state_files.read_valid(folder.record, RunRecord)
    workdir = record.spec.workdir if record is not None else None
    return workdirs.written_files(workdir, folder.workdir) if workdir is not None else []


def _has_files(folder: Path) -> bool:
    """Say whether a folder has a file with content; hidden files are locks."""
    names = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return any(not path.name.startswith(".") and path.lstat().st_size for path in names)


def _results_path(root: StateFolder, name: str, uid: str) -> Path:
    return root.results / f"{name}-{short_uid(uid)}"
