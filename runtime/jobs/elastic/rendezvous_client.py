"""Connecting a node to the rendezvous: torch's store or etcd, and what is read there only believed if it is signed.

torch keeps the state of a rendezvous as a pickle, and unpickling is running code. Whoever reaches the port could
write one, so each state carries an HMAC under the run's token and is not looked at without it.
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

from runtime.elastic.notice import EtcdNotice, Notice, StoreNotice
from runtime.elastic.plan import Plan

PATIENCE: Final = timedelta(seconds=15)
"""How long a node waits for what another one is to write down; then that one is taken for gone."""
_CONNECT_SECONDS: Final = 3.0
_SUM_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Meeting:
    """A connection to the rendezvous."""

    backend: RendezvousBackend
    store: Store
    notice: Notice


def connect(plan: Plan) -> Meeting:
    """Connect to the rendezvous. Raises OSError while it is not there, RendezvousConnectionError if it goes."""
    address = plan.address()
    if address is None:
        raise OSError("the rendezvous has not said yet where it listens")
    host, port = address
    # A plain connection first: torch's own tries go on for as long as the store's patience and heed no signal.
    socket.create_connection((host, port), _CONNECT_SECONDS).close()
    if plan.backend == "c10d":
        try:
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise RendezvousConnectionError(str(error)) from error
        backend: RendezvousBackend = C10dRendezvousBackend(store, plan.run_id)
        notice: Notice = StoreNotice(store, plan.run_id)
        kept: Store = PrefixStore("l2r", store)
    else:
        backend, kept, notice = _etcd(host, port, plan.run_id)
    if plan.token:
        backend = Signed(backend, plan.token, plan.run_id)
    return Meeting(backend, kept, notice)


def _etcd(host: str, port: int, run_id: str) -> tuple[RendezvousBackend, Store, Notice]:
    """Connect to an etcd through torch's own client of it, which needs the package python-etcd."""
    import etcd
    from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

    try:
        client = etcd.Client(host, port, read_timeout=int(PATIENCE.total_seconds()), allow_reconnect=False)
        backend = EtcdRendezvousBackend(client, run_id, key_prefix="/torch/elastic/rendezvous")
    except etcd.EtcdException as error:
        raise RendezvousConnectionError(f"etcd: {error}") from error
    return (
        backend,
        EtcdStore(client, f"/torch/elastic/store/{run_id}/", timeout=PATIENCE),
        EtcdNotice(host, port, run_id),
    )


class Signed(RendezvousBackend):
    """A backend whose states are signed on the way out, and seen to on the way in."""

    def __init__(self, backend: RendezvousBackend, token: str, run_id: str) -> None:
        self._backend = backend
        self._key = hashlib.sha256(f"l2r rendezvous\0{run_id}\0{token}".encode()).digest()

    @property
    def name(self) -> str:
        """The backend's name."""
        return str(self._backend.name)

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state. Raises RendezvousStateError if it was not written by one of this run."""
        found = self._backend.get_state()
        return None if found is None else (self._opened(found[0]), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the state, and return the one that is there now."""
        found = self._backend.set_state(self._sum(state) + state, token)
        return None if found is None else (self._opened(found[0]), *found[1:])

    def _sum(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, "sha256")

    def _opened(self, signed: Any) -> bytes:
        raw = bytes(signed)
        state = raw[_SUM_BYTES:]
        if not hmac.compare_digest(raw[:_SUM_BYTES], self._sum(state)):
            raise RendezvousStateError("the state of the rendezvous is not signed with this run's token")
        return state
