"""An etcd that runs as long as a rendezvous, with Unix sockets in a private folder.

It stores the values instead of this process's memory. Only the rendezvous can connect to it: nodes connect to the
rendezvous over CURVE, as with any backend.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from runtime.base import bounded_json
from runtime.base.errors import FailedError
from runtime.base.signals import Stop

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
def running(stop: Stop) -> Iterator[Etcd]:
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
