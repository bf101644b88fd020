"""The Docker Engine's HTTP interface over its Unix socket, as far as a simulator needs it (standard library alone).

Six requests do not need a client library in every worker. Each has a deadline, and failures are one type with the
Engine's own words.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

REQUEST_SECONDS: Final = 30.0
STDOUT, STDERR = 1, 2


class EngineError(OSError):
    """The Engine is not there, or refused; ``status`` is 0 where it did not answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("docker", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """One Docker Engine."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._version = ""

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container and return its id."""
        found = self._ask("POST", f"/containers/create?{urlencode({'name': name})}", body)
        return str(found["Id"])

    def start(self, container: str) -> None:
        """Start it."""
        self._ask("POST", f"/containers/{quote(container)}/start")

    def inspect(self, container: str) -> dict[str, Any]:
        """Everything that the Engine knows of it."""
        return dict(self._ask("GET", f"/containers/{quote(container)}/json"))

    def signal(self, container: str, number: int) -> None:
        """Signal its first process."""
        self._ask("POST", f"/containers/{quote(container)}/kill?{urlencode({'signal': number})}")

    def stop(self, container: str, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL after the grace (whole seconds, rounded up)."""
        seconds = int(-(-grace_seconds // 1))
        path = f"/containers/{quote(container)}/stop?{urlencode({'t': seconds})}"
        self._ask("POST", path, timeout_seconds=REQUEST_SECONDS + seconds)

    def remove(self, container: str) -> None:
        """Remove it with its volumes, whatever it does; one that is gone already does not matter."""
        try:
            self._ask("DELETE", f"/containers/{quote(container)}?force=1&v=1")
        except EngineError as error:
            if error.status not in (404, 409):  # gone, or being removed by the Engine itself
                raise

    def logs(self, container: str, lines: int) -> bytes:
        """The last lines of its output."""
        query = urlencode({"stdout": 1, "stderr": 1, "tail": lines})
        raw = self._bytes("GET", f"/containers/{quote(container)}/logs?{query}")
        return _joined(raw)

    def labelled(self, label: str) -> list[dict[str, Any]]:
        """Containers that carry a label ``name=value``, ended ones included."""
        query = urlencode({"all": 1, "filters": json.dumps({"label": [label]})})
        return list(self._ask("GET", f"/containers/json?{query}"))

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Any:
        raw = self._bytes(method, path, body, timeout_seconds=timeout_seconds)
        return json.loads(raw) if raw else {}

    def _bytes(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> bytes:
        if not self._version and path != "/version":
            self._version = f"/v{self._ask('GET', '/version')['ApiVersion']}"
        connection = _UnixConnection(self.path, timeout_seconds)
        try:
            text = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"} if text else {}
            connection.request(method, self._version + path, text, headers)
            answer = connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(0, f"the Docker Engine at {self.path} does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            try:
                message = str(json.loads(raw)["message"])
            except (ValueError, KeyError, TypeError):
                message = raw.decode("utf-8", "replace")[:300]
            raise EngineError(
                answer.status, f"the Docker Engine refused {method} {path.split('?', maxsplit=1)[0]}: {message}"
            )
        return raw


def _joined(raw: bytes) -> bytes:
    """Take the pieces of output out of their frames: stream, three zeros, length, piece."""
    pieces, at = [], 0
    while at + 8 <= len(raw) and raw[at] in (0, STDOUT, STDERR) and raw[at + 1 : at + 4] == b"\0\0\0":
        size = int.from_bytes(raw[at + 4 : at + 8], "big")
        pieces.append(raw[at + 8 : at + 8 + size])
        at += 8 + size
    return b"".join(pieces) if pieces else raw
