"""The learner's network thread: sockets, membership machine and replay joined.

One thread owns the sockets and does nothing but take segments in and answer; the learner's main thread samples,
updates and publishes. They share the replay and the machine under one lock, which neither holds for longer than a
copy. The main thread is told of new data through the lock's condition, the network thread of new weights through
`LearnerChannel.wake`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runtime.channels import Inbound, LearnerChannel, Port
from runtime.events import (
    Arrived,
    Attach,
    Detach,
    Evaluated,
    Event,
    Finished,
    Garbled,
    Keep,
    Note,
    Published,
    Saved,
    Send,
    Ticked,
)
from runtime.framing import decode, encode
from runtime.intake import FiniteCheck, Lag, Returns
from runtime.layout import Columns, Layout
from runtime.members import Member
from runtime.membership import Membership
from runtime.memory import SharedMemoryError
from runtime.messages import Evaluation, Get, Message, ProtocolError, Ringed, Segments
from runtime.pacing import Pace
from runtime.policy_store import PolicyStore
from runtime.ring import RingReader

TICK_SECONDS: Final = 0.02
"""How often credits and leases are looked at when nothing arrives."""
LATECOMER_SECONDS: Final = 60.0
"""How long a finished learner stays for those that never came: what starts with a simulator may take that long."""

T = TypeVar("T")


class Store(Protocol):
    """Where segments go: a replay buffer, or the rollouts of the next update."""

    layout: Layout

    def __len__(self) -> int:
        """Items that are held."""
        ...

    def put(self, columns: Columns) -> None:
        """Copy the items of one segment in."""
        ...

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return copies of what a resumed run needs; of experience, the newest within `most_bytes`."""
        ...


@runtime_checkable
class SlotStore(Protocol):
    """A store that keeps full segments as they come, so that many of them are one copy."""

    def put_arena(self, arena: memoryview, segments: int) -> None:
        """Copy full segments in that lie one behind the other."""
        ...


@dataclass(slots=True)
class Holdings:
    """Experience and accounts of one moment."""

    env_steps: int
    store: dict[str, NDArray[Any]]
    accounts: dict[str, Any]
    last_seqs: dict[str, int]


