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
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.channels import Inbound, LearnerChannel, Port
from runtime.events import Arrived, Evaluated, Event, Finished, Garbled, Note, Published, Saved, Send, Store, Ticked
from runtime.framing import decode, encode
from runtime.membership import Membership
from runtime.messages import Evaluation, Get, Message, ProtocolError, Trajectory
from runtime.pacing import Pace
from runtime.policy_store import PolicyStore
from runtime.replay import Batch, Replay
from runtime.segments import columns, is_finite

TICK_SECONDS: Final = 0.02
"""How often credits and leases are looked at when nothing arrives."""
RECENT_EPISODES: Final = 100
"""Episodes whose mean is the `mean_return` of a record."""


@dataclass(slots=True)
class Intake:
    """What came in since it was last looked at, for one metric record."""

    lag_min: int = 0
    lag_max: int = 0
    lag_sum: int = 0
    segments: int = 0

    def add(self, oldest: int, newest: int) -> None:
        """Count a segment by how many versions its oldest and newest actions were behind."""
        self.lag_min = newest if not self.segments else min(self.lag_min, newest)
        self.lag_max = max(self.lag_max, oldest)
        self.lag_sum += oldest + newest
        self.segments += 1

    def lag(self) -> list[float]:
        """[min, mean, max] in versions; zeros if nothing came."""
        return [self.lag_min, self.lag_sum / (2 * self.segments) if self.segments else 0.0, self.lag_max]


@dataclass(slots=True)
class Holdings:
    """Replay and accounts of one moment."""

    env_steps: int
    replay: dict[str, NDArray[Any]]
    accounts: dict[str, Any]
    last_seqs: dict[str, int]


@dataclass(slots=True)
class _Returns:
    """Mean return of the latest training episodes."""

    kept: deque[tuple[int, float]] = field(default_factory=deque)

    def add(self, segment: Trajectory) -> None:
        if segment.episodes:
            self.kept.append((segment.episodes, segment.return_sum))
            while sum(count for count, _ in self.kept) - self.kept[0][0] >= RECENT_EPISODES:
                self.kept.popleft()

    def mean(self) -> float | None:
        count = sum(count for count, _ in self.kept)
        return sum(total for _, total in self.kept) / count if count else None


class Exchange:
    """The methods are for the main thread, except those that begin with an underscore."""

    def __init__(
        self,
        channel: LearnerChannel,
        membership: Membership,
        replay: Replay,
        policies: PolicyStore,
        pace: Pace,
        say: Callable[[str], None],
        evaluations: deque[tuple[str, Evaluation]],
    ) -> None:
        self._channel = channel
        self._membership = membership
        self._replay = replay
        self._policies = policies
        self._pace = pace
        self._say = say
        self._evaluations = evaluations
        self._changed = threading.Condition()
        self._outbox: deque[Send] = deque()
        self._intake = Intake()
        self._returns = _Returns()
        self._updates = 0
        self._closing = False
        self._error: BaseException | None = None
        self._obs_dim, self._act_dim = membership.terms.obs_dim, membership.terms.act_dim
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

    def sample(self, batch_size: int) -> Batch:
        """Draw a batch; its tensors are overwritten by the next one."""
        with self._changed:
            return self._replay.sample(batch_size)

    def published(self, version: int) -> None:
        """Tell the peers that the policy store has a new version."""
        self._post(Published(version))

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

    def holdings(self) -> Holdings:
        """Copy replay and accounts as they are at one moment."""
        with self._changed:
            accounts = self._membership.accounts
            return Holdings(
                env_steps=self._membership.env_steps,
                replay={name: np.array(value) for name, value in self._replay.state().items()},
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
            intake, self._intake = self._intake, Intake()
            totals = self._membership.accounts.totals
            return {
                "policy_lag": intake.lag(),
                "mean_return": self._returns.mean(),
                "workers": self._membership.workers,
                "replay": len(self._replay),
                "accepted": totals.accepted,
                "duplicate": totals.duplicate,
                "refused": totals.stale + totals.misfit,
                "lost": totals.lost,
                "malformed": self._membership.garbled,
            }

    def _post(self, event: Event) -> None:
        with self._changed:
            self._handle(event, None)
        self._channel.wake()

    # --- the network thread's side ---
    def _run(self) -> None:
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
        arrived = Arrived(
            time.monotonic(),
            inbound.route,
            message,
            arena.nbytes if arena is not None else 0,
            is_finite=self._is_finite(message, arena),
        )
        with self._changed:
            self._handle(arrived, arena)

    def _is_finite(self, message: Message, arena: memoryview | None) -> bool:
        """Say whether the numbers of a segment are finite; of one with a wrong size that is not asked."""
        if not isinstance(message, Trajectory) or arena is None:
            return True
        try:
            return is_finite(columns(arena, message.transitions, self._obs_dim, self._act_dim))
        except ValueError:
            return True  # the machine refuses it for its size

    def _answer(self, route: bytes, message: Message) -> None:
        if isinstance(message, Get):
            self._channel.send(Port.MODEL, route, encode(*self._policies.answer(message)))
            return
        with self._changed:
            self._handle(Garbled(route, ProtocolError("the model socket takes requests for weights alone")), None)

    def _handle(self, event: Event, arena: memoryview | None) -> None:
        """Do what the machine says; the caller holds the lock. Only what needs no socket is done at once."""
        for instruction in self._membership.handle(event):
            match instruction:
                case Send():
                    self._outbox.append(instruction)
                case Store():
                    self._store(instruction.segment, arena)
                case Evaluated():
                    self._evaluations.append((instruction.pod, instruction.evaluation))
                case Note():
                    self._say(instruction.text)

    def _store(self, segment: Trajectory, arena: memoryview | None) -> None:
        assert arena is not None  # noqa: S101  (the decoder gives every segment its arena)
        self._replay.extend(*columns(arena, segment.transitions, self._obs_dim, self._act_dim))
        version = self._membership.policy_version
        self._intake.add(max(0, version - segment.policy_version_min), max(0, version - segment.policy_version_max))
        self._returns.add(segment)
        self._changed.notify_all()

    def _flush(self) -> None:
        while self._outbox:
            send = self._outbox.popleft()
            self._channel.send(Port.DATA, send.route, encode(send.message))
