"""Values that the nodes of a job share: texts in the rendezvous process that nodes read and replace over CURVE.

A value is replaced only if no other node replaced it meanwhile (compare and set), and nothing can be removed. A key
that was never set has the empty text. torch's own store is not used, because anyone who can reach its port may
read, write and clear it: here a node that does not know the run's token gets no connection.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, Protocol, Self

from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys, from_token
from runtime.exchange.transport.request_reply import RequestSocket

LARGEST_BYTES: Final = 4 << 20
"""Maximum size of a frame; the state of a thousand nodes has 0.3 MB."""
ANSWER_SECONDS: Final = 15.0
_READ, _REPLACE, _OK, _NO, _ERROR = b"read", b"replace", b"ok", b"no", b"error"


class SharedValues(Protocol):
    """Texts by key."""

    def read(self, key: str) -> str:
        """Return a value, or an empty text. Raises OSError if the rendezvous does not respond."""

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still equals `before`, and return whether it did. Raises OSError."""


class MemoryValues:
    """Values in this process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, key: str) -> str:
        """Return a value."""
        return self._texts.get(key, "")

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still equals `before`."""
        with self._lock:
            if self._texts.get(key, "") != before:
                return False
            self._texts[key] = after
            return True


class RemoteValues:
    """Values at the rendezvous; thread-safe. Raises RefusedKeysError if its token differs."""

    def __init__(self, socket: RequestSocket) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, key: str) -> str:
        """Return a value."""
        return self._request(_READ, key)[1]

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still equals `before`."""
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
    """Return the keys of rendezvous and nodes; None without a token, which is allowed on one machine only."""
    # Not the token itself: the exchange derives its keys from that, and each key has one purpose.
    return from_token(f"l2r rendezvous\0{token}") if token else (None, None)
