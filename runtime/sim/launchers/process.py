"""Simulator as a subprocess, started through the shim, which keeps its log and ends all its descendants."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtime.base import bounded_json, contract
from runtime.sim.launchers import shim
from runtime.sim.launchers.simulator_process import (
    Addresses,
    Cause,
    Failure,
    PortLease,
    ProcessEnd,
    SimulatorHandle,
)
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire.errors import StartError

_SECRETS: Final = ("L2R_TOKEN", "L2R_CONFIG", "AWS_")
"""Prefixes of variables that a simulator must not see."""
CLEANUP_SECONDS: Final = shim.CLEANUP_SECONDS + 2.0
TAIL_BYTES: Final = 8192
_numbers: set[int] = set()
"""Numbers of this process's running simulators; they name log files."""
_numbers_lock = threading.Lock()


class SimulatorProcess(SimulatorHandle):
    """One started simulator and its shim; ``mark`` is the value of ``L2R_SIM`` in its processes' environment."""

    def __init__(self, spec: SimulatorSpec, folder: Path) -> None:
        """Start it. Raises SimulatorSpecError, StartError, or PortsError if no ports are free."""
        self.mark = uuid.uuid4().hex
        self.pid: int | None = None
        """Pid of the simulator; None before it is started or if it could not be."""
        self._lease = PortLease() if spec.fixed_ports else PortLease.acquire()
        self._number = _take_number()
        pod = os.environ.get(contract.ENV_POD) or str(os.getpid())
        self.log = folder / f"{pod.replace('/', '-')}-simulator-{self._number}.log"
        """Restarted simulators continue the same file, so that many restarts do not fill the disk."""
        self._ended: Failure | None = None
        self._left: int | None = None
        self._buffer = b""
        self._listening = threading.Lock()
        try:
            self.addresses = Addresses.of(self._lease.ports)
            argv = spec.argv(self.addresses.ports)
            folder.mkdir(parents=True, exist_ok=True)
            self._shim = self._spawn(spec, argv)
        except BaseException:
            _numbers.discard(self._number)
            self._lease.close()
            raise

    def _spawn(self, spec: SimulatorSpec, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
        # A simulator is a third-party program: it gets neither the exchange's token nor cloud credentials.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_SECRETS)}
        environ.update(spec.env)
        if spec.kind == "reference":
            # From wherever this code was imported. One thread: many simulators share the cores of a node.
            root = str(Path(__file__).parents[3])
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))
            environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        if spec.gpu:
            environ.update(CUDA_VISIBLE_DEVICES=spec.gpu, NVIDIA_VISIBLE_DEVICES=spec.gpu)
        environ[shim.MARK] = self.mark
        settings: dict[str, Any] = {
            "mark": self.mark,
            "argv": argv,
            "env": environ,
            "user": spec.user,
            "cwd": spec.folder,
            "log": str(self.log),
            "log_bytes": spec.log_bytes,
        }
        try:
            started = subprocess.Popen(
                # Isolated and without site: the shim is ready within milliseconds, whatever the environment
                # contains.
                [sys.executable, "-I", "-S", str(Path(shim.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environ, shim.MARK: self.mark},
                start_new_session=True,  # only the worker handles Ctrl-C at its terminal
                pass_fds=self._lease.descriptors,
                bufsize=0,
            )
        except OSError as error:
            raise StartError(f"the simulator's supervisor cannot be started: {error}") from error
        assert started.stdin is not None  # noqa: S101  (asked for above)
        assert started.stdout is not None  # noqa: S101
        os.set_blocking(started.stdout.fileno(), False)
        with contextlib.suppress(OSError):  # it has already died; `ended` will report it
            started.stdin.write(json.dumps(settings).encode() + b"\n")
        return started

    def ended(self) -> Failure | None:
        """Return its end as a failure; None while it runs."""
        self._read_events()
        return self._ended

    def signal(self, number: int) -> None:
        """Signal the simulator's own process."""
        self._send_line(f"signal {number}")

    def stop(self, grace_seconds: float) -> int:
        """End all its processes, first with SIGTERM; return how many could not be ended."""
        self._send_line(f"stop {grace_seconds:g}")
        self._await_end(time.monotonic() + grace_seconds + CLEANUP_SECONDS)
        left = self._left
        self._close_pipes()
        # The shim was killed or hangs. Its guard cleans up, and so do we, as the guard does not report completion.
        if left is None:
            with contextlib.suppress(ProcessLookupError):
                self._shim.kill()
            left = self._kill_marked()
        self._shim.wait()
        _numbers.discard(self._number)
        self._lease.close()
        return left

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its output."""
        text = b""
        for path in (self.log.with_name(self.log.name + ".1"), self.log):
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                text += file.read(TAIL_BYTES)
        return text.decode("utf-8", "replace").splitlines()[-lines:]

    def _send_line(self, line: str) -> None:
        if self._shim.stdin is not None and not self._shim.stdin.closed:
            with contextlib.suppress(OSError):
                self._shim.stdin.write(line.encode() + b"\n")

    def _read_events(self) -> bool:
        """Read the events that the shim has sent; return False at their end. Any thread may call it."""
        with self._listening:
            if self._shim.stdout is None or self._shim.stdout.closed:
                return False
            while chunk := self._shim.stdout.read(65_536):
                self._buffer += chunk
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._apply_event(bounded_json.loads(line))
            is_over = chunk == b""  # None if the pipe is empty, since it does not block
            if is_over and self._left is None and self._ended is None:
                sentence = "the simulator's supervisor was killed, and the simulator with it"
                self._ended = Failure(Cause.SUPERVISOR_LOST, sentence)
            return not is_over

    def _apply_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "started":
            self.pid = event["pid"]
        elif event["event"] == "failed":
            self._ended = Failure(Cause.CANNOT_START, f"the simulator cannot be started: {event['problem']}")
        elif event["event"] == "ended":
            code = os.waitstatus_to_exitcode(event["status"])
            end = ProcessEnd(code) if code >= 0 else ProcessEnd(signal=-code, out_of_memory=event["oom"])
            self._ended = end.failure()
        elif event["event"] == "done":
            self._left = event["left"]

    def _await_end(self, deadline: float) -> None:
        while self._read_events() and self._left is None and time.monotonic() < deadline:
            assert self._shim.stdout is not None  # noqa: S101
            select.select([self._shim.stdout], [], [], max(0.0, deadline - time.monotonic()))

    def _close_pipes(self) -> None:
        with self._listening:
            for stream in (self._shim.stdin, self._shim.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _kill_marked(self) -> int:
        deadline = time.monotonic() + shim.CLEANUP_SECONDS
        while (left := shim.marked(self.mark)) and time.monotonic() < deadline:
            shim.send([pid for pid in left if pid != self._shim.pid], signal.SIGKILL)
            self._shim.poll()
            time.sleep(0.01)
        return len(left)


def log_folder() -> Path:
    """Return the folder for logs of simulators: the run's, otherwise a temporary one."""
    run_folder = os.environ.get(contract.ENV_DIR)
    return Path(run_folder) / "simulators" if run_folder else Path(tempfile.gettempdir()) / "l2r-simulators"


def _take_number() -> int:
    with _numbers_lock:
        number = next(free for free in itertools.count() if free not in _numbers)
        _numbers.add(number)
        return number
