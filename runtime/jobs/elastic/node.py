"""One node of an elastic job, from its first rendezvous to the end.

torchrun ends if the rendezvous is briefly unavailable, and restarting a pod is slow. This node waits and joins the
rendezvous again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import torch
from torch.distributed import DistError
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from runtime.base import contract
from runtime.base.addresses import keep_to_loopback
from runtime.base.atomic_files import try_lock
from runtime.base.cli_options import program
from runtime.base.errors import FailedError, first_line
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.exchange.transport.request_reply import RefusedKeysError
from runtime.jobs.elastic.plan import ElasticPlan
from runtime.rendezvous.handler import GivenUpError, RendezvousHandler, configuration
from runtime.rendezvous.round_state import FAILED, FINISHED, RoundState, StateError
from runtime.rendezvous.session import RendezvousSession
from runtime.rendezvous.shared_values import SharedValues, connect

SHUTDOWN_SECONDS: Final = 3
"""Grace period of a program after SIGTERM. It may hang in a collective operation, where no handler runs."""
MONITOR_SECONDS: Final = 0.25
_NO_LIMIT: Final = 1_000_000
"""Our handler counts restarts per membership; torch counts them over the life of a node."""
_PREFIX: Final = "l2r-elastic-"
AGAIN_SECONDS: Final = 0.5
REFUSED_SECONDS: Final = 10.0
"""How long connections must be refused before a node concludes that its token is wrong."""
SAY_SECONDS: Final = 15.0
MET_AGAIN_SECONDS: Final = 1.0


def num_processes(plan: ElasticPlan) -> int:
    """Return the processes of this node: the configured number, or one per GPU that torch finds, at least one."""
    return plan.processes or max(1, torch.cuda.device_count())


def sharing(processes: int, gpus: int) -> str:
    """Return a sentence if processes of a node have to share its GPUs; empty if not."""
    if not 0 < gpus < processes:
        return ""
    return (
        f"{processes} processes for {gpus} GPU{'s' * (gpus > 1)}: NCCL takes one process for each GPU; "
        f"leave --nproc-per-node out, or train with --device cpu"
    )


def run_program(handler: RendezvousHandler, plan: ElasticPlan, processes: int, log_folder: str) -> None:
    """Run the plan's program in each round until it has ended on all nodes.

    Raises ChildFailedError, and the handler's errors.
    """
    argv = program(plan.command)
    config = LaunchConfig(
        min_nodes=plan.min_nodes,
        max_nodes=plan.max_nodes,
        nproc_per_node=processes,
        run_id=plan.run_id,
        role="default",
        **configuration(handler),
        max_restarts=_NO_LIMIT,
        monitor_interval=MONITOR_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=log_folder),
        local_addr=plan.local_address,
        **_grace(),
    )
    elastic_launch(config, argv[0])(*argv[1:])


def _grace() -> dict[str, Any]:
    # The launcher of torch before 2.12 lacks this setting; a program that ignores SIGTERM gets 30 seconds.
    has_it = any(field.name == "shutdown_timeout" for field in fields(LaunchConfig))
    return {"shutdown_timeout": SHUTDOWN_SECONDS} if has_it else {}


@contextlib.contextmanager
def node_folder() -> Iterator[Path]:
    """Create the folder, and remove it at the end."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # no locks on this file system: then nothing is swept either
                try_lock(descriptor)
            # Locked before it is complete: `_sweep` of a node that starts at the same time removes only complete
            # folders.
            for part in ("logs", "state"):
                (folder / part).mkdir()
            yield folder
        finally:
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove folders of this user's dead nodes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            is_ours = folder.stat(follow_symlinks=False).st_uid == os.getuid() and (folder / "state").is_dir()
            if is_ours and _is_unlocked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_unlocked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def run(plan: ElasticPlan, stop: Stop, console: Console) -> int:
    """Train to the end and return the exit code. Raises SetupError and FailedError."""
    if stop.is_set():
        return contract.EXIT_INTERRUPTED
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    keep_to_loopback(plan.local_address)
    # Changes of membership are normal here, and torch warns about each.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_signal)
    try:
        with node_folder() as folder:
            os.environ[contract.ENV_NODE_DIR] = str(folder / "state")
            return _Node(plan, folder / "logs", console).run()
    except SignalException as error:
        console.record(record("elastic", {"state": "left"}))
        console.say(f"this node leaves the training on {error.sigval.name}")
        return contract.EXIT_INTERRUPTED


