"""What another process of the same pod may ask of a worker's simulators: how they are, a restart, a signal.

The worker listens at a Unix socket named after its pod, in a folder that only its user can enter; so whoever
can run a command in the pod can ask, wherever the pod runs, and nobody else can. One line of JSON is asked, one is
answered. Restarts are left to the driver: here it is only told that its simulator is to be lost.
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
from typing import Any, Final, Protocol

from runtime import contract
from runtime.sim.errors import SimulatorError
from runtime.sim.supervisor import Supervisor

SAMPLE_SECONDS: Final = 0.5
"""Over so long poses are counted for a rate."""
SLOW_SECONDS: Final = 5.0
"""Whoever has not asked or not read by then is cut off."""
MAX_LINE: Final = 65_536
TAIL_LINES: Final = 5


class Driven(Protocol):
    """What is needed of a drive."""

    supervisor: Supervisor

    @property
    def poses(self) -> int:
        """Poses received so far."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras that its driver has switched on."""
        ...


class DoorError(Exception):
    """There is nobody to ask, or the answer is no; one sentence."""


def folder() -> Path:
    """Where the sockets of this user's workers are. The same for every process of a pod, whatever its TMPDIR."""
    return Path("/tmp") / f"l2r-{os.getuid()}"  # noqa: S108  (its owner and mode are looked at)


def path_of(pod_id: str) -> Path:
    """The socket of a pod's worker; short, since paths of sockets end after some hundred characters."""
    return folder() / f"{hashlib.sha256(pod_id.encode()).hexdigest()[:24]}.sock"


def let_in(drives: Sequence[Driven], environ: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Answer for these drives until the returned function is called; several environments share one socket.

    Where there is no pod, or the socket cannot be had, nobody can ask and the worker works all the same.
    """
    pod_id = (os.environ if environ is None else environ).get(contract.ENV_POD_ID, "")
    if not pod_id:
        return lambda: None
    with _lock:
        house = _houses.get(pod_id)
        if house is None:
            try:
                house = _houses[pod_id] = _House(path_of(pod_id))
            except OSError:
                return lambda: None
        house.drives += drives
    return lambda: _leave(pod_id, drives)


def ask(request: Mapping[str, Any], pod_id: str, seconds: float = 30.0) -> dict[str, Any]:
    """Ask the worker of a pod. DoorError where there is none, or where it says no."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(seconds)
            sock.connect(str(path_of(pod_id)))
            sock.sendall(json.dumps(dict(request)).encode() + b"\n")
            with sock.makefile("rb") as answers:
                line = answers.readline(MAX_LINE)
        answer = json.loads(line)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise DoorError("this pod's process drives no simulators now") from error
    except OSError as error:
        raise DoorError(f"the worker does not answer: {error.strerror or error}") from error
    except ValueError as error:
        raise DoorError("the worker gave no answer") from error
    if not isinstance(answer, dict) or "error" in answer:
        raise DoorError(str(answer.get("error", "")) if isinstance(answer, dict) else "the worker gave no answer")
    return answer


def _leave(pod_id: str, drives: Sequence[Driven]) -> None:
    with _lock:
        house = _houses.get(pod_id)
        if house is None:
            return
        house.drives = [each for each in house.drives if not any(each is gone for gone in drives)]
        if house.drives:
            return
        del _houses[pod_id]
    house.close()


class _House:
    """A socket and the thread that answers at it."""

    def __init__(self, path: Path) -> None:
        self.drives: list[Driven] = []
        self._path = path
        _make_private(path.parent)
        _sweep(path.parent)
        # Under another name until it listens: a socket that refuses is swept by the next worker that starts.
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        staged.unlink(missing_ok=True)
        self._server = _Server(str(staged), self)
        staged.replace(path)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="l2r-door", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked. DoorError, SimulatorError."""
        match request.get("do"):
            case "status":
                return {"simulators": self._status()}
            case "restart":
                drive = self._drive(request)
                drive.supervisor.ask_restart()
                return {"asked": "restart"}
            case "signal":
                number = _signal_number(request.get("signal"))
                self._drive(request).supervisor.signal(number)
                return {"asked": signal.Signals(number).name}
            case other:
                raise DoorError(f"a worker knows nothing of {other!r}; it knows status, restart and signal")

    def _drive(self, request: Mapping[str, Any]) -> Driven:
        number, drives = request.get("index"), self.drives
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(drives):
            raise DoorError(f"there is no simulator {number!r}: they are numbered from 0 to {len(drives) - 1}")
        return drives[number]

    def _status(self) -> list[dict[str, Any]]:
        drives = list(self.drives)
        before, began = [drive.poses for drive in drives], time.monotonic()
        time.sleep(SAMPLE_SECONDS)
        seconds = time.monotonic() - began
        rates = [(drive.poses - count) / seconds for drive, count in zip(drives, before, strict=True)]
        return [_facts(*each) for each in zip(range(len(drives)), drives, rates, strict=True)]


def _facts(number: int, drive: Driven, rate: float) -> dict[str, Any]:
    supervisor = drive.supervisor
    report = supervisor.report()
    found: dict[str, Any] = {
        "index": number,
        "kind": supervisor.spec.kind,
        "state": str(report.state),
        "restarts": report.restarts,
        "uptime_seconds": round(report.uptime_seconds, 1),
        "fps": round(rate, 1),
        "error": report.last_error or None,
        "cameras": list(drive.cameras),
        "tail": supervisor.tail(TAIL_LINES),
    }
    with contextlib.suppress(SimulatorError):  # it is not running: it has no addresses
        at = supervisor.addresses
        found |= {"host": at.host, "ports": dict(at.ports), "camera_base": at.camera_base}
    return found


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 8

    def __init__(self, address: str, house: _House) -> None:
        self.house = house
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up is nobody's concern."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = SLOW_SECONDS
    server: _Server

    def handle(self) -> None:
        """Answer one question."""
        line = self.rfile.readline(MAX_LINE)
        try:
            request = json.loads(line)
            answer = self.server.house.answer(request if isinstance(request, dict) else {})
        except (DoorError, SimulatorError) as error:
            answer = {"error": str(error)}
        except (ValueError, RecursionError):
            answer = {"error": "that is no question in JSON"}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def _signal_number(wanted: object) -> int:
    """The number of a signal by name (with or without SIG) or number. DoorError."""
    try:
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            return signal.Signals(wanted)
        name = str(wanted).upper()
        if name.isdigit():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (ValueError, KeyError) as error:
        raise DoorError(f"there is no signal {wanted!r}") from error


def _make_private(path: Path) -> None:
    """Have a folder of our own that nobody else can enter. OSError where somebody else has taken its name."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private folder of this user")


def _sweep(path: Path) -> None:
    """Remove the sockets of workers that were killed."""
    for each in path.glob("*.sock"):
        if each.name.startswith("."):
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            try:
                sock.connect(str(each))
            except ConnectionRefusedError:
                each.unlink(missing_ok=True)


_lock = threading.Lock()
_houses: dict[str, _House] = {}
