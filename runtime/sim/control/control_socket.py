"""Control socket of a worker's simulators, for other processes of the same pod: status, restart, signal.

The worker listens on a Unix socket named after its pod, in a folder that only its user can enter. So only a process
that may run commands in the pod can use it, on every backend. A request is one line of JSON, and so is its
response. The simulator's driver restarts it: a request only marks its simulator as lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.base import bounded_json, contract
from runtime.sim.wire.errors import SimulatorError

if TYPE_CHECKING:
    from runtime.sim.control.simulator_session import SimulatorSession

SAMPLE_SECONDS: Final = 0.5
"""Time for which poses are counted to compute a rate."""
SLOW_SECONDS: Final = 5.0
"""Longest wait for a client to send its request and to read the response."""
MAX_LINE: Final = 65_536
TAIL_LINES: Final = 5


class ControlSocketError(Exception):
    """No worker listens, or it refused the request; one sentence."""


def folder() -> Path:
    """Return the folder with the sockets of this user's workers."""
    # Not tempfile.gettempdir(): TMPDIR of a command in the pod may differ from the worker's.
    return Path("/tmp") / f"l2r-{os.getuid()}"  # noqa: S108  (its owner and mode are checked)


def path_of(pod_id: str) -> Path:
    """Return the path of the socket of a pod's worker."""
    # A hash: a path of a Unix socket has at most 107 bytes (unix(7)), and pod names may have 253.
    return folder() / f"{hashlib.sha256(pod_id.encode()).hexdigest()[:24]}.sock"


def serve_sessions(
    sessions: Sequence[SimulatorSession], environ: Mapping[str, str] | None = None
) -> Callable[[], None]:
    """Serve requests about these sessions until the returned function is called.

    All environments of a process share one socket. A worker without a pod, or whose socket fails, runs without it.
    """
    pod_id = (os.environ if environ is None else environ).get(contract.ENV_POD_ID, "")
    if not pod_id:
        return lambda: None
    with _lock:
        if (server := _servers.get(pod_id)) is None:
            try:
                server = _servers[pod_id] = _ControlSocketServer(path_of(pod_id))
            except OSError:
                return lambda: None
        server.sessions += sessions
    return lambda: _stop_serving(pod_id, sessions)


def send_request(request: Mapping[str, Any], pod_id: str, seconds: float = 30.0) -> dict[str, Any]:
    """Send a request to a pod's worker. Raises ControlSocketError if no worker listens, or if it refuses."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(seconds)
            sock.connect(str(path_of(pod_id)))
            sock.sendall(json.dumps(dict(request)).encode() + b"\n")
            with sock.makefile("rb") as answers:
                line = answers.readline(MAX_LINE)
        answer = bounded_json.loads(line)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ControlSocketError("this pod's process drives no simulators now") from error
    except OSError as error:
        raise ControlSocketError(f"the worker does not answer: {error.strerror or error}") from error
    except ValueError as error:
        raise ControlSocketError("the worker gave no answer") from error
    if not isinstance(answer, dict):
        raise ControlSocketError("the worker gave no answer")
    if "error" in answer:
        raise ControlSocketError(str(answer["error"]))
    return answer


def _stop_serving(pod_id: str, sessions: Sequence[SimulatorSession]) -> None:
    with _lock:
        if (server := _servers.get(pod_id)) is None:
            return
        ended = {id(session) for session in sessions}
        server.sessions = [session for session in server.sessions if id(session) not in ended]
        if server.sessions:
            return
        del _servers[pod_id]
    # Without the lock: it waits for the serving thread.
    server.close()


class _ControlSocketServer:
    """Listening socket and the thread that serves it."""

    def __init__(self, path: Path) -> None:
        self.sessions: list[SimulatorSession] = []
        self._path = path
        _make_private(path.parent)
        _remove_stale(path.parent)
        # Under another name until it listens: the next worker that starts removes sockets that refuse connections.
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        staged.unlink(missing_ok=True)
        self._server = _SocketServer(str(staged), self)
        staged.replace(path)
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.2,), name="l2r-control-socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a request and return its response. Raises ControlSocketError, SimulatorError."""
        match request.get("do"):
            case "status":
                return {"simulators": self._status()}
            case "restart":
                self._session_of(request).supervisor.request_restart()
                return {"asked": "restart"}
            case "signal":
                number = _signal_number(request.get("signal"))
                self._session_of(request).supervisor.signal(number)
                return {"asked": signal.Signals(number).name}
            case other:
                sentence = f"a worker knows nothing of {other!r}; it knows status, restart and signal"
                raise ControlSocketError(sentence)

    def _session_of(self, request: Mapping[str, Any]) -> SimulatorSession:
        number, sessions = request.get("index"), self.sessions
        # JSON's true is an int in Python: it would select simulator 1.
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(sessions):
            last = len(sessions) - 1
            raise ControlSocketError(f"simulator {number!r} does not exist: they are numbered from 0 to {last}")
        return sessions[number]

    def _status(self) -> list[dict[str, Any]]:
        # A copy: environments may be added and removed while the poses are counted.
        sessions = list(self.sessions)
        before, began = [session.poses for session in sessions], time.monotonic()
        time.sleep(SAMPLE_SECONDS)
        seconds = time.monotonic() - began
        rates = [(session.poses - count) / seconds for session, count in zip(sessions, before, strict=True)]
        return [_facts(number, session, rates[number]) for number, session in enumerate(sessions)]


