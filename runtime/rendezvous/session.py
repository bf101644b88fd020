"""One node at the rendezvous: its heartbeats, its checks of the other nodes, and the rounds that it joins.

A thread sends heartbeats and checks the others, even while torch's agent waits for processes to end: a node that
stops sending counts as lost. Heartbeats are missed after 10 seconds (30 over etcd).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from runtime.base.metrics import Console
from runtime.rendezvous.plan import NodePlan
from runtime.rendezvous.round_state import (
    FAILED,
    BeatWatch,
    RendezvousNode,
    RoundState,
    StateError,
    completed,
    decode_state,
    ended,
    joined,
    state_key,
    with_beat,
    without,
)
from runtime.rendezvous.shared_values import SharedValues

BEAT_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 10.0
PATIENCE_SECONDS_ETCD: Final = 30.0
"""A heartbeat over etcd is a request and a file write: on a busy machine it takes longer than one in memory."""
_POLL_SECONDS: Final = 0.25
_POLL_SECONDS_ETCD: Final = 0.5
_SAY_SECONDS: Final = 60.0
_END_SECONDS: Final = 20.0
Transition = Callable[[RoundState], RoundState]


class RendezvousSession:
    """Session of one node with one rendezvous."""

    def __init__(self, values: SharedValues, plan: NodePlan, processes: int, console: Console) -> None:
        self.values = values
        self._plan, self._console = plan, console
        self._key = state_key(plan.run_id)
        since = -1 if plan.place is None else plan.place
        self._node = RendezvousNode(uuid.uuid4().hex, plan.name, plan.local_address, 0, processes, since)
        is_etcd = plan.backend != "c10d"
        self._poll_seconds = _POLL_SECONDS_ETCD if is_etcd else _POLL_SECONDS
        patience = PATIENCE_SECONDS_ETCD if is_etcd else PATIENCE_SECONDS
        self._watch = BeatWatch(patience, 4 * self._poll_seconds)
        self._state = RoundState()
        self._joined_round = -1
        self._last_beat = 0.0
        # Also guards the connection, which serves one request at a time.
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="rendezvous", daemon=True)

    @property
    def id(self) -> str:
        """Id of this node."""
        return self._node.id

    @property
    def is_alone(self) -> bool:
        """True if no other node was there when the state was last read."""
        return all(node.id == self.id for node in self._state.everyone())

    def start(self) -> None:
        """Start sending heartbeats and checking the others."""
        self._thread.start()

    @property
    def address(self) -> str:
        """Address at which other nodes reach this one."""
        return self._node.address

    def join(self, port: int = 0) -> RoundState:
        """Join the next round and return it once it is complete.

        Args:
            port: TCP port of this node's store, where the ranks meet if this node gets rank 0.

        Raises RendezvousClosedError if the job is over, StateError if the state is unreadable, and OSError if the
        rendezvous is gone.
        """
        node = replace(self._node, port=port)

        def join(state: RoundState) -> RoundState:
            # At a fixed place this node is the next start of the one that was there.
            has_place = self._plan.place is not None
            before = {other.id for other in state.everyone() if has_place and other.since == node.since} - {self.id}
            return joined(without(state, before), node, self._plan.max_nodes)

        state = self._exchange(lambda state: state if state.end else join(state))
        enough_since: float | None = None
        last_sentence = time.monotonic()
        while state.end or not (state.is_complete and state.has_member(self.id)):
            if state.end:
                raise RendezvousClosedError(f"the training has {state.end}")
            now = time.monotonic()
            if not state.is_enough(self._plan.min_nodes):
                enough_since = None
            elif enough_since is None:
                enough_since = now
            if now - last_sentence >= _SAY_SECONDS:
                last_sentence = now
                self._console.say(self._why_it_waits(state))
            is_due = enough_since is not None and now - enough_since >= self._plan.gather_seconds
            if not is_due and len(state.members) < self._plan.max_nodes:
                time.sleep(self._poll_seconds)
            state = self._exchange(self._gathering(node, is_due=is_due))
        self._joined_round = state.round
        return state

    def _gathering(self, node: RendezvousNode, *, is_due: bool) -> Transition:
        """Return this node's transition while a round gathers; it completes the round if it `is_due`."""
        max_nodes = self._plan.max_nodes

        def transition(state: RoundState) -> RoundState:
            if state.end:
                return state
            if not state.has_member(self.id):  # it had no room until now, or counted as lost
                return joined(state, node, max_nodes)
            is_ready = is_due or len(state.members) >= max_nodes
            return completed(state) if is_ready and state.is_enough(self._plan.min_nodes) else state

        return transition

    def is_round_over(self) -> bool:
        """Return whether this node's round has ended: a node came, left, was lost, or gave the job up.

        Raises the error that the heartbeat thread received.
        """
        self._check()
        state = self._state
        return state.round != self._joined_round or not state.has_member(self.id) or state.end == FAILED

    def end_of_job(self) -> str:
        """Return FINISHED or FAILED, or an empty text while the job is running. Raises OSError."""
        return self._exchange(lambda state: state).end

    def finish(self, word: str) -> str:
        """Report that the job has ended and return how: the first report counts. Raises OSError."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                return self._exchange(lambda state: ended(state, word)).end
            except OSError:
                # Others wait for this report, so a short outage must not lose it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(self._poll_seconds)

    def leave(self) -> None:
        """Leave the round; if the rendezvous is gone, this counts as left."""
        self.close()
        try:
            self._exchange(lambda state: without(state, {self.id}))
        except (OSError, StateError):
            pass

    def close(self) -> None:
        """Stop sending heartbeats."""
        self._is_closed.set()

    def _attend(self) -> None:
        """Send heartbeats and check the others until the session is closed or the rendezvous fails."""
        while not self._is_closed.wait(self._poll_seconds):
            try:
                if time.monotonic() - self._last_beat < BEAT_SECONDS:
                    self._exchange(lambda state: state)
                else:
                    self._exchange(lambda state: with_beat(state, self.id))
                    self._last_beat = time.monotonic()
            except Exception as error:  # noqa: BLE001  (the agent's thread raises it)
                self._error = error
                return

    def _exchange(self, transition: Transition) -> RoundState:
        """Read the state, remove lost nodes, apply the transition, write; retry if another node wrote meanwhile."""
        self._check()
        with self._lock:
            while True:
                text = self.values.read(self._key)
                state = decode_state(text)
                if state.version < self._state.version:
                    # Restarted, or an older signed state was restored: in both cases the nodes have to meet again.
                    raise OSError("the rendezvous has forgotten its nodes")
                lost = self._watch.lost(state.everyone(), self.id, time.monotonic())
                after = transition(without(state, lost) if lost else state)
                if after == state:
                    self._state = state
                    return state
                after = replace(after, version=state.version + 1)
                if self.values.replace(self._key, text, msgspec.json.encode(after).decode()):
                    self._state = after
                    return after

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _why_it_waits(self, state: RoundState) -> str:
        if not state.has_member(self.id):
            return f"{self._plan.max_nodes} nodes train: waiting until there is room for this one"
        if state.expected:
            return f"waiting for {', '.join(node.name for node in state.expected)} to end their processes"
        return f"fewer than {self._plan.min_nodes} nodes are there: waiting on"
