"""A simulator as a subprocess: started through the shim, which keeps its log and leaves nothing of it behind."""

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

from runtime import contract
from runtime.sim import shim
from runtime.sim.errors import StartError
from runtime.sim.handle import Addresses, Handle
from runtime.sim.health import Cause, Ended, Failure
from runtime.sim.ports import PortLease
from runtime.sim.spec import SimulatorSpec

_SECRETS: Final = ("L2R_TOKEN", "L2R_CONFIG", "AWS_")
"""Beginnings of variables that a simulator has no use for."""
CLEANUP_SECONDS: Final = shim.CLEANUP_SECONDS + 2.0
TAIL_BYTES: Final = 8192
_numbers: set[int] = set()
"""Of this process's simulators that are not stopped yet."""
_numbers_lock = threading.Lock()


class SimulatorProcess(Handle):
    """One started simulator and its shim.

    Attributes:
        mark: What its processes carry in their environment, under ``L2R_SIM``.
        pid: Of the simulator; None before it is started and where it could not be.
    """

    def __init__(self, spec: SimulatorSpec, folder: Path) -> None:
        """Start it. Raises SpecError, StartError, and PortsError where no ports are free."""
        self.mark = uuid.uuid4().hex
        self.pid: int | None = None
        self._lease = None if spec.fixed_ports else PortLease.take()
        self._number = _take_number()
        pod = os.environ.get(contract.ENV_POD) or str(os.getpid())
        self.log = folder / f"{pod.replace('/', '-')}-simulator-{self._number}.log"
        """Later incarnations go on in the same file, so that many restarts fill no disk."""
        self._ended: Ended | Failure | None = None
        self._left: int | None = None
        self._buffer = b""
        self._listening = threading.Lock()
        try:
            self.addresses = Addresses.of(self._lease.ports if self._lease else None)
            argv = spec.argv(self.addresses.ports)
            folder.mkdir(parents=True, exist_ok=True)
            self._shim = self._spawn(spec, argv)
        except BaseException:
            _numbers.discard(self._number)
            if self._lease is not None:
                self._lease.close()
            raise

    def _spawn(self, spec: SimulatorSpec, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_SECRETS)}
        environ.update(spec.env)
        if spec.kind == "reference":  # so that it runs from wherever this very code was imported
            root = str(Path(__file__).parents[2])
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
        lease = (self._lease.fileno(),) if self._lease is not None else ()
        try:
            started = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(shim.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environ, shim.MARK: self.mark},
                start_new_session=True,
                pass_fds=lease,
                bufsize=0,
            )
        except OSError as error:
            raise StartError(f"the simulator's supervisor cannot be started: {error}") from error
        assert started.stdin is not None  # noqa: S101  (asked for above)
        assert started.stdout is not None  # noqa: S101
        os.set_blocking(started.stdout.fileno(), False)
        with contextlib.suppress(OSError):  # it has died already; that is noticed by whoever looks
            started.stdin.write(json.dumps(settings).encode() + b"\n")
        return started

    @property
    def supervisor_pid(self) -> int:
        """Of the shim."""
        return self._shim.pid

    def ended(self) -> Failure | None:
        """Say how it ended; None while it runs."""
        self._listen()
        if isinstance(self._ended, Ended):
            return self._ended.failure()
        return self._ended

    def signal(self, number: int) -> None:
        """Signal the simulator's own process."""
        self._tell(f"signal {number}")

    def stop(self, grace_seconds: float) -> int:
        """End everything of it, first with SIGTERM; how many processes could not be ended."""
        self._tell(f"stop {grace_seconds:g}")
        self._await_end(time.monotonic() + grace_seconds + CLEANUP_SECONDS)
        left = self._left
        self._shut()
        if left is None:  # the shim was killed, or hangs: its guard cleans up, and so do we
            with contextlib.suppress(ProcessLookupError):
                self._shim.kill()
            left = self._kill_marked()
        self._shim.wait()
        _numbers.discard(self._number)
        if self._lease is not None:
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

    def remove_log(self) -> None:
        """Delete its log."""
        for path in (self.log.with_name(self.log.name + ".1"), self.log):
            path.unlink(missing_ok=True)

    def _tell(self, line: str) -> None:
        if self._shim.stdin is not None and not self._shim.stdin.closed:
            with contextlib.suppress(OSError):
                self._shim.stdin.write(line.encode() + b"\n")

    def _listen(self) -> bool:
        """Take in what the shim has said; False when it says no more. Any thread may ask."""
        with self._listening:
            return self._take_in()

    def _take_in(self) -> bool:
        if self._shim.stdout is None or self._shim.stdout.closed:
            return False
        while chunk := self._shim.stdout.read(65_536):
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        is_over = chunk == b""
        if is_over and self._left is None and self._ended is None:
            sentence = "the simulator's supervisor was killed, and the simulator with it"
            self._ended = Failure(Cause.SUPERVISOR_LOST, sentence)
        return not is_over

    def _take(self, said: Mapping[str, Any]) -> None:
        if said["event"] == "started":
            self.pid = said["pid"]
        elif said["event"] == "failed":
            self._ended = Failure(Cause.CANNOT_START, f"the simulator cannot be started: {said['problem']}")
        elif said["event"] == "ended":
            status = said["status"]
            if os.WIFSIGNALED(status):
                self._ended = Ended(signal=os.WTERMSIG(status), out_of_memory=said["oom"])
            else:
                self._ended = Ended(code=os.waitstatus_to_exitcode(status))
        elif said["event"] == "done":
            self._left = said["left"]

    def _await_end(self, deadline: float) -> None:
        while self._listen() and self._left is None and time.monotonic() < deadline:
            assert self._shim.stdout is not None  # noqa: S101
            select.select([self._shim.stdout], [], [], max(0.0, deadline - time.monotonic()))

    def _shut(self) -> None:
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
    """Where logs of simulators go: the run's folder, else a temporary one."""
    given = os.environ.get(contract.ENV_DIR)
    return Path(given) / "simulators" if given else Path(tempfile.gettempdir()) / "l2r-simulators"


def _take_number() -> int:
    with _numbers_lock:
        number = next(each for each in itertools.count() if each not in _numbers)
        _numbers.add(number)
        return number
