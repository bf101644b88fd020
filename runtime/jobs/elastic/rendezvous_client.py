"""Connection of a node to the rendezvous (torch's store or etcd), with signed state.

torch stores the state of a rendezvous as a pickle, and unpickling runs code. Whoever reaches the port could write
one, so each state has an HMAC under the run's token in front, and a state without a valid one is refused unread.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from runtime.jobs.elastic.completion_flag import CompletionFlag, EtcdCompletionFlag, StoreCompletionFlag
from runtime.jobs.elastic.plan import ElasticPlan

PATIENCE: Final = timedelta(seconds=15)
"""Wait for a value that another node must write; after it that node counts as gone."""
_CONNECT_SECONDS: Final = 3.0
_SUM_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class RendezvousConnection:
    """A connection to the rendezvous."""

    backend: RendezvousBackend
    store: Store
    completion_flag: CompletionFlag


def connect(plan: ElasticPlan) -> RendezvousConnection:
    """Connect to the rendezvous. Raises OSError while it is not there, RendezvousConnectionError if it goes."""
    address = plan.address()
    if address is None:
        raise OSError("the rendezvous has not said yet where it listens")
    host, port = address
    # A plain connection first: torch's own attempts go on for the whole timeout and react to no signal.
    socket.create_connection((host, port), _CONNECT_SECONDS).close()
    if plan.backend == "c10d":
        try:
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise RendezvousConnectionError(str(error)) from error
        backend: RendezvousBackend = C10dRendezvousBackend(store, plan.run_id)
        completion_flag: CompletionFlag = StoreCompletionFlag(store, plan.run_id)
        rendezvous_store: Store = PrefixStore("l2r", store)
    else:
        backend, rendezvous_store, completion_flag = _etcd(host, port, plan.run_id)
    if plan.token:
        backend = SignedBackend(backend, plan.token, plan.run_id)
    return RendezvousConnection(backend, rendezvous_store, completion_flag)


def _etcd(host: str, port: int, run_id: str) -> tuple[RendezvousBackend, Store, CompletionFlag]:
    """Connect to an etcd through torch's own client of it, which needs the package python-etcd."""
    import etcd
    from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

    try:
        client = etcd.Client(host, port, read_timeout=int(PATIENCE.total_seconds()), allow_reconnect=False)
        backend = EtcdRendezvousBackend(client, run_id, key_prefix="/torch/elastic/rendezvous")
    except etcd.EtcdException as error:
        raise RendezvousConnectionError(f"etcd: {error}") from error
    store = EtcdStore(client, f"/torch/elastic/store/{run_id}/", timeout=PATIENCE)
    return backend, store, EtcdCompletionFlag(host, port, run_id)


class SignedBackend(RendezvousBackend):
    """Backend that signs states when it writes and verifies them when it reads."""

    def __init__(self, backend: RendezvousBackend, token: str, run_id: str) -> None:
        self._backend = backend
        # The run id is part of the key: a signed state of another run is not valid here.
        self._key = hashlib.sha256(f"l2r rendezvous\0{run_id}\0{token}".encode()).digest()

    @property
    def name(self) -> str:
        """The backend's name."""
        return str(self._backend.name)

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state. Raises RendezvousStateError if it was not written by one of this run."""
        state = self._backend.get_state()
        return None if state is None else (self._verified(state[0]), state[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the state, and return the one that is there now."""
        result = self._backend.set_state(self._sum(state) + state, token)
        return None if result is None else (self._verified(result[0]), *result[1:])

    def _sum(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, "sha256")

    def _verified(self, signed: Any) -> bytes:
        raw = bytes(signed)
        state = raw[_SUM_BYTES:]
        # Constant time, so that the comparison tells nothing about the right digest.
        if not hmac.compare_digest(raw[:_SUM_BYTES], self._sum(state)):
            raise RendezvousStateError("the state of the rendezvous is not signed with this run's token")
        return state
