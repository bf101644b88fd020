"""What the state files hold: what is wanted of a run, and what is."""

from __future__ import annotations

import msgspec

from l2rtui.domain.plan import PodPlan
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import RunSpec

FORMAT = 1
"""Version of these files; another one is refused as unreadable instead of being misread."""


class Proc(msgspec.Struct, frozen=True):
    """A process for certain: its id, and when it started as the kernel writes it (see ``processes.start_of``)."""

    pid: int
    start: str


class PodWish(msgspec.Struct, frozen=True):
    """One replica that is wanted. Its first pod has the wish's uid; a replacement gets another."""

    uid: str
    plan: PodPlan
    created: float


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a run: ``run.json``.

    Attributes:
        spec: With the present replicas.
        node, boot: The machine that it was launched on and its boot, for state folders that machines share.
        cwd: Working folder of the processes: where the run was launched from.
        endpoint: Where the learner listens. socket_dir: the folder of its sockets.
        ports: TCP ports of this machine that were chosen for replicas, by name of the pod.
        volume: What stands at /l2r in place of the run's own data folder; empty for that.
        backoff_seconds, log_max_bytes: As the settings said at the launch.
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
    pods: tuple[PodWish, ...]
    backoff_seconds: float
    log_max_bytes: int
    ports: dict[str, int] = {}
    volume: str = ""


class PodRecord(msgspec.Struct, kw_only=True):
    """One pod as its supervisor sees it.

    Attributes:
        wish: Uid of the PodWish that it fulfils.
        proc: Its process while one runs. serial: the number of its log file.
        failures: Restarts in a row, for the back-off.
        next_start: When it is started again, seconds since the epoch.
        kill_at: When SIGTERM is followed by SIGKILL, by ``time.monotonic()``: no change of the date moves it, and
            all processes of one boot share that clock.
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
    proc: Proc | None = None
    serial: int = -1
    exit_code: int | None = None
    started: float | None = None
    next_start: float | None = None
    is_terminating: bool = False
    kill_at: float | None = None


class RunStatus(msgspec.Struct, kw_only=True):
    """What is: ``status.json``.

    Attributes:
        supervisor: Who wrote this; it no longer runs when ``is_ended``.
        is_ended: Every pod is over and the supervisor has ended in order.
        problem: What the supervisor could not do, one sentence.
    """

    format: int = FORMAT
    run: str
    supervisor: Proc
    is_ended: bool = False
    is_destroying: bool = False
    problem: str = ""
    pods: list[PodRecord] = []


class StopRequest(msgspec.Struct, frozen=True):
    """Stop a pod, or all of them; grace None stands for what its set says."""

    grace_seconds: float | None = None
