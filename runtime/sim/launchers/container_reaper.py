"""Process that removes a simulator's container when the worker that started it has ended for any reason.

A script that only uses the standard library, since one runs for every container and mostly waits: a client library
would only cost memory. Its standard input comes from the worker, so end of file means the end of the worker. Called
as ``container_reaper.py SOCKET NAME``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time

REMOVE_SECONDS = 20.0
"""Timeout of an attempt; a busy Engine may take seconds."""


def remove(path: str, name: str) -> bool:
    """Ask the Engine to remove a container; return True if it is gone."""
    # HTTP/1.0: the Engine closes the connection after its response, which saves parsing lengths.
    request = f"DELETE /containers/{name}?force=1&v=1 HTTP/1.0\r\nHost: docker\r\n\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(REMOVE_SECONDS)
        sock.connect(path)
        sock.sendall(request.encode())
        answer = b""
        while chunk := sock.recv(65_536):
            answer += chunk
    status = answer.split(b" ", 2)[1:2]
    return status in ([b"204"], [b"404"])


def main() -> None:
    """Wait for the worker's end, then remove the container."""
    # A signal that ends the worker's process group or session must not end this process too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    path, name = sys.argv[1:]
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if remove(path, name):
                return
        time.sleep(0.2)


if __name__ == "__main__":
    main()
