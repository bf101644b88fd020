"""Client side of the exchange: one session of a worker or an evaluator with its learner, and the newest weights.

`runtime.exchange.machines.session` has the protocol, without I/O; this module adds its sockets, its shared memory
and the policy into which weights are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.base.contract import PROTOCOL_VERSION
from runtime.base.errors import PeerRefusedError
from runtime.base.launch_context import LaunchContext, incarnation
from runtime.base.metrics import Console, Rate
from runtime.exchange.machines.session import Outgoing, PeerSession
from runtime.exchange.policy_store import BF2, F4, LARGE_BYTES, checksum, load
from runtime.exchange.protocol import messages
from runtime.exchange.protocol.framing import Buffer, decode, encode
from runtime.exchange.protocol.segment_schema import Layout
from runtime.exchange.segments import gather
from runtime.exchange.transport import curve_keys, shared_memory
from runtime.exchange.transport.shared_memory import (
    SHARED_WEIGHTS_BYTES,
    RingWriter,
    SharedMemoryError,
    SharedWeightsReader,
)
from runtime.exchange.transport.sockets import PeerChannel, Port
from runtime.exchange.transport.weights_cache import WeightsCache

PULL_SECONDS: Final = 2.0
"""A request for weights without an answer within this time is repeated."""
REOPEN_SECONDS: Final = 6.0
"""A socket without any answer for this long is replaced."""
CACHE_POLL_SECONDS: Final = 0.01
"""Interval at which a worker looks for weights that another one on its host has requested."""
DRAIN_SECONDS: Final = 1.0
"""Longest wait of an ending client for the acknowledgement of its last segments."""


class HasWeights(Protocol):
    """Policy whose parameters are one flat float32 array, which can be replaced by another of the same size."""

    weights: NDArray[np.float32]

    def use_weights(self, weights: NDArray[np.float32]) -> None:
        """Use `weights` without a copy."""


ActorT = TypeVar("ActorT", bound=HasWeights)
_NOTHING_PULLED: Final = 0, 0


class LearnerClient(Generic[ActorT]):
    """One peer of a learner. Call `exchange` at least once a second: it also sends the pings.

    Attributes:
        session: The protocol's state; `exchange` sends the segments that are queued there, within the credit.
        actor: Policy that `use_newest_weights` updates.
        policy_version: Version of the weights in `actor`; 0 before the first.
        env_steps: Environment steps of this process, counted by its owner.
        name: Address of this process at the learner (ZeroMQ routing id); unique in the run.
    """

    def __init__(
        self,
        context: LaunchContext,
        actor: ActorT,
        layout: Layout,
        segment_transitions: int,
        console: Console,
        *,
        wants_weights: bool = True,
    ) -> None:
        floats, own_incarnation = actor.weights.size, incarnation()
        hello = messages.Hello(
            protocol=PROTOCOL_VERSION,
            run=context.run,
            run_id=context.run_id,
            token=context.token,
            role=context.role,
            pod=context.pod,
            incarnation=own_incarnation,
            oldest=1,
            environment=context.environment,
            layout=layout.text,
            actor_floats=floats,
            segment_transitions=segment_transitions,
        )
        self.session = PeerSession(hello)
        self.actor = actor
        self.policy_version = 0
        self.env_steps = 0
        self.name = f"{context.pod}.{own_incarnation}".encode()[:255]  # libzmq's limit for a routing id
        self._console = console
        self._own_weights = actor.weights
        """Private memory for weights."""
        self._borrowed: tuple[int, SharedWeightsReader] | None = None
        """Version that `actor` uses inside the learner's shared memory, and that memory."""
        # Remote inference: the learner computes the policy's outputs, so weights are never requested.
        self._wants_weights = wants_weights
        self._pulled = _NOTHING_PULLED
        """(epoch, version) of the newest weights that have arrived."""
        self._pending: tuple[int, tuple[str, memoryview] | SharedWeightsReader] | None = None
        """Version and source of weights that are newer than those in `actor`."""
        self._shared_weights: SharedWeightsReader | None = None
        self._host = shared_memory.host_identity()
        """Sent with each request; empty once the learner's memory has turned out to be unreadable."""
        self._pull_sent = float("-inf")
        self._rate = Rate(time.monotonic(), 0)
        self._rate_now = 0.0
        self._segment_bytes = layout.most_bytes(segment_transitions)
        self._ring: RingWriter | None = None
        # An evaluator measures the quality of a policy, so it needs all 24 bits of precision.
        self._codec = BF2 if segment_transitions and 4 * floats >= LARGE_BYTES else F4
        self.cache = self._open_cache(context) if wants_weights else None
        """Weights that other workers of this host have received; None where they are in the learner's memory."""
        self._asks_since: float | None = None
        """Time since which another worker asks for weights that this one needs."""
        self._channel = PeerChannel(context.endpoint, self.name, 4 * floats, curve_keys.peer_keys(context))
        self._last_answer = dict.fromkeys(Port, time.monotonic())
        """Time at which each socket last delivered something, or had nothing to deliver."""
        self._last_poll = time.monotonic()
        self._connected = 0
        """Connections so far of the data socket."""
        self._has_reported_keys = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self.close_cache()
        self._drop_ring()
        # The actor may outlive this client: it must not point into memory that is unmapped below.
        self._set_actor_weights(self._own_weights)
        if self._shared_weights is not None:
            self._shared_weights.close()

    # --- for the owner's loop ---
    @property
    def is_too_old(self) -> bool:
        """True if segments collected with the current weights would be refused as stale."""
        return self.session.policy_version - self.policy_version > self.session.max_policy_lag

    @property
    def is_overtaken(self) -> bool:
        """True if the learner is overwriting the weights in `actor`: their last outputs may mix two versions."""
        return self._borrowed is not None and not self._borrowed[1].holds(self._borrowed[0])

    def exchange(self, timeout_seconds: float) -> None:
        """Send due messages and handle received ones, waiting up to `timeout_seconds` for the first message.

        Raises PeerRefusedError if the learner refuses this process.
        """
        self._send_due()
        patience = self.session.patience if self._asks_since is None else CACHE_POLL_SECONDS
        for inbound in self._channel.poll(min(timeout_seconds, patience)):
            self._last_answer[inbound.port] = time.monotonic()
            try:
                message, arena = decode(inbound.frames)
                self._receive(message, arena)
            except messages.ProtocolError as error:
                self._console.say(f"the learner sent an invalid message: {error}")
        if self._connected != self._channel.connected:
            self._connected = self._channel.connected
            self.session.reconnected()
        if self._channel.is_mistrusted and not self._has_reported_keys:
            self._has_reported_keys = True
            self._console.say(
                "the learner answers and does not accept this connection: give both the same token or key files"
            )
        for note in self.session.notes:
            self._console.say(note)
        self.session.notes.clear()
        if self.session.refused is not None:
            raise PeerRefusedError(f"the learner refused {self.session.hello.pod}: {self.session.refused.reason}")
        # An acknowledgement may have brought credit: use it now, not in the next call.
        self._send_due()

    def use_newest_weights(self, *, in_place: bool = False) -> None:
        """Load the newest received weights into `actor`. `exchange` never does, so that a version can be kept.

        With `in_place`, weights in the learner's shared memory are used without a copy. The caller must then check
        `is_overtaken` after each use; if it is true, discard the result and call this again.
        """
        newer = self._pending or (self._borrowed if self.is_overtaken else None)
        self._pending = None
        if newer is None:
            return
        version, source = newer
        try:
            if not isinstance(source, SharedWeightsReader):
                load(*source, self._own_weights)
                self._set_actor_weights(self._own_weights)
            elif in_place:
                version, weights = source.newest()
                self._set_actor_weights(weights, (version, source))
            else:
                version = source.read(self._own_weights)
                self._set_actor_weights(self._own_weights)
        except SharedMemoryError:
            # A failed copy leaves two versions in `actor`; version 0 stops the owner from acting with it. The empty
            # host makes the next request go through the socket.
            self._host, self._pulled, self.policy_version = "", _NOTHING_PULLED, 0
        except ValueError as error:
            self._console.say(f"policy version {version} is not used: {error}")
        else:
            self.policy_version = version
            # Shared memory may hold a newer version than the answer named: do not request that one again.
            self._pulled = self._pulled[0], max(self._pulled[1], version)

    def send_evaluation(self, evaluation: messages.EvaluationReport) -> None:
        """Send an evaluation; without a connected learner it is only in the evaluator's own log."""
        outgoing = self.session.evaluation(evaluation)
        if outgoing is not None:
            self._send([outgoing])

    def leave(self, reason: str) -> None:
        """Say goodbye, after `DRAIN_SECONDS` at most for the last segments to be acknowledged."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.session.is_joined and self.session.unsettled and time.monotonic() < deadline:
            if self.session.done is not None or self.session.refused is not None:
                break
            self.exchange(0.05)
        self._send(self.session.farewell(reason))

    def steps_per_second(self) -> float:
        """Return the rate of `env_steps` since the last call; pings carry the same number."""
        self._rate_now = self._rate.update(time.monotonic(), self.env_steps)
        return self._rate_now

    # --- outgoing ---
    def _send_due(self) -> None:
        now = time.monotonic()
        away, self._last_poll = now - self._last_poll, now
        for port, answered in self._last_answer.items():
            if away > 1.0:  # this process did not poll (a long step, SIGSTOP): that says nothing about the socket
                self._last_answer[port] = now
            elif now - answered > REOPEN_SECONDS + (self.session.pause_seconds if port is Port.DATA else 0.0):
                # libzmq permanently gives up a connection after a protocol error; only a new socket connects again.
                self._last_answer[port] = now
                self._channel.reopen(port)
        self._send(self.session.outgoing(now, self.env_steps, self._rate_now, self.policy_version))
        self._request_weights(now)

    def _request_weights(self, now: float) -> None:
        newest, session = (self.session.epoch, self.session.policy_version), self.session
        # Tuples: a new epoch is newer whatever its version. Version 0 means that the learner has no policy yet.
        is_due = self._wants_weights and session.is_joined and newest > self._pulled and newest[1]
        if is_due and now - self._pull_sent > PULL_SECONDS and not self._is_cached(now):
            get = messages.Get(session.hello.token, *self._pulled, self._codec, self._host)
            if self._channel.send(Port.MODEL, encode(get)):
                self._pull_sent = now
        elif not self._wants_weights or newest <= self._pulled or not session.is_joined:
            self._last_answer[Port.MODEL] = now  # nothing was requested, so silence is not a fault of the socket

    # --- weights of other workers on this host ---
    def _open_cache(self, context: LaunchContext) -> WeightsCache | None:
        floats = self.actor.weights.size
        if context.endpoint.folder is not None or 4 * floats < SHARED_WEIGHTS_BYTES:
            return None
        try:
            return WeightsCache(context.run_id, context.token, self._codec, floats)
        except SharedMemoryError:
            return None

    def close_cache(self) -> None:
        """Leave the weights that workers of this host share; the last one removes them."""
        cache, self.cache, self._asks_since = self.cache, None, None
        if cache is not None:
            cache.close()

    def _is_cached(self, now: float) -> bool:
        """Take newer weights that another worker of this host has received.

        Return false if there are none and this worker is to request them.
        """
        if self.cache is None:
            return False
        epoch, have = self.session.epoch, self._pulled[1] if self._pulled[0] == self.session.epoch else 0
        if (cached := self.cache.newest(epoch, have)) is not None:
            version, weights = cached
            self._pulled, self._pending = (epoch, version), (version, (self._codec, weights))
        elif self.cache.may_ask() or (self._asks_since is not None and now - self._asks_since > PULL_SECONDS):
            self._asks_since = None
            return False
        # If a still newer version was announced, it is looked for in the next call.
        self._asks_since = None if cached else self._asks_since or now
        self._last_answer[Port.MODEL] = now  # nothing was requested
        return True

    def _send(self, queue: Sequence[Outgoing]) -> None:
        for number, outgoing in enumerate(queue):
            if not self._channel.send(Port.DATA, self._frames(outgoing)):
                # The following messages were not sent either. Order matters: a gap would cost a rejoin.
                for unsent in queue[number:]:
                    self.session.unsent(unsent.message)
                return

    def _frames(self, outgoing: Outgoing) -> list[Buffer]:
        """Return the frames of a message. Its segments go into the ring if there is one, otherwise into a second
        frame.
        """
        message = outgoing.message
        if isinstance(message, messages.Segments) and message.ring:
            assert self._ring is not None  # noqa: S101  (the session sets `ring` only after offer_ring)
            self._ring.put(message.seq, outgoing.arenas)
            return encode(message)
        return encode(message, gather(outgoing.arenas) if outgoing.arenas else None)

    # --- incoming ---
    def _receive(self, message: messages.Message, arena: memoryview | None) -> None:
        match message:
            case messages.Weights():
                assert arena is not None  # noqa: S101  (decode guarantees it)
                self._pull_sent = float("-inf")
                self._receive_weights(message, arena)
            case messages.SharedWeights():
                self._pull_sent = float("-inf")
                self._map_shared_weights(message)
            case messages.Current():
                self._pull_sent = float("-inf")
                self._pulled = max(self._pulled, (message.epoch, message.policy_version))
                if self.cache is not None:
                    self.cache.give_up()
            case _:
                self.session.receive(time.monotonic(), message)
                if isinstance(message, messages.Welcome):
                    self._offer_ring()
                elif isinstance(message, messages.RingAccepted) and not message.is_taken:
                    self._drop_ring()

    def _receive_weights(self, weights: messages.Weights, arena: memoryview) -> None:
        if checksum(arena) != weights.checksum:
            raise messages.ProtocolError(f"the weights of version {weights.policy_version} are damaged")
        self._pulled = weights.epoch, weights.policy_version
        self._pending = weights.policy_version, (weights.codec, arena)
        cache, is_ours = self.cache, weights.codec == self._codec
        if cache is not None and not (is_ours and cache.put(weights.epoch, weights.policy_version, arena)):
            self.close_cache()

    def _map_shared_weights(self, shared: messages.SharedWeights) -> None:
        """Map the learner's memory; if that fails, request the weights through the socket from now on."""
        if self._shared_weights is None or self._shared_weights.nonce != shared.nonce:
            try:
                reader = SharedWeightsReader(shared, self.actor.weights.size)
            except SharedMemoryError:
                self._host = ""
                return
            # The old mapping may still be in use by `actor`; then `_set_actor_weights` closes it.
            before, borrowed = self._shared_weights, self._borrowed
            if before is not None and (borrowed is None or borrowed[1] is not before):
                before.close()
            self._shared_weights = reader
        self.close_cache()  # the learner's memory serves all
        self._pulled = shared.epoch, shared.policy_version
        self._pending = shared.policy_version, self._shared_weights

    def _set_actor_weights(
        self, weights: NDArray[np.float32], borrowed: tuple[int, SharedWeightsReader] | None = None
    ) -> None:
        """Let `actor` use `weights` without a copy; `borrowed` names them if they are in the learner's memory."""
        self.actor.use_weights(weights)
        before, self._borrowed = self._borrowed, borrowed
        if before is not None and before[1] is not self._shared_weights:
            before[1].close()  # memory of a previous learner

    # --- ring ---
    def _offer_ring(self) -> None:
        """Offer the learner a ring of shared memory; a learner on another host refuses it."""
        if self._ring is not None and self._ring.slots == self.session.window:
            return
        self._drop_ring()
        if self._segment_bytes and self.session.window:
            try:
                self._ring = RingWriter(self.session.window, self._segment_bytes)
            except SharedMemoryError:
                return
            self.session.offer_ring(self._ring.message())

    def _drop_ring(self) -> None:
        if self._ring is not None:
            self.session.offer_ring(None)
            self._ring.close()
            self._ring = None
