"""Launching process of a learner's ranks: starts the ranks of its node, and restarts them after a loss.

It uses torch's launcher, and never touches a GPU. A learner of several nodes has one such process on each, with the
same settings. They meet like the nodes of an elastic job: node 0, which has rank 0, hosts the rendezvous. A round
needs all nodes. When a rank or a node is lost, every node ends its ranks, and the next round begins.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import fields
from multiprocessing import forkserver, parent_process, set_forkserver_preload
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousClosedError
from torch.distributed.launcher import api

from runtime.base import addresses, contract
from runtime.base.addresses import keep_to_loopback
from runtime.base.errors import FailedError, SetupError, first_line
from runtime.base.metrics import Console
from runtime.base.processes import exponential_delay, in_thread, name_process, shell_exit_code
from runtime.base.signals import Stop
from runtime.rendezvous.handler import RendezvousHandler, configuration
from runtime.rendezvous.plan import NodePlan
from runtime.rendezvous.round_state import FINISHED, RoundState, StateError
from runtime.rendezvous.session import RendezvousSession
from runtime.rendezvous.shared_values import MemoryValues, connect, hosted
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.roles.launch_context import Context, plan_of
from runtime.rl.roles.ranks import STORE_VARIABLE

_FINAL: Final = "-ended-"
"""In the name of a file by which a rank reports its exit code."""
_PID: Final = "-pid-"
"""In the name of a file by which a rank reports its process id."""
_NAME: Final = "l2r rank "
"""Prefix of the name of a rank's process."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
SHUTDOWN_SECONDS: Final = 15
"""Longest time from a signal until rank 0 has written its last checkpoint."""
NODE_SHUTDOWN_SECONDS: Final = 8
"""The same for ranks of other nodes, whose state rank 0 needs for its checkpoint when the whole run ends."""
FAREWELL_SECONDS: Final = 5.0
"""Longest time for which node 0 waits until the others know that the run is done."""
LOOPBACK: Final = "127.0.0.1"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
"""Pauses after starts that wrote no checkpoint; there is no pause after others."""
AGAIN_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.1
SAY_SECONDS: Final = 15.0
STOPPED_SECONDS: Final = 10
"""How long a rank may be stopped by a signal before it is killed: until then the others wait for it."""


def are_wanted(context: Context) -> bool:
    """Return True if this process is to start ranks: its learner has several, and it is not a rank itself."""
    return (context.settings.devices > 1 or context.nodes > 1) and STORE_VARIABLE not in os.environ


