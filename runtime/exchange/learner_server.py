"""Server side of the exchange: a network thread that joins sockets, membership machine and segment store.

That thread owns the sockets, receives segments and answers; the learner's main thread samples, updates and
publishes. They share the store and the machine under one lock, which neither holds for longer than a copy. The
lock's condition notifies the main thread of new data; `LearnerChannel.wake` notifies the network thread of new
weights.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runtime.base.addresses import Endpoint
from runtime.base.descriptors import DescriptorWatch
from runtime.base.metrics import Rate
from runtime.exchange.machines import events
from runtime.exchange.machines.member_state import Accounts, Member, SessionTerms
from runtime.exchange.machines.membership import Membership
from runtime.exchange.policy_store import PolicyStore
from runtime.exchange.protocol.framing import Buffer, decode, encode
from runtime.exchange.protocol.messages import (
    EvaluationReport,
    Get,
    Message,
    ProtocolError,
    Refused,
    RingAccepted,
    Segments,
)
from runtime.exchange.protocol.segment_schema import Columns, Layout
from runtime.exchange.segments import EpisodeReturns, FiniteCheck, PolicyLag, SegmentBundle
from runtime.exchange.transport.curve_keys import LearnerKeys
from runtime.exchange.transport.shared_memory import RingReader, SharedMemoryError
from runtime.exchange.transport.sockets import Inbound, LearnerChannel, Port

_COUNTERS: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")


class Traffic:
    """Counters that one thread increments and any thread may read; the rates are for one reader.

    Counted are the bytes of the frames without ZeroMQ's own, and of segments in shared memory. Weights that peers
    read from the learner's shared memory are not counted.
    """

    def __init__(self, now: float) -> None:
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._rates = {name: Rate(now, 0) for name in _COUNTERS}

    def received(self, num_bytes: int) -> None:
        """Count a message that came."""
        self._counts["messages_in"] += 1
        self._counts["bytes_in"] += num_bytes

    def received_in_memory(self, num_bytes: int) -> None:
        """Count bytes that a message left in shared memory."""
        self._counts["bytes_in"] += num_bytes

    def sent(self, num_bytes: int) -> None:
        """Count a message that was handed to a connection."""
        self._counts["messages_out"] += 1
        self._counts["bytes_out"] += num_bytes

    def totals(self) -> dict[str, int]:
        """Return the counters since the start of the process."""
        return dict(self._counts)

    def rates(self, now: float) -> dict[str, float]:
        """Return `messages_in_per_second` and so on, since the last call; `now` in seconds of `time.monotonic`."""
        return {f"{name}_per_second": self._rates[name].update(now, count) for name, count in self.totals().items()}


def size_of(frames: Sequence[Buffer]) -> int:
    """Return the bytes of a message."""
    return sum(memoryview(frame).nbytes for frame in frames)


TICK_SECONDS: Final = 0.02
"""Longest wait of the network thread: interval of credits, leases and acknowledgements when nothing arrives."""
MAX_EVALUATIONS: Final = 1_024
"""Maximum number of evaluations that wait for the main thread; then the oldest are dropped."""
CUT_PAUSE_SECONDS: Final = 0.001
"""Pause between two chunks of experience that are copied for a checkpoint."""
RECORDS_PER_PEERS: Final = 15
"""At least one of this many records names the peers, so that readers of only the end of a log find them."""
MOST_PEERS: Final = 256
"""Maximum number of peers in a record: container runtimes cut a log line at 16 KiB."""
LATECOMER_SECONDS: Final = 60.0
"""Longest wait of a finished learner for peers that never joined: a simulator may take this long to start."""

T = TypeVar("T")


class StoreCut(Protocol):
    """State of a store at one moment, copied out step by step while the store is in use."""

    def copy_next(self) -> bool:
        """Copy more of it for a millisecond, and return true while there is more; needs the store's lock."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state, once everything is copied."""


class SegmentStore(Protocol):
    """Destination of segments: a replay buffer, or the rollouts of the next update."""

    layout: Layout

    def __len__(self) -> int:
        """Return the number of items in the store."""

    def put(self, columns: Columns) -> None:
        """Copy one segment in, its tail last if the layout has one."""

    def cut(self, most_bytes: int | None = None) -> StoreCut:
        """Return a cut of the current state for a resumed run, including the newest experience within
        `most_bytes`.
        """


