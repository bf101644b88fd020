"""Both sides of a door: how a peer introduces itself, and who is let in where keys are used.

libzmq asks for each connection that has shown its key, and a list answers. The protocol is ZAP 1.0 (ZeroMQ RFC 27);
there is one such door for each context.
"""

from __future__ import annotations

from typing import Final

import zmq
import zmq.utils.z85

from runtime.keys import LearnerKeys, PeerKeys

_ADDRESS: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"l2r"
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1_000


def introduce(socket: zmq.Socket[bytes], name: bytes, keys: PeerKeys | None) -> None:
    """Let `socket`, which is not connected yet, come back by itself, under its name and with its keys."""
    socket.setsockopt(zmq.IDENTITY, name)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class Admission:
    """Answers for the sockets that it guards. Belongs to the thread that owns them.

    Attributes:
        socket: Where libzmq asks; `answer` when there is something to read.
        strangers: Connections that were refused for their key.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: LearnerKeys) -> None:
        self.strangers = 0
        self._keys = keys
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Let nobody connect to `socket`, which is not bound yet, who is not on the list."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    def answer(self) -> None:
        """Answer all that libzmq has asked."""
        while True:
            try:
                version, request, _domain, _address, _identity, mechanism, *credentials = (
                    self.socket.recv_multipart(zmq.NOBLOCK)
                )
            except zmq.Again:
                return
            key = zmq.utils.z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
            is_known = key in self._keys.allowed
            self.strangers += not is_known
            said = (b"200", b"OK") if is_known else (b"400", b"unknown key")
            self.socket.send_multipart([version, request, *said, b"", b""])

    def close(self) -> None:
        """Close the door."""
        self.socket.close()
