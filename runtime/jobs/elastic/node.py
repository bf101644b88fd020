"""One node of an elastic job, from meeting the others to the end, over rendezvous that come and go.

torchrun ends when the rendezvous is gone for a moment. A pod that ends is started anew, slowly; this one waits and
meets the others again.
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
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from runtime import contract
from runtime.commands import FailedError
from runtime.elastic.agent import Agent
from runtime.elastic.handler import Handler
from runtime.elastic.meeting import Meeting, connect
from runtime.elastic.notice import FAILED, FINISHED
from runtime.elastic.plan import Plan
from runtime.metrics import Console, record
from runtime.stopping import Stop

AGAIN_SECONDS: Final = 0.5
SAY_SECONDS: Final = 15.0
MET_AGAIN_SECONDS: Final = 1.0


def run(plan: Plan, stop: Stop, console: Console) -> int:
    """Train until the end and return the exit code. Raises UsageError and FailedError."""
    if stop.is_set():
        return contract.EXIT_INTERRUPTED
    # A node says where a round's first process listens, each round anew: the agent's own store would be kept beyond
    # the round, and the others would look for it at a node that is gone.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # All nodes run as many processes: ranks follow from that, and nobody waits for what another node writes.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # what is usual here is no warning
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

    def __init__(self, plan: Plan, log_folder: str, console: Console) -> None:
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
                meeting = connect(self._plan)
                code = self._train(meeting)
            except (OSError, RendezvousConnectionError) as error:
                self._say_now_and_then(f"waiting for the rendezvous: {_short(error)}")
                time.sleep(AGAIN_SECONDS)
                continue
            if code is not None:
                return code
            time.sleep(MET_AGAIN_SECONDS)

    def _train(self, meeting: Meeting) -> int | None:
        """Train over one rendezvous; return the exit code, or None to go there again."""
        word = meeting.notice.read()
        if word is not None:
            return self._over(word)
        handler = Handler.over(meeting, self._plan)
        agent = Agent(handler, self._plan, self._logs, self._console)
        try:
            result = agent.run()
        except SignalException:
            handler.leave()
            raise
        except RendezvousTimeoutError:
            self._console.say(f"fewer than {self._plan.least_nodes} nodes are there: waiting on")
            handler.leave()
            return None
        except (RendezvousClosedError, RendezvousGracefulExitError):
            return self._closed(meeting)
        except RendezvousStateError as error:
            raise FailedError(f"{error}; is {contract.ENV_TOKEN_FILE} the same at all nodes?") from error
        except (DistError, LookupError) as error:  # what a node was to write for the others did not come
            self._console.say(f"the round did not come about: {_short(error)}")
            handler.leave()
            return None
        if result is None:  # a node beyond the most, when the others ended
            return self._closed(meeting)
        word = FAILED if result.is_failed() else FINISHED
        if word == FINISHED:
            self._plan.mark_done()
        with contextlib.suppress(OSError):
            meeting.notice.write(word)
        handler.shutdown()
        return self._over(word)

    def _closed(self, meeting: Meeting) -> int:
        """The others are through; how, they have said, or are about to."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if (word := meeting.notice.read()) is not None:
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
    cause = error.__cause__ if isinstance(error, RendezvousConnectionError) and error.__cause__ else error
    return (str(cause) or type(cause).__name__).splitlines()[0][:300]
