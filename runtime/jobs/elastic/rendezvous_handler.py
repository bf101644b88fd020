"""Rendezvous handler for torch's launcher, registered under its own name.

torch's own handler stores its state as a pickle, which runs code when it is read, counts restarts over the life of
a node, and does not notice a lost node as long as no operation fails. This handler uses `RendezvousSession`, and
only torch's public interface.

One node at the rendezvous: its heartbeats, its checks of the other nodes, and the rounds that it joins.

A thread sends heartbeats and checks the others, even while torch's agent waits for processes to end: a node that
stops sending counts as lost. Heartbeats are missed after 10 seconds (30 over etcd).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec.structs import replace
from torch.distributed import DistStoreError, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
)

from runtime.base import contract
from runtime.base.metrics import Console
from runtime.jobs.elastic.plan import ElasticPlan
from runtime.jobs.elastic.round_state import (
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
from runtime.jobs.elastic.shared_values import SharedValues

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

    def __init__(self, values: SharedValues, plan: ElasticPlan, processes: int, console: Console) -> None:
        self.values = values
        self._plan, self._console = plan, console
        self._key = state_key(plan.run_id)
        self._node = RendezvousNode(uuid.uuid4().hex, plan.name, plan.local_address, 0, processes)
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
        state = self._exchange(lambda state: state if state.end else joined(state, node, self._plan.max_nodes))
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


_STORE_POLL_SECONDS: Final = 0.1
_GET_SECONDS: Final = 15.0
"""How long to wait for another node's value; after that the node counts as lost."""


class RoundStore(Store):
    """Store of one round."""

    def __init__(self, session: RendezvousSession, prefix: str) -> None:
        super().__init__()
        self._session, self._values, self._prefix = session, session.values, prefix

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        while not self._values.replace(self._prefix + key, before := self._values.read(self._prefix + key), text):
            if before == text:
                return

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        while True:
            before = self._values.read(self._prefix + key)
            after = int(before or 0) + amount
            if self._values.replace(self._prefix + key, before, str(after)):
                return after

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return all(self._values.read(self._prefix + key) for key in keys)

    def get(self, key: str) -> bytes:
        """Return a value once it is set. Raises DistStoreError if its node is gone or does not respond."""
        deadline = time.monotonic() + _GET_SECONDS
        while not (text := self._values.read(self._prefix + key)):
            if self._session.is_round_over() or time.monotonic() > deadline:
                raise DistStoreError("a node of the round is gone")
            time.sleep(_STORE_POLL_SECONDS)
        return text.encode("latin-1")

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set, or the round has ended: then no node is left to set them."""
        deadline = time.monotonic() + (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        while not self.check(keys) and not self._session.is_round_over():
            if time.monotonic() > deadline:
                raise DistStoreError("the other nodes do not end")
            time.sleep(_STORE_POLL_SECONDS)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


_BACKLOG: Final = 2048
"""Number of ranks that may connect simultaneously; the kernel may allow fewer."""


class TrainingStore:
    """Port of a node for one round, reserved before the node knows its rank, and at rank 0 the store on it."""

    def __init__(self, address: str) -> None:
        """Reserve a free TCP port. Raises OSError if there is none."""
        self._address = address
        self._listener = _listen(address)
        self._store: TCPStore | None = None
        self.port: Final = int(self._listener.getsockname()[1])

    def open(self) -> None:
        """Serve the ranks of the round until `close`."""
        # From here on the store owns the descriptor and closes it.
        self._store = TCPStore(
            self._address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._listener.detach(),
        )

    def close(self) -> None:
        """End the store; operations of connected ranks fail."""
        self._listener.close()
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        try:
            listener.bind((address, 0))
        except OSError:
            # With address translation, no local interface has the address at which others reach this node.
            listener.bind(("", 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


BACKEND: Final = "l2r"
"""Name in torch's registry."""
_HANDLER: Final = "handler"
Announce = Callable[[RoundState | None, int], None]
"""Reports this node's state: None while it waits; otherwise the round and the node's number in it."""


class GivenUpError(RendezvousError):
    """The program has failed too often with the same nodes."""


class RendezvousHandler(rendezvous.RendezvousHandler):
    """Rendezvous handler of one node."""

    def __init__(self, session: RendezvousSession, plan: ElasticPlan, announce: Announce) -> None:
        self._session, self._plan, self._announce = session, plan, announce
        self._nodes: frozenset[str] = frozenset()
        self._num_failures = 0
        self._is_change_reported = True
        self._ranks_store: TrainingStore | None = None

    def close(self) -> None:
        """End the store of this node's current round, if any."""
        if self._ranks_store is not None:
            self._ranks_store.close()

    def get_backend(self) -> str:
        """Return the name in torch's registry."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Return that training processes use the agent's store: torch's own store would listen on all
        interfaces.
        """
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round. Raises GivenUpError, and the errors of `RendezvousSession.join`."""
        # torch's agent calls this at the start, after other nodes joined or left, and after its program failed.
        self._num_failures += not self._is_change_reported
        if self._num_failures > self._plan.max_restarts:
            raise GivenUpError(f"the program has failed {self._num_failures} times with the same nodes")
        self._announce(None, 0)
        self.close()
        self._ranks_store = TrainingStore(self._session.address)
        state = self._session.join(self._ranks_store.port)
        nodes = frozenset(member.id for member in state.members)
        if nodes != self._nodes:
            # With other members, earlier failures may have been theirs: the budget is reset.
            self._nodes, self._num_failures = nodes, 0
        self._is_change_reported = False
        os.environ[contract.ENV_ROUND] = str(state.round)  # inherited by the processes
        rank = next(rank for rank, member in enumerate(state.members) if member.id == self._session.id)
        if rank == 0:
            self._ranks_store.open()
        else:
            self._ranks_store.close()
        self._announce(state, rank)
        # Not below the state's own key: in etcd that would be a folder and a file at once.
        store = RoundStore(self._session, f"l2r/elastic-rounds/{self._plan.run_id}/{state.round}/")
        first = state.members[0]
        # Address and port come from the state, which only nodes of this run can write: in torch's own store, anyone
        # who can reach its port could redirect the ranks.
        where = rendezvous.RendezvousStoreInfo(first.address, first.port)
        return RendezvousInfo(store, rank, len(state.members), where)

    def num_nodes_waiting(self) -> int:
        """Return 1 if the round is over, so that the agent restarts its processes, else 0."""
        self._is_change_reported = self._session.is_round_over()
        return int(self._is_change_reported)

    def is_closed(self) -> bool:
        """Return whether the job is over."""
        return bool(self._session.end_of_job())

    def set_closed(self) -> None:
        """Do nothing: the node ends the job, because it knows how its program ended."""

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._plan.run_id

    def shutdown(self) -> bool:
        """Keep the session: torch's launcher calls this after any error, and after most of them the node joins
        again.
        """
        return True


def configuration(handler: RendezvousHandler) -> dict[str, object]:
    """Return the rendezvous configuration that makes the launcher use a handler."""
    return {_HANDLER: handler}


def register() -> None:
    """Register the handler with torch's launcher; repeated calls do nothing."""
    rendezvous.rendezvous_handler_registry.register(BACKEND, _of_parameters)


def _of_parameters(parameters: RendezvousParameters) -> rendezvous.RendezvousHandler:
    handler = parameters.get(_HANDLER)
    if not isinstance(handler, RendezvousHandler):
        raise TypeError(f"the rendezvous {BACKEND} is for `l2r-runtime elastic`, which hands its session over")
    return handler
