"""One node of an elastic job, from its first rendezvous to the end.

torchrun ends if the rendezvous is briefly unavailable, and restarting a pod is slow. This node waits and joins the
rendezvous again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import torch
from torch.distributed import DistError
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from runtime.base import contract
from runtime.base.addresses import keep_to_loopback
from runtime.base.errors import FailedError, first_line
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.exchange.transport.request_reply import RefusedKeysError, RequestSocket
from runtime.jobs.elastic import launch
from runtime.jobs.elastic.node_folder import node_folder
from runtime.jobs.elastic.plan import ElasticPlan, node_address
from runtime.jobs.elastic.rendezvous_handler import GivenUpError, RendezvousHandler
from runtime.jobs.elastic.rendezvous_session import RendezvousSession
from runtime.jobs.elastic.round_state import FAILED, FINISHED, RoundState, StateError
from runtime.jobs.elastic.shared_values import LARGEST_BYTES, RemoteValues, SharedValues, keys_of


def connect(plan: ElasticPlan) -> RemoteValues:
    """Return the values at the rendezvous; reading them raises OSError while it is unreachable."""
    return RemoteValues(RequestSocket(node_address(plan.endpoint), LARGEST_BYTES, keys_of(plan.token)[1]))


AGAIN_SECONDS: Final = 0.5
REFUSED_SECONDS: Final = 10.0
"""How long connections must be refused before a node concludes that its token is wrong."""
SAY_SECONDS: Final = 15.0
MET_AGAIN_SECONDS: Final = 1.0


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
        self._processes = launch.num_processes(plan)
        self._last_sentence = float("-inf")
        self._has_met = False
        self._refused_since: float | None = None

    def run(self) -> int:
        """Join a rendezvous, repeatedly, until the training has ended."""
        if sentence := launch.sharing(self._processes, torch.cuda.device_count()):
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
                launch.run_program(handler, self._plan, self._processes, str(self._logs))
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