def launch(
    context: Context,
    checkpoints: Checkpoints,
    main: Callable[[Sequence[str]], int],
    arguments: list[str],
    stop: Stop,
    console: Console,
) -> int:
    """Run this node's ranks until the learner is done; return its exit code.

    Each rank calls ``main`` with the arguments.

    Raises SetupError, and FailedError if the address of the rendezvous is in use.
    """
    count, nodes = context.settings.devices, context.nodes
    if count % nodes:
        raise SetupError(
            f"devices is {count}, and this learner has {nodes} nodes with equal numbers of ranks; write a multiple "
            f"of {nodes} (learner.nodes and learner.gpus set devices)"
        )
    set_forkserver_preload(["runtime.rl.roles.learner", __name__])
    plan_of(context.settings)  # before any process starts: settings without equal shares are refused
    # A TCP store would accept connections of every user of this machine; one node's ranks meet in a private folder.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in ("", ".agent.server.api"):  # the console reports the same below, in one line
        logging.getLogger(f"torch.distributed.elastic{name}").setLevel(logging.CRITICAL)
    if stop.is_set():
        return contract.EXIT_DONE
    with tempfile.TemporaryDirectory(prefix="l2r-ranks-") as name, _raising_signals():
        folder = Path(name)
        node: LearnerNode = (
            OneNode(folder) if nodes == 1 else NodeOfSeveral(os.environ, nodes, count // nodes, console)
        )
        keep_to_loopback(node.address)
        try:
            with node.hosting():
                return _attend(node, count, count // nodes, folder, (main, arguments), checkpoints, console)
        except SignalException:
            return node.code_after_signal


@contextmanager
def _raising_signals() -> Iterator[None]:
    """Raise SignalException at SIGTERM, as torch's launcher does once it has started processes."""

    def raise_signal(number: int, _frame: FrameType | None) -> NoReturn:
        raise SignalException(f"asked to end by signal {number}", sigval=signal.Signals(number))

    before = {number: signal.signal(number, raise_signal) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attend(
    node: LearnerNode,
    count: int,
    own: int,
    folder: Path,
    entry: tuple[Callable[[Sequence[str]], int], list[str]],
    checkpoints: Checkpoints,
    console: Console,
) -> int:
    """Start ranks, ``own`` of ``count`` on this node, again and again until the learner is done."""
    failures, newest = 0, checkpoints.names()[-1:]
    start = 0
    while True:
        group = f"{folder}/group-{start}"
        processes = RankProcesses(group, console)
        # It keeps the mask: a signal to the whole process group must not end it, and its forks with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        try:
            with processes.watched(), node.meeting(start, processes) as rendezvous:
                config = _configuration(node, own, start, folder, rendezvous)
                api.elastic_launch(config, _run_rank)(group, *entry)
            if node.has_ended:
                return contract.EXIT_DONE
        except ChildFailedError as error:
            if (final := _final_code(group)) is not None:
                return final
            codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
            before, newest = newest, checkpoints.names()[-1:]
            failures = failures + 1 if newest == before else 0
            ended = ", ".join(f"rank {rank} with code {shell_exit_code(code)}" for rank, code in codes.items())
            console.say(f"ended: {ended}; all {count} ranks start again from the newest checkpoint")
            time.sleep(exponential_delay(failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
        start += 1


def _configuration(
    node: LearnerNode, own: int, start: int, folder: Path, rendezvous: Mapping[str, Any]
) -> api.LaunchConfig:
    # The launcher of torch before 2.12 lacks this setting, and waits for 30 seconds.
    has_grace = any(field.name == "shutdown_timeout" for field in fields(api.LaunchConfig))
    grace: dict[str, Any] = {"shutdown_timeout": node.shutdown_seconds} if has_grace else {}
    return api.LaunchConfig(
        min_nodes=node.num_nodes,
        max_nodes=node.num_nodes,
        nproc_per_node=own,
        run_id=f"ranks-{start}",
        max_restarts=0,  # torch counts over the whole life of a node
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=f"{folder}/logs"),
        local_addr=node.address,
        # Ranks are forks of a process that has imported torch: that takes 4 s of CPU, which each start of a rank
        # would pay again.
        start_method="forkserver",
        **rendezvous,
        **grace,
    )


def _run_rank(store: str, main: Callable[[Sequence[str]], int], arguments: list[str]) -> None:
    """Run one rank; a fork of the process that has imported torch."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    os.environ[STORE_VARIABLE] = store
    name_process(f"{_NAME}{os.environ['RANK']}")
    Path(f"{store}{_PID}{os.getpid()}").touch()
    try:
        code = main(arguments)
    except Exception:  # noqa: BLE001  (printed as without the launcher, which would keep it in a file)
        traceback.print_exc()
        code = 1
    if code:
        # The launcher knows one rank's exit code only, and that rank may have ended because of this one.
        Path(f"{store}{_FINAL}{code}").touch()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _final_code(store: str) -> int | None:
    """Return the code with which a rank has ended all; None if one was lost."""
    return min(_numbers(store, _FINAL), default=None)


def _numbers(store: str, kind: str) -> list[int]:
    """Return the numbers that ranks have reported by files of one kind."""
    path = Path(store)
    return [int(file.name.rpartition(kind)[2]) for file in path.parent.glob(f"{path.name}{kind}*")]


def _end_with_launcher() -> None:
    """End this rank when the launching process ends; it is not the parent, so the kernel sends no signal."""
    if (launcher := parent_process()) is not None:
        wait([launcher.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


class RankProcesses:
    """Processes of this node's ranks."""

    def __init__(self, group: str, console: Console) -> None:
        self._group, self._console = group, console
        self._stopped: Counter[int] = Counter()
        """Seconds for which each was stopped, by process id."""

    def kill(self) -> None:
        """Kill all: they have nothing to save, and may be waiting for a lost rank."""
        for pid in _numbers(self._group, _PID):
            _kill_rank(pid)

    def kill_stopped(self) -> None:
        """Kill ranks that were stopped by a signal and do not go on; called every second.

        The kernel says which are: a heartbeat of a rank's own would be late when its computation keeps Python's
        lock. Each call counts as one second, however long this process was itself stopped before it.
        """
        for pid in _numbers(self._group, _PID):
            self._stopped[pid] = self._stopped[pid] + 1 if _state_of_rank(pid) == "T" else 0
            if self._stopped[pid] == STOPPED_SECONDS:
                self._console.say(f"process {pid} of a rank was stopped by a signal: it is killed")
                _kill_rank(pid)

    def watched(self) -> AbstractContextManager[None]:
        """Look for stopped ranks in a thread, once a second."""
        return in_thread("stopped ranks", self.kill_stopped, 1.0)


def _kill_rank(pid: int) -> None:
    if _state_of_rank(pid) or sys.platform != "linux":
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _state_of_rank(pid: int) -> str:
    """Return the kernel's letter for the state of a rank's process; empty for other processes, and if unknown."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")
    except OSError:
        return ""
    return rest.split()[0] if f"({_NAME}" in name else ""


# --- where ranks meet ---------------------------------------------------------------------------------------
class LearnerNode(Protocol):
    """This node among all of the learner.

    Attributes:
        address: At which other nodes reach it.
        shutdown_seconds: Longest time of its ranks after a signal. code_after_signal: exit code then.
        has_ended: The run is done.
    """

    num_nodes: int
    address: str
    shutdown_seconds: int
    code_after_signal: int
    has_ended: bool

    def hosting(self) -> AbstractContextManager[None]:
        """Host the rendezvous if it is this node's."""

    def meeting(self, start: int, processes: RankProcesses) -> AbstractContextManager[Mapping[str, Any]]:
        """Give the launcher's fields for one start of all ranks; lost nodes end it without an error."""


class OneNode:
    """The only node: its ranks meet in a private folder."""

    num_nodes, address, shutdown_seconds, code_after_signal = 1, LOOPBACK, SHUTDOWN_SECONDS, contract.EXIT_DONE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.has_ended = False

    def hosting(self) -> AbstractContextManager[None]:
        """Host nothing."""
        return nullcontext()

    @contextmanager
    def meeting(self, start: int, processes: RankProcesses) -> Iterator[Mapping[str, Any]]:
        """Give the launcher's fields for one start."""
        del processes
        endpoint = f"{self._folder}/store-{start}"
        yield {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "rdzv_configs": {"store_type": "file"}}
        self.has_ended = True


class NodeOfSeveral:
    """One of several nodes, which meet at node 0."""

    def __init__(self, environ: Mapping[str, str], num_nodes: int, own_ranks: int, console: Console) -> None:
        index, name = addresses.index(environ), addresses.own_set(environ, "learner")
        self._plan = NodePlan.from_environment(
            environ, set_name=name, min_nodes=num_nodes, max_nodes=num_nodes, place=index
        )
        self._own_ranks, self._console = own_ranks, console
        self._values = MemoryValues() if index == 0 else None
        self._last_sentence = float("-inf")
        self.num_nodes, self.address, self.has_ended = num_nodes, self._plan.local_address, False
        self.shutdown_seconds = NODE_SHUTDOWN_SECONDS if index else SHUTDOWN_SECONDS
        # Only node 0 ends in order at a signal, with a checkpoint; the work of another is not done.
        self.code_after_signal = contract.EXIT_INTERRUPTED if index else contract.EXIT_DONE

    def hosting(self) -> AbstractContextManager[None]:
        """Host the rendezvous if this is node 0. Raises FailedError if its address is in use."""
        return nullcontext() if self._values is None else hosted(self._plan, self._values)

    @contextmanager
    def meeting(self, start: int, processes: RankProcesses) -> Iterator[Mapping[str, Any]]:
        """Give the launcher's fields for one start. Raises FailedError if another version hosts the rendezvous."""
        del start
        try:
            with nullcontext(self._values) if self._values is not None else connect(self._plan) as values:
                session = RendezvousSession(values, self._plan, self._own_ranks, self._console)
                session.start()
                try:
                    with closing(_Rounds(session, self._plan, self._report, processes)) as handler:
                        yield configuration(handler)
                    self.has_ended = self._is_done(session)
                finally:
                    session.leave()
        except RendezvousClosedError:  # this node comes late
            self.has_ended = True
        except StateError as error:
            raise FailedError(f"{error}; do all nodes run the same image?") from error
        except (OSError, DistError) as error:
            if time.monotonic() - self._last_sentence >= SAY_SECONDS:
                self._last_sentence = time.monotonic()
                self._console.say(f"waits for the other nodes of the learner: {first_line(error)}")
            time.sleep(AGAIN_SECONDS)

    def _is_done(self, session: RendezvousSession) -> bool:
        """Node 0: tell the others that the run is done. Others: return whether it is.

        The others' ranks also end in order when node 0 gets a signal: then they wait for its next start.
        """
        if self._values is None:
            while not (end := session.end_of_job()) and not session.is_round_over():
                time.sleep(_LOOK_SECONDS)
            return bool(end or session.end_of_job())
        session.finish(FINISHED)
        deadline = time.monotonic() + FAREWELL_SECONDS
        while not session.is_alone and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return True

    def _report(self, state: RoundState | None, own: int) -> None:
        if state is None:
            self._console.say(f"waits until all {self.num_nodes} nodes of the learner are there")
            return
        first = own * self._own_ranks
        ranks = f"rank {first}" if self._own_ranks == 1 else f"ranks {first} to {first + self._own_ranks - 1}"
        self._console.say(f"round {state.round}: {self.num_nodes} nodes are there, {ranks} here")


class _Rounds(RendezvousHandler):
    """Rounds of a learner's nodes: when a round ends, the ranks are killed."""

    def __init__(
        self,
        session: RendezvousSession,
        plan: NodePlan,
        report: Callable[[RoundState | None, int], None],
        processes: RankProcesses,
    ) -> None:
        super().__init__(session, plan, report)
        self._processes = processes

    def num_nodes_waiting(self) -> int:
        """Return 1 if the round is over, else 0, and kill the ranks after a round. Raises the session's errors."""
        is_over = 1
        try:
            is_over = super().num_nodes_waiting()
        finally:
            if is_over:
                self._processes.kill()
        return is_over
