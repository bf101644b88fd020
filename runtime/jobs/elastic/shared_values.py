"""Values that the nodes of a job share: in torch's key-value store, or in an etcd over its v2 interface.

Each is text that is replaced only if nobody else replaced it meanwhile (compare and set). Whoever reaches the port
could write there, so each value carries an HMAC under the run's token, and one without a valid HMAC is refused
unread. A key that was never set reads as the empty text.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, Protocol

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousStateError

_ETCD_SECONDS: Final = 15.0
_ETCD_MISSING, _ETCD_CHANGED = 404, 412
_ETCD_BYTES: Final = 4 << 20


class SharedValues(Protocol):
    """Texts by key."""

    def read(self, key: str) -> str:
        """Return a value, or the empty text. Raises OSError if nobody can be asked."""

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`, and say whether it was. Raises OSError."""


class StoreValues:
    """Values in torch's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, key: str) -> str:
        """Return a value."""
        # `get` would block until somebody sets the key; this sets the empty text where there is nothing.
        return self._swap(key, "", "")

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`."""
        return self._swap(key, before, after) == after

    def _swap(self, key: str, before: str, after: str) -> str:
        try:
            return bytes(self._store.compare_set(key, before, after)).decode()
        except RuntimeError as error:  # torch's own errors of connections are RuntimeErrors
            raise OSError(str(error)) from error
        except UnicodeDecodeError as error:
            raise RendezvousStateError(f"the rendezvous holds no text: {error}") from error


class EtcdValues:
    """Values in etcd."""

    def __init__(self, host: str, port: int) -> None:
        url_host = f"[{host}]" if ":" in host else host
        self._url = f"http://{url_host}:{port}/v2/keys/"

    def read(self, key: str) -> str:
        """Return a value."""
        try:
            with urllib.request.urlopen(self._of(key), timeout=_ETCD_SECONDS) as answer:  # noqa: S310  (http, made above)
                return str(json.loads(answer.read(_ETCD_BYTES))["node"]["value"])
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _ETCD_MISSING:
                    return ""
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"etcd answers something else: {error}") from error

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`."""
        condition = {"prevValue": before} if before else {"prevExist": "false"}
        body = urllib.parse.urlencode({"value": after, **condition}).encode()
        request = urllib.request.Request(self._of(key), body, method="PUT")  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=_ETCD_SECONDS).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                if error.code in {_ETCD_MISSING, _ETCD_CHANGED}:
                    return False
            raise
        return True

    def _of(self, key: str) -> str:
        return self._url + urllib.parse.quote(key)


class SignedValues:
    """Values that are signed when they are set, and verified when they are read."""

    def __init__(self, values: SharedValues, token: str, run_id: str) -> None:
        self._values, self._token, self._run_id = values, token, run_id

    def read(self, key: str) -> str:
        """Return a value. Raises RendezvousStateError if it was not set by a process of this run."""
        signed = self._values.read(key)
        if not signed:
            return ""
        digest, _, text = signed.partition(" ")
        # Constant time, so that the comparison tells nothing about the right digest.
        if not hmac.compare_digest(digest.encode(), self._digest(key, text).encode()):
            raise RendezvousStateError("the state of the rendezvous is not signed with this run's token")
        return text

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still is `before`."""
        return self._values.replace(key, self._signed(key, before) if before else "", self._signed(key, after))

    def _signed(self, key: str, text: str) -> str:
        return f"{self._digest(key, text)} {text}"

    def _digest(self, key: str, text: str) -> str:
        # Run and key are part of the HMAC's key: a value of another run, or of another key, is not valid here.
        secret = hashlib.sha256(f"l2r rendezvous\0{self._run_id}\0{key}\0{self._token}".encode()).digest()
        return hmac.digest(secret, text.encode(), "sha256").hex()


def signed(values: SharedValues, token: str, run_id: str) -> SharedValues:
    """Return values that are signed with a token; as they are where there is none, which loopback alone allows."""
    return SignedValues(values, token, run_id) if token else values
