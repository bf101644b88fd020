"""Completion flag of an elastic job: one word at the rendezvous that tells late nodes how the job ended.

With etcd it is a key of its own over plain HTTP; with torch's store a key beside those of the rendezvous.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, Protocol

FINISHED: Final = "finished"
FAILED: Final = "failed"
_SECONDS: Final = 5.0


class CompletionFlag(Protocol):
    """Completion flag of a job."""

    def read(self) -> str | None:
        """Return FINISHED or FAILED, or None while it goes on. Raises OSError if nobody can be asked."""

    def write(self, word: str) -> None:
        """Set the flag; the first word stands. Raises OSError."""


class StoreCompletionFlag:
    """Flag in torch's key-value store."""

    def __init__(self, store: object, run_id: str) -> None:
        self._store = store
        self._key = f"l2r/end/{run_id}"

    def read(self) -> str | None:
        """Return the word, if there is one."""
        try:
            if not self._store.check([self._key]):  # type: ignore[attr-defined]
                return None
            return bytes(self._store.get(self._key)).decode()  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def write(self, word: str) -> None:
        """Set the key."""
        try:
            # Atomic: of two nodes that end at once the first decides.
            self._store.compare_set(self._key, "", word)  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise OSError(str(error)) from error


class EtcdCompletionFlag:
    """Flag in etcd, through its v2 interface."""

    def __init__(self, host: str, port: int, run_id: str) -> None:
        url_host = f"[{host}]" if ":" in host else host
        self._url = f"http://{url_host}:{port}/v2/keys/l2r/end/{urllib.parse.quote(run_id, safe='')}"

    def read(self) -> str | None:
        """Return the word, if there is one."""
        try:
            with urllib.request.urlopen(self._url, timeout=_SECONDS) as answer:  # noqa: S310  (http, made above)
                return str(json.loads(answer.read(65_536))["node"]["value"])
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"etcd answers something else: {error}") from error

    def write(self, word: str) -> None:
        """Set the key if there is none."""
        body = urllib.parse.urlencode({"value": word, "prevExist": "false"}).encode()
        request = urllib.request.Request(self._url, body, method="PUT")  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=_SECONDS).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                if error.code != 412:  # somebody was first
                    raise
