"""Reader of the runs on disk, and their rows: files are read again only after a change, and validated before use.

It starts, stops and writes nothing: a supervisor sets an unreadable file aside when it writes another.
"""

from __future__ import annotations

import math
import os
import pwd
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.common.node_info import node_name
from l2rtui.backends.local import process_scan, state_files
from l2rtui.backends.local.paths import REMOVED, STAGED, RunFolder, StateFolder
from l2rtui.backends.local.state_files import PodRecord, RunRecord, RunStatus
from l2rtui.backends.local.supervision import client
from l2rtui.config import user_name
from l2rtui.domain.history import spec_id
from l2rtui.domain.plan import PodPlan, planned_view
from l2rtui.domain.snapshot import UNSUPERVISED, PodView, RunView, SetView
from l2rtui.domain.status import STOPPED, Phase

T = TypeVar("T")
CORRUPT = "Corrupt"
_CORRUPT_UID = "corrupt-"
_STARTING_SECONDS = 15.0
"""Age up to which a run without a status counts as starting; after that it is unsupervised."""


_LEAST_BYTES = 64 * 1024
"""Room below which logs, checkpoints and the status of a run cannot be counted on."""


class RunState(Struct, frozen=True):
    """One run as seen in its files and processes.

    Attributes:
        record: None if it cannot be read: then only the folder's name is known.
        is_supervised: A living supervisor wrote the status, or ended in order.
        is_stopping: A destroy was requested.
        silent_since: Time at which its supervisor was first seen stopped by a signal; otherwise None.
        is_newer: A later version of this program wrote the record.
        owner: Owner of the folder, where the record cannot say it; empty otherwise.
        is_full: The file system of its folder has no room: nobody who lives there can say so.
    """

    folder: RunFolder
    record: RunRecord | None
    status: RunStatus | None
    is_supervised: bool
    is_stopping: bool
    silent_since: float | None = None
    is_newer: bool = False
    owner: str = ""
    is_full: bool = False

    @property
    def uid(self) -> str:
        """Uid of the run, or a substitute without a readable record."""
        return self.record.uid if self.record else corrupt_uid(self.folder)


class RunScan(Struct, frozen=True):
    """All runs, and sentences on unreadable parts."""

    runs: tuple[RunState, ...] = ()
    problems: tuple[str, ...] = ()


def corrupt_uid(folder: RunFolder) -> str:
    """Return the substitute uid of a run without a readable record: the inode is unique while the folder exists."""
    try:
        return f"{_CORRUPT_UID}{folder.path.stat().st_ino}"
    except OSError:
        return f"{_CORRUPT_UID}gone"


def _owner_of(folder: Path) -> str:
    """Return the name of a folder's owner; empty if the owner has no name."""
    try:
        uid = folder.stat().st_uid
        return user_name() if uid == os.getuid() else pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        return ""


def short_uid(uid: str) -> str:
    """Return the start of a uid, enough for display and folder names."""
    return uid.removeprefix(_CORRUPT_UID)[:8]


