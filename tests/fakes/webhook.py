"""Webhook of this machine that answers, fails, hangs or redirects on request, and stores received messages."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Webhook:
    """Server with one path per behaviour: ``/ok``, ``/fail``, ``/moved`` and ``/hang``; use it in a with block.

    Args:
        host: Address to listen on; only this machine reaches loopback, containers and pods also reach docker0.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the requests to ``/ok``."""
        self.paths: list[str] = []
        self._released = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.paths.append(self.path)
                if self.path == "/hang":
                    hook._released.wait(600)
                    return
                if self.path == "/ok":
                    hook.bodies.append(json.loads(body))
                self.send_response({"/ok": 200, "/moved": 307}.get(self.path, 500))
                if self.path == "/moved":
                    self.send_header("Location", f"{hook.url}/ok")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def host(self) -> str:
        """Address on which it listens."""
        return str(self._server.server_address[0])

    @property
    def url(self) -> str:
        """Address without a path."""
        return f"http://{self.host}:{self._server.server_port}"

    @property
    def texts(self) -> list[str]:
        """Texts of the messages at ``/ok``."""
        return [body["text"] for body in self.bodies]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
