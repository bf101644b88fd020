"""Workers of one pod: start, restart with back-off, stop, and one log in which each line names its worker.

The supervisor is the pod's first process, so it also reaps processes that its workers leave behind. Back-off is the
same as the kubelet's: at once the first time, then after 10 s, doubled up to 5 minutes, reset after 10 minutes. A
worker that was killed on request restarts immediately, as a controller replaces a pod.

`WORKERS_RECORD` reports the state of each worker in the log; launchers, which see only the pod, read it there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from runtime.base import addresses, bounded_json, contract
from runtime.base.cli_options import Commands, add_command, program
from runtime.base.errors import FailedError, SetupError
from runtime.base.gpu_meter import visible_uuids
from runtime.base.metrics import record
from runtime.base.processes import exponential_delay, shell_exit_code, signal_at_end_of, signal_process_group
from runtime.base.signals import Stop

_TEXT: Final = """\
run several workers in one pod, and restart those that end
Run equal processes of one command in this pod, and start each again that ends.

examples:
  l2r-runtime supervise --workers 4 -- l2r-runtime worker
  l2r-runtime supervise --kill 2 --grace 5            in the same pod: stop worker 2, which is started again

Launchers start it where `workers_per_pod` is set. Worker N is named L2R_POD.N; with L2R_INDEX set its index is
L2R_INDEX times the number of workers, plus N. Each line of its output begins with `[N] `.
Exit codes: 0 when all workers have ended with 0 and are not started again, else that of the first one that failed.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    usage = "l2r-runtime supervise --workers K [--restart POLICY] [--grace S] -- COMMAND..."
    add = add_command(commands, "supervise", _TEXT, start, usage).add_argument
    add("--workers", type=int, default=1, metavar="K", help="number of workers (%(default)s)")
    add("--restart", choices=("Always", "OnFailure", "Never"), default="Always", help="(%(default)s)")
    add("--grace", type=float, default=10.0, metavar="S", help="seconds from SIGTERM to SIGKILL (%(default)g)")
    add("--kill", metavar="N,M", help="tell the supervisor of this pod to stop these workers")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Run the workers, or stop some of the running ones."""
    if options.kill is not None:
        try:
            numbers = [int(text) for text in options.kill.split(",")]
        except ValueError:
            raise SetupError(f"--kill {options.kill!r}: write the numbers of workers, such as 0,2") from None
        ask_to_kill(os.environ, numbers, options.grace)
        return 0
    if not options.command:
        raise SetupError("supervise needs a command: l2r-runtime supervise --workers 4 -- COMMAND")
    if options.workers < 1:
        raise SetupError(f"--workers is {options.workers}; it must be at least 1")
    supervisor = PodSupervisor(options.command, options.workers, os.environ, options.restart, options.grace)
    return supervisor.run(stop)


_POLL_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 10.0
"""Interval of records without changes: the newest one must be among the last lines of a log that others fill."""
_BACKOFF_SECONDS: Final = 10.0
_MAX_BACKOFF_SECONDS: Final = 300.0
_FORGET_SECONDS: Final = 600.0
_START_ERROR: Final = 128
"""Exit code for a process that cannot be started, as in Kubernetes."""
_MAX_LINE: Final = 16 * 1024
"""Bytes after which a line is cut, as container runtimes do."""
_ANSWER_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Worker:
    """One worker; times are from the monotonic clock, except `started`, which is wall-clock time."""

    number: int
    pid: int | None = None
    started: int | None = None
    began: float = 0.0
    starts_at: float | None = 0.0
    dies_at: float | None = None
    restarts: int = 0
    failures: int = 0
    exit_code: int | None = None
    was_killed: bool = False
    half: bytes = field(default=b"", repr=False)

    @property
    def state(self) -> str:
        if self.pid is not None:
            return "running"
        return "ended" if self.starts_at is None else "waiting"


class PodSupervisor:
    """Workers of this pod.

    Args:
        command: argv of each worker.
        environ: Variables of the pod.
        restart: ``Always``, ``OnFailure`` or ``Never``.
        grace: Seconds from SIGTERM to SIGKILL.
        backoff: First wait before a restart, in seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        environ: Mapping[str, str],
        restart: str,
        grace: float,
        backoff: float = _BACKOFF_SECONDS,
    ) -> None:
        self._argv = program(command)
        self._environ = dict(environ)
        self._workers = [_Worker(number) for number in range(workers)]
        self._restart = restart
        self._grace = grace
        self._backoff = backoff
        self._is_stopping = False
        self._reported: list[dict[str, Any]] = []
        self._reported_at = float("-inf")
        self._uuids = visible_uuids(environ)
        self._selector = selectors.DefaultSelector()
        self._pipes: set[IO[bytes]] = set()
        self._socket_path = _socket_path(environ)

    def run(self, stop: Stop) -> int:
        """Supervise until every worker has ended permanently, or until the stop flag is set and they have ended."""
        with self._listening():
            while True:
                if stop.is_set() and not self._is_stopping:
                    self._is_stopping = True
                    for worker in self._workers:
                        self._end(worker, self._grace)
                self._reap()
                now = time.monotonic()
                for worker in self._workers:
                    self._step(worker, now)
                self._report(now)
                if all(worker.state == "ended" for worker in self._workers):
                    self._drain()
                    return next((worker.exit_code for worker in self._workers if worker.exit_code), 0)
                self._read(_POLL_SECONDS)

    # --- processes -----------------------------------------------------------------------------------------------
    def _step(self, worker: _Worker, now: float) -> None:
        if worker.pid is not None and worker.dies_at is not None and now >= worker.dies_at:
            worker.dies_at = None
            signal_process_group(worker.pid, signal.SIGKILL)
        elif worker.pid is None and worker.starts_at is not None:
            if self._is_stopping:
                worker.starts_at = None
            elif now >= worker.starts_at:
                self._start(worker, now)

    def _start(self, worker: _Worker, now: float) -> None:
        worker.began, worker.started, worker.was_killed = now, int(time.time()), False
        try:
            process = subprocess.Popen(
                self._argv,
                env=worker_environment(self._environ, worker.number, len(self._workers)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(signal_at_end_of, os.getpid(), signal.SIGKILL),  # noqa: PLW1509  (no threads)
            )
        except OSError as error:
            self._mark(worker, f"{self._argv[0]} cannot be started: {error}")
            self._ended(worker, _START_ERROR)
            return
        worker.pid = process.pid
        process.returncode = 0  # it is reaped here, together with orphans, and not by this object
        assert process.stdout is not None  # noqa: S101  (it is a pipe)
        os.set_blocking(process.stdout.fileno(), False)
        self._pipes.add(process.stdout)
        self._selector.register(process.stdout, selectors.EVENT_READ, (worker, process.stdout))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for worker in self._workers:
                if worker.pid == pid:
                    self._drain()  # its last lines come before the report of its end
                    signal_process_group(pid, signal.SIGKILL)  # processes that it started and did not end
                    self._ended(worker, shell_exit_code(os.waitstatus_to_exitcode(status)))

    def _ended(self, worker: _Worker, code: int) -> None:
        now = time.monotonic()
        worker.pid, worker.dies_at, worker.exit_code = None, None, code
        is_again = worker.was_killed or self._restart == "Always" or (self._restart == "OnFailure" and code != 0)
        if self._is_stopping or not is_again:
            worker.starts_at = None
            self._mark(worker, f"ended with {code}")
            return
        if worker.was_killed or now - worker.began >= _FORGET_SECONDS:
            worker.failures = 0
        wait = exponential_delay(worker.failures, self._backoff, _MAX_BACKOFF_SECONDS)
        worker.failures += not worker.was_killed
        worker.restarts += 1
        worker.starts_at = now + wait
        when = f"in {wait:.0f} s" if wait else "at once"
        self._mark(worker, f"restart {worker.restarts}, ended with {code}; starts again {when}")

    def _end(self, worker: _Worker, grace: float) -> None:
        if worker.pid is not None:
            signal_process_group(worker.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
            worker.dies_at = deadline if worker.dies_at is None else min(worker.dies_at, deadline)

    # --- output --------------------------------------------------------------------------------------------------
    def _read(self, seconds: float) -> None:
        """Write the lines that workers have written, and answer requests, for at most this long."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._answer()
                continue
            worker, pipe = key.data
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(key.fd, 4 * _MAX_LINE)
                if not chunk:
                    self._selector.unregister(pipe)
                    self._pipes.discard(pipe)
                    pipe.close()
                    chunk = b"\n" if worker.half else b""
                self._write(worker, chunk)

    def _drain(self) -> None:
        """Write the output of workers so far; for at most a second, because some may write continuously."""
        until = time.monotonic() + _DRAIN_SECONDS
        while any(key.data is not None for key, _ in self._selector.select(0.0)) and time.monotonic() < until:
            self._read(0.0)

    def _write(self, worker: _Worker, chunk: bytes) -> None:
        *lines, worker.half = (worker.half + chunk).split(b"\n")
        while len(worker.half) >= _MAX_LINE:
            lines.append(worker.half[:_MAX_LINE])
            worker.half = worker.half[_MAX_LINE:]
        prefix = contract.WORKER_LINE.format(worker.number).encode()
        _print(b"".join(prefix + _visible_state(line) + b"\n" for line in lines))

    def _mark(self, worker: _Worker, text: str) -> None:
        if worker.half:
            self._write(worker, b"\n")
        _print(f"{contract.WORKER_MARK.format(worker.number)}{text}\n".encode())

    def _report(self, now: float) -> None:
        states = [
            {
                "state": worker.state,
                "restarts": worker.restarts,
                "exit_code": worker.exit_code,
                "started": worker.started,
            }
            for worker in self._workers
        ]
        if states != self._reported or now - self._reported_at >= _REPORT_SECONDS:
            self._reported, self._reported_at = states, now
            fields = {"workers": states, "uuids": list(self._uuids)}
            _print(f"{record(contract.WORKERS_RECORD, fields)}\n".encode())

    # --- requests ------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _listening(self) -> Any:
        with socket.socket(socket.AF_UNIX) as listener:
            self._socket_path.unlink(missing_ok=True)  # from an earlier container of this pod
            listener.bind(str(self._socket_path))
            listener.listen()
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
            self._listener = listener
            try:
                yield
            finally:
                for pipe in self._pipes:
                    pipe.close()
                self._selector.close()
                self._socket_path.unlink(missing_ok=True)

    def _answer(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(_ANSWER_SECONDS)
                request = bounded_json.loads(connection.makefile("rb").readline(4096))
                connection.sendall(f"{json.dumps(self._kill(request))}\n".encode())

    def _kill(self, request: Any) -> dict[str, str]:
        by_number = {worker.number: worker for worker in self._workers}
        try:
            workers = [by_number[number] for number in request["kill"]]
            grace = float(request["grace"])
        except (KeyError, TypeError, ValueError):
            return {"error": f"this pod has workers 0 to {len(self._workers) - 1}"}
        if self._is_stopping:
            return {"error": "this pod is ending"}
        if idle := [str(worker.number) for worker in workers if worker.pid is None]:
            return {"error": f"no process of worker {', '.join(idle)} runs now"}
        for worker in workers:
            worker.was_killed = True
            self._end(worker, grace)
        return {}


def worker_environment(environ: Mapping[str, str], number: int, workers: int) -> dict[str, str]:
    """Return the variables of one worker: its own name, id and index, and the pod's other variables."""
    own = {
        name: contract.WORKER_NAME.format(value, number)
        for name in (contract.ENV_POD, contract.ENV_POD_ID)
        if (value := environ.get(name))
    }
    if environ.get(contract.ENV_INDEX):
        own[contract.ENV_INDEX] = str(addresses.index(environ) * workers + number)
    return {**environ, **own}


def ask_to_kill(environ: Mapping[str, str], numbers: Sequence[int], grace: float) -> None:
    """Ask the supervisor of this pod to stop workers; returns after they got SIGTERM. Raises FailedError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(_socket_path(environ)))
            connection.sendall(f"{json.dumps({'kill': list(numbers), 'grace': grace})}\n".encode())
            answer = bounded_json.loads(connection.makefile("rb").readline(4096))
    except (OSError, ValueError) as error:
        raise FailedError(f"no supervisor of workers answers in this pod: {error}") from error
    if answer.get("error"):
        raise FailedError(f"workers {', '.join(map(str, numbers))}: {answer['error']}")


def _socket_path(environ: Mapping[str, str]) -> Path:
    return Path(tempfile.gettempdir()) / f"l2r-workers-{environ.get(contract.ENV_POD_ID, '')[:36]}.sock"


def _visible_state(line: bytes) -> bytes:
    """Return the part of a line that a terminal shows: log readers would drop a worker name before a carriage
    return.
    """
    return line[line.rfind(b"\r", 0, len(line.rstrip(b"\r"))) + 1 :]


def _print(data: bytes) -> None:
    with contextlib.suppress(OSError):  # the log's reader is gone: workers continue
        while data:
            data = data[os.write(1, data) :]