class RunStore:
    """Reads the state folder, and caches the value of each file until the file changes."""

    def __init__(self, root: StateFolder, boot: str) -> None:
        self._root = root
        self._boot = boot
        self._files: dict[Path, tuple[tuple[int, int, int], object]] = {}
        self._asides: dict[Path, tuple[int, tuple[str, ...]]] = {}
        self._silent: dict[Path, float] = {}
        self._newer: set[Path] = set()

    def scan(self) -> RunScan:
        """Read the files that have changed. Takes well under a millisecond without changes."""
        runs: list[RunState] = []
        problems: list[str] = []
        names = self._names(problems)
        for name in names:
            folder = self._root.run(name)
            state = self._run(folder, problems)
            if state is None:
                continue
            # Home folders are often shared by several nodes: runs of other nodes cannot be checked from here.
            if state.record is not None and state.record.boot != self._boot and state.record.node != node_name():
                problems.append(f"run {name} was launched on {state.record.node}: look after it there")
                continue
            runs.append(state)
        present = set(names)
        self._files = {path: entry for path, entry in self._files.items() if path.parent.name in present}
        self._asides = {path: entry for path, entry in self._asides.items() if path.name in present}
        self._silent = {path: since for path, since in self._silent.items() if path.name in present}
        return RunScan(tuple(runs), tuple(problems))

    def find(self, uid: str) -> RunState | None:
        """Return the run with this uid, or with this substitute uid even if its record is readable again."""
        return next((state for state in self.scan().runs if uid in (state.uid, corrupt_uid(state.folder))), None)

    def named(self, name: str) -> RunState | None:
        """Return the run with this name."""
        return next((state for state in self.scan().runs if state.folder.name == name), None)

    def _names(self, problems: list[str]) -> list[str]:
        try:
            entries = os.listdir(self._root.runs)  # noqa: PTH208  (five times a second)
        except FileNotFoundError:  # nothing was ever launched
            return []
        except OSError as error:
            problems.append(f"the state folder {self._root.runs} cannot be read: {error.strerror}")
            return []
        return sorted(name for name in entries if not name.startswith((STAGED, REMOVED)))

    def _run(self, folder: RunFolder, problems: list[str]) -> RunState | None:
        record = self._read(folder.record, RunRecord, problems)
        status = self._read(folder.status, RunStatus, problems)
        if record is None and not folder.path.is_dir():  # destroyed during the scan, or not a run
            return None
        if status is not None and not status.is_ended and not process_scan.is_alive(status.supervisor):
            # It may have ended in order between both checks.
            status = self._read(folder.status, RunStatus, problems)
        problems.extend(self._set_aside_in(folder))
        # Between the record and the first status a Python interpreter starts, for seconds on a loaded node.
        is_young = record is not None and status is None and time.time() < record.created + _STARTING_SECONDS
        if status is None:
            is_supervised = is_young or client.supervisor_of(folder) is not None
        else:
            is_supervised = status.is_ended or process_scan.is_alive(status.supervisor)
        is_stopping = folder.destroy_request.exists() or bool(status and status.is_destroying)
        silent_since = self._silent_since(folder, status)
        if silent_since is not None:
            moment = time.strftime("%H:%M:%S", time.localtime(silent_since))
            problems.append(f"the supervisor of {folder.name} is stopped and does not answer since {moment}")
        is_newer = record is None and folder.record in self._newer
        owner = _owner_of(folder.path) if record is None else ""
        is_full = not (status is not None and status.is_ended) and _is_full(folder.path)
        return RunState(folder, record, status, is_supervised, is_stopping, silent_since, is_newer, owner, is_full)

    def _silent_since(self, folder: RunFolder, status: RunStatus | None) -> float | None:
        """Return when the supervisor was first seen stopped; None if it is not stopped."""
        if status is None or status.is_ended or not process_scan.is_stopped(status.supervisor):
            self._silent.pop(folder.path, None)
            return None
        return self._silent.setdefault(folder.path, time.time())

    def _read(self, path: Path, kind: type[T], problems: list[str]) -> T | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        # Every write is a rename, so new content has a new inode; time and size guard against its reuse.
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        cached = self._files.get(path)
        if cached is not None and cached[0] == key and isinstance(cached[1], kind):
            return cached[1]
        try:
            value = state_files.read(path, kind)
        except FileNotFoundError:
            return None
        except state_files.CorruptError as error:
            problems.append(f"{path} cannot be read: {error}")
            if isinstance(error, state_files.NewerError):
                self._newer.add(path)
            return None
        self._newer.discard(path)
        self._files[path] = (key, value)
        return value

    def _set_aside_in(self, folder: RunFolder) -> tuple[str, ...]:
        """Return sentences on files that were set aside, as long as those files exist."""
        try:
            changed = folder.path.stat().st_mtime_ns
        except OSError:
            return ()
        cached = self._asides.get(folder.path)
        if cached is None or cached[0] != changed:
            asides = sorted(folder.path.glob("*.corrupt-*"))
            sentences = tuple(f"run {folder.name}: a file was unreadable and is kept as {path}" for path in asides)
            cached = (changed, sentences)
            self._asides[folder.path] = cached
        return cached[1]


def _is_full(path: Path) -> bool:
    """Return True where less than `_LEAST_BYTES` can be written."""
    try:
        room = os.statvfs(path)
    except OSError:
        return False
    blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
    return blocks * room.f_frsize < _LEAST_BYTES


SILENT = "Silent"
NO_SPACE = "NoSpace"
_CORRUPT = "its record cannot be read; destroy it, and what runs of it is found by its mark"
_NEWER = "a newer l2rtui launched it: manage it with that one; destroy ends the processes that have its mark"


class RunViews(Struct, frozen=True):
    """Views of one run and its pods."""

    run: RunView
    pods: tuple[PodView, ...]


