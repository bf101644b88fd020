"""Removes a simulator's container when the worker that started it has ended, however it ended.

A script of the standard library alone: its standard input comes from the worker, and the end of that is the end of
the worker. Called as ``keeper.py SOCKET NAME``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time

REMOVE_SECONDS = 20.0
"""How long it goes on trying."""


def remove(path: str, name: str) -> bool:
    """Ask the Engine to remove a container; whether it is gone."""
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
