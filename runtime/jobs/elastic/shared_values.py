"""Values that the nodes of a job share: texts in the rendezvous process, that nodes read and replace over CURVE.

Each is replaced only if nobody else replaced it meanwhile (compare and set), and nothing can be removed. A key that
was never set reads as the empty text. torch's own store, which anybody who reaches its port may read, write and
empty, is not used: a node that cannot prove that it knows the run's token gets no connection at all.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, Protocol, Self

from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys, from_token
from runtime.exchange.transport.request_reply import RequestSocket

LARGEST_BYTES: Final = 4 << 20
"""Longest frame; the state of a thousand nodes has 0.3 MB."""
ANSWER_SECONDS: Final = 15.0
_READ, _REPLACE, _OK, _NO, _ERROR = b"read", b"replace", b"ok", b"no", b"error"


class SharedValues(Protocol):
    """Texts by key."""

    def read(self, key: str) -> str:
        """Return a value, or the empty text. Raises OSError if the rendezvous does not answer."""

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`, and say whether it was. Raises OSError."""


class MemoryValues:
    """Values in this process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, key: str) -> str:
        """Return a value."""
        return self._texts.get(key, "")

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`."""
        with self._lock:
            if self._texts.get(key, "") != before:
                return False
            self._texts[key] = after
            return True


class RemoteValues:
    """Values at the rendezvous; any thread may use them. Raises RefusedKeysError where its token is another."""

    def __init__(self, socket: RequestSocket) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, key: str) -> str:
        """Return a value."""
        return self._request(_READ, key)[1]

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`."""
        return self._request(_REPLACE, key, before, after)[0] == _OK

    def _request(self, operation: bytes, *texts: str) -> tuple[bytes, str]:
        with self._lock:
            if self._is_closed:
                raise OSError("the connection to the rendezvous is closed")
            reply = self._socket.request([operation, *(text.encode() for text in texts)], ANSWER_SECONDS)
        if len(reply) != 2 or reply[0] not in {_OK, _NO, _ERROR}:
            raise OSError("the rendezvous answers something else")
        status, text = reply[0], reply[1].decode(errors="replace")
        if status == _ERROR:
            raise OSError(text)
        return status, text

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer(values: SharedValues, request: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the reply to a node's request."""
    try:
        operation, *texts = request
        decoded = [text.decode() for text in texts]
        if operation == _READ:
            return _OK, values.read(*decoded).encode()
        if operation == _REPLACE:
            return (_OK if values.replace(*decoded) else _NO), b""
    except OSError as error:
        return _ERROR, str(error).encode()
    except (ValueError, TypeError):  # not text, or another number of frames: another version of this program
        pass
    return _ERROR, b"the rendezvous does not know this request"


def keys_of(token: str) -> tuple[LearnerKeys, PeerKeys] | tuple[None, None]:
    """Return the keys of rendezvous and nodes; None where there is no token, which this machine alone allows."""
    # Not the token itself: the exchange derives its keys from that, and a key has one purpose.
    return from_token(f"l2r rendezvous\0{token}") if token else (None, None)
