"""One step: wait, run the command, leave the mark."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Final

from runtime import contract
from runtime.commands import FailedError, exit_code, program
from runtime.metrics import Console, record
from runtime.steps.marks import Marks
from runtime.stopping import Stop

POLL_SECONDS: Final = 0.5
SAY_SECONDS: Final = 30.0
"""A step that waits says so this often."""
_SIGNAL_SECONDS: Final = 0.1
"""A signal reaches the command within this."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done, and when."""

    name: str
    after: tuple[str, ...]
    part: int
    parts: int
    is_once: bool
    command: tuple[str, ...]

    def run(self, marks: Marks, stop: Stop, console: Console) -> int:
        """Wait, run and mark; return the exit code. Raises FailedError if the command cannot be started."""
        if self._is_over(marks):
            self._tell(console, "skipped", 0, "it was done before")
            return contract.EXIT_DONE
        marks.begin(self.name)
        culprit = self._wait(marks, stop, console)
        if stop.is_set():
            self._tell(console, "failed", contract.EXIT_INTERRUPTED, f"ended by {stop.reason} while it waited")
            return contract.EXIT_INTERRUPTED
        if culprit:
            marks.failed(self.name, contract.EXIT_FAILED, 0.0)
            self._tell(console, "failed", contract.EXIT_FAILED, f"step {culprit} before it failed")
            raise FailedError(f"step {self.name} does not run: step {culprit}, which it comes after, has failed")
        return self._work(marks, stop, console)

    def _is_over(self, marks: Marks) -> bool:
        """Say whether there is nothing to do; of parts the last may have ended without a word on the whole."""
        if marks.is_done(self.name):
            return True
        if self.parts > 1 and marks.is_part_done(self.name, self.part):
            marks.done(self.name, self.part, self.parts, 0.0)
            return True
        return False

    def _wait(self, marks: Marks, stop: Stop, console: Console) -> str | None:
        """Wait for the steps before this one; return the one that failed, or None."""
        said = float("-inf")
        while not stop.is_set():
            missing = [each for each in self.after if not marks.is_done(each)]
            if not missing:
                return None
            for each in missing:
                if marks.has_failed(each):
                    return each
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                self._tell(console, "waiting", None, f"for {', '.join(missing)}")
            time.sleep(POLL_SECONDS)
        return None

    def _work(self, marks: Marks, stop: Stop, console: Console) -> int:
        self._tell(console, "running", None, " ".join(self.command[:2]))
        began = time.monotonic()
        words = program(self.command)
        try:
            process = subprocess.Popen(words)
        except OSError as error:
            marks.failed(self.name, contract.EXIT_FAILED, 0.0)
            self._tell(console, "failed", contract.EXIT_FAILED, "its command cannot be started")
            raise FailedError(f"step {self.name}: {words[0]} cannot be started: {error}") from error
        code = exit_code(_wait_for(process, stop))
        seconds = time.monotonic() - began
        if stop.is_set():
            # Whatever it ended with, it was told to: nobody may take it for done.
            code = code or contract.EXIT_INTERRUPTED
            self._tell(console, "failed", code, f"ended by {stop.reason}", seconds)
        elif code == 0:
            is_whole = marks.done(self.name, self.part, self.parts, seconds)
            self._tell(console, "done", 0, "" if is_whole else f"part {self.part} of {self.parts}", seconds)
        else:
            if self.is_once:
                marks.failed(self.name, code, seconds)
            self._tell(console, "failed", code, f"its command ended with {code}", seconds)
        return code

    def _tell(
        self, console: Console, state: str, code: int | None, detail: str, seconds: float | None = None
    ) -> None:
        fields = {"name": self.name, "state": state, "exit_code": code, "seconds": seconds, "detail": detail}
        console.record(record("step", fields))
        console.say(f"step {self.name}: {state}" + (f" ({detail})" if detail else ""))


def _wait_for(process: subprocess.Popen[bytes], stop: Stop) -> int:
    """Wait for the command's end and hand a signal on to it, once."""
    is_told = False
    while True:
        try:
            return process.wait(_SIGNAL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.reason is not None and not is_told:
                is_told = True
                process.send_signal(signal.Signals[stop.reason])
