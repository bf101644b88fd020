"""The rendezvous of an elastic job: values that its nodes share, in this process or in an etcd.

A separate process, and not one of the nodes: whichever node dies, the others still find each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from runtime.base import addresses, contract
from runtime.base.cli_options import run_folder, run_id
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.exchange.transport.request_reply import ReplySocket
from runtime.jobs.steps.run import StepMarkers, checked_name
from runtime.rendezvous.plan import checked_token, meeting_point
from runtime.rendezvous.round_state import FAILED, StateError, decode_state, state_key
from runtime.rendezvous.shared_values import MemoryValues, SharedValues, answer, listening, running_etcd

POLL_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 5.0
"""How long it keeps running after the job has ended, so that late nodes still learn of the end."""
SAY_SECONDS: Final = 60.0
Check = Callable[[], None]
"""Raises FailedError if the process that stores the values has ended."""


def host(
    backend: str, set_name: str, port: int, until: str, environ: Mapping[str, str], stop: Stop, console: Console
) -> int:
    """Listen until the job has ended, and return the exit code. Raises SetupError, FailedError and OSError."""
    name = set_name or ((environ.get(contract.ENV_SET) or "") if environ.get(contract.ENV_PEERS) else "")
    endpoint = meeting_point(environ, name, addresses.index(environ) if name else 0)
    marks = StepMarkers(run_folder(environ) / "steps", run_id(environ)) if until else None
    if marks is not None and marks.is_done(checked_name(until)):
        console.say(f"step {until} is done: no node will join")
        return contract.EXIT_DONE
    token = checked_token(endpoint, environ)
    with listening(endpoint, port, token) as socket, _values(backend, stop) as (values, check):
        console.say(f"rendezvous {backend} at {socket.address} for {run_id(environ)}")
        service = _Service(socket, values, check, run_id(environ), console)
        return service.attend(marks, until, stop)


@contextlib.contextmanager
def _values(backend: str, stop: Stop) -> Iterator[tuple[SharedValues, Check]]:
    """Yield the nodes' shared values, and a function that checks whether they are lost."""
    if backend == "c10d":
        yield MemoryValues(), lambda: None
        return
    with running_etcd(stop) as server:
        yield server.values, server.check


class _Service:
    """Answers of a rendezvous, and its checks for the end of the job."""

    def __init__(self, socket: ReplySocket, values: SharedValues, check: Check, job: str, console: Console) -> None:
        self._socket, self._values, self._check, self._console = socket, values, check, console
        self._key = state_key(job)
        self._num_refused = 0
        self._last_sentence = float("-inf")

    def attend(self, marks: StepMarkers | None, until: str, stop: Stop) -> int:
        """Answer the nodes until the job has ended, and return the exit code."""
        over: float | None = None
        word = ""
        while not stop.is_set():
            if marks is not None and marks.is_done(until):
                self._console.say(f"step {until} is done")
                return contract.EXIT_DONE
            if over is None and (word := self._end()):
                over = time.monotonic()
                self._console.say(f"the training has {word}")
            if over is not None and time.monotonic() - over >= QUIET_SECONDS:
                return contract.EXIT_FAILED if word == FAILED else contract.EXIT_DONE
            self._serve(POLL_SECONDS)
            self._report_refusals()
        self._console.say(f"rendezvous ends on {stop.reason}")
        return contract.EXIT_DONE

    def _serve(self, seconds: float) -> None:
        """Answer nodes for some time: markers may be on a network volume, which is not read for each request."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._socket.serve(left, lambda request: answer(self._values, request))

    def _end(self) -> str:
        """Return how the job ended; an empty text while it is running. Raises FailedError."""
        try:
            return decode_state(self._values.read(self._key)).end
        except StateError:
            return ""  # written by another version of a node, which reports this itself
        except OSError:
            # An etcd may be slow on a busy machine, and if this process ended, its values would be lost.
            self._check()
            return ""

    def _report_refusals(self) -> None:
        refused = self._socket.refused_keys
        if refused > self._num_refused and time.monotonic() - self._last_sentence >= SAY_SECONDS:
            self._console.say(f"{refused - self._num_refused} connections without this run's token were refused")
            self._num_refused, self._last_sentence = refused, time.monotonic()