@runtime_checkable
class BundleStore(Protocol):
    """Store that accepts many segments with one copy of each column."""

    def put_bundle(self, bundle: SegmentBundle) -> None:
        """Copy in segments of equal size."""


@runtime_checkable
class InspectingStore(Protocol):
    """Store that knows the valid values of a segment."""

    def faulty_segments(self, bundle: SegmentBundle) -> frozenset[int]:
        """Return the indices of segments that cannot be used. The network thread calls it without a lock."""


class StepLimiter(Protocol):
    """Balance of collection and learning; see `runtime.rl.roles.rate_limiter` for the one that learners use."""

    def ceiling(self, updates: int) -> int:
        """Return the total number of env steps that may be collected once `updates` are done."""

    def allows_update(self, env_steps: int, updates: int) -> bool:
        """Return true if the data for one more update has arrived."""


@dataclass(slots=True)
class ExchangeState:
    """Experience and accounts at one moment, for a checkpoint."""

    env_steps: int
    store: dict[str, NDArray[Any]]
    accounts: dict[str, Any]
    last_seqs: dict[str, int]


class ExchangeCut:
    """Experience and accounts at one moment, whose arrays are copied later, in the thread that calls `complete`."""

    def __init__(self, state: ExchangeState, store: StoreCut, lock: threading.Condition) -> None:
        self.state = state
        self._store = store
        self._lock = lock

    def complete(self) -> ExchangeState:
        """Return the state with its arrays. Exchange and learner continue, and wait for at most one chunk."""
        more = True
        while more:
            with self._lock:
                more = self._store.copy_next()
            # Python's locks are not fair: without a pause this thread would mostly get it again before a waiter
            # wakes.
            time.sleep(CUT_PAUSE_SECONDS)
        return replace(self.state, store=self._store.arrays())