def _raise_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SignalException(f"asked to end by signal {number}", sigval=signal.Signals(number))


class _Node:
    """State of a node across the rendezvous that it joins."""

    def __init__(self, plan: ElasticPlan, log_folder: Path, console: Console) -> None:
        self._plan = plan
        self._logs = log_folder
        self._console = console
        self._processes = num_processes(plan)
        self._last_sentence = float("-inf")
        self._has_met = False
        self._refused_since: float | None = None

    def run(self) -> int:
        """Join a rendezvous, repeatedly, until the training has ended."""
        if sentence := sharing(self._processes, torch.cuda.device_count()):
            self._console.say(sentence)
        while True:
            if self._plan.is_done():
                return self._over(FINISHED)
            try:
                with connect(self._plan) as values:
                    code = self._train(values)
            except OSError as error:
                self._check_refusal(error)
                self._say_now_and_then(f"waiting for the rendezvous: {first_line(error)}")
                time.sleep(AGAIN_SECONDS)
                continue
            if code is not None:
                return code
            time.sleep(MET_AGAIN_SECONDS)

    def _check_refusal(self, error: OSError) -> None:
        """Raise FailedError if the rendezvous has refused this node's token for a while and never accepted it."""
        # Not at once: a proxy that accepts connections before the rendezvous is up looks the same. And not after a
        # first meeting: then something else answers at the rendezvous's address during its restart.
        if self._has_met or not isinstance(error, RefusedKeysError):
            self._refused_since = None
            return
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since >= REFUSED_SECONDS:
            raise FailedError(f"{error}; is {contract.ENV_TOKEN_FILE} the same at all nodes?") from error

    def _train(self, values: SharedValues) -> int | None:
        """Train with one rendezvous; return the exit code, or None to join again."""
        session = RendezvousSession(values, self._plan, self._processes, self._console)
        try:
            word = session.end_of_job()
            self._has_met = True
            if word:
                return self._over(word)
            session.start()
            with contextlib.closing(RendezvousHandler(session, self._plan, self._report)) as handler:
                run_program(handler, self._plan, self._processes, str(self._logs))
        except SignalException:
            session.leave()
            raise
        except rendezvous.RendezvousClosedError:
            return self._over(session.end_of_job())
        except StateError as error:
            raise FailedError(f"{error}; do all nodes run the same image?") from error
        except DistError as error:  # a value that another node had to write did not arrive
            self._console.say(f"the round did not come about: {first_line(error)}")
            session.leave()
            return None
        except (ChildFailedError, GivenUpError):
            return self._finish(session, FAILED)
        finally:
            session.close()
        return self._finish(session, FINISHED)

    def _finish(self, session: RendezvousSession, word: str) -> int:
        """Tell the other nodes how the program ended here, and return the exit code."""
        if word == FINISHED:
            self._plan.mark_done()
        with contextlib.suppress(OSError, StateError):
            session.finish(word)
        return self._over(word)

    def _over(self, word: str) -> int:
        self._console.record(record("elastic", {"state": word}))
        if word == FINISHED:
            self._console.say("the training has finished")
            return contract.EXIT_DONE
        raise FailedError("the training was given up: its program failed too often, or the rendezvous was closed")

    def _report(self, state: RoundState | None, own: int) -> None:
        """Record the state of this node: waiting, or training in a round."""
        names = ("nodes", "rank", "world_size", "round")
        if state is None:
            self._console.record(record("elastic", {"state": "waiting", **dict.fromkeys(names)}))
            self._console.say("waiting for the nodes of the next round")
            return
        first = sum(member.processes for member in state.members[:own])
        world_size = sum(member.processes for member in state.members)
        fields = dict(zip(names, (len(state.members), first, world_size, state.round), strict=True))
        self._console.record(record("elastic", {"state": "training", **fields}))
        self._console.say(
            f"round {state.round}: {len(state.members)} nodes, {world_size} processes, "
            f"{self._processes} of them here from rank {first}"
        )

    def _say_now_and_then(self, sentence: str) -> None:
        if time.monotonic() - self._last_sentence >= SAY_SECONDS:
            self._last_sentence = time.monotonic()
            self._console.say(sentence)
