"""Rendezvous handler for torch's launcher, registered under its own name.

torch's own handler stores its state as a pickle, which runs code when it is read, counts restarts over the life of
a node, and does not notice a lost node as long as no operation fails. This handler uses `RendezvousSession`, and
only torch's public interface.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from torch.distributed import DistStoreError, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousInfo, RendezvousParameters

from runtime.base import contract
from runtime.rendezvous.plan import NodePlan
from runtime.rendezvous.round_state import RoundState
from runtime.rendezvous.session import RendezvousSession

_POLL_SECONDS: Final = 0.1
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
            time.sleep(_POLL_SECONDS)
        return text.encode("latin-1")

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set, or the round has ended: then no node is left to set them."""
        deadline = time.monotonic() + (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        while not self.check(keys) and not self._session.is_round_over():
            if time.monotonic() > deadline:
                raise DistStoreError("the other nodes do not end")
            time.sleep(_POLL_SECONDS)

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

    def __init__(self, session: RendezvousSession, plan: NodePlan, announce: Announce) -> None:
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


def configuration(handler: RendezvousHandler) -> dict[str, Any]:
    """Return the fields of a LaunchConfig that make torch's launcher use a handler."""
    rendezvous.rendezvous_handler_registry.register(BACKEND, _of_parameters)  # repeated calls do nothing
    return {"rdzv_backend": BACKEND, "rdzv_configs": {_HANDLER: handler}}


def _of_parameters(parameters: RendezvousParameters) -> rendezvous.RendezvousHandler:
    handler = parameters.get(_HANDLER)
    if not isinstance(handler, RendezvousHandler):
        raise TypeError(f"the rendezvous {BACKEND} is for nodes of `l2r-runtime`, which hand their sessions over")
    return handler
