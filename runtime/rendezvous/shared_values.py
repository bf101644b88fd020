"""Values that the nodes of a job share: texts in the rendezvous process that nodes read and replace over CURVE.

A value is replaced only if no other node replaced it meanwhile (compare and set), and nothing can be removed. A key
that was never set has the empty text. torch's own store is not used, because anyone who can reach its port may
read, write and clear it: here a node that does not know the run's token gets no connection.

They are in the memory of the rendezvous process, or in an etcd that it starts with Unix sockets in a private
folder. Only the rendezvous can connect to that etcd.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

from runtime.base import bounded_json
from runtime.base.addresses import Endpoint, EndpointError
from runtime.base.errors import FailedError
from runtime.base.processes import in_thread
from runtime.base.signals import Stop
from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys, from_token
from runtime.exchange.transport.request_reply import ReplySocket, RequestSocket
from runtime.rendezvous.plan import NodePlan, bound_address, node_address

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


START_SECONDS: Final = 30.0
_ANSWER_SECONDS: Final = 15.0
_MISSING, _CHANGED = 404, 412
_LARGEST_BYTES: Final = 4 << 20
# etcd accepts only the form "unix://NAME:NUMBER", and creates the socket NAME:NUMBER in its working folder.
_CLIENTS: Final = "clients:1"
_PEERS: Final = "peers:1"


class EtcdValues:
    """Values in an etcd, through its v2 interface."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, key: str) -> str:
        """Return a value. Raises OSError."""
        status, text = self._request("GET", key)
        if status == _MISSING:
            return ""
        try:
            return str(bounded_json.loads(text)["node"]["value"])
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"etcd answers something else: {error}") from error

    def replace(self, key: str, before: str, after: str) -> bool:
        """Set a value if it still equals `before`. Raises OSError."""
        condition = {"prevValue": before} if before else {"prevExist": "false"}
        status, _ = self._request("PUT", key, {"value": after, **condition})
        return status not in {_MISSING, _CHANGED}

    def _request(self, method: str, key: str, fields: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path)
        body = urllib.parse.urlencode(fields or {}) if fields else None
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if fields else {}
        try:
            connection.request(method, f"/v2/keys/{urllib.parse.quote(key)}", body, headers)
            response = connection.getresponse()
            text = response.read(_LARGEST_BYTES)
        except http.client.HTTPException as error:
            raise OSError(f"etcd answers something else: {error}") from error
        finally:
            connection.close()
        if response.status >= 400 and response.status not in {_MISSING, _CHANGED}:
            raise OSError(f"etcd answers {response.status}")
        return response.status, text


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_ANSWER_SECONDS)
        self.sock.connect(str(self._path))


class Etcd:
    """A running etcd.

    Attributes:
        values: The values that it stores.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process, self._log = process, folder / "log"
        self.values = EtcdValues(folder / _CLIENTS)

    def check(self) -> None:
        """Raise FailedError if its process has ended."""
        if self._process.poll() is not None:
            raise FailedError(f"etcd ended with {self._process.returncode}: {self._last_line()}")

    def wait_until_ready(self, stop: Stop) -> None:
        """Return when it responds, or at a stop. Raises FailedError."""
        deadline = time.monotonic() + START_SECONDS
        while not stop.is_set():
            self.check()
            with contextlib.suppress(OSError):
                self.values.read("ready")
                return
            if time.monotonic() > deadline:
                raise FailedError(f"etcd does not answer within {START_SECONDS:g} s: {self._last_line()}")
            time.sleep(0.1)

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it said nothing"


@contextlib.contextmanager
def running_etcd(stop: Stop) -> Iterator[Etcd]:
    """Run an etcd in a new folder, which is removed at the end. Raises FailedError."""
    binary = shutil.which("etcd")
    if binary is None:
        raise FailedError("etcd is not installed here; install Debian's etcd-server, or use --backend c10d")
    folder = Path(tempfile.mkdtemp(prefix="l2r-etcd-"))  # with mode 0700
    try:
        process = _start(binary, folder)
        try:
            etcd = Etcd(process, folder)
            etcd.wait_until_ready(stop)
            yield etcd
        finally:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(binary: str, folder: Path) -> subprocess.Popen[bytes]:
    # Advertised addresses must look like HTTP; no client uses them, because this is the only member.
    advertised = "http://localhost:1"
    argv: tuple[Any, ...] = (
        *(binary, "--enable-v2", "--data-dir", str(folder / "data"), "--unsafe-no-fsync"),
        *("--listen-client-urls", f"unix://{_CLIENTS}", "--advertise-client-urls", advertised),
        *("--listen-peer-urls", f"unix://{_PEERS}", "--initial-advertise-peer-urls", advertised),
        *("--initial-cluster", f"default={advertised}"),
    )
    # ETCD_* variables would override the arguments.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env=clean, cwd=folder)


_SERVE_SECONDS: Final = 0.2


@contextlib.contextmanager
def listening(endpoint: Endpoint, port: int, token: str) -> Iterator[ReplySocket]:
    """Listen for the nodes; ``port`` 0 means the endpoint's. Raises FailedError if the address is in use."""
    if endpoint.folder is not None:
        endpoint.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        socket = ReplySocket(bound_address(endpoint, port), LARGEST_BYTES, keys_of(token)[0])
    except EndpointError as error:
        raise FailedError(f"the rendezvous {error}") from error
    with socket:
        yield socket


def connect(plan: NodePlan) -> RemoteValues:
    """Return the values at the rendezvous; reading them raises OSError while it is unreachable."""
    return RemoteValues(RequestSocket(node_address(plan.endpoint), LARGEST_BYTES, keys_of(plan.token)[1]))


@contextlib.contextmanager
def hosted(plan: NodePlan, values: SharedValues) -> Iterator[None]:
    """Answer the other nodes with these values in a thread. Raises FailedError."""
    with listening(plan.endpoint, 0, plan.token) as socket:

        def serve() -> None:
            socket.serve(_SERVE_SECONDS, lambda request: answer(values, request))

        with in_thread("rendezvous host", serve):
            yield
