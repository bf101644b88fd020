"""State files: the desired and the observed state of a run, written atomically and validated when they are read.

Field names are the names on disk. Calls block, but the files are small.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from l2rtui.domain.plan import PodPlan
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import RunSpec
from runtime.base import atomic_files, bounded_json

FORMAT = 1
"""Version of these files; other versions are refused as unreadable instead of being misread."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Pid and start time, which together identify one process; see ``process_scan.start_time_of``."""

    pid: int
    start: str


class DesiredPod(msgspec.Struct, frozen=True):
    """One replica that should run. Its first pod has this uid; a replacement gets another."""

    uid: str
    plan: PodPlan
    created: float


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state of a run: ``run.json``.

    Attributes:
        spec: Spec with the current numbers of replicas.
        node, boot: Node on which it was launched, and its boot id, for state folders that nodes share.
        cwd: Working folder of the processes, from which the run was launched.
        endpoint: Address of the learner. socket_dir: Folder of its sockets.
        ports: TCP ports of this node that were chosen for replicas, by pod name.
        volume: Folder that is mounted at /l2r instead of the run's own data folder; empty for the latter.
        backoff_seconds, log_max_bytes: The settings at launch.
    """

    format: int = FORMAT
    uid: str
    spec: RunSpec
    owner: str
    node: str
    boot: str
    cwd: str
    created: float
    endpoint: str
    socket_dir: str
    pods: tuple[DesiredPod, ...]
    backoff_seconds: float
    log_max_bytes: int
    ports: dict[str, int] = {}
    volume: str = ""


class PodRecord(msgspec.Struct, kw_only=True):
    """Observed state of one pod.

    Attributes:
        wish: Uid of the DesiredPod that it implements.
        proc: Its process while one is running. serial: Number of its log file.
        failures: Number of consecutive restarts, for the back-off.
        ended: Time at which its last process ended, seconds since the epoch; None before, or if unknown.
        next_start: Time of the next start after a back-off, seconds since the epoch.
        kill_at: Deadline of SIGKILL after SIGTERM, by ``time.monotonic()``, which all processes of a boot share and
            no change of the date affects.
    """

    uid: str
    wish: str
    plan: PodPlan
    created: float
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    restarts: int = 0
    failures: int = 0
    proc: ProcessIdentity | None = None
    serial: int = -1
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    next_start: float | None = None
    is_terminating: bool = False
    kill_at: float | None = None


class AdoptedProcess(msgspec.Struct, frozen=True):
    """A process that outlived its parent and has cleared its environment.

    Attributes:
        pod_uid: Pod that started it, determined by the pipe that it prints to; empty if unknown.
    """

    proc: ProcessIdentity
    pod_uid: str = ""


class RunStatus(msgspec.Struct, kw_only=True):
    """Observed state of a run: ``status.json``.

    Attributes:
        supervisor: Writer of this file; it no longer runs if ``is_ended``.
        is_ended: Every pod has ended and the supervisor has ended in order.
        problem: The supervisor's latest problem, one sentence.
        limit_at: Time at which a limit ends the run, by ``time.monotonic()``; None without such a limit.
        ended_by: Limit that has ended it; otherwise empty.
        adopted: Untagged processes of the run, which the supervisor inherited when their parents ended.
    """

    format: int = FORMAT
    run: str
    supervisor: ProcessIdentity
    is_ended: bool = False
    is_destroying: bool = False
    problem: str = ""
    pods: list[PodRecord] = []
    limit_at: float | None = None
    ended_by: str = ""
    adopted: list[AdoptedProcess] = []


class StopRequest(msgspec.Struct, frozen=True):
    """Request to stop a pod, or all pods; without a grace the set's own applies."""

    grace_seconds: float | None = None


T = TypeVar("T")
_SIZE_LIMIT = 64 << 20
_LINE_BYTES = 4096


class CorruptError(ValueError):
    """The content of a state file is invalid."""


class UnreadableError(CorruptError):
    """The system does not give the content at the moment: for lack of descriptors, memory or rights."""


class NewerError(CorruptError):
    """A later version of this program wrote the file: it is left unchanged."""


def write_atomic(path: Path, value: object, *, sync: bool) -> None:
    """Replace a file by the JSON of a value: readers see the old file or the new one, never a part.

    Args:
        sync: Survive a power failure too. Desired state must; observed state is worthless after one.
    """
    data = msgspec.json.encode(value)
    atomic_files.write_atomic(path, data, is_durable=sync, is_shared=True, mode=0o600)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write every byte: a full disk or a signal may cut one write short."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read(path: Path, kind: type[T]) -> T:
    """Read a state file.

    Raises:
        FileNotFoundError: The file does not exist.
        CorruptError: It is not the JSON of such a value, or cannot be read.
        UnreadableError: The system does not give its content.
        NewerError: A later version of this program wrote it.
    """
    try:
        # A damaged file must not use up the memory of a supervisor.
        if path.stat().st_size > _SIZE_LIMIT:
            raise CorruptError(f"more than {_SIZE_LIMIT >> 20} MiB")
        value = bounded_json.decode(path.read_bytes(), kind)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_no_file = error.errno in (errno.EISDIR, errno.ELOOP)
        raise (CorruptError if is_no_file else UnreadableError)(str(error)) from error
    except ValueError as error:
        raise CorruptError(str(error)) from error
    if (version := getattr(value, "format", FORMAT)) != FORMAT:
        kind_of_error = NewerError if version > FORMAT else CorruptError
        raise kind_of_error(f"it has format {version}, and this version reads {FORMAT}")
    return value


def read_valid(path: Path, kind: type[T]) -> T | None:
    """Read a state file; None if it is missing or unreadable."""
    try:
        return read(path, kind)
    except (FileNotFoundError, CorruptError):
        return None


def read_line(path: Path) -> str:
    """Return the first line of a text file; empty if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_LINE_BYTES).decode("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def read_or_set_aside(path: Path, kind: type[T]) -> T | None:
    """Read a state file; None if it is missing, unreadable, or invalid and was set aside. Raises NewerError."""
    try:
        return read(path, kind)
    except (FileNotFoundError, UnreadableError):
        return None
    except NewerError:
        raise
    except CorruptError:
        with contextlib.suppress(OSError):
            set_aside(path)
        return None


def set_aside(path: Path) -> None:
    """Rename an unreadable file, so that it can be examined."""
    path.rename(path.with_name(f"{path.name}.corrupt-{time.time():.0f}"))