def _facts(number: int, session: SimulatorSession, rate: float) -> dict[str, Any]:
    supervisor = session.supervisor
    facts: dict[str, Any] = {
        "index": number,
        "kind": supervisor.spec.kind,
        "state": str(supervisor.state),
        "restarts": supervisor.restarts,
        "uptime_seconds": round(supervisor.uptime_seconds, 1),
        "fps": round(rate, 1),
        "error": supervisor.last_error or None,
        "cameras": list(session.cameras),
        "tail": supervisor.tail(TAIL_LINES),
    }
    with contextlib.suppress(SimulatorError):  # it is not running, so it has no addresses
        at = supervisor.addresses
        facts |= {"host": at.host, "ports": dict(at.ports), "camera_base": at.camera_base}
    return facts


class _SocketServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 8

    def __init__(self, address: str, owner: _ControlSocketServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up: socketserver would print a traceback into the worker's log."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = SLOW_SECONDS
    server: _SocketServer

    def handle(self) -> None:
        """Read one request and write its response."""
        line = self.rfile.readline(MAX_LINE)
        try:
            request = bounded_json.loads(line)
            answer = self.server.owner.handle_request(request if isinstance(request, dict) else {})
        except (ControlSocketError, SimulatorError) as error:
            answer = {"error": str(error)}
        except ValueError:
            answer = {"error": "the request is not valid JSON"}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def _signal_number(value: object) -> int:
    """The number of a signal by name (with or without SIG) or number. Raises ControlSocketError."""
    try:
        name = str(value).upper()
        if name.isdigit():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (ValueError, KeyError) as error:
        raise ControlSocketError(f"unknown signal {value!r}") from error


def _make_private(path: Path) -> None:
    """Create a folder that only this user can enter. Raises OSError if another user owns that name."""
    path.mkdir(mode=0o700, exist_ok=True)
    # lstat: in /tmp another user may have put a symbolic link under this name.
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private folder of this user")


def _remove_stale(path: Path) -> None:
    """Remove the sockets of workers that were killed: they refuse connections."""
    for stale in path.glob("*.sock"):
        if stale.name.startswith("."):
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            try:
                sock.connect(str(stale))
            except ConnectionRefusedError:
                stale.unlink(missing_ok=True)


_lock = threading.Lock()
_servers: dict[str, _ControlSocketServer] = {}
