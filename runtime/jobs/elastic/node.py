"""One node of an elastic job, from its first rendezvous to the end.

torchrun ends when the rendezvous is gone for a moment, and restarting a pod is slow. This node waits and joins the
rendezvous again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import time
from types import FrameType
from typing import Final, NoReturn

from torch.distributed import DistError
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.multiprocessing import SignalException

from runtime.base import contract
from runtime.base.errors import FailedError
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.jobs.elastic.agent import Agent
from runtime.jobs.elastic.completion_flag import FAILED, FINISHED
from runtime.jobs.elastic.plan import ElasticPlan
from runtime.jobs.elastic.rendezvous_client import RendezvousConnection, connect
from runtime.jobs.elastic.rendezvous_handler import RendezvousHandler

AGAIN_SECONDS: Final = 0.5
SAY_SECONDS: Final = 15.0
MET_AGAIN_SECONDS: Final = 1.0


def run(plan: ElasticPlan, stop: Stop, console: Console) -> int:
    """Train until the end and return the exit code. Raises SetupError and FailedError."""
    if stop.is_set():
        return contract.EXIT_INTERRUPTED
    # A node says where a round's first process listens, each round anew: the agent's own store would be kept beyond
    # the round, and the others would look for it at a node that is gone.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # All nodes run as many processes: ranks follow from that, and nobody waits for what another node writes.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Changes of membership are usual here, and torch warns of each.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _asked)
    try:
        with tempfile.TemporaryDirectory(prefix="l2r-elastic-") as folder:
            return _Node(plan, folder, console).run()
    except SignalException as error:
        console.record(record("elastic", {"state": "left"}))
        console.say(f"this node leaves the training on {error.sigval.name}")
        return contract.EXIT_INTERRUPTED


def _asked(number: int, _frame: FrameType | None) -> NoReturn:
    raise SignalException(f"asked to end by signal {number}", sigval=signal.Signals(number))


class _Node:
    """State of a node over the rendezvous that it goes to."""

    def __init__(self, plan: ElasticPlan, log_folder: str, console: Console) -> None:
        self._plan = plan
        self._logs = log_folder
        self._console = console
        self._said = float("-inf")

    def run(self) -> int:
        """Go to the rendezvous, again and again, until the training is over."""
        while True:
            if self._plan.is_done():
                return self._over(FINISHED)
            try:
                connection = connect(self._plan)
                code = self._train(connection)
            except (OSError, rendezvous.RendezvousConnectionError) as error:
                self._say_now_and_then(f"waiting for the rendezvous: {_short(error)}")
                time.sleep(AGAIN_SECONDS)
                continue
            if code is not None:
                return code
            # The rendezvous has just ended a round; joining at once would meet its closed state again.
            time.sleep(MET_AGAIN_SECONDS)

    def _train(self, connection: RendezvousConnection) -> int | None:
        """Train over one rendezvous; return the exit code, or None to go there again."""
        word = connection.completion_flag.read()
        if word is not None:
            return self._over(word)
        # A handler and an agent for each connection: torch keeps the state of a lost rendezvous in both.
        handler = RendezvousHandler.over(connection, self._plan)
        agent = Agent(handler, self._plan, self._logs, self._console)
        try:
            result = agent.run()
        except SignalException:
            handler.leave()
            raise
        except rendezvous.RendezvousTimeoutError:
            self._console.say(f"fewer than {self._plan.min_nodes} nodes are there: waiting on")
            handler.leave()
            return None
        except (rendezvous.RendezvousClosedError, rendezvous.RendezvousGracefulExitError):
            return self._closed(connection)
        except rendezvous.RendezvousStateError as error:
            raise FailedError(f"{error}; is {contract.ENV_TOKEN_FILE} the same at all nodes?") from error
        except (DistError, LookupError) as error:  # a value that another node had to write did not come
            self._console.say(f"the round did not come about: {_short(error)}")
            handler.leave()
            return None
        if result is None:  # a node beyond the most, when the others ended
            return self._closed(connection)
        word = FAILED if result.is_failed() else FINISHED
        if word == FINISHED:
            self._plan.mark_done()
        with contextlib.suppress(OSError):
            connection.completion_flag.write(word)
        handler.shutdown()
        return self._over(word)

    def _closed(self, connection: RendezvousConnection) -> int:
        """Return the exit code once the others have ended; the completion flag may still be to come."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if (word := connection.completion_flag.read()) is not None:
                    return self._over(word)
            if self._plan.is_done():
                return self._over(FINISHED)
            time.sleep(AGAIN_SECONDS)
        return self._over(FAILED)

    def _over(self, word: str) -> int:
        self._console.record(record("elastic", {"state": word}))
        if word == FINISHED:
            self._console.say("the training has finished")
            return contract.EXIT_DONE
        raise FailedError("the training was given up: its program failed too often, or the rendezvous was closed")

    def _say_now_and_then(self, sentence: str) -> None:
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            self._console.say(sentence)


def _short(error: BaseException) -> str:
    """The first line of an error, and of what caused it where it says only that."""
    cause = (
        error.__cause__ if isinstance(error, rendezvous.RendezvousConnectionError) and error.__cause__ else error
    )
    return (str(cause) or type(cause).__name__).splitlines()[0][:300]
