"""Limits of a connection's ZMTP handshake, and detection of wrong keys from libzmq's monitor events."""

from __future__ import annotations

import sys
from typing import Final

import zmq

HANDSHAKE_MS: Final = 10_000
"""A connection without a complete ZMTP handshake is closed after this time."""
HANDSHAKE_BYTES: Final = 1_024
"""Added to the longest frame: libzmq's limit includes CURVE's handshake and its overhead on each message."""
MAX_HANDSHAKE_FAILURES: Final = 5
"""Number of consecutive failed handshakes without a stated reason after which wrong keys are assumed."""
HANDSHAKE_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_CERTAIN: Final = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


def event_of(frame: bytes) -> int:
    """Return the number of the event in the first frame of a monitor's message, see zmq_socket_monitor(3)."""
    return int.from_bytes(frame[:2], sys.byteorder)


class HandshakeFailures:
    """Consecutive failed handshakes of one socket."""

    def __init__(self) -> None:
        self._number = 0

    def show_wrong_keys(self, event: int) -> bool:
        """Count a handshake's event; return True if it shows that the ends do not accept each other's keys.

        A server that ends during a handshake looks like one that refuses: a single failure proves nothing.
        """
        self._number = 0 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._number + 1
        return event in _CERTAIN or self._number >= MAX_HANDSHAKE_FAILURES
