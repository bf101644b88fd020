"""Remote inference in a separate process, supervised by the learner.

In a thread of the learner a question waits for the interpreter lock and, on a GPU, behind the launches of an
update. On an NVIDIA H200, while SAC learned from 84x84x4 images, 12 clients of 16 rows got 95 % of their answers
within 873 ms from a thread and within 8.2 ms from a process; both took 1.96 ms without learning. The price is a
second CUDA context, a few hundred MiB. `python -m tests.bench.exchange inference_learning` measures it.

Weights are not sent: the process reads them from the learner's shared memory, like every peer on this host. One
socket pair carries the set-up to the process and its counts back, and serves as the lifeline: when it closes, the
process ends. If the learner is killed, the kernel kills the process (`signal_at_end_of`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any, Final

from runtime.base import bounded_json
from runtime.base.errors import FailedError
from runtime.base.processes import exponential_delay
from runtime.exchange.inference.server import COUNTS

FIRST_DELAY_SECONDS: Final = 0.5
MAX_DELAY_SECONDS: Final = 8.0
"""Longest pause before an ended process is restarted."""
MAX_FAILURES: Final = 5
"""Number of consecutive starts without any answer after which the learner ends and its launcher shows the
reason.
"""
CLOSE_SECONDS: Final = 5.0
"""Longest wait for the process to end in order."""
LONGEST_LINE: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class InferenceProgram:
    """Program to run: `setup` is the line that it reads first, `descriptors` stay open under their numbers."""

    argv: Sequence[str]
    setup: bytes
    descriptors: Sequence[int] = ()


class InferenceProcess:
    """Learner's end: starts the program, restarts it when it ends, and ends it."""

    def __init__(self, program: InferenceProgram, say: Callable[[str], None]) -> None:
        self._program = program
        self._say = say
        self._lock = threading.Lock()
        """Protects the three values below, which the status server reads."""
        self._counts = dict.fromkeys(COUNTS, 0)
        """Counts of the running process."""
        self._past_counts = dict.fromkeys(COUNTS, 0)
        """Counts of ended processes."""
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        """The process and our end of its lifeline."""
        self._restarts = 0
        self._error: FailedError | None = None
        self._closing = threading.Event()
        # The kernel watches the thread that starts the process, so one persistent thread starts them all.
        self._thread = threading.Thread(target=self._supervise, name="inference")

    def start(self) -> None:
        """Start the process."""
        self._thread.start()

    def check(self) -> None:
        """Raise FailedError if the process has ended several consecutive times without an answer."""
        if self._error is not None:
            raise self._error

    def status(self) -> dict[str, int]:
        """Return the counts of all processes so far. Any thread may call it."""
        with self._lock:
            counts = {name: self._past_counts[name] + self._counts[name] for name in COUNTS}
            return {**counts, "restarts": self._restarts}

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        if not self._thread.is_alive():
            return
        with self._lock:
            if self._running is not None:
                self._running[1].shutdown(socket.SHUT_WR)
        self._thread.join(CLOSE_SECONDS)
        with self._lock:
            if self._running is not None:  # it hangs, or has been stopped by a signal
                self._running[0].kill()
        self._thread.join()

    # --- supervising thread ---
    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            was_useful, problem = self._run_once()
            if self._closing.is_set():
                return
            failures = 0 if was_useful else failures + 1
            if failures == MAX_FAILURES:
                self._error = FailedError(f"remote inference gave no answer in {failures} starts: {problem}")
                return
            self._restarts += 1
            self._say(f"the process of remote inference {problem}; it is started again")
            self._closing.wait(exponential_delay(max(1, failures), FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS))

    def _run_once(self) -> tuple[bool, str]:
        """Run the process to its end; return whether it has answered something, and how it ended."""
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    # Its standard input is the socket: the set-up with its keys is in no argument or variable.
                    process = subprocess.Popen(
                        self._program.argv,
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        pass_fds=self._program.descriptors,
                        # The learner handles ctrl+c and a launcher's signal to the group: it ends this process in
                        # order, or dies and takes it along. Not its own session: Linux schedules sessions against
                        # each other (autogroup), and workers and server would take turns too long.
                        process_group=0,
                    )
            except OSError as error:
                return False, f"could not be started: {error}"
            with self._lock:
                self._running = process, ours
                if self._closing.is_set():
                    ours.shutdown(socket.SHUT_WR)
            problem = self._listen(ours)
            code = _reap(process)
            with self._lock:
                self._running = None
                # A successful start is not enough: a custom network may fail on its first rows.
                was_useful = self._counts["batches"] > 0
                for name in COUNTS:
                    self._past_counts[name] += self._counts[name]
                    self._counts[name] = 0
        return was_useful, f"failed: {problem}" if problem else how_it_ended(code)

    def _listen(self, lifeline: socket.socket) -> str:
        """Read reports until the process closes its end; return the problem that it stated, or an empty text."""
        problem = ""
        # OSError: it ended before it had read its set-up.
        with contextlib.suppress(OSError):
            lifeline.sendall(self._program.setup + b"\n")
            for report in reports(lifeline):
                problem = str(report.get("problem", problem))
                counts = report.get("counts", {})
                with self._lock:
                    self._counts.update({name: counts[name] for name in COUNTS if name in counts})
        return problem


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process that has closed its end of the lifeline; kill it if it lingers."""
    try:
        return process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def reports(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield the objects that the other end writes, one per line, until it closes; anything else is skipped."""
    with connection.makefile("rb") as lines:
        while line := lines.readline(LONGEST_LINE):
            try:
                report = bounded_json.loads(line)
            except ValueError:
                continue
            if isinstance(report, dict):
                yield report


def how_it_ended(code: int) -> str:
    """Describe how a process ended, by the code of `Popen.wait`."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Lifeline:
    """The process's end of the socket pair, which is its standard input."""

    def __init__(self, descriptor: int = 0) -> None:
        # Moved away from 0, where a library that reads standard input would find it.
        self._socket = socket.socket(fileno=os.dup(descriptor))

    def setup(self) -> bytes:
        """Return the first line without its line end; empty if the learner is gone."""
        line = b""
        # Byte by byte: a buffered reader could consume bytes that `is_cut` needs.
        while (byte := self._socket.recv(1)) not in {b"", b"\n"}:
            line += byte
        return line

    def report(self, **fields: Any) -> None:
        """Send a report; `is_cut` notices a learner that is gone."""
        try:
            self._socket.sendall(json.dumps(fields).encode() + b"\n")
        except OSError:
            return

    def close(self) -> None:
        """Close this end: the learner interprets that as the end of the process."""
        self._socket.close()

    def is_cut(self) -> bool:
        """Return true once the learner has closed its end; never waits."""
        try:
            return not self._socket.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
