"""What a worker and an evaluator have in common: one session with the learner, and its newest weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from runtime.algos.actor import ActorShape, NumpyActor
from runtime.channels import PeerChannel, Port
from runtime.contract import PROTOCOL_VERSION
from runtime.framing import decode, digest, encode
from runtime.messages import Current, Evaluation, Get, Hello, Message, ProtocolError, Trajectory, Weights
from runtime.metrics import Console, Rate
from runtime.process import Context, RefusedError, incarnation
from runtime.session import Outgoing, Session

PULL_SECONDS: Final = 2.0
"""After this long a request for weights is taken for lost and made again."""


class Peer(AbstractContextManager["Peer"]):
    """One process beside the learner. Call `exchange` often: at least once a second, whatever else goes on."""

    def __init__(
        self, context: Context, shape: ActorShape, transition_bytes: int, segment_transitions: int, console: Console
    ) -> None:
        born = incarnation()
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            run=context.run,
            run_id=context.run_id,
            token=context.token,
            role=context.role,
            pod=context.pod,
            incarnation=born,
            oldest=1,
            environment=context.settings.environment,
            obs_dim=shape.obs_dim,
            act_dim=shape.act_dim,
            actor_floats=shape.size,
            transition_bytes=transition_bytes,
            segment_transitions=segment_transitions,
        )
        self.session = Session(hello)
        self.actor = NumpyActor(shape)
        self.policy_version = 0
        """Of the weights in `actor`; 0 while there are none."""
        self.env_steps = 0
        """Steps of the environment that this process has taken; its owner counts."""
        self._pulled = 0, 0
        """(epoch, version) of the newest weights that arrived."""
        self._waiting: tuple[int, NDArray[np.float32]] | None = None
        self._asked = float("-inf")
        self._console = console
        self._rate = Rate(time.monotonic(), 0)
        self._rate_now = 0.0
        self._channel = PeerChannel(context.endpoint, f"{context.pod}.{born}".encode()[:255], 4 * shape.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    # --- what the owner's loop asks ---
    @property
    def finished(self) -> str | None:
        """Why the learner ended the run, or None while it goes on."""
        return self.session.done

    @property
    def is_too_old(self) -> bool:
        """Whether collecting with the present weights would only be refused."""
        return self.session.policy_version - self.policy_version > self.session.max_policy_lag

    def exchange(self, timeout_seconds: float) -> None:
        """Send what is due and take what has come, waiting up to `timeout_seconds` for the first of it.

        Raises RefusedError if the learner does not want this process.
        """
        self._send_due()
        for inbound in self._channel.poll(timeout_seconds):
            try:
                message, arena = decode(inbound.frames)
                self._take(message, arena)
            except ProtocolError as error:
                self._console.say(f"the learner sent something that is no message: {error}")
        for note in self.session.notes:
            self._console.say(note)
        self.session.notes.clear()
        if self.session.refused is not None:
            raise RefusedError(f"the learner refused {self.session.hello.pod}: {self.session.refused.reason}")
        self._send_due()

    def adopt(self) -> None:
        """Put the newest weights that arrived into `actor`; `exchange` does not, so one can be kept."""
        if self._waiting is None:
            return
        version, arena = self._waiting
        self._waiting = None
        try:
            self.actor.load(arena)
        except ValueError as error:
            self._console.say(f"policy version {version} is not used: {error}")
        else:
            self.policy_version = version

    def offer(self, segment: Trajectory, arena: memoryview) -> None:
        """Queue a segment for the learner."""
        self.session.offer(segment, arena)

    def report(self, evaluation: Evaluation) -> None:
        """Send an evaluation; while no learner listens it is only in the log."""
        outgoing = self.session.evaluation(evaluation)
        if outgoing is not None:
            self._send([outgoing])

    def leave(self, reason: str) -> None:
        """Say goodbye."""
        self._send(self.session.farewell(reason))

    # --- inside ---
    def _send_due(self) -> None:
        now = time.monotonic()
        self._send(self.session.outgoing(now, self.env_steps, self._rate_now, self.policy_version))
        wanted = (self.session.epoch, self.session.policy_version)
        if self.session.is_joined and wanted > self._pulled and wanted[1] and now - self._asked > PULL_SECONDS:
            get = Get(self.session.hello.token, *self._pulled)
            if self._channel.send(Port.MODEL, encode(get)):
                self._asked = now

    def steps_per_second(self) -> float:
        """Return the rate of `env_steps` since the last call; the pings carry it on."""
        self._rate_now = self._rate.look(time.monotonic(), self.env_steps)
        return self._rate_now

    def _send(self, messages: Sequence[Outgoing]) -> None:
        for each in messages:
            if not self._channel.send(Port.DATA, encode(each.message, each.arena)):
                self.session.unsent(each.message)
                return

    def _take(self, message: Message, arena: memoryview | None) -> None:
        match message:
            case Weights():
                assert arena is not None  # noqa: S101  (decode has seen to it)
                self._asked = float("-inf")
                self._keep(message, arena)
            case Current():
                self._asked = float("-inf")
                self._pulled = max(self._pulled, (message.epoch, message.policy_version))
            case _:
                self.session.receive(time.monotonic(), message)

    def _keep(self, weights: Weights, arena: memoryview) -> None:
        if arena.nbytes != 4 * weights.floats or digest(arena) != weights.digest:
            raise ProtocolError(f"the weights of version {weights.policy_version} are damaged")
        self._pulled = weights.epoch, weights.policy_version
        self._waiting = weights.policy_version, np.frombuffer(bytes(arena), dtype=np.float32)