class LearnerServer:
    """Learner's end of the exchange, listening at `endpoint`.

    Public methods are for the main thread, or for any thread if they say so. `accounts` and `policy_version` come
    from the checkpoint and the journal from which it resumes. Raises EndpointError if the address cannot be used.

    Attributes:
        membership: Peers and accounts; changed by the network thread under the server's lock.
        policies: Newest weights; any thread may request them.
        evaluations: (pod, evaluation) in order of arrival; the main thread empties it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        keys: LearnerKeys | None,
        terms: SessionTerms,
        store: SegmentStore,
        limiter: StepLimiter,
        say: Callable[[str], None],
        *,
        accounts: Accounts | None = None,
        policy_version: int = 0,
    ) -> None:
        self._channel = LearnerChannel(endpoint, terms.largest_message, keys)
        self.membership = Membership(terms, accounts or Accounts(), policy_version)
        self.policies = PolicyStore(terms.epoch, terms.token, policy_version)
        # append and popleft of a deque are atomic. Bounded, because a learner may never empty it.
        self.evaluations: deque[tuple[str, EvaluationReport]] = deque(maxlen=MAX_EVALUATIONS)
        self._experience = store
        self._limiter = limiter
        self._say = say
        # One lock for store and machine: a checkpoint needs experience and accounts of the same moment.
        self._changed = threading.Condition()
        self._outbox: deque[events.Send] = deque()
        self._lag = self._last_lag = PolicyLag()
        self._returns = EpisodeReturns()
        self._finite = FiniteCheck(store.layout)
        self._bundles = store if isinstance(store, BundleStore) else None
        self._inspector = store if isinstance(store, InspectingStore) else None
        self._rings: dict[bytes, RingReader] = {}
        """By route; only used by the network thread."""
        self._endpoint = endpoint
        self._traffic = Traffic(time.monotonic())
        self._named_peers: list[str] = []
        """Peers in the newest record that names them."""
        self._unnamed = 0
        """Number of records that may come before the next one with peers."""
        self._descriptors = DescriptorWatch()
        self._network_seconds = 0.0
        """CPU time of the network thread so far."""
        self._network_counted = (time.monotonic(), 0.0)
        """Time of the last record, and that CPU time then."""
        self.network_share = 0.0
        """Share of a core that the network thread used between the last two records."""
        self._updates = 0
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange")

    # --- main thread ---
    def start(self) -> None:
        """Start the network thread, which then owns the channel."""
        self._thread.start()

    def close(self) -> None:
        """Stop the network thread, and close sockets and shared memory."""
        self._closing = True
        self._channel.wake()
        if self._thread.is_alive():  # a learner that fails before `start` closes the server too
            self._thread.join()
        for ring in self._rings.values():
            ring.close()
        self.policies.close()
        self._channel.close()

    def await_data(self, updates: int, timeout_seconds: float) -> bool:
        """Wait up to `timeout_seconds` for the data of update number `updates` + 1; return whether it is available.

        Raises RuntimeError if the network thread has failed, with its exception as the cause.
        """
        self._updates = updates
        with self._changed:
            if self._error is not None:
                raise RuntimeError("the exchange with the workers broke down") from self._error
            if self._limiter.allows_update(self.membership.env_steps, updates):
                return True
            self._changed.wait(timeout_seconds)
            return self._limiter.allows_update(self.membership.env_steps, updates)

    def collected(self, transitions: int) -> None:
        """Count transitions that the learner itself has collected, which never pass through this server."""
        with self._changed:
            self._handle(events.Collected(transitions), None)

    def locked_sample(self, sample: Callable[[], T]) -> T:
        """Return the result of `sample`, which reads the store, while no segment is put into it."""
        with self._changed:
            return sample()

    def publish(self, version: int, arena: NDArray[np.float32], updates: int) -> None:
        """Make `arena` the policy of `version`, the result of `updates` updates. It must not be written
        afterwards.
        """
        self.policies.publish(version, arena)
        with self._changed:
            self._updates = updates  # together with the version: new credit must not be used with the old policy
            self._handle(events.Published(version), None)
        self._channel.wake()

    def saved(self, holdings: ExchangeState) -> None:
        """Announce a durable checkpoint: peers may drop the segments that it contains."""
        self._post(events.Saved(holdings.last_seqs))

    def finish(self, reason: str, least_seconds: float, most_seconds: float) -> None:
        """Announce the end of the run and wait until all peers have left, up to `most_seconds`.

        It waits at least `least_seconds`, for peers that are just starting.
        """
        self._post(events.Finished(reason))
        began = time.monotonic()
        with self._changed:
            while (passed := time.monotonic() - began) < most_seconds:
                if passed >= least_seconds and not self.membership.members:
                    return
                self._changed.wait(0.1)  # only segments notify; departures are noticed at this period

    def await_latecomers(self, joiners: int, give_up: Callable[[], bool]) -> None:
        """Wait up to a minute until `joiners` pods have left: a late peer would look for a learner forever."""
        deadline = time.monotonic() + LATECOMER_SECONDS
        if missing := self._missing(joiners):
            self._say(
                f"the run is done and {missing} of {joiners} processes have not been told; waiting for them for "
                f"{LATECOMER_SECONDS:.0f} s at most"
            )
        with self._changed:
            while self._missing(joiners) and time.monotonic() < deadline and not give_up():
                self._changed.wait(0.1)

    def _missing(self, joiners: int) -> int:
        return max(0, joiners - len(self.membership.departed))

    def snapshot(self, most_bytes: int) -> ExchangeState:
        """Return a copy of experience, at most `most_bytes`, and of the accounts, consistent with each other."""
        return self.cut(most_bytes).complete()

    def cut(self, most_bytes: int) -> ExchangeCut:
        """Return the same state as `snapshot`, before its experience is copied."""
        with self._changed:
            accounts = self.membership.accounts
            state = ExchangeState(self.membership.env_steps, {}, accounts.state(), accounts.last_seqs())
            return ExchangeCut(state, self._experience.cut(most_bytes), self._changed)

    @property
    def env_steps(self) -> int:
        """Accepted env steps in the history of the newest checkpoint."""
        return self.membership.env_steps

    def metric_fields(self) -> dict[str, Any]:
        """Return the exchange's fields of a metric record: policy lag since the last call, counts, mean return."""
        now, used = time.monotonic(), self._network_seconds
        since, used_before = self._network_counted
        self._network_counted = now, used
        self.network_share = min(1.0, (used - used_before) / max(now - since, 1e-9))
        with self._changed:
            lag, self._lag = self._lag, PolicyLag()
            self._last_lag = lag
            totals = self.membership.accounts.totals
            return {
                "policy_lag": lag.min_mean_max(),
                "mean_return": self._returns.mean(),
                "workers": self.membership.workers,
                "replay": len(self._experience),
                "accepted": totals.accepted,
                "duplicate": totals.duplicate,
                "refused": totals.stale + totals.misfit,
                "lost": totals.lost,
                "sent": totals.sent,
                "missing": totals.missing,
                "malformed": self.membership.malformed,
                "stale": totals.stale,
                "inflight_transitions": self.membership.credits.inflight,
                "evaluators": len(self.membership.members) - self.membership.workers,
                "network_share": round(self.network_share, 4),
                **self._descriptors.record_fields(),
                **self._traffic.rates(time.monotonic()),
                **self._peer_fields(),
            }

    def _peer_fields(self) -> dict[str, Any]:
        """Return the learner's addresses and its connected peers; empty while a recent record had the same."""
        peers = sorted(member.hello.pod for member in self.membership.members.values())[:MOST_PEERS]
        self._unnamed -= 1
        if peers == self._named_peers and self._unnamed > 0:
            return {}
        self._named_peers, self._unnamed = peers, RECORDS_PER_PEERS
        return {"listens": [self._endpoint.data, self._endpoint.model], "peers": peers}

    def status(self) -> dict[str, Any]:
        """Return the exchange's part of the learner's status as plain JSON values. Any thread may call it."""
        now = time.monotonic()
        with self._changed:
            machine, totals = self.membership, self.membership.accounts.totals
            return {
                "run": machine.terms.run,
                "run_id": machine.terms.run_id,
                "epoch": machine.terms.epoch,
                "policy_version": machine.policy_version,
                "policy_lag": self._last_lag.min_mean_max() if not self._lag.segments else self._lag.min_mean_max(),
                "env_steps": machine.env_steps,
                "workers": machine.workers,
                "store": len(self._experience),
                "inflight_transitions": machine.credits.inflight,
                "ceiling": machine.credits.ceiling,
                "traffic": self._traffic.totals(),
                "malformed": machine.malformed,
                "foreign": machine.foreign,
                "strangers": self._channel.refused_keys,
                "silent": self._silent,
                "segments": {name: count for name, count in asdict(totals).items() if name != "transitions"},
                "peers": [self._peer_status(member, now) for member in machine.members.values()],
            }

    def _peer_status(self, member: Member, now: float) -> dict[str, Any]:
        account = member.account
        return {
            "pod": member.hello.pod,
            "role": member.hello.role,
            "incarnation": member.hello.incarnation,
            "connected_seconds": round(now - member.joined, 3),
            "heard_seconds": round(now - member.heard, 3),
            "env_steps": member.env_steps,
            "env_steps_per_second": member.env_steps_per_second,
            "policy_version": member.policy_version,
            "policy_lag": self.membership.policy_version - member.policy_version if member.has_acted else 0,
            "outstanding": member.outstanding,
            "sent": account.sent,
            "accepted": account.accepted,
            "stale": account.stale,
            "misfit": account.misfit,
            "through_memory": member.route in self._rings,
        }

    def _post(self, event: events.Event) -> None:
        with self._changed:
            self._handle(event, None)
        self._channel.wake()

    # --- network thread ---
    def _run(self) -> None:
        np.seterr(all="ignore")  # per thread; FiniteCheck squares numbers that may overflow
        try:
            while not self._closing:
                for inbound in self._channel.poll(TICK_SECONDS):
                    self._receive(inbound)
                with self._changed:
                    self._handle(events.Ticked(time.monotonic(), self._limiter.ceiling(self._updates)), None)
                self._flush()
                self._watch_connections(time.monotonic())
                self._network_seconds = time.thread_time()
            self._flush()  # messages that `finish` has queued must be sent before the sockets are closed
        except BaseException as error:  # noqa: BLE001  (the main thread raises it again)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _receive(self, inbound: Inbound) -> None:
        self._traffic.received(size_of(inbound.frames))
        try:
            message, arena = decode(inbound.frames)
        except ProtocolError as error:
            with self._changed:
                self._handle(events.MalformedMessage(inbound.route, error), None)
            return
        # Without the lock: requests for weights must not wait while the main thread samples a batch.
        if inbound.port is Port.MODEL:
            self._answer(inbound, message)
            return
        bundle: SegmentBundle | None = None
        faulty: frozenset[int] = frozenset()
        if isinstance(message, Segments):
            bundle = self._bundle(inbound.route, message, arena)
            # Outside the lock: this pass over all bytes is half of the thread's work. A message of the wrong size
            # is not searched, since the membership machine refuses it regardless of its numbers.
            if bundle is not None:
                self._traffic.received_in_memory(bundle.nbytes if message.ring else 0)
                faulty = self._finite.non_finite_segments(bundle)
                if self._inspector is not None:
                    faulty |= self._inspector.faulty_segments(bundle)
        size = bundle.nbytes if bundle is not None else 0
        arrived = events.Arrived(time.monotonic(), inbound.route, message, size, faulty)
        with self._changed:
            self._handle(arrived, bundle)
        if inbound.descriptor >= 0 and inbound.route in self.membership.members:
            self._channel.connections[Port.DATA].admit(inbound.descriptor)

    def _bundle(self, route: bytes, segments: Segments, arena: memoryview | None) -> SegmentBundle | None:
        """Return the segments of a message without copying them; None if they do not have the size that it
        states.
        """
        slot_bytes = 0
        if segments.ring:
            ring = self._rings.get(route)
            if ring is None:
                return None
            arena, slot_bytes = ring.arena(segments.seq, len(segments.rows)), ring.slot_bytes
        assert arena is not None  # noqa: S101  (decode guarantees it for what does not go through a ring)
        return SegmentBundle.of(self._experience.layout, arena, segments.table.columns, slot_bytes)

    def _answer(self, inbound: Inbound, message: Message) -> None:
        if isinstance(message, Get):
            answer, arena = self.policies.answer_get(message)
            self._send(Port.MODEL, inbound.route, encode(answer, arena))
            if not isinstance(answer, Refused):
                self._channel.connections[Port.MODEL].admit(inbound.descriptor)
            return
        with self._changed:
            error = ProtocolError("the model socket accepts only requests for weights")
            self._handle(events.MalformedMessage(inbound.route, error), None)

    def _watch_connections(self, now: float) -> None:
        """Close connections that do not join, and say if file descriptors become scarce."""
        scarcity, silent = self._descriptors, self._silent
        if scarcity.is_due(now) and scarcity.measure(now):
            used, limit = scarcity.usage
            self._say(
                f"{used} of {limit} file descriptors are in use, {silent} by connections that have not joined the "
                "run and are closed soon; raise the limit (ulimit -n), or find the programs that connect"
            )
        self._channel.close_silent(now, is_scarce=scarcity.is_scarce)

    @property
    def _silent(self) -> int:
        return sum(len(connections.silent) for connections in self._channel.connections.values())

    def _handle(self, event: events.Event, bundle: SegmentBundle | None) -> None:
        """Execute the machine's instructions; the caller holds the lock.

        Messages only go to the outbox: sockets belong to the network thread, and this also runs in the main thread.
        """
        for instruction in self.membership.handle(event):
            match instruction:
                case events.Send():
                    self._outbox.append(instruction)
                case events.Keep():
                    self._keep(instruction, bundle)
                case events.Attach():
                    self._outbox.append(events.Send(instruction.route, self._attach(instruction)))
                case events.Detach():
                    if ring := self._rings.pop(instruction.route, None):
                        ring.close()
                case events.Evaluated():
                    self.evaluations.append((instruction.pod, instruction.evaluation))
                case events.Note():
                    self._say(instruction.text)

    def _keep(self, keep: events.Keep, bundle: SegmentBundle | None) -> None:
        assert bundle is not None  # noqa: S101  (the machine accepts segments only with an arena of their size)
        part = bundle.part(keep.first, keep.first + len(keep.rows))
        if self._bundles is not None:
            for run in part.uniform_parts():
                self._bundles.put_bundle(run)
        else:
            for columns in part.segments():
                self._experience.put(columns)
        self._lag.add(self.membership.policy_version, keep.rows)
        self._returns.add(keep.rows)
        self._changed.notify_all()

    def _attach(self, attach: events.Attach) -> RingAccepted:
        if old := self._rings.pop(attach.route, None):
            old.close()
        ring = attach.ring
        try:
            self._rings[attach.route] = RingReader(ring)
        except SharedMemoryError:
            return RingAccepted(ring.epoch, ring.nonce, is_taken=False)
        return RingAccepted(ring.epoch, ring.nonce, is_taken=True)

    def _flush(self) -> None:
        while self._outbox:
            send = self._outbox.popleft()
            self._send(Port.DATA, send.route, encode(send.message))

    def _send(self, port: Port, route: bytes, frames: Sequence[Buffer]) -> None:
        if self._channel.send(port, route, frames):
            self._traffic.sent(size_of(frames))
