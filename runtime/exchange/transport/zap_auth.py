"""Limits of sockets, and authentication of connections with CURVE keys: a client's options, a server's ZAP answers.

libzmq asks for each connection that has shown its public key, and a list decides. The protocol is ZAP 1.0
(https://rfc.zeromq.org/spec/27/); it has one inproc address per context, so one authenticator serves all sockets.

Handshakes (ZMTP) are limited; libzmq's monitor events show connections with wrong keys.
"""

from __future__ import annotations

import sys
from typing import Final

import zmq
import zmq.utils.z85

from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys

_ADDRESS: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"l2r"
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1_000


def bounded_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, largest_bytes: int, *, ipv6: bool
) -> zmq.Socket[bytes]:
    """Return a socket that closes connections with larger frames or incomplete handshakes, and that drops unsent
    messages when it is closed.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, largest_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.IPV6, int(ipv6))
    return socket


def configure_client(socket: zmq.Socket[bytes], name: bytes, keys: PeerKeys | None) -> None:
    """Set name, keys and reconnection of `socket`, which is not connected yet."""
    socket.setsockopt(zmq.IDENTITY, name)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # no queue for an absent learner: the session decides what to resend
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class ZapAuthenticator:
    """ZAP handler for the sockets that it guards. Belongs to the thread that owns them.

    Attributes:
        socket: Receives libzmq's requests; call `answer_requests` when it is readable.
        refused_keys: Number of connections that were refused because of their key.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: LearnerKeys) -> None:
        self.refused_keys = 0
        self._keys = keys
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Require a listed key from every connection to `socket`, which is not bound yet."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    def answer_requests(self) -> None:
        """Answer all pending requests of libzmq."""
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, request, _domain, _address, _identity, mechanism, *credentials = parts
            key = zmq.utils.z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
            is_allowed = key in self._keys.allowed
            self.refused_keys += not is_allowed
            status = (b"200", b"OK") if is_allowed else (b"400", b"unknown key")
            self.socket.send_multipart([version, request, *status, b"", b""])  # user id and metadata stay empty

    def close(self) -> None:
        """Close the socket for requests."""
        self.socket.close()


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
