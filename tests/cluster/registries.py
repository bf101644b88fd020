"""A registry with a password, and a link to a registry that breaks on request."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.fakes.faults import free_port

USER, PASSWORD = "lab", "right-word"
_HASH = "$2b$04$IoXU/ym3nfL1qbE/cbc8t.cA5N1F6vHPKnNV96fg74zYWrKxMj1xC"
_CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error}}
auth: {{htpasswd: {{realm: lab, path: {folder}/users}}}}
"""


@contextlib.contextmanager
def private_registry(folder: Path) -> Iterator[str]:
    """A docker-registry that accepts USER with PASSWORD; yields its host."""
    port = free_port()
    (folder / "users").write_text(f"{USER}:{_HASH}\n")
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder, port=port))
    process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")])
    try:
        wait_for_answer(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def wait_for_answer(port: int, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).close()
        except urllib.error.HTTPError:
            return  # it asks for a login: it is up
        except OSError:
            assert time.monotonic() < end, "the registry did not come up"
            time.sleep(0.05)
        else:
            return


class BreakingLink(socketserver.ThreadingTCPServer):
    """A TCP relay to a registry.

    Attributes:
        cut_after: Bytes towards the registry after which a connection is cut, once for each remaining cut.
        cuts_left: Number of connections still to be cut. cuts: number of cut ones.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, target: str, port: int = 0) -> None:
        host, _, target_port = target.rpartition(":")
        self.target = (host, int(target_port))
        self.cut_after, self.cuts_left, self.cuts = 1 << 20, 0, 0
        self.sent = 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Relay)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def counts(self, size: int, total: int) -> bool:
        """Count the data sent to the registry; return True if this connection is to be cut now."""
        with self.lock:
            self.sent += size
            if total < self.cut_after or self.cuts_left == 0:
                return False
            self.cuts_left -= 1
            self.cuts += 1
            return True


class _Relay(socketserver.BaseRequestHandler):
    server: BreakingLink

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self.server.target) as there:
            back = threading.Thread(target=self._back, args=(there,), daemon=True)
            back.start()
            total = 0
            while data := self.request.recv(65_536):
                total += len(data)
                if self.server.counts(len(data), total):
                    break
                there.sendall(data)
            with contextlib.suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)
            back.join(30)

    def _back(self, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(65_536):
                self.request.sendall(data)
            self.request.shutdown(socket.SHUT_RDWR)
