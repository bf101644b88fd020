"""Store in which the ranks of a round meet, held by the node of rank 0 on that node's own address.

torch opens the port of its TCPStore on all interfaces and asks nobody who connects for a secret. Here it is handed
a socket that listens where Gloo and NCCL do: on the address at which other nodes reach this one, which is loopback
on one machine.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Final, Self

from torch.distributed import TCPStore  # type: ignore[attr-defined]

_BACKLOG: Final = 2048
"""Ranks that connect at once; the kernel may allow fewer."""


class TrainingStore:
    """Port of a node for one round, taken before the node knows its rank, and the store behind it at rank 0."""

    def __init__(self, address: str) -> None:
        """Take a free TCP port. Raises OSError where the machine has none."""
        self._address = address
        self._listener = _listen(address)
        self._store: TCPStore | None = None
        self.port: Final = int(self._listener.getsockname()[1])

    def open(self) -> None:
        """Serve the ranks of the round until `close`."""
        # The store owns the descriptor from here on, and closes it.
        self._store = TCPStore(
            self._address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._listener.detach(),
        )

    def close(self) -> None:
        """End the store; ranks that are still connected fail."""
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
            # Behind a translation of addresses no interface has the address at which others reach this node.
            listener.bind(("", 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
