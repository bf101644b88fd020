"""Status of a learner over HTTP: its peers, their lag and rates, as JSON and for Prometheus.

Read-only. Each connection has a thread and two seconds, and above a limit new connections are closed immediately.
Exchange and training never wait for it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

SLOW_SECONDS: Final = 2.0
"""A connection that has not sent its request, or read the response, within this time is closed."""
BACKLOG: Final = 128
MAX_CONNECTIONS: Final = 64
"""Maximum number of concurrent connections."""

Address = tuple[str, int] | Path
"""Host and port, or the path of a Unix socket."""
Snapshot = Callable[[], Mapping[str, Any]]


class StatusServer:
    """HTTP server for `GET /status` and `GET /metrics`. Raises OSError if it cannot listen at `address`."""

    def __init__(self, address: Address, snapshot: Snapshot) -> None:
        self._path = address if isinstance(address, Path) else None
        if self._path is not None:
            self._path.unlink(missing_ok=True)  # left by a killed learner; the folder's lock excludes a live one
        self._server = _Server(address, snapshot)
        # 0.2 s is the interval at which `shutdown` is noticed, and so the longest wait of `close`.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, address: Address, snapshot: Snapshot) -> None:
        server_address: Any = str(address) if isinstance(address, Path) else address
        if isinstance(address, Path):
            self.address_family = socket.AF_UNIX
        elif ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._snapshot, self._lock = snapshot, threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(server_address, _Handler)

    def snapshot(self) -> Mapping[str, Any]:
        """Return the status; one thread at a time, since it reads values that others write."""
        with self._lock:
            return self._snapshot()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread, or close it if too many are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started now
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that break: the default prints a traceback for each."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SLOW_SECONDS
    server: _Server

    def handle(self) -> None:
        """Serve one connection, and close it after its time limit."""
        # `timeout` only limits each single read: one byte per second would occupy the thread for hours.
        timer = threading.Timer(SLOW_SECONDS, self._cut)
        timer.daemon = True
        timer.start()
        try:
            super().handle()
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        if self.path == "/status":
            self._respond(200, "application/json", json.dumps(dict(self.server.snapshot()), allow_nan=False))
        elif self.path == "/metrics":
            self._respond(200, "text/plain; version=0.0.4", "".join(prometheus(self.server.snapshot())))
        else:
            self._respond(404, "text/plain", "There are /status and /metrics.\n")

    def _respond(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        # Not send_response: it would write a log line and a Server header with the version of Python.
        self.send_response_only(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        # A connection that is kept alive would occupy its thread.
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is the library's)
        """Log nothing: standard output is for the learner's records."""


GAUGES: Final = {
    "workers": "Workers connected now.",
    "policy_version": "Newest policy that can be pulled.",
    "inflight_transitions": "Transitions that workers may send and that have not come.",
    "store": "Transitions in the store.",
    "strangers": "Connections refused for their key.",
    "idle_share": "Share of the learner's time without data, of its last record.",
    "network_share": "Share of a core that the learner's network thread used, of its last record.",
    "gpu_percent": "Share of time in which the learner's GPU ran a kernel, 0 to 100, of its last record.",
    "gpu_memory_bytes": "Memory of that GPU in use by all processes.",
    "gpu_reserved_bytes": "Memory of that GPU that the learner has reserved.",
}
PEER_GAUGES: Final = {
    "env_steps_per_second": "Env steps a second of the peer.",
    "policy_lag": "Policy versions that the peer is behind.",
    "outstanding": "Segments granted to the peer and not yet seen.",
    "heard_seconds": "Seconds since the peer was heard.",
}


def prometheus(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `LearnerServer.status` in Prometheus' text format, version 0.0.4."""
    run = _labels({"run": status["run"]})
    for name, meaning in GAUGES.items():
        if name in status:
            yield f"# HELP l2r_{name} {meaning}\n# TYPE l2r_{name} gauge\nl2r_{name}{run} {status[name]}\n"
    for name, count in status.get("inference", {}).items():
        yield f"# HELP l2r_inference_{name}_total Remote inference: {name}, since the learner's start.\n"
        yield f"# TYPE l2r_inference_{name}_total counter\nl2r_inference_{name}_total{run} {count}\n"
    for name, count in status.get("traffic", {}).items():
        yield f"# HELP l2r_exchange_{name}_total Exchange: {name}, since the learner's start.\n"
        yield f"# TYPE l2r_exchange_{name}_total counter\nl2r_exchange_{name}_total{run} {count}\n"
    yield "# HELP l2r_env_steps_total Env steps learned from.\n# TYPE l2r_env_steps_total counter\n"
    yield f"l2r_env_steps_total{run} {status['env_steps']}\n"
    yield "# HELP l2r_segments_total Segments by what became of them.\n# TYPE l2r_segments_total counter\n"
    for outcome, count in status["segments"].items():
        yield f"l2r_segments_total{_labels({'run': status['run'], 'outcome': outcome})} {count}\n"
    yield "# HELP l2r_policy_lag Versions that accepted segments were behind.\n# TYPE l2r_policy_lag gauge\n"
    for stat, value in zip(("min", "mean", "max"), status["policy_lag"], strict=True):
        yield f"l2r_policy_lag{_labels({'run': status['run'], 'stat': stat})} {value}\n"
    for name, meaning in PEER_GAUGES.items():
        yield f"# HELP l2r_peer_{name} {meaning}\n# TYPE l2r_peer_{name} gauge\n"
        for peer in status["peers"]:
            labels = _labels({"run": status["run"], "pod": peer["pod"], "role": peer["role"]})
            yield f"l2r_peer_{name}{labels} {peer[name]}\n"


def _labels(labels: Mapping[str, str]) -> str:
    """Return labels with escaped values: a pod's name comes from a peer and may contain quotes or line feeds."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "{" + ",".join(f'{name}="{str(value).translate(escapes)}"' for name, value in labels.items()) + "}"
