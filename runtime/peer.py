"""What a worker and an evaluator have in common: one session with the learner, and its newest weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from runtime import memory
from runtime.algos.actor import ActorShape, NumpyActor
from runtime.arenas import gather
from runtime.channels import PeerChannel, Port
from runtime.contract import PROTOCOL_VERSION
from runtime.framing import Arena, Buffer, decode, encode
from runtime.layout import Layout
from runtime.memory import SharedMemoryError
from runtime.messages import (
    Current,
    Evaluation,
    Get,
    Hello,
    Message,
    ProtocolError,
    Ringed,
    Segments,
    Shared,
    Trajectory,
    Weights,
    Welcome,
)
from runtime.metrics import Console, Rate
from runtime.policy_store import BF2, F4, checksum, load
from runtime.process import Context, RefusedError, incarnation
from runtime.ring import RingWriter
from runtime.session import Outgoing, Session
from runtime.shelf import ShelfReader

PULL_SECONDS: Final = 2.0
"""After this long a request for weights is taken for lost and made again."""
REOPEN_SECONDS: Final = 6.0
"""After this long without an answer on a socket it is made anew: a damaged connection never comes back."""
DRAIN_SECONDS: Final = 1.0
"""How long a peer that ends waits at most for its last segments to be taken."""


class Peer(AbstractContextManager["Peer"]):
    """One process beside the learner. Call `exchange` often: at least once a second, whatever else goes on."""

    def __init__(
        self,
        context: Context,
        shape: ActorShape,
        layout: Layout,
        segment_transitions: int,
        console: Console,
        *,
        wants_weights: bool = True,
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
            layout=layout.text,
            actor_floats=shape.size,
            segment_transitions=segment_transitions,
        )
        self.session = Session(hello)
        self.actor = NumpyActor(shape)
        self._own = self.actor.weights
        """Memory of this process alone for weights; what is not written costs nothing."""
        self._lent: tuple[int, ShelfReader] | None = None
        """The version that `actor` uses on a shelf of the learner's, and the shelf."""
        self.policy_version = 0
        """Of the weights in `actor`; 0 while there are none."""
        self.env_steps = 0
        """Steps of the environment that this process has taken; its owner counts."""
        self._wants_weights = wants_weights
        """Not where the learner answers for its policy."""
        self._pulled = 0, 0
        """(epoch, version) of the newest weights that arrived."""
        self._waiting: tuple[int, tuple[str, memoryview] | ShelfReader] | None = None
        """Newer weights than those in `actor`, or the shelf from which they are to be copied."""
        self._shelf: ShelfReader | None = None
        self._place = memory.place()
        """Said to the learner as long as its memory can be read; empty otherwise."""
        self._asked = float("-inf")
        self._console = console
        self._rate = Rate(time.monotonic(), 0)
        self._rate_now = 0.0
        self._segment_bytes = segment_transitions * layout.item_bytes
        self._ring: RingWriter | None = None
        # An evaluator says how good a policy is, so it gets every bit of it.
        self._codec = BF2 if segment_transitions else F4
        self.name = f"{context.pod}.{born}".encode()[:255]
        """Unique among all processes of the run."""
        self._channel = PeerChannel(context.endpoint, self.name, 4 * shape.size, context.peer_keys())
        self._answered = dict.fromkeys(Port, time.monotonic())
        """When each socket last brought something, or had nothing to bring."""
        self._looked = time.monotonic()
        self._was_mistrusted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._drop_ring()
        self._use(self._own)
        if self._shelf is not None:
            self._shelf.close()

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
        for inbound in self._channel.poll(min(timeout_seconds, self.session.patience)):
            self._answered[inbound.port] = time.monotonic()
            try:
                message, arena = decode(inbound.frames)
                self._take(message, arena)
            except ProtocolError as error:
                self._console.say(f"the learner sent something that is no message: {error}")
        if self._channel.is_mistrusted and not self._was_mistrusted:
            self._was_mistrusted = True
            self._console.say(
                "the learner answers and does not accept this connection: give both the same token or key files"
            )
        for note in self.session.notes:
            self._console.say(note)
        self.session.notes.clear()
        if self.session.refused is not None:
            raise RefusedError(f"the learner refused {self.session.hello.pod}: {self.session.refused.reason}")
        self._send_due()

    @property
    def is_overtaken(self) -> bool:
        """Whether the learner writes over the weights in `actor`: what they gave just now is of two versions."""
        return self._lent is not None and not self._lent[1].holds(self._lent[0])

    def adopt(self, *, in_place: bool = False) -> None:
        """Put the newest weights that arrived into `actor`; `exchange` does not, so one can be kept.

        Those in the learner's memory are used where they are if `in_place`, so whoever asks for that asks
        `is_overtaken` after each use, and adopts anew if so.
        """
        newer = self._waiting or (self._lent if self.is_overtaken else None)
        self._waiting = None
        if newer is None:
            return
        version, source = newer
        try:
            if not isinstance(source, ShelfReader):
                load(*source, self._own)
                self._use(self._own)
            elif in_place:
                version, weights = source.newest()
                self._use(weights, (version, source))
            else:
                version = source.read(self._own)
                self._use(self._own)
        except SharedMemoryError:
            self._place, self._pulled, self.policy_version = "", (0, 0), 0  # what is in `actor` is of two versions
        except ValueError as error:
            self._console.say(f"policy version {version} is not used: {error}")
        else:
            self.policy_version = version
            self._pulled = self._pulled[0], max(self._pulled[1], version)

    def offer(self, segment: Trajectory, arena: Arena) -> None:
        """Queue a segment for the learner."""
        self.session.offer(segment, arena)

    def report(self, evaluation: Evaluation) -> None:
        """Send an evaluation; while no learner listens it is only in the log."""
        outgoing = self.session.evaluation(evaluation)
        if outgoing is not None:
            self._send([outgoing])

    def leave(self, reason: str) -> None:
        """Say goodbye, once the learner has what it gave credit for or does not take it in a moment."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.session.is_joined and self.session.unsettled and time.monotonic() < deadline:
            if self.session.done is not None or self.session.refused is not None:
                break
            self.exchange(0.05)
        self._send(self.session.farewell(reason))

    # --- inside ---
    def _send_due(self) -> None:
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        for port, answered in self._answered.items():
            if away > 1.0:  # it was we who did not listen
                self._answered[port] = now
            elif now - answered > REOPEN_SECONDS:
                self._answered[port] = now
                self._channel.reopen(port)
        self._send(self.session.outgoing(now, self.env_steps, self._rate_now, self.policy_version))
        wanted = (self.session.epoch, self.session.policy_version)
        if not self._wants_weights:
            self._answered[Port.MODEL] = now
        elif self.session.is_joined and wanted > self._pulled and wanted[1] and now - self._asked > PULL_SECONDS:
            get = Get(self.session.hello.token, *self._pulled, self._codec, self._place)
            if self._channel.send(Port.MODEL, encode(get)):
                self._asked = now
        elif wanted <= self._pulled or not self.session.is_joined:
            self._answered[Port.MODEL] = now  # nothing was asked for

    def steps_per_second(self) -> float:
        """Return the rate of `env_steps` since the last call; the pings carry it on."""
        self._rate_now = self._rate.look(time.monotonic(), self.env_steps)
        return self._rate_now

    def _send(self, messages: Sequence[Outgoing]) -> None:
        for number, each in enumerate(messages):
            if not self._channel.send(Port.DATA, self._frames(each)):
                for lost in messages[number:]:
                    self.session.unsent(lost.message)
                return

    def _frames(self, outgoing: Outgoing) -> list[Buffer]:
        """Return the frames of a message; its segments go into the ring if there is one, and else behind it."""
        message = outgoing.message
        if isinstance(message, Segments) and message.ring:
            assert self._ring is not None  # noqa: S101  (the session says ring only for one that it was brought)
            self._ring.put(message.seq, outgoing.arenas)
            return encode(message)
        return encode(message, gather(outgoing.arenas) if outgoing.arenas else None)

    def _take(self, message: Message, arena: memoryview | None) -> None:
        match message:
            case Weights():
                assert arena is not None  # noqa: S101  (decode has seen to it)
                self._asked = float("-inf")
                self._keep(message, arena)
            case Shared():
                self._asked = float("-inf")
                self._look_at_shelf(message)
            case Current():
                self._asked = float("-inf")
                self._pulled = max(self._pulled, (message.epoch, message.policy_version))
            case Welcome():
                self.session.receive(time.monotonic(), message)
                self._bring_ring()
            case Ringed():
                self.session.receive(time.monotonic(), message)
                if not message.is_taken:
                    self._drop_ring()
            case _:
                self.session.receive(time.monotonic(), message)

    def _bring_ring(self) -> None:
        """Offer the learner memory of this host; one that runs elsewhere says no."""
        if self._ring is not None and self._ring.slots == self.session.window:
            return
        self._drop_ring()
        if self._segment_bytes and self.session.window:
            try:
                self._ring = RingWriter(self.session.window, self._segment_bytes)
            except SharedMemoryError:
                return
            self.session.bring_ring(self._ring.message())

    def _drop_ring(self) -> None:
        if self._ring is not None:
            self.session.bring_ring(None)
            self._ring.close()
            self._ring = None

    def _look_at_shelf(self, shared: Shared) -> None:
        """Open the shelf that the learner tells of; if that cannot be, ask again for weights through the socket."""
        if self._shelf is None or self._shelf.nonce != shared.nonce:
            try:
                reader = ShelfReader(shared, self.actor.weights.size)
            except SharedMemoryError:
                self._place = ""
                return
            if self._shelf is not None and (self._lent is None or self._lent[1] is not self._shelf):
                self._shelf.close()
            self._shelf = reader
        self._pulled = shared.epoch, shared.policy_version
        self._waiting = shared.policy_version, self._shelf

    def _use(self, weights: NDArray[np.float32], lent: tuple[int, ShelfReader] | None = None) -> None:
        """Let `actor` use weights where they lie; `lent` says which, if they are the learner's."""
        self.actor.look_at(weights)
        before, self._lent = self._lent, lent
        if before is not None and before[1] is not self._shelf:
            before[1].close()  # of a learner that is gone

    def _keep(self, weights: Weights, arena: memoryview) -> None:
        if checksum(arena) != weights.checksum:
            raise ProtocolError(f"the weights of version {weights.policy_version} are damaged")
        self._pulled = weights.epoch, weights.policy_version
        self._waiting = weights.policy_version, (weights.codec, arena)