class ViewCache:
    """Makes views, and returns the same objects again while neither the files nor the clock change them."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[RunState, tuple[bool, ...], RunViews]] = {}

    def views(self, states: Sequence[RunState], node: str, now: float) -> list[RunViews]:
        """Return the views of all runs, in their order."""
        fresh: dict[str, tuple[RunState, tuple[bool, ...], RunViews]] = {}
        for state in states:
            cached, stopped = self._cache.get(state.uid), _stopped(state)
            if cached is None or cached[1] != stopped or _may_differ(cached[0], state):
                cached = state, stopped, RunViews(run_view(state), tuple(pod_views(state, node, now)))
            fresh[state.uid] = cached
        self._cache = fresh
        return [views for _, _, views in fresh.values()]


def _stopped(state: RunState) -> tuple[bool, ...]:
    """Return which processes of a run are stopped by a signal: no file says so, and no supervisor sees it."""
    pods = state.status.pods if state.status else []
    return tuple(pod.proc is not None and process_scan.is_stopped(pod.proc) for pod in pods)


def _may_differ(old: RunState, new: RunState) -> bool:
    """Return True if views must be rebuilt; the store returns the same objects while files are unchanged."""
    # The message of a back-off counts down, and an unsupervised process may end: both change without a file.
    is_watched = new.is_supervised and new.silent_since is None
    is_timeless = is_watched and not any(pod.next_start for pod in (new.status.pods if new.status else ()))
    is_same = old.record is new.record and old.status is new.status and old.is_stopping == new.is_stopping
    is_same = is_same and old.silent_since == new.silent_since and old.is_full == new.is_full
    return not (is_timeless and is_same and old.is_supervised)


def run_view(state: RunState) -> RunView:
    """Return the view of one run."""
    record = state.record
    if record is None:
        return RunView(
            state.uid,
            state.folder.name,
            state.folder.name,
            owner=state.owner,
            reason="Newer" if state.is_newer else CORRUPT,
            message=_NEWER if state.is_newer else _CORRUPT,
            is_terminating=state.is_stopping,
        )
    # Without a supervisor nothing else in the status is up to date, so that reason comes first.
    reason = message = ""
    if not state.is_supervised:
        reason = UNSUPERVISED
        message = "its supervisor has ended: nothing restarts its processes until its owner's next command"
    elif state.silent_since is not None:
        reason = SILENT
        message = (
            "its supervisor is stopped (SIGSTOP): its state is not updated, and nothing restarts its "
            f"processes; `kill -CONT {state.status.supervisor.pid if state.status else 0}` lets it go on"
        )
    elif state.is_full:
        reason = NO_SPACE
        message = (
            f"no space is left on the disk of {state.folder.path}: its logs and checkpoints are lost; free some, "
            "and it goes on by itself"
        )
    elif state.status is not None and state.status.problem:
        reason, message = "Warning", state.status.problem
    return RunView(
        record.uid,
        record.spec.name,
        record.spec.experiment,
        owner=record.owner,
        seed=record.spec.seed,
        kind=record.spec.kind,
        created=record.created,
        sets=tuple(SetView(part.name, part.role, part.replicas, part.slots > 0) for part in record.spec.sets),
        reason=reason,
        message=message,
        is_terminating=state.is_stopping,
        silent_since=state.silent_since,
        trial=record.spec.trial,
        spec_id=spec_id(record.spec),
    )


def pod_views(state: RunState, node: str, now: float) -> Iterator[PodView]:
    """Yield the pods of a run: first the pods of its status, then pods that its supervisor has yet to start."""
    records = state.status.pods if state.status else []
    for pod in records:
        yield _pod_view(state, pod, node, now)
    # By uid, not by name: a new pod has claimed its slots while its predecessor is still ending on others.
    fulfilled = {pod.wish for pod in records}
    if state.record is not None and not state.is_stopping:
        for desired in state.record.pods:
            if desired.uid not in fulfilled:
                yield _planned_view(state, desired.uid, desired.plan, node, desired.created)


def _pod_view(state: RunState, pod: PodRecord, node: str, now: float) -> PodView:
    phase, reason, message = pod.phase, pod.reason, pod.message
    if pod.next_start is not None:
        # In steps of 5 s: a countdown by the second would send a change of every waiting pod each second.
        left = max(0.0, pod.next_start - now)
        again = f"starts again in {math.ceil(left / 5) * 5 if left > 5 else math.ceil(left)} s"
        message = f"{message}; {again}" if message else again
    elif phase.is_over:
        pass
    elif not (state.is_supervised and state.silent_since is None) and not process_scan.is_alive(pod.proc):
        # A stopped supervisor sees nothing, like one that has ended.
        reason = SILENT if state.is_supervised else UNSUPERVISED
        phase, message = Phase.UNKNOWN, "it has ended, and no supervisor has seen how"
    elif pod.proc is not None and process_scan.is_stopped(pod.proc):
        reason = STOPPED
        message = f"it was stopped (SIGSTOP): `kill -CONT {pod.proc.pid}` lets it go on"
    return replace(
        _planned_view(state, pod.uid, pod.plan, node, pod.created),
        phase=phase,
        reason=reason,
        message=message,
        ready=phase is Phase.RUNNING and pod.proc is not None and reason != STOPPED,
        restarts=pod.restarts,
        started=pod.started,
        ended=pod.ended if phase.is_over else None,
        exit_code=pod.exit_code,
        is_terminating=pod.is_terminating,
        pid=pod.proc.pid if pod.proc else None,
    )


def _planned_view(state: RunState, uid: str, plan: PodPlan, node: str, created: float) -> PodView:
    owner, seed = (state.record.owner, state.record.spec.seed) if state.record else ("", 0)
    return planned_view(plan, state.folder.name, owner, seed, uid=uid, node=node, created=created)
