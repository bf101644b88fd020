"""Store in which the ranks of a round meet, on the node of rank 0, on that node's own address.

torch's TCPStore listens on all interfaces and does not authenticate connections. Here it gets a socket that listens
on the same address as Gloo and NCCL: the one at which other nodes reach this node, which is loopback on one
machine.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Final, Self

from torch.distributed import TCPStore  # type: ignore[attr-defined]

_BACKLOG: Final = 2048
"""Number of ranks that may connect at once; the kernel may allow fewer."""


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