class Exchange:
    """The methods are for the main thread, except those that begin with an underscore."""

    def __init__(
        self,
        channel: LearnerChannel,
        membership: Membership,
        store: Store,
        policies: PolicyStore,
        pace: Pace,
        say: Callable[[str], None],
        evaluations: deque[tuple[str, Evaluation]],
    ) -> None:
        self._channel = channel
        self._membership = membership
        self._experience = store
        self._policies = policies
        self._pace = pace
        self._say = say
        self._evaluations = evaluations
        self._changed = threading.Condition()
        self._outbox: deque[Send] = deque()
        self._lag = self._last_lag = Lag()
        self._returns = Returns()
        self._finite = FiniteCheck(store.layout)
        self._slots = store if isinstance(store, SlotStore) else None
        self._full = membership.terms.segment_transitions
        self._full_bytes = self._full * membership.terms.transition_bytes
        self._rings: dict[bytes, RingReader] = {}
        """By route; the network thread's alone."""
        self._updates = 0
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange")

    # --- the main thread's side ---
    def start(self) -> None:
        """Begin to answer. The channel belongs to the network thread from here on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and close the sockets."""
        self._closing = True
        self._channel.wake()
        if self._thread.is_alive():
            self._thread.join()
        for ring in self._rings.values():
            ring.close()
        self._policies.close()
        self._channel.close()

    def await_data(self, updates: int, timeout_seconds: float) -> bool:
        """Wait until the data for one more update than `updates` has come in, and say whether it has.

        Raises what the network thread died of, if it did.
        """
        self._updates = updates
        with self._changed:
            if self._error is not None:
                raise RuntimeError("the exchange with the workers broke down") from self._error
            if self._pace.allows_update(self._membership.env_steps, updates):
                return True
            self._changed.wait(timeout_seconds)
            return self._pace.allows_update(self._membership.env_steps, updates)

    def draw(self, take: Callable[[], T]) -> T:
        """Return what `take` takes from the store, while no segment comes in."""
        with self._changed:
            return take()

    def published(self, version: int, updates: int) -> None:
        """Tell the peers that the policy store has a new version, made by so many updates."""
        with self._changed:
            self._updates = updates  # with the version at once: more room must not be used with the old policy
            self._handle(Published(version), None)
        self._channel.wake()

    def saved(self, holdings: Holdings) -> None:
        """Tell the peers up to where a checkpoint holds their segments."""
        self._post(Saved(holdings.last_seqs))

    def finish(self, reason: str, least_seconds: float, most_seconds: float) -> None:
        """Tell the peers that the run is done, and wait until they have gone.

        At least `least_seconds` are waited in any case: some may only now be starting, and ask.
        """
        self._post(Finished(reason))
        began = time.monotonic()
        with self._changed:
            while (passed := time.monotonic() - began) < most_seconds:
                if passed >= least_seconds and not self._membership.members:
                    return
                self._changed.wait(0.1)

    def await_latecomers(self, joiners: int, give_up: Callable[[], bool]) -> None:
        """Stay a minute for those of so many peers that have not left: they would look for us for ever."""
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
        return max(0, joiners - len(self._membership.parted))

    def holdings(self, most_bytes: int) -> Holdings:
        """Copy experience, at most so many bytes, and accounts as they are at one moment."""
        with self._changed:
            accounts = self._membership.accounts
            return Holdings(
                env_steps=self._membership.env_steps,
                store=self._experience.state(most_bytes),
                accounts=accounts.state(),
                last_seqs=accounts.last_seqs(),
            )

    @property
    def env_steps(self) -> int:
        """Env steps taken in by this lineage of checkpoints."""
        return self._membership.env_steps

    def figures(self) -> dict[str, Any]:
        """What a metric record says of the exchange: lag since the last call, counts, mean return."""
        with self._changed:
            lag, self._lag = self._lag, Lag()
            self._last_lag = lag
            totals = self._membership.accounts.totals
            return {
                "policy_lag": lag.figures(),
                "mean_return": self._returns.mean(),
                "workers": self._membership.workers,
                "replay": len(self._experience),
                "accepted": totals.accepted,
                "duplicate": totals.duplicate,
                "refused": totals.stale + totals.misfit,
                "lost": totals.lost,
                "sent": totals.sent,
                "missing": totals.missing,
                "malformed": self._membership.garbled,
            }

    def status(self) -> dict[str, Any]:
        """What the status socket says; any thread may ask."""
        now = time.monotonic()
        with self._changed:
            machine, totals = self._membership, self._membership.accounts.totals
            return {
                "run": machine.terms.run,
                "run_id": machine.terms.run_id,
                "epoch": machine.terms.epoch,
                "policy_version": machine.policy_version,
                "policy_lag": self._last_lag.figures() if not self._lag.segments else self._lag.figures(),
                "env_steps": machine.env_steps,
                "workers": machine.workers,
                "store": len(self._experience),
                "inflight_transitions": machine.inflight_transitions,
                "ceiling": machine.ceiling,
                "malformed": machine.garbled,
                "foreign": machine.foreign,
                "strangers": self._channel.strangers,
                "segments": {name: count for name, count in asdict(totals).items() if name != "transitions"},
                "peers": [self._peer_status(each, now) for each in machine.members.values()],
            }

    def _peer_status(self, member: Member, now: float) -> dict[str, Any]:
        ping, account = member.ping, member.account
        return {
            "pod": member.hello.pod,
            "role": member.hello.role,
            "incarnation": member.hello.incarnation,
            "connected_seconds": round(now - member.joined, 3),
            "heard_seconds": round(now - member.heard, 3),
            "env_steps": ping.env_steps if ping else 0,
            "env_steps_per_second": ping.env_steps_per_second if ping else 0.0,
            "policy_version": ping.policy_version if ping else 0,
            "policy_lag": self._membership.policy_version - ping.policy_version if ping else 0,
            "outstanding": member.outstanding,
            "sent": account.sent,
            "accepted": account.accepted,
            "stale": account.stale,
            "misfit": account.misfit,
            "through_memory": member.route in self._rings,
        }

    def _post(self, event: Event) -> None:
        with self._changed:
            self._handle(event, None)
        self._channel.wake()

    # --- the network thread's side ---
    def _run(self) -> None:
        np.seterr(all="ignore")  # of this thread: see FiniteCheck
        try:
            while not self._closing:
                for inbound in self._channel.poll(TICK_SECONDS):
                    self._receive(inbound)
                with self._changed:
                    self._handle(Ticked(time.monotonic(), self._pace.ceiling(self._updates)), None)
                self._flush()
            self._flush()
        except BaseException as error:  # noqa: BLE001  (the main thread raises it again)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _receive(self, inbound: Inbound) -> None:
        try:
            message, arena = decode(inbound.frames)
        except ProtocolError as error:
            with self._changed:
                self._handle(Garbled(inbound.route, error), None)
            return
        if inbound.port is Port.MODEL:
            self._answer(inbound.route, message)
            return
        spoiled: frozenset[int] = frozenset()
        if isinstance(message, Segments):
            counts = message.rows.columns.transitions
            size = self._membership.terms.transition_bytes * sum(counts)
            if message.ring:
                ring = self._rings.get(inbound.route)
                arena = ring.arena(message.seq, size) if ring else None
            # Of a message with a wrong size it is not asked what its numbers are.
            if arena is not None and arena.nbytes == size and all(counts):
                spoiled = self._finite.spoiled(arena, counts)
        arrived = Arrived(time.monotonic(), inbound.route, message, arena.nbytes if arena else 0, spoiled)
        with self._changed:
            self._handle(arrived, arena)

    def _answer(self, route: bytes, message: Message) -> None:
        if isinstance(message, Get):
            answer, arena = self._policies.answer(message)
            self._channel.send(Port.MODEL, route, encode(answer, arena))
            return
        with self._changed:
            self._handle(Garbled(route, ProtocolError("the model socket takes requests for weights alone")), None)

    def _handle(self, event: Event, arena: memoryview | None) -> None:
        """Do what the machine says; the caller holds the lock. Only what needs no socket is done at once."""
        for instruction in self._membership.handle(event):
            match instruction:
                case Send():
                    self._outbox.append(instruction)
                case Keep():
                    self._keep(instruction, arena)
                case Attach():
                    self._outbox.append(Send(instruction.route, self._attach(instruction)))
                case Detach():
                    if ring := self._rings.pop(instruction.route, None):
                        ring.close()
                case Evaluated():
                    self._evaluations.append((instruction.pod, instruction.evaluation))
                case Note():
                    self._say(instruction.text)

    def _keep(self, keep: Keep, arena: memoryview | None) -> None:
        assert arena is not None  # noqa: S101  (segments that are kept have come with one)
        start, counts = keep.start, keep.rows.columns.transitions
        if self._slots is not None and counts.count(self._full) == len(counts):
            self._slots.put_arena(arena[start : start + len(counts) * self._full_bytes], len(counts))
        else:
            layout = self._experience.layout
            for count in counts:
                end = start + count * layout.item_bytes
                self._experience.put(layout.columns(arena[start:end], count))
                start = end
        self._lag.add(self._membership.policy_version, keep.rows)
        self._returns.add(keep.rows)
        self._changed.notify_all()

    def _attach(self, attach: Attach) -> Ringed:
        if old := self._rings.pop(attach.route, None):
            old.close()
        ring = attach.ring
        try:
            self._rings[attach.route] = RingReader(ring)
        except SharedMemoryError:
            return Ringed(ring.epoch, ring.nonce, is_taken=False)
        return Ringed(ring.epoch, ring.nonce, is_taken=True)

    def _flush(self) -> None:
        while self._outbox:
            send = self._outbox.popleft()
            self._channel.send(Port.DATA, send.route, encode(send.message))
